//! RoCEv2 in software (InfiniBand Architecture Specification, volume 1, release 1.4, with annexes A16 and A17).
//!
//! The [`Engine`] is sans-IO: time and packets are arguments, packets are written into buffers of the caller, and
//! randomness is seeded. Equal input gives equal output. [`Carrier`] joins it to the UDP of a transport, and a
//! [`StreamTable`] to its TCP. A [`Device`]
//! is an engine with its port, and implements [`Provider`](linerate_rdma_provider::Provider).
#![warn(missing_docs)]

mod carrier;
mod cm;
mod counters;
mod engine;
mod icrc;
mod memory;
mod path;
mod provider;
mod qp;
mod queues;
mod streams;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod waker;
mod wire;

pub use carrier::Carrier;
pub use cm::Counters as CmCounters;
pub use counters::Counters;
pub use engine::{Config, Engine};
pub use path::{Path, Port};
pub use provider::{Device, Driver};
pub use streams::StreamTable;
pub use wire::UDP_PORT;
