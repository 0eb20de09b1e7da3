//! Large parts of an arena that one owner has.

use super::Shared;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a chunk.
pub(super) const CHUNK: usize = 1 << 20;
/// Chunks begin at multiples of this, if the arena's end lies behind one.
const ALIGN: usize = 4096;
/// The bits of [`Taken`] that count bytes from the front.
const FRONT_BITS: u32 = 40;

/// What of an arena is in use at all: bytes from the front, of which blocks are made, and chunks from the back.
pub(super) struct Taken(AtomicU64);

impl Taken {
    pub(super) const fn nothing() -> Self {
        Taken(AtomicU64::new(0))
    }

    /// Bytes from the front, and the number of chunks.
    pub(super) fn get(&self) -> (usize, usize) {
        split(self.0.load(Ordering::Relaxed))
    }

    /// Replaces what [`get`](Self::get) says by what `more` makes of it. Returns what it was.
    pub(super) fn update(&self, more: impl Fn(usize, usize) -> Option<(usize, usize)>) -> Option<(usize, usize)> {
        let more = |taken| {
            let (front, chunks) = split(taken);
            more(front, chunks).map(|(front, chunks)| front as u64 | (chunks as u64) << FRONT_BITS)
        };
        // Nobody reads the memory through this counter, so nothing has to be ordered by it.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(split)
    }
}

fn split(taken: u64) -> (usize, usize) {
    ((taken & ((1 << FRONT_BITS) - 1)) as usize, (taken >> FRONT_BITS) as usize)
}

/// [`CHUNK`] bytes that nobody else has; they go back on drop.
pub(super) struct Chunk {
    shared: Arc<Shared>,
    number: u32,
}

impl Chunk {
    /// A chunk of `shared`, if there is one that is free or memory for one.
    pub(super) fn take(shared: &Arc<Shared>) -> Option<Chunk> {
        let number = shared.free_chunks.pop(|number| shared.chunk_link(number)).or_else(|| {
            let more = |front: usize, chunks: usize| {
                (front + (chunks + 1) * CHUNK <= shared.chunks_end()).then_some((front, chunks + 1))
            };
            shared.taken.update(more).map(|(_, chunks)| chunks as u32)
        })?;
        Some(Chunk { shared: Arc::clone(shared), number })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        let start = self.shared.chunks_end() - (self.number as usize + 1) * CHUNK;
        // SAFETY: there is such a chunk, so it lies within the arena.
        unsafe { self.shared.base.add(start) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.free_chunks.push(self.number, |number| shared.chunk_link(number));
    }
}

impl Shared {
    /// Where the first chunk ends, as bytes from the base.
    fn chunks_end(&self) -> usize {
        let end = self.base.addr().get() + self.len;
        self.len.saturating_sub(end % ALIGN)
    }

    fn chunk_link(&self, number: u32) -> &AtomicU32 {
        &self.chunk_links[number as usize]
    }

    /// Where memory ends of which blocks can be made when there are `chunks`.
    pub(super) fn front_end(&self, chunks: usize) -> usize {
        if chunks == 0 { self.len } else { self.chunks_end() - chunks * CHUNK }
    }
}
