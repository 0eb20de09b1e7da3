//! Measuring verbs themselves: what perftest measures, by the same requests, buffers and completions for each message.
//!
//! Both ends are an [`End`]: a server that waits for one client, and a client. The client connects by rdma_cm and says with that what
//! is to be done ([`Parameters`]); the server does it, or refuses. Memory is registered in a domain that is for this connection alone.
//!
//! | test | messages | measured |
//! |---|---|---|
//! | `send lat` | SENDs of either end in turn | from one to the next |
//! | `write lat` | WRITEs of either end in turn, which the other sees by looking at its memory | from one to the next |
//! | `read lat` | READs of the client | from one to the next |
//! | `atomic lat` | atomic operations of the client, on one number | from one to the next |
//! | `… bw` | those of the client, or with `bidirectional` of both, as many under way as may be | from the first to the last |
//!
//! An end that is through sends a message of no bytes, and is done when it has the other's.

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

/// Why nothing, or not all, was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// A call of the device failed.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// This end cannot do it.
    #[error("this end cannot: {0}")]
    Here(Refusal),
    /// The server does not do it.
    #[error("the server refuses: {0}")]
    Refused(Refusal),
    /// Who answers is no such server.
    #[error("who answers there is another program: start `linerate rdma perf` there")]
    Stranger,
    /// Nobody does.
    #[error("nobody listens there: start the server first")]
    NobodyListens,
    /// There is no way.
    #[error("there is no way there by this device: see `linerate rdma info`, and the routes")]
    Unreachable,
    /// Nothing was heard.
    #[error("no connection was made in time: look at the server, and the way to it")]
    TimedOut,
    /// The connection ended.
    #[error("the other end is gone, after {0} messages")]
    Lost(u64),
    /// A request failed.
    #[error("after {messages} messages a request failed: {status}")]
    Request {
        /// How it ended.
        status: WcStatus,
        /// What was done before.
        messages: u64,
    },
    /// The peer does what was not agreed on.
    #[error("the other end does what was not agreed on: {0}")]
    Broken(&'static str),
    /// It was told to end.
    #[error("interrupted after {0} messages")]
    Interrupted(u64),
}

/// The address that a server listens at, if it is not told otherwise: perftest's port.
pub const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 18_515);
