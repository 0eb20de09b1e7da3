//! Versions of each key that a GET may return.
//!
//! Every SET writes the key's next version. A GET must not return a version that was never sent, nor one that was
//! certainly overwritten before the GET. Version v is overwritten if a SET w of the key was sent after v had been
//! acknowledged, and w was acknowledged before the GET was sent. Concurrent SETs of a key may be executed in any order,
//! so either version may remain.
//!
//! Remembering every SET is avoided by counting versions in two batches, like epochs: those outstanding when the
//! previous batch closed, and those sent since. When the older batch is completely acknowledged, everything up to its
//! last version is *settled* and the younger batch closes. The check is exact for a key with at most one outstanding
//! SET at a time. For other keys it accepts outdated versions of about two round trips. A SET with unknown outcome,
//! because its connection was lost, may be executed at any time: from then on nothing more settles for its key.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Versions of all keys, shared by all workers.
#[derive(Debug)]
pub struct Versions {
    keys: Box<[Mutex<Key>]>,
}

#[derive(Debug, Default)]
struct Key {
    /// Last version sent.
    issued: u32,
    /// Last version of the older batch; later ones belong to the younger batch.
    closed: u32,
    /// Every version up to this one has been answered.
    settled: u32,
    /// Every version before this one has been overwritten.
    lowest: u32,
    older_outstanding: u32,
    younger_outstanding: u32,
}

// The help text of `--verify` states this size.
const _: () = assert!(size_of::<Mutex<Key>>() <= 32);

/// An outstanding SET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    pub version: u32,
    /// Last settled version when the SET was sent.
    pub settled: u32,
}

impl Versions {
    /// Creates the state of `keys` unwritten keys.
    pub fn new(keys: usize) -> Self {
        Versions { keys: (0..keys).map(|_| Mutex::default()).collect() }
    }

    fn lock(&self, number: u64) -> MutexGuard<'_, Key> {
        // Every update leaves the numbers consistent, so a poisoned lock can be used.
        self.keys[number as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates the version of a SET of key `number` about to be sent.
    pub fn issue(&self, number: u64) -> Issued {
        let mut key = self.lock(number);
        key.issued = key.issued.wrapping_add(1);
        key.younger_outstanding += 1;
        Issued { version: key.issued, settled: key.settled }
    }

    /// Records the answer to a SET: `done`, or refused.
    pub fn answered(&self, number: u64, set: Issued, done: bool) {
        let mut key = self.lock(number);
        if done {
            key.lowest = key.lowest.max(set.settled + 1);
        }
        if set.version <= key.closed {
            key.older_outstanding -= 1;
        } else {
            key.younger_outstanding -= 1;
        }
        // Twice: without outstanding SETs both batches are complete.
        for _ in 0..2 {
            if key.older_outstanding == 0 {
                key.settled = key.closed;
                key.closed = key.issued;
                key.older_outstanding = std::mem::take(&mut key.younger_outstanding);
            }
        }
    }

    /// Returns the lowest valid version for a GET sent now.
    pub fn lowest(&self, number: u64) -> u32 {
        self.lock(number).lowest
    }

    /// Returns the highest valid version for a GET answered now.
    pub fn highest(&self, number: u64) -> u32 {
        self.lock(number).issued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_sets_leave_only_the_last_version_valid() {
        let versions = Versions::new(2);
        for version in 1..100 {
            let set = versions.issue(1);
            assert_eq!(set, Issued { version, settled: version - 1 });
            assert_eq!((versions.lowest(1), versions.highest(1)), (version - 1, version), "it may have been done");
            versions.answered(1, set, true);
            assert_eq!((versions.lowest(1), versions.highest(1)), (version, version));
        }
        assert_eq!((versions.lowest(0), versions.highest(0)), (0, 0));
    }

    #[test]
    fn any_of_concurrent_sets_may_remain() {
        let versions = Versions::new(1);
        let first = versions.issue(0);
        versions.answered(0, first, true);
        let (a, b) = (versions.issue(0), versions.issue(0));
        versions.answered(0, b, true);
        assert_eq!(versions.lowest(0), a.version, "a may be done after b");
        versions.answered(0, a, true);
        assert_eq!(versions.lowest(0), a.version, "or before it");
        let c = versions.issue(0);
        versions.answered(0, c, true);
        assert_eq!(versions.lowest(0), c.version);
    }

    #[test]
    fn refused_set_overwrites_nothing() {
        let versions = Versions::new(1);
        let (first, second) = (versions.issue(0), versions.issue(0));
        versions.answered(0, first, true);
        versions.answered(0, second, false);
        assert_eq!(versions.lowest(0), 1);
        let third = versions.issue(0);
        versions.answered(0, third, false);
        assert_eq!(versions.lowest(0), 1);
        let fourth = versions.issue(0);
        versions.answered(0, fourth, true);
        assert_eq!(versions.lowest(0), fourth.version);
    }

    #[test]
    fn unanswered_set_may_be_executed_at_any_time() {
        let versions = Versions::new(1);
        let first = versions.issue(0);
        versions.answered(0, first, true);
        let lost = versions.issue(0);
        for _ in 0..10 {
            let set = versions.issue(0);
            versions.answered(0, set, true);
            assert!((first.version..=lost.version).contains(&versions.lowest(0)));
        }
    }

    /// Compares with the definition, with all SETs remembered: valid versions are accepted, and long overwritten ones
    /// refused.
    #[test]
    fn refused_versions_have_been_overwritten() {
        let mut rng = fastrand::Rng::with_seed(3);
        let versions = Versions::new(1);
        // Send and answer time of each SET, and indices of unanswered ones.
        let mut sets: Vec<(Issued, usize, Option<usize>)> = Vec::new();
        let mut waiting = Vec::new();
        for now in 0..20_000 {
            if waiting.len() < 8 && rng.bool() {
                waiting.push(sets.len());
                sets.push((versions.issue(0), now, None));
            } else if !waiting.is_empty() {
                let i = waiting.swap_remove(rng.usize(..waiting.len()));
                sets[i].2 = Some(now);
                versions.answered(0, sets[i].0, true);
            }
            let lowest = versions.lowest(0);
            let recent = sets.len().saturating_sub(200);
            let answered = |i: usize| sets[i].2.unwrap_or(usize::MAX);
            let overwritten = |v: usize| (recent..sets.len()).any(|w| sets[w].2.is_some() && sets[w].1 > answered(v));
            for (v, (set, ..)) in sets.iter().enumerate().skip(recent) {
                assert!(set.version >= lowest || overwritten(v), "{set:?} at {now}");
            }
            assert!(lowest as usize + 100 > sets.len(), "{lowest} of {}", sets.len());
        }
    }
}
