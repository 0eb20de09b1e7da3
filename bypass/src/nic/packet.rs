//! Packet in memory that a port can access.

use linerate_service::Bytes;
use std::ops::Range;

/// EtherType of a VLAN tag (IEEE 802.1Q §9.6).
pub const VLAN_TAG: u16 = 0x8100;
/// Length of a VLAN tag.
pub(crate) const TAG: usize = 4;
/// Length of both Ethernet addresses.
pub(crate) const ADDRESSES: usize = 12;
/// Length of an Ethernet header with a VLAN tag.
const TAGGED: usize = ADDRESSES + TAG + 2;

/// Returns the Ethernet addresses followed by a tag of `tci`.
pub(crate) fn with_tag(addresses: [u8; ADDRESSES], tci: u16) -> [u8; ADDRESSES + TAG] {
    let mut bytes = [0; ADDRESSES + TAG];
    bytes[..ADDRESSES].copy_from_slice(&addresses);
    bytes[ADDRESSES..][..2].copy_from_slice(&VLAN_TAG.to_be_bytes());
    bytes[ADDRESSES + 2..].copy_from_slice(&tci.to_be_bytes());
    bytes
}

/// Result of a port's checksum verification of a received frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum RxChecksum {
    /// The port did not verify: software must.
    #[default]
    Unknown,
    /// The port verified it, or the frame never crossed a wire.
    Good,
    /// The checksum is wrong.
    Bad,
}

/// Receive metadata of a frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RxInfo {
    /// IPv4 header checksum.
    pub ipv4_checksum: RxChecksum,
    /// TCP or UDP checksum.
    pub l4_checksum: RxChecksum,
    /// RSS hash that the port computed over the 4-tuple.
    pub rss_hash: Option<u32>,
    /// VLAN tag (PCP, DEI and VID) that the port stripped.
    pub vlan: Option<u16>,
}

/// Transport protocol of an offload request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum L4 {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Transmit offload request of a frame. Only offloads within [`Capabilities`](crate::Capabilities) may be requested.
///
/// The checksum field of the transport header must contain the pseudo-header sum, not complemented, and without the
/// length if `tso` is set (DPDK's `rte_mbuf_core.h`). The IPv4 checksum field must be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxOffload {
    /// Length of the Ethernet header in bytes.
    pub l2_len: usize,
    /// Length of the IP header in bytes, options and extension headers included.
    pub l3_len: usize,
    /// Length of the transport header in bytes.
    pub l4_len: usize,
    /// True for IPv4, false for IPv6.
    pub ipv4: bool,
    /// Requests the IPv4 header checksum.
    pub ipv4_checksum: bool,
    /// Transport checksum to compute.
    pub l4_checksum: Option<L4>,
    /// TCP payload bytes per segment, if the frame is to be segmented.
    pub tso: Option<u16>,
}

/// Frame, or a part of one: an owned buffer with headroom and tailroom, optionally with further segments chained after
/// it.
///
/// Dropping a packet returns all its segments to their pool, on any thread.
///
/// The bytes may be shared with clones and with [`Bytes`]. While they are shared they are immutable, and methods that
/// would write them return `None`.
pub trait Packet: Sized + Send {
    /// Returns the length of all segments.
    fn len(&self) -> usize;

    /// Returns whether the packet is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the data of the first segment.
    fn data(&self) -> &[u8];

    /// Returns the data of the first segment for modification, or `None` while it is shared.
    fn data_mut(&mut self) -> Option<&mut [u8]>;

    /// Iterates over the data of the segments.
    fn segments(&self) -> impl Iterator<Item = &[u8]>;

    /// Extends the first segment by `n` bytes at the front and returns them, with unspecified contents. Returns `None`
    /// if the headroom is shorter or the segment is shared.
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Extends the last segment by `n` bytes at the end and returns them, with unspecified contents. Returns `None` if
    /// the tailroom is shorter or the segment is shared.
    fn append(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Drops `n` bytes from the front of the first segment. Returns `false`, without an effect, if it is shorter.
    #[must_use]
    fn adjust(&mut self, n: usize) -> bool;

    /// Drops `n` bytes from the end of the last segment. Returns `false`, without an effect, if it is shorter.
    #[must_use]
    fn trim(&mut self, n: usize) -> bool;

    /// Replaces the data by `n` bytes at the same start and returns them, with unspecified contents. Returns `None`,
    /// without an effect, if there are several segments, the segment is shared, or there is no room.
    fn rewrite(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Appends `tail` after the last segment. Returns `tail` if the chain would exceed the maximum frame.
    fn chain(&mut self, tail: Self) -> Result<(), Self>;

    /// Removes and returns all segments after the first.
    fn unchain(&mut self) -> Option<Self>;

    /// Creates another packet that shares the bytes. Returns `None` if the pool is empty.
    fn try_clone(&self) -> Option<Self>;

    /// Converts the `range` of the first segment to [`Bytes`] that own it. Further segments are freed; [`unchain`]
    /// keeps them.
    ///
    /// # Panics
    /// If `range` does not lie within [`data`](Self::data).
    ///
    /// [`unchain`]: Self::unchain
    fn into_bytes(self, range: Range<usize>) -> Bytes;

    /// Returns the bytes of the first segment from offset `from` on as [`Bytes`] that share them with this packet and
    /// outlive it: the payload of a frame that is sent now and may be retransmitted. Copies nothing and allocates no
    /// packet.
    ///
    /// The segment is shared from then on. Its buffer returns to the pool when the packet and the `Bytes` are gone. The
    /// bytes before `from`, the headers, remain exclusive to the packet, and a port may write them while sending. A
    /// retained packet with offloads is therefore sent without a copy, unless the segment was shared before, or is
    /// [cloned](Self::try_clone) later. The headers must be written before this call.
    ///
    /// Packets can be retained one by one before they are [chained](Self::chain).
    ///
    /// Returns `None`, without an effect, if `from` lies beyond the segment or its reference count is exhausted.
    fn retain(&mut self, from: usize) -> Option<Bytes>;

    /// Returns the receive metadata.
    fn rx_info(&self) -> RxInfo;

    /// Requests `offload` for transmission.
    fn set_tx_offload(&mut self, offload: TxOffload);

    /// Requests insertion of a VLAN tag of `tci` (PCP, DEI and VID) by the port, where
    /// [`Capabilities::vlan`](crate::Capabilities::vlan) allows it. This must be the last request: others clear it.
    fn set_tx_vlan(&mut self, tci: u16);

    /// Inserts a VLAN tag of `tci` after the Ethernet addresses (IEEE 802.1Q §9.5). The addresses move into the
    /// headroom, also in front of [retained](Self::retain) payload. If they are shared, they move to an empty `spare`
    /// packet, and the rest is chained after it. Offload requests are adjusted to the longer header.
    ///
    /// Returns `false` if the frame has no Ethernet addresses, or a spare packet was needed and not available. The
    /// frame must not be sent then.
    #[must_use]
    fn tag(&mut self, tci: u16, spare: impl FnOnce() -> Option<Self>) -> bool;

    /// Removes and returns the VLAN tag after the Ethernet addresses. Returns `None`, without an effect, if there is
    /// none, or the first segment is shared and cannot be copied.
    fn untag(&mut self) -> Option<u16> {
        let start: &mut [u8; TAGGED] = self.data_mut()?.first_chunk_mut()?;
        let [.., a, b, c, d, _, _] = *start;
        if u16::from_be_bytes([a, b]) != VLAN_TAG {
            return None;
        }
        start.copy_within(..ADDRESSES, TAG);
        self.adjust(TAG).then_some(u16::from_be_bytes([c, d]))
    }
}
