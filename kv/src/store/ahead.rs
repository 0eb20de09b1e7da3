//! Keys are looked at before they are asked for, so that what has to be read is here when they are.
//!
//! The part of the index is asked for that leads to a key, and when it is here, the item is, which is seen there; by then
//! others' keys have been looked at. What was seen holds until an item goes or is moved.

use super::index::Location;
use super::item::{Form, Head, Item};
use super::strings::string;
use super::{Error, Key, Store, Str};
use linerate_bypass::{prefetch, prefetch_bytes};

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
        if let Some(first) = self.index.first(hash) {
            prefetch(first);
        }
    }

    /// Asks for the item under `hash`, if there is one, when the index is here: all of it, if it is not long.
    #[inline(always)]
    pub fn prefetch_item(&self, hash: u64) -> Seen {
        /// Where more is read, the processor sees that by itself.
        const MOST: usize = 256;
        // The first whose tag is the same is seldom another.
        let location = self.index.find(hash, |_| true);
        if let Some(location) = location {
            let slot = self.heap.slot(location);
            prefetch_bytes(&slot[..slot.len().min(MOST)]);
        }
        Seen { location, released: self.heap.released() }
    }

    /// As [`get`](Self::get), of a key whose item may have been seen.
    #[inline(always)]
    pub fn get_seen(&mut self, key: &Key, seen: Seen, now: u64) -> Result<Option<Str<'_>>, Error> {
        let Some((location, head)) = self.seen(key, seen) else { return self.get(key, now) };
        let slot = self.heap.at_mut(location);
        self.evict.note_use(Item(&mut *slot), head.access(), now, &mut self.random);
        string(&self.longs, head, slot).map(Some)
    }

    /// Writes `value` over a string that may have been seen, if it is `key`'s, as long, and nothing but its value changes. Returns
    /// whether it was; otherwise nothing has changed, and [`set`](Self::set) may still do it.
    #[inline(always)]
    pub fn set_seen(&mut self, key: &Key, seen: Seen, value: &[u8], now: u64) -> bool {
        let Some((location, head)) = self.seen(key, seen) else { return false };
        if !head.is_bare() || head.form() != Form::Short || head.value_len() != value.len() {
            return false;
        }
        let mut item = Item(self.heap.at_mut(location));
        item.set_access(self.evict.note(Some(head.access()), now, 0));
        item.value_mut().copy_from_slice(value);
        self.wrote(key.hash, location);
        true
    }

    /// Where the item of `key` lies that was seen, and how it begins, if nothing has to be asked about it: it never expires.
    #[inline(always)]
    fn seen(&self, key: &Key, seen: Seen) -> Option<(Location, Head)> {
        let location = seen.location.filter(|_| seen.released == self.heap.released())?;
        let head = self.item(location).head_if(self.spaces.current(key.space), key.bytes)?;
        (!head.expires()).then_some((location, head))
    }
}
