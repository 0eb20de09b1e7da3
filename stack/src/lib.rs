//! TCP/IP stack over any [`Nic`](linerate_bypass::Nic): sans-IO, deterministic, without unsafe code and without DPDK.
//!
//! A [`Worker`] runs a [`Service`] over one queue pair of a port. The service acts on its connections through
//! [`Transport`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod config;
mod engine;
#[doc(hidden)]
pub mod fuzzing;
mod ip;
mod rng;
mod slow_path;
#[cfg(feature = "smoltcp-engine")]
mod smoltcp_engine;
mod tcp;
mod wire;
mod worker;

#[cfg(feature = "fast-path-switches")]
#[doc(hidden)]
pub use config::fast_paths::{FastPath, FastPaths};
pub use config::host_network::{HostNetwork, Route};
pub use config::{Config, Idle};
pub use engine::{Engine, SegmentMeta, Segments};
pub use ip::arp_ndp::NeighborInfo;
pub use ip::egress::Egress;
pub use ip::v6::dad::DuplicateAddress;
pub use linerate_service::{Keepalive, Service, Transport};
pub use slow_path::DhcpLease;
#[cfg(feature = "smoltcp-engine")]
pub use smoltcp_engine::SmoltcpEngine;
pub use tcp::clock::wheel::Wheel;
pub use tcp::{NativeEngine, congestion};
pub use wire::drop_stats::{DropCause, DropStats};
pub use wire::icmp::IcmpError;
pub use wire::ip_cidr::{InvalidCidr, IpCidr};
pub use wire::steering::{RSS_KEY, TABLE_ENTRIES, owner, toeplitz};
pub use wire::tuple::{HashKey, Tuple};
pub use wire::vlan::{InvalidVlan, VlanId};
pub use worker::Worker;
pub use worker::host_control::HostControl;
pub use worker::inter_worker::Mailboxes;
