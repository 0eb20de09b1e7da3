//! Requests that may be lost on the way: in a closed loop, or when they are due.

use super::histogram_of_nanos;
use super::pace::{OpenLoop, Pace};
use super::probe::Stamp;
use hdrhistogram::Histogram;
use linerate_bypass::time::{Duration, Instant};

/// How long a request may take before it counts as lost, and its place is free.
pub const LOST_AFTER: Duration = Duration::from_millis(100);
/// How often it is looked for such ones.
pub const LOOK: Duration = Duration::from_millis(5);
/// Datagrams that are sent in one event at most, so that what comes back meanwhile does not wait.
pub const AT_ONCE: usize = 64;
/// When it is tried again to send what the transport did not take.
pub const AGAIN: Duration = Duration::from_micros(50);
/// How long nothing may come back at the beginning.
pub const NO_ANSWER: Duration = Duration::from_secs(10);

/// What a load of such requests is to do.
#[derive(Debug, Clone, Copy)]
pub struct FlightPlan {
    /// Bytes of a request.
    pub size: usize,
    /// Requests on their way at a time, in all.
    pub places: usize,
    /// How long requests are sent before they count.
    pub warm_up: Duration,
    /// How long they count.
    pub duration: Duration,
    /// When they are due; without it, as soon as there is a place.
    pub open: Option<OpenLoop>,
}

/// What was counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// Requests that came back as they were sent.
    pub answered: u64,
    /// Requests that did not come back in 100 ms.
    pub lost: u64,
    /// Requests that came back with wrong bytes.
    pub corrupt: u64,
    /// Requests that came back after they had been given up, or more than once.
    pub late: u64,
    /// Round-trip times in nanoseconds.
    pub rtt_nanos: Histogram<u64>,
}

impl Counts {
    fn new() -> Self {
        Counts { answered: 0, lost: 0, corrupt: 0, late: 0, rtt_nanos: histogram_of_nanos() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until the first request has come back, there is one on its way.
    Calling {
        since: Option<Instant>,
    },
    /// Nothing counts yet.
    WarmingUp {
        until: Instant,
    },
    Measuring {
        from: Instant,
        until: Instant,
    },
    Over,
}

/// The requests on their way, and what came of the others.
///
/// Each has a place until it comes back or is lost. At first there is one place; all can be used once something has come back.
#[derive(Debug)]
pub struct Flight {
    plan: FlightPlan,
    phase: Phase,
    /// What is on its way, and since when: it may have been due before.
    places: Vec<Option<(Stamp, Instant)>>,
    /// Of an open loop, from the first answer on.
    pace: Option<Pace>,
    free: Vec<u32>,
    sequence: u64,
    looked: Instant,
    counts: Counts,
    measured: Duration,
}

impl Flight {
    /// # Panics
    /// If the plan has no place.
    pub fn new(plan: FlightPlan) -> Self {
        assert!(plan.places > 0);
        let mut free = Vec::with_capacity(plan.places);
        free.push(0);
        Flight {
            phase: Phase::Calling { since: None },
            places: vec![None; plan.places],
            pace: None,
            free,
            sequence: 0,
            looked: Instant::ZERO,
            counts: Counts::new(),
            measured: Duration::ZERO,
            plan,
        }
    }

    /// Does what is due by `now`, and returns whether it goes on.
    #[inline]
    pub fn turn(&mut self, now: Instant) -> bool {
        match &mut self.phase {
            Phase::Calling { since } => {
                if now.since(*since.get_or_insert(now)) >= NO_ANSWER {
                    self.stop(now);
                }
            }
            Phase::WarmingUp { until } if now >= *until => {
                self.counts = Counts::new();
                if let Some(pace) = &mut self.pace {
                    pace.measure(now);
                }
                self.phase = Phase::Measuring { from: now, until: now + self.plan.duration };
            }
            Phase::Measuring { until, .. } if now >= *until => self.stop(now),
            Phase::WarmingUp { .. } | Phase::Measuring { .. } | Phase::Over => {}
        }
        if now.since(self.looked) >= LOOK {
            self.look_for_lost(now);
        }
        self.phase != Phase::Over
    }

    #[cold]
    fn look_for_lost(&mut self, now: Instant) {
        self.looked = now;
        for (place, stamp) in (0..).zip(&mut self.places) {
            if stamp.is_some_and(|(_, since)| now.since(since) >= LOST_AFTER) {
                *stamp = None;
                self.free.push(place);
                self.counts.lost += 1;
            }
        }
    }

    /// What the next request is to be, if there is a place for it and it is due. In an open loop its time counts from then.
    #[inline]
    pub fn next(&self, now: Instant) -> Option<Stamp> {
        let place = *self.free.last()?;
        let sent = match &self.pace {
            Some(pace) => Some(pace.next()).filter(|due| *due <= now)?,
            None => now,
        };
        Some(Stamp { sequence: self.sequence, sent, place })
    }

    /// How long nothing is to be sent, at most, if there is a place.
    pub fn rest(&self, now: Instant) -> Duration {
        self.pace.as_ref().map_or(LOOK, |pace| LOOK.min(pace.next().since(now)))
    }

    /// That request, which [`next`](Self::next) gave, is on its way.
    #[inline]
    pub fn sent(&mut self, stamp: Stamp, now: Instant) {
        self.free.pop();
        self.sequence += 1;
        self.places[stamp.place as usize] = Some((stamp, now));
        if let Some(pace) = &mut self.pace {
            let due = pace.take();
            pace.sent(due, now);
        }
    }

    /// A request has come back. Returns whether it was the first one.
    #[inline]
    pub fn came_back(&mut self, stamp: Stamp, now: Instant) -> bool {
        match self.places.get_mut(stamp.place as usize) {
            Some(place) if place.is_some_and(|(sent, _)| sent == stamp) => *place = None,
            _ => {
                self.counts.late += 1;
                return false;
            }
        }
        // Of an open loop only what was due since it counts.
        if self.pace.as_ref().is_none_or(|pace| pace.counts(stamp.sent)) {
            self.counts.answered += 1;
            self.counts.rtt_nanos.saturating_record(now.since(stamp.sent).as_nanos() as u64);
        }
        self.free.push(stamp.place);
        let first = matches!(self.phase, Phase::Calling { .. });
        if first {
            self.free.extend(1..self.plan.places as u32);
            let pace = |open| Pace::new(open, now, 1, 1, fastrand::Rng::new());
            self.pace = self.plan.open.map(pace);
            self.phase = Phase::WarmingUp { until: now + self.plan.warm_up };
            tracing::info!("{}", if self.plan.warm_up.is_zero() { "measuring" } else { "warming up" });
        }
        first
    }

    /// A request has come back with wrong bytes.
    pub fn came_back_corrupt(&mut self) {
        self.counts.corrupt += 1;
    }

    /// Ends it: what was measured until now counts.
    pub fn stop(&mut self, now: Instant) {
        if let Phase::Measuring { from, .. } = self.phase {
            self.measured = now.since(from);
            if let Some(pace) = &mut self.pace {
                pace.end(now);
            }
        }
        self.phase = Phase::Over;
    }

    /// Whether requests count now.
    #[cfg(test)]
    pub fn is_measuring(&self) -> bool {
        matches!(self.phase, Phase::Measuring { .. })
    }

    /// How the requests of an open loop were sent.
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// What was counted, and for how long; no time at all if nothing ever came back.
    pub fn result(&self) -> (&Counts, Duration) {
        (&self.counts, self.measured)
    }
}
