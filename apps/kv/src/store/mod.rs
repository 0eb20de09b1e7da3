//! One shard's keys and values.

mod error;
mod export_sync;
mod index;
mod keyspaces;
mod memory;
mod reclaim;
mod stats;
mod values;
mod watch;

pub use error::Error;
pub use index::hasher::Keys;
pub use index::lookahead::Seen;
pub use index::siphash::Batch;
pub use keyspaces::SPACES;
pub use memory::item::Tag;
pub use memory::long_value::{Long, LongWriter, Str, Value};
pub use reclaim::eviction::{Evict, From};
pub use stats::ShardStats;
pub use values::fetch::Fetched;
pub use values::keys::Owned;

use crate::export::Writer;
use index::{Index, Location};
use keyspaces::Spaces;
use linerate_bypass::arena::{Arena, ArenaConfig};
use memory::heap::Heap;
use memory::item::{Form, Head, Item};
use memory::slab::Slab;
use reclaim::expiry_wheel::Wheel;
use std::sync::Arc;
use values::hashes::table::Table;
use watch::Watches;

/// Items of about this size make an index of the right size from the start; it grows for smaller ones.
const USUAL_ITEM: usize = 128;

/// What a store is made of.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes that it may take, in all.
    pub memory: usize,
    /// What goes when they are taken.
    pub evict: Evict,
    /// The key of the hash, which no client must know.
    pub key: [u8; 16],
    /// Values of so many bytes lie in the arena; at most [`LONG`].
    pub long: usize,
    /// The memory of all shards' values.
    pub arena: Arena,
}

/// The most that [`Config::long`] may be, and usually is.
pub const LONG: usize = 4096;

impl Config {
    /// A store of its own in ordinary memory, which refuses what it has no room for.
    ///
    /// # Panics
    /// If the system does not give the memory.
    pub fn new(memory: usize) -> Self {
        let arena = Arena::new(ArenaConfig { bytes: memory.next_multiple_of(1 << 20) + (2 << 20), hugepages: false });
        Config {
            memory,
            evict: Evict::None,
            key: std::array::from_fn(|_| fastrand::u8(..)),
            long: LONG,
            arena: arena.expect("memory for an arena"),
        }
    }
}

/// What is under a key, as `TYPE` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    String,
    /// A hash.
    Hash,
}

/// A key, with its hash.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    /// Which keyspace it is in.
    pub space: u8,
    /// The key itself.
    pub bytes: &'a [u8],
    hash: u64,
}

impl<'a> Key<'a> {
    /// Creates a key of `space` with the hash that [`Keys`] computed of it before.
    pub(crate) fn with_hash(space: u8, bytes: &'a [u8], hash: u64) -> Self {
        Key { space, bytes, hash }
    }

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
    longs: Slab<Long>,
    /// Large hashes.
    tables: Slab<Table>,
    /// Those of them that are nobody's.
    doomed: Vec<u32>,
    /// Number of changes of large hashes.
    table_changes: u64,
    /// Bytes that they take beside the heap.
    beside: usize,
    spaces: Spaces,
    watches: Watches,
    /// What peers may read.
    export: Option<Box<Writer>>,
    /// Whether there is an export, or a watched key: who writes asks this alone.
    is_heard: bool,
    evict: Evict,
    memory: usize,
    long: usize,
    keys: Keys,
    random: fastrand::Rng,
    /// Counters for other workers.
    stats: Arc<ShardStats>,
    /// The unique number of the last tag.
    unique: u64,
    /// Where flushed items are looked for next.
    sweep: u64,
    /// Empty between calls.
    found: Vec<Location>,
    labels: Vec<u32>,
    /// The hash of the key that may not be evicted.
    pinned: Option<u64>,
    /// Empty between calls.
    scratch: Vec<u8>,
    scratch_beside: Vec<u8>,
}

impl Store {
    /// Bytes of the longest key, and of the longest name of a field.
    pub const LONGEST_KEY: usize = 4000;
    /// Items that a [`tick`](Self::tick) is best about: some microseconds' work.
    pub const TICK: usize = 32;

    /// An empty store, at `now` milliseconds.
    pub fn new(config: &Config, now: u64) -> Self {
        Store::with_stats(config, now, Arc::default())
    }

    /// An empty store, at `now` milliseconds, that counts in `stats`, which no other store does.
    pub fn with_stats(config: &Config, now: u64, stats: Arc<ShardStats>) -> Self {
        let seed = u64::from_le_bytes(*config.key.first_chunk().expect("a key has 16 bytes"));
        Store {
            index: Index::new(config.memory / USUAL_ITEM),
            heap: Heap::new(config.arena.clone()),
            wheel: Wheel::new(now),
            longs: Slab::new(),
            tables: Slab::new(),
            doomed: Vec::new(),
            table_changes: 0,
            beside: 0,
            spaces: Spaces::new(stats.clone()),
            watches: Watches::default(),
            export: None,
            is_heard: false,
            evict: config.evict,
            memory: config.memory,
            long: config.long.min(LONG),
            keys: Keys::new(&config.key),
            random: fastrand::Rng::with_seed(seed),
            stats,
            unique: 0,
            sweep: 0,
            found: Vec::new(),
            labels: Vec::new(),
            pinned: None,
            scratch: Vec::new(),
            scratch_beside: Vec::new(),
        }
    }

    /// `bytes` as a key of `space`, which is below [`SPACES`].
    #[inline]
    pub fn key<'a>(&self, space: u8, bytes: &'a [u8]) -> Key<'a> {
        self.keys().key(space, bytes)
    }

    /// Bytes that it takes.
    pub fn used(&self) -> usize {
        self.heap.used() + self.index.bytes() + self.longs.bytes() + self.tables.bytes() + self.beside
    }

    /// What has gone without being asked to.
    pub fn counts(&self) -> Counts {
        self.stats.counts()
    }

    /// Counters for other workers.
    pub fn stats(&self) -> &Arc<ShardStats> {
        &self.stats
    }

    /// Stores the [bytes that it takes](Self::used) in its [counters](Self::stats).
    pub fn publish_used(&self) {
        self.stats.set_used(self.used());
    }

    /// Bytes that it may take.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// It may take `memory` bytes from now on. If it takes more, that changes piece by piece.
    pub fn set_memory(&mut self, memory: usize) {
        self.memory = memory;
    }

    /// What goes when memory is full.
    pub fn evict(&self) -> Evict {
        self.evict
    }

    /// `evict` goes when memory is full, from now on.
    pub fn set_evict(&mut self, evict: Evict) {
        self.evict = evict;
    }

    /// The item at `location`.
    #[inline]
    fn item(&self, location: Location) -> Item<&[u8]> {
        Item(self.heap.at(location))
    }

    /// Where the item of `key` lies, which has not expired at `now`.
    #[inline]
    fn find(&mut self, key: &Key, now: u64) -> Option<Location> {
        self.look(key, now).map(|(location, _)| location)
    }

    /// As [`find`](Self::find), and how the item begins.
    #[inline(always)]
    fn look(&mut self, key: &Key, now: u64) -> Option<(Location, Head)> {
        let space = self.spaces.current(key.space);
        let (location, head) = self.index.find_map(key.hash, |location| {
            self.item(location).head_if(space, key.bytes).map(|head| (location, head))
        })?;
        if head.expires() && self.item(location).expires_at().is_some_and(|at| at <= now) {
            self.let_expire(key, location);
            return None;
        }
        Some((location, head))
    }

    /// The item at `location`, of `key`, has expired.
    #[cold]
    fn let_expire(&mut self, key: &Key, location: Location) {
        self.stats.add_expired(1);
        self.watches.changed(key.hash);
        self.drop_item(key.hash, location);
    }

    /// Where the item of `key` lies, whether or not it has expired.
    #[inline]
    fn find_any(&self, key: &Key) -> Option<Location> {
        let space = self.spaces.current(key.space);
        self.index.find(key.hash, |location| self.item(location).head_if(space, key.bytes).is_some())
    }

    /// As [`find`](Self::find); a use is noted.
    #[inline]
    fn find_used(&mut self, key: &Key, now: u64) -> Option<Location> {
        let (location, head) = self.look(key, now)?;
        self.evict.note_use(Item(self.heap.at_mut(location)), head.access(), now, &mut self.random);
        Some(location)
    }

    /// The hash of the key of the item at `location`.
    fn hash_at(&self, location: Location) -> u64 {
        let item = self.item(location);
        self.key(self.spaces.outer(item.space()), item.key()).hash
    }

    /// Lets the item at `location` go, unasked.
    fn discard(&mut self, location: Location) {
        let hash = self.hash_at(location);
        if !self.spaces.is_flushed(self.item(location).space()) {
            self.watches.changed(hash);
        }
        self.drop_item(hash, location);
    }

    /// Takes the item at `location` out of the index.
    fn unlink(&mut self, hash: u64, location: Location) {
        self.withdraw(location);
        self.index.remove(hash, location);
        self.spaces.removed(self.item(location).space());
    }

    fn drop_item(&mut self, hash: u64, location: Location) {
        self.unlink(hash, location);
        self.release_value(location);
        self.free(location);
    }

    /// Lets that part of the item at `location` go which lies elsewhere.
    fn release_value(&mut self, location: Location) {
        let item = self.item(location);
        match item.form() {
            Form::Short | Form::Bucket => {}
            Form::Long => self.drop_long(item.number()),
            Form::Fields => self.release_fields(location, values::hashes::HEAD),
            Form::Buckets => self.doom(item.number()),
        }
    }

    /// Gives back the memory of the item at `location`, which is in the table no more.
    fn free(&mut self, location: Location) {
        let item = self.item(location);
        if item.expires() {
            self.spaces.expires_no_more(item.space());
            self.wheel.remove(location, &mut self.heap);
        }
        self.heap.release(location);
    }
}

#[cfg(test)]
mod tests;
