//! Keys are hashed without a store.

use super::{Key, Store};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Makes keys, with the hash that all shards of a server have in common.
#[derive(Debug, Clone, Copy)]
pub struct Keys(pub(super) SipHasher13);

impl Keys {
    /// Those of stores whose [`Config::key`](super::Config::key) is `key`.
    pub fn new(key: &[u8; 16]) -> Self {
        Keys(SipHasher13::new_with_key(key))
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
        let mut hasher = self.0;
        hasher.write(bytes);
        hasher.write_u8(space);
        Key { space, bytes, hash: hasher.finish() }
    }
}

impl Store {
    /// Makes keys, for this store and all that have the same key.
    pub fn keys(&self) -> Keys {
        Keys(self.hasher)
    }
}
