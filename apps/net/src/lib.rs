//! Opening of the network that `--via` names, and the workers that run a service on it.
//!
//! Shared by the binary, the load generators and the comparison. Also contains the parsers of option values ([`units`])
//! and the process-level parts of every command ([`process`]: standard output, signals, service-manager notification).
#![forbid(unsafe_code)]

mod capture;
#[cfg(feature = "cli")]
mod cli;
mod config;
mod cores;
mod error;
mod network;
mod port;
pub mod process;
mod raw;
mod run_context;
mod split;
mod stats_client;
mod summary;
mod tx_arena;
pub mod units;

pub use capture::CaptureConfig;
pub use config::{
    MIN_MTU, NativeTcpConfig, NetConfig, Profile, RdmaConfig, RdmaConnect, RdmaMode, RendezvousMin, TcpEngine,
    ThreadingMode,
};
pub use cores::{CoreList, CorePlacement, usable as usable_cores};
pub use error::Error;
pub use network::{Listen, Network, Running};
pub use raw::{ETHERNET, FramePortConfig, FrameWorker};
pub use run_context::{Device, RunContext, Threading, WithContext};
pub use stats_client::StatsClient;
pub use summary::SummaryReport;
pub use tx_arena::copy_to_arena;
