//! Sleep of a worker without work.

use super::Worker;
use super::housekeeping::LINK_PERIOD;
use crate::engine::Engine;
use linerate_bypass::Nic;
use linerate_service::Service;
use linerate_service::time::{Clock, Duration, Instant};

/// Longest polling before a sleep: about the cost of a sleep, so that a gap costs at most twice the cost of a worker
/// that knows its length.
const LONGEST_POLLING: Duration = Duration::from_micros(20);
/// Longest gap after which the polling grows. A sleep lengthens a gap by the time of its wake-up: without this
/// allowance a worker that has begun to sleep between bursts would do so for ever.
const SHORT_GAP: Duration = Duration::from_micros(100);
/// Shortest polling, below which there is none.
const SHORTEST_POLLING: Duration = Duration::from_micros(1);
/// Longest sleep. Frames, messages, a stop and changes of the link wake a worker: the bound limits the effect of a
/// driver that loses an interrupt.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Shortest sleep: a shorter one takes longer than requested.
const SHORTEST_SLEEP: Duration = Duration::from_micros(5);
/// Longest sleep while the worker must look for an event that does not wake it.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Part of the time without work that such a sleep lasts.
const PAUSE_PART: u32 = 8;

/// Polling of a worker without work before it sleeps. Gaps between frames are mostly as long as those before, so its
/// time adapts to them.
#[derive(Debug)]
pub(super) struct Polling {
    /// Time of the first turn without work.
    since: Option<Instant>,
    time: Duration,
    /// Longest sleep that follows.
    longest: Duration,
}

impl Polling {
    /// Creates the state of a worker that sleeps for `longest` at most, if given.
    pub fn new(longest: Option<Duration>) -> Self {
        Polling { since: None, time: LONGEST_POLLING, longest: longest.unwrap_or(LONGEST_SLEEP) }
    }

    /// Ends a gap.
    #[inline]
    pub fn end_gap(&mut self) {
        self.since = None;
    }

    /// Returns whether the worker, which has no work at `now`, has polled long enough.
    #[inline]
    pub fn is_over(&mut self, now: Instant) -> bool {
        now.since(*self.since.get_or_insert(now)) >= self.time
    }

    /// Returns the time without work.
    fn gap(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Adapts the time to a gap that has ended at `now`, during a sleep.
    fn adapt(&mut self, now: Instant) {
        self.time = if self.gap(now) <= SHORT_GAP {
            (self.time * 2).clamp(SHORTEST_POLLING, LONGEST_POLLING)
        } else {
            Some(self.time / 2).filter(|time| *time >= SHORTEST_POLLING).unwrap_or_default()
        };
    }
}

impl<N: Nic, S: Service, E: Engine<N>> Worker<N, S, E> {
    /// Sleeps until a frame or message arrives, or until the next deadline. Returns the work of the turns before and
    /// after.
    ///
    /// The order prevents a lost wake-up: from the requests on, what arrives wakes the worker; what has arrived before
    /// is seen by the turn that follows them.
    #[cold]
    #[inline(never)]
    pub(super) fn sleep(&mut self, clock: &Clock, polling: &mut Polling) -> usize {
        let Some(mut sleeper) = self.sleeper.take() else { return 0 };
        let mut work = 0;
        let mut has_slept = false;
        if self.inbox.about_to_sleep() && self.host.messages.about_to_sleep() {
            let is_woken = self.nic().arm(&mut sleeper);
            work = self.turn(clock.now());
            let timeout = self.sleep_time(clock.now(), is_woken, polling);
            if work == 0 && timeout >= SHORTEST_SLEEP {
                sleeper.sleep(timeout);
                has_slept = true;
            }
            self.nic().disarm();
        }
        self.host.messages.awake();
        self.inbox.awake();
        self.sleeper = Some(sleeper);
        if has_slept {
            self.host.net.sleeps += 1;
            let now = clock.now();
            work = self.turn(now);
            if work > 0 {
                self.host.net.wakeups += 1;
                polling.adapt(now);
            }
        }
        work
    }

    /// Returns the time until the next deadline, within the longest sleep of a worker whose port wakes it (`is_woken`).
    /// Neither room in the transmit queue nor a free packet wakes it.
    fn sleep_time(&mut self, now: Instant, is_woken: bool, polling: &Polling) -> Duration {
        let pool_empty = self.nic().stats().pool_empty;
        let is_blocked = self.host.net.egress.queued() > 0 || pool_empty != self.pool_empty;
        self.pool_empty = pool_empty;
        let link_changed = Some(self.nic().link_up()) != self.link_up;
        let longest = match is_woken && !is_blocked {
            // The next check of the link takes a change into account.
            true if link_changed => LINK_PERIOD.saturating_sub(now.since(self.link_checked)),
            true => polling.longest,
            false => LONGEST_PAUSE.min(polling.gap(now) / PAUSE_PART),
        };
        self.next_deadline().map_or(longest, |at| at.since(now).min(longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Instant = Instant::ZERO;

    /// Returns the time of polling after `gaps` that ended during a sleep.
    fn polling_after(gaps: impl IntoIterator<Item = Duration>) -> Duration {
        let mut polling = Polling::new(None);
        for gap in gaps {
            assert!(!polling.is_over(ZERO) || polling.time.is_zero());
            polling.adapt(ZERO + gap);
            polling.end_gap();
        }
        polling.time
    }

    #[test]
    fn polling_ends_after_its_time_without_work() {
        let mut polling = Polling::new(None);
        assert!(!polling.is_over(ZERO) && polling.is_over(ZERO + LONGEST_POLLING));
        polling.end_gap();
        assert!(!polling.is_over(ZERO + LONGEST_POLLING));
    }

    #[test]
    fn long_gaps_end_polling_and_short_gaps_bring_it_back() {
        let (long, short) = (SHORT_GAP * 2, SHORT_GAP);
        assert_eq!(polling_after([long]), LONGEST_POLLING / 2);
        assert_eq!(polling_after([long; 6]), Duration::ZERO);
        assert_eq!(polling_after([long; 6].into_iter().chain([short])), SHORTEST_POLLING);
        assert_eq!(polling_after([long; 6].into_iter().chain([short; 6])), LONGEST_POLLING);
    }
}
