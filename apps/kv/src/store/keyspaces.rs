//! Keyspaces, which are flushed at once and emptied later.

use crate::store::stats::ShardStats;
use std::ops::Range;
use std::sync::Arc;

/// Keyspaces that there are: 16 databases, memcached's, and some more.
pub const SPACES: usize = 32;

/// What an item says of its keyspace is a number that stands for it until it is flushed.
///
/// Then another stands for it, and the items with the old one are nobody's: they go when somebody comes across them.
pub(crate) struct Spaces {
    /// What stands for each keyspace.
    current: [u8; SPACES],
    /// What each stands for, or did.
    outer: [u8; 256],
    len: [usize; 256],
    /// How many of them expire some time.
    expiring: [usize; 256],
    /// For each keyspace, a cursor of the index near which there is a key, or was.
    near: [u64; SPACES],
    /// Items that are nobody's.
    flushed: usize,
    /// Counts of each keyspace for other workers.
    stats: Arc<ShardStats>,
}

impl Spaces {
    pub fn new(stats: Arc<ShardStats>) -> Self {
        let outer = std::array::from_fn(|n| if n < SPACES { n as u8 } else { 0 });
        Spaces {
            current: std::array::from_fn(|n| n as u8),
            outer,
            len: [0; 256],
            expiring: [0; 256],
            near: [0; SPACES],
            flushed: 0,
            stats,
        }
    }

    /// What items of `space` say now.
    #[inline(always)]
    pub fn current(&self, space: u8) -> u8 {
        self.current[usize::from(space)]
    }

    /// The keyspace that `number` stands for, or did.
    #[inline]
    pub fn outer(&self, number: u8) -> u8 {
        self.outer[usize::from(number)]
    }

    /// Whether an item that says `number` is nobody's.
    #[inline]
    pub fn is_flushed(&self, number: u8) -> bool {
        self.flushed > 0 && self.current(self.outer(number)) != number
    }

    /// Items of `space`.
    pub fn len(&self, space: u8) -> usize {
        self.len[usize::from(self.current(space))]
    }

    /// Those of them that expire some time.
    pub fn expiring(&self, space: u8) -> usize {
        self.expiring[usize::from(self.current(space))]
    }

    /// Items that are nobody's.
    pub fn flushed(&self) -> usize {
        self.flushed
    }

    /// There is an item more that says `number`, at the index's cursor `at`.
    #[inline]
    pub fn added(&mut self, number: u8, at: u64) {
        let (len, space) = (&mut self.len[usize::from(number)], self.outer[usize::from(number)]);
        *len += 1;
        self.near[usize::from(space)] = at;
        self.stats.set_keys(space, *len);
    }

    /// A cursor of the index near which there is a key of `space`, or was.
    pub fn near(&self, space: u8) -> u64 {
        self.near[usize::from(space)]
    }

    /// There is a key of `space` at the cursor `at`.
    pub fn set_near(&mut self, space: u8, at: u64) {
        self.near[usize::from(space)] = at;
    }

    /// There is an item less that says `number`.
    #[inline]
    pub fn removed(&mut self, number: u8) {
        self.len[usize::from(number)] -= 1;
        if self.is_flushed(number) {
            self.flushed -= 1;
        } else {
            self.stats.set_keys(self.outer(number), self.len[usize::from(number)]);
        }
    }

    /// One of the items that say `number` expires some time.
    #[inline]
    pub fn expires(&mut self, number: u8) {
        self.expiring[usize::from(number)] += 1;
        self.publish_expiring(number);
    }

    /// It does not any more, or has gone.
    #[inline]
    pub fn expires_no_more(&mut self, number: u8) {
        self.expiring[usize::from(number)] -= 1;
        self.publish_expiring(number);
    }

    /// Stores the number of expiring items of the keyspace of `number`, unless `number` is from before its last flush.
    #[inline]
    fn publish_expiring(&self, number: u8) {
        let space = self.outer(number);
        // The last flushed item has been taken from `flushed` before this, so that does not tell.
        if self.current(space) == number {
            self.stats.set_expiring(space, self.expiring[usize::from(number)]);
        }
    }

    /// Returns true if numbers are free for the flush of all of `spaces`.
    pub fn can_flush(&self, spaces: Range<u8>) -> bool {
        let needed = spaces.filter(|space| self.len(*space) > 0).count();
        (0..u8::MAX).filter(|number| self.is_free(*number)).take(needed).count() == needed
    }

    /// Returns true if `number` stands for no keyspace, and no item says it.
    fn is_free(&self, number: u8) -> bool {
        self.len[usize::from(number)] == 0 && self.current(self.outer(number)) != number
    }

    /// Makes the items of `space` nobody's. Returns whether it did: it cannot while there are others of too many flushes.
    pub fn flush(&mut self, space: u8) -> bool {
        let old = self.current(space);
        if self.len[usize::from(old)] == 0 {
            return true;
        }
        let Some(new) = (0..u8::MAX).find(|number| self.is_free(*number)) else { return false };
        debug_assert_eq!(self.expiring[usize::from(new)], 0);
        self.outer[usize::from(new)] = space;
        self.current[usize::from(space)] = new;
        self.flushed += self.len[usize::from(old)];
        self.stats.set_keys(space, 0);
        self.stats.set_expiring(space, 0);
        true
    }
}
