//! Processing of received segments.

mod dispatch;
mod payload;
mod process_segment;
pub(crate) mod reassembly;
mod window;
