//! Long values of a store, in the arena.

use crate::store::memory::heap::SLACK;
use crate::store::{Error, Long, Store};
use linerate_bypass::arena::{BuddyArena, BuddyMut};
use std::ops::Range;

/// Divisor for the part of a value's memory that may be unused.
const WASTE_DIVISOR: usize = 8;
/// Limit of reclaim steps per value. The reserve supplies the rest.
const MAX_RECLAIM_STEPS: usize = 32;
/// Smallest number of bytes by which a partly received value is extended.
const EXTEND_STEP: usize = 64 << 10;
/// Approximate limit of parts per value, however fragmented memory is.
const MAX_PARTS: usize = 64;

/// [`Long`] that is being written.
#[derive(Debug)]
pub struct LongWriter {
    parts: Vec<BuddyMut>,
    /// Part being written, and the position in it.
    part: usize,
    at: usize,
    len: usize,
    left: usize,
    /// Missing bytes for which memory is allocated.
    room: usize,
}

impl LongWriter {
    /// Creates a writer for a value of `len` bytes without memory. The caller [extends](Store::extend_long) it while
    /// the value arrives.
    pub fn new(len: usize) -> Self {
        LongWriter { parts: Vec::new(), part: 0, at: 0, len, left: len, room: 0 }
    }

    /// Copies bytes from the start of `bytes` into the allocated room. Returns their number.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while let Some(part) = self.parts.get_mut(self.part)
            && !rest.is_empty()
        {
            let n = rest.len().min(part.len() - self.at);
            part[self.at..self.at + n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            self.at += n;
            if self.at == part.len() {
                (self.part, self.at) = (self.part + 1, 0);
            }
        }
        let filled = bytes.len() - rest.len();
        self.left -= filled;
        self.room -= filled;
        filled
    }

    pub(in crate::store) fn fill_zeros(&mut self, mut n: usize) {
        const ZEROS: [u8; 1024] = [0; 1024];
        while n > 0 {
            let filled = self.fill(&ZEROS[..n.min(ZEROS.len())]);
            assert!(filled > 0, "no room for zeros");
            n -= filled;
        }
    }

    pub(in crate::store) fn fill_from(&mut self, long: &Long, range: Range<usize>) {
        long.range(range).for_each(|part| _ = self.fill(&part));
    }

    /// Returns the number of missing bytes.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns the number of missing bytes for which memory is allocated.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Returns the complete value.
    ///
    /// # Panics
    /// Panics if bytes are missing.
    pub fn finish(self) -> Long {
        assert_eq!(self.left, 0, "bytes are missing from a value");
        Long::from_parts(self.parts.into_iter().map(BuddyMut::freeze))
    }
}

impl Store {
    /// Allocates memory for a value of `len` bytes. The call evicts as many items as necessary, possibly very many.
    /// Values that arrive over time should be [extended](Self::extend_long) instead.
    pub fn long(&mut self, len: usize, now: u64) -> Result<LongWriter, Error> {
        if len > self.memory {
            return Err(Error::Full);
        }
        let mut writer = LongWriter::new(len);
        writer.parts = self.allocate_long(len, len, now)?;
        writer.room = len;
        Ok(writer)
    }

    /// Allocates memory for the next 64 KB or 64th of a value, evicting items if necessary.
    pub fn extend_long(&mut self, writer: &mut LongWriter, now: u64) -> Result<(), Error> {
        let step = writer.left.min(EXTEND_STEP.max((writer.len / MAX_PARTS).next_power_of_two()));
        if writer.room == 0 {
            writer.parts.extend(self.allocate_long(step, writer.len, now)?);
            writer.room = step;
        }
        Ok(())
    }

    /// Allocates parts for `len` bytes of a value of `whole` bytes, evicting items if necessary.
    fn allocate_long(&mut self, len: usize, whole: usize, now: u64) -> Result<Vec<BuddyMut>, Error> {
        /// Reclaim steps between two attempts.
        const WORK: usize = 8;
        // One step for each item of usual size that the value displaces, up to the limit.
        self.refill_reserve((len / 256).min(MAX_RECLAIM_STEPS), now);
        loop {
            if let Some(parts) = self.take_parts(len, whole) {
                return Ok(parts);
            }
            // Free the parts of the failed attempt. They do not count as progress.
            while self.heap.arena.collect(MAX_PARTS) {}
            if (0..WORK).take_while(|_| self.reclaim_step(now)).count() == 0 {
                return Err(Error::Full);
            }
        }
    }

    /// Allocates parts for `len` bytes of a value of `whole` bytes: few parts with little unused memory, or smaller
    /// ones if the arena has no large ones.
    fn take_parts(&mut self, len: usize, whole: usize) -> Option<Vec<BuddyMut>> {
        if self.used() + len + SLACK > self.memory {
            return None;
        }
        self.heap.arena.set_limit(self.chunks());
        let smallest = (whole / MAX_PARTS).next_power_of_two().clamp(BuddyArena::SMALLEST, BuddyArena::LARGEST);
        let mut most = BuddyArena::LARGEST;
        let mut parts = Vec::new();
        let mut left = len;
        while left > 0 {
            let whole = left.next_power_of_two().max(BuddyArena::SMALLEST);
            let size = if whole - left <= len / WASTE_DIVISOR { whole } else { whole / 2 }.min(most);
            let room = self.memory.saturating_sub(self.used() + SLACK);
            match self.heap.arena.alloc_within(size.min(left), room) {
                Some(part) => parts.push(part),
                None if size / 2 >= smallest => {
                    most = size / 2;
                    continue;
                }
                None => return None,
            }
            left -= size.min(left);
        }
        Some(parts)
    }

    /// Stores `long` in the slab if there is room for its list of parts. Returns its number.
    pub(in crate::store) fn insert_long(&mut self, long: Long, now: u64) -> Result<u32, Error> {
        self.make_room_outside_heap(long.overhead() + self.longs.growth(1), now)?;
        self.external_bytes += long.overhead();
        let number = self.longs.insert(long);
        if let Some(long) = self.longs.get(number) {
            long.parts().iter().for_each(|part| self.heap.arena.set_label(part, number + 1));
        }
        Ok(number)
    }

    pub(in crate::store) fn remove_long(&mut self, number: u32) {
        if let Some(long) = self.longs.remove(number) {
            self.external_bytes -= long.overhead();
        }
    }

    /// Prepares `long` for another store, which counts its memory from then on.
    pub fn lend(&mut self, long: &mut Long) {
        if long.parts().iter().all(|part| self.heap.arena.owns(part)) {
            long.parts().iter().for_each(|part| self.heap.arena.exclude(part));
            long.lend();
        }
    }

    /// Returns `long` in a form this store can keep: itself, or a copy if its memory belongs to another store and was
    /// not lent.
    pub(in crate::store) fn adopt(&mut self, long: Long, now: u64) -> Result<Long, Error> {
        if long.is_lent() || long.parts().iter().all(|part| self.heap.arena.owns(part)) {
            return Ok(long);
        }
        self.copy(&long, now)
    }

    /// Returns a copy of `long` in this store's memory.
    pub(in crate::store) fn copy(&mut self, long: &Long, now: u64) -> Result<Long, Error> {
        let mut writer = self.long(long.len(), now)?;
        writer.fill_from(long, 0..long.len());
        Ok(writer.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, Evictable, EvictionPolicy};

    #[test]
    fn value_has_one_part_unless_more_than_an_eighth_is_unused() {
        let mut store = Store::new(&Config::new(64 << 20), 0);
        let parts = |store: &mut Store, len| store.long(len, 0).unwrap().parts.len();
        // 64 KB exceed 58 255 bytes by an eighth of the value.
        assert_eq!((parts(&mut store, 58_255), parts(&mut store, 65_536)), (1, 1));
        assert!(parts(&mut store, 58_254) > 1);
        for len in [4096, 5000, 100_000, 1_000_000, 10_000_000] {
            let writer = store.long(len, 0).unwrap();
            assert_eq!((writer.left(), writer.room()), (len, len));
            let taken = |part: &BuddyMut| part.len().next_power_of_two().max(BuddyArena::SMALLEST);
            assert!(
                writer.parts.iter().map(taken).sum::<usize>() <= len + len / WASTE_DIVISOR + BuddyArena::SMALLEST,
                "{len}"
            );
            assert!(writer.parts.len() <= 4 + len / BuddyArena::LARGEST, "{len}: {}", writer.parts.len());
        }
    }

    #[test]
    fn writer_is_extended_by_64_kb_or_a_64th_of_the_value() {
        let mut store = Store::new(&Config::new(64 << 20), 0);
        for (len, step) in [(1000, 1000), (1 << 20, EXTEND_STEP), (16 << 20, 256 << 10)] {
            let mut writer = LongWriter::new(len);
            store.extend_long(&mut writer, 0).unwrap();
            assert_eq!((writer.room(), writer.left()), (step, len));
            // Extending has no effect while there is room.
            store.extend_long(&mut writer, 0).unwrap();
            assert_eq!(writer.fill(&vec![1; step + 1]), step);
            assert_eq!((writer.room(), writer.left()), (0, len - step));
        }
    }

    #[test]
    fn value_larger_than_memory_is_refused_without_evictions() {
        let config = Config { evict: EvictionPolicy::Lru(Evictable::AllKeys), ..Config::new(1 << 20) };
        let mut store = Store::new(&config, 0);
        store.fill(0, 0..1000, &[0; 100], 0);
        for len in [(1 << 20) + 1, 2 << 20] {
            assert_eq!(store.long(len, 0).err(), Some(Error::Full));
            assert_eq!((store.len(0), store.counts().evicted), (1000, 0));
        }
    }
}
