//! Which versions of each key a GET may bring.
//!
//! Every SET that is sent has the key's next version. A GET may bring none that has not been sent, and none that must have been
//! overwritten before the GET was: version v is that if a SET w of the key was sent after v had been acknowledged, and w
//! itself was acknowledged before the GET was sent. SETs of a key that are on the way at the same time may be carried out in
//! any order, so either's version may remain.
//!
//! To know for each SET what had been acknowledged before it without keeping them all, versions are counted in two batches,
//! as epochs are: those that were on the way when the batch before was closed, and those sent since. When all of the older
//! batch are acknowledged, everything up to its last is *settled*, and the younger one is closed. What is checked is exact for a
//! key with no more than one SET on the way at a time; for others it errs in favour of the server, by the versions of about
//! two round trips. A SET whose fate is not known, because its connection was lost, may be carried out at any time:
//! from then on nothing more is settled for its key.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The versions of all keys, shared by all workers.
#[derive(Debug)]
pub struct Versions {
    keys: Box<[Mutex<Key>]>,
}

#[derive(Debug, Default)]
struct Key {
    /// The last version sent.
    issued: u32,
    /// The last version of the older batch; those after it are the younger's.
    closed: u32,
    /// All up to this one have been answered.
    settled: u32,
    /// All before this one must have been overwritten.
    lowest: u32,
    older_on_the_way: u32,
    younger_on_the_way: u32,
}

/// What the help of `--verify` says.
const _: () = assert!(size_of::<Mutex<Key>>() <= 32);

/// A SET that is on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    /// Its version.
    pub version: u32,
    /// All versions up to this one had been answered when it was sent.
    pub settled: u32,
}

impl Versions {
    /// Of `keys` keys, none of which has been written.
    pub fn new(keys: usize) -> Self {
        Versions { keys: (0..keys).map(|_| Mutex::default()).collect() }
    }

    fn of(&self, number: u64) -> MutexGuard<'_, Key> {
        // Numbers that are consistent at every point.
        self.keys[number as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A SET of the key `number` is about to be sent.
    pub fn issue(&self, number: u64) -> Issued {
        let mut key = self.of(number);
        key.issued = key.issued.wrapping_add(1);
        key.younger_on_the_way += 1;
        Issued { version: key.issued, settled: key.settled }
    }

    /// A SET has been answered: it was `done`, or refused.
    pub fn answered(&self, number: u64, set: Issued, done: bool) {
        let mut key = self.of(number);
        if done {
            key.lowest = key.lowest.max(set.settled + 1);
        }
        if set.version <= key.closed {
            key.older_on_the_way -= 1;
        } else {
            key.younger_on_the_way -= 1;
        }
        // Twice: with nothing on the way, both batches are over.
        for _ in 0..2 {
            if key.older_on_the_way == 0 {
                key.settled = key.closed;
                key.closed = key.issued;
                key.older_on_the_way = std::mem::take(&mut key.younger_on_the_way);
            }
        }
    }

    /// The lowest version that a GET sent now may bring.
    pub fn lowest(&self, number: u64) -> u32 {
        self.of(number).lowest
    }

    /// The highest version that a GET answered now may bring.
    pub fn highest(&self, number: u64) -> u32 {
        self.of(number).issued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_one_set_at_a_time_only_the_last_version_may_come() {
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
    fn of_sets_at_the_same_time_any_may_remain() {
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
    fn a_refused_set_overwrites_nothing() {
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
    fn a_set_without_an_answer_may_be_done_at_any_time() {
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

    /// Against the definition, with all SETs remembered: nothing is refused that may be, and what has long been
    /// overwritten is.
    #[test]
    fn what_is_refused_must_have_been_overwritten() {
        let mut rng = fastrand::Rng::with_seed(3);
        let versions = Versions::new(1);
        // When each was sent and answered, and which have not been.
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
