//! Network path of a queue pair, and the port that carries its packets.

use crate::wire::{Headers, UDP_PORT};
use std::net::{IpAddr, SocketAddr};

/// Addresses and classes of the packets to one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Source address and port.
    pub local: SocketAddr,
    /// Destination address and port. The address is of the same family.
    pub remote: SocketAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    pub(crate) headers: Headers,
}

impl Path {
    pub(crate) fn new([local, remote]: [IpAddr; 2], traffic_class: u8) -> Self {
        let [local, remote] = [local, remote].map(|ip| SocketAddr::new(ip, UDP_PORT));
        Path { local, remote, traffic_class, headers: Headers::between(&local, &remote) }
    }
}

/// Transmit side of a port.
pub trait Port {
    /// Returns whether the port takes another packet.
    fn has_room(&mut self) -> bool;

    /// Sends a UDP datagram of `len` bytes, from and to the port of RoCEv2. `write` fills it in. The identification in
    /// an IPv4 header is zero. A datagram that cannot be sent is lost.
    fn send(&mut self, path: &Path, len: usize, write: impl FnOnce(&mut [u8]));
}
