//! Timers of tasks.

use linerate_service::time::Instant;
use slotmap::{SlotMap, new_key_type};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

new_key_type! {
    pub(crate) struct TimerKey;
}

/// Timers of one worker, ordered by deadline. Setting and removing timers allocates nothing once the tables have grown.
#[derive(Default)]
pub(crate) struct Timers {
    /// Entries of all timers, and of removed timers until these outnumber the others.
    heap: BinaryHeap<Reverse<(Instant, TimerKey)>>,
    wakers: SlotMap<TimerKey, Waker>,
}

impl Timers {
    /// Adds a timer that wakes `waker` at `deadline`.
    pub fn insert(&mut self, deadline: Instant, waker: Waker) -> TimerKey {
        let key = self.wakers.insert(waker);
        self.heap.push(Reverse((deadline, key)));
        key
    }

    /// Returns the waker of a timer that has neither expired nor been removed.
    pub fn waker(&mut self, key: TimerKey) -> Option<&mut Waker> {
        self.wakers.get_mut(key)
    }

    pub fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        let waker = self.wakers.remove(key)?;
        if self.heap.len() > 2 * self.wakers.len() + 64 {
            self.heap.retain(|Reverse((_, key))| self.wakers.contains_key(*key));
        }
        self.discard_removed();
        Some(waker)
    }

    /// Removes the first timer that has expired by `now` and returns its waker.
    pub fn pop_expired(&mut self, now: Instant) -> Option<Waker> {
        let &Reverse((at, key)) = self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        let waker = self.wakers.remove(key);
        self.discard_removed();
        waker
    }

    /// Returns the deadline of the first timer.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Drops the entries of removed timers at the front, so that the first entry belongs to a timer.
    fn discard_removed(&mut self) {
        while let Some(&Reverse((_, key))) = self.heap.peek()
            && !self.wakers.contains_key(key)
        {
            self.heap.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn expire(timers: &mut Timers, now: u64) -> usize {
        std::iter::from_fn(|| timers.pop_expired(at(now))).count()
    }

    #[test]
    fn timers_expire_in_order_and_once() {
        let mut timers = Timers::default();
        for nanos in [30, 10, 20] {
            timers.insert(at(nanos), Waker::noop().clone());
        }
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(expire(&mut timers, 9), 0);
        assert_eq!(expire(&mut timers, 20), 2);
        assert_eq!(timers.next(), Some(at(30)));
        assert_eq!(expire(&mut timers, 100), 1);
        assert_eq!((timers.next(), expire(&mut timers, 1000)), (None, 0));
    }

    #[test]
    fn removed_timer_neither_expires_nor_hides_later_ones() {
        let mut timers = Timers::default();
        let first = timers.insert(at(10), Waker::noop().clone());
        timers.insert(at(20), Waker::noop().clone());
        assert!(timers.remove(first).is_some());
        assert!(timers.remove(first).is_none() && timers.waker(first).is_none());
        assert_eq!(timers.next(), Some(at(20)));
        assert_eq!(expire(&mut timers, 20), 1);
    }

    #[test]
    fn memory_of_removed_timers_is_bounded() {
        let mut timers = Timers::default();
        timers.insert(at(1), Waker::noop().clone());
        for nanos in 0..100_000 {
            let key = timers.insert(at(1_000_000 + nanos), Waker::noop().clone());
            timers.remove(key);
            assert!(timers.heap.len() <= 68 && timers.wakers.capacity() <= 8);
        }
    }
}
