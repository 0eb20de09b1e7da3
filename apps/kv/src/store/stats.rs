//! Counters of a shard that every worker can read without borrowing the shard.

use crate::store::{Counts, KEYSPACES};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one shard, as `INFO`, `DBSIZE` and `stats` report them.
///
/// Only the worker that holds the shard writes, so an update is a load and a store without a locked instruction. The
/// key counts and the counts of expired and evicted keys change together with the keys. A reply to a write therefore
/// implies that its counts are visible: the shard, or the reply, reached the reader through a mailbox. The bytes in use
/// are published periodically ([`Store::publish_used`](crate::store::Store::publish_used)).
///
/// The alignment keeps the counters of two shards out of one pair of cache lines that a processor fetches together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardStats {
    keys: [AtomicU64; KEYSPACES],
    expiring: [AtomicU64; KEYSPACES],
    expired: AtomicU64,
    evicted: AtomicU64,
    used: AtomicU64,
}

/// Adds `n` to a counter that one thread writes.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl ShardStats {
    /// Returns the number of keys in `space`, including expired keys that are not removed yet.
    pub fn keys(&self, space: u8) -> u64 {
        self.keys[usize::from(space)].load(Ordering::Relaxed)
    }

    /// Returns the number of keys in `space` that have an expiry time.
    pub fn expiring(&self, space: u8) -> u64 {
        self.expiring[usize::from(space)].load(Ordering::Relaxed)
    }

    /// Returns the numbers of keys expired and evicted since the shard was created.
    pub fn counts(&self) -> Counts {
        Counts { expired: self.expired.load(Ordering::Relaxed), evicted: self.evicted.load(Ordering::Relaxed) }
    }

    /// Returns the bytes in use at the last publication.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_keys(&self, space: u8, keys: usize) {
        self.keys[usize::from(space)].store(keys as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn set_expiring(&self, space: u8, keys: usize) {
        self.expiring[usize::from(space)].store(keys as u64, Ordering::Relaxed);
    }

    pub(super) fn add_expired(&self, keys: u64) {
        add(&self.expired, keys);
    }

    pub(super) fn add_evicted(&self, keys: u64) {
        add(&self.evicted, keys);
    }

    pub(super) fn set_used(&self, bytes: usize) {
        self.used.store(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, EvictionPolicy, Expiry, Store};

    #[test]
    fn used_bytes_are_those_of_last_publication() {
        let mut store = Store::new(&Config::new(4 << 20), 0);
        let stats = store.stats().clone();
        assert_eq!(stats.used(), 0);
        store.publish_used();
        let before = stats.used();
        assert_eq!(before, store.used() as u64);
        let key = store.key(0, b"key");
        store.set(&key, &[b'x'; 3000], Expiry::Never, 0).unwrap();
        assert_eq!(stats.used(), before);
        store.publish_used();
        assert!(stats.used() > before && stats.used() == store.used() as u64);
    }

    #[test]
    fn key_expiring_and_removal_counts_follow_changes() {
        let mut store =
            Store::new(&Config { evict: EvictionPolicy::from_name("lru").unwrap(), ..Config::new(4 << 20) }, 0);
        let stats = store.stats().clone();
        for n in 0..10u8 {
            let name = [n];
            let key = store.key(n % 2, &name);
            store.set(&key, b"x", if n < 6 { Expiry::At(5) } else { Expiry::Never }, 0).unwrap();
        }
        assert_eq!([0, 1, 2].map(|space| (stats.keys(space), stats.expiring(space))), [(5, 3), (5, 3), (0, 0)]);
        // The lookup removes one expired key, ticks remove the others.
        let key = store.key(0, &[0]);
        assert!(!store.exists(&key, 1000));
        assert_eq!(stats.counts(), Counts { expired: 1, evicted: 0 });
        while store.tick(1000, Store::TICK) {}
        assert_eq!(stats.counts(), Counts { expired: 6, evicted: 0 });
        assert_eq!([0, 1].map(|space| (stats.keys(space), stats.expiring(space))), [(2, 0), (2, 0)]);
        for n in 0..3000u32 {
            let name = n.to_le_bytes();
            let key = store.key(2, &name);
            store.set(&key, &[b'x'; 3000], Expiry::Never, 1000).unwrap();
        }
        let left = stats.keys(0) + stats.keys(1) + stats.keys(2);
        assert!(left < 3000);
        assert_eq!(stats.counts(), Counts { expired: 6, evicted: 3004 - left });
    }
}
