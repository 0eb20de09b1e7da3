//! Keys are hashed without a store.

use crate::store::index::siphash::Batch;
use crate::store::{Key, SPACES, Store};
use siphasher::sip::SipHasher13;

/// Makes keys, with the hash that all shards of a server have in common.
#[derive(Debug, Clone)]
pub struct Keys {
    /// The hash functions of keyspaces.
    of: [SipHasher13; SPACES],
    /// That of names of fields.
    of_fields: SipHasher13,
    /// The halves of what they are all made of.
    halves: [u64; 2],
}

impl Keys {
    /// Those of stores whose [`Config::key`](crate::store::Config::key) is `key`.
    pub fn new(key: &[u8; 16]) -> Self {
        let (low, high) = key.split_at(8);
        let [low, high] = [low, high].map(|half| half.iter().rfold(0, |word, byte| word << 8 | u64::from(*byte)));
        let of = |space: u8| SipHasher13::new_with_keys(low ^ u64::from(space), high);
        Keys { of: std::array::from_fn(|space| of(space as u8)), of_fields: of(u8::MAX), halves: [low, high] }
    }

    /// What has the hash `hash`, which this found before.
    #[inline]
    pub fn known<'a>(&self, space: u8, bytes: &'a [u8], hash: u64) -> Key<'a> {
        debug_assert_eq!(self.key(space, bytes).hash, hash);
        Key { space, bytes, hash }
    }

    /// `bytes` as a key of `space`, which is below [`SPACES`](crate::store::SPACES).
    #[inline]
    pub fn key<'a>(&self, space: u8, bytes: &'a [u8]) -> Key<'a> {
        Key { space, bytes, hash: self.of[usize::from(space)].hash(bytes) }
    }

    /// Adds the key `bytes` of `space`, which is called `name`, to those that are to be hashed together. Returns whether there was
    /// room, and it is not too long for that.
    #[inline(always)]
    pub fn add(&self, batch: &mut Batch, name: u32, space: u8, bytes: &[u8]) -> bool {
        batch.push(name, self.halves[0] ^ u64::from(space), bytes)
    }

    /// Tells `take` what each key of `batch` is called, and its hash. None is left of them.
    #[inline(always)]
    pub fn hash_all(&self, batch: &mut Batch, take: impl FnMut(u32, u64)) {
        batch.hash_all(self.halves[1], take);
    }

    /// The hash of a hash's field.
    pub(in crate::store) fn field(&self, name: &[u8]) -> u32 {
        self.of_fields.hash(name) as u32
    }
}

impl Store {
    /// Makes keys, for this store and all that have the same key.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_siphash_with_the_key_of_the_space() {
        let secret: [u8; 16] = std::array::from_fn(|n| n as u8 * 16 + 1);
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(*secret[at..].first_chunk().unwrap()));
        let keys = Keys::new(&secret);
        let mut batch = Batch::default();
        for space in 0..SPACES as u8 {
            let expected = SipHasher13::new_with_keys(low ^ u64::from(space), high).hash(b"key");
            assert_eq!(keys.key(space, b"key").hash(), expected);
            assert!(keys.add(&mut batch, 7, space, b"key"));
            let mut hashes = Vec::new();
            keys.hash_all(&mut batch, |name, hash| hashes.push((name, hash)));
            assert_eq!(hashes, [(7, expected)]);
        }
        assert!(!keys.add(&mut batch, 7, 0, &[b'k'; 64]));
        assert_eq!(keys.field(b"key"), SipHasher13::new_with_keys(low ^ 255, high).hash(b"key") as u32);
    }
}
