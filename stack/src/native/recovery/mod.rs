//! To be written.

#[derive(Debug, Clone, Copy, Default)]
pub struct RttEstimator(u64);
