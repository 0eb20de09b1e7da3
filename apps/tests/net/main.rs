//! The whole of `linerate` against real Linux clients and against itself in a second process.
//!
//! Linux clients live in network namespaces, which need root: without it a test says so in one line and does nothing.
//! What polls, and everything here does, takes its turn ([`program::turn`]).

mod capture;
mod client;
mod links;
mod linux;
#[path = "../common/metrics.rs"]
mod metrics;
mod namespace;
mod network;
mod program;
mod raw;
mod refusals;
mod slaac;
mod unprivileged;
mod wire;
mod workers;
