//! Making room, at once and in the background.

use crate::store::index::Location;
use crate::store::memory::heap;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::{Form, Item};
use crate::store::{Error, Key, Store};
use linerate_bypass::arena::Pieces;

/// Places of the index that are looked at together for flushed items.
const SWEPT: usize = 256;
/// Bytes that are left when a page or a long value is taken, by which the index and the lists may grow next.
pub(in crate::store) const SLACK: usize = 16 << 10;
/// Pieces of work that are done by the way when memory is nearly full: so many when the reserve is, more the less there is of it.
const PIECES: usize = 3;
const MORE_PIECES: usize = 12;
/// The part of memory that is kept free, so that there is some when much is needed.
const RESERVED: usize = 64;
/// Items that are moved together to free a page.
const MOVED: usize = 16;

impl Store {
    /// Does a piece of what is done in the background, of about `budget` items: those go that have expired by `now` or were
    /// flushed, and some if memory is nearly full. Returns whether there is more to be done at once.
    pub fn tick(&mut self, now: u64, budget: usize) -> bool {
        let all_expired = self.expire(now, budget);
        if self.spaces.flushed() > 0 {
            self.sweep_some(budget);
        }
        self.bury(budget);
        let has_more = self.heap.pieces.collect(budget);
        // A piece may be the move of some items.
        let is_short = self.make_up(budget / 8, now);
        !all_expired || has_more || is_short || self.spaces.flushed() > 0 || !self.doomed.is_empty()
    }

    /// Makes room for `items`, each of so many bytes of a key or a field and of a value. If there is, none of them is refused when
    /// they are put in next; what is taken for granted is more than they need.
    pub fn make_room_for(&mut self, items: impl Iterator<Item = (usize, usize)>, now: u64) -> Result<(), Error> {
        /// Bytes of an item beside its key and value, at most.
        const BESIDE: usize = 48;
        /// Bytes of the list of a long value's pieces, as many as there are seldom more of.
        const LIST: usize = 2 << 10;
        /// Slots of different sizes that the parts of a hash pass through.
        const SIZES: usize = 32;
        let (mut count, mut short, mut long, mut longs) = (0, 0, 0, 0);
        for (name, value) in items {
            let is_long = value >= self.long;
            count += 1;
            short += Heap::slot_len((BESIDE + name + if is_long { 0 } else { value }).min(heap::LARGEST));
            // Of pieces, an eighth may be wasted.
            long += if is_long { value + value / 8 + 2 * Pieces::SMALLEST } else { 0 };
            longs += usize::from(is_long);
        }
        let pages = short.div_ceil(heap::PAGE - heap::LARGEST) + (count + 1).min(SIZES);
        let lists = self.longs.growth(longs) + longs * LIST + self.tables.growth(1);
        let needed = self.heap.growth(pages) + long + lists + self.index.growth(count) + SLACK;
        loop {
            let has_bytes = self.used() + needed <= self.memory;
            self.heap.pieces.set_limit(self.chunks());
            if has_bytes && self.heap.has_pages(pages) {
                return Ok(());
            }
            if has_bytes && (0..pages).any(|_| self.clear_page() && self.heap.has_pages(pages)) {
                return Ok(());
            }
            if !self.clear_some(now) {
                return Err(Error::Full);
            }
        }
    }

    /// Lets up to `most` items expire whose time has come by `now`, and fewer where one makes the index shrink. Returns whether
    /// all have.
    pub(in crate::store) fn expire(&mut self, now: u64, most: usize) -> bool {
        let shrunk = self.index.shrunk();
        for _ in 0..most {
            if self.index.shrunk() != shrunk {
                return false;
            }
            let Some(location) = self.wheel.next(now, &mut self.heap) else { return true };
            // Put in again, to be taken out by whoever lets it go.
            self.wheel.insert(location, &mut self.heap);
            let item = self.item(location);
            if item.expires_at().is_some_and(|at| at <= now) {
                self.stats.add_expired(u64::from(!self.spaces.is_flushed(item.space())));
                self.discard(location);
            }
        }
        false
    }

    /// Looks at about `most` places of the index for flushed items, which go.
    pub(in crate::store) fn sweep_some(&mut self, most: usize) {
        let mut found = std::mem::take(&mut self.found);
        let mut left = most;
        while left > 0 && self.spaces.flushed() > 0 {
            let places = left.min(SWEPT);
            left -= places;
            self.sweep = self.index.scan(self.sweep, places, |location| {
                if self.spaces.is_flushed(Item(self.heap.at(location)).space()) {
                    found.push(location);
                }
            });
            found.drain(..).for_each(|location| self.discard(location));
        }
        self.found = found;
    }

    /// Whether there is room for `count` items of at most `size` bytes, and for the entry of `key` in the index. There is no more
    /// of it before the next item.
    #[inline]
    pub(in crate::store) fn has_room(&mut self, size: usize, count: usize, key: Option<&Key>) -> bool {
        let used = self.used() + key.map_or(0, |key| self.entry_growth(key));
        if count == 1 && self.heap.has_slot(size) {
            return used <= self.memory;
        }
        if used + self.heap.growth(count) + SLACK > self.memory {
            return false;
        }
        self.heap.pieces.set_limit(self.chunks());
        if count == 1 { self.heap.add_page(size) } else { self.heap.has_pages(count) }
    }

    /// Bytes in chunks of the arena that it may have.
    pub(in crate::store) fn chunks(&self) -> usize {
        self.memory.saturating_sub(self.index.bytes()) + Pieces::LARGEST
    }

    /// The most bytes by which the index grows for an item of `key`.
    fn entry_growth(&self, key: &Key) -> usize {
        match self.index.growth_under(key.hash) {
            0 => 0,
            _ if self.find_any(key).is_some() => 0,
            growth => growth,
        }
    }

    /// Makes room for `count` items of at most `size` bytes, and for the entry of `key` in the index.
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
        self.clear_room(size, count, key, now)
    }

    /// Makes room for `bytes` that are not in items.
    pub(in crate::store) fn make_room_beside(&mut self, bytes: usize, now: u64) -> Result<(), Error> {
        while bytes > 0 && self.used() + bytes > self.memory {
            if !self.clear_some(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Bytes that are kept free when there is anything that may go, so that no call has to wait for a page's worth of items to
    /// go: each lets a few go instead.
    #[inline]
    fn reserve(&self) -> usize {
        (self.memory / RESERVED).max(SLACK)
    }

    /// Bytes of the [`reserve`](Self::reserve) that are not free.
    fn missing(&self) -> usize {
        (self.used() + self.reserve()).saturating_sub(self.memory)
    }

    /// Does up to `most` pieces of work towards the [`reserve`](Self::reserve). Returns whether there is more of it to be done.
    pub(in crate::store) fn make_up(&mut self, most: usize, now: u64) -> bool {
        for _ in 0..most {
            if self.missing() == 0 || !self.clear_some(now) {
                return false;
            }
        }
        self.missing() > 0
    }

    #[cold]
    fn clear_room(&mut self, size: usize, count: usize, key: Option<&Key>, now: u64) -> Result<(), Error> {
        let more = self.missing().min(self.reserve()) * (MORE_PIECES - PIECES) / self.reserve();
        self.make_up(PIECES + more, now);
        while !self.has_room(size, count, key) {
            // Where bytes are free, but no page is, what is in the way is moved.
            let is_scattered = self.used() + self.heap.growth(count) + SLACK <= self.memory;
            // A page that is free already must not be taken for progress when several are needed.
            if is_scattered && (0..count).any(|_| self.clear_page() && self.has_room(size, count, key)) {
                return Ok(());
            }
            if !self.clear_some(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Lets a little go of what may go, or moves something to free memory. Returns whether there was anything.
    pub(in crate::store) fn clear_some(&mut self, now: u64) -> bool {
        /// Items of what is nobody's that go before somebody's.
        const SOME: usize = 16;
        self.heap.pieces.collect(SOME)
            || self.bury(SOME)
            || self.drop_nobodys(SOME, now)
            || self.compact(MOVED)
            || self.evict_one(now)
    }

    /// Lets about `most` items go that have expired or were flushed. Returns whether any did.
    fn drop_nobodys(&mut self, most: usize, now: u64) -> bool {
        let before = self.index.len();
        self.expire(now, most);
        self.sweep_some(most);
        self.index.len() < before
    }

    /// Does `what` while what is under `key` may not be evicted.
    pub(in crate::store) fn with_pinned<T>(&mut self, key: &Key, what: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.pinned.replace(key.hash);
        let result = what(self);
        self.pinned = before;
        result
    }

    /// Moves up to `most` items of a page whose items have room in others. Returns whether there were any.
    fn compact(&mut self, most: usize) -> bool {
        let mut slots = std::mem::take(&mut self.found);
        self.heap.sparse_page(most, &mut slots);
        let moved = slots.iter().take_while(|old| self.move_item(**old)).count();
        if moved < slots.len() {
            self.heap.keep_page();
        }
        slots.clear();
        self.found = slots;
        moved > 0
    }

    /// Moves an item to another page. Returns whether there was room.
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

    /// Moves parts of long values so that a page is free. Returns whether it is.
    fn clear_page(&mut self) -> bool {
        let mut labels = std::mem::take(&mut self.labels);
        let most = self.memory.saturating_sub(self.used() - self.heap.pieces.used());
        if let Some(clearing) = self.heap.pieces.begin_clearing(&mut labels) {
            for label in labels.drain(..) {
                if let Some(long) = label.checked_sub(1).and_then(|number| self.longs.get_mut(number)) {
                    long.leave(&clearing, label, &mut self.heap.pieces, most);
                }
            }
            self.heap.pieces.collect(usize::MAX);
            self.heap.pieces.end_clearing();
        }
        self.labels = labels;
        self.heap.pieces.has_free(heap::PAGE)
    }
}

#[cfg(test)]
mod tests;
