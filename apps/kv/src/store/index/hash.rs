//! Hashing of keys: SipHash-1-3 with a secret, of one key or of several at once, one key per SIMD lane.
//!
//! Each step of a hash depends on the step before, so a single hash cannot use the full width of the processor. Four
//! keys advance together instead.
//!
//! Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, §2, with one round per word and three at the end. A
//! key is split into words of eight bytes. The last word is padded with zeros and holds the key length in its highest
//! byte.

use crate::cluster::{hash_with_slot, key_slot};
use crate::store::{KEYSPACES, Key, Store};
use siphasher::sip::SipHasher13;
use wide::u64x4;

/// Hash functions of keys and fields, common to all shards of a server.
#[derive(Debug, Clone)]
pub struct KeyHasher {
    /// Hash function of each keyspace.
    of: [SipHasher13; KEYSPACES],
    /// Hash function of field names.
    of_fields: SipHasher13,
    /// Halves of the secret.
    halves: [u64; 2],
    /// Hashes of keys contain their cluster slots.
    has_slots: bool,
}

impl KeyHasher {
    /// Creates the hash functions for the secret `key` ([`Config::key`](crate::store::Config::key)).
    pub fn new(key: &[u8; 16]) -> Self {
        let (low, high) = key.split_at(8);
        let [low, high] = [low, high].map(|half| half.iter().rfold(0, |word, byte| word << 8 | u64::from(*byte)));
        let of = |space: u8| SipHasher13::new_with_keys(low ^ u64::from(space), high);
        KeyHasher {
            of: std::array::from_fn(|space| of(space as u8)),
            of_fields: of(u8::MAX),
            halves: [low, high],
            has_slots: false,
        }
    }

    /// Puts the cluster slots of keys into their hashes if `has_slots`.
    #[must_use]
    pub fn with_slots(self, has_slots: bool) -> Self {
        KeyHasher { has_slots, ..self }
    }

    /// Returns the key with `hash`, which this hasher computed earlier.
    #[inline]
    pub fn key_with_hash<'a>(&self, space: u8, bytes: &'a [u8], hash: u64) -> Key<'a> {
        debug_assert_eq!(self.key(space, bytes).hash, hash);
        Key { space, bytes, hash }
    }

    /// Returns `bytes` as a key of `space`, which is below [`KEYSPACES`](crate::store::KEYSPACES).
    #[inline]
    pub fn key<'a>(&self, space: u8, bytes: &'a [u8]) -> Key<'a> {
        let mut hash = self.of[usize::from(space)].hash(bytes);
        if self.has_slots {
            hash = hash_with_slot(hash, key_slot(bytes));
        }
        Key { space, bytes, hash }
    }

    /// Adds the key `bytes` of `space` with the id `name` to `batch`. Returns false if the batch is full or the key is
    /// too long for it.
    #[inline(always)]
    pub fn add(&self, batch: &mut HashBatch, name: u32, space: u8, bytes: &[u8]) -> bool {
        batch.push(name, self.halves[0] ^ u64::from(space), bytes)
    }

    /// Passes the id and hash of each key of `batch` to `take`, and empties the batch.
    #[inline]
    pub fn hash_all(&self, batch: &mut HashBatch, mut take: impl FnMut(u32, u64)) {
        if !self.has_slots {
            return self.hash_all_without_slots(batch, take);
        }
        let mut slots = [0; MAX_KEYS];
        batch.each_key(|at, key| slots[at] = key_slot(key));
        let mut slots = slots.iter();
        batch.hash_all(self.halves[1], |name, hash| {
            take(name, slots.next().map_or(hash, |slot| hash_with_slot(hash, *slot)));
        });
    }

    /// [`hash_all`](Self::hash_all) of a hasher [without slots](Self::with_slots).
    #[inline(always)]
    pub fn hash_all_without_slots(&self, batch: &mut HashBatch, take: impl FnMut(u32, u64)) {
        debug_assert!(!self.has_slots);
        batch.hash_all(self.halves[1], take);
    }

    pub(in crate::store) fn hash_field(&self, name: &[u8]) -> u32 {
        self.of_fields.hash(name) as u32
    }
}

impl Store {
    /// Returns the key hasher, which is common to all stores with the same secret.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }
}

/// Keys hashed at once.
const LANES: usize = 4;
/// Limit of words per key, including the word with the length.
const WORDS: usize = 8;
/// Limit of keys per batch.
const MAX_KEYS: usize = 16;
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
    id: u32,
    /// Lower half of the secret.
    low: u64,
}

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
        // The last group may end with keys of earlier batches, whose hashes are dropped.
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

#[inline(always)]
fn rotate<const BY: u32>(lanes: u64x4) -> u64x4 {
    lanes << BY | lanes >> (u64::BITS - BY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::slot_of_hash;

    #[test]
    fn hashes_contain_slots_of_single_keys_and_of_batches() {
        let keys = KeyHasher::new(b"0123456789abcdef").with_slots(true);
        let names: Vec<String> = (0..MAX_KEYS).map(|n| format!("{}{{tag{n}}}{n}", "x".repeat(n))).collect();
        let mut batch = HashBatch::default();
        for (id, name) in names.iter().enumerate() {
            assert!(keys.add(&mut batch, id as u32, 0, name.as_bytes()));
        }
        let mut count = 0;
        keys.hash_all(&mut batch, |id, hash| {
            let name = names[id as usize].as_bytes();
            assert_eq!((hash, slot_of_hash(hash)), (keys.key(0, name).hash(), key_slot(name)));
            count += 1;
        });
        assert_eq!(count, MAX_KEYS);
    }

    #[test]
    fn keys_are_hashed_with_secret_of_their_space() {
        let secret: [u8; 16] = std::array::from_fn(|n| n as u8 * 16 + 1);
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(*secret[at..].first_chunk().unwrap()));
        let keys = KeyHasher::new(&secret);
        let mut batch = HashBatch::default();
        for space in 0..KEYSPACES as u8 {
            let expected = SipHasher13::new_with_keys(low ^ u64::from(space), high).hash(b"key");
            assert_eq!(keys.key(space, b"key").hash(), expected);
            assert!(keys.add(&mut batch, 7, space, b"key"));
            let mut hashes = Vec::new();
            keys.hash_all(&mut batch, |name, hash| hashes.push((name, hash)));
            assert_eq!(hashes, [(7, expected)]);
        }
        assert!(!keys.add(&mut batch, 7, 0, &[b'k'; 64]));
        assert_eq!(keys.hash_field(b"key"), SipHasher13::new_with_keys(low ^ 255, high).hash(b"key") as u32);
    }

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
