//! Keys: `key:` and twelve hexadecimal digits of a number; and which number has which rank.

/// Bytes of a key.
pub const KEY: usize = 16;
/// There may be as many keys as twelve hexadecimal digits tell apart.
pub const MOST: u64 = 1 << 48;

/// The key of `number`, which is below [`MOST`].
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

/// `n` in eight hexadecimal digits, all of them at once: half a byte into each of eight bytes, and those into digits.
#[inline]
fn hex(n: u32) -> [u8; 8] {
    let mut x = u64::from(n);
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (x + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (x + 0x3030_3030_3030_3030 + letters * u64::from(b'a' - b'9' - 1)).to_be_bytes()
}

/// A fixed permutation of the numbers below some number: scatters the popular keys over all of them, the same ones in
/// every run and on every machine.
///
/// Multiplications and shifts, each of which permutes the numbers of so many bits (as in SplitMix64); what comes out
/// too large goes through them again, as often as it must (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
/// 2002), which is less than once on average.
#[derive(Debug, Clone, Copy)]
pub struct Scatter {
    below: u64,
    mask: u64,
    shift: u32,
}

impl Scatter {
    /// Of the numbers below `below`, which is at least 1 and at most [`MOST`].
    pub fn new(below: u64) -> Self {
        assert!((1..=MOST).contains(&below));
        let bits = u64::BITS - (below - 1).leading_zeros();
        Scatter { below, mask: (1 << bits) - 1, shift: bits.div_ceil(2).max(1) }
    }

    /// Where `number`, which is below what there are, goes.
    #[inline]
    pub fn of(&self, number: u64) -> u64 {
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
    fn every_number_comes_out_once() {
        for below in [1, 2, 3, 5, 8, 1000, 1024, 1025, 65_537] {
            let scatter = Scatter::new(below);
            let mut out: Vec<u64> = (0..below).map(|number| scatter.of(number)).collect();
            out.sort_unstable();
            assert!(out.into_iter().eq(0..below), "{below}");
        }
        let most = Scatter::new(MOST);
        assert!((0..1000).all(|number| most.of(number) < MOST));
    }

    #[test]
    fn neighbours_go_far_apart() {
        let below = 1_000_000;
        let scatter = Scatter::new(below);
        let mut out: Vec<u64> = (0..100).map(|number| scatter.of(number)).collect();
        out.sort_unstable();
        // As if by chance: all sixteenths have some of a hundred, and none has very many.
        for part in 0..16 {
            let there = out.iter().filter(|number| **number * 16 / below == part).count();
            assert!((1..20).contains(&there), "{part}: {there} of {out:?}");
        }
    }
}
