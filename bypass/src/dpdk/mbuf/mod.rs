//! Packets in DPDK's memory.

pub(super) mod extbuf;
pub(super) mod header_ownership;
pub(super) mod mempool;
pub(super) mod refcnt;
pub(super) mod segment;

use self::segment::{OFFLOADS, Segment};
use crate::dpdk::mbuf_fields;
use crate::nic::packet::{ADDRESSES, TAG, with_tag};
use crate::{L4, Packet, RxChecksum, RxInfo, TxOffload};
use dpdk_sys as sys;
use linerate_service::{Bytes, Memory, OwnerVtable};
use std::ops::Range;
use std::ptr::NonNull;

/// Maximum length of a chain: the longest IP packet, its Ethernet header and two VLAN tags.
const MAX_FRAME: usize = 65_535 + 22;
/// Maximum number of segments in a chain.
const MAX_SEGMENTS: usize = 1024;

/// Packet: an exclusively owned chain of one or more mbufs.
///
/// The representation is that of `rte_mbuf *`, so DPDK's burst functions accept an array of packets. Dropping a packet
/// returns its segments to their pools, which are never freed.
#[repr(transparent)]
pub struct Mbuf {
    /// The pointer makes the type `!Sync`, which is required: a clone through a shared reference changes the reference
    /// count without atomics while it is 1.
    head: Segment,
}

// SAFETY: an mbuf belongs to no thread, its reference count is changed atomically once it is shared, and any thread may
// return it to its pool.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Creates a packet from the head of a chain.
    ///
    /// # Safety
    /// `head` must be the head of a chain. The new value takes over a reference that no one else owns.
    #[inline]
    pub(crate) unsafe fn from_segment(head: Segment) -> Self {
        Mbuf { head }
    }

    #[inline]
    pub(crate) fn head(&self) -> Segment {
        self.head
    }

    /// Attaches `bytes` to this freshly allocated packet. Returns them if devices cannot access them.
    pub(crate) fn attach(self, bytes: Bytes) -> Result<Mbuf, Bytes> {
        extbuf::attach(self.head, bytes).map(|()| self)
    }

    #[inline]
    fn each(&self) -> impl Iterator<Item = Segment> {
        std::iter::successors(Some(self.head), |segment| segment.next())
    }

    /// Creates another packet over the bytes of one segment, with its offload flags.
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
            // SAFETY: `clone` is fresh, and `segment` is alive through a packet that no other thread clones meanwhile,
            // because packets are not `Sync`.
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
        // SAFETY: this value owns the chain and is not used afterwards.
        unsafe { sys::lr_free(self.head.as_ptr()) }
    }
}

/// Returns the bytes of a segment.
///
/// # Safety
/// The segment must live, and its bytes must not be written, for `'a`.
unsafe fn bytes_of<'a>(segment: Segment) -> &'a [u8] {
    // SAFETY: a live mbuf has `data_len` bytes at `data`. They are initialised, because EAL's memory was zeroed.
    unsafe { std::slice::from_raw_parts(segment.data().as_ptr(), segment.data_len()) }
}

impl Packet for Mbuf {
    #[inline]
    fn len(&self) -> usize {
        self.head.pkt_len()
    }

    #[inline]
    fn data(&self) -> &[u8] {
        // SAFETY: alive as long as `self`, and written only through `&mut self` while not shared.
        unsafe { bytes_of(self.head) }
    }

    #[inline]
    fn data_mut(&mut self) -> Option<&mut [u8]> {
        let head = self.head;
        head.is_exclusive().then(|| {
            // SAFETY: as for `data`; there is no other reference to this segment or its buffer.
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
        // SAFETY: exclusive, and the buffer has `n` bytes from the start of the data on.
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
        // SAFETY: the tail belonged to the head, and now belongs to the new value.
        Some(unsafe { Mbuf::from_segment(tail) })
    }

    fn try_clone(&self) -> Option<Self> {
        let clone = Mbuf::clone_segment(self.head)?;
        let mut last = clone.head;
        let mut segments = 1;
        for segment in self.each().skip(1) {
            // On failure, dropping the clone frees the segments so far.
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
            // The owner of the external buffer can own the slice directly, and the mbuf becomes free.
            let from = self.head.data_off() + range.start;
            return bytes.slice(from..from + range.len());
        }
        drop(self.unchain());
        let head = std::mem::ManuallyDrop::new(self).head;
        // SAFETY: the packet's reference, which is not used afterwards.
        unsafe { head.packet_to_handle() };
        // SAFETY: the range lies within the data.
        let start = unsafe { head.data().add(range.start) };
        // SAFETY: the bytes are not written while the segment has a reference that is not exclusively a packet's, and
        // this value is a handle. Handles are counted atomically and may be released on any thread. An mbuf's buffer
        // lies in memory that EAL allocated or a driver registered.
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
        // SAFETY: this packet's reference, which `&mut self` makes exclusive to this call.
        if !unsafe { head.retain(from) } {
            return None;
        }
        // SAFETY: `from` lies within the data or at their end.
        let start = unsafe { head.data().add(from) };
        // SAFETY: as in `into_bytes`, for the handle just added: these bytes are not written while the segment is
        // shared. Drivers write headers, which end before the bytes start (`header_ownership`).
        Some(unsafe { Bytes::from_owner(start, len, head.as_ptr().cast(), &SEGMENT) })
    }

    #[inline]
    fn rx_info(&self) -> RxInfo {
        let flags = self.head.flags();
        let checksum = |mask, unknown, bad| match flags & mask {
            state if state == unknown => RxChecksum::Unknown,
            state if state == bad => RxChecksum::Bad,
            // Good, or "none": the checksum is wrong, but the data is intact, because the frame never crossed a wire.
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
        let kept = self.head.flags() & (sys::LR_MBUF_INDIRECT | sys::LR_MBUF_EXTERNAL | mbuf_fields::flag());
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
        match head.data_off().checked_sub(TAG).filter(|_| header_ownership::is_exclusive(head, ADDRESSES)) {
            Some(offset) => {
                head.set_data_off(offset);
                head.set_data_len(head.data_len() + TAG);
                head.set_pkt_len(head.pkt_len() + TAG);
                // SAFETY: the range is within the buffer: the headroom is no shorter than the tag, and the data are no
                // shorter than the addresses. The addresses are exclusive to the packet (`header_ownership`), and so is
                // the headroom in front of them.
                unsafe { head.data().cast::<[u8; ADDRESSES + TAG]>().write(bytes) };
            }
            None => {
                let Some(mut front) = spare() else { return false };
                let Some(space) = front.append(bytes.len()) else { return false };
                space.copy_from_slice(&bytes);
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
            // The field has room for many times an Ethernet header.
            self.head.set_tx_offload(self.head.tx_offload() + ((TAG as u64) << sys::LR_TX_L2_LEN_SHIFT));
        }
        true
    }
}

/// Functions by which [`Bytes`] own a segment as handles.
static SEGMENT: OwnerVtable = OwnerVtable {
    memory: Memory::Device,
    pooled: true,
    share: |mbuf| {
        // SAFETY: `into_bytes` stored the pointer of a live mbuf, and the caller holds a handle to it.
        let segment = unsafe { Segment::new(NonNull::new_unchecked(mbuf.cast_mut().cast())) };
        segment.add_handle();
    },
    release: |mbuf| {
        // SAFETY: as above; the caller's handle ends here.
        unsafe { Segment::new(NonNull::new_unchecked(mbuf.cast_mut().cast())).release_handle() }
    },
};
