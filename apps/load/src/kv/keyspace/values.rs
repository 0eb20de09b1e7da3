//! Values: bytes derived from a key and a version, which is the number of the key's SET, so that a value reveals both.
//!
//! A value begins with eight bytes: its version, and a checksum of key, version and run. The rest comes from the
//! pattern table of the other loads, at an offset derived from key and version. The length is derived likewise, if
//! lengths vary.
use crate::pattern::{PERIOD, Position};

/// Length of the header that holds the version; a shorter value has only its first bytes.
pub const HEAD: usize = 8;

/// Values of a run.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    shortest: u32,
    /// Number of different lengths.
    lengths: u32,
    run: u64,
}

#[derive(Clone, Copy)]
pub struct Value {
    /// Length in bytes.
    pub len: u32,
    /// First bytes.
    pub head: [u8; HEAD],
    /// Bytes after the head.
    pub rest: Position,
}

impl Values {
    /// Creates values of `shortest` to `longest` bytes. Values differ between runs.
    ///
    /// # Panics
    /// If `shortest` exceeds `longest`, or `longest` is 2³² − 1.
    pub fn new(shortest: u32, longest: u32, run: u64) -> Self {
        assert!(shortest <= longest && longest < u32::MAX);
        Values { shortest, lengths: longest - shortest + 1, run }
    }

    /// Returns the value of SET number `version` of key `number`.
    #[inline]
    pub fn value(&self, number: u64, version: u32) -> Value {
        // SplitMix64 of run, number and version.
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

/// Returns the version in a value's header.
pub fn version_of(head: [u8; HEAD]) -> u32 {
    u64::from_le_bytes(head) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_identifies_the_version_and_is_unique() {
        let values = Values::new(64, 64, 7);
        let head = values.value(5, 3).head;
        assert_eq!(version_of(head), 3);
        for other in [values.value(6, 3), values.value(5, 4), Values::new(64, 64, 8).value(5, 3)] {
            assert_ne!(other.head, head);
        }
        assert_eq!(values.value(5, 3).head, head);
    }

    #[test]
    fn lengths_are_evenly_distributed() {
        let values = Values::new(10, 19, 7);
        let mut seen = [0; 10];
        (0..10_000).for_each(|version| seen[values.value(1, version).len as usize - 10] += 1);
        assert!(seen.iter().all(|seen| (800..1200).contains(seen)), "{seen:?}");
        assert_eq!(Values::new(7, 7, 0).value(1, 1).len, 7);
    }
}
