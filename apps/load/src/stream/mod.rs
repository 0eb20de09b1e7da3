//! Traffic on byte streams: echoes and bulk transfers.

mod bulk;
mod echo;
mod pattern;

pub use bulk::{Bulk, Direction};
pub use echo::EchoLoad;
pub(crate) use pattern::{LONG, PERIOD, Position};
