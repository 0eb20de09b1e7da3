//! Making room, at once and in the background.

use super::index::Location;
use super::item::Item;
use super::long::LongWriter;
use super::{Error, Store, heap};

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
        !all_expired || self.spaces.flushed() > 0
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

    /// Makes room for an item of `size` bytes.
    pub(super) fn make_room(&mut self, size: usize, now: u64) -> Result<(), Error> {
        if size > heap::LARGEST {
            return Err(Error::Full);
        }
        while self.heap.grows_by(size) > 0 && self.used() + heap::PAGE > self.memory {
            if !self.compact() && !self.evict_one(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Memory for a value of `len` bytes, to be filled.
    pub(super) fn long_at(&mut self, len: usize, _now: u64) -> Result<LongWriter, Error> {
        self.long(len)
    }

    /// Empties a page whose items have room in others. Returns whether there was one.
    fn compact(&mut self) -> bool {
        let Some(page) = self.heap.sparse_page() else { return false };
        for old in page {
            let item = self.item(old);
            let (size, expires) = (item.size(), item.expires());
            let Some(new) = self.heap.allocate(size) else { return false };
            let hash = self.hash_at(old);
            self.heap.copy(old, new);
            self.moved(hash, old, new, expires);
            self.heap.release(old);
        }
        true
    }

    /// The item that was at `old` is at `new`.
    fn moved(&mut self, hash: u64, old: Location, new: Location, expires: bool) {
        if expires {
            self.wheel.moved(new, &mut self.heap);
        }
        self.index.relocate(hash, old, new);
    }
}
