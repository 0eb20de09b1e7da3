//! Services over RDMA verbs, from the same source as over the TCP stack and over kernel sockets.
//!
//! ```text
//! Worker (Service) ── net ── connection ── verbs ── provider::Provider ── rdma_core or linerate_roce
//!        └── mailboxes ── Connector: rdma_cm or the TCP exchange, one thread per device
//! ```
#![warn(missing_docs)]

mod adapter;
mod config;
mod connection;
mod connector;
mod net;
mod queues;
#[cfg(feature = "native")]
pub mod rdma_core;
mod session;
#[cfg(test)]
mod tests;
pub mod verbs;
mod waker;
mod wire;
mod worker;

pub use adapter::{Adapter, OpenError, Started, WorkerParts};
pub use config::{Config, Connect, Mode, Rendezvous, Unsupported};
pub use connection::ConnCore;
pub use connector::steps::{Step, steps};
pub use connector::{Connector, DeviceFailed, ExchangeError, Listeners, WorkerHandle};
pub use linerate_rdma_provider as provider;
pub use net::Parts;
pub use queues::Queues;
#[doc(hidden)]
pub use session::measuring;
pub use waker::{IdleWait, wait_readable};
pub use worker::{ConnectorEvent, ConnectorRequest, Worker, WorkerChannels};
