//! The shards that a command touches.

use crate::store::{Key, Store};

/// The shards that a command may touch: all of its keys', by number.
///
/// Which shard a key is in follows from its hash alone, so that every worker knows.
pub struct Shards<'a> {
    stores: &'a mut [Option<Box<Store>>],
}

/// The number of the shard, of `count`, that what has the hash `hash` is in.
#[inline]
pub fn shard_of(hash: u64, count: usize) -> usize {
    // Mixed, for a shard's index goes by the upper half and by the lower one, and wants all of each (Knuth, TAOCP 3, §6.4).
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((mixed * count as u64) >> 32) as usize
}

impl<'a> Shards<'a> {
    /// Those of all shards that are there.
    pub fn new(stores: &'a mut [Option<Box<Store>>]) -> Self {
        Shards { stores }
    }

    /// The shard of `key`.
    ///
    /// # Panics
    /// If it is not there.
    #[inline]
    pub fn of(&mut self, key: &Key) -> &mut Store {
        let at = shard_of(key.hash(), self.stores.len());
        self.stores[at].as_mut().expect("the shards of a command's keys are there")
    }

    /// All that are there.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Store> {
        self.stores.iter_mut().flatten().map(|store| &mut **store)
    }

    /// How many shards there are, those counted that are not there.
    pub fn count(&self) -> usize {
        self.stores.len()
    }
}
