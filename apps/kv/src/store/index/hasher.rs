//! Hashing of keys, independent of a store.

use crate::cluster::{hash_with_slot, key_slot};
use crate::store::index::siphash::{HashBatch, MAX_KEYS};
use crate::store::{KEYSPACES, Key, Store};
use siphasher::sip::SipHasher13;

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

    /// Returns the hash of a field name.
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
}
