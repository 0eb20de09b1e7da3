//! The blocks of one worker: shared by all of its connections, and bounded.
//!
//! Reads for different connections go into one block, each behind the one before, and the block is used from its
//! beginning again as soon as everything in it has been dropped. So as long as services consume what they get, all
//! of it passes through the same few cache lines.

use super::Net;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Buffer, BufferPool, ConnId};

/// The size of a block: what a second-level cache holds several of.
pub(super) const BLOCK: usize = 64 << 10;
/// Blocks that are kept when nobody uses them.
const IDLE_BLOCKS: usize = 64;
/// How long to wait when all blocks are in use.
const PAUSE: Duration = Duration::from_millis(1);
/// How often all queues are gathered when all blocks are in use.
const RELIEF_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Memory {
    pool: BufferPool,
    rx: Option<Buffer>,
    tx: Option<Buffer>,
    /// Connections that wait for a block.
    thirsty: Vec<ConnId>,
    relieved: Option<Instant>,
}

impl Memory {
    /// Blocks of up to `bytes` in all, but at least one to read into and one to write from.
    pub(super) fn new(bytes: usize) -> Self {
        let blocks = (bytes / BLOCK).max(2);
        let pool = BufferPool::new(BLOCK, IDLE_BLOCKS.min(blocks), blocks);
        Memory { pool, rx: None, tx: None, thirsty: Vec::new(), relieved: None }
    }

    /// The block to read into, with `least` bytes of room if there is any such; `None` if there is no room at all.
    pub(super) fn rx(&mut self, least: usize) -> Option<&mut Buffer> {
        with_room(&mut self.rx, &self.pool, least)
    }

    /// The block to write from, as [`rx`](Self::rx).
    pub(super) fn tx(&mut self, least: usize) -> Option<&mut Buffer> {
        with_room(&mut self.tx, &self.pool, least)
    }

    /// Room in the block to write from.
    pub(super) fn tx_left(&self) -> usize {
        self.tx.as_ref().map_or(0, |block| block.len())
    }

    /// Makes the current blocks whole again if nobody has a part of them any more.
    pub(super) fn reset(&mut self) {
        for block in [&mut self.rx, &mut self.tx].into_iter().flatten() {
            block.reset();
        }
    }

    /// Notes that `conn` found no room, to be tried again soon.
    pub(super) fn wait(&mut self, conn: ConnId) {
        self.thirsty.push(conn);
    }

    /// How long to wait before trying those again.
    pub(super) fn pause(&self) -> Option<Duration> {
        (!self.thirsty.is_empty()).then_some(PAUSE)
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
    /// Lets those that found no memory try again.
    pub(super) fn quench(&mut self) {
        if self.memory.thirsty.is_empty() {
            return;
        }
        let dry = self.memory.pool.take().is_none();
        if dry && self.memory.relieved.is_none_or(|at| self.now.since(at) >= RELIEF_PAUSE) {
            self.memory.relieved = Some(self.now);
            self.relieve();
        }
        for id in std::mem::take(&mut self.memory.thirsty) {
            let Some(conn) = self.slots.get_mut(id) else { continue };
            if conn.wants_room && conn.tx.len() <= self.config.tx_buffer / 2 {
                conn.wants_room = false;
                conn.pending.writable = true;
                self.list(id);
            }
            self.set_unread(id);
        }
    }

    /// Small remains of many blocks keep all of them: gives those memory of their own.
    fn relieve(&mut self) {
        for conn in self.slots.iter_mut() {
            for queue in [&mut conn.rx, &mut conn.tx] {
                if queue.len() < queue.slices() * BLOCK / 4 {
                    self.summary.copied_bytes += queue.gather() as u64;
                }
            }
        }
    }
}
