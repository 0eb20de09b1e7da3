//! Traffic on byte streams: echoes and bulk transfers.

mod bulk;
mod echo;
mod incast;

pub use bulk::{Bulk, Direction};
pub use echo::EchoLoad;
pub use incast::Incast;
