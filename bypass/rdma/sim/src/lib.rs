//! A verbs device in this process, on which what is above [`provider`](linerate_rdma_provider) is tested without one.
//!
//! A [`Fabric`] joins devices, each a [`SimDevice`]. Reliable connected queue pairs, those of datagrams, and the connection manager have the states, the
//! order, and the errors of the InfiniBand Architecture Specification, volume 1, chapters 9 to 11, and where that leaves a
//! choice, those of Linux and rdma-core, which the comments name. Nothing runs by itself: [`Fabric::step`] lets one pending
//! thing happen, chosen by a seeded generator among those that could, so that every order that a network can bring about comes
//! up, and comes again with its seed. With [`Mode::Auto`] every call lets all happen that can, for use by threads.
//!
//! [`Fabric`] also injects faults, and counts what is live, what was posted and polled, and how often a message found no buffer.

mod cm;
mod completion;
mod datagrams;
mod deliver;
mod device;
mod execute;
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
