//! Processing of received segments.

pub(crate) mod input;
mod payload;
pub(crate) mod reassembly;
mod window;
