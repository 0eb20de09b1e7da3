//! Outstanding requests over a lossy transport (UDP, raw frames), in a closed or an open loop.

use super::probe::Stamp;
use crate::{OpenLoop, Pace, Plan, Times};
use linerate_service::time::{Duration, Instant};

/// Timeout after which a request counts as lost and its slot is free.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval of the search for lost requests.
pub const EXPIRY_INTERVAL: Duration = Duration::from_millis(5);
/// Largest number of datagrams sent in one event, which bounds the delay of received ones.
pub const SEND_BATCH: usize = 64;
/// Delay before sending again after the transport refused a datagram.
pub const RETRY_DELAY: Duration = Duration::from_micros(50);
pub const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Parameters of a load over a lossy transport.
#[derive(Debug, Clone, Copy)]
pub struct FlightPlan {
    /// Request size in bytes.
    pub size: usize,
    /// Slots: the largest number of outstanding requests.
    pub slots: usize,
    /// Duration of uncounted requests before measuring.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Open loop; without it, a request is sent whenever a slot is free.
    pub open: Option<OpenLoop>,
}

impl Default for FlightPlan {
    /// Returns a closed loop of one request of 64 bytes, for the duration of [`Plan::default`].
    fn default() -> Self {
        let Plan { warm_up, duration, .. } = Plan::default();
        FlightPlan { size: 64, slots: 1, warm_up, duration, open: None }
    }
}

/// Counters of a measurement.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Counts {
    /// Requests returned unchanged.
    pub answered: u64,
    /// Requests not returned within 100 ms.
    pub lost: u64,
    /// Requests returned with wrong bytes.
    pub corrupt: u64,
    /// Requests returned after they had counted as lost, and duplicates.
    pub late: u64,
    /// Round-trip times.
    pub times: Times,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// One request is outstanding until the first answer.
    Probing {
        since: Option<Instant>,
    },
    /// Requests do not count yet.
    WarmingUp {
        until: Instant,
    },
    Measuring {
        from: Instant,
        until: Instant,
    },
    Ended,
}

/// Outstanding requests and counters.
///
/// Each request occupies a slot until it is answered or lost. Initially there is one slot; the first answer makes all
/// available.
#[derive(Debug)]
pub struct Flight {
    plan: FlightPlan,
    phase: Phase,
    /// Outstanding requests by slot, with the time of sending, which may be after the due time.
    slots: Vec<Option<(Stamp, Instant)>>,
    /// Pace of an open loop, from the first answer on.
    pace: Option<Pace>,
    free: Vec<u32>,
    sequence: u64,
    last_expiry: Instant,
    counts: Counts,
    measured: Duration,
}

impl Flight {
    /// Creates the state of `plan`.
    ///
    /// # Panics
    /// If the plan has no slots.
    pub fn new(plan: FlightPlan) -> Self {
        assert!(plan.slots > 0);
        let mut free = Vec::with_capacity(plan.slots);
        free.push(0);
        Flight {
            phase: Phase::Probing { since: None },
            slots: vec![None; plan.slots],
            pace: None,
            free,
            sequence: 0,
            last_expiry: Instant::ZERO,
            counts: Counts::default(),
            measured: Duration::ZERO,
            plan,
        }
    }

    /// Performs the work due at `now`; returns whether the load continues.
    #[inline]
    pub fn turn(&mut self, now: Instant) -> bool {
        match &mut self.phase {
            Phase::Probing { since } => {
                if now.since(*since.get_or_insert(now)) >= FIRST_ANSWER_TIMEOUT {
                    self.stop(now);
                }
            }
            Phase::WarmingUp { until } if now >= *until => {
                self.counts = Counts::default();
                if let Some(pace) = &mut self.pace {
                    pace.measure(now);
                }
                self.phase = Phase::Measuring { from: now, until: now + self.plan.duration };
            }
            Phase::Measuring { until, .. } if now >= *until => self.stop(now),
            Phase::WarmingUp { .. } | Phase::Measuring { .. } | Phase::Ended => {}
        }
        if now.since(self.last_expiry) >= EXPIRY_INTERVAL {
            self.expire(now);
        }
        self.phase != Phase::Ended
    }

    #[cold]
    fn expire(&mut self, now: Instant) {
        self.last_expiry = now;
        for (slot, stamp) in (0..).zip(&mut self.slots) {
            if stamp.is_some_and(|(_, since)| now.since(since) >= ANSWER_TIMEOUT) {
                *stamp = None;
                self.free.push(slot);
                self.counts.lost += 1;
            }
        }
    }

    /// Returns the stamp of the next request, if a slot is free and, in an open loop, the request is due. Its round
    /// trip is measured from the due time.
    #[inline]
    pub fn next(&self, now: Instant) -> Option<Stamp> {
        let slot = *self.free.last()?;
        let sent = match &self.pace {
            Some(pace) => Some(pace.next()).filter(|due| *due <= now)?,
            None => now,
        };
        Some(Stamp { sequence: self.sequence, sent, slot })
    }

    /// Returns the time until the next due request, at most `EXPIRY_INTERVAL`.
    pub fn rest(&self, now: Instant) -> Duration {
        self.pace.as_ref().map_or(EXPIRY_INTERVAL, |pace| EXPIRY_INTERVAL.min(pace.next().since(now)))
    }

    /// Records that the request of `stamp`, returned by [`next`](Self::next), was sent.
    // Inlined to avoid a store-forwarding stall: a stamp passed in memory is stored field by field and loaded whole.
    #[inline(always)]
    pub fn sent(&mut self, stamp: Stamp, now: Instant) {
        self.free.pop();
        self.sequence += 1;
        self.slots[stamp.slot as usize] = Some((stamp, now));
        if let Some(pace) = &mut self.pace {
            let due = pace.take();
            pace.sent(due, now);
        }
    }

    /// Records an answer; returns whether it was the first.
    #[inline]
    pub fn record_answer(&mut self, stamp: Stamp, now: Instant) -> bool {
        match self.slots.get_mut(stamp.slot as usize) {
            Some(slot) if slot.is_some_and(|(sent, _)| sent == stamp) => *slot = None,
            _ => {
                self.counts.late += 1;
                return false;
            }
        }
        // In an open loop only requests due since the measurement began count.
        if self.pace.as_ref().is_none_or(|pace| pace.counts(stamp.sent)) {
            self.counts.answered += 1;
            self.counts.times.record(now.since(stamp.sent).as_nanos() as u64);
        }
        self.free.push(stamp.slot);
        let first = matches!(self.phase, Phase::Probing { .. });
        if first {
            self.free.extend(1..self.plan.slots as u32);
            let pace = |open| Pace::new(open, now, 1, 1, fastrand::Rng::new());
            self.pace = self.plan.open.map(pace);
            self.phase = Phase::WarmingUp { until: now + self.plan.warm_up };
            tracing::info!("{}", if self.plan.warm_up.is_zero() { "measuring" } else { "warming up" });
        }
        first
    }

    /// Counts a corrupt answer.
    pub fn corrupt_answer(&mut self) {
        self.counts.corrupt += 1;
    }

    /// Ends the load; requests answered until now count.
    pub fn stop(&mut self, now: Instant) {
        if let Phase::Measuring { from, .. } = self.phase {
            self.measured = now.since(from);
            let times = &mut self.counts.times;
            for (stamp, _) in self.slots.iter().flatten() {
                if self.pace.as_ref().is_none_or(|pace| pace.counts(stamp.sent)) {
                    times.record_unanswered(now.since(stamp.sent), 1);
                }
            }
            if let Some(pace) = &mut self.pace {
                pace.end(now, |age, count| times.record_unanswered(age, count));
            }
        }
        self.phase = Phase::Ended;
    }

    /// Returns whether requests count now.
    #[cfg(test)]
    pub fn is_measuring(&self) -> bool {
        matches!(self.phase, Phase::Measuring { .. })
    }

    /// Returns the pace of an open loop.
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// Returns the counters and the measured duration, which is zero if there was no answer.
    pub fn result(&self) -> (&Counts, Duration) {
        (&self.counts, self.measured)
    }
}
