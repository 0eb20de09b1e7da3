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

/// Pause of a worker whose load is low, during which work accumulates, as with the interrupt moderation of a NIC.
/// Pauses must be long where each takes much processor time, such as 40 µs with nested virtualisation.
const PAUSE: Duration = Duration::from_micros(100);
/// Time without pauses, and with the first pauses, in which the load is measured.
const WINDOW: Duration = Duration::from_millis(1);
/// Time with later pauses.
const PAUSED_WINDOW: Duration = Duration::from_millis(5);
/// Windows with pauses between windows without.
const PAUSED_WINDOWS: u32 = 10;
/// Part of the rate without pauses below which pauses slow peers down.
const SLOW: f64 = 0.75;
/// Successive windows below it that end the pauses: peers stall, too.
const SLOW_WINDOWS: u32 = 2;
/// Windows without pauses after pauses have slowed peers down.
const UNPAUSED_WINDOWS: u32 = 500;

/// Next step of a worker without work.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    Poll,
    /// Sleep for [`PAUSE`], without wake-ups.
    Pause,
    /// Sleep until there is work.
    Sleep,
}

/// Pauses of a worker with little work in gaps shorter than a sleep: a pause collects the work of several gaps.
///
/// Pauses slow down peers that await replies before they send more. They end if there is less work than before.
#[derive(Debug, Default)]
struct Moderation {
    /// Start of the window, and work and time without work since.
    since: Instant,
    work: usize,
    idle: Duration,
    is_paused: bool,
    /// Windows before the next change.
    left: u32,
    /// Highest work per second in recent windows without pauses.
    rate: f64,
    /// Successive windows with pauses and less work.
    slow: u32,
}

impl Moderation {
    /// Returns whether the worker, which has had no work for `gap`, shall pause.
    #[inline]
    fn pauses(&mut self, now: Instant, gap: Duration) -> bool {
        let is_late = self.is_paused && self.left < PAUSED_WINDOWS - 1;
        if now.since(self.since) >= if is_late { PAUSED_WINDOW } else { WINDOW } {
            self.end_window(now, gap);
        }
        self.is_paused
    }

    #[cold]
    #[inline(never)]
    fn end_window(&mut self, now: Instant, gap: Duration) {
        let time = now.since(self.since);
        let rate = self.work as f64 / time.as_secs_f64();
        let is_low = self.idle + gap.min(time) >= time / 2;
        (self.since, self.work, self.idle) = (now, 0, Duration::ZERO);
        if !self.is_paused {
            // A window in which a peer has stalled must not make pauses look harmless.
            self.rate = rate.max(0.9 * self.rate);
        }
        self.slow = if self.is_paused && rate < SLOW * self.rate { self.slow + 1 } else { 0 };
        if self.slow == SLOW_WINDOWS {
            (self.is_paused, self.left) = (false, UNPAUSED_WINDOWS);
        } else if self.left > 0 {
            self.left -= 1;
        } else if !self.is_paused && is_low && rate * PAUSE.as_secs_f64() >= 1.0 {
            (self.is_paused, self.left) = (true, PAUSED_WINDOWS);
        } else {
            self.is_paused = false;
        }
    }
}

/// Polling of a worker without work before it sleeps. Gaps between frames are mostly as long as those before, so its
/// time adapts to them.
#[derive(Debug)]
pub(super) struct Polling {
    /// Time of the first turn without work.
    since: Option<Instant>,
    time: Duration,
    /// Longest sleep that follows.
    pub longest: Duration,
    moderation: Moderation,
    /// True after a sleep or pause without work.
    had_no_work: bool,
}

impl Polling {
    pub fn new(now: Instant) -> Self {
        let moderation = Moderation { since: now, ..Moderation::default() };
        Polling { since: None, time: LONGEST_POLLING, longest: LONGEST_SLEEP, moderation, had_no_work: false }
    }

    /// Ends a gap: the turn at `now` has done `work`.
    #[inline]
    pub fn end_gap(&mut self, now: Instant, work: usize) {
        self.moderation.work += work;
        if let Some(since) = self.since.take() {
            self.moderation.idle += now.since(since);
        }
    }

    /// Returns the next step of the worker, which has no work at `now`.
    #[inline]
    fn rest(&mut self, now: Instant) -> Rest {
        let gap = now.since(*self.since.get_or_insert(now));
        match self.moderation.pauses(now, gap) {
            true if self.had_no_work => Rest::Sleep,
            true => Rest::Pause,
            false if gap >= self.time => Rest::Sleep,
            false => Rest::Poll,
        }
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
    /// [sleeper](Self::sleeper), except during a short pause. Returns the longest time of the sleep, which
    /// [`awake`](Self::awake) must follow; `None` if the worker polls on.
    #[inline]
    pub fn about_to_sleep(&mut self, clock: &Clock) -> Option<Duration> {
        self.sleeper.as_ref()?;
        match self.polling.rest(self.host.net.now) {
            Rest::Poll => return None,
            Rest::Pause => return self.pause(),
            Rest::Sleep => {}
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
        self.polling.had_no_work = work == 0;
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

    /// Returns the time of a pause, which no work ends, or `None` if a deadline is near.
    #[cold]
    #[inline(never)]
    fn pause(&self) -> Option<Duration> {
        let time = self.next_deadline().map_or(PAUSE, |at| at.since(self.host.net.now).min(PAUSE));
        (time >= SHORTEST_SLEEP).then_some(time)
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
        let mut polling = Polling::new(ZERO);
        for gap in gaps {
            assert!(polling.rest(ZERO) == Rest::Poll || polling.time.is_zero());
            polling.adapt(polling.gap(ZERO + gap));
            polling.end_gap(ZERO + gap, 1);
        }
        polling.time
    }

    #[test]
    fn polling_ends_after_its_time_without_work() {
        let mut polling = Polling::new(ZERO);
        let end = ZERO + LONGEST_POLLING;
        assert_eq!((polling.rest(ZERO), polling.rest(end)), (Rest::Poll, Rest::Sleep));
        polling.end_gap(end, 1);
        assert_eq!(polling.rest(end), Rest::Poll);
    }

    #[test]
    fn long_gaps_end_polling_and_short_gaps_bring_it_back() {
        let (long, short) = (SHORT_GAP * 2, SHORT_GAP);
        assert_eq!(polling_after([long]), LONGEST_POLLING / 2);
        assert_eq!(polling_after([long; 6]), Duration::ZERO);
        assert_eq!(polling_after([long; 6].into_iter().chain([short])), SHORTEST_POLLING);
        assert_eq!(polling_after([long; 6].into_iter().chain([short; 6])), LONGEST_POLLING);
    }

    /// Worker with a request each [`GAP`], which takes `busy`, for a second. If `awaits`, the peer sends a request
    /// after each reply, and otherwise does not wait. Returns the part of the requests after pauses, and their number.
    fn serve(busy: Duration, awaits: bool) -> (f64, u32) {
        const GAP: Duration = Duration::from_micros(4);
        let (mut polling, mut now) = (Polling::new(ZERO), ZERO);
        let (mut next, mut served, mut paused) = (now, 0, 0);
        while now < ZERO + Duration::from_secs(1) {
            let waited = match polling.rest(now) {
                Rest::Pause => PAUSE,
                _ => next.since(now).max(Duration::from_nanos(50)),
            };
            now += waited;
            let (start, mut work) = (now, 0);
            while next <= now {
                work += 1;
                now += busy;
                next = if awaits { now + GAP } else { next + GAP };
            }
            polling.had_no_work = work == 0;
            if work > 0 {
                polling.end_gap(start, work);
                served += work as u32;
                paused += if waited == PAUSE { work as u32 } else { 0 };
            }
        }
        (f64::from(paused) / f64::from(served), served)
    }

    #[test]
    fn low_load_is_served_after_pauses() {
        let (paused, served) = serve(Duration::from_nanos(500), false);
        assert!(paused > 0.95 && served > 249_000, "{paused}, {served}");
    }

    #[test]
    fn high_load_is_served_without_pauses() {
        assert_eq!(serve(Duration::from_nanos(2500), false).0, 0.0);
    }

    #[test]
    fn peers_that_await_replies_are_not_slowed_down() {
        let (paused, served) = serve(Duration::from_nanos(500), true);
        assert!(paused < 0.01 && served > 210_000, "{paused}, {served}");
    }

    #[test]
    fn pause_without_work_is_followed_by_a_sleep() {
        let mut polling = Polling::new(ZERO);
        polling.end_gap(ZERO, 1000);
        let now = ZERO + WINDOW;
        polling.since = Some(ZERO);
        assert_eq!(polling.rest(now), Rest::Pause);
        polling.had_no_work = true;
        assert_eq!(polling.rest(now), Rest::Sleep);
    }
}
