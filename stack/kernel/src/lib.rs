//! Services over kernel sockets: the tuned baseline for all comparisons.
//!
//! Each worker runs one loop over edge-triggered epoll and has its own listening sockets (`SO_REUSEPORT`), so that the
//! kernel spreads connections and workers share nothing. An echo of depth one takes one `epoll_wait`, one `recv` and
//! one `send`; under load one wait serves many connections and one read brings many requests. Received bytes are in
//! recycled blocks and are consumed, kept or sent from there without a copy.
//!
//! ```
//! use linerate_service::{ConnId, Origin, Service, Transport};
//! use linerate_kernel::{Config, Worker, bind};
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     type Conn = ();
//!     type Message = ();
//!     fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
//!     fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
//!         net.forward(conn, conn);
//!     }
//! }
//!
//! let config = Config { listen: vec!["127.0.0.1:0".parse()?], ..Config::default() };
//! let (_app_sender, sockets) = bind(&config, 1)?;
//! for sockets in sockets {
//!     // On a separate thread: `Worker::new(sockets, Echo).run(&stop)`.
//!     let mut worker = Worker::new(sockets, Echo);
//!     worker.turn(std::time::Duration::ZERO);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bind;
mod config;
mod connection;
mod errno;
mod error;
mod net;
mod poller;
mod transport;
mod udp;
mod worker;

pub use bind::{BoundSockets, Sockets, add_mailboxes, bind, bind_sockets};
pub use config::Config;
pub use error::{Error, Protocol};
pub use worker::Worker;
