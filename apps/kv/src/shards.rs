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

    /// `bytes` as a key of the keyspace `space`, whichever shard it is in.
    ///
    /// # Panics
    /// If no shard is there.
    #[inline]
    pub fn key<'k>(&self, space: u8, bytes: &'k [u8]) -> Key<'k> {
        self.stores.iter().flatten().next().expect("the shards of a request's keys are there").key(space, bytes)
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

    /// Returns true if both keys are in the same shard.
    pub fn are_together(&self, one: &Key, other: &Key) -> bool {
        shard_of(one.hash(), self.stores.len()) == shard_of(other.hash(), self.stores.len())
    }

    /// Asks for what is under keys of these hashes, several of which are about to be looked for: first for all parts of the
    /// index, then for all items. What is there behind the first few hundred is not asked for; it would push those out again.
    pub fn fetch_ahead(&self, hashes: impl Iterator<Item = u64>) {
        const MOST: usize = 256;
        let shard_of = |hash| self.stores[shard_of(hash, self.stores.len())].as_ref();
        let mut fetched = [0; MOST];
        let mut count = 0;
        for (hash, place) in hashes.zip(&mut fetched) {
            (*place, count) = (hash, count + 1);
            shard_of(hash).inspect(|store| store.prefetch_index(hash));
        }
        for hash in &fetched[..count] {
            shard_of(*hash).inspect(|store| store.prefetch_item(store.location_hint(*hash)));
        }
    }

    /// The shard of this number.
    pub fn at(&mut self, number: usize) -> Option<&mut Store> {
        self.stores.get_mut(number)?.as_deref_mut()
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

/// Which shards a command needs, of 256 at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardSet([u64; 4]);

impl ShardSet {
    /// None.
    pub const NONE: Self = ShardSet([0; 4]);

    /// All of `count`.
    pub fn all(count: usize) -> Self {
        (0..count).collect()
    }

    /// The shard `number`, too.
    #[inline]
    pub fn add(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// The shards of `other`, too.
    pub fn extend(&mut self, other: ShardSet) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    /// Whether the shard `number` is one of them.
    #[inline]
    pub fn has(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// How many they are.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether they are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == ShardSet::NONE
    }

    /// Their numbers, from the lowest on: the order in which several are to be asked for.
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
    fn a_set_has_what_was_added() {
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
    fn keys_lie_in_all_shards_alike() {
        let mut found = [0; 5];
        (0..5000u64).for_each(|n| found[shard_of(n.wrapping_mul(0x2545_f491_4f6c_dd1d), 5)] += 1);
        assert!(found.iter().all(|count| (800..1200).contains(count)), "{found:?}");
    }
}
