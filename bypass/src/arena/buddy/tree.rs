//! Which parts of a chunk are free.

use crate::arena::chunk::CHUNK;

/// Bytes of the smallest piece.
pub(super) const UNIT: usize = 512;
/// Units of a chunk.
pub(super) const UNITS: usize = CHUNK / UNIT;
/// Pieces are of a unit times a power of two, up to a chunk.
pub(super) const ORDERS: usize = UNITS.ilog2() as usize + 1;
const LAST: usize = ORDERS - 1;

/// A chunk as a buddy system (Knowlton, "A fast storage allocator", 1965): halves of what is larger, which become one
/// again when both are free.
pub(super) struct Buddies {
    /// A bit for each node of the tree: 1 is the chunk, those below `n` are `2n` and `2n + 1`. It is set if the part is
    /// free, and not one with its other half.
    free: [u64; 2 * UNITS / 64],
    /// How many are, of each order.
    pub(super) counts: [u16; ORDERS],
}

impl Buddies {
    /// All is free.
    pub(super) fn new() -> Self {
        let mut buddies = Buddies { free: [0; 2 * UNITS / 64], counts: [0; ORDERS] };
        buddies.set(1, LAST);
        buddies
    }

    /// Takes a part of `order` away, if there is one of it or a larger one. Returns its first unit.
    pub(super) fn take(&mut self, order: usize) -> Option<usize> {
        let from = (order..ORDERS).find(|order| self.counts[*order] > 0)?;
        let mut node = self.first(from)?;
        self.clear(node, from);
        for order in (order..from).rev() {
            node *= 2;
            self.set(node + 1, order);
        }
        Some((node << order) - UNITS)
    }

    /// Gives the part of `order` back that begins with `unit`. Returns the order of what is free now.
    pub(super) fn give(&mut self, unit: usize, order: usize) -> usize {
        let (mut node, mut order) = ((UNITS + unit) >> order, order);
        while order < LAST && self.is_free(node ^ 1) {
            self.clear(node ^ 1, order);
            node /= 2;
            order += 1;
        }
        self.set(node, order);
        order
    }

    /// Takes all free parts away that lie within that of `order` which begins with `unit`, and passes them to `each`.
    pub(super) fn take_within(&mut self, unit: usize, order: usize, mut each: impl FnMut(usize, usize)) {
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

    /// The first free node of `order`.
    fn first(&self, order: usize) -> Option<usize> {
        let (start, end) = (UNITS >> order, (2 * UNITS) >> order);
        if end <= 64 {
            let bits = self.free[0] & (u64::MAX >> (64 - end)) & (u64::MAX << start);
            return (bits != 0).then(|| bits.trailing_zeros() as usize);
        }
        let words = &self.free[start / 64..end / 64];
        let word = words.iter().position(|word| *word != 0)?;
        Some(start + word * 64 + words[word].trailing_zeros() as usize)
    }

    fn is_free(&self, node: usize) -> bool {
        self.free[node / 64] >> (node % 64) & 1 == 1
    }

    fn set(&mut self, node: usize, order: usize) {
        self.free[node / 64] |= 1 << (node % 64);
        self.counts[order] += 1;
    }

    fn clear(&mut self, node: usize, order: usize) {
        self.free[node / 64] &= !(1 << (node % 64));
        self.counts[order] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// No part overlaps another, and when all have been given back the chunk is one again.
        #[test]
        #[cfg_attr(miri, ignore = "too many steps for Miri, and no unsafe code")]
        fn parts_do_not_overlap(steps in prop::collection::vec((0..ORDERS, any::<prop::sample::Index>(), 0..5u8), 1..400)) {
            let mut buddies = Buddies::new();
            let mut taken: Vec<(usize, usize)> = Vec::new();
            let mut units = vec![false; UNITS];
            for (order, which, what) in steps {
                let order = order.min(8);
                match what {
                    0..3 => match buddies.take(order) {
                        Some(unit) => {
                            prop_assert_eq!(unit % (1 << order), 0);
                            for unit in &mut units[unit..unit + (1 << order)] {
                                prop_assert!(!std::mem::replace(unit, true));
                            }
                            taken.push((unit, order));
                        }
                        // There is none, truly.
                        None => prop_assert!(units.chunks(1 << order).all(|part| part.iter().any(|unit| *unit))),
                    },
                    3 if !taken.is_empty() => {
                        let (unit, order) = taken.swap_remove(which.index(taken.len()));
                        units[unit..unit + (1 << order)].fill(false);
                        buddies.give(unit, order);
                    }
                    _ => {
                        let start = which.index(UNITS) >> order << order;
                        let mut found = Vec::new();
                        buddies.take_within(start, order, |unit, order| found.push((unit, order)));
                        let of_it = units[start..start + (1 << order)].iter().filter(|unit| !**unit).count();
                        let sum: usize = found.iter().map(|(_, order)| 1 << order).sum();
                        // What is larger than the part is not within it.
                        prop_assert!(sum == of_it || sum == 0 && of_it == 1 << order);
                        found.into_iter().for_each(|(unit, order)| _ = buddies.give(unit, order));
                    }
                }
            }
            let mut last = buddies.counts[LAST] as usize * LAST;
            for (unit, order) in taken {
                last = buddies.give(unit, order);
            }
            prop_assert_eq!(last, LAST);
            prop_assert_eq!(buddies.take(LAST), Some(0));
        }
    }
}
