//! `linerate` with Linux clients, and with itself in a second process.
//!
//! Linux clients run in network namespaces, which need root: without root, tests print a message and pass. Programs
//! that poll run one test at a time ([`program::turn`]).

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
