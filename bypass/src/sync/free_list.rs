//! Lock-free stack of free entries.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// End of the list.
const NONE: u32 = u32::MAX;

/// Stack of the numbers of free entries, for any number of threads. It holds the head only: the link of an entry is an
/// atomic that the caller provides, always the same one for the same number.
///
/// The order is last in, first out, so that a pool with few entries in use touches few cache lines.
///
/// The head contains a tag that each pop increments, against the ABA problem. An interrupted pop would corrupt the list
/// only if exactly a multiple of 2³² pops happened meanwhile and the same entry were on top again.
pub(crate) struct FreeList {
    /// Tag in the upper half, number of the first entry in the lower half.
    head: AtomicU64,
}

impl FreeList {
    pub(crate) fn new() -> Self {
        FreeList { head: AtomicU64::new(NONE as u64) }
    }

    /// Pushes the entries from `first` to `last`, which the caller owns and has linked with each other.
    #[inline]
    pub(crate) fn push_chain<'a>(&self, first: u32, last: u32, link: impl Fn(u32) -> &'a AtomicU32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link(last).store(head as u32, Ordering::Relaxed);
            let new = head & !u64::from(NONE) | u64::from(first);
            // Release: the thread that pops the entry sees its link and all earlier accesses.
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Pushes `entry`, which the caller owns.
    #[inline]
    pub(crate) fn push<'a>(&self, entry: u32, link: impl Fn(u32) -> &'a AtomicU32) {
        self.push_chain(entry, entry, link);
    }

    /// Pops the entry that was pushed last. The caller owns it from then on.
    #[inline]
    pub(crate) fn pop<'a>(&self, link: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let first = head as u32;
            if first == NONE {
                return None;
            }
            // If another thread pops `first` meanwhile, this value is stale, and the changed tag fails the exchange
            // below.
            let next = link(first).load(Ordering::Relaxed);
            let tag = (head >> 32).wrapping_add(1);
            let new = tag << 32 | u64::from(next);
            match self.head.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(first),
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn entry_pushed_last_is_popped_first() {
        let links: Vec<_> = (0..4).map(|_| AtomicU32::new(0)).collect();
        let link = |entry: u32| &links[entry as usize];
        let list = FreeList::new();
        assert_eq!(list.pop(link), None);
        for entry in 0..4 {
            list.push(entry, link);
        }
        assert_eq!(list.pop(link), Some(3));
        list.push(3, link);
        assert_eq!([0; 5].map(|_| list.pop(link)), [Some(3), Some(2), Some(1), Some(0), None]);
    }

    #[test]
    fn interrupted_pop_does_not_restore_a_popped_entry() {
        let links: Vec<_> = (0..3).map(|_| AtomicU32::new(0)).collect();
        let link = |entry: u32| &links[entry as usize];
        let list = FreeList::new();
        (0..3).for_each(|entry| list.push(entry, link));
        let interrupted = std::cell::Cell::new(false);
        let stale = AtomicU32::new(1);
        let first = list.pop(|entry| {
            if interrupted.replace(true) {
                return link(entry);
            }
            // Another thread pops 2 and 1 and pushes 2, after the interrupted pop has read that 1 follows 2.
            assert_eq!((list.pop(link), list.pop(link)), (Some(2), Some(1)));
            list.push(2, link);
            &stale
        });
        assert_eq!((first, list.pop(link), list.pop(link)), (Some(2), Some(0), None));
    }

    #[test]
    fn every_entry_has_one_owner_and_none_is_lost() {
        const ENTRIES: u32 = 8;
        const ROUNDS: usize = if cfg!(miri) { 300 } else { 50_000 };
        let links: Vec<_> = (0..ENTRIES).map(|_| AtomicU32::new(0)).collect();
        let owned: Vec<_> = (0..ENTRIES).map(|_| AtomicBool::new(false)).collect();
        let link = |entry: u32| &links[entry as usize];
        let list = FreeList::new();
        (0..ENTRIES).for_each(|entry| list.push(entry, link));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (list, owned) = (&list, &owned);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    let give = |entry: u32| {
                        assert!(owned[entry as usize].swap(false, Ordering::Relaxed));
                        list.push(entry, link);
                    };
                    for round in 0..ROUNDS {
                        if (round + thread) % 3 != 0
                            && let Some(entry) = list.pop(link)
                        {
                            assert!(!owned[entry as usize].swap(true, Ordering::Relaxed));
                            mine.push(entry);
                        } else if let Some(entry) = mine.pop() {
                            give(entry);
                        }
                    }
                    mine.drain(..).for_each(give);
                });
            }
        });
        let mut all: Vec<_> = std::iter::from_fn(|| list.pop(link)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..ENTRIES).collect::<Vec<_>>());
    }
}
