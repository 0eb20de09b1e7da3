//! Keys are hashed without a store.

use super::{Key, Store};
use siphasher::sip::SipHasher13;

/// Makes keys, with the hash that all shards of a server have in common.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// The secret, in its two halves.
    secret: [u64; 2],
}

impl Keys {
    /// Those of stores whose [`Config::key`](super::Config::key) is `key`.
    pub fn new(key: &[u8; 16]) -> Self {
        let (low, high) = key.split_at(8);
        Keys { secret: [low, high].map(|half| half.iter().rfold(0, |word, byte| word << 8 | u64::from(*byte))) }
    }

    /// The hash function of `space`.
    #[inline(always)]
    fn of(&self, space: u8) -> SipHasher13 {
        SipHasher13::new_with_keys(self.secret[0] ^ u64::from(space), self.secret[1])
    }

    /// What has the hash `hash`, which this found before.
    #[inline]
    pub fn known<'a>(&self, space: u8, bytes: &'a [u8], hash: u64) -> Key<'a> {
        debug_assert_eq!(self.key(space, bytes).hash, hash);
        Key { space, bytes, hash }
    }

    /// `bytes` as a key of `space`, which is below [`SPACES`](super::SPACES).
    #[inline]
    pub fn key<'a>(&self, space: u8, bytes: &'a [u8]) -> Key<'a> {
        Key { space, bytes, hash: self.of(space).hash(bytes) }
    }

    /// The hash of a hash's field.
    pub(super) fn field(&self, name: &[u8]) -> u32 {
        self.of(u8::MAX).hash(name) as u32
    }
}

impl Store {
    /// Makes keys, for this store and all that have the same key.
    pub fn keys(&self) -> Keys {
        self.keys
    }
}
