//! Keys: `key:` and a number in twelve hexadecimal digits; and the permutation from popularity ranks to numbers.

/// Key length in bytes.
pub const KEY: usize = 16;
/// Number of keys that twelve hexadecimal digits can name.
pub const MOST: u64 = 1 << 48;

/// Returns the key of `number`, which is below [`MOST`].
#[inline]
pub fn key(number: u64) -> [u8; KEY] {
    debug_assert!(number < MOST);
    let mut key = *b"key:0000........";
    if number >> 32 != 0 {
        key[4..8].copy_from_slice(&hex((number >> 32) as u32)[4..]);
    }
    key[8..].copy_from_slice(&hex(number as u32));
    key
}

/// Returns `n` in eight hexadecimal digits. Spreads the nibbles over eight bytes and converts them together.
#[inline]
fn hex(n: u32) -> [u8; 8] {
    let mut x = u64::from(n);
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (x + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (x + 0x3030_3030_3030_3030 + letters * u64::from(b'a' - b'9' - 1)).to_be_bytes()
}

/// Fixed permutation of the numbers below a limit. It scatters the popular keys over all keys, identically in every run
/// and on every machine.
///
/// Additions, multiplications and shifts as in SplitMix64 permute the numbers of as many bits as the limit has. A
/// result beyond the limit is permuted again until it is below (cycle walking; Black and Rogaway, "Ciphers with
/// Arbitrary Finite Domains", 2002), which takes less than one extra step on average.
#[derive(Debug, Clone, Copy)]
pub struct Scatter {
    below: u64,
    mask: u64,
    shift: u32,
}

impl Scatter {
    /// Creates a permutation of the numbers below `below`, which is at least 1 and at most [`MOST`].
    pub fn new(below: u64) -> Self {
        assert!((1..=MOST).contains(&below));
        let bits = u64::BITS - (below - 1).leading_zeros();
        Scatter { below, mask: (1 << bits) - 1, shift: bits.div_ceil(2).max(1) }
    }

    /// Returns the image of `number`, which is below the limit.
    #[inline]
    pub fn place(&self, number: u64) -> u64 {
        let mut x = number;
        loop {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_mul(0x94d0_49bb_1331_11eb) & self.mask;
            x ^= x >> self.shift;
            if x < self.below {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_their_numbers_in_hexadecimal() {
        let numbers = (0..1000).chain((0..48).map(|bit| 1 << bit)).chain((1..49).map(|bits| (1 << bits) - 1));
        for number in numbers.chain([0x0123_4567_89ab, 0xcdef_0a9f_9af0]) {
            assert_eq!(std::str::from_utf8(&key(number)).unwrap(), format!("key:{number:012x}"));
        }
    }

    #[test]
    fn scatter_is_a_permutation() {
        for below in [1, 2, 3, 5, 8, 1000, 1024, 1025, 65_537] {
            let scatter = Scatter::new(below);
            let mut out: Vec<u64> = (0..below).map(|number| scatter.place(number)).collect();
            out.sort_unstable();
            assert!(out.into_iter().eq(0..below), "{below}");
        }
        let most = Scatter::new(MOST);
        assert!((0..1000).all(|number| most.place(number) < MOST));
    }

    #[test]
    fn scatter_separates_neighbours() {
        let below = 1_000_000;
        let scatter = Scatter::new(below);
        let mut out: Vec<u64> = (0..100).map(|number| scatter.place(number)).collect();
        out.sort_unstable();
        // As in a random distribution: of a hundred numbers every sixteenth of the range has some, and none has very
        // many.
        for part in 0..16 {
            let there = out.iter().filter(|number| **number * 16 / below == part).count();
            assert!((1..20).contains(&there), "{part}: {there} of {out:?}");
        }
    }
}
