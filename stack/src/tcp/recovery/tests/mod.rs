//! Tests of recovery as a whole: a sender with a flight, a receiver, and a scripted link between them, on a virtual
//! clock.

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
