//! Packet of the in-memory NIC.

mod operations;
pub(super) mod pool;
mod port;

use crate::Packet;
use linerate_service::Bytes;
use linerate_service::time::Instant;
use pool::{Pool, PoolHandle, Slot};
use port::Port;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

/// Maximum number of segments in a frame, as in DPDK (`RTE_MBUF_MAX_NB_SEGS`).
const MAX_SEGMENTS: u32 = u16::MAX as u32;
/// Maximum length of a frame, as in DPDK, whose packet length has 32 bits.
pub(super) const MAX_LEN: usize = u32::MAX as usize;

/// Description of a segment's data. It belongs to the packet of the segment.
pub(super) struct View {
    data: NonNull<u8>,
    data_len: u32,
    /// Length of the packet. Valid in its first segment.
    pkt_len: u32,
    /// Slot whose buffer contains the data. The segment holds a reference to it: its own slot, or that of a cloned
    /// segment. `None` if the data are [`Rest::attached`].
    buffer: Option<NonNull<Slot>>,
    next: Option<NonNull<Slot>>,
    /// Offloads and receive metadata of the packet. Valid in its first segment.
    port: Port,
    sent_at: Instant,
}

impl View {
    /// Creates an empty view at `data` in the buffer of `slot`.
    #[inline]
    pub(super) fn empty(slot: NonNull<Slot>, data: NonNull<u8>) -> View {
        View {
            data,
            data_len: 0,
            pkt_len: 0,
            buffer: Some(slot),
            next: None,
            port: Port::default(),
            sent_at: Instant::ZERO,
        }
    }
}

/// Fields that few segments use. They are never reset: each field documents when it is valid. All zeros are a valid
/// value.
pub(super) struct Rest {
    /// Last segment of the packet. Valid in the first of several segments.
    last: Option<NonNull<Slot>>,
    /// Number of segments after the first. Valid in the first of several segments.
    more: u32,
    /// RSS hash, or VLAN tag outside of the frame. Valid in the first segment of a packet that has one.
    hash_or_tag: u32,
    /// Data of a segment without a buffer, dropped with the segment.
    attached: MaybeUninit<Bytes>,
}

/// Frame in the pool of a [`MemoryNic`](super::MemoryNic), or a part of one.
///
/// It behaves as an mbuf: a clone is another packet of the same pool over the same buffer, a buffer returns to its pool
/// when the last packet or [`Bytes`] over it is dropped, and a sent frame stays in the sender's pool until the receiver
/// has dropped it.
///
/// Sent bytes are not written while the sender or anyone else holds a reference to them:
///
/// ```
/// use linerate_bypass::memory_nic::{Link, LinkConfig};
/// use linerate_bypass::{Nic, Packet};
///
/// let (mut a, mut b) = Link::pair(LinkConfig::default());
/// let mut packet = a.allocate().unwrap();
/// packet.append(60).unwrap().fill(7);
/// let kept = packet.try_clone().unwrap();
/// a.tx_burst(&mut vec![packet]);
///
/// let mut received = Vec::with_capacity(1);
/// b.rx_burst(&mut received);
/// assert_eq!(received[0].data().as_ptr(), kept.data().as_ptr());
/// assert!(received[0].data_mut().is_none());
/// drop(kept);
/// assert!(received[0].data_mut().is_some());
/// ```
pub struct MemoryPacket {
    head: NonNull<Slot>,
}

// SAFETY: a packet owns the views of its segments. Buffers, which are shared with other threads, are only read while
// shared, and their references are counted atomically.
unsafe impl Send for MemoryPacket {}

impl MemoryPacket {
    /// Creates a packet from a slot that was just taken.
    #[inline]
    pub(super) fn take(pool: &PoolHandle) -> Option<MemoryPacket> {
        pool.take().map(|head| MemoryPacket { head })
    }

    /// Creates a packet around `bytes`, at most [`MAX_LEN`].
    pub(super) fn attach(pool: &PoolHandle, bytes: Bytes) -> Result<MemoryPacket, Bytes> {
        let Some(mut packet) = MemoryPacket::take(pool) else { return Err(bytes) };
        let head = packet.head_mut();
        head.data = NonNull::from(&*bytes).cast();
        head.data_len = bytes.len() as u32;
        head.pkt_len = bytes.len() as u32;
        head.buffer = None;
        packet.rest_mut().attached.write(bytes);
        Ok(packet)
    }

    #[inline]
    fn view(&self, segment: NonNull<Slot>) -> &View {
        // SAFETY: `segment` belongs to this packet, so its slot is taken and its view is exclusive to the packet;
        // `&self` prevents writes meanwhile.
        unsafe { &*segment.as_ref().view.get() }
    }

    #[inline]
    fn view_mut(&mut self, segment: NonNull<Slot>) -> &mut View {
        // SAFETY: as in `view`; `&mut self` prevents other accesses meanwhile.
        unsafe { &mut *segment.as_ref().view.get() }
    }

    #[inline]
    fn rest(&self, segment: NonNull<Slot>) -> &Rest {
        // SAFETY: as in `view`. Memory that no packet has written is zero, which is a valid `Rest`.
        unsafe { &*segment.as_ref().rest.get() }
    }

    /// Returns the rest of the first segment for modification.
    #[inline]
    fn rest_mut(&mut self) -> &mut Rest {
        // SAFETY: as in `view_mut` and `rest`.
        unsafe { &mut *self.head.as_ref().rest.get() }
    }

    /// Returns the bytes attached to a segment without a buffer.
    fn attached(&self, segment: NonNull<Slot>) -> &Bytes {
        debug_assert!(self.view(segment).buffer.is_none());
        // SAFETY: a segment without a buffer was created by `attach`, or by cloning such a segment, and both write
        // this.
        unsafe { self.rest(segment).attached.assume_init_ref() }
    }

    #[inline]
    fn head(&self) -> &View {
        self.view(self.head)
    }

    /// Returns the last segment and the number of segments after the first.
    #[inline]
    fn end(&self) -> (NonNull<Slot>, u32) {
        match self.head().next {
            None => (self.head, 0),
            Some(next) => {
                let Rest { last, more, .. } = self.rest(self.head);
                (last.unwrap_or(next), *more)
            }
        }
    }

    #[inline]
    fn last(&self) -> NonNull<Slot> {
        self.end().0
    }

    #[inline]
    fn head_mut(&mut self) -> &mut View {
        self.view_mut(self.head)
    }

    /// Returns the bounds of the segment's buffer if the segment's reference is the only one.
    #[inline]
    fn sole_buffer(&self, segment: NonNull<Slot>) -> Option<Range<NonNull<u8>>> {
        // Attached bytes do not reveal whether they are shared, and may be of any kind, for example static.
        let slot = self.view(segment).buffer?;
        // SAFETY: the segment's reference keeps the slot taken.
        let is_sole = unsafe { slot.as_ref() }.refs.is_sole();
        // SAFETY: as above.
        is_sole.then(|| unsafe { Slot::buffer(slot)..Slot::buffer_end(slot) })
    }

    /// Returns the data of a segment for modification, if they are exclusive.
    #[inline]
    fn segment_mut(&mut self, segment: NonNull<Slot>) -> Option<&mut [u8]> {
        self.sole_buffer(segment)?;
        let view = self.view_mut(segment);
        // SAFETY: the view lies within the buffer. The buffer has no other reference, and none can be added while
        // `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(view.data.as_ptr(), view.data_len as usize) })
    }

    #[inline]
    fn slots(&self) -> impl Iterator<Item = NonNull<Slot>> {
        std::iter::successors(Some(self.head), |segment| self.view(*segment).next)
    }

    /// Frees a segment that no longer belongs to a packet.
    ///
    /// # Safety
    /// `segment` was a segment of a packet, the caller owns it, and it is not used afterwards.
    unsafe fn free_segment(segment: NonNull<Slot>) {
        // SAFETY: the caller owns the view, which is not used afterwards.
        match unsafe { (*segment.as_ref().view.get()).buffer } {
            // SAFETY: releases the segment's reference to its buffer.
            Some(slot) => unsafe {
                Slot::release(slot);
                if slot != segment {
                    Slot::release(segment);
                }
            },
            None => {
                // SAFETY: there is no buffer, so there are attached bytes, which are not used afterwards.
                drop(unsafe { (*segment.as_ref().rest.get()).attached.assume_init_read() });
                // SAFETY: the buffer of the slot was never used, so there is no other reference.
                unsafe { Slot::release(segment) };
            }
        }
    }

    /// Frees all segments.
    ///
    /// # Safety
    /// The packet is not used afterwards.
    #[inline(never)]
    unsafe fn free_segments(&mut self) {
        let mut next = Some(self.head);
        while let Some(segment) = next {
            next = self.view(segment).next;
            // SAFETY: the packet owns its segments.
            unsafe { MemoryPacket::free_segment(segment) };
        }
    }

    /// Creates another packet over the bytes of one segment.
    fn clone_segment(&self, segment: NonNull<Slot>) -> Option<MemoryPacket> {
        // SAFETY: the segment keeps its pool alive.
        let head = unsafe { Pool::take(segment.as_ref().pool) }?;
        let mut clone = MemoryPacket { head };
        let view = self.view(segment);
        match view.buffer {
            // The clone's own buffer stays unused: `free_segment` releases its only reference with the slot.
            // SAFETY: `segment` holds a reference.
            Some(slot) => unsafe { slot.as_ref() }.refs.share(),
            None => _ = clone.rest_mut().attached.write(self.attached(segment).clone()),
        }
        let copy = clone.head_mut();
        copy.data = view.data;
        copy.data_len = view.data_len;
        copy.pkt_len = view.data_len;
        copy.buffer = view.buffer;
        Some(clone)
    }

    pub(super) fn segment_count(&self) -> usize {
        1 + self.end().1 as usize
    }

    /// Returns whether the packet is one segment in an exclusive buffer.
    #[inline]
    pub(super) fn is_exclusive(&self) -> bool {
        self.head().next.is_none() && self.sole_buffer(self.head).is_some()
    }

    /// Copies the frame to the minimum number of fresh packets of `pool`, or of its own pool.
    pub(super) fn copy(&self, pool: Option<&PoolHandle>) -> Option<MemoryPacket> {
        let take = || match pool {
            Some(pool) => MemoryPacket::take(pool),
            // SAFETY: the packet keeps its pool alive.
            None => unsafe { Pool::take(self.head.as_ref().pool) }.map(|head| MemoryPacket { head }),
        };
        let mut copy = take()?;
        for mut bytes in self.segments() {
            while !bytes.is_empty() {
                let room = copy.tailroom();
                if room == 0 {
                    copy.chain(take()?).ok()?;
                    continue;
                }
                let (now, later) = bytes.split_at(room.min(bytes.len()));
                copy.append(now.len())?.copy_from_slice(now);
                bytes = later;
            }
        }
        copy.inherit(self);
        Some(copy)
    }

    fn tailroom(&self) -> usize {
        let last = self.last();
        let view = self.view(last);
        let end = view.data.addr().get() + view.data_len as usize;
        self.sole_buffer(last).map_or(0, |buffer| buffer.end.addr().get() - end)
    }

    /// Inverts bit `bit` of the frame, counted from the most significant bit of the first byte. Returns `false` if the
    /// byte is shared or does not exist.
    pub(super) fn flip(&mut self, bit: usize) -> bool {
        let mut at = bit / 8;
        let mut segment = Some(self.head);
        while let Some(slot) = segment {
            let (len, next) = (self.view(slot).data_len as usize, self.view(slot).next);
            if at < len {
                let Some(bytes) = self.segment_mut(slot) else { return false };
                bytes[at] ^= 0x80 >> (bit % 8);
                return true;
            }
            at -= len;
            segment = next;
        }
        false
    }

    /// Keeps the first `len` bytes, at least 1.
    pub(super) fn truncate(&mut self, len: usize) {
        while self.len() > len {
            let last = self.last();
            let excess = self.len() - len;
            let in_last = self.view(last).data_len as usize;
            if in_last > excess || last == self.head {
                let trimmed = self.trim(excess.min(in_last));
                debug_assert!(trimmed);
                return;
            }
            self.drop_last();
        }
    }

    /// Frees the last segment, which is not the first.
    fn drop_last(&mut self) {
        let last = self.last();
        let before = self.slots().find(|segment| self.view(*segment).next == Some(last));
        let Some(before) = before else { return };
        let len = self.view(last).data_len;
        self.view_mut(before).next = None;
        self.head_mut().pkt_len -= len;
        let rest = self.rest_mut();
        rest.last = Some(before);
        rest.more -= 1;
        // SAFETY: it was a segment of this packet, and has just been removed.
        unsafe { MemoryPacket::free_segment(last) };
    }

    /// Copies the metadata of a frame.
    fn inherit(&mut self, from: &MemoryPacket) {
        let (view, hash_or_tag) = (from.head(), from.rest(from.head).hash_or_tag);
        let head = self.head_mut();
        head.port = view.port;
        head.sent_at = view.sent_at;
        self.rest_mut().hash_or_tag = hash_or_tag;
    }

    #[inline]
    pub(super) fn port(&self) -> Port {
        self.head().port
    }

    #[inline]
    pub(super) fn sent_at(&self) -> Instant {
        self.head().sent_at
    }

    /// Updates the metadata when the sender sends the frame.
    #[inline]
    pub(super) fn mark_sent(&mut self, now: Instant, rss_hash: Option<u32>) {
        let head = self.head_mut();
        head.sent_at = now;
        head.port.send(rss_hash.is_some());
        if let Some(hash) = rss_hash {
            self.rest_mut().hash_or_tag = hash;
        }
    }

    /// Updates the metadata when the link damages the frame.
    pub(super) fn mark_damaged(&mut self) {
        self.head_mut().port.damage();
    }

    /// Updates the metadata when the frame reaches the receiver.
    #[inline]
    pub(super) fn mark_received(&mut self) {
        self.head_mut().port.receive();
    }
}

impl Drop for MemoryPacket {
    #[inline]
    fn drop(&mut self) {
        let head = self.head();
        if head.buffer == Some(self.head) && head.next.is_none() {
            // SAFETY: releases the packet's reference to its own buffer; nothing is attached.
            unsafe { Slot::release(self.head) };
        } else {
            // SAFETY: the packet is not used afterwards.
            unsafe { self.free_segments() };
        }
    }
}

impl fmt::Debug for MemoryPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryPacket({} bytes in {} segments)", self.len(), self.segment_count())
    }
}

#[cfg(test)]
mod tests;
