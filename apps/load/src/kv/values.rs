//! Values: bytes that follow from a key and the number of a SET of it, so that whoever has them can tell both.
//!
//! A value begins with eight bytes, the SET's number (its version) and a checksum of key, version and run; the rest is
//! out of the table of the other loads, from a place that follows from key and version too, as does the length where
//! lengths differ.

use crate::pattern::{PERIOD, Position};

/// Bytes at a value's beginning that tell its version; a shorter value has as many of them as it is long.
pub const HEAD: usize = 8;

/// The values of a run.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    shortest: u32,
    /// Lengths there are.
    lengths: u32,
    run: u64,
}

/// One of them.
#[derive(Clone, Copy)]
pub struct Value {
    /// All of its bytes.
    pub len: u32,
    /// Its first bytes.
    pub head: [u8; HEAD],
    /// The bytes after those.
    pub rest: Position,
}

impl Values {
    /// Of `shortest` to `longest` bytes; the values of another `run` are others.
    ///
    /// # Panics
    /// If the shortest is longer than the longest, or that is 2³² − 1.
    pub fn new(shortest: u32, longest: u32, run: u64) -> Self {
        assert!(shortest <= longest && longest < u32::MAX);
        Values { shortest, lengths: longest - shortest + 1, run }
    }

    /// The value that the SET `version` of the key `number` writes.
    #[inline]
    pub fn of(&self, number: u64, version: u32) -> Value {
        // SplitMix64 of all three.
        let mut mixed = (self.run ^ number).wrapping_add(u64::from(version).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let (upper, middle, lower) = (mixed >> 32, u64::from((mixed >> 16) as u32), mixed & u64::from(u32::MAX));
        Value {
            len: self.shortest + ((middle * u64::from(self.lengths)) >> 32) as u32,
            head: (u64::from(version) | upper << 32).to_le_bytes(),
            rest: Position::at(((lower * PERIOD as u64) >> 32) as usize),
        }
    }
}

/// Reads the version that a value's first bytes say that it is.
pub fn version_of(head: [u8; HEAD]) -> u32 {
    u64::from_le_bytes(head) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_version_and_nothing_else_has_its_head() {
        let values = Values::new(64, 64, 7);
        let head = values.of(5, 3).head;
        assert_eq!(version_of(head), 3);
        for other in [values.of(6, 3), values.of(5, 4), Values::new(64, 64, 8).of(5, 3)] {
            assert_ne!(other.head, head);
        }
        assert_eq!(values.of(5, 3).head, head);
    }

    #[test]
    fn lengths_are_spread_over_all_that_there_are() {
        let values = Values::new(10, 19, 7);
        let mut seen = [0; 10];
        (0..10_000).for_each(|version| seen[values.of(1, version).len as usize - 10] += 1);
        assert!(seen.iter().all(|seen| (800..1200).contains(seen)), "{seen:?}");
        assert_eq!(Values::new(7, 7, 0).of(1, 1).len, 7);
    }
}
