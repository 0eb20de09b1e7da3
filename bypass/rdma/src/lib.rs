//! Services over RDMA verbs: the same sources that run over the TCP stack and over kernel sockets.

mod adapter;
pub mod calls;
mod config;
mod connection;
mod connector;
mod credit;
pub mod model;
#[cfg(feature = "native")]
pub mod native;
mod net;
mod offers;
mod rest;
mod rx;
#[cfg(test)]
mod tests;
mod transport;
mod tx;
pub mod verbs;
mod wire;
mod worker;

pub use adapter::{Adapter, OpenError, WorkerParts};
pub use config::{Config, Connect, TooMany};
pub use connection::Link;
pub use connector::{Connector, ExchangeError, Listeners, Seat};
pub use net::Parts;
pub use offers::Offers;
pub use rest::{Bell, Rest};
pub use worker::{Command, Lines, News, Worker};
