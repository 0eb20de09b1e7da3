//! Lookahead: index and item are prefetched before the command runs.
//!
//! The caller prefetches the index line of a key, later reads the location from it and prefetches the item, and then
//! runs the command. Other keys of the burst are handled between the steps. A hint holds until an item is freed or
//! moved.

use crate::store::index::Location;
use crate::store::memory::item::{Form, Item};
use crate::store::{Key, Store};

/// Location where the item of a key may be.
#[derive(Debug, Default, Clone, Copy)]
pub struct LocationHint {
    location: Option<Location>,
    /// Number of freed slots when the hint was made.
    released: u32,
}

impl Store {
    /// Prefetches the index line of `hash`.
    #[inline(always)]
    pub fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Returns the location of the item under `hash`, if any. The index line should be in the cache.
    #[inline(always)]
    pub fn location_hint(&self, hash: u64) -> LocationHint {
        LocationHint { location: self.index.probe(hash), released: self.heap.released() }
    }

    /// Prefetches the item, all of it unless it is long.
    #[inline(always)]
    pub fn prefetch_item(&self, seen: LocationHint) {
        if let Some(location) = seen.location {
            self.heap.prefetch(location);
        }
    }

    /// Returns the short string under `key` at `now` and records a use, if the hint leads to it. Otherwise
    /// [`get`](Self::get) gives the answer.
    #[inline(always)]
    pub fn get_with_hint(&mut self, key: &Key, seen: LocationHint, now: u64) -> Option<&[u8]> {
        let location = self.check_hint(seen)?;
        let space = self.keyspaces.current(key.space);
        let slot = self.heap.at_mut(location);
        let item = Item(&*slot);
        let head = item.header_if(space, key.bytes)?;
        if head.form() != Form::Short || item.expires_at().is_some_and(|at| at <= now) {
            return None;
        }
        self.evict.record_use(Item(&mut *slot), head.access(), now, &mut self.rng);
        Some(head.value_of(slot))
    }

    /// Overwrites the string under `key` if the hint leads to it, the length is the same, and nothing but the value
    /// changes. Otherwise returns false and changes nothing, and [`set`](Self::set) does the work.
    #[inline(always)]
    pub fn set_with_hint(&mut self, key: &Key, seen: LocationHint, value: &[u8], now: u64) -> bool {
        let Some(location) = self.check_hint(seen) else { return false };
        let space = self.keyspaces.current(key.space);
        let mut item = Item(self.heap.at_mut(location));
        let Some(head) = item.header_if(space, key.bytes) else { return false };
        if !head.is_plain() || head.form() != Form::Short || head.value_len() != value.len() {
            return false;
        }
        // The value's place is derived from the whole header, and `set_access` writes a part of it. Reading the header
        // after that write would stall on the store, so the value is written first.
        item.value_mut().copy_from_slice(value);
        item.set_access(self.evict.updated_access(Some(head.access()), now, 0));
        self.note_write(key.hash, location);
        true
    }

    /// Returns the location of the hint if it is still valid.
    #[inline(always)]
    pub(in crate::store) fn check_hint(&self, seen: LocationHint) -> Option<Location> {
        seen.location.filter(|_| seen.released == self.heap.released())
    }
}
