//! Traffic on byte streams: echoes and bulk transfers.

mod bulk;
mod echo;

pub use bulk::{Bulk, Direction};
pub use echo::EchoLoad;
