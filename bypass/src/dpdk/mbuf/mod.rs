//! A packet in DPDK's memory.

pub(super) mod extbuf;
pub(super) mod header_ownership;
pub(super) mod mempool;
pub(super) mod refcnt;
pub(super) mod segment;

use self::segment::{OFFLOADS, Segment};
use crate::nic::packet::{ADDRESSES, TAG, with_tag};
use crate::{Bytes, L4, Memory, OwnerVtable, Packet, RxChecksum, RxInfo, TxOffload};
use dpdk_sys as sys;
use std::ops::Range;
use std::ptr::NonNull;

/// The longest chain that makes sense: the largest IP packet, its Ethernet header and two VLAN tags.
const MAX_FRAME: usize = 65_535 + 22;
/// Segments in a chain at most.
const MAX_SEGMENTS: usize = 1024;

/// A packet: one mbuf, or a chain of them, owned.
///
/// It is an `rte_mbuf *` and nothing more, so a vector of them is what DPDK's burst functions take. Dropping it gives
/// its segments back to their pools, which outlive it by never being freed.
#[repr(transparent)]
pub struct Mbuf {
    /// A pointer, and so not `Sync`, which must stay so: cloning through a shared reference counts references without
    /// atomics while there is only one.
    head: Segment,
}

// SAFETY: an mbuf belongs to no thread; its reference count is changed atomically as soon as it is shared, and its
// pool takes it back on any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// # Safety
    /// `head` must be the head of a chain of which nobody else owns a reference that the new value takes over.
    #[inline]
    pub(crate) unsafe fn from_segment(head: Segment) -> Self {
        Mbuf { head }
    }

    #[inline]
    pub(crate) fn head(&self) -> Segment {
        self.head
    }

    /// This packet, fresh from its pool, with `bytes` for its data; they come back when no device could reach them.
    pub(crate) fn hold(self, bytes: Bytes) -> Result<Mbuf, Bytes> {
        extbuf::attach(self.head, bytes).map(|()| self)
    }

    #[inline]
    fn each(&self) -> impl Iterator<Item = Segment> {
        std::iter::successors(Some(self.head), |segment| segment.next())
    }

    /// Another packet over the bytes of the one segment, with its offload flags.
    fn clone_segment(segment: Segment) -> Option<Mbuf> {
        let clone = mempool::allocate(segment.pool())?;
        if let Some(bytes) = extbuf::attached(&segment) {
            if !extbuf::duplicate(segment, bytes, clone.head) {
                return None;
            }
            clone.head.set_flags(clone.head.flags() | segment.flags());
            clone.head.set_tx_offload(segment.tx_offload());
        } else {
            if segment.is_saturated() {
                return None;
            }
            // SAFETY: `clone` is fresh, and `segment` is alive through a packet that nobody else is cloning just now:
            // packets are not `Sync`.
            unsafe { sys::lr_attach(clone.head.as_ptr(), segment.as_ptr()) };
            header_ownership::set_end(segment, None);
            header_ownership::set_end(clone.head, None);
        }
        Some(clone)
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the chain is owned by this value and not used again.
        unsafe { sys::lr_free(self.head.as_ptr()) }
    }
}

/// The bytes of a segment.
///
/// # Safety
/// The segment must live, and nobody may write its bytes, for `'a`.
unsafe fn bytes_of<'a>(segment: Segment) -> &'a [u8] {
    // SAFETY: a live mbuf has `data_len` bytes at `data`; EAL's memory was zeroed, so they are initialised.
    unsafe { std::slice::from_raw_parts(segment.data().as_ptr(), segment.data_len()) }
}

impl Packet for Mbuf {
    #[inline]
    fn len(&self) -> usize {
        self.head.pkt_len()
    }

    #[inline]
    fn data(&self) -> &[u8] {
        // SAFETY: alive as long as `self`, and written only through `&mut self`, when nobody shares it.
        unsafe { bytes_of(self.head) }
    }

    #[inline]
    fn data_mut(&mut self) -> Option<&mut [u8]> {
        let head = self.head;
        head.is_exclusive().then(|| {
            // SAFETY: as for `data`; nobody else has a reference of this segment or of its buffer.
            unsafe { std::slice::from_raw_parts_mut(head.data().as_ptr(), head.data_len()) }
        })
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: as for `data`, for every segment of the chain.
        self.each().map(|segment| unsafe { bytes_of(segment) })
    }

    #[inline(always)]
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let head = self.head;
        let offset = head.data_off().checked_sub(n)?;
        if !head.is_exclusive() {
            return None;
        }
        head.set_data_off(offset);
        head.set_data_len(head.data_len() + n);
        head.set_pkt_len(head.pkt_len() + n);
        // SAFETY: exclusive, and the headroom that became data is part of the buffer.
        Some(unsafe { std::slice::from_raw_parts_mut(head.data().as_ptr(), n) })
    }

    #[inline]
    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let last = self.head.last();
        let len = last.data_len();
        if n > last.buf_len() - last.data_off() - len || !last.is_exclusive() {
            return None;
        }
        last.set_data_len(len + n);
        self.head.set_pkt_len(self.head.pkt_len() + n);
        // SAFETY: exclusive, and the tailroom that became data is part of the buffer.
        Some(unsafe { std::slice::from_raw_parts_mut(last.data().as_ptr().add(len), n) })
    }

    #[inline]
    fn adjust(&mut self, n: usize) -> bool {
        let head = self.head;
        let fits = n <= head.data_len();
        if fits {
            head.set_data_off(head.data_off() + n);
            head.set_data_len(head.data_len() - n);
            head.set_pkt_len(head.pkt_len() - n);
        }
        fits
    }

    #[inline]
    fn trim(&mut self, n: usize) -> bool {
        let last = self.head.last();
        let fits = n <= last.data_len();
        if fits {
            last.set_data_len(last.data_len() - n);
            self.head.set_pkt_len(self.head.pkt_len() - n);
        }
        fits
    }

    #[inline(always)]
    fn rewrite(&mut self, n: usize) -> Option<&mut [u8]> {
        let head = self.head;
        if head.next().is_some() || n > head.buf_len() - head.data_off() || !head.is_exclusive() {
            return None;
        }
        head.set_data_len(n);
        head.set_pkt_len(n);
        // SAFETY: exclusive, and from where the data begin there are `n` bytes of the buffer.
        Some(unsafe { std::slice::from_raw_parts_mut(head.data().as_ptr(), n) })
    }

    #[inline]
    fn chain(&mut self, tail: Self) -> Result<(), Self> {
        let segments = self.head.segments() + tail.head.segments();
        let len = self.len() + tail.len();
        if segments > MAX_SEGMENTS || len > MAX_FRAME {
            return Err(tail);
        }
        let tail = std::mem::ManuallyDrop::new(tail);
        self.head.last().set_next(Some(tail.head));
        self.head.set_segments(segments);
        self.head.set_pkt_len(len);
        Ok(())
    }

    #[inline]
    fn unchain(&mut self) -> Option<Self> {
        let tail = self.head.next()?;
        let (segments, len) = (self.head.segments(), self.head.pkt_len());
        self.head.set_next(None);
        self.head.set_segments(1);
        self.head.set_pkt_len(self.head.data_len());
        tail.set_segments(segments - 1);
        tail.set_pkt_len(len - self.head.data_len());
        // SAFETY: what was behind the head belonged to it, and is now the new value's.
        Some(unsafe { Mbuf::from_segment(tail) })
    }

    fn try_clone(&self) -> Option<Self> {
        let clone = Mbuf::clone_segment(self.head)?;
        let mut last = clone.head;
        let mut segments = 1;
        for segment in self.each().skip(1) {
            // A failure drops the clone with what it has so far.
            let next = std::mem::ManuallyDrop::new(Mbuf::clone_segment(segment)?).head;
            last.set_next(Some(next));
            last = next;
            segments += 1;
            clone.head.set_segments(segments);
            clone.head.set_pkt_len(clone.len() + next.data_len());
        }
        Some(clone)
    }

    #[inline]
    fn into_bytes(mut self, range: Range<usize>) -> Bytes {
        let len = self.data().len();
        assert!(range.start <= range.end && range.end <= len, "range {range:?} in {len} bytes");
        if let Some(bytes) = extbuf::attached(&self.head) {
            // The buffer's owner may as well own the slice: the mbuf is free again, and owners do not nest.
            let from = self.head.data_off() + range.start;
            return bytes.slice(from..from + range.len());
        }
        drop(self.unchain());
        let head = std::mem::ManuallyDrop::new(self).head;
        // SAFETY: the packet's reference, which is not used again.
        unsafe { head.hold() };
        // SAFETY: the range lies within the data.
        let start = unsafe { head.data().add(range.start) };
        // SAFETY: nobody writes the bytes while there is a reference of the segment that is not a packet's alone, and
        // this value is a holder; holders are counted atomically and leave on any thread; an mbuf's buffer lies in memory
        // that EAL allocated or a driver registered.
        unsafe { Bytes::from_owner(start, range.len(), head.as_ptr().cast(), &SEGMENT) }
    }

    #[inline]
    fn retain(&mut self, from: usize) -> Option<Bytes> {
        let head = self.head;
        let len = head.data_len().checked_sub(from)?;
        if let Some(bytes) = extbuf::attached(&head) {
            let from = head.data_off() + from;
            return Some(bytes.slice(from..from + len));
        }
        // SAFETY: this packet's reference, which `&mut self` keeps to this call.
        if !unsafe { head.retain(from) } {
            return None;
        }
        // SAFETY: `from` lies within the data or at their end.
        let start = unsafe { head.data().add(from) };
        // SAFETY: as in `into_bytes`, for the holder just made: nobody writes these bytes while the segment is
        // shared. Drivers write into headers, which end where the bytes begin or before (`own`).
        Some(unsafe { Bytes::from_owner(start, len, head.as_ptr().cast(), &SEGMENT) })
    }

    #[inline]
    fn rx_info(&self) -> RxInfo {
        let flags = self.head.flags();
        let checksum = |mask, unknown, bad| match flags & mask {
            state if state == unknown => RxChecksum::Unknown,
            state if state == bad => RxChecksum::Bad,
            // Good, or "none": wrong in the frame and yet intact, because it never crossed a wire.
            _ => RxChecksum::Good,
        };
        RxInfo {
            ipv4_checksum: checksum(sys::LR_RX_IP_CKSUM_MASK, sys::LR_RX_IP_CKSUM_UNKNOWN, sys::LR_RX_IP_CKSUM_BAD),
            l4_checksum: checksum(sys::LR_RX_L4_CKSUM_MASK, sys::LR_RX_L4_CKSUM_UNKNOWN, sys::LR_RX_L4_CKSUM_BAD),
            rss_hash: (flags & sys::LR_RX_RSS_HASH != 0).then(|| self.head.rss_hash()),
            vlan: (flags & sys::LR_RX_VLAN_STRIPPED != 0).then(|| self.head.vlan_tci()),
        }
    }

    #[inline]
    fn set_tx_offload(&mut self, offload: TxOffload) {
        let mut flags = if offload.ipv4 { sys::LR_TX_IPV4 } else { sys::LR_TX_IPV6 };
        if offload.ipv4_checksum {
            flags |= sys::LR_TX_IP_CKSUM;
        }
        flags |= match offload.l4_checksum {
            Some(L4::Tcp) => sys::LR_TX_TCP_CKSUM,
            Some(L4::Udp) => sys::LR_TX_UDP_CKSUM,
            None => 0,
        };
        let field = |len: usize, bits: u32, shift: u32| (len as u64 & ((1 << bits) - 1)) << shift;
        let mut word = field(offload.l2_len, sys::LR_TX_L2_LEN_BITS, sys::LR_TX_L2_LEN_SHIFT)
            | field(offload.l3_len, sys::LR_TX_L3_LEN_BITS, sys::LR_TX_L3_LEN_SHIFT)
            | field(offload.l4_len, sys::LR_TX_L4_LEN_BITS, sys::LR_TX_L4_LEN_SHIFT);
        if let Some(segment) = offload.tso {
            flags |= sys::LR_TX_TCP_SEG | sys::LR_TX_TCP_CKSUM;
            word |= u64::from(segment) << sys::LR_TX_TSO_SHIFT;
        }
        let kept = self.head.flags() & (sys::LR_MBUF_INDIRECT | sys::LR_MBUF_EXTERNAL | header_ownership::flag());
        self.head.set_flags(kept | flags);
        self.head.set_tx_offload(word);
    }

    #[inline]
    fn set_tx_vlan(&mut self, tci: u16) {
        self.head.set_flags(self.head.flags() | sys::LR_TX_VLAN);
        self.head.set_vlan_tci(tci);
    }

    fn tag(&mut self, tci: u16, spare: impl FnOnce() -> Option<Self>) -> bool {
        let head = self.head;
        let Some(addresses) = self.data().first_chunk().copied() else { return false };
        let bytes = with_tag(addresses, tci);
        match head.data_off().checked_sub(TAG).filter(|_| header_ownership::is_own(head, ADDRESSES)) {
            Some(offset) => {
                head.set_data_off(offset);
                head.set_data_len(head.data_len() + TAG);
                head.set_pkt_len(head.pkt_len() + TAG);
                // SAFETY: the place is within the buffer, since the headroom was no shorter than the tag and the data no shorter
                // than the addresses. Nobody else sees what is in front of the end of the packet's own bytes, which the
                // addresses are among (`own`), and the headroom is in front of them.
                unsafe { head.data().cast::<[u8; ADDRESSES + TAG]>().write(bytes) };
            }
            None => {
                let Some(mut front) = spare() else { return false };
                let Some(place) = front.append(bytes.len()) else { return false };
                place.copy_from_slice(&bytes);
                if !self.adjust(ADDRESSES) {
                    return false;
                }
                front.head.set_flags(front.head.flags() | head.flags() & sys::LR_TX_OFFLOAD_MASK);
                front.head.set_tx_offload(head.tx_offload());
                let rest = std::mem::replace(self, front);
                if self.chain(rest).is_err() {
                    return false;
                }
            }
        }
        if self.head.flags() & OFFLOADS != 0 {
            // An Ethernet header is far from the most that the field takes.
            self.head.set_tx_offload(self.head.tx_offload() + ((TAG as u64) << sys::LR_TX_L2_LEN_SHIFT));
        }
        true
    }
}

/// How [`Bytes`] own a segment: as its holders.
static SEGMENT: OwnerVtable = OwnerVtable {
    memory: Memory::Device,
    pooled: true,
    share: |mbuf| {
        // SAFETY: `into_bytes` put the pointer of a live mbuf there, and the caller is a holder of it.
        let segment = unsafe { Segment::new(NonNull::new_unchecked(mbuf.cast_mut().cast())) };
        segment.share();
    },
    release: |mbuf| {
        // SAFETY: as above; the caller is not, from now on.
        unsafe { Segment::new(NonNull::new_unchecked(mbuf.cast_mut().cast())).release() }
    },
};
