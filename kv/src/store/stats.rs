//! Counters of a shard that every worker reads without borrowing the shard.

use super::{Counts, SPACES};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one shard, as `INFO`, `DBSIZE` and `stats` report them.
///
/// Only the worker that has the shard writes, so a counter is a load and a store without a locked instruction. The key counts and
/// the counts of expired and evicted keys change together with the keys. A reply to a write therefore implies that its counts are
/// visible: the shard, or the reply, reached the reader through a mailbox. The used memory is stored from time to time
/// ([`Store::publish_used`](super::Store::publish_used)).
///
/// The alignment keeps the counters of two shards out of the pair of cache lines that a processor fetches together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardStats {
    keys: [AtomicU64; SPACES],
    expiring: [AtomicU64; SPACES],
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
    /// Number of keys in `space`, expired keys included that have not been removed yet.
    pub fn keys(&self, space: u8) -> u64 {
        self.keys[usize::from(space)].load(Ordering::Relaxed)
    }

    /// Number of keys in `space` that have an expiry time.
    pub fn expiring(&self, space: u8) -> u64 {
        self.expiring[usize::from(space)].load(Ordering::Relaxed)
    }

    /// Numbers of keys that expired and that were evicted, since the shard was made.
    pub fn counts(&self) -> Counts {
        Counts { expired: self.expired.load(Ordering::Relaxed), evicted: self.evicted.load(Ordering::Relaxed) }
    }

    /// Bytes that the shard took when it last stored them.
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
