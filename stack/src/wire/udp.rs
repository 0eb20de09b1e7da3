//! UDP header (RFC 768).

use std::net::SocketAddr;

/// IP protocol number.
pub(crate) const PROTOCOL: u8 = 17;
pub(crate) const UDP_HEADER: usize = 8;

/// UDP datagram, and the position of its payload in the first mbuf of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UdpDatagram {
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Offset of the payload.
    pub start: usize,
    /// End offset of the payload.
    pub end: usize,
}
