//! TCP/IP stack over any [`Nic`](linerate_bypass::Nic): sans-IO, deterministic, without unsafe code and without DPDK.
//!
//! A [`Worker`] runs a [`Service`] over one queue pair of a port. The service acts on its connections through
//! [`Transport`].
#![forbid(unsafe_code)]

mod addresses;
mod arp_ndp;
mod checksum;
mod config;
pub mod congestion;
mod demux;
mod drop_stats;
mod egress;
mod engine;
mod ethernet;
mod fast_paths;
#[doc(hidden)]
pub mod fuzzing;
mod host_network;
mod ip_cidr;
mod ipv6;
mod native;
mod rng;
mod slow_path;
#[cfg(feature = "smoltcp-engine")]
mod smoltcp_engine;
mod tcp;
mod udp;
mod worker;

pub use arp_ndp::receive::NeighborInfo;
pub use config::{Config, Idle, Keepalive};
pub use demux::steering::{RSS_KEY, TABLE_ENTRIES, owner, toeplitz};
pub use demux::vlan::{InvalidVlan, VlanId};
pub use drop_stats::{DropCause, DropStats};
pub use egress::Egress;
pub use engine::{Engine, Event, EventBatch, IcmpError, SegmentMeta, Segments};
#[cfg(feature = "fast-path-switches")]
#[doc(hidden)]
pub use fast_paths::{FastPath, FastPaths};
pub use host_network::{HostControl, HostNetwork, Route};
pub use ip_cidr::{InvalidCidr, IpCidr};
pub use ipv6::dad::DuplicateAddress;
pub use linerate_bypass::{Service, Transport};
pub use native::NativeEngine;
pub use slow_path::DhcpLease;
#[cfg(feature = "smoltcp-engine")]
pub use smoltcp_engine::SmoltcpEngine;
pub use tcp::tuple::{HashKey, Tuple};
pub use tcp::wheel::Wheel;
pub use worker::Worker;
pub use worker::inter_worker::Mailboxes;
