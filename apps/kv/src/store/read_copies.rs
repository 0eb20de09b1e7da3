//! Copies of short strings of a shard, which other workers read without a request to its worker.
//!
//! A worker that finds no copy sends a request, and the shard then makes one. Every change of the key removes the copy
//! before the reply to the change, and only a later request makes another. A copy found is therefore the value that the
//! key had at that time, and no reader sees a part of a transaction.
//!
//! A copy ends with the step of the LRU clock in which it was made. Until then, a use would not change the item, so
//! reads of copies leave the access time as reads of the shard would. Under LFU each use counts, and there are no
//! copies.

use crate::store::index::lookahead::LocationHint;
use crate::store::memory::item::{Form, Item};
use crate::store::reclaim::eviction::{EvictionPolicy, end_of_step};
use crate::store::{Key, Store};
use linerate_bypass::{CacheEntry, CacheWriter, Published, SharedCache, prefetch};
use linerate_service::inspect::ServiceMetric;
use std::io;
use std::sync::Arc;

/// Entry of the copy of a key.
pub type CopyEntry = CacheEntry;

/// Bits of a label for the keyspace. The bits above hold the end of the copy in milliseconds.
const SPACE_BITS: u32 = 8;

/// Assumed words of a copy.
const USUAL_WORDS: usize = 16;

pub(crate) type CopyWriter = CacheWriter<Published>;

/// Copies of the strings of one shard.
#[derive(Debug, Clone)]
pub struct ReadCopies(Arc<SharedCache<Published>>);

impl ReadCopies {
    /// Creates empty copies of each of `shards` shards in at least `bytes` bytes. Returns none for a single shard, or
    /// if `bytes` is 0.
    pub fn of_shards(bytes: usize, shards: usize) -> io::Result<Arc<[Self]>> {
        if bytes == 0 || shards < 2 {
            return Ok(Arc::default());
        }
        let of_shard = |_| {
            let memory = Published::new(bytes / shards, false)?;
            Ok(ReadCopies(Arc::new(SharedCache::new(memory).ok_or(io::ErrorKind::OutOfMemory)?)))
        };
        (0..shards).map(of_shard).collect()
    }

    /// Returns the approximate number of short copies for which there is room.
    pub fn capacity(&self) -> usize {
        self.0.log_words() / USUAL_WORDS
    }

    /// Prefetches the entries for `hash`.
    #[inline(always)]
    pub fn prefetch_entry(&self, hash: u64) {
        self.0.prefetch(hash, prefetch);
    }

    /// Returns the entry for `hash`, if there is one, and prefetches its copy.
    #[inline(always)]
    pub fn find(&self, hash: u64) -> Option<CopyEntry> {
        let entry = self.0.find(hash)?;
        self.0.prefetch_record(entry, prefetch);
        Some(entry)
    }

    /// Copies the value of `key` at `now` from the copy of `entry` to `out`.
    #[inline(always)]
    pub fn read<'o>(&self, entry: CopyEntry, key: &Key<'_>, now: u64, out: &'o mut [u8]) -> Option<&'o [u8]> {
        let (label, len) = self.0.read(entry, key.hash, key.bytes, out)?;
        (label as u8 == key.space && label >> SPACE_BITS > now).then(|| &out[..len])
    }

    /// Returns true if `entry`, found for `hash`, still refers to the copy of its key.
    #[inline]
    pub fn is_current(&self, hash: u64, entry: CopyEntry) -> bool {
        self.0.is_current(hash, entry)
    }
}

impl Store {
    /// Makes copies in `copies`, which belong to this shard alone.
    pub fn copy_to(&mut self, copies: &ReadCopies) {
        self.copies = Some(Box::new(CacheWriter::new(copies.0.clone())));
        self.has_observers = true;
    }

    /// Makes a copy of the short string under `key` if the hint leads to it.
    #[inline]
    pub fn make_copy(&mut self, key: &Key<'_>, seen: LocationHint, now: u64) {
        if matches!(self.evict, EvictionPolicy::Lfu(_)) {
            return;
        }
        let (Some(location), Some(copies)) = (self.check_hint(seen), &mut self.copies) else { return };
        let space = self.keyspaces.current(key.space);
        let item = Item(self.heap.at(location));
        let Some(head) = item.header_if(space, key.bytes).filter(|head| head.form() == Form::Short) else { return };
        let until = item.expires_at().unwrap_or(u64::MAX).min(end_of_step(now));
        copies.publish(key.hash, until << SPACE_BITS | u64::from(key.space), key.bytes, head.value_of(item.0));
    }

    /// Prefetches the entries of the copies for `hash`, which a change of its key or a new copy reads.
    #[inline(always)]
    pub fn prefetch_copy(&self, hash: u64) {
        if let Some(copies) = &self.copies {
            copies.cache().prefetch(hash, prefetch);
        }
    }

    /// Removes the copy of the key with the hash `hash`, if there is one.
    #[inline]
    pub(super) fn drop_copy(&mut self, hash: u64) {
        if let Some(copies) = &mut self.copies {
            copies.invalidate(hash);
        }
    }

    /// Returns the number of copies made, and their memory, if there are copies.
    pub fn copy_figures(&self) -> impl Iterator<Item = ServiceMetric> {
        let usage = self.copies.as_ref().map(|copies| copies.usage());
        usage.into_iter().flat_map(|usage| {
            [("copies made", usage.records), ("copies evicted bytes", usage.evicted), ("copies bytes", usage.used)]
                .map(|(name, value)| ServiceMetric { name, part: "", value })
        })
    }

    /// Removes all copies.
    pub(super) fn drop_copies(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.clear();
        }
    }
}
