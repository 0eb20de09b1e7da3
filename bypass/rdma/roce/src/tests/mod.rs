//! Tests of the engine.

#[path = "../../fuzz/src/attack.rs"]
mod attack;
mod completions;
mod congestion;
pub mod connecting;
mod credits;
pub mod datagrams;
mod ends;
mod hostile;
mod network;
pub mod objects;
mod packets;
mod random;
pub mod rc;
mod refusals;
mod scenarios;
mod streams;
mod wire;

pub use ends::*;
