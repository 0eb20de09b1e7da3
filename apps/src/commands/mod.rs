//! Subcommands: arguments and output of each, and shared parts.

pub mod chargen;
pub mod compare;
pub mod conns;
pub mod discard;
pub mod doctor;
pub mod echo;
pub mod http;
pub mod hugepages;
pub mod kv;
pub mod raw;
#[cfg(feature = "rdma")]
pub mod rdma;
#[cfg(feature = "dpdk")]
pub mod run;
pub(crate) mod shared;
pub mod top;
