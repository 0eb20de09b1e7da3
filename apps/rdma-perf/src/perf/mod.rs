//! Latency and bandwidth of verbs, with the requests, buffers and completions per message that perftest uses.
//!
//! Both ends are an [`End`]: a server for one client, and a client. The client connects by rdma_cm and sends the test
//! parameters ([`Parameters`]) in its private data; the server performs the test or refuses it. Memory is registered in
//! a protection domain of the connection alone.
//!
//! | test | messages | measured |
//! |---|---|---|
//! | `send lat` | SENDs of both ends in turn | from one to the next |
//! | `write lat` | WRITEs of both ends in turn, which the peer observes in its memory | from one to the next |
//! | `read lat` | READs of the client | from one to the next |
//! | `atomic lat` | atomic operations of the client, on one number | from one to the next |
//! | `… bw` | those of the client, with `bidirectional` of both, as many outstanding as possible | from the first to
//! the last |
//!
//! An end that has completed its messages sends an empty final message, and finishes when it has received the peer's.

mod end;
mod parameters;
mod prepared;
mod run;
#[cfg(test)]
mod tests;

pub use end::{End, Outcome, Turn};
pub use parameters::{AtomicKind, Kind, Malformed, Parameters, Refusal, Test, Verb};

use linerate_rdma::provider::WcStatus;
use linerate_rdma::verbs;
use std::net::SocketAddr;

/// Failure of a test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// A call of the device failed.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// This end cannot perform the test.
    #[error("not possible at this end: {0}")]
    Here(Refusal),
    /// The server cannot perform the test.
    #[error("the server refuses: {0}")]
    Refused(Refusal),
    /// The server is another program.
    #[error("the peer is another program: start `linerate-rdma-perf` there")]
    Stranger,
    /// No server is listening.
    #[error("no server listens there: start the server first")]
    NobodyListens,
    /// The server is unreachable.
    #[error("no route by this device: see `linerate rdma info` and the routes")]
    Unreachable,
    /// Connection setup timed out.
    #[error("connection setup timed out: check the server and the network")]
    TimedOut,
    /// The connection ended.
    #[error("the peer is gone after {0} messages")]
    Lost(u64),
    /// A request failed.
    #[error("a request failed after {messages} messages: {status}")]
    Request {
        /// Status of the request.
        status: WcStatus,
        /// Messages completed before.
        messages: u64,
    },
    /// The peer violated the protocol.
    #[error("the peer violated the protocol: {0}")]
    Broken(&'static str),
    /// The test was interrupted.
    #[error("interrupted after {0} messages")]
    Interrupted(u64),
}

/// Default listening address of a server, with perftest's port.
pub const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 18_515);
