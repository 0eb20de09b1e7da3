//! What the stack costs by itself: a server on the memory NIC whose turns are timed, and nothing else is.
//!
//! Each kind of work is a bench of its own, for whichever TCP engine: [`Echo`], [`Connect`], [`Stream`], [`idle`].

mod connect;
mod cost;
mod echo;
pub mod idle;
pub mod memory;
mod pair;
mod stream;

pub use connect::Connect;
pub use cost::{Bench, Cost, measure};
pub use echo::{Echo, Write};
pub use pair::{Pair, PairConfig};
pub use stream::Stream;
