//! Processing of received segments.

mod dispatch;
mod payload;
mod process_segment;
pub(crate) mod reassembly;
pub(crate) mod spill;
mod window;
