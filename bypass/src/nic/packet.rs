//! A frame in memory that a port can reach.

use crate::Bytes;
use std::ops::Range;

/// The EtherType of a VLAN tag (IEEE 802.1Q §9.6).
pub const VLAN_TAG: u16 = 0x8100;
/// Bytes of a VLAN tag.
pub(crate) const TAG: usize = 4;
/// Bytes of both Ethernet addresses.
pub(crate) const ADDRESSES: usize = 12;
/// Bytes of the header of a frame with a tag.
const TAGGED: usize = ADDRESSES + TAG + 2;

/// The Ethernet addresses with a tag of `tci` behind them.
pub(crate) fn with_tag(addresses: [u8; ADDRESSES], tci: u16) -> [u8; ADDRESSES + TAG] {
    let mut bytes = [0; ADDRESSES + TAG];
    bytes[..ADDRESSES].copy_from_slice(&addresses);
    bytes[ADDRESSES..][..2].copy_from_slice(&VLAN_TAG.to_be_bytes());
    bytes[ADDRESSES + 2..].copy_from_slice(&tci.to_be_bytes());
    bytes
}

/// What the port found out about a received frame's checksums.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum RxChecksum {
    /// The port did not look: verify in software.
    #[default]
    Unknown,
    /// The port verified it, or it never crossed a wire.
    Good,
    /// The port found it wrong.
    Bad,
}

/// What the port says about a received frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RxInfo {
    /// The IPv4 header's checksum.
    pub ipv4_checksum: RxChecksum,
    /// The TCP or UDP checksum.
    pub l4_checksum: RxChecksum,
    /// The RSS hash that the port computed over the 4-tuple.
    pub rss_hash: Option<u32>,
    /// The VLAN tag (PCP, DEI and VID) that the port took from the frame.
    pub vlan: Option<u16>,
}

/// The transport protocol that an offload request speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum L4 {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// What the port is asked to do with a frame while sending it. Ask only for what
/// [`Capabilities`](crate::Capabilities) offers.
///
/// The checksum field of the transport header must hold the pseudo-header's sum, not complemented (with the
/// length left out when `tso` is set), as DPDK's `rte_mbuf_core.h` demands; the IPv4 checksum field zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxOffload {
    /// Length of the Ethernet header in bytes.
    pub l2_len: usize,
    /// Length of the IP header in bytes, options and extension headers included.
    pub l3_len: usize,
    /// Length of the transport header in bytes.
    pub l4_len: usize,
    /// IPv4 rather than IPv6.
    pub ipv4: bool,
    /// Compute the IPv4 header's checksum.
    pub ipv4_checksum: bool,
    /// Compute this transport checksum.
    pub l4_checksum: Option<L4>,
    /// Cut the TCP payload into segments of this many bytes.
    pub tso: Option<u16>,
}

/// A frame, or a part of one: an owned buffer with room in front (headroom) and behind (tailroom), possibly with
/// further segments chained behind it.
///
/// Dropping a packet gives all its segments back to their pool, on whichever thread.
///
/// Its bytes may be shared with clones and with [`Bytes`] made of it; then nobody may write them, and the methods
/// that would, return `None`.
pub trait Packet: Sized + Send {
    /// Bytes in all segments.
    fn len(&self) -> usize;

    /// Whether there is no byte in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the first segment.
    fn data(&self) -> &[u8];

    /// The bytes of the first segment, to be written; `None` while they are shared.
    fn data_mut(&mut self) -> Option<&mut [u8]>;

    /// The bytes of each segment in order.
    fn segments(&self) -> impl Iterator<Item = &[u8]>;

    /// Grows the first segment by `n` bytes at the front and returns them; `None` when the headroom is smaller
    /// or the segment is shared. The bytes returned hold whatever was there.
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Grows the last segment by `n` bytes at the end and returns them; `None` when the tailroom is smaller or
    /// that segment is shared. The bytes returned hold whatever was there.
    fn append(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Drops `n` bytes from the front of the first segment; `false`, with nothing changed, when it is shorter.
    #[must_use]
    fn adjust(&mut self, n: usize) -> bool;

    /// Drops `n` bytes from the end of the last segment; `false`, with nothing changed, when it is shorter.
    #[must_use]
    fn trim(&mut self, n: usize) -> bool;

    /// Replaces all bytes by `n` others, which begin where the first did, and returns them; `None`, with nothing changed, when
    /// there are several segments, this one is shared, or there is no room. The bytes returned hold whatever was there.
    fn rewrite(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Puts `tail` behind the last segment. It comes back when the chain would be longer than a frame can be.
    fn chain(&mut self, tail: Self) -> Result<(), Self>;

    /// Takes off everything behind the first segment.
    fn unchain(&mut self) -> Option<Self>;

    /// Another packet over the same bytes, which are shared from then on; `None` when the pool is empty.
    fn try_clone(&self) -> Option<Self>;

    /// The `range` of the first segment as [`Bytes`] that own it; further segments are freed, so [`unchain`]
    /// them before.
    ///
    /// # Panics
    /// If `range` does not lie within [`data`](Self::data).
    ///
    /// [`unchain`]: Self::unchain
    fn into_bytes(self, range: Range<usize>) -> Bytes;

    /// The bytes of the first segment from offset `from` to its end, as [`Bytes`] that share them with this packet
    /// and outlive it: the payload of a frame that goes out now and may have to go out again. Nothing is copied and no
    /// packet taken from the pool.
    ///
    /// From then on the segment is shared, and its buffer goes back to the pool when the packet and the `Bytes` are
    /// gone. The bytes in front of `from`, its headers, stay the packet's alone, and a port may still write into them
    /// while sending: a retained packet with offloads goes out without a copy, unless somebody else had a share in the
    /// segment before, or it has been [cloned](Self::try_clone) since. So write the headers first, then retain.
    ///
    /// Each of several packets can be retained before they are [chained](Self::chain).
    ///
    /// `None`, with nothing changed, when `from` lies beyond the segment or its holders cannot be counted any more.
    fn retain(&mut self, from: usize) -> Option<Bytes>;

    /// What the port said when it received this frame.
    fn rx_info(&self) -> RxInfo;

    /// Asks the port for `offload` when it sends this frame.
    fn set_tx_offload(&mut self, offload: TxOffload);

    /// Asks the port to put a VLAN tag of `tci` (PCP, DEI and VID) into this frame when it sends it, where
    /// [`Capabilities::vlan`](crate::Capabilities::vlan) says that it can. To be asked last: another request ends it.
    fn set_tx_vlan(&mut self, tci: u16);

    /// Puts a VLAN tag of `tci` behind the Ethernet addresses (IEEE 802.1Q §9.5). These move into the headroom, also in front of
    /// payload that was [retained](Self::retain); where somebody else may see them there, they go into a `spare` packet, which
    /// is empty, with the rest chained behind. Offloads that were asked for go by the longer header.
    ///
    /// `false`, and the frame is not to be sent, if it has no Ethernet addresses, or there was no packet where one was needed.
    #[must_use]
    fn tag(&mut self, tci: u16, spare: impl FnOnce() -> Option<Self>) -> bool;

    /// Takes the VLAN tag off that is behind the Ethernet addresses, and returns it; `None`, with nothing changed, if there
    /// is none, or the first segment is shared and cannot be copied.
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
