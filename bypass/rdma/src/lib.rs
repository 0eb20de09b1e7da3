//! Services over RDMA verbs: the same sources that run over the TCP stack and over kernel sockets.

mod adapter;
pub mod calls;
mod carrier;
mod config;
mod connection;
mod connector;
mod credit;
pub mod model;
#[cfg(feature = "native")]
pub mod native;
mod net;
mod offers;
pub mod perf;
mod rest;
mod rx;
mod session;
mod steps;
#[cfg(test)]
mod tests;
mod transport;
mod tx;
pub mod verbs;
mod wire;
mod worker;

pub use adapter::{Adapter, OpenError, WorkerParts};
pub use config::{Config, Connect, Mode, Unable};
pub use connection::Link;
pub use connector::{Connector, ExchangeError, Listeners, Seat};
pub use net::Parts;
pub use offers::Offers;
pub use rest::{Bell, Rest};
pub use steps::{Step, steps};
pub use worker::{Command, Lines, News, Worker};
