//! Implementation of the `Packet` trait.

use super::{MAX_SEGMENTS, MemoryPacket, Rest};
use crate::memory_nic::packet::pool::Slot;
use crate::nic::packet::{ADDRESSES, TAG, VLAN_TAG, with_tag};
use crate::{Packet, RxInfo, TxOffload};
use linerate_service::{Bytes, Memory, OwnerVtable};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

impl Packet for MemoryPacket {
    #[inline]
    fn len(&self) -> usize {
        self.head().pkt_len as usize
    }

    #[inline]
    fn data(&self) -> &[u8] {
        let view = self.head();
        // SAFETY: the view lies within memory to which the segment holds a reference. It is written only through `&mut`
        // of the only holder.
        unsafe { std::slice::from_raw_parts(view.data.as_ptr(), view.data_len as usize) }
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
            unsafe { std::slice::from_raw_parts(view.data.as_ptr(), view.data_len as usize) }
        })
    }

    #[inline(always)]
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let start = self.sole_buffer(self.head)?.start;
        let head = self.head_mut();
        if n > head.data.addr().get() - start.addr().get() {
            return None;
        }
        head.pkt_len = head.pkt_len.checked_add(n as u32)?;
        head.data_len += n as u32;
        // SAFETY: the headroom is at least `n` bytes, so the result lies within the buffer.
        head.data = unsafe { head.data.sub(n) };
        // SAFETY: as above, and the buffer has no other reference.
        Some(unsafe { std::slice::from_raw_parts_mut(head.data.as_ptr(), n) })
    }

    #[inline]
    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let last = self.last();
        let buffer = self.sole_buffer(last)?;
        let view = self.view(last);
        // SAFETY: the data lie within the buffer.
        let end = unsafe { view.data.add(view.data_len as usize) };
        if n > buffer.end.addr().get() - end.addr().get() {
            return None;
        }
        let head = self.head_mut();
        head.pkt_len = head.pkt_len.checked_add(n as u32)?;
        self.view_mut(last).data_len += n as u32;
        // SAFETY: the tailroom is at least `n` bytes, and the buffer has no other reference.
        Some(unsafe { std::slice::from_raw_parts_mut(end.as_ptr(), n) })
    }

    #[inline]
    fn adjust(&mut self, n: usize) -> bool {
        let head = self.head_mut();
        if n > head.data_len as usize {
            return false;
        }
        // SAFETY: `n` does not exceed the length, so the result lies within the segment or at its end.
        head.data = unsafe { head.data.add(n) };
        head.data_len -= n as u32;
        head.pkt_len -= n as u32;
        true
    }

    #[inline]
    fn trim(&mut self, n: usize) -> bool {
        let view = self.view_mut(self.last());
        if n > view.data_len as usize {
            return false;
        }
        view.data_len -= n as u32;
        self.head_mut().pkt_len -= n as u32;
        true
    }

    #[inline(always)]
    fn rewrite(&mut self, n: usize) -> Option<&mut [u8]> {
        let end = self.sole_buffer(self.head)?.end;
        let head = self.head_mut();
        if head.next.is_some() || n > end.addr().get() - head.data.addr().get() {
            return None;
        }
        (head.data_len, head.pkt_len) = (n as u32, n as u32);
        // SAFETY: the buffer has `n` bytes from the start of the data on, and no other reference.
        Some(unsafe { std::slice::from_raw_parts_mut(head.data.as_ptr(), n) })
    }

    #[inline]
    fn chain(&mut self, tail: Self) -> Result<(), Self> {
        let ((own_last, own_more), (last, tail_more)) = (self.end(), tail.end());
        let more = own_more + 1 + tail_more;
        let total = self.head().pkt_len.checked_add(tail.head().pkt_len);
        let Some(total) = total.filter(|_| more < MAX_SEGMENTS) else { return Err(tail) };
        // This packet owns the segments of `tail` from here on.
        let first = ManuallyDrop::new(tail).head;
        self.view_mut(own_last).next = Some(first);
        self.head_mut().pkt_len = total;
        let rest = self.rest_mut();
        rest.last = Some(last);
        rest.more = more;
        Ok(())
    }

    #[inline]
    fn unchain(&mut self) -> Option<Self> {
        let head = self.head_mut();
        let first = head.next.take()?;
        let total = head.pkt_len - head.data_len;
        head.pkt_len = head.data_len;
        let &mut Rest { last, more, .. } = self.rest_mut();
        let mut tail = MemoryPacket { head: first };
        tail.head_mut().pkt_len = total;
        let rest = tail.rest_mut();
        rest.last = last;
        rest.more = more - 1;
        Some(tail)
    }

    fn try_clone(&self) -> Option<Self> {
        let mut clone = self.clone_segment(self.head)?;
        for segment in self.slots().skip(1) {
            clone.chain(self.clone_segment(segment)?).ok()?;
        }
        clone.inherit(self);
        Some(clone)
    }

    #[inline]
    fn into_bytes(mut self, range: Range<usize>) -> Bytes {
        let part = &self.data()[range];
        let (start, len) = (NonNull::from(part).cast(), part.len());
        drop(self.unchain());
        let segment = ManuallyDrop::new(self).head;
        // SAFETY: the packet owned the view and is not used afterwards.
        match unsafe { (*segment.as_ref().view.get()).buffer } {
            Some(slot) => {
                if slot != segment {
                    // SAFETY: the slot of a clone, to whose own buffer there is no other reference.
                    unsafe { Slot::release(segment) };
                }
                // SAFETY: the bytes take over the segment's reference to the buffer. Buffers are written by packets
                // only, and only by a packet with the only reference.
                unsafe { Bytes::from_owner(start, len, slot.as_ptr().cast(), &BUFFER) }
            }
            None => {
                // SAFETY: there is no buffer, so there are attached bytes, which the packet does not use afterwards.
                let bytes = unsafe { (*segment.as_ref().rest.get()).attached.assume_init_read() };
                // SAFETY: the buffer of this slot was never used.
                unsafe { Slot::release(segment) };
                // A packet only narrows attached bytes, so the part lies within `bytes`.
                let before = start.addr().get() - bytes.as_ptr().addr();
                bytes.slice(before..before + len)
            }
        }
    }

    #[inline(always)]
    fn retain(&mut self, from: usize) -> Option<Bytes> {
        let head = self.head();
        let len = (head.data_len as usize).checked_sub(from)?;
        let Some(slot) = head.buffer else {
            let bytes = self.attached(self.head);
            // A packet only narrows attached bytes, so the part lies within `bytes`.
            let start = head.data.addr().get() - bytes.as_ptr().addr() + from;
            return Some(bytes.slice(start..start + len));
        };
        // SAFETY: the segment's reference, which `&mut self` makes exclusive to this call.
        unsafe { slot.as_ref().refs.share_own() };
        // SAFETY: `from` lies within the data or at their end.
        let start = unsafe { head.data.add(from) };
        // SAFETY: the reference just added keeps the buffer alive. Buffers are written by packets only, and only by a
        // packet with the only reference.
        Some(unsafe { Bytes::from_owner(start, len, slot.as_ptr().cast(), &BUFFER) })
    }

    #[inline(always)]
    fn rx_info(&self) -> RxInfo {
        self.head().port.found(|| self.rest(self.head).hash_or_tag)
    }

    // Most callers pass constant lengths, for which the word is also a constant.
    #[inline(always)]
    fn set_tx_offload(&mut self, offload: TxOffload) {
        self.head_mut().port.request_offload(&offload);
    }

    fn set_tx_vlan(&mut self, tci: u16) {
        self.rest_mut().hash_or_tag = tci.into();
        self.head_mut().port.request_vlan();
    }

    fn tag(&mut self, tci: u16, spare: impl FnOnce() -> Option<Self>) -> bool {
        let Some(addresses) = self.data().first_chunk().copied() else { return false };
        let bytes = with_tag(addresses, tci);
        if self.prepend(TAG).is_some() {
            let Some(space) = self.data_mut().and_then(|data| data.get_mut(..bytes.len())) else { return false };
            space.copy_from_slice(&bytes);
        } else {
            let Some(mut front) = spare() else { return false };
            let Some(space) = front.append(bytes.len()) else { return false };
            space.copy_from_slice(&bytes);
            if !self.adjust(ADDRESSES) {
                return false;
            }
            front.inherit(self);
            let rest = std::mem::replace(self, front);
            if self.chain(rest).is_err() {
                return false;
            }
        }
        self.head_mut().port.lengthen(TAG);
        true
    }

    fn untag(&mut self) -> Option<u16> {
        let mut tag = [0; TAG];
        let rest = self.segments().flatten().skip(ADDRESSES);
        tag.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        let [a, b, c, d] = tag;
        if u16::from_be_bytes([a, b]) != VLAN_TAG || self.len() < ADDRESSES + TAG {
            return None;
        }
        if self.data().len() < ADDRESSES + TAG || self.data_mut().is_none() {
            // The sender still holds a reference.
            *self = self.copy(None)?;
        }
        self.data_mut()?.get_mut(..ADDRESSES + TAG)?.copy_within(..ADDRESSES, TAG);
        self.adjust(TAG).then_some(u16::from_be_bytes([c, d]))
    }
}

/// Functions by which [`Bytes`] own a buffer of a pool.
static BUFFER: OwnerVtable = OwnerVtable {
    memory: Memory::Process,
    pooled: true,
    // SAFETY: the owner is a slot of a pool to which the caller holds a reference.
    share: |owner| unsafe { (*owner.cast::<Slot>()).refs.share() },
    // SAFETY: as above. `into_bytes` has moved the contents out of the slot's view, or the packet drops them.
    release: |owner| unsafe { Slot::release(NonNull::new_unchecked(owner.cast_mut().cast())) },
};
