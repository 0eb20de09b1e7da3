//! Memory that READs fill over iWARP.

use super::pd::{Kept, Registration};
use super::{Error, Pd};
use crate::provider::{Access, Provider, Sge};
use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaMut;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Region that every peer can write at any time, because a READ announces its R_Key. It holds nothing but the responses
/// of READs, which are copied out before they are examined.
pub(super) struct Sink<C: Provider> {
    arena: Arena,
    memory: Registration<C>,
}

/// Part of a [`Sink`] that one READ fills. No reference to its bytes exists.
pub(super) struct SinkBlock {
    _block: ArenaMut,
    start: usize,
}

impl<C: Provider> Sink<C> {
    pub fn new(pd: &Pd<C>, arena: Arena) -> Result<Self, Error> {
        let access = Access { local_write: true, remote_write: true, relaxed: true, ..Access::default() };
        let range = arena.regions().next().expect("an arena has a region");
        let kept = Kept::Arena(arena.clone());
        // SAFETY: the memory stays mapped as long as the arena. All blocks of the arena are `SinkBlock`s, which are
        // accessed with atomic loads only, so that the device may write them at any time.
        let memory = unsafe { Registration::new(pd, range, access, kept, "register the memory of READs") }?;
        Ok(Sink { arena, memory })
    }

    /// Allocates a block, with its scatter/gather element.
    pub fn alloc(&self, len: usize) -> Option<(SinkBlock, Sge)> {
        let mut block = self.arena.alloc(len)?;
        let start = block.as_mut_ptr().expose_provenance();
        let sge = Sge { address: start as u64, len: u32::try_from(len).ok()?, lkey: self.memory.keys.local };
        Some((SinkBlock { _block: block, start }, sge))
    }
}

impl SinkBlock {
    /// Copies the block to `into`, which has its length.
    pub fn copy_to(self, into: &mut ArenaMut) {
        // SAFETY: the block has the length of `into`, the alignment of all blocks, and no reference to its bytes.
        unsafe { load(self.start, into) }
    }
}

/// Copies memory that a peer may be writing to `into`: any bytes are acceptable.
///
/// # Safety
/// `start` is a multiple of eight. `into.len()` bytes are mapped there, and no reference to them exists.
pub(super) unsafe fn load(start: usize, into: &mut [u8]) {
    let (words, bytes) = into.as_chunks_mut::<8>();
    let after = start + words.len() * 8;
    for (at, word) in words.iter_mut().enumerate() {
        // SAFETY: an aligned word of the memory that the caller guarantees.
        let read = unsafe { AtomicU64::from_ptr((start + at * 8) as *mut u64) }.load(Ordering::Relaxed);
        *word = read.to_ne_bytes();
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: as above; a byte needs no alignment.
        *byte = unsafe { AtomicU8::from_ptr((after + at) as *mut u8) }.load(Ordering::Relaxed);
    }
}
