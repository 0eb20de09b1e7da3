//! SipHash-1-3 of several keys at once, lane by lane of the processor's vectors: each step of one key's hash waits for the step before,
//! and four keys take it together.
//!
//! Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, §2, with one round for each word and three at the end. A key is
//! taken in words of eight bytes, the last filled up with zeros and, in its highest byte, the key's length.

use wide::u64x4;

/// Keys that are hashed at once.
const LANES: usize = 4;
/// Words of a key at most, the one with its length included.
const WORDS: usize = 8;
/// Keys of a batch at most.
const MOST: usize = 16;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Keys that are to be hashed together.
#[derive(Debug, Default)]
pub struct Batch {
    keys: [Words; MOST],
    len: usize,
}

/// A key in words.
#[derive(Debug, Default, Clone, Copy)]
struct Words {
    words: [u64; WORDS],
    /// How many.
    count: u32,
    /// What it is called.
    name: u32,
    /// The lower half of the secret that it is hashed by.
    low: u64,
}

/// The word that `key` ends with.
#[inline(always)]
fn last_word(key: &[u8]) -> u64 {
    let rest = key.len() % WORD;
    let bytes = match key.last_chunk() {
        // Those of the word before it are shifted out: twice, as there may be 64 bits of them.
        Some(last) => u64::from_le_bytes(*last) >> 8 >> (56 - 8 * rest),
        None => key.iter().rfold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    bytes | (key.len() as u64) << 56
}

impl Batch {
    /// Whether there is no room for another key.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.len == MOST
    }

    /// Adds `key`, which is called `name`, to be hashed by a secret of which `low` is the lower half. Returns whether there was room,
    /// and it is not too long.
    #[inline(always)]
    pub fn push(&mut self, name: u32, low: u64, key: &[u8]) -> bool {
        let whole = key.len() / WORD;
        let Some(place) = self.keys.get_mut(self.len).filter(|_| whole < WORDS) else { return false };
        if let ([first, second], _) = key.as_chunks::<WORD>() {
            // As most have: without a loop.
            [place.words[0], place.words[1]] = [*first, *second].map(u64::from_le_bytes);
        } else {
            for (word, bytes) in place.words.iter_mut().zip(key.as_chunks::<WORD>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        place.words[whole] = last_word(key);
        (place.count, place.name, place.low) = (whole as u32 + 1, name, low);
        self.len += 1;
        true
    }

    /// Tells `take` what each key is called, and its hash by a secret of which `high` is the upper half. It is empty then.
    #[inline(always)]
    pub fn hash_all(&mut self, high: u64, mut take: impl FnMut(u32, u64)) {
        let len = std::mem::take(&mut self.len);
        // Whatever is left in the places of a group that are not taken is hashed with the others.
        let (groups, _) = self.keys.as_chunks::<LANES>();
        for (group, first) in groups.iter().zip((0..len).step_by(LANES)) {
            let named = group.iter().map(|key| key.name).zip(hash(group, high));
            named.take(len - first).for_each(|(name, hash)| take(name, hash));
        }
    }
}

/// The hashes of `keys`.
#[inline(always)]
fn hash(keys: &[Words; LANES], high: u64) -> [u64; LANES] {
    let lanes = |of: fn(&Words, usize) -> u64, at| u64x4::new([0, 1, 2, 3].map(|lane| of(&keys[lane], at)));
    let (low, high) = (lanes(|key, _| key.low, 0), u64x4::splat(high));
    // The initial state spells "somepseudorandomlygeneratedbytes".
    let mut state = [
        low ^ u64x4::splat(0x736f_6d65_7073_6575),
        high ^ u64x4::splat(0x646f_7261_6e64_6f6d),
        low ^ u64x4::splat(0x6c79_6765_6e65_7261),
        high ^ u64x4::splat(0x7465_6462_7974_6573),
    ];
    let [a, b, c, d] = [0, 1, 2, 3].map(|lane: usize| keys[lane].count as usize);
    let (fewest, most) = (a.min(b).min(c.min(d)), a.max(b).max(c.max(d)));
    for at in 0..most.min(WORDS) {
        let next = absorbed(state, lanes(|key, at| key.words[at], at));
        if at < fewest {
            state = next;
        } else {
            // Keys that have ended stay as they are.
            let goes_on = u64x4::new([a, b, c, d].map(|count| if at < count { u64::MAX } else { 0 }));
            state = std::array::from_fn(|of| next[of] & goes_on | state[of] & !goes_on);
        }
    }
    state[2] ^= u64x4::splat(0xff);
    let [a, b, c, d] = round(round(round(state)));
    (a ^ b ^ c ^ d).to_array()
}

/// `state`, when it has taken in `words`.
#[inline(always)]
fn absorbed([a, b, c, d]: [u64x4; 4], words: u64x4) -> [u64x4; 4] {
    let [a, b, c, d] = round([a, b, c, d ^ words]);
    [a ^ words, b, c, d]
}

/// SipRound.
#[inline(always)]
fn round([a, b, c, d]: [u64x4; 4]) -> [u64x4; 4] {
    let (a, c) = (a + b, c + d);
    let (b, d) = (rotate::<13>(b) ^ a, rotate::<16>(d) ^ c);
    let (a, c) = (rotate::<32>(a) + d, c + b);
    let (b, d) = (rotate::<17>(b) ^ c, rotate::<21>(d) ^ a);
    [a, b, rotate::<32>(c), d]
}

/// Each lane rotated to the left.
#[inline(always)]
fn rotate<const BY: u32>(lanes: u64x4) -> u64x4 {
    lanes << BY | lanes >> (u64::BITS - BY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use siphasher::sip::SipHasher13;

    #[test]
    fn hashes_are_those_of_keys_one_by_one() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut batch = Batch::default();
        for round in 0..20_000 {
            let high = random.u64(..);
            let longest = if round % 2 == 0 { WORDS * WORD - 1 } else { 20 };
            let mut expected = Vec::new();
            for _ in 0..random.usize(..=MOST) {
                let (low, key) = (random.u64(..), vec![random.u8(..); random.usize(..=longest)]);
                let name = random.u32(..);
                assert!(batch.push(name, low, &key));
                expected.push((name, SipHasher13::new_with_keys(low, high).hash(&key)));
            }
            assert_eq!(batch.is_full(), expected.len() == MOST);
            let mut hashes = Vec::new();
            batch.hash_all(high, |name, hash| hashes.push((name, hash)));
            assert_eq!(hashes, expected);
        }
    }

    #[test]
    fn keys_that_are_too_long_and_too_many_are_not_taken() {
        let mut batch = Batch::default();
        assert!(!batch.push(0, 0, &[b'k'; WORDS * WORD]));
        (0..MOST).for_each(|_| assert!(batch.push(0, 0, &[b'k'; WORDS * WORD - 1])));
        assert!(batch.is_full() && !batch.push(0, 0, b"key"));
    }
}
