//! TCP/IP over any [`Nic`](linerate_bypass::Nic): sans-IO, deterministic, without unsafe code and without DPDK.
#![forbid(unsafe_code)]

mod addresses;
mod checksum;
mod config;
mod drops;
mod neighbors;
mod steering;
mod tuple;
mod wheel;

pub use config::{Config, Idle, InvalidCidr, IpCidr};
pub use drops::{Cause, Drops};
pub use steering::{RSS_KEY, TABLE_ENTRIES, owner, toeplitz};
pub use tuple::Tuple;
pub use wheel::Wheel;
