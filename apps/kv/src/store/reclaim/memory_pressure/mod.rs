//! Reclaiming memory, on demand and in the background.

use crate::store::memory::Location;
use crate::store::memory::heap::{self, Heap, SLACK};
use crate::store::memory::item::{Form, Item};
use crate::store::{Error, Key, Store};
use linerate_bypass::arena::BuddyArena;

/// Index slots examined together for flushed items.
const SWEPT: usize = 256;
/// Steps of work added to a write while the reserve is not full: `STEPS`, rising to `MAX_STEPS` as it empties.
const STEPS: usize = 3;
const MAX_STEPS: usize = 12;
/// Divisor for the part of memory kept free, so that a large request finds memory.
const RESERVED: usize = 64;
/// Items moved together to free a page.
const MOVED: usize = 16;

impl Store {
    /// Does a step of background work of about `budget` items: removes expired and flushed items, and reclaims memory
    /// if it is nearly full. Returns true if more work is due now.
    pub fn tick(&mut self, now: u64, budget: usize) -> bool {
        let all_expired = self.expire(now, budget);
        if self.keyspaces.flushed() > 0 {
            self.sweep_some(budget);
        }
        let has_lost = self.lost_slots.is_some() && self.remove_lost_some(budget);
        self.free_deferred(budget);
        let has_more = self.heap.arena.collect(budget);
        // One step may move several items.
        let is_short = self.refill_reserve(budget / 8, now);
        !all_expired || has_lost || has_more || is_short || self.keyspaces.flushed() > 0 || !self.dead_tables.is_empty()
    }

    /// Makes room for `items`, given as lengths of key or field and of value. After success, writing these items does
    /// not fail: the estimate is an upper bound.
    pub fn make_room_for(&mut self, items: impl Iterator<Item = (usize, usize)>, now: u64) -> Result<(), Error> {
        /// Upper bound of an item's bytes other than key and value.
        const OVERHEAD: usize = 48;
        /// Upper bound of the part list of a long value, except for unusually many parts.
        const LIST: usize = 2 << 10;
        /// Slot sizes that the parts of a hash pass through.
        const SIZES: usize = 32;
        let (mut count, mut short, mut long, mut longs) = (0, 0, 0, 0);
        for (name, value) in items {
            let is_long = value >= self.long;
            count += 1;
            short += Heap::slot_len((OVERHEAD + name + if is_long { 0 } else { value }).min(heap::LARGEST));
            // Up to an eighth of a part may be unused.
            long += if is_long { value + value / 8 + 2 * BuddyArena::SMALLEST } else { 0 };
            longs += usize::from(is_long);
        }
        let pages = short.div_ceil(heap::PAGE - heap::LARGEST) + (count + 1).min(SIZES);
        let lists = self.longs.growth(longs) + longs * LIST + self.tables.growth(1);
        let needed = self.heap.growth(pages) + long + lists + self.index.growth(count) + SLACK;
        loop {
            let has_bytes = self.used() + needed <= self.memory;
            self.heap.arena.set_limit(self.chunks());
            if has_bytes && self.heap.has_pages(pages) {
                return Ok(());
            }
            if has_bytes && (0..pages).any(|_| self.evacuate_page() && self.heap.has_pages(pages)) {
                return Ok(());
            }
            if !self.reclaim_step(now) {
                return Err(Error::Full);
            }
        }
    }

    /// Removes up to `most` items that expired by `now`, fewer if a removal shrinks the index. Returns true if none is
    /// left.
    pub(in crate::store) fn expire(&mut self, now: u64, most: usize) -> bool {
        let shrunk = self.index.shrunk();
        for _ in 0..most {
            if self.index.shrunk() != shrunk {
                return false;
            }
            let Some(location) = self.wheel.next(now, &mut self.heap) else { return true };
            // Reinsert it: the removal takes it out of the wheel.
            self.wheel.insert(location, &mut self.heap);
            let item = self.item(location);
            if item.expires_at().is_some_and(|at| at <= now) {
                self.stats.add_expired(u64::from(!self.keyspaces.is_flushed(item.space())));
                self.reclaim_item(location);
            }
        }
        false
    }

    /// Examines about `most` index slots and removes flushed items.
    pub(in crate::store) fn sweep_some(&mut self, most: usize) {
        let mut found = std::mem::take(&mut self.scratch_locations);
        let mut left = most;
        while left > 0 && self.keyspaces.flushed() > 0 {
            let batch = left.min(SWEPT);
            left -= batch;
            self.sweep_cursor = self.index.scan(self.sweep_cursor, batch, |location| {
                if self.keyspaces.is_flushed(Item(self.heap.at(location)).space()) {
                    found.push(location);
                }
            });
            found.drain(..).for_each(|location| self.reclaim_item(location));
        }
        self.scratch_locations = found;
    }

    /// Returns true if `count` items of at most `size` bytes fit, including the index entry of `key`. Only the next
    /// item may use the room.
    #[inline]
    pub(in crate::store) fn has_room(&mut self, size: usize, count: usize, key: Option<&Key>) -> bool {
        let used = self.used() + key.map_or(0, |key| self.entry_growth(key));
        if count == 1 && self.heap.has_slot(size) {
            return used <= self.memory;
        }
        if used + self.heap.growth(count) + SLACK > self.memory {
            return false;
        }
        self.heap.arena.set_limit(self.chunks());
        if count == 1 { self.heap.add_page(size) } else { self.heap.has_pages(count) }
    }

    /// Returns the limit of arena chunks in bytes.
    pub(in crate::store) fn chunks(&self) -> usize {
        self.memory.saturating_sub(self.index.bytes()) + BuddyArena::LARGEST
    }

    /// Returns an upper bound of the index growth for an item of `key`.
    fn entry_growth(&self, key: &Key) -> usize {
        match self.index.growth_under(key.hash) {
            0 => 0,
            _ if self.find_ignoring_expiry(key).is_some() => 0,
            growth => growth,
        }
    }

    /// Makes room for `count` items of at most `size` bytes and for the index entry of `key`.
    #[inline]
    pub(in crate::store) fn make_room(
        &mut self,
        size: usize,
        count: usize,
        key: Option<&Key>,
        now: u64,
    ) -> Result<(), Error> {
        if count == 1 && self.heap.has_slot(size) && self.used() + self.reserve() <= self.memory {
            return Ok(());
        }
        self.make_room_slow(size, count, key, now)
    }

    /// Makes room for `bytes` outside the heap.
    pub(in crate::store) fn make_room_outside_heap(&mut self, bytes: usize, now: u64) -> Result<(), Error> {
        while bytes > 0 && self.used() + bytes > self.memory {
            if !self.reclaim_step(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Bytes kept free, if anything can be evicted. Each write reclaims a little, so that no write has to evict a
    /// page's worth of items.
    #[inline]
    fn reserve(&self) -> usize {
        (self.memory / RESERVED).max(SLACK)
    }

    fn reserve_shortfall(&self) -> usize {
        (self.used() + self.reserve()).saturating_sub(self.memory)
    }

    /// Does up to `most` steps to refill the [`reserve`](Self::reserve). Returns true if bytes are still missing.
    pub(in crate::store) fn refill_reserve(&mut self, most: usize, now: u64) -> bool {
        for _ in 0..most {
            if self.reserve_shortfall() == 0 || !self.reclaim_step(now) {
                return false;
            }
        }
        self.reserve_shortfall() > 0
    }

    #[cold]
    fn make_room_slow(&mut self, size: usize, count: usize, key: Option<&Key>, now: u64) -> Result<(), Error> {
        let more = self.reserve_shortfall().min(self.reserve()) * (MAX_STEPS - STEPS) / self.reserve();
        self.refill_reserve(STEPS + more, now);
        while !self.has_room(size, count, key) {
            // There are free bytes but no free page: move the parts of long values out of a page.
            let is_scattered = self.used() + self.heap.growth(count) + SLACK <= self.memory;
            // Check after each page: a page that was free before is not progress if several are needed.
            if is_scattered && (0..count).any(|_| self.evacuate_page() && self.has_room(size, count, key)) {
                return Ok(());
            }
            if !self.reclaim_step(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Does one small step to free memory. Returns false if nothing can be freed.
    pub(in crate::store) fn reclaim_step(&mut self, now: u64) -> bool {
        /// Dead items removed before a live item is evicted.
        const SOME: usize = 16;
        self.heap.arena.collect(SOME)
            || self.free_deferred(SOME)
            || self.reclaim_dead(SOME, now)
            || self.compact(MOVED)
            || self.evict_one(now)
    }

    /// Removes about `most` expired or flushed items. Returns true if it removed any, or if flushed ones remain, which
    /// may be in another part of the index.
    fn reclaim_dead(&mut self, most: usize, now: u64) -> bool {
        let before = self.index.len();
        self.expire(now, most);
        self.sweep_some(most);
        self.index.len() < before || self.keyspaces.flushed() > 0
    }

    /// Runs `action` with `key` protected from eviction.
    pub(in crate::store) fn with_pinned<T>(&mut self, key: &Key, action: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.pinned.replace(key.hash);
        let result = action(self);
        self.pinned = before;
        result
    }

    /// Moves up to `most` items out of a sparsely used page. Returns true if it moved any.
    fn compact(&mut self, most: usize) -> bool {
        let mut slots = std::mem::take(&mut self.scratch_locations);
        self.heap.sparse_page(most, &mut slots);
        let moved = slots.iter().take_while(|old| self.move_item(**old)).count();
        if moved < slots.len() {
            self.heap.stop_evacuation();
        }
        slots.clear();
        self.scratch_locations = slots;
        moved > 0
    }

    /// Moves an item to another page. Returns false if no slot is free.
    fn move_item(&mut self, old: Location) -> bool {
        let item = self.item(old);
        let (form, size, expires) = (item.form(), item.size(), item.expires());
        if !self.heap.has_slot(size) {
            return false;
        }
        let Some(new) = self.heap.allocate(size) else { return false };
        self.heap.copy(old, new, size);
        if form == Form::Bucket {
            self.bucket_moved(old, new);
        } else {
            if expires {
                self.wheel.moved(new, &mut self.heap);
            }
            self.index.relocate(self.hash_at(new), old, new);
        }
        self.heap.release(old);
        true
    }

    /// Moves parts of long values to free a page. Returns true if a page is free.
    fn evacuate_page(&mut self) -> bool {
        let mut labels = std::mem::take(&mut self.scratch_labels);
        let most = self.memory.saturating_sub(self.used() - self.heap.arena.used());
        if let Some(clearing) = self.heap.arena.begin_evacuation(&mut labels) {
            for label in labels.drain(..) {
                if let Some(long) = label.checked_sub(1).and_then(|number| self.longs.get_mut(number)) {
                    long.evacuate(&clearing, label, &mut self.heap.arena, most);
                }
            }
            self.heap.arena.collect(usize::MAX);
            self.heap.arena.end_evacuation();
        }
        self.scratch_labels = labels;
        self.heap.arena.has_free(heap::PAGE)
    }
}

#[cfg(test)]
mod tests;
