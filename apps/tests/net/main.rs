//! `linerate` with Linux clients, and with itself in a second process.
//!
//! Linux clients run in network namespaces, which need root: without root, tests print a message and pass. Programs
//! that poll run one test at a time ([`linerate_harness::program::turn`]).

mod capture;
mod client;
mod interfaces;
mod kernel_addresses;
mod links;
mod linux;
mod network;
mod program;
mod raw;
mod refusals;
mod shared;
mod slaac;
mod unprivileged;
mod wire;
mod workers;
