//! Shared parts of the benches. Each published figure comes from one of the programs in `src/bin`.
#![forbid(unsafe_code)]

pub mod af_xdp;
pub mod client;
pub mod distance;
pub mod echo_pair;
pub mod engine;
pub mod external;
pub mod figures;
pub mod goodput;
pub mod hostile;
pub mod impair;
pub mod kv;
pub mod loss;
pub mod paired;
pub mod report;
pub mod requirements;
pub mod stolen;

pub use linerate_compare::{priority, transfer};
