//! Keys that somebody waits for a change of.

use std::collections::HashMap;

/// Watched keys, by hash: that another of the same hash counts as well does no harm.
#[derive(Default)]
pub(crate) struct Watches {
    keys: HashMap<u64, Watch>,
    /// Changes of watched keys, so far.
    changes: u64,
}

struct Watch {
    by: usize,
    space: u8,
    version: u64,
}

impl Watches {
    /// The key is watched by one more. Returns its version.
    pub fn watch(&mut self, hash: u64, space: u8) -> u64 {
        let watch = self.keys.entry(hash).or_insert(Watch { by: 0, space, version: self.changes });
        watch.by += 1;
        watch.version
    }

    /// The key is watched by one less.
    pub fn unwatch(&mut self, hash: u64) {
        if let Some(watch) = self.keys.get_mut(&hash) {
            watch.by -= 1;
            if watch.by == 0 {
                self.keys.remove(&hash);
            }
        }
    }

    /// Whether no key is watched.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The version of a key that is watched, another one after every change.
    pub fn version(&self, hash: u64) -> u64 {
        self.keys.get(&hash).map_or(0, |watch| watch.version)
    }

    /// The key has changed.
    #[inline]
    pub fn changed(&mut self, hash: u64) {
        if !self.keys.is_empty() {
            self.note(hash);
        }
    }

    #[cold]
    fn note(&mut self, hash: u64) {
        if let Some(watch) = self.keys.get_mut(&hash) {
            self.changes += 1;
            watch.version = self.changes;
        }
    }

    /// All keys of `space` have changed that `was_there` says yes to.
    pub fn flushed(&mut self, space: u8, was_there: impl Fn(u64) -> bool) {
        self.changes += 1;
        for (_, watch) in self.keys.iter_mut().filter(|(hash, watch)| watch.space == space && was_there(**hash)) {
            watch.version = self.changes;
        }
    }
}
