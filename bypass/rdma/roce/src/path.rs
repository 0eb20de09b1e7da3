//! Network path of a queue pair, and the port that carries its packets.

use std::net::IpAddr;

/// Addresses and classes of the packets to one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Source address.
    pub local: IpAddr,
    /// Destination address, of the same family.
    pub remote: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

/// Transmit side of a port.
pub trait Port {
    /// Returns whether the port takes another packet.
    fn has_room(&mut self) -> bool;

    /// Sends a UDP datagram of `len` bytes, from and to the port of RoCEv2. `write` fills it in. The identification in
    /// an IPv4 header is zero. A datagram that cannot be sent is lost.
    fn send(&mut self, path: &Path, len: usize, write: impl FnOnce(&mut [u8]));
}
