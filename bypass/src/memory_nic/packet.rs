//! The packet of the memory NIC.

mod operations;
mod port;

use super::pool::{Pool, PoolHandle, Slot};
use crate::time::Instant;
use crate::{Bytes, Packet};
use port::Port;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

/// Segments in one frame at most, as in DPDK (`RTE_MBUF_MAX_NB_SEGS`).
const MAX_SEGMENTS: u32 = u16::MAX as u32;
/// Bytes in one frame at most, as in DPDK, whose packet length has 32 bits.
pub(super) const MAX_LEN: usize = u32::MAX as usize;

/// What a segment shows of the memory behind it. It belongs to the packet that the segment is part of.
pub(super) struct View {
    data: NonNull<u8>,
    data_len: u32,
    /// The length of the whole packet, in its first segment.
    pkt_len: u32,
    /// The place whose buffer the data lie in, of which the segment has one hold: its own, or another's that it clones.
    /// `None` when they are those of [`Rest::attached`].
    buffer: Option<NonNull<Slot>>,
    next: Option<NonNull<Slot>>,
    /// What follows is kept in the first segment of a packet, for all of it.
    port: Port,
    sent_at: Instant,
}

impl View {
    /// No bytes yet, at `data` in the buffer of `slot`.
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

/// What most segments do not need. Nobody resets it: each field says when it counts. All zero is a value of it.
pub(super) struct Rest {
    /// The last segment of the packet that begins with this one, if it is not the only one.
    last: Option<NonNull<Slot>>,
    /// How many segments follow the first, in the first of several.
    more: u32,
    /// The RSS hash, or the VLAN tag that is beside the frame, in the first segment of a packet that has one.
    hash_or_tag: u32,
    /// Where the data lie, in a segment without a buffer. They are dropped with the segment.
    attached: MaybeUninit<Bytes>,
}

/// A frame in the pool of a [`MemoryNic`](super::MemoryNic), or a part of one.
///
/// It behaves as an mbuf does: a clone is another packet of the same pool over the same buffer, a buffer goes
/// back to its pool when the last packet or [`Bytes`] over it goes, and a frame that was sent stays in the
/// sender's pool until the receiver has dropped it.
///
/// Bytes that were sent are never written again while the sender or anybody else holds on to them:
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

// SAFETY: a packet owns the views of its segments; what it shares with other threads, the buffers, is only read
// while shared, and their holders are counted atomically.
unsafe impl Send for MemoryPacket {}

impl MemoryPacket {
    /// A packet around a place that was just taken.
    #[inline]
    pub(super) fn take(pool: &PoolHandle) -> Option<MemoryPacket> {
        pool.take().map(|head| MemoryPacket { head })
    }

    /// A packet around `bytes`, of which there are no more than [`MAX_LEN`].
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
        // SAFETY: `segment` is one of this packet's, so the place is taken and its view is ours alone; `&self`
        // keeps it from being written meanwhile.
        unsafe { &*segment.as_ref().view.get() }
    }

    #[inline]
    fn view_mut(&mut self, segment: NonNull<Slot>) -> &mut View {
        // SAFETY: as in `view`, and `&mut self` keeps it from being read or written by another call meanwhile.
        unsafe { &mut *segment.as_ref().view.get() }
    }

    /// The rest of a segment.
    #[inline]
    fn rest(&self, segment: NonNull<Slot>) -> &Rest {
        // SAFETY: as in `view`; memory that no packet has written yet is zero, which is a value of `Rest`.
        unsafe { &*segment.as_ref().rest.get() }
    }

    /// The rest of the first segment, to be written.
    #[inline]
    fn rest_mut(&mut self) -> &mut Rest {
        // SAFETY: as in `view_mut` and `rest`.
        unsafe { &mut *self.head.as_ref().rest.get() }
    }

    /// The bytes that were attached to a segment, which has no buffer.
    fn attached(&self, segment: NonNull<Slot>) -> &Bytes {
        debug_assert!(self.view(segment).buffer.is_none());
        // SAFETY: a segment without a buffer was made by `attach`, or is a clone of such a one, and they write this.
        unsafe { self.rest(segment).attached.assume_init_ref() }
    }

    #[inline]
    fn head(&self) -> &View {
        self.view(self.head)
    }

    /// The last segment, and how many follow the first.
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

    /// The last segment.
    #[inline]
    fn last(&self) -> NonNull<Slot> {
        self.end().0
    }

    #[inline]
    fn head_mut(&mut self) -> &mut View {
        self.view_mut(self.head)
    }

    /// The buffer behind a segment if this packet is its only holder, from its start to its end.
    #[inline]
    fn sole_buffer(&self, segment: NonNull<Slot>) -> Option<Range<NonNull<u8>>> {
        // Bytes that were attached do not say whether they are shared, and may be anything, a static even.
        let slot = self.view(segment).buffer?;
        // SAFETY: the segment's hold keeps the slot taken.
        let is_sole = unsafe { slot.as_ref() }.holders.is_sole();
        // SAFETY: as above.
        is_sole.then(|| unsafe { Slot::buffer(slot)..Slot::buffer_end(slot) })
    }

    /// The bytes of a segment, to be written, if nobody else holds them.
    #[inline]
    fn segment_mut(&mut self, segment: NonNull<Slot>) -> Option<&mut [u8]> {
        self.sole_buffer(segment)?;
        let view = self.view_mut(segment);
        // SAFETY: the view lies within the buffer, which has no other holder, nor can it get one while `self` is
        // borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(view.data.as_ptr(), view.data_len as usize) })
    }

    #[inline]
    fn slots(&self) -> impl Iterator<Item = NonNull<Slot>> {
        std::iter::successors(Some(self.head), |segment| self.view(*segment).next)
    }

    /// Ends one segment, which belongs to no packet any more.
    ///
    /// # Safety
    /// `segment` was a segment of a packet, owned by the caller, and is not used again.
    unsafe fn free_segment(segment: NonNull<Slot>) {
        // SAFETY: the caller owns the view, and nobody uses it hereafter.
        match unsafe { (*segment.as_ref().view.get()).buffer } {
            // SAFETY: the segment's hold on the buffer, its own or another's.
            Some(slot) => unsafe {
                Slot::release(slot);
                if slot != segment {
                    Slot::release(segment);
                }
            },
            None => {
                // SAFETY: there is no buffer, so there are attached bytes, which nobody uses hereafter.
                drop(unsafe { (*segment.as_ref().rest.get()).attached.assume_init_read() });
                // SAFETY: nobody else can hold the buffer of a place that was never written to.
                unsafe { Slot::release(segment) };
            }
        }
    }

    /// Ends all segments.
    ///
    /// # Safety
    /// The packet is not used again.
    #[inline(never)]
    unsafe fn free_segments(&mut self) {
        let mut next = Some(self.head);
        while let Some(segment) = next {
            next = self.view(segment).next;
            // SAFETY: the packet owns its segments.
            unsafe { MemoryPacket::free_segment(segment) };
        }
    }

    /// Another packet over the bytes of one segment.
    fn clone_segment(&self, segment: NonNull<Slot>) -> Option<MemoryPacket> {
        // SAFETY: the segment keeps its pool alive.
        let head = unsafe { Pool::take(segment.as_ref().pool) }?;
        let mut clone = MemoryPacket { head };
        let view = self.view(segment);
        match view.buffer {
            // The clone's own buffer stays unused: its one hold goes back with its place, in `free_segment`.
            // SAFETY: held by `segment`.
            Some(slot) => unsafe { slot.as_ref() }.holders.share(),
            None => _ = clone.rest_mut().attached.write(self.attached(segment).clone()),
        }
        let copy = clone.head_mut();
        copy.data = view.data;
        copy.data_len = view.data_len;
        copy.pkt_len = view.data_len;
        copy.buffer = view.buffer;
        Some(clone)
    }

    /// How many segments there are.
    pub(super) fn segment_count(&self) -> usize {
        1 + self.end().1 as usize
    }

    /// Whether this is one segment in a buffer that nobody else holds.
    #[inline]
    pub(super) fn is_exclusive(&self) -> bool {
        self.head().next.is_none() && self.sole_buffer(self.head).is_some()
    }

    /// The same frame with bytes of its own, in as few fresh packets of `pool` as it needs; of its own pool, if
    /// there is none given.
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

    /// Bytes that can be appended.
    fn tailroom(&self) -> usize {
        let last = self.last();
        let view = self.view(last);
        let end = view.data.addr().get() + view.data_len as usize;
        self.sole_buffer(last).map_or(0, |buffer| buffer.end.addr().get() - end)
    }

    /// Inverts the bit `bit` of the frame, counted from the most significant of the first byte. `false` when that
    /// byte is shared, or there is none.
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

    /// Keeps the first `len` bytes, of which there must be one at least.
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
        // SAFETY: it was a segment of this packet and was taken out of it just now.
        unsafe { MemoryPacket::free_segment(last) };
    }

    /// Takes over what is said about a frame, other than its bytes.
    fn inherit(&mut self, from: &MemoryPacket) {
        let (view, hash_or_tag) = (from.head(), from.rest(from.head).hash_or_tag);
        let head = self.head_mut();
        head.port = view.port;
        head.sent_at = view.sent_at;
        self.rest_mut().hash_or_tag = hash_or_tag;
    }

    /// What the ports have to do with the frame.
    #[inline]
    pub(super) fn port(&self) -> Port {
        self.head().port
    }

    #[inline]
    pub(super) fn sent_at(&self) -> Instant {
        self.head().sent_at
    }

    /// The frame leaves the sender now.
    #[inline]
    pub(super) fn mark_sent(&mut self, now: Instant, rss_hash: Option<u32>) {
        let head = self.head_mut();
        head.sent_at = now;
        head.port.send(rss_hash.is_some());
        if let Some(hash) = rss_hash {
            self.rest_mut().hash_or_tag = hash;
        }
    }

    /// The frame was damaged on its way.
    pub(super) fn mark_damaged(&mut self) {
        self.head_mut().port.damage();
    }

    /// The frame reaches the receiver.
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
            // SAFETY: the packet's hold on its own buffer, and nothing is attached.
            unsafe { Slot::release(self.head) };
        } else {
            // SAFETY: the packet ends here.
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
