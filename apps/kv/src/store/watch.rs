//! Watched keys (`WATCH`).

use crate::store::KEYSPACES;
use std::collections::BTreeMap;

/// Table of the watched keys of a shard, by hash.
///
/// Keys with equal hashes share an entry: a change of either counts as a change of both, so a transaction may fail
/// unnecessarily, which is harmless. The table is a tree because clients decide its size: a growing hash table would
/// move all entries at once.
#[derive(Default)]
pub(crate) struct Watches {
    keys: BTreeMap<u64, Watch>,
    /// Number of changes of watched keys.
    changes: u64,
    flushes: [u64; KEYSPACES],
}

struct Watch {
    by: usize,
    version: u64,
}

impl Watches {
    /// Adds a watch of the key. Returns the version of the key.
    pub fn watch(&mut self, hash: u64) -> u64 {
        let watch = self.keys.entry(hash).or_insert(Watch { by: 0, version: self.changes });
        watch.by += 1;
        watch.version
    }

    pub fn unwatch(&mut self, hash: u64) {
        if let Some(watch) = self.keys.get_mut(&hash) {
            watch.by -= 1;
            if watch.by == 0 {
                self.keys.remove(&hash);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the version of a watched key, which differs after every change except a flush of its keyspace.
    pub fn version(&self, hash: u64) -> u64 {
        self.keys.get(&hash).map_or(0, |watch| watch.version)
    }

    #[inline]
    pub fn changed(&mut self, hash: u64) {
        if !self.keys.is_empty() {
            self.note(hash);
        }
    }

    #[cold]
    fn note(&mut self, hash: u64) {
        if let Some(watch) = self.keys.get_mut(&hash) {
            self.changes += 1;
            watch.version = self.changes;
        }
    }

    /// Notes a flush of `space`, in a time that does not depend on the number of watched keys.
    pub fn flushed(&mut self, space: u8) {
        self.flushes[usize::from(space)] += 1;
    }

    pub fn flushes(&self, space: u8) -> u64 {
        self.flushes[usize::from(space)]
    }
}
