//! The places of a pool that are free: a stack that any thread may push to and pop from without a lock.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// No place: the end of the list.
const NONE: u32 = u32::MAX;

/// A stack of numbered places. It holds the head only; where the link of each place lies, the caller says on each
/// call, always the same for the same number.
///
/// Last in, first out, so that a pool that is hardly used stays within a few warm cache lines.
///
/// The head carries a tag that each pop changes. A popper that was interrupted between reading the head and
/// replacing it would do harm only if exactly a multiple of 2³² pops had happened meanwhile and the same place
/// were on top again.
pub(crate) struct FreeList {
    /// The tag in the upper half, the number of the first free place in the lower.
    head: AtomicU64,
}

impl FreeList {
    /// Nothing is free.
    pub(crate) fn new() -> Self {
        FreeList { head: AtomicU64::new(NONE as u64) }
    }

    /// Adds the places from `first` to `last`, which the caller owns and has linked with each other.
    #[inline]
    pub(crate) fn push_chain<'a>(&self, first: u32, last: u32, link: impl Fn(u32) -> &'a AtomicU32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link(last).store(head as u32, Ordering::Relaxed);
            let new = head & !u64::from(NONE) | u64::from(first);
            // Release: who pops the place sees its link, and all that was done with it before.
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Adds `place`, which the caller owns.
    #[inline]
    pub(crate) fn push<'a>(&self, place: u32, link: impl Fn(u32) -> &'a AtomicU32) {
        self.push_chain(place, place, link);
    }

    /// Takes the place that was freed last; the caller owns it.
    #[inline]
    pub(crate) fn pop<'a>(&self, link: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let first = head as u32;
            if first == NONE {
                return None;
            }
            // If another thread pops `first` meanwhile, this is no link of ours any more, and the tag says so below.
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
    fn the_place_freed_last_is_used_first() {
        let links: Vec<_> = (0..4).map(|_| AtomicU32::new(0)).collect();
        let link = |place: u32| &links[place as usize];
        let list = FreeList::new();
        assert_eq!(list.pop(link), None);
        for place in 0..4 {
            list.push(place, link);
        }
        assert_eq!(list.pop(link), Some(3));
        list.push(3, link);
        assert_eq!([0; 5].map(|_| list.pop(link)), [Some(3), Some(2), Some(1), Some(0), None]);
    }

    #[test]
    fn a_popper_that_was_interrupted_does_not_bring_back_a_place_that_was_taken_meanwhile() {
        let links: Vec<_> = (0..3).map(|_| AtomicU32::new(0)).collect();
        let link = |place: u32| &links[place as usize];
        let list = FreeList::new();
        (0..3).for_each(|place| list.push(place, link));
        let interrupted = std::cell::Cell::new(false);
        let stale = AtomicU32::new(1);
        let first = list.pop(|place| {
            if interrupted.replace(true) {
                return link(place);
            }
            // Another thread takes 2 and 1 and gives 2 back, just after the popper has read that 1 follows 2.
            assert_eq!((list.pop(link), list.pop(link)), (Some(2), Some(1)));
            list.push(2, link);
            &stale
        });
        assert_eq!((first, list.pop(link), list.pop(link)), (Some(2), Some(0), None));
    }

    #[test]
    fn no_place_has_two_owners_and_none_is_lost() {
        const PLACES: u32 = 8;
        const ROUNDS: usize = if cfg!(miri) { 300 } else { 50_000 };
        let links: Vec<_> = (0..PLACES).map(|_| AtomicU32::new(0)).collect();
        let owned: Vec<_> = (0..PLACES).map(|_| AtomicBool::new(false)).collect();
        let link = |place: u32| &links[place as usize];
        let list = FreeList::new();
        (0..PLACES).for_each(|place| list.push(place, link));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (list, owned) = (&list, &owned);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    let give = |place: u32| {
                        assert!(owned[place as usize].swap(false, Ordering::Relaxed));
                        list.push(place, link);
                    };
                    for round in 0..ROUNDS {
                        if (round + thread) % 3 != 0
                            && let Some(place) = list.pop(link)
                        {
                            assert!(!owned[place as usize].swap(true, Ordering::Relaxed));
                            mine.push(place);
                        } else if let Some(place) = mine.pop() {
                            give(place);
                        }
                    }
                    mine.drain(..).for_each(give);
                });
            }
        });
        let mut all: Vec<_> = std::iter::from_fn(|| list.pop(link)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..PLACES).collect::<Vec<_>>());
    }
}
