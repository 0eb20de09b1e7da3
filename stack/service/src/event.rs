//! Values that the events of a service carry.

use crate::Bytes;
use std::net::SocketAddr;

/// Origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A peer connected to a listening address (passive open).
    Accepted,
    /// [`Transport::connect`](crate::Transport::connect) was called with this token (active open).
    Connected(u64),
}

/// Reason why an outgoing connection could not be established.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer replied with a reset: nothing listens at the address.
    #[error("connection refused")]
    Refused,
    /// The peer did not reply within the connection timeout.
    #[error("timed out")]
    TimedOut,
    /// There is no route or no neighbour, or an ICMP error was received.
    #[error("host unreachable")]
    Unreachable,
    /// The address cannot belong to another host: it is an own, loopback, broadcast or reserved address. The stack has
    /// no loopback.
    #[error("not the address of another host (own, loopback, broadcast or reserved)")]
    InvalidAddress,
    /// There is no local address of that family, or no free ephemeral port.
    #[error("no local address or ephemeral port available")]
    NoLocalAddress,
    /// The worker has reached its connection limit.
    #[error("too many connections")]
    TooMany,
    /// The connection was established, and its TLS handshake failed.
    #[error("the TLS handshake failed")]
    Handshake,
}

/// Reason why an operation sent nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The send queue has too little space, or no buffer is free. [`Service::writable`](crate::Service::writable)
    /// follows.
    #[error("the send queue is full")]
    Full,
    /// The connection has ended, or the local end is closed.
    #[error("the connection is closed for sending")]
    Closed,
}

/// Bytes that [`Transport::send`](crate::Transport::send) returns.
#[derive(Debug, thiserror::Error)]
#[error("{} bytes were not sent: {error}", bytes.len())]
pub struct Unsent {
    /// All bytes of the operation.
    pub bytes: Bytes,
    /// Reason.
    pub error: WriteError,
}

/// Reason why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides closed, and everything sent was acknowledged.
    Finished,
    /// The peer reset the connection.
    Reset,
    /// The connection was aborted locally: by the service, or by the worker while stopping.
    Aborted,
    /// The peer stopped acknowledging.
    TimedOut,
    /// No data moved in either direction within the transport's idle timeout. The peer has been sent a reset.
    IdleTimeout,
    /// This host has lost the connection's local address: its DHCP lease has expired, or the kernel removed it from a
    /// shared interface. Nothing is sent to the peer.
    AddressLost,
}

/// UDP datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Local address: destination of a received datagram, source of a sent one.
    pub local: SocketAddr,
    /// Peer's address: source of a received datagram, destination of a sent one.
    pub remote: SocketAddr,
    /// UDP payload.
    pub payload: Bytes,
}
