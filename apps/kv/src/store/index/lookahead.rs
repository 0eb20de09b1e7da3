//! Keys are looked at before they are asked for, so that what has to be read is here when they are.
//!
//! The part of the index is asked for that leads to a key, and when it is here, the item is, which is seen there; by then
//! others' keys have been looked at. What was seen holds until an item goes or is moved.

use crate::store::index::Location;
use crate::store::memory::item::{Form, Item};
use crate::store::{Key, Store};

/// Where an item was that may be a key's.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    location: Option<Location>,
    /// Items that had gone before.
    released: u32,
}

impl Store {
    /// Asks for the part of the index that leads to keys of `hash`.
    #[inline(always)]
    pub fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Where the item under `hash` is, if there is one, when the index is here.
    #[inline(always)]
    pub fn see(&self, hash: u64) -> Seen {
        Seen { location: self.index.likely(hash), released: self.heap.released() }
    }

    /// Asks for an item that has just been seen: all of it, if it is not long.
    #[inline(always)]
    pub fn prefetch_item(&self, seen: Seen) {
        if let Some(location) = seen.location {
            self.heap.prefetch(location);
        }
    }

    /// The short string under `key` at `now`, if it has been seen: it has been used once more. Otherwise [`get`](Self::get) knows
    /// what there is.
    #[inline(always)]
    pub fn get_seen(&mut self, key: &Key, seen: Seen, now: u64) -> Option<&[u8]> {
        let location = self.still(seen)?;
        let space = self.spaces.current(key.space);
        let slot = self.heap.at_mut(location);
        let item = Item(&*slot);
        let head = item.head_if(space, key.bytes)?;
        if head.form() != Form::Short || item.expires_at().is_some_and(|at| at <= now) {
            return None;
        }
        self.evict.note_use(Item(&mut *slot), head.access(), now, &mut self.random);
        Some(head.value_of(slot))
    }

    /// Writes `value` over a string that may have been seen, if it is `key`'s, as long, and nothing but its value changes. Returns
    /// whether it was; otherwise nothing has changed, and [`set`](Self::set) may still do it.
    #[inline(always)]
    pub fn set_seen(&mut self, key: &Key, seen: Seen, value: &[u8], now: u64) -> bool {
        let Some(location) = self.still(seen) else { return false };
        let space = self.spaces.current(key.space);
        let mut item = Item(self.heap.at_mut(location));
        let Some(head) = item.head_if(space, key.bytes) else { return false };
        if !head.is_bare() || head.form() != Form::Short || head.value_len() != value.len() {
            return false;
        }
        // In this order: where the value is is read from the head as a whole, of which a part is written then.
        item.value_mut().copy_from_slice(value);
        item.set_access(self.evict.note(Some(head.access()), now, 0));
        self.wrote(key.hash, location);
        true
    }

    /// Where an item was seen, if it is one still.
    #[inline(always)]
    fn still(&self, seen: Seen) -> Option<Location> {
        seen.location.filter(|_| seen.released == self.heap.released())
    }
}
