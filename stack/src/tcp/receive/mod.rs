//! Processing of received segments.

mod closing;
mod dispatch;
mod payload;
mod process_segment;
pub(crate) mod spill;
mod window;
