//! Flow table: maps the 4-tuple of a segment to its connection.
//!
//! The table contains no tuples. An entry is 32 bits of the tuple's keyed hash and the index of the caller's object:
//! eight bytes, eight entries to a cache line. The caller checks whether the object at an index is the one sought.

use thiserror::Error;

/// Hash table of fixed size, at most half full.
///
/// Open addressing with linear probing, last come, first served (Poblete and Munro, "Last-Come-First-Served Hashing",
/// Journal of Algorithms 10, 1989): an insertion takes the first slot of the probe sequence and moves the others on. A
/// new connection receives more segments than an old one on average, and a short connection never moves. A removal
/// closes the gap, so that no tombstones slow down searches. Memory is touched only where there are entries: an unused
/// table costs almost nothing.
pub(crate) struct FlowTable {
    /// Entries; 0 if empty.
    slots: Box<[u64]>,
    len: usize,
    capacity: usize,
}

/// Error: the table holds as many entries as it was created for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the flow table is full")]
pub(crate) struct Full;

/// Returns the entry with the tag in the lower half and the index in the upper half.
#[inline]
fn entry(tag: u32, index: u32) -> u64 {
    u64::from(index) << 32 | u64::from(tag)
}

/// Returns the part of a hash that an entry stores: its upper half. The lowest bit is set, so that no entry is 0.
#[inline]
pub(crate) fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

impl FlowTable {
    /// Maximum capacity: the tag without its lowest bit distinguishes twice as many slots.
    pub const MAX_CAPACITY: usize = 1 << 30;

    /// Memory per entry in bytes: a slot in use and an empty slot.
    pub const ENTRY: usize = 2 * size_of::<u64>();

    /// Creates an empty table for `capacity` entries, at most [`MAX_CAPACITY`](Self::MAX_CAPACITY), of
    /// [`ENTRY`](Self::ENTRY) bytes each.
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.min(Self::MAX_CAPACITY);
        // The allocator obtains zeroed memory from the system page by page.
        FlowTable { slots: vec![0; (2 * capacity).max(2)].into(), len: 0, capacity }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the first index with this hash for which `matches` is true.
    #[inline]
    pub fn find(&self, hash: u64, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag_of(hash);
        let mut at = self.home(tag);
        // The loop ends: half of the slots are empty.
        loop {
            let entry = *self.slots.get(at)?;
            if entry as u32 == tag && matches((entry >> 32) as u32) {
                return Some((entry >> 32) as u32);
            }
            if entry == 0 {
                return None;
            }
            at = self.next(at);
        }
    }

    /// Returns the index that [`find`](Self::find) checks first, which is nearly always the right one.
    #[inline]
    pub fn candidate(&self, hash: u64) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Prefetches the slot that [`find`](Self::find) reads first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(slot) = self.slots.get(self.home(tag_of(hash))) {
            linerate_bypass::prefetch(slot);
        }
    }

    /// Adds `index` under `hash`. Duplicates are not detected.
    pub fn insert(&mut self, hash: u64, index: u32) -> Result<(), Full> {
        if self.len >= self.capacity {
            return Err(Full);
        }
        let tag = tag_of(hash);
        let mut at = self.home(tag);
        let mut displaced = std::mem::replace(&mut self.slots[at], entry(tag, index));
        while displaced != 0 {
            at = self.next(at);
            displaced = std::mem::replace(&mut self.slots[at], displaced);
        }
        self.len += 1;
        Ok(())
    }

    /// Removes `index`, inserted under `hash`. Returns whether it was present.
    #[inline]
    pub fn remove(&mut self, hash: u64, index: u32) -> bool {
        let sought = entry(tag_of(hash), index);
        let mut hole = self.home(tag_of(hash));
        while self.slots[hole] != sought {
            if self.slots[hole] == 0 {
                return false;
            }
            hole = self.next(hole);
        }
        // Following entries that the hole would make unreachable move into it.
        let mut at = hole;
        loop {
            at = self.next(at);
            let entry = self.slots[at];
            if entry == 0 {
                break;
            }
            if self.distance(self.home(entry as u32), at) >= self.distance(hole, at) {
                self.slots[hole] = entry;
                hole = at;
            }
        }
        self.slots[hole] = 0;
        self.len -= 1;
        true
    }

    /// Returns the first slot of the probe sequence of `tag`: the position in the table is proportional to the tag.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    /// Returns the distance from `from` to `to`, around the end of the table.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    /// Asserts the invariants: the count is right, the table is at most half full, and no entry follows a gap.
    fn check(table: &FlowTable) {
        let held = table.slots.iter().filter(|slot| **slot != 0).count();
        assert_eq!(held, table.len());
        assert!(held <= table.capacity() && 2 * table.capacity() <= table.slots.len());
        for (at, &entry) in table.slots.iter().enumerate().filter(|(_, entry)| **entry != 0) {
            let home = table.home(entry as u32);
            let reached = (0..table.distance(home, at)).all(|step| table.slots[(home + step) % table.slots.len()] != 0);
            assert!(reached, "the entry at {at} follows a gap");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        Remove(usize),
        RemoveMissing(u64),
    }

    /// Hashes with few home slots, near the end and the beginning of the table, so that runs are long and wrap; some
    /// are equal.
    fn hash() -> impl Strategy<Value = u64> {
        let home = prop_oneof![3 => 58u64..64, 1 => 0u64..4, 1 => 0u64..64];
        (home, 0u64..3).prop_map(|(home, rest)| home << 58 | rest << 40 | 7)
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => hash().prop_map(Step::Insert),
            3 => any::<usize>().prop_map(Step::Remove),
            1 => hash().prop_map(Step::RemoveMissing),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn table_behaves_like_a_map(capacity in 29usize..33, steps in steps()) {
            let mut table = FlowTable::with_capacity(capacity);
            let mut model = HashMap::new();
            for (number, step) in (0u32..).zip(steps) {
                match step {
                    Step::Insert(hash) if model.len() < capacity => {
                        prop_assert_eq!(table.insert(hash, number), Ok(()));
                        model.insert(number, hash);
                    }
                    Step::Insert(hash) => prop_assert_eq!(table.insert(hash, number), Err(Full)),
                    Step::Remove(which) => {
                        let mut indices: Vec<_> = model.keys().copied().collect();
                        indices.sort_unstable();
                        if let Some(index) = indices.get(which % indices.len().max(1)) {
                            let hash = model.remove(index).unwrap();
                            prop_assert!(table.remove(hash, *index));
                            prop_assert!(!table.remove(hash, *index));
                        }
                    }
                    Step::RemoveMissing(hash) => prop_assert!(!table.remove(hash, u32::MAX)),
                }
                check(&table);
                prop_assert_eq!(table.len(), model.len());
                for (index, hash) in &model {
                    prop_assert_eq!(table.find(*hash, |found| found == *index), Some(*index));
                }
            }
        }
    }

    #[test]
    fn only_entries_with_the_hash_are_compared() {
        let mut table = FlowTable::with_capacity(64);
        for i in 0..64u32 {
            table.insert(u64::from(i) << 57 | 1 << 34, i).unwrap();
        }
        let mut compared = Vec::new();
        assert_eq!(
            table.find(5 << 57 | 1 << 34, |index| {
                compared.push(index);
                false
            }),
            None
        );
        assert_eq!(compared, [5]);
        assert_eq!(table.candidate(5 << 57 | 1 << 34), Some(5));
        assert_eq!(table.candidate(5 << 57 | 1 << 35), None);
        table.prefetch(5 << 57);
    }

    #[test]
    fn equal_hashes_are_distinguished_by_the_caller() {
        let mut table = FlowTable::with_capacity(1000);
        for index in 0..1000 {
            table.insert(u64::MAX, index).unwrap();
        }
        check(&table);
        for index in (0..1000).step_by(3) {
            assert!(table.remove(u64::MAX, index));
        }
        check(&table);
        for index in 0..1000 {
            let expected = (index % 3 != 0).then_some(index);
            assert_eq!(table.find(u64::MAX, |found| found == index), expected);
        }
    }

    #[test]
    fn last_inserted_entry_is_found_first() {
        let mut table = FlowTable::with_capacity(64);
        for (i, tag) in (0..64).zip((1u64..).step_by(2)) {
            // All have the first slot as home.
            table.insert(tag << 32, i).unwrap();
            check(&table);
            let found = table.slots.iter().position(|slot| *slot == entry(tag as u32, i));
            assert_eq!((found, table.candidate(tag << 32)), (Some(0), Some(i)));
        }
    }

    #[test]
    fn extreme_indices_and_hashes_are_stored() {
        let mut table = FlowTable::with_capacity(4);
        let extremes = [(0, 0), (0, u32::MAX), (u64::MAX, 0), (u64::MAX, u32::MAX)];
        for (hash, index) in extremes {
            table.insert(hash, index).unwrap();
        }
        check(&table);
        assert_eq!(table.insert(1, 1), Err(Full));
        for (hash, index) in extremes {
            assert_eq!(table.find(hash, |found| found == index), Some(index));
            assert!(table.remove(hash, index));
        }
        assert!(table.is_empty());
    }

    #[test]
    fn table_of_capacity_zero_is_full() {
        let mut table = FlowTable::with_capacity(0);
        assert_eq!(table.insert(0, 0), Err(Full));
        assert_eq!(table.find(0, |_| true), None);
        assert!(!table.remove(0, 0));
        table.prefetch(u64::MAX);
    }

    #[test]
    fn entry_takes_16_bytes_at_any_capacity() {
        for capacity in [1, 1000, 600_000, 1 << 20] {
            let table = FlowTable::with_capacity(capacity);
            assert_eq!(size_of_val(&table.slots[..]), FlowTable::ENTRY * capacity);
            assert_eq!(table.capacity(), capacity);
        }
    }

    /// In a half-full table with random hashes, a successful search reads 1.5 slots on average (Knuth, The Art of
    /// Computer Programming, vol. 3, §6.4).
    #[test]
    fn full_table_has_short_runs() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut table = FlowTable::with_capacity(1 << 16);
        let hashes: Vec<_> = (0..1 << 16).map(|_| random.u64(..)).collect();
        let put = |table: &mut FlowTable| (0..).zip(&hashes).for_each(|(i, hash)| table.insert(*hash, i).unwrap());
        put(&mut table);
        // The quality remains after all entries were removed and inserted again.
        (0..).zip(&hashes).for_each(|(i, hash)| assert!(table.remove(*hash, i)));
        assert!(table.slots.iter().all(|slot| *slot == 0));
        put(&mut table);
        let occupied = table.slots.iter().enumerate().filter(|(_, entry)| **entry != 0);
        let read: usize = occupied.map(|(at, entry)| table.distance(table.home(*entry as u32), at) + 1).sum();
        let average = read as f64 / hashes.len() as f64;
        assert!((1.45..1.55).contains(&average), "{average}");
        // Two of 2¹⁶ other hashes are expected to match one of 2¹⁶ entries in all 31 bits.
        let wrong = hashes.iter().filter(|hash| table.candidate(hash.rotate_left(32)).is_some()).count();
        let homes: HashSet<_> = hashes.iter().map(|hash| table.home(tag_of(*hash))).collect();
        assert!(wrong < 20 && homes.len() > 1 << 15, "{wrong} {}", homes.len());
    }
}
