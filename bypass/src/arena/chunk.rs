//! Chunks: large parts of an arena with one owner.

use super::{MAX_CARVED, SharedArena};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(super) const CHUNK: usize = 1 << 20;
/// Alignment of chunks, if the arena extends beyond such an address.
const ALIGN: usize = 4096;
/// Bits of [`Taken`] that count bytes from the front.
const FRONT_BITS: u32 = 40;

/// Memory of an arena in use: bytes from the front, carved into blocks, and a number of chunks from the back.
pub(super) struct Taken(AtomicU64);

impl Taken {
    pub(super) const fn nothing() -> Self {
        Taken(AtomicU64::new(0))
    }

    /// Returns the bytes from the front and the number of chunks.
    pub(super) fn get(&self) -> (usize, usize) {
        split(self.0.load(Ordering::Relaxed))
    }

    /// Replaces the value by the result of `more`. Returns the previous value.
    pub(super) fn update(&self, more: impl Fn(usize, usize) -> Option<(usize, usize)>) -> Option<(usize, usize)> {
        let more = |taken| {
            let (front, chunks) = split(taken);
            more(front, chunks).map(|(front, chunks)| front as u64 | (chunks as u64) << FRONT_BITS)
        };
        // Relaxed: the memory is not published through this counter.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(split)
    }
}

fn split(taken: u64) -> (usize, usize) {
    ((taken & ((1 << FRONT_BITS) - 1)) as usize, (taken >> FRONT_BITS) as usize)
}

/// Exclusively owned memory of [`CHUNK`] bytes, returned to the arena on drop.
pub(super) struct Chunk {
    shared: Arc<SharedArena>,
    number: u32,
}

impl Chunk {
    /// Takes a chunk from `shared`: a free one, or a new one from the back.
    pub(super) fn take(shared: &Arc<SharedArena>) -> Option<Chunk> {
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
        // SAFETY: the chunk exists, so it lies within the arena.
        unsafe { self.shared.base.add(start) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.free_chunks.push(self.number, |number| shared.chunk_link(number));
    }
}

impl SharedArena {
    /// Returns the end of the first chunk as an offset.
    fn chunks_end(&self) -> usize {
        let end = self.base.addr().get() + self.len;
        self.len.saturating_sub(end % ALIGN)
    }

    fn chunk_link(&self, number: u32) -> &AtomicU32 {
        &self.chunk_links[number as usize]
    }

    /// Returns the end of the memory for blocks, as an offset, if there are `chunks`.
    pub(super) fn front_end(&self, chunks: usize) -> usize {
        let end = if chunks == 0 { self.len } else { self.chunks_end() - chunks * CHUNK };
        end.min(MAX_CARVED)
    }
}
