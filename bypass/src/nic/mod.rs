//! Network interface of a worker: a receive/transmit queue pair of a port.

pub mod capture;
pub(crate) mod packet;
pub mod pcapng;
mod via;

pub use packet::{L4, Packet, RxChecksum, RxInfo, TxOffload, VLAN_TAG};
pub use via::{InvalidVia, Via};

use crate::Sleeper;
use linerate_service::Bytes;
use std::fmt;

/// Maximum number of frames per receive or transmit call.
pub const BURST: usize = 32;

/// Ethernet address.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Broadcast address, `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Returns whether the address is a unicast address: neither a group address nor all zero.
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

/// Error: the text is not an Ethernet address.
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

/// Checksums that a port computes (transmit) or verifies (receive).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumOffload {
    /// IPv4 header checksum.
    pub ipv4: bool,
    /// TCP checksum, over IPv4 and IPv6.
    pub tcp: bool,
    /// UDP checksum, over IPv4 and IPv6.
    pub udp: bool,
}

/// Capabilities of a port, as reported by the device and configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// MTU: the longest IP packet in bytes, without the Ethernet header.
    pub mtu: u16,
    /// Headroom of an allocated packet in bytes, for headers to be prepended.
    pub headroom: usize,
    /// Data room of an allocated packet in bytes, after the headroom.
    pub data_room: usize,
    /// Number of packets that the owner of a queue pair may hold at a time without starving reception, received packets
    /// and packets kept for transmission or retransmission: its share of the pool, less the needs of rings and caches.
    /// At least a [`BURST`], if the pool has that many.
    pub pool: usize,
    /// Checksums verified on receive.
    pub rx_checksum: ChecksumOffload,
    /// Checksums computed on transmit on request of a [`TxOffload`].
    pub tx_checksum: ChecksumOffload,
    /// TCP segmentation offload: the maximum TCP payload of one packet, or `None`.
    pub tso: Option<usize>,
    /// True if received TCP segments of one flow may be merged (LRO).
    pub lro: bool,
    /// True if a chain of packets is sent as one frame without a copy.
    pub multi_segment_tx: bool,
    /// True if a received frame may be a chain.
    pub scatter_rx: bool,
    /// True if the port distributes flows over its queues by the programmed RSS hash and table.
    pub rss: bool,
    /// True if the port strips the VLAN tag from received frames and inserts one into sent frames.
    pub vlan: bool,
    /// True if the peer may be a kernel on this host, which leaves TCP and UDP checksums partial (the pseudo-header sum
    /// only) because the frame never crosses a wire. The receiver must accept such a frame as intact.
    pub rx_partial_checksum: bool,
}

/// Counters of one queue pair since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct QueueStats {
    /// Received frames.
    pub rx_frames: u64,
    /// Bytes of received frames, Ethernet headers included.
    pub rx_bytes: u64,
    /// Frames that the port accepted for transmission.
    pub tx_frames: u64,
    /// Bytes of accepted frames, Ethernet headers included.
    pub tx_bytes: u64,
    /// Calls of `tx_burst` that left frames behind because the ring was full.
    pub tx_full: u64,
    /// Calls of `allocate` or `attach` that found the packet pool empty.
    pub pool_empty: u64,
    /// Frames dropped because the port can never send them, for example because they are too long.
    pub tx_dropped: u64,
    /// Payload bytes copied because the port cannot send a chain or a shared packet.
    pub copied_bytes: u64,
}

/// Receive/transmit queue pair. It can be moved between threads and not shared.
pub trait Nic {
    /// Packet type of the port.
    type Packet: Packet;

    /// Returns the port's Ethernet address.
    fn mac(&self) -> MacAddr;

    /// Returns the port's capabilities. [`tso`](Capabilities::tso) may change when the other end of a link reconnects,
    /// so callers should not cache it. The rest is constant.
    fn capabilities(&self) -> &Capabilities;

    /// Returns whether the link is up. Suitable for periodic use, not for every burst.
    fn link_up(&mut self) -> bool;

    /// Appends up to [`BURST`] received frames to `into`. Returns their number. Receives at most as many frames as the
    /// spare capacity of `into` holds, so the vector never grows.
    fn rx_burst(&mut self, into: &mut Vec<Self::Packet>) -> usize;

    /// Sends frames from the front of `from`. Returns the number of frames that the port accepted. Other frames stay in
    /// `from`, in order.
    ///
    /// A frame that the port can never send is removed, dropped and counted in [`QueueStats::tx_dropped`].
    fn tx_burst(&mut self, from: &mut Vec<Self::Packet>) -> usize;

    /// Allocates an empty packet with [`Capabilities::headroom`]. Returns `None` if the pool is empty.
    fn allocate(&mut self) -> Option<Self::Packet>;

    /// Allocates a packet with `bytes` as its data, without a copy and without headroom, to be chained after a packet
    /// with headers. Returns `bytes` if the pool is empty or the port cannot access their memory.
    fn attach(&mut self, bytes: Bytes) -> Result<Self::Packet, Bytes>;

    /// Returns the number of free packets in the pool of the receive queue, which several queue pairs may share.
    /// Returns `None` where received packets do not come from the port's own pool. The call may visit the caches of all
    /// threads: suitable for periodic use, not for every burst.
    fn pool_left(&mut self) -> Option<usize> {
        None
    }

    /// Makes frames that arrive from now on wake `sleeper`, which is always the same. Frames that arrived before may
    /// not wake it: the caller looks for them before it sleeps. Returns `false` if the port cannot wake a worker.
    fn arm(&mut self, sleeper: &mut Sleeper) -> bool {
        let _ = sleeper;
        false
    }

    /// Undoes [`arm`](Self::arm), which spares the other end of a link the wake-ups.
    fn disarm(&mut self) {}

    /// Returns the counters of this queue pair.
    fn stats(&self) -> QueueStats;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_round_trips_through_text() {
        let mac: MacAddr = "02:0a:ff:00:01:7e".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 10, 255, 0, 1, 0x7e]));
        assert_eq!(mac.to_string(), "02:0a:ff:00:01:7e");
    }

    #[test]
    fn mac_address_rejects_malformed_text() {
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:g1", "2:0:0:0:0:1", "02:00:00:00:00:+1"]
        {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn group_and_zero_addresses_are_not_unicast() {
        assert!(!MacAddr::BROADCAST.is_unicast());
        assert!(!MacAddr([0; 6]).is_unicast());
        assert!(!MacAddr([0x33, 0x33, 0, 0, 0, 1]).is_unicast());
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_unicast());
    }
}
