//! TCP, UDP and RDMA services that bypass the kernel.
//!
//! A program implements [`Service`], the event handlers of its connections, and runs it on the workers of a
//! [`Network`]. The same service runs over every transport:
//!
//! ```no_run
//! # use linerate::{ConnId, Network, Origin, Service, Transport, WorkerCtx};
//! # struct MyService;
//! # impl MyService { fn new(_: WorkerCtx<()>) -> Self { MyService } }
//! # impl Service for MyService {
//! #     type Conn = ();
//! #     type Message = ();
//! #     fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
//! # }
//! Network::builder()
//!     .via("af_xdp:eth0".parse()?)
//!     .ip("10.0.0.2/24".parse()?)
//!     .listen("10.0.0.2:7".parse()?)
//!     .workers(2)
//!     .build()?
//!     .run(|ctx| MyService::new(ctx))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | start here | for |
//! |---|---|
//! | [`Service`], [`Transport`] | a service: its events, and its operations on connections |
//! | [`Network`], [`NetworkBuilder`], [`NetConfig`] | from options to running workers |
//! | [`Stop`], [`Running`] | the end of a program, at once or after its connections have ended |
//! | [`testing`] | tests of a service in virtual time, on a network that loses and delays frames |
//! | [`StatsClient`] | counters and connections of running workers |
//!
//! # Transports and features
//!
//! | [`Via`] | feature | transport |
//! |---|---|---|
//! | `kernel` | | sockets of the kernel |
//! | `af_xdp:INTERFACE`, `tap:INTERFACE`, `pci:ADDRESS`, `virtio-user:SOCKET`, `vhost:SOCKET`, `memif:SOCKET`, `eal` | `dpdk` | the TCP/IP stack on a port of DPDK |
//! | `rdma:DEVICE` | `rdma` | RDMA verbs |
//!
//! | feature | contents |
//! |---|---|
//! | `smoltcp-engine` | smoltcp's TCP as an alternative to the native engine of the stack |
//! | `async` | `tasks`, services written with async/await |
//! | `tokio`, `futures`, `hyper` | traits of these libraries for the streams of `tasks` |
//! | `tls` | `tls`, TLS 1.3 on the connections of every service |
//! | `bytes` | conversions between [`Bytes`] and `bytes::Bytes` |
//! | `clap` | `clap::Args` for [`NetConfig`]: a program has the network options of the command `linerate` |
//! | `serde` | `Deserialize` for [`NetConfig`] and its parts, `Serialize` for [`RunContext`] |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod builder;
mod capture;
#[cfg(feature = "clap")]
mod cli;
mod config;
mod cores;
mod error;
#[cfg(feature = "dpdk")]
mod inline;
mod jobs;
mod kept_devices;
mod network;
mod port;
#[cfg(feature = "dpdk")]
mod prepared;
mod raw;
mod run_context;
mod split;
mod stats_client;
pub mod testing;
pub mod units;

/// Services written with async/await: the crate `linerate-async`.
#[cfg(feature = "async")]
pub mod tasks {
    pub use linerate_async::*;
}

/// TLS of connections: the crate `linerate-tls`.
#[cfg(feature = "tls")]
pub mod tls {
    pub use linerate_tls::*;
}

pub use builder::NetworkBuilder;
pub use capture::CaptureConfig;
pub use config::{
    InvalidPortRange, Listen, MIN_MTU, NativeTcpConfig, NetConfig, PortRange, Profile, RdmaConfig, RdmaConnect,
    RdmaMode, RendezvousMin, TcpEngine, ThreadingMode,
};
pub use cores::{CoreList, CorePlacement, usable as usable_cores};
pub use error::Error;
#[cfg(feature = "dpdk")]
pub use inline::InlineNetwork;
#[doc(hidden)]
pub use kept_devices::KeptDevices;
pub use linerate_bypass::arena::{Arena, ArenaError};
pub use linerate_bypass::{InvalidMac, InvalidVia, MacAddr, Published, RemoteCounters, Via};
pub use linerate_service::{
    AppSender, Bytes, CloseReason, ConnId, ConnectError, Datagram, OneSidedError, OneSidedOp, OneSidedResult, Origin,
    RemoteAddr, RemoteAddrCell, Service, Stop, Summary, Transport, Verbs, WorkerCtx, inspect, time,
};
pub use linerate_stack::congestion::Algorithm;
pub use linerate_stack::{Idle, InvalidCidr, InvalidVlan, IpCidr, VlanId};
pub use network::{Network, Running};
#[cfg(all(feature = "rdma", feature = "dpdk"))]
#[doc(hidden)]
pub use port::roce::{Device as RoceDevice, open_device as open_roce_device};
#[cfg(feature = "dpdk")]
pub use prepared::PreparedNetwork;
pub use raw::{ETHERNET, FramePortConfig, FrameWorker};
pub use run_context::{Device, RunContext, Threading};
pub use stats_client::StatsClient;
