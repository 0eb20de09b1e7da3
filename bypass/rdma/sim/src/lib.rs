//! Simulated verbs devices, for tests of everything above [`linerate_rdma_provider`].
//!
//! A [`Fabric`] joins devices, each a [`SimDevice`]. RC and UD queue pairs and the connection manager have the states,
//! ordering and errors of the InfiniBand Architecture Specification, volume 1, chapters 9 to 11. Where the
//! specification leaves a choice, devices behave like Linux and rdma-core, as noted in comments. Nothing runs on its
//! own: [`Fabric::step`] performs one pending event, chosen by a seeded generator, so that every order that a network
//! can produce occurs and can be reproduced. With [`Mode::Auto`], each call performs all possible events, for use by
//! threads.
//!
//! [`Fabric`] also injects faults, and counts objects, posted and polled requests, and messages that found no buffer.

mod cm;
mod completion;
mod device;
mod fabric;
mod faults;
mod memory;
mod objects;
mod provider;
mod qp;
#[cfg(test)]
mod tests;
mod world;

pub use device::{DeviceConfig, SimDevice};
pub use fabric::{Counters, Fabric, FabricConfig, Live, Mode};
pub use faults::{Call, DatagramCounts, DatagramFaults};
