//! Keys and values of one shard.

mod error;
mod export_sync;
mod index;
mod keyspaces;
mod memory;
mod reclaim;
mod stats;
mod values;
mod watch;

pub use crate::value::{Long, Str, Value};
pub use error::Error;
pub use index::LocationHint;
pub use index::hash::{HashBatch, KeyHasher};
pub use keyspaces::{DATABASES, KEYSPACES};
pub use memory::heap::MAX_SHARD;
pub use memory::item::ItemMeta;
pub use memory::long_value::LongWriter;
pub use reclaim::eviction::{Evictable, EvictionPolicy};
pub use stats::ShardStats;
pub use values::fetch::Fetched;
pub use values::keys::DumpedValue;

use crate::export::Writer;
use index::Index;
use keyspaces::Keyspaces;
use linerate_bypass::arena::{Arena, ArenaConfig};
use memory::Location;
use memory::heap::Heap;
use memory::item::{Form, Item, ItemHeader};
use memory::slab::Slab;
use reclaim::expiry_wheel::Wheel;
use reclaim::lost_slots::LostSlots;
use std::sync::Arc;
use values::hashes::table::Table;
use watch::Watches;

/// Item size assumed for the initial size of the index. The index grows if items are smaller.
const USUAL_ITEM: usize = 128;

/// Configuration of a store.
#[derive(Debug, Clone)]
pub struct Config {
    /// Memory limit in bytes, for everything the store holds.
    pub memory: usize,
    /// Eviction policy at the memory limit.
    pub evict: EvictionPolicy,
    /// Secret of the key hash. No client may learn it.
    pub key: [u8; 16],
    /// Length from which a value is stored in the arena, at most [`LONG_THRESHOLD`].
    pub long: usize,
    /// Arena shared by all shards.
    pub arena: Arena,
    /// Puts the cluster slots of keys into their hashes.
    pub has_slots: bool,
}

/// Largest and default [`Config::long`].
pub const LONG_THRESHOLD: usize = 4096;

impl Config {
    /// Creates a configuration with a private arena in ordinary memory and without eviction.
    ///
    /// # Panics
    /// Panics if the system refuses the memory.
    pub fn new(memory: usize) -> Self {
        let arena = Arena::new(ArenaConfig { bytes: memory.next_multiple_of(1 << 20) + (2 << 20), hugepages: false });
        Config {
            memory,
            evict: EvictionPolicy::None,
            key: std::array::from_fn(|_| fastrand::u8(..)),
            long: LONG_THRESHOLD,
            has_slots: false,
            arena: arena.expect("memory for an arena"),
        }
    }
}

/// Type of a value (`TYPE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    String,
    Hash,
}

/// Key and its hash.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    pub space: u8,
    pub bytes: &'a [u8],
    hash: u64,
}

impl<'a> Key<'a> {
    /// Creates a key of `space` whose hash a [`KeyHasher`] computed earlier.
    pub(crate) fn with_hash(space: u8, bytes: &'a [u8], hash: u64) -> Self {
        Key { space, bytes, hash }
    }

    /// Returns the hash, which is the same in all shards.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// Expiry time of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Expiry of the replaced value, or never.
    Keep,
    Never,
    /// Milliseconds on the clock that the caller passes as `now`.
    At(u64),
}

/// Numbers of items the store removed on its own.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Expired items.
    pub expired: u64,
    /// Items evicted at the memory limit.
    pub evicted: u64,
}

/// Keys and values of one shard.
pub struct Store {
    index: Index,
    heap: Heap,
    wheel: Wheel,
    longs: Slab<Long>,
    /// Large hashes.
    tables: Slab<Table>,
    /// Deleted large hashes whose buckets are not freed yet.
    dead_tables: Vec<u32>,
    /// Number of changes of large hashes.
    table_changes: u64,
    /// Bytes of long values and large hashes outside the heap.
    external_bytes: usize,
    keyspaces: Keyspaces,
    watches: Watches,
    /// RDMA-readable copy of short strings.
    export: Option<Box<Writer>>,
    /// True if there is an export or a watched key. Writes test only this flag.
    has_observers: bool,
    evict: EvictionPolicy,
    memory: usize,
    long: usize,
    hasher: KeyHasher,
    rng: fastrand::Rng,
    /// Counters that other workers read.
    stats: Arc<ShardStats>,
    last_cas: u64,
    /// Index cursor of the sweep for flushed items.
    sweep_cursor: u64,
    /// Slots that this server has lost, whose keys are being removed.
    lost_slots: Option<Box<LostSlots>>,
    /// Empty between calls.
    scratch_locations: Vec<Location>,
    scratch_labels: Vec<u32>,
    /// Hash of the key that must not be evicted.
    pinned: Option<u64>,
    /// Empty between calls.
    scratch: Vec<u8>,
    scratch_other: Vec<u8>,
}

impl Store {
    /// Length limit of a key and of a field name.
    pub const LONGEST_KEY: usize = 4000;
    /// Recommended budget of a [`tick`](Self::tick): a few microseconds of work.
    pub const TICK: usize = 32;

    pub fn new(config: &Config, now: u64) -> Self {
        Store::with_stats(config, now, Arc::default())
    }

    /// Creates an empty store at `now` milliseconds that counts in `stats`, which no other store may use.
    pub fn with_stats(config: &Config, now: u64, stats: Arc<ShardStats>) -> Self {
        let seed = u64::from_le_bytes(*config.key.first_chunk().expect("a key has 16 bytes"));
        Store {
            index: Index::new(config.memory / USUAL_ITEM),
            heap: Heap::new(config.arena.clone()),
            wheel: Wheel::new(now),
            longs: Slab::new(),
            tables: Slab::new(),
            dead_tables: Vec::new(),
            table_changes: 0,
            external_bytes: 0,
            keyspaces: Keyspaces::new(stats.clone()),
            watches: Watches::default(),
            export: None,
            has_observers: false,
            evict: config.evict,
            memory: config.memory,
            long: config.long.min(LONG_THRESHOLD),
            hasher: KeyHasher::new(&config.key).with_slots(config.has_slots),
            rng: fastrand::Rng::with_seed(seed),
            stats,
            last_cas: 0,
            sweep_cursor: 0,
            lost_slots: None,
            scratch_locations: Vec::new(),
            scratch_labels: Vec::new(),
            pinned: None,
            scratch: Vec::new(),
            scratch_other: Vec::new(),
        }
    }

    /// Returns `bytes` as a key of `space`, which is below [`KEYSPACES`].
    #[inline]
    pub fn key<'a>(&self, space: u8, bytes: &'a [u8]) -> Key<'a> {
        self.hasher().key(space, bytes)
    }

    pub fn used(&self) -> usize {
        self.heap.used() + self.index.bytes() + self.longs.bytes() + self.tables.bytes() + self.external_bytes
    }

    /// Returns the bytes in use by class. The sum equals [`used`](Self::used).
    pub fn memory_by_class(&self) -> [(&'static str, usize); 3] {
        [
            ("items", self.heap.used()),
            ("index", self.index.bytes()),
            ("long_values_and_hashes", self.longs.bytes() + self.tables.bytes() + self.external_bytes),
        ]
    }

    /// Returns the numbers of expired and evicted items.
    pub fn counts(&self) -> Counts {
        self.stats.counts()
    }

    /// Returns the counters that other workers read.
    pub fn stats(&self) -> &Arc<ShardStats> {
        &self.stats
    }

    /// Publishes the [bytes in use](Self::used) in the [counters](Self::stats).
    pub fn publish_used(&self) {
        self.stats.set_used(self.used());
    }

    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Sets the memory limit. Usage above the limit shrinks step by step.
    pub fn set_memory(&mut self, memory: usize) {
        self.memory = memory;
    }

    pub fn evict(&self) -> EvictionPolicy {
        self.evict
    }

    pub fn set_evict(&mut self, evict: EvictionPolicy) {
        self.evict = evict;
    }

    #[inline]
    fn item(&self, location: Location) -> Item<&[u8]> {
        Item(self.heap.at(location))
    }

    /// Returns the location of the item of `key` if it has not expired at `now`.
    #[inline]
    fn find(&mut self, key: &Key, now: u64) -> Option<Location> {
        self.find_with_header(key, now).map(|(location, _)| location)
    }

    /// [`find`](Self::find) that also returns the item's header.
    #[inline(always)]
    fn find_with_header(&mut self, key: &Key, now: u64) -> Option<(Location, ItemHeader)> {
        let space = self.keyspaces.current(key.space);
        let (location, head) = self.index.find_map(key.hash, |location| {
            self.item(location).header_if(space, key.bytes).map(|head| (location, head))
        })?;
        if head.expires() && self.item(location).expires_at().is_some_and(|at| at <= now) {
            self.expire_item(key, location);
            return None;
        }
        Some((location, head))
    }

    /// Removes the expired item at `location`.
    #[cold]
    fn expire_item(&mut self, key: &Key, location: Location) {
        self.stats.add_expired(1);
        self.watches.changed(key.hash);
        self.remove_item(key.hash, location);
    }

    /// Returns the location of the item of `key`, expired or not.
    #[inline]
    fn find_ignoring_expiry(&self, key: &Key) -> Option<Location> {
        let space = self.keyspaces.current(key.space);
        self.index.find(key.hash, |location| self.item(location).header_if(space, key.bytes).is_some())
    }

    /// [`find`](Self::find) that also records a use.
    #[inline]
    fn find_and_touch(&mut self, key: &Key, now: u64) -> Option<Location> {
        let (location, head) = self.find_with_header(key, now)?;
        self.evict.record_use(Item(self.heap.at_mut(location)), head.access(), now, &mut self.rng);
        Some(location)
    }

    fn hash_at(&self, location: Location) -> u64 {
        let item = self.item(location);
        self.key(self.keyspaces.of_id(item.space()), item.key()).hash
    }

    /// Removes an item that no command deletes: it has expired, is evicted or flushed, or is in a lost slot.
    fn reclaim_item(&mut self, location: Location) {
        let hash = self.hash_at(location);
        if !self.keyspaces.is_flushed(self.item(location).space()) {
            self.watches.changed(hash);
        }
        self.remove_item(hash, location);
    }

    fn unlink(&mut self, hash: u64, location: Location) {
        self.note_removal(location);
        self.index.remove(hash, location);
        self.keyspaces.remove_item_of(self.item(location).space());
    }

    fn remove_item(&mut self, hash: u64, location: Location) {
        self.unlink(hash, location);
        self.release_value(location);
        self.free(location);
    }

    /// Releases the part of the value that is outside the item at `location`.
    fn release_value(&mut self, location: Location) {
        let item = self.item(location);
        match item.form() {
            Form::Short | Form::Bucket => {}
            Form::Long => self.remove_long(item.number()),
            Form::Fields => self.release_fields(location, values::hashes::HEADER),
            Form::Buckets => self.defer_free(item.number()),
        }
    }

    /// Frees the item at `location`, which the index no longer contains.
    fn free(&mut self, location: Location) {
        let item = self.item(location);
        if item.expires() {
            self.keyspaces.remove_expiring(item.space());
            self.wheel.remove(location, &mut self.heap);
        }
        self.heap.release(location);
    }
}

#[cfg(test)]
mod tests;
