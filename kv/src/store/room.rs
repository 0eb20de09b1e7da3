//! Making room, at once and in the background.

use super::item::{Form, Item};
use super::{Error, Key, Store, heap};

/// Places of the index that are looked at together for flushed items.
const SWEPT: usize = 256;

impl Store {
    /// Does a piece of what is done in the background, of about `budget` items: those go that have expired by `now` or were
    /// flushed. Returns whether there is more to be done at once.
    pub fn tick(&mut self, now: u64, budget: usize) -> bool {
        let all_expired = self.expire(now, budget);
        if self.spaces.flushed() > 0 {
            self.sweep_some(budget);
        }
        self.bury(budget);
        !all_expired || self.spaces.flushed() > 0 || !self.doomed.is_empty()
    }

    /// Lets up to `most` items expire whose time has come by `now`. Returns whether all have.
    pub(super) fn expire(&mut self, now: u64, most: usize) -> bool {
        for _ in 0..most {
            let Some(location) = self.wheel.next(now, &mut self.heap) else { return true };
            // Put in again, to be taken out by whoever lets it go.
            self.wheel.insert(location, &mut self.heap);
            let item = self.item(location);
            if item.expires_at().is_some_and(|at| at <= now) {
                self.counts.expired += u64::from(!self.spaces.is_flushed(item.space()));
                self.discard(location);
            }
        }
        false
    }

    /// Looks at about `most` places of the index for flushed items, which go.
    pub(super) fn sweep_some(&mut self, most: usize) {
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

    /// Whether there is room for `count` items of at most `size` bytes.
    #[inline]
    pub(super) fn has_room(&self, size: usize, count: usize) -> bool {
        if count == 1 && self.heap.grows_by(size) == 0 {
            return true;
        }
        self.used() + count * heap::PAGE <= self.memory
    }

    /// Makes room for `count` items of at most `size` bytes.
    #[inline]
    pub(super) fn make_room(&mut self, size: usize, count: usize, now: u64) -> Result<(), Error> {
        if self.has_room(size, count) { Ok(()) } else { self.clear_room(size, count, now) }
    }

    #[cold]
    fn clear_room(&mut self, size: usize, count: usize, now: u64) -> Result<(), Error> {
        /// Items of what is nobody's that go before somebody's.
        const SOME: usize = 16;
        if size > heap::LARGEST {
            return Err(Error::Full);
        }
        while !self.has_room(size, count) {
            if !self.bury(SOME) && !self.drop_nobodys(SOME, now) && !self.compact() && !self.evict_one(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Lets about `most` items go that have expired or were flushed. Returns whether any did.
    fn drop_nobodys(&mut self, most: usize, now: u64) -> bool {
        let before = self.index.len();
        self.expire(now, most);
        self.sweep_some(most);
        self.index.len() < before
    }

    /// Does `what` while what is under `key` may not be evicted.
    pub(super) fn with_pinned<T>(&mut self, key: &Key, what: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.pinned.replace(key.hash);
        let result = what(self);
        self.pinned = before;
        result
    }

    /// Empties a page whose items have room in others. Returns whether there was one.
    fn compact(&mut self) -> bool {
        let Some(page) = self.heap.sparse_page() else { return false };
        for old in page {
            let item = self.item(old);
            let (form, size, expires) = (item.form(), item.size(), item.expires());
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
        }
        true
    }
}
