//! SipHash-1-3 of several keys at once, one key per SIMD lane.
//!
//! Each step of a hash depends on the step before, so a single hash cannot use the full width of the processor. Four
//! keys advance together instead.
//!
//! Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, §2, with one round per word and three at the end. A
//! key is split into words of eight bytes. The last word is padded with zeros and holds the key length in its highest
//! byte.

use wide::u64x4;

/// Keys hashed at once.
const LANES: usize = 4;
/// Limit of words per key, including the word with the length.
const WORDS: usize = 8;
/// Limit of keys per batch.
pub(super) const MAX_KEYS: usize = 16;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Keys to be hashed together.
#[derive(Debug, Default)]
pub struct HashBatch {
    keys: [KeyWords; MAX_KEYS],
    len: usize,
}

/// Key split into words.
#[derive(Debug, Default, Clone, Copy)]
struct KeyWords {
    words: [u64; WORDS],
    /// Number of words.
    count: u32,
    /// Id of the key.
    id: u32,
    /// Lower half of the secret.
    low: u64,
}

/// Returns the last word of `key`.
#[inline(always)]
fn last_word(key: &[u8]) -> u64 {
    let rest = key.len() % WORD;
    let bytes = match key.last_chunk() {
        // Shift out the bytes of the preceding word, in two steps because the shift may be 64 bits.
        Some(last) => u64::from_le_bytes(*last) >> 8 >> (56 - 8 * rest),
        None => key.iter().rfold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    bytes | (key.len() as u64) << 56
}

impl HashBatch {
    /// Returns true if the batch has no room for another key.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.len == MAX_KEYS
    }

    /// Adds `key` with the id `id`, to be hashed with a secret whose lower half is `low`. Returns false if the batch
    /// is full or the key is too long.
    #[inline(always)]
    pub fn push(&mut self, id: u32, low: u64, key: &[u8]) -> bool {
        let whole = key.len() / WORD;
        let Some(slot) = self.keys.get_mut(self.len).filter(|_| whole < WORDS) else { return false };
        if let ([first, second], _) = key.as_chunks::<WORD>() {
            // Most keys have two whole words: copy them without a loop.
            [slot.words[0], slot.words[1]] = [*first, *second].map(u64::from_le_bytes);
        } else {
            for (word, bytes) in slot.words.iter_mut().zip(key.as_chunks::<WORD>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        slot.words[whole] = last_word(key);
        (slot.count, slot.id, slot.low) = (whole as u32 + 1, id, low);
        self.len += 1;
        true
    }

    /// Calls `visit` with the number in the batch and the bytes of each key.
    pub fn each_key(&self, mut visit: impl FnMut(usize, &[u8])) {
        for (at, key) in self.keys[..self.len].iter().enumerate() {
            let mut bytes = [0; WORDS * WORD];
            let places = bytes.as_chunks_mut::<WORD>().0.iter_mut();
            places.zip(&key.words).for_each(|(place, word)| *place = word.to_le_bytes());
            let len = (key.words[key.count as usize - 1] >> 56) as usize;
            visit(at, &bytes[..len]);
        }
    }

    /// Passes the id of each key and its hash, with a secret whose upper half is `high`, to `take`. Empties the batch.
    #[inline(always)]
    pub fn hash_all(&mut self, high: u64, mut take: impl FnMut(u32, u64)) {
        let len = std::mem::take(&mut self.len);
        // Unused entries of the last group are stale. They are hashed as well, and their hashes are dropped.
        let (groups, _) = self.keys.as_chunks::<LANES>();
        for (group, first) in groups.iter().zip((0..len).step_by(LANES)) {
            let named = group.iter().map(|key| key.id).zip(hash(group, high));
            named.take(len - first).for_each(|(id, hash)| take(id, hash));
        }
    }
}

#[inline(always)]
fn hash(keys: &[KeyWords; LANES], high: u64) -> [u64; LANES] {
    let lanes = |of: fn(&KeyWords, usize) -> u64, at| u64x4::new([0, 1, 2, 3].map(|lane| of(&keys[lane], at)));
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
            // Keys that have ended keep their state.
            let goes_on = u64x4::new([a, b, c, d].map(|count| if at < count { u64::MAX } else { 0 }));
            state = std::array::from_fn(|of| next[of] & goes_on | state[of] & !goes_on);
        }
    }
    state[2] ^= u64x4::splat(0xff);
    let [a, b, c, d] = round(round(round(state)));
    (a ^ b ^ c ^ d).to_array()
}

/// Returns the state after absorbing `words`.
#[inline(always)]
fn absorbed([a, b, c, d]: [u64x4; 4], words: u64x4) -> [u64x4; 4] {
    let [a, b, c, d] = round([a, b, c, d ^ words]);
    [a ^ words, b, c, d]
}

#[inline(always)]
fn round([a, b, c, d]: [u64x4; 4]) -> [u64x4; 4] {
    let (a, c) = (a + b, c + d);
    let (b, d) = (rotate::<13>(b) ^ a, rotate::<16>(d) ^ c);
    let (a, c) = (rotate::<32>(a) + d, c + b);
    let (b, d) = (rotate::<17>(b) ^ c, rotate::<21>(d) ^ a);
    [a, b, rotate::<32>(c), d]
}

/// Rotates each lane to the left.
#[inline(always)]
fn rotate<const BY: u32>(lanes: u64x4) -> u64x4 {
    lanes << BY | lanes >> (u64::BITS - BY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use siphasher::sip::SipHasher13;

    #[test]
    fn batch_hashes_equal_single_hashes() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut batch = HashBatch::default();
        for round in 0..20_000 {
            let high = random.u64(..);
            let longest = if round % 2 == 0 { WORDS * WORD - 1 } else { 20 };
            let (mut expected, mut keys) = (Vec::new(), Vec::new());
            for _ in 0..random.usize(..=MAX_KEYS) {
                let (low, len) = (random.u64(..), random.usize(..=longest));
                let key: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                let id = random.u32(..);
                assert!(batch.push(id, low, &key));
                expected.push((id, SipHasher13::new_with_keys(low, high).hash(&key)));
                keys.push(key);
            }
            batch.each_key(|at, key| assert_eq!(keys[at], key));
            assert_eq!(batch.is_full(), expected.len() == MAX_KEYS);
            let mut hashes = Vec::new();
            batch.hash_all(high, |id, hash| hashes.push((id, hash)));
            assert_eq!(hashes, expected);
        }
    }

    #[test]
    fn batch_refuses_long_keys_and_a_seventeenth() {
        let mut batch = HashBatch::default();
        assert!(!batch.push(0, 0, &[b'k'; WORDS * WORD]));
        (0..MAX_KEYS).for_each(|_| assert!(batch.push(0, 0, &[b'k'; WORDS * WORD - 1])));
        assert!(batch.is_full() && !batch.push(0, 0, b"key"));
    }
}
