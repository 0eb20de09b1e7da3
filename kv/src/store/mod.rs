//! One shard's keys and values.

mod evict;
mod heap;
mod index;
mod item;
mod wheel;

pub use evict::{Evict, From};

use heap::Heap;
use index::{Index, Location};
use item::{Draft, Item, Kind, Tag};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use thiserror::Error;
use wheel::Wheel;

/// Items of about this size make an index of the right size from the start; it grows for smaller ones.
const USUAL_ITEM: usize = 128;

/// What a store is made of.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes that it may take, in all.
    pub memory: usize,
    /// What goes when they are taken.
    pub evict: Evict,
    /// The key of the hash, which no client must know.
    pub key: [u8; 16],
}

/// There is no memory for it, and nothing may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("memory is full, and nothing may be evicted")]
pub struct Full;

/// A key, with its hash.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    /// Which keyspace it is in.
    pub space: u8,
    /// The key itself.
    pub bytes: &'a [u8],
    hash: u64,
}

impl Key<'_> {
    /// Its hash, by the key that all shards have.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// When something is to expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// When it did before; never, if it is new.
    Keep,
    /// Never.
    Never,
    /// At so many milliseconds of the clock by which the store is asked.
    At(u64),
}

/// What happened to items that nobody asked to go.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Items that expired.
    pub expired: u64,
    /// Items that went because memory was full.
    pub evicted: u64,
}

/// One shard's keys and values.
pub struct Store {
    index: Index,
    heap: Heap,
    wheel: Wheel,
    evict: Evict,
    memory: usize,
    hasher: SipHasher13,
    random: fastrand::Rng,
    counts: Counts,
}

impl Store {
    /// An empty store, at `now` milliseconds.
    pub fn new(config: &Config, now: u64) -> Self {
        let seed = u64::from_le_bytes(*config.key.first_chunk().expect("a key has 16 bytes"));
        Store {
            index: Index::new(config.memory / USUAL_ITEM),
            heap: Heap::new(config.memory),
            wheel: Wheel::new(now),
            evict: config.evict,
            memory: config.memory,
            hasher: SipHasher13::new_with_key(&config.key),
            random: fastrand::Rng::with_seed(seed),
            counts: Counts::default(),
        }
    }

    /// `bytes` as a key of `space`.
    pub fn key<'a>(&self, space: u8, bytes: &'a [u8]) -> Key<'a> {
        let mut hasher = self.hasher;
        hasher.write(bytes);
        hasher.write_u8(space);
        Key { space, bytes, hash: hasher.finish() }
    }

    /// Items that there are, those included that have expired and have not come up.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it takes.
    pub fn used(&self) -> usize {
        self.heap.used() + self.index.bytes()
    }

    /// What has gone without being asked to.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The value under `key` at `now`.
    pub fn get(&mut self, key: &Key, now: u64) -> Option<&[u8]> {
        let location = self.find(key, now)?;
        let random = if matches!(self.evict, Evict::Lfu(_)) { self.random.u64(..) } else { 0 };
        let evict = self.evict;
        let mut item = Item(self.heap.slot_mut(location));
        let access = evict.note(Some(item.access()), now, random);
        if access != item.access() {
            item.set_access(access);
        }
        Some(Item(self.heap.slot(location)).into_value())
    }

    /// When what is under `key` at `now` expires: `None` if nothing is, `Some(None)` if it does not.
    pub fn expires_at(&mut self, key: &Key, now: u64) -> Option<Option<u64>> {
        let location = self.find(key, now)?;
        Some(Item(self.heap.slot(location)).expires_at())
    }

    /// Puts `value` under `key`.
    pub fn set(&mut self, key: &Key, value: &[u8], expiry: Expiry, now: u64) -> Result<(), Full> {
        self.write(key, Kind::Short, value, None, expiry, now)
    }

    /// Takes away what is under `key`. Returns whether anything was, at `now`.
    pub fn remove(&mut self, key: &Key, now: u64) -> bool {
        let Some(location) = self.find(key, now) else { return false };
        self.drop_item(key.hash, location);
        true
    }

    /// What is under `key` expires at `at`, or never. Returns whether anything is.
    pub fn set_expiry(&mut self, key: &Key, at: Option<u64>, now: u64) -> Result<bool, Full> {
        let Some(location) = self.find(key, now) else { return Ok(false) };
        let item = Item(self.heap.slot(location));
        match (item.expires(), at) {
            (false, None) => {}
            (true, Some(at)) => self.put_off(location, at),
            // The item gets a part more, or has one less: it is another.
            _ => {
                let (kind, tag, value) = (item.kind(), item.tag(), item.value().to_vec());
                self.write(key, kind, &value, tag, at.map_or(Expiry::Never, Expiry::At), now)?;
            }
        }
        Ok(true)
    }

    /// Lets up to `most` items expire whose time has come by `now`. Returns whether all have.
    pub fn expire(&mut self, now: u64, most: usize) -> bool {
        for _ in 0..most {
            let Some(location) = self.wheel.next(now, &mut self.heap) else { return true };
            // Put in again, to be taken out by whoever lets it go.
            self.wheel.insert(location, &mut self.heap);
            if Item(self.heap.slot(location)).expires_at().is_some_and(|at| at <= now) {
                self.counts.expired += 1;
                self.discard(location);
            }
        }
        false
    }

    /// Calls `visit` with keys of `space` from `cursor` on, as [`Index::scan`] does.
    pub fn scan(&self, space: u8, cursor: u64, most: usize, now: u64, mut visit: impl FnMut(&[u8])) -> u64 {
        self.index.scan(cursor, most, |location| {
            let item = Item(self.heap.slot(location));
            if item.space() == space && item.expires_at().is_none_or(|at| at > now) {
                visit(item.key());
            }
        })
    }

    /// Where the item of `key` lies, which has not expired at `now`.
    #[inline]
    fn find(&mut self, key: &Key, now: u64) -> Option<Location> {
        let location = self.index.find(key.hash, |location| {
            let item = Item(self.heap.slot(location));
            item.space() == key.space && item.key() == key.bytes
        })?;
        if Item(self.heap.slot(location)).expires_at().is_some_and(|at| at <= now) {
            self.counts.expired += 1;
            self.drop_item(key.hash, location);
            return None;
        }
        Some(location)
    }

    fn write(
        &mut self,
        key: &Key,
        kind: Kind,
        value: &[u8],
        tag: Option<Tag>,
        expiry: Expiry,
        now: u64,
    ) -> Result<(), Full> {
        let old = self.find(key, now);
        let expires_at = match (expiry, old) {
            (Expiry::Never, _) | (Expiry::Keep, None) => None,
            (Expiry::At(at), _) => Some(at),
            (Expiry::Keep, Some(old)) => Item(self.heap.slot(old)).expires_at(),
        };
        let draft =
            Draft { kind, space: key.space, key: key.bytes, expires: expires_at.is_some(), tag, len: value.len() };
        let access = self.evict.note(None, now, 0);
        if let Some(old) = old {
            let slot = self.heap.slot_mut(old);
            let mut item = Item(&mut *slot);
            let is_alike =
                item.kind() == kind && item.expires() == draft.expires && item.tag().is_some() == tag.is_some();
            if is_alike && Heap::slot_len(draft.size()) == item.0.len() {
                item.set_value_len(value.len());
                item.value_mut().copy_from_slice(value);
                if let Some(at) = expires_at {
                    self.put_off(old, at);
                }
                return Ok(());
            }
        }
        // What is overwritten may be what goes.
        self.make_room(draft.size(), now)?;
        let location = self.heap.allocate(draft.size()).ok_or(Full)?;
        let slot = self.heap.slot_mut(location);
        draft.write(slot).copy_from_slice(value);
        let mut item = Item(slot);
        item.set_access(access);
        if let Some(at) = expires_at {
            item.set_expires_at(at);
            self.wheel.insert(location, &mut self.heap);
        }
        match self.find_other(key, location) {
            Some(old) => {
                self.index.relocate(key.hash, old, location);
                self.free(old);
            }
            None => self.index.insert(key.hash, location),
        }
        Ok(())
    }

    /// The item of `key` that is in the table, if there is one.
    fn find_other(&self, key: &Key, but: Location) -> Option<Location> {
        self.index.find(key.hash, |location| {
            let item = Item(self.heap.slot(location));
            location != but && item.space() == key.space && item.key() == key.bytes
        })
    }

    /// The item at `location`, which expires some time, does so at `at`.
    fn put_off(&mut self, location: Location, at: u64) {
        if self.wheel.may_stay(location, at, &self.heap) {
            Item(self.heap.slot_mut(location)).set_expires_at(at);
        } else {
            self.wheel.remove(location, &mut self.heap);
            Item(self.heap.slot_mut(location)).set_expires_at(at);
            self.wheel.insert(location, &mut self.heap);
        }
    }

    /// Makes room for an item of `size` bytes.
    fn make_room(&mut self, size: usize, now: u64) -> Result<(), Full> {
        if size > heap::LARGEST {
            return Err(Full);
        }
        while self.heap.grows_by(size) > 0 && self.used() + heap::PAGE > self.memory {
            if !self.compact() && !self.evict_one(now) {
                return Err(Full);
            }
        }
        Ok(())
    }

    /// Empties a page whose items have room in others. Returns whether there was one.
    fn compact(&mut self) -> bool {
        let Some(page) = self.heap.sparse_page() else { return false };
        for old in page {
            let item = Item(self.heap.slot(old));
            let size = item.size();
            let Some(new) = self.heap.allocate(size) else { return false };
            let hash = self.hash_at(old);
            let expires = Item(self.heap.slot(old)).expires();
            self.heap.copy(old, new);
            if expires {
                self.wheel.moved(new, &mut self.heap);
            }
            self.index.relocate(hash, old, new);
            self.heap.release(old);
        }
        true
    }

    /// The hash of the key of the item at `location`.
    fn hash_at(&self, location: Location) -> u64 {
        let item = Item(self.heap.slot(location));
        self.key(item.space(), item.key()).hash
    }

    /// Lets the item at `location` go.
    fn discard(&mut self, location: Location) {
        self.drop_item(self.hash_at(location), location);
    }

    fn drop_item(&mut self, hash: u64, location: Location) {
        self.index.remove(hash, location);
        self.free(location);
    }

    /// Gives back the memory of the item at `location`, which is in the table no more.
    fn free(&mut self, location: Location) {
        if Item(self.heap.slot(location)).expires() {
            self.wheel.remove(location, &mut self.heap);
        }
        self.heap.release(location);
    }
}

#[cfg(test)]
mod tests;
