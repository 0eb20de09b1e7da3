//! TLS 1.3 (RFC 8446) between a [`Service`](linerate_service::Service) and the
//! [`Transport`](linerate_service::Transport) of its worker.
//!
//! ```text
//!  Worker ── Tls (a Service) ── TlsNet (a Transport) ── the Service
//!                │
//!                ├── handshake: rustls
//!                └── records: opened and sealed here, with keys from the handshake
//! ```
//!
//! [`Tls`] is the service of the worker, on any transport. The service in it sees an ordinary transport of plaintext.
//! Received records are opened into recycled buffers, short ones one after the other. Written data is gathered until
//! the end of the event, and sealed within the buffers of the transport: on a TCP stack one record in each packet.
//! Records in steady state allocate nothing.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod buffers;
mod certificate;
mod config;
mod counters;
mod handshake;
mod limits;
mod net;
mod open_conn;
mod record;
mod service;
mod sessions;
mod table;
#[cfg(test)]
mod tests;

pub use config::{ClientAuth, ClientOptions, Identity, ServerOptions, TlsClient, TlsConfig, TlsError, TlsServer};
pub use counters::Counters;
pub use limits::{HANDSHAKE_TIME, MAX_HANDSHAKES, MAX_HANDSHAKES_PER_SOURCE};
pub use net::TlsNet;
pub use service::Tls;
