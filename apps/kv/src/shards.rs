//! Shards available to a command.

use crate::cluster::{ClusterMap, slot_of_hash};
use crate::store::{Key, Store};
use std::ops::Range;
use std::sync::Arc;

/// Shards available to a command, by number: at least the shards of all its keys.
///
/// The shard of a key depends only on its hash, so every worker can compute it.
pub struct Shards<'a> {
    stores: &'a mut [Option<Box<Store>>],
    placement: &'a Placement,
}

/// Placement of keys on the shards of a server.
#[derive(Debug, Clone)]
pub struct Placement {
    count: usize,
    /// In cluster mode, the shard of each slot.
    of_slots: Option<Arc<[u8]>>,
    /// In cluster mode, the shard of this worker, which is that of its node.
    own: usize,
}

impl Placement {
    pub const fn new(count: usize) -> Self {
        Placement { count, of_slots: None, own: 0 }
    }

    /// Creates the placement for the worker `own` of a cluster in which the shard of a key follows from its slot.
    pub fn by_slot(count: usize, own: usize, of_slots: Arc<[u8]>) -> Self {
        Placement { count, of_slots: Some(of_slots), own }
    }

    #[inline]
    pub fn shard_of(&self, hash: u64) -> usize {
        match &self.of_slots {
            None => shard_of(hash, self.count),
            Some(of_slots) => of_slots[usize::from(slot_of_hash(hash))].into(),
        }
    }

    /// Returns the shard of keys in `slot`, in cluster mode.
    pub fn shard_of_slot(&self, slot: u16) -> Option<usize> {
        self.of_slots.as_ref().map(|of_slots| of_slots[usize::from(slot)].into())
    }

    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the shards that belong to the node of this worker: all without cluster mode.
    #[inline]
    pub fn of_node(&self) -> Range<usize> {
        if self.of_slots.is_some() { self.own..self.own + 1 } else { 0..self.count }
    }

    /// Returns the shard of each slot. Workers use this placement until the server ends, even if the map is replaced.
    pub fn of_map(map: &ClusterMap) -> Arc<[u8]> {
        map.shards().into()
    }
}

#[inline]
pub fn shard_of(hash: u64, count: usize) -> usize {
    // The hash is mixed, because the index of a shard uses both halves and needs all values of each (Knuth, TAOCP 3,
    // §6.4).
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((mixed * count as u64) >> 32) as usize
}

impl<'a> Shards<'a> {
    /// Creates the set of the shards present in `stores`.
    pub fn new(stores: &'a mut [Option<Box<Store>>], placement: &'a Placement) -> Self {
        Shards { stores, placement }
    }

    /// Returns `bytes` as a key of the keyspace `space`.
    ///
    /// # Panics
    /// Panics if no shard is present.
    #[inline]
    pub fn key<'k>(&self, space: u8, bytes: &'k [u8]) -> Key<'k> {
        self.stores.iter().flatten().next().expect("the shards of a request's keys are present").key(space, bytes)
    }

    /// Returns the shard of `key`.
    ///
    /// # Panics
    /// Panics if it is absent.
    #[inline]
    pub fn store(&mut self, key: &Key) -> &mut Store {
        let at = self.placement.shard_of(key.hash());
        self.stores[at].as_mut().expect("the shards of a command's keys are present")
    }

    pub fn are_in_same_shard(&self, one: &Key, other: &Key) -> bool {
        self.placement.shard_of(one.hash()) == self.placement.shard_of(other.hash())
    }

    /// Prefetches the items of keys with these hashes: first all index lines, then all items. Keys beyond the first few
    /// hundred are skipped, because their items would evict the first ones from the cache.
    pub fn prefetch_items(&self, hashes: impl Iterator<Item = u64>) {
        const MAX_PREFETCHED: usize = 256;
        let shard_of = |hash| self.stores[self.placement.shard_of(hash)].as_ref();
        let mut fetched = [0; MAX_PREFETCHED];
        let mut count = 0;
        for (hash, slot) in hashes.zip(&mut fetched) {
            (*slot, count) = (hash, count + 1);
            shard_of(hash).inspect(|store| store.prefetch_index(hash));
        }
        for hash in &fetched[..count] {
            shard_of(*hash).inspect(|store| store.prefetch_item(store.location_hint(*hash)));
        }
    }

    /// Returns the shard `number` if it is present.
    pub fn at(&mut self, number: usize) -> Option<&mut Store> {
        self.stores.get_mut(number)?.as_deref_mut()
    }

    /// Returns all shards present.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Store> {
        self.stores.iter_mut().flatten().map(|store| &mut **store)
    }

    /// Returns the number of shards, present or not.
    pub fn count(&self) -> usize {
        self.stores.len()
    }

    /// Returns the shards that commands on all keys visit: the shards of the [node](Placement::of_node), present or
    /// not.
    pub fn of_node(&self) -> Range<usize> {
        self.placement.of_node()
    }
}

/// Set of up to 256 shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardSet([u64; 4]);

impl ShardSet {
    pub const NONE: Self = ShardSet([0; 4]);

    pub fn all(count: usize) -> Self {
        (0..count).collect()
    }

    #[inline]
    pub fn add(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub fn extend(&mut self, other: ShardSet) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    #[inline]
    pub fn has(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == ShardSet::NONE
    }

    /// Returns the shard numbers in ascending order, the order in which shards are borrowed.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let mut words = self.0;
        let mut at = 0;
        std::iter::from_fn(move || {
            while *words.get(at)? == 0 {
                at += 1;
            }
            let bit = words[at].trailing_zeros();
            words[at] &= words[at] - 1;
            Some(at * 64 + bit as usize)
        })
    }
}

impl FromIterator<usize> for ShardSet {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = ShardSet::NONE;
        numbers.into_iter().for_each(|number| set.add(number));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_added_shards() {
        assert!(ShardSet::NONE.is_empty());
        let set: ShardSet = [255, 3, 64, 3].into_iter().collect();
        assert_eq!((set.iter().collect::<Vec<_>>(), set.len()), (vec![3, 64, 255], 3));
        assert!(set.has(64) && !set.has(65) && !set.has(256));
        let mut both: ShardSet = [1, 64].into_iter().collect();
        both.extend(set);
        assert_eq!(both.iter().collect::<Vec<_>>(), [1, 3, 64, 255]);
        assert_eq!(ShardSet::all(256).len(), 256);
    }

    #[test]
    fn keys_are_spread_evenly_over_shards() {
        let mut found = [0; 5];
        (0..5000u64).for_each(|n| found[shard_of(n.wrapping_mul(0x2545_f491_4f6c_dd1d), 5)] += 1);
        assert!(found.iter().all(|count| (800..1200).contains(count)), "{found:?}");
    }
}
