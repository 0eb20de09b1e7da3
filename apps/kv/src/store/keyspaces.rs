//! Keyspaces (databases), which a flush empties in constant time.

use crate::store::stats::ShardStats;
use std::ops::Range;
use std::sync::Arc;

/// Number of keyspaces: 16 databases, the keyspace of memcached, and spares.
pub const KEYSPACES: usize = 32;
/// Number of databases of Redis clients, which are the first keyspaces.
pub const DATABASES: u8 = 16;

/// Table from keyspaces to their current ids.
///
/// Each item stores the id of its keyspace. A flush gives the keyspace another id. Items with the old id are dead and
/// are removed in the background.
pub(crate) struct Keyspaces {
    /// Current id of each keyspace.
    current: [u8; KEYSPACES],
    /// Keyspace of each id, current or former.
    keyspace_of: [u8; 256],
    len: [usize; 256],
    /// Number of items with an expiry time, by id.
    expiring: [usize; 256],
    /// For each keyspace, an index cursor near a recent key.
    near: [u64; KEYSPACES],
    /// Number of dead items.
    flushed: usize,
    /// Key counts for other workers.
    stats: Arc<ShardStats>,
}

impl Keyspaces {
    pub fn new(stats: Arc<ShardStats>) -> Self {
        let keyspace_of = std::array::from_fn(|n| if n < KEYSPACES { n as u8 } else { 0 });
        Keyspaces {
            current: std::array::from_fn(|n| n as u8),
            keyspace_of,
            len: [0; 256],
            expiring: [0; 256],
            near: [0; KEYSPACES],
            flushed: 0,
            stats,
        }
    }

    #[inline(always)]
    pub fn current(&self, space: u8) -> u8 {
        self.current[usize::from(space)]
    }

    #[inline]
    pub fn of_id(&self, number: u8) -> u8 {
        self.keyspace_of[usize::from(number)]
    }

    /// Returns true if items with the id `number` are dead.
    #[inline]
    pub fn is_flushed(&self, number: u8) -> bool {
        self.flushed > 0 && self.current(self.of_id(number)) != number
    }

    pub fn len(&self, space: u8) -> usize {
        self.len[usize::from(self.current(space))]
    }

    pub fn expiring(&self, space: u8) -> usize {
        self.expiring[usize::from(self.current(space))]
    }

    /// Returns the number of dead items.
    pub fn flushed(&self) -> usize {
        self.flushed
    }

    /// Counts a new item with the id `number` at the index cursor `at`.
    #[inline]
    pub fn add_item(&mut self, number: u8, at: u64) {
        let (len, space) = (&mut self.len[usize::from(number)], self.keyspace_of[usize::from(number)]);
        *len += 1;
        self.near[usize::from(space)] = at;
        self.stats.set_keys(space, *len);
    }

    /// Returns an index cursor near a recent key of `space`.
    pub fn near(&self, space: u8) -> u64 {
        self.near[usize::from(space)]
    }

    /// Stores the index cursor of a key of `space`.
    pub fn set_near(&mut self, space: u8, at: u64) {
        self.near[usize::from(space)] = at;
    }

    /// Counts the removal of an item with the id `number`.
    #[inline]
    pub fn remove_item_of(&mut self, number: u8) {
        self.len[usize::from(number)] -= 1;
        if self.is_flushed(number) {
            self.flushed -= 1;
        } else {
            self.stats.set_keys(self.of_id(number), self.len[usize::from(number)]);
        }
    }

    /// Counts an item with the id `number` that got an expiry time.
    #[inline]
    pub fn expires(&mut self, number: u8) {
        self.expiring[usize::from(number)] += 1;
        self.publish_expiring(number);
    }

    /// Counts an item with the id `number` that lost its expiry time or was removed.
    #[inline]
    pub fn remove_expiring(&mut self, number: u8) {
        self.expiring[usize::from(number)] -= 1;
        self.publish_expiring(number);
    }

    /// Publishes the number of expiring items of the keyspace of `number`, unless a flush made `number` obsolete.
    #[inline]
    fn publish_expiring(&self, number: u8) {
        let space = self.of_id(number);
        // `is_flushed` does not suffice: it returns false once the last dead item has been subtracted.
        if self.current(space) == number {
            self.stats.set_expiring(space, self.expiring[usize::from(number)]);
        }
    }

    /// Returns true if enough ids are free to flush all of `spaces`.
    pub fn can_flush(&self, spaces: Range<u8>) -> bool {
        let needed = spaces.filter(|space| self.len(*space) > 0).count();
        (0..u8::MAX).filter(|number| self.is_free(*number)).take(needed).count() == needed
    }

    /// Returns true if the id `number` belongs to no keyspace and to no item.
    fn is_free(&self, number: u8) -> bool {
        self.len[usize::from(number)] == 0 && self.current(self.of_id(number)) != number
    }

    /// Makes all items of `space` dead. Returns false if no id is free, because dead items of too many flushes remain.
    pub fn flush(&mut self, space: u8) -> bool {
        let old = self.current(space);
        if self.len[usize::from(old)] == 0 {
            return true;
        }
        let Some(new) = (0..u8::MAX).find(|number| self.is_free(*number)) else { return false };
        debug_assert_eq!(self.expiring[usize::from(new)], 0);
        self.keyspace_of[usize::from(new)] = space;
        self.current[usize::from(space)] = new;
        self.flushed += self.len[usize::from(old)];
        self.stats.set_keys(space, 0);
        self.stats.set_expiring(space, 0);
        true
    }
}
