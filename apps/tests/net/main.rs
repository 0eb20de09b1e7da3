//! `linerate` with Linux clients, and with itself in a second process.
//!
//! Linux clients run in network namespaces, which need root: without root, tests print a message and pass. Programs
//! that poll run one test at a time ([`linerate_harness::program::turn`]).

#[path = "../common/mod.rs"]
mod common;
mod interfaces;
mod links;
mod linux;
mod peers;
#[cfg(feature = "dpdk")]
mod run;
