//! Values that the events of a service carry.

use crate::Bytes;
use std::net::SocketAddr;

/// How a connection came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A peer connected to one of our listening addresses.
    Accepted,
    /// [`Transport::connect`] was called with this token.
    Connected(u64),
}

/// Why an outgoing connection could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer answered with a reset: nothing listens there.
    #[error("connection refused")]
    Refused,
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// No route, no neighbour, or an ICMP error said so.
    #[error("host unreachable")]
    Unreachable,
    /// The address cannot be that of another host: it is this host's own, a loopback, broadcast or reserved one. The stack has
    /// no loopback.
    #[error("not the address of another host (own, loopback, broadcast or reserved)")]
    InvalidAddress,
    /// No local address of that family, or no ephemeral port is left.
    #[error("no local address or port left for it")]
    NoLocalAddress,
    /// The worker has as many connections as it may.
    #[error("too many connections")]
    TooMany,
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides closed, and all that was sent has been acknowledged.
    Finished,
    /// The peer reset it.
    Reset,
    /// We aborted it: the service did, or the worker while stopping.
    Aborted,
    /// The peer stopped answering.
    TimedOut,
    /// No data moved in either direction for as long as the transport's idle timeout. The peer has been sent a reset.
    IdleTimeout,
    /// The address that it was from is no longer ours: the time has run out for which a DHCP server had given it. The peer is not told.
    AddressLost,
}

/// A UDP datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Our end: where it arrived, or what to send it from.
    pub local: SocketAddr,
    /// The peer: where it came from, or where to send it to.
    pub remote: SocketAddr,
    /// What it carries.
    pub payload: Bytes,
}
