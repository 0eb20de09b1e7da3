//! Buddy tree: free blocks of a chunk.

use crate::arena::chunk::CHUNK;

/// Length of the smallest block.
pub(super) const UNIT: usize = 512;
/// Units per chunk.
pub(super) const UNITS: usize = CHUNK / UNIT;
/// Number of block orders: a block is a unit times a power of two, up to a chunk.
pub(super) const ORDERS: usize = UNITS.ilog2() as usize + 1;
const LAST: usize = ORDERS - 1;

/// Buddy system (Knowlton, "A fast storage allocator", 1965) of a chunk: a block splits into two halves, which merge
/// when both are free.
pub(super) struct BuddyTree {
    /// Bit set of tree nodes: node 1 is the chunk, and the children of `n` are `2n` and `2n + 1`. A bit is set if the
    /// block is free and not merged with its buddy.
    free_bits: [u64; 2 * UNITS / 64],
    /// Number of free blocks of each order.
    pub(super) counts: [u16; ORDERS],
}

impl BuddyTree {
    /// Creates the tree of a free chunk.
    pub(super) fn new() -> Self {
        let mut tree = BuddyTree { free_bits: [0; 2 * UNITS / 64], counts: [0; ORDERS] };
        tree.set(1, LAST);
        tree
    }

    /// Allocates a block of `order`, splitting a larger one if needed. Returns its first unit.
    pub(super) fn alloc(&mut self, order: usize) -> Option<usize> {
        let from = (order..ORDERS).find(|order| self.counts[*order] > 0)?;
        let mut node = self.first(from)?;
        self.clear(node, from);
        for order in (order..from).rev() {
            node *= 2;
            self.set(node + 1, order);
        }
        Some((node << order) - UNITS)
    }

    /// Frees the block of `order` at `unit`. Returns the order of the merged free block.
    pub(super) fn free(&mut self, unit: usize, order: usize) -> usize {
        let (mut node, mut order) = ((UNITS + unit) >> order, order);
        while order < LAST && self.is_free(node ^ 1) {
            self.clear(node ^ 1, order);
            node /= 2;
            order += 1;
        }
        self.set(node, order);
        order
    }

    /// Allocates all free blocks within the block of `order` at `unit`, and passes them to `each`.
    pub(super) fn alloc_within(&mut self, unit: usize, order: usize, mut each: impl FnMut(usize, usize)) {
        let node = (UNITS + unit) >> order;
        for below in (0..=order).rev() {
            let first = node << (order - below);
            for node in first..first + (1 << (order - below)) {
                if self.is_free(node) {
                    self.clear(node, below);
                    each((node << below) - UNITS, below);
                }
            }
        }
    }

    /// Returns the first free node of `order`.
    fn first(&self, order: usize) -> Option<usize> {
        let (start, end) = (UNITS >> order, (2 * UNITS) >> order);
        if end <= 64 {
            let bits = self.free_bits[0] & (u64::MAX >> (64 - end)) & (u64::MAX << start);
            return (bits != 0).then(|| bits.trailing_zeros() as usize);
        }
        let words = &self.free_bits[start / 64..end / 64];
        let word = words.iter().position(|word| *word != 0)?;
        Some(start + word * 64 + words[word].trailing_zeros() as usize)
    }

    fn is_free(&self, node: usize) -> bool {
        self.free_bits[node / 64] >> (node % 64) & 1 == 1
    }

    fn set(&mut self, node: usize, order: usize) {
        self.free_bits[node / 64] |= 1 << (node % 64);
        self.counts[order] += 1;
    }

    fn clear(&mut self, node: usize, order: usize) {
        self.free_bits[node / 64] &= !(1 << (node % 64));
        self.counts[order] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Blocks never overlap, and the chunk is whole again after all have been freed.
        #[test]
        #[cfg_attr(miri, ignore = "too many steps for Miri, and no unsafe code")]
        fn parts_do_not_overlap(steps in prop::collection::vec((0..ORDERS, any::<prop::sample::Index>(), 0..5u8), 1..400)) {
            let mut tree = BuddyTree::new();
            let mut taken: Vec<(usize, usize)> = Vec::new();
            let mut units = vec![false; UNITS];
            for (order, which, operation) in steps {
                let order = order.min(8);
                match operation {
                    0..3 => match tree.alloc(order) {
                        Some(unit) => {
                            prop_assert_eq!(unit % (1 << order), 0);
                            for unit in &mut units[unit..unit + (1 << order)] {
                                prop_assert!(!std::mem::replace(unit, true));
                            }
                            taken.push((unit, order));
                        }
                        // There is no free block of the order.
                        None => prop_assert!(units.chunks(1 << order).all(|part| part.iter().any(|unit| *unit))),
                    },
                    3 if !taken.is_empty() => {
                        let (unit, order) = taken.swap_remove(which.index(taken.len()));
                        units[unit..unit + (1 << order)].fill(false);
                        tree.free(unit, order);
                    }
                    _ => {
                        let start = which.index(UNITS) >> order << order;
                        let mut found = Vec::new();
                        tree.alloc_within(start, order, |unit, order| found.push((unit, order)));
                        let of_it = units[start..start + (1 << order)].iter().filter(|unit| !**unit).count();
                        let sum: usize = found.iter().map(|(_, order)| 1 << order).sum();
                        // A free block larger than the range is not within it.
                        prop_assert!(sum == of_it || sum == 0 && of_it == 1 << order);
                        found.into_iter().for_each(|(unit, order)| _ = tree.free(unit, order));
                    }
                }
            }
            let mut last = tree.counts[LAST] as usize * LAST;
            for (unit, order) in taken {
                last = tree.free(unit, order);
            }
            prop_assert_eq!(last, LAST);
            prop_assert_eq!(tree.alloc(LAST), Some(0));
        }
    }
}
