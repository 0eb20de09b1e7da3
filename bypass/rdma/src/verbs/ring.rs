//! Message rings: memory of one connection that its peer writes.

use super::pd::Registration;
use super::sink::load;
use super::{Error, Mr, Mw};
use crate::provider::{Access, Operation, Provider};
use linerate_bypass::arena::ArenaMut;

/// Memory that the peer of one queue pair writes its messages to, each into the next slot. It has its own
/// registration and a window bound to the queue pair: the R_Key opens nothing else, and is useless to other peers.
///
/// No reference to the memory exists, because the peer may write it at any time. A message is copied out before it is
/// examined.
pub struct Ring<C: Provider> {
    // Dropped before the registration that it is bound to.
    mw: Mw<C>,
    memory: Registration<C>,
    slot: usize,
    slots: usize,
    next: usize,
    is_open: bool,
}

/// Address of a ring, for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddr {
    /// Address.
    pub address: u64,
    /// R_Key.
    pub rkey: u32,
    /// Length of all slots in bytes.
    pub len: u32,
}

/// Ring of the peer, with the position of the next message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    ring: RingAddr,
    slot: u32,
    next: u32,
}

impl<C: Provider> Ring<C> {
    /// Creates a ring in `block` with slots of `slot` bytes.
    ///
    /// # Panics
    /// If `block` is shorter than one slot, or `slot` is not a multiple of eight.
    pub fn new(mr: &Mr<C>, mut block: ArenaMut, slot: usize) -> Result<Self, Error> {
        // A peer that announces a message without writing it must not expose old data.
        block.fill(0);
        let slots = block.len().checked_div(slot).unwrap_or(0);
        assert!(slots > 0 && slot.is_multiple_of(8), "no ring of slots of {slot} bytes");
        let memory = mr.written_by_peer(block)?;
        assert!(memory.range.start.is_multiple_of(8), "blocks are aligned");
        Ok(Ring { mw: Mw::new(mr)?, memory, slot, slots, next: 0, is_open: false })
    }

    /// Returns the bind request and the resulting address, unless the window is already bound.
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

    /// Returns true if the window is bound or its bind is posted.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Copies `len` bytes from the next slot into `buffer` and truncates it; an invalid `len` leaves it empty.
    pub(super) fn take(&mut self, len: usize, buffer: &mut ArenaMut) {
        let start = self.memory.range.start + self.next * self.slot;
        self.next = (self.next + 1) % self.slots;
        let len = if len <= self.slot.min(buffer.len()) { len } else { 0 };
        buffer.truncate(len);
        // SAFETY: the slot lies in the block, which `memory` keeps and to which no reference exists. Block and slots
        // are aligned.
        unsafe { load(start, buffer) }
    }
}

impl Target {
    /// Returns the writer for the ring at `ring` with slots of `slot` bytes, or `None` if it has no slot.
    pub fn new(ring: RingAddr, slot: u32) -> Option<Self> {
        (slot > 0 && ring.len >= slot).then_some(Target { ring, slot, next: 0 })
    }

    /// Returns the request that writes the next message of `len` bytes.
    pub fn write(&self, len: usize) -> Operation {
        let RingAddr { address, rkey, .. } = self.ring;
        let address = address.wrapping_add(u64::from(self.next) * u64::from(self.slot));
        Operation::WriteImmediate { address, rkey, immediate: len as u32 }
    }

    /// Advances to the next slot.
    pub fn advance(&mut self) {
        self.next = (self.next + 1) % (self.ring.len / self.slot);
    }
}
