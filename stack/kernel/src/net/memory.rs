//! Bounded block memory, shared by all connections of a worker.
//!
//! Reads for different connections append to one block, which is reused from its start once everything in it has been
//! dropped. As long as services consume their data, all of it passes through the same few cache lines.

use super::Net;
use linerate_bypass::{Buffer, BufferPool};
use linerate_service::ConnId;
use linerate_service::time::{Duration, Instant};

/// Block size: several fit in a second-level cache.
pub(super) const BLOCK: usize = 64 << 10;
/// Maximum unused blocks kept.
const IDLE_BLOCKS: usize = 64;
/// Pause when all blocks are in use.
const PAUSE: Duration = Duration::from_millis(1);
/// Minimum interval between compactions of all queues when all blocks are in use.
const COMPACT_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Memory {
    pool: BufferPool,
    rx: Option<Buffer>,
    tx: Option<Buffer>,
    waiting: Vec<ConnId>,
    compacted: Option<Instant>,
}

impl Memory {
    /// Creates blocks of up to `bytes` in total, at least one for reading and one for writing.
    pub(super) fn new(bytes: usize) -> Self {
        let blocks = (bytes / BLOCK).max(2);
        let pool = BufferPool::new(BLOCK, IDLE_BLOCKS.min(blocks), blocks);
        Memory { pool, rx: None, tx: None, waiting: Vec::new(), compacted: None }
    }

    /// Returns the block to read into, with `least` bytes of room if possible; `None` without any room.
    pub(super) fn rx(&mut self, least: usize) -> Option<&mut Buffer> {
        with_room(&mut self.rx, &self.pool, least)
    }

    /// Returns the block from which to send, under the conditions of [`rx`](Self::rx).
    pub(super) fn tx(&mut self, least: usize) -> Option<&mut Buffer> {
        with_room(&mut self.tx, &self.pool, least)
    }

    /// Returns the room in the block from which to send.
    pub(super) fn tx_left(&self) -> usize {
        self.tx.as_ref().map_or(0, |block| block.len())
    }

    /// Reuses the current blocks from their start if they have no users.
    pub(super) fn reset(&mut self) {
        for block in [&mut self.rx, &mut self.tx].into_iter().flatten() {
            block.reset();
        }
    }

    /// Records that `conn` found no room, for a retry.
    pub(super) fn wait(&mut self, conn: ConnId) {
        self.waiting.push(conn);
    }

    /// Returns the pause before the retry.
    pub(super) fn pause(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(PAUSE)
    }
}

fn with_room<'a>(current: &'a mut Option<Buffer>, pool: &BufferPool, least: usize) -> Option<&'a mut Buffer> {
    if current.as_ref().is_none_or(|block| block.len() < least)
        && let Some(block) = pool.take()
    {
        *current = Some(block);
    }
    current.as_mut().filter(|block| !block.is_empty())
}

impl Net {
    /// Retries connections that found no memory.
    pub(super) fn retry_waiting(&mut self) {
        if self.memory.waiting.is_empty() {
            return;
        }
        let dry = self.memory.pool.take().is_none();
        if dry && self.memory.compacted.is_none_or(|at| self.now.since(at) >= COMPACT_INTERVAL) {
            self.memory.compacted = Some(self.now);
            self.compact();
        }
        for id in std::mem::take(&mut self.memory.waiting) {
            let Some(conn) = self.table.slots.get_mut(id) else { continue };
            if conn.tx.len() <= self.config.tx_buffer / 2 {
                self.table.offer_room(id);
            }
            self.set_unread(id);
        }
    }

    /// Copies small remainders that keep many blocks in use to memory of their own.
    fn compact(&mut self) {
        for (_, conn) in self.table.slots.iter_mut() {
            for queue in [&mut conn.rx, &mut conn.tx] {
                if queue.len() < queue.slices() * BLOCK / 4 {
                    self.summary.copied_bytes += queue.gather() as u64;
                }
            }
        }
    }
}
