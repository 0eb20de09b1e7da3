//! TCP/IP over any [`Nic`](linerate_bypass::Nic): sans-IO, deterministic, without unsafe code and without DPDK.
#![forbid(unsafe_code)]

mod addresses;
mod checksum;
mod config;
pub mod congestion;
mod copies;
mod crossing;
mod dad;
mod demux;
mod device;
mod discovery;
mod drops;
mod egress;
mod engine;
mod fast_paths;
#[doc(hidden)]
pub mod fuzzing;
mod ingress;
mod native;
mod neighbors;
mod ports;
mod presence;
mod reply;
mod seed;
mod shortcut;
mod six;
mod slots;
mod slow;
mod smoltcp_engine;
mod sources;
mod steering;
mod time_wait;
mod tuple;
mod udp;
mod vlan;
mod wheel;
mod worker;

pub use config::{Config, Idle, InvalidCidr, IpCidr, Keepalive};
pub use crossing::Crossing;
pub use dad::Duplicate;
pub use drops::{Cause, Drops};
pub use egress::Egress;
pub use engine::{Engine, Event, Head, IcmpError, News, Segments};
#[cfg(feature = "fast-path-switches")]
#[doc(hidden)]
pub use fast_paths::{FastPath, FastPaths};
pub use native::NativeEngine;
pub use slow::{Learnt, Lease};
pub use smoltcp_engine::SmoltcpEngine;
pub use steering::{RSS_KEY, TABLE_ENTRIES, owner, toeplitz};
pub use tuple::{HashKey, Tuple};
pub use vlan::{InvalidVlan, VlanId};
pub use wheel::Wheel;
pub use worker::Worker;
