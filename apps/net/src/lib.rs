//! From a command line to running workers: opens the network that `--via` names and runs a service on it.
//!
//! The binary, the load generators and the comparison share this crate. It also holds the parsers of option values ([`units`]) and the
//! process-level helpers of every command ([`process`]: standard output, signals, service-manager notification).
#![forbid(unsafe_code)]

mod args;
mod capture;
mod cores;
mod error;
mod network;
mod port;
pub mod process;
mod raw;
mod run_context;
mod split;
mod stats_query;
mod summary;
mod tx_arena;
pub mod units;

#[cfg(feature = "rdma")]
pub use args::rdma::{ConnectArg, ModeArg};
pub use args::{EngineArg, IdleArg, NetArgs, ProfileArg, ThreadingArg, rdma::RdmaArgs};
pub use cores::{CoreList, Place, usable as usable_cores};
pub use error::Error;
pub use network::{Listen, Network, Running};
pub use raw::{ETHERNET, Frames, PortArgs};
pub use run_context::{Basis, Device, Over, Threading};
pub use stats_query::Way;
pub use summary::Shown;
pub use tx_arena::within_reach;
