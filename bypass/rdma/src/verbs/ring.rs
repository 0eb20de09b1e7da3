//! Rings of messages: memory of a connection's own that its peer writes.

use super::pd::MrPart;
use super::{Error, Mr, Mw};
use crate::provider::{Access, Operation, Provider};
use linerate_bypass::arena::ArenaMut;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Memory that the peer of one queue pair writes its messages to, each into the next of its slots. It is registered for that alone, and
/// open through a window that is bound to the queue pair: what the peer knows opens nothing else, and nothing to anybody else.
///
/// Nobody ever has a reference to it, since the peer may write it at any time: what is looked at is copied out first.
pub struct Ring<C: Provider> {
    // The window goes before what it is bound to.
    mw: Mw<C>,
    memory: MrPart<C>,
    slot: usize,
    slots: usize,
    next: usize,
    is_open: bool,
}

/// What a peer has to know of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddr {
    /// Its address.
    pub address: u64,
    /// The key that opens it.
    pub rkey: u32,
    /// Bytes of all slots.
    pub len: u32,
}

/// A peer's ring: where the next message goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    place: RingAddr,
    slot: u32,
    next: u32,
}

impl<C: Provider> Ring<C> {
    /// Makes a ring of `block`, in slots of `slot` bytes.
    ///
    /// # Panics
    /// If no slot is in it, or slots are not multiples of eight bytes.
    pub fn new(mr: &Mr<C>, mut block: ArenaMut, slot: usize) -> Result<Self, Error> {
        // Who says that there is a message where none was written is not to see what others left.
        block.fill(0);
        let slots = block.len().checked_div(slot).unwrap_or(0);
        assert!(slots > 0 && slot.is_multiple_of(8), "no ring of slots of {slot} bytes");
        let memory = mr.written_by_peer(block)?;
        assert!(memory.range.start.is_multiple_of(8), "blocks are aligned");
        Ok(Ring { mw: Mw::new(mr)?, memory, slot, slots, next: 0, is_open: false })
    }

    /// What binds the window, if it is not, and what the peer has to know then.
    pub(super) fn open(&mut self) -> Option<(Operation, RingAddr)> {
        if std::mem::replace(&mut self.is_open, true) {
            return None;
        }
        self.mw.key = self.mw.next_key();
        let (address, len) = (self.memory.range.start as u64, (self.slots * self.slot) as u64);
        let bind = Operation::Bind {
            mw: self.mw.handle,
            rkey: self.mw.key,
            mr: self.memory.handle,
            address,
            len,
            access: Access { remote_write: true, ..Access::default() },
        };
        Some((bind, RingAddr { address, rkey: self.mw.key, len: len as u32 }))
    }

    /// Whether the window is bound, or about to be.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Copies the message of `len` bytes in the next slot into `buffer`, which is as long then; empty, if there cannot be such a one.
    pub(super) fn take(&mut self, len: usize, buffer: &mut ArenaMut) {
        let start = self.memory.range.start + self.next * self.slot;
        self.next = (self.next + 1) % self.slots;
        let len = if len <= self.slot.min(buffer.len()) { len } else { 0 };
        buffer.truncate(len);
        let (words, bytes) = buffer.as_chunks_mut::<8>();
        let after = start + words.len() * 8;
        for (at, word) in words.iter_mut().enumerate() {
            // SAFETY: the word lies in the slot, and that in the block, which `memory` keeps and nobody has a reference to. It is
            // aligned, since the block and all slots are. The peer may be writing it: whatever eight bytes are read will do.
            let read = unsafe { AtomicU64::from_ptr((start + at * 8) as *mut u64) }.load(Ordering::Relaxed);
            *word = read.to_ne_bytes();
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: as above.
            *byte = unsafe { AtomicU8::from_ptr((after + at) as *mut u8) }.load(Ordering::Relaxed);
        }
    }
}

impl Target {
    /// A peer's ring, in slots of `slot` bytes; `None`, if it has none.
    pub fn new(place: RingAddr, slot: u32) -> Option<Self> {
        (slot > 0 && place.len >= slot).then_some(Target { place, slot, next: 0 })
    }

    /// What writes the next message, of `len` bytes.
    pub fn write(&self, len: usize) -> Operation {
        let RingAddr { address, rkey, .. } = self.place;
        let address = address.wrapping_add(u64::from(self.next) * u64::from(self.slot));
        Operation::WriteImmediate { address, rkey, immediate: len as u32 }
    }

    /// That has been done.
    pub fn advance(&mut self) {
        self.next = (self.next + 1) % (self.place.len / self.slot);
    }
}
