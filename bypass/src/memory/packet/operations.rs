//! What every packet does, as the memory NIC's does it.

use super::{MAX_LEN, MAX_SEGMENTS, MemoryPacket, Storage};
use crate::memory::pool::Slot;
use crate::{Bytes, Memory, Owner, Packet, RxInfo, TxOffload};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

impl Packet for MemoryPacket {
    #[inline]
    fn len(&self) -> usize {
        self.head().pkt_len
    }

    #[inline]
    fn data(&self) -> &[u8] {
        let view = self.head();
        // SAFETY: the view lies within memory that the segment holds, and that is written only through the sole
        // holder's `&mut`.
        unsafe { std::slice::from_raw_parts(view.data.as_ptr(), view.data_len) }
    }

    #[inline]
    fn data_mut(&mut self) -> Option<&mut [u8]> {
        self.segment_mut(self.head)
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.slots().map(|segment| {
            let view = self.view(segment);
            // SAFETY: as in `data`.
            unsafe { std::slice::from_raw_parts(view.data.as_ptr(), view.data_len) }
        })
    }

    #[inline(always)]
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let start = self.sole_buffer(self.head)?.start;
        let head = self.head_mut();
        if n > head.data.addr().get() - start.addr().get() {
            return None;
        }
        // SAFETY: the headroom is `n` bytes at least, so the result lies within the buffer.
        head.data = unsafe { head.data.sub(n) };
        head.data_len += n;
        head.pkt_len += n;
        // SAFETY: as above, and the buffer has no other holder.
        Some(unsafe { std::slice::from_raw_parts_mut(head.data.as_ptr(), n) })
    }

    #[inline]
    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let last = self.head().last;
        let buffer = self.sole_buffer(last)?;
        let view = self.view_mut(last);
        // SAFETY: the data lie within the buffer.
        let end = unsafe { view.data.add(view.data_len) };
        if n > buffer.end.addr().get() - end.addr().get() {
            return None;
        }
        view.data_len += n;
        self.head_mut().pkt_len += n;
        // SAFETY: the tailroom is `n` bytes at least, and the buffer has no other holder.
        Some(unsafe { std::slice::from_raw_parts_mut(end.as_ptr(), n) })
    }

    #[inline]
    fn adjust(&mut self, n: usize) -> bool {
        let head = self.head_mut();
        if n > head.data_len {
            return false;
        }
        // SAFETY: `n` is not more than the length, so the result lies within the segment or at its end.
        head.data = unsafe { head.data.add(n) };
        head.data_len -= n;
        head.pkt_len -= n;
        true
    }

    #[inline]
    fn trim(&mut self, n: usize) -> bool {
        let last = self.head().last;
        let view = self.view_mut(last);
        if n > view.data_len {
            return false;
        }
        view.data_len -= n;
        self.head_mut().pkt_len -= n;
        true
    }

    #[inline]
    fn chain(&mut self, tail: Self) -> Result<(), Self> {
        let (segments, total) = (tail.head().segments, tail.len());
        if self.head().segments + segments > MAX_SEGMENTS || self.len() > MAX_LEN - total.min(MAX_LEN) {
            return Err(tail);
        }
        let (first, end) = (tail.head, tail.head().last);
        // Its segments are ours from here.
        std::mem::forget(tail);
        let last = self.head().last;
        self.view_mut(last).next = Some(first);
        let head = self.head_mut();
        head.last = end;
        head.segments += segments;
        head.pkt_len += total;
        Ok(())
    }

    #[inline]
    fn unchain(&mut self) -> Option<Self> {
        let own = self.head;
        let head = self.head_mut();
        let first = head.next.take()?;
        let (last, segments, total) = (head.last, head.segments - 1, head.pkt_len - head.data_len);
        head.last = own;
        head.segments = 1;
        head.pkt_len = head.data_len;
        let mut tail = MemoryPacket { head: first };
        let view = tail.head_mut();
        view.last = last;
        view.segments = segments;
        view.pkt_len = total;
        Some(tail)
    }

    fn try_clone(&self) -> Option<Self> {
        let mut clone = self.clone_segment(self.head)?;
        for segment in self.slots().skip(1) {
            clone.chain(self.clone_segment(segment)?).ok()?;
        }
        clone.head_mut().inherit(self.head());
        Some(clone)
    }

    #[inline]
    fn into_bytes(mut self, range: Range<usize>) -> Bytes {
        let part = &self.data()[range];
        let (start, len) = (NonNull::from(part).cast(), part.len());
        drop(self.unchain());
        let segment = ManuallyDrop::new(self).head;
        // SAFETY: the packet owned the view and is used no more; of the view only the storage has something to drop.
        match unsafe { std::ptr::read(&raw const (*segment.as_ref().view.get()).storage) } {
            Storage::Buffer(slot) => {
                if slot != segment {
                    // SAFETY: the place of a clone, whose own buffer nobody holds.
                    unsafe { Slot::release(segment) };
                }
                // SAFETY: the bytes take over the segment's hold on the buffer. Buffers are written by packets
                // only, and only by a packet that is the sole holder.
                unsafe { Bytes::from_owner(start, len, slot.as_ptr().cast(), &BUFFER) }
            }
            Storage::Attached(bytes) => {
                // SAFETY: the buffer of this place was never in use.
                unsafe { Slot::release(segment) };
                // A packet only narrows what was attached, so the part lies within `bytes`.
                let before = start.addr().get() - bytes.as_ptr().addr();
                bytes.slice(before..before + len)
            }
        }
    }

    #[inline(always)]
    fn retain(&mut self, from: usize) -> Option<Bytes> {
        let head = self.head();
        let len = head.data_len.checked_sub(from)?;
        match &head.storage {
            Storage::Buffer(slot) => {
                // SAFETY: the segment's hold on the buffer, which `&mut self` keeps to this call.
                unsafe { slot.as_ref().holders.share_own() };
                // SAFETY: `from` lies within the data or at their end.
                let start = unsafe { head.data.add(from) };
                // SAFETY: the hold just taken keeps the buffer. Buffers are written by packets only, and only by a
                // packet that is the sole holder.
                Some(unsafe { Bytes::from_owner(start, len, slot.as_ptr().cast(), &BUFFER) })
            }
            Storage::Attached(bytes) => {
                // A packet only narrows what was attached, so the part lies within `bytes`.
                let start = head.data.addr().get() - bytes.as_ptr().addr() + from;
                Some(bytes.slice(start..start + len))
            }
        }
    }

    #[inline]
    fn rx_info(&self) -> RxInfo {
        self.head().rx_info
    }

    #[inline]
    fn set_tx_offload(&mut self, offload: TxOffload) {
        self.head_mut().tx_offload = Some(offload);
    }
}

/// Buffers of a pool as owners of [`Bytes`].
static BUFFER: Owner = Owner {
    memory: Memory::Process,
    pooled: true,
    // SAFETY: the owner is a place of a pool of which the caller has a hold.
    share: |owner| unsafe { (*owner.cast::<Slot>()).holders.share() },
    // SAFETY: as above. The place's view was read out by `into_bytes`, or will be when its packet ends.
    release: |owner| unsafe { Slot::release(NonNull::new_unchecked(owner.cast_mut().cast())) },
};
