//! One receive/transmit queue pair of a network port, as a worker sees it.

pub mod capture;
pub(crate) mod packet;
mod via;

pub use packet::{L4, Packet, RxChecksum, RxInfo, TxOffload, VLAN_TAG};
pub use via::{InvalidVia, Via};

use crate::Bytes;
use std::fmt;

/// Frames moved by one call at most: what a PMD takes from or gives to its ring in one go.
pub const BURST: usize = 32;

/// An Ethernet address.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Whether this can be the address of one station: neither a group address nor all zero.
    pub fn is_unicast(&self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an Ethernet address: write six hexadecimal bytes, such as 02:00:00:00:00:01")]
pub struct InvalidMac(String);

impl std::str::FromStr for MacAddr {
    type Err = InvalidMac;

    fn from_str(text: &str) -> Result<Self, InvalidMac> {
        let invalid = || InvalidMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts
                .next()
                .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
                .ok_or_else(invalid)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        match parts.next() {
            None => Ok(MacAddr(bytes)),
            Some(_) => Err(invalid()),
        }
    }
}

/// Which Internet checksums a port computes (transmit) or verifies (receive) by itself.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumOffload {
    /// The IPv4 header checksum.
    pub ipv4: bool,
    /// The TCP checksum, over IPv4 and IPv6.
    pub tcp: bool,
    /// The UDP checksum, over IPv4 and IPv6.
    pub udp: bool,
}

/// What a port can do, as the device reported it and as the port was then configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The largest IP packet in bytes that the port sends and receives (the frame less its Ethernet header).
    pub mtu: u16,
    /// Bytes in front of an allocated packet's data, for headers to be prepended.
    pub headroom: usize,
    /// The payload room of one allocated packet, in bytes behind the headroom.
    pub data_room: usize,
    /// Packets that the owner of a queue pair may hold at one time, received ones and ones to be sent or kept for a
    /// retransmission, without starving it of packets to receive with: its share of the pool, less what its rings
    /// and caches need. At least a [`BURST`], if the pool has one.
    pub pool: usize,
    /// Checksums verified on receive.
    pub rx_checksum: ChecksumOffload,
    /// Checksums computed on transmit when [`TxOffload`](crate::TxOffload) asks for it.
    pub tx_checksum: ChecksumOffload,
    /// TCP segmentation offload: the largest TCP payload in one packet, or `None`.
    pub tso: Option<usize>,
    /// Received TCP segments of one flow may arrive merged.
    pub lro: bool,
    /// Chains of packets are sent as one frame without a copy.
    pub multi_segment_tx: bool,
    /// A received frame may be a chain.
    pub scatter_rx: bool,
    /// The port spreads flows over its queues by the hash and table that were programmed.
    pub rss: bool,
    /// A VLAN tag is taken from received frames and put into sent ones by the port.
    pub vlan: bool,
    /// The peer may be a kernel on this host, which leaves TCP and UDP checksums partial (the pseudo-header's
    /// sum only) because the frame never crosses a wire. A receiver must then take such a frame for intact.
    pub rx_partial_checksum: bool,
}

/// What one queue pair has counted since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct QueueStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes in them, Ethernet header included.
    pub rx_bytes: u64,
    /// Frames that the port took for sending.
    pub tx_frames: u64,
    /// Bytes in them, Ethernet header included.
    pub tx_bytes: u64,
    /// Calls of `tx_burst` after which frames stayed with the caller: the ring was full.
    pub tx_full: u64,
    /// Calls of `allocate` or `attach` that found the packet pool empty.
    pub pool_empty: u64,
    /// Frames dropped by the queue because they can never be sent as they are (too long for the port).
    pub tx_dropped: u64,
    /// Payload bytes copied because the port cannot send a chain or a shared packet.
    pub copied_bytes: u64,
}

/// A receive/transmit queue pair. It belongs to one thread at a time: it can move, it cannot be shared.
pub trait Nic {
    /// What a frame is held in.
    type Packet: Packet;

    /// The port's Ethernet address.
    fn mac(&self) -> MacAddr;

    /// What the port can do. [`tso`](Capabilities::tso) may change with the other end of a link, so ask anew rather than
    /// keep the answer for long; the rest stays.
    fn capabilities(&self) -> &Capabilities;

    /// Whether the link is up. Cheap enough to ask now and then, not per burst.
    fn link_up(&mut self) -> bool;

    /// Appends up to [`BURST`] received frames to `into` and returns how many. Takes no more than fit in the
    /// capacity that `into` has left, so a vector made once never grows.
    fn rx_burst(&mut self, into: &mut Vec<Self::Packet>) -> usize;

    /// Hands the frames of `from` to the port, from the front, and returns how many it took. What did not fit
    /// stays in `from`, in order.
    ///
    /// A frame that the port can never send is taken, dropped and counted in [`QueueStats::tx_dropped`].
    fn tx_burst(&mut self, from: &mut Vec<Self::Packet>) -> usize;

    /// An empty packet with [`Capabilities::headroom`] in front, or `None` when the pool is empty.
    fn allocate(&mut self) -> Option<Self::Packet>;

    /// A packet whose data is `bytes`, without copying them, and with no headroom of its own: to be chained
    /// behind a packet with headers. `bytes` comes back when the pool is empty or the port cannot reach that
    /// memory.
    fn attach(&mut self, bytes: Bytes) -> Result<Self::Packet, Bytes>;

    /// Packets that are free in the pool that frames are received into, which several queue pairs may share; `None` where
    /// received packets are not this port's own. It may look at the caches of all threads: to be asked now and then, not
    /// per burst.
    fn pool_left(&mut self) -> Option<usize> {
        None
    }

    /// The counters of this queue pair.
    fn stats(&self) -> QueueStats;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_reads_what_it_writes() {
        let mac: MacAddr = "02:0a:ff:00:01:7e".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 10, 255, 0, 1, 0x7e]));
        assert_eq!(mac.to_string(), "02:0a:ff:00:01:7e");
    }

    #[test]
    fn mac_address_refuses_what_is_not_one() {
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:g1", "2:0:0:0:0:1", "02:00:00:00:00:+1"]
        {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn group_and_zero_addresses_are_no_stations() {
        assert!(!MacAddr::BROADCAST.is_unicast());
        assert!(!MacAddr([0; 6]).is_unicast());
        assert!(!MacAddr([0x33, 0x33, 0, 0, 0, 1]).is_unicast());
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_unicast());
    }
}
