//! Watched keys of a client.

use crate::shards::{Placement, ShardSet, Shards};
use crate::store::Key;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

/// Maximum number of watched keys. It bounds the time of `EXEC` and `UNWATCH`.
pub(in crate::commands) const MAX_WATCHED: usize = 1 << 16;
/// Memory of an entry here and in the shard's table, including the free space of both tables.
const ENTRY: usize = 160;
/// Capacity that an emptied table keeps.
const MIN_CAPACITY: usize = 16;

/// Hash of a key, which depends on the keyspace.
#[derive(Debug, Clone, Copy, Eq)]
struct KeyHash(u64);

/// State of a key when the watch began.
#[derive(Debug)]
struct Watched {
    space: u8,
    key: Box<[u8]>,
    version: u64,
    /// Number of flushes of the keyspace, if the key existed.
    flushes: Option<u64>,
}

/// Watched keys of a client.
///
/// Entries are found by the hash of the key. Shards note changes by the same hash, so a second key with the same hash
/// needs no entry.
#[derive(Debug, Default)]
pub(in crate::commands) struct WatchedKeys {
    keys: HashMap<KeyHash, Watched>,
    bytes: usize,
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
        self.0 == other.0
    }
}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

impl WatchedKeys {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Watches `key`, whose shard is one of `shards`. Returns false if the client watches [`MAX_WATCHED`] other keys.
    pub fn watch(&mut self, key: &Key<'_>, shards: &mut Shards<'_>, now: u64) -> bool {
        if self.keys.contains_key(&KeyHash(key.hash())) {
            return true;
        }
        if self.keys.len() == MAX_WATCHED {
            return false;
        }
        let store = shards.store(key);
        // A key that has expired by now does not count as changed when it is removed.
        let exists = store.exists(key, now);
        let flushes = exists.then(|| store.flushes(key.space));
        let watched = Watched { space: key.space, key: key.bytes.into(), version: store.watch(key), flushes };
        self.bytes += ENTRY + watched.key.len();
        self.keys.insert(KeyHash(key.hash()), watched);
        true
    }

    /// Returns true if a watched key has changed. Its shard is one of `shards`.
    pub fn is_changed(&self, shards: &mut Shards<'_>, now: u64) -> bool {
        self.keys.iter().any(|(hash, watched)| {
            let key = watched.key(*hash);
            let store = shards.store(&key);
            // The lookup removes an expired key, which counts as a change.
            store.exists(&key, now);
            store.version(&key) != watched.version
                || watched.flushes.is_some_and(|flushes| flushes != store.flushes(watched.space))
        })
    }

    pub fn shards(&self, placement: &Placement) -> ShardSet {
        self.keys.keys().map(|hash| placement.shard_of(hash.0)).collect()
    }

    /// Ends up to `most` watches. Returns true if none is left. The shards of the keys are among `shards`.
    pub fn clear_some(&mut self, shards: &mut Shards<'_>, most: usize) -> bool {
        if self.keys.len() <= most {
            self.clear(shards);
            return true;
        }
        let some: Vec<KeyHash> = self.keys.keys().take(most).copied().collect();
        for hash in some {
            if let Some(watched) = self.keys.remove(&hash) {
                let key = watched.key(hash);
                shards.store(&key).unwatch(&key);
                self.bytes -= ENTRY + watched.key.len();
            }
        }
        false
    }

    /// Ends all watches. The shards of the keys are among `shards`.
    pub fn clear(&mut self, shards: &mut Shards<'_>) {
        for (hash, watched) in self.keys.drain() {
            let key = watched.key(hash);
            shards.store(&key).unwatch(&key);
        }
        self.keys.shrink_to(MIN_CAPACITY);
        self.bytes = 0;
    }
}

impl Watched {
    fn key(&self, hash: KeyHash) -> Key<'_> {
        Key::with_hash(self.space, &self.key, hash.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::TestClient;
    use std::cell::Cell;

    thread_local! {
        /// Number of comparisons of hashes.
        pub static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    fn names(range: std::ops::Range<usize>) -> String {
        range.map(|n| format!(" k{n}")).collect()
    }

    #[test]
    fn watch_of_many_keys_takes_linear_work() {
        const KEYS: usize = 60_000;
        for mut client in TestClient::each() {
            for from in (0..KEYS).step_by(4000) {
                client.expect(&format!("watch{}", names(from..from + 4000)), "+OK");
            }
            client.expect("watch k0 k59999 k7", "+OK");
            client.expect("multi", "+OK");
            client.expect("exec", "*0");
            let comparisons = COMPARISONS.replace(0);
            assert!(comparisons < 2 * KEYS, "{comparisons} comparisons");
            assert!(client.session.watched.is_empty());
        }
    }

    #[test]
    fn number_of_watched_keys_is_bounded() {
        for mut client in TestClient::each() {
            for from in (0..MAX_WATCHED).step_by(4096) {
                client.expect(&format!("watch{}", names(from..from + 4096)), "+OK");
            }
            client.expect("watch other", "-ERR too many watched keys: 65536 at most");
            client.expect("watch k0", "+OK");
            client.expect("unwatch", "+OK");
            client.expect("watch other", "+OK");
        }
    }

    #[test]
    fn memory_of_watched_keys_counts_as_queued_until_the_watch_ends() {
        for mut client in TestClient::each() {
            let key = "k".repeat(1000);
            client.expect(&format!("watch {key}"), "+OK");
            assert_eq!(client.session.queued_bytes(), ENTRY + 1000);
            client.expect(&format!("watch {key}"), "+OK");
            assert_eq!(client.session.queued_bytes(), ENTRY + 1000);
            for end in ["unwatch", "reset"] {
                client.run(end);
                assert_eq!(client.session.queued_bytes(), 0, "{end}");
                client.expect(&format!("watch {key}"), "+OK");
            }
        }
    }
}
