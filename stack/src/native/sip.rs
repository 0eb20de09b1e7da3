//! SipHash-c-d (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), a word at a time: what is hashed here is a
//! few numbers.

/// A key, and how many rounds there are for each word and at the end.
#[derive(Clone, Copy)]
pub(super) struct SipHash<const C: u32, const D: u32>([u64; 4]);

impl<const C: u32, const D: u32> SipHash<C, D> {
    /// With the key of these two words.
    pub fn new(low: u64, high: u64) -> Self {
        let [a, b, c, d] = [*b"somepseu", *b"dorandom", *b"lygenera", *b"tedbytes"].map(u64::from_be_bytes);
        SipHash([low ^ a, high ^ b, low ^ c, high ^ d])
    }

    /// Of the message so far and `word`.
    #[inline]
    pub fn with(mut self, word: u64) -> Self {
        self.0[3] ^= word;
        self.rounds::<C>();
        self.0[0] ^= word;
        self
    }

    /// The hash of the message, of `len` bytes in all; `end` are its last bytes, which do not make a word.
    #[inline]
    pub fn finish(self, end: u64, len: u8) -> u64 {
        let mut state = self.with(u64::from(len) << 56 | end);
        state.0[2] ^= 0xff;
        state.rounds::<D>();
        let [a, b, c, d] = state.0;
        a ^ b ^ c ^ d
    }

    #[inline]
    fn rounds<const N: u32>(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        for _ in 0..N {
            a = a.wrapping_add(b);
            c = c.wrapping_add(d);
            b = b.rotate_left(13) ^ a;
            d = d.rotate_left(16) ^ c;
            a = a.rotate_left(32).wrapping_add(d);
            c = c.wrapping_add(b);
            d = d.rotate_left(21) ^ a;
            b = b.rotate_left(17) ^ c;
            c = c.rotate_left(32);
        }
        self.0 = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::{DefaultHasher, Hasher};

    /// Appendix A of the paper.
    #[test]
    fn it_is_what_its_inventors_say() {
        let key = SipHash::<2, 4>::new(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(key.with(0x0706_0504_0302_0100).finish(0x0e_0d0c_0b0a_0908, 15), 0xa129_ca61_49be_45e5);
    }

    proptest! {
        /// The standard library's is SipHash-1-3 with a key of zeros.
        #[test]
        fn the_standard_library_agrees(words in prop::collection::vec(any::<u64>(), 0..6), end: Option<u32>) {
            let mut theirs = DefaultHasher::new();
            words.iter().for_each(|word| theirs.write(&word.to_le_bytes()));
            if let Some(end) = end {
                theirs.write(&end.to_le_bytes());
            }
            let ours = words.iter().fold(SipHash::<1, 3>::new(0, 0), |hash, word| hash.with(*word));
            let len = 8 * words.len() as u8 + if end.is_some() { 4 } else { 0 };
            prop_assert_eq!(ours.finish(end.unwrap_or_default().into(), len), theirs.finish());
        }
    }
}
