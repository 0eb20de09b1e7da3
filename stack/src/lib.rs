//! TCP/IP over any [`Nic`](linerate_bypass::Nic): sans-IO, deterministic, without unsafe code and without DPDK.
#![forbid(unsafe_code)]

mod config;

pub use config::{Config, Idle, InvalidCidr, IpCidr};
