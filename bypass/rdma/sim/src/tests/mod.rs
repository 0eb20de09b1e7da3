//! Tests of the simulator, one per rule.

mod completions;
mod connecting;
mod datagram_faults;
mod datagrams;
mod drivers;
mod ends;
mod failing;
mod hardware;
mod iwarp;
mod objects;
mod random;
mod rc;

pub use ends::*;
