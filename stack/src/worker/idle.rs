//! Sleep of a worker without work.

use super::Worker;
use super::housekeeping::LINK_PERIOD;
use crate::engine::Engine;
use linerate_bypass::{Nic, Sleeper};
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
/// Longest sleep of a worker that waits for room in the transmit queue or for a free packet, which do not wake it.
const LONGEST_BLOCKED: Duration = Duration::from_millis(20);
/// Longest sleep of a worker that frames do not wake.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Part of the time without work that these sleeps last.
const PAUSE_PART: u32 = 8;

/// Polling of a worker without work before it sleeps. Gaps between frames are mostly as long as those before, so its
/// time adapts to them.
#[derive(Debug)]
pub(super) struct Polling {
    /// Time of the first turn without work.
    since: Option<Instant>,
    time: Duration,
    /// Longest sleep that follows.
    pub longest: Duration,
}

impl Polling {
    pub fn new() -> Self {
        Polling { since: None, time: LONGEST_POLLING, longest: LONGEST_SLEEP }
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

    /// Adapts the time to a gap that has ended during a sleep.
    fn adapt(&mut self, gap: Duration) {
        self.time = if gap <= SHORT_GAP {
            (self.time * 2).clamp(SHORTEST_POLLING, LONGEST_POLLING)
        } else {
            Some(self.time / 2).filter(|time| *time >= SHORTEST_POLLING).unwrap_or_default()
        };
    }
}

impl<N: Nic, S: Service, E: Engine<N>> Worker<N, S, E> {
    /// Prepares to sleep after a turn without work: from now on, what arrives wakes the thread that waits for the
    /// [sleeper](Self::sleeper). Returns the longest time of the sleep, which [`awake`](Self::awake) must follow;
    /// `None` if the worker polls on.
    #[inline]
    pub fn about_to_sleep(&mut self, clock: &Clock) -> Option<Duration> {
        if self.sleeper.is_none() || !self.polling.is_over(self.host.net.now) {
            return None;
        }
        let time = self.request_wakeups(clock);
        if time.is_none() {
            self.cancel_wakeups();
        }
        time
    }

    /// Ends a sleep and runs a turn. Returns its work.
    #[cold]
    #[inline(never)]
    pub fn awake(&mut self, clock: &Clock) -> usize {
        self.cancel_wakeups();
        self.host.net.sleeps += 1;
        let now = clock.now();
        let gap = self.polling.gap(now);
        let work = self.turn(now);
        if work > 0 {
            self.host.net.wakeups += 1;
            self.polling.adapt(gap);
        }
        work
    }

    /// Returns the descriptors that wake the worker, if it sleeps without work.
    pub fn sleeper(&self) -> Option<&Sleeper> {
        self.sleeper.as_ref()
    }

    /// Requests wake-ups and runs a turn. Returns the longest time of a sleep, or `None` if there is work.
    ///
    /// The order prevents a lost wake-up: from the requests on, what arrives wakes the worker; what has arrived before
    /// is seen by the turn that follows them.
    #[cold]
    #[inline(never)]
    fn request_wakeups(&mut self, clock: &Clock) -> Option<Duration> {
        if !(self.inbox.about_to_sleep() && self.host.messages.about_to_sleep()) {
            return None;
        }
        let mut sleeper = self.sleeper.take()?;
        let is_woken = self.nic().arm(&mut sleeper);
        self.sleeper = Some(sleeper);
        let work = self.turn(clock.now());
        let time = self.sleep_time(clock.now(), is_woken);
        (work == 0 && time >= SHORTEST_SLEEP).then_some(time)
    }

    fn cancel_wakeups(&mut self) {
        self.nic().disarm();
        self.host.messages.awake();
        self.inbox.awake();
    }

    /// Returns the time until the next deadline, within the longest sleep of a worker whose port wakes it (`is_woken`).
    /// Neither room in the transmit queue nor a free packet wakes it.
    fn sleep_time(&mut self, now: Instant, is_woken: bool) -> Duration {
        let pool_empty = self.nic().stats().pool_empty;
        let is_blocked = self.host.net.egress.queued() > 0 || pool_empty != self.pool_empty;
        self.pool_empty = pool_empty;
        let link_changed = Some(self.nic().link_up()) != self.link_up;
        let pause = self.polling.gap(now) / PAUSE_PART;
        let longest = match (is_woken, is_blocked) {
            // The next check of the link takes a change into account.
            (true, false) if link_changed => LINK_PERIOD.saturating_sub(now.since(self.link_checked)),
            (true, false) => self.polling.longest,
            // The other end of the link may be gone.
            (true, true) => LONGEST_BLOCKED.min(pause),
            (false, _) => LONGEST_PAUSE.min(pause),
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
        let mut polling = Polling::new();
        for gap in gaps {
            assert!(!polling.is_over(ZERO) || polling.time.is_zero());
            polling.adapt(polling.gap(ZERO + gap));
            polling.end_gap();
        }
        polling.time
    }

    #[test]
    fn polling_ends_after_its_time_without_work() {
        let mut polling = Polling::new();
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
