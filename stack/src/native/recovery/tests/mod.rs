//! Recovery as a whole: a sender on the flight, a receiver, and a link between them that does what the test says, all on a
//! virtual clock.

mod bounds;
mod hostile;
mod losses;
mod network;
mod reduction;
mod reordering;
mod spurious;
mod timers;
mod without_sack;

pub(crate) use network::{Fate, Network, Options, Packet};
