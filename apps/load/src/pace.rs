//! Due times of the requests of an open loop, which do not depend on answers.

use crate::histogram_of_nanos;
use fastrand::Rng;
use hdrhistogram::Histogram;
use linerate_service::time::{Duration, Instant};
use serde::Serialize;

/// Distribution of the gaps between requests of an open loop.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Exponentially distributed gaps (a Poisson process), as of many independent clients.
    #[default]
    Poisson,
    /// Equal gaps.
    Even,
}

/// Largest number of groups into which [`Pace::end`] divides requests: three digits, as of a histogram.
const MOST_GROUPS: u64 = 1000;

/// Parameters of an open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenLoop {
    /// Requests per second on all connections together, whether or not answers arrive.
    pub rate: f64,
    /// Distribution of the gaps.
    pub arrivals: Arrivals,
}

impl OpenLoop {
    /// Default limit of outstanding requests on a connection: enough that a slightly overloaded server limits the
    /// queue, and not the load.
    pub const DEPTH: usize = 64;
}

/// One worker's requests and their delays.
#[derive(Debug)]
pub struct Pace {
    arrivals: Arrivals,
    rng: Rng,
    from: Instant,
    /// Mean gap in nanoseconds.
    gap: f64,
    /// Due time of the next request, in nanoseconds after `from`.
    next: f64,
    /// Connections that share the requests.
    connections: u64,
    /// Requests taken so far.
    taken: u64,
    /// Requests due from this time on count.
    counts_from: Option<Instant>,
    /// Number of counted requests that were due.
    due: u64,
    late_nanos: Histogram<u64>,
}

impl Pace {
    /// Creates the part of `plan` for `connections`, at least one, of `all` connections, starting at `from`.
    pub fn new(plan: OpenLoop, from: Instant, connections: usize, all: usize, rng: Rng) -> Self {
        let part = connections as f64 / all.max(connections) as f64;
        let mut pace = Pace {
            arrivals: plan.arrivals,
            rng,
            from,
            gap: 1e9 / (plan.rate * part),
            next: 0.0,
            connections: connections.max(1) as u64,
            taken: 0,
            counts_from: None,
            due: 0,
            late_nanos: histogram_of_nanos(),
        };
        if pace.arrivals == Arrivals::Poisson {
            pace.next = pace.draw();
        }
        pace
    }

    /// Draws an exponentially distributed gap.
    #[inline]
    fn draw(&mut self) -> f64 {
        // The logarithm's argument is in (0, 1].
        -(1.0 - self.rng.f64()).ln() * self.gap
    }

    /// Returns the due time of the next request.
    #[inline]
    pub fn next(&self) -> Instant {
        Instant::from_nanos(self.from.as_nanos() + self.next as u64)
    }

    /// Returns one connection's share of the due requests: at least one if a request is due.
    pub fn share(&self, now: Instant) -> usize {
        self.backlog(self.next(), now).div_ceil(self.connections) as usize
    }

    /// Returns the expected number of requests due from `from` until `until`, the first at `from`.
    fn backlog(&self, from: Instant, until: Instant) -> u64 {
        if until < from { 0 } else { (until.since(from).as_nanos() as f64 / self.gap) as u64 + 1 }
    }

    /// Takes the next request and returns its due time.
    #[inline]
    pub fn take(&mut self) -> Instant {
        let due = self.next();
        self.taken += 1;
        self.due += u64::from(self.counts(due));
        self.next = match self.arrivals {
            Arrivals::Poisson => self.next + self.draw(),
            // Computed from the beginning, so that rounding errors do not accumulate.
            Arrivals::Even => self.taken as f64 * self.gap,
        };
        due
    }

    /// Records that the first byte of the request due at `due` was sent.
    #[inline]
    pub fn sent(&mut self, due: Instant, now: Instant) {
        if self.counts(due) {
            self.late_nanos.saturating_record(now.since(due).as_nanos() as u64);
        }
    }

    /// Starts counting requests due from `now` on.
    pub fn measure(&mut self, now: Instant) {
        self.counts_from = Some(now);
    }

    /// Returns whether a request due at `due` counts.
    #[inline]
    pub fn counts(&self, due: Instant) -> bool {
        self.counts_from.is_some_and(|from| due >= from)
    }

    /// Ends counting. Requests due until then and not taken count as due; their number is the expected one. `waiting`
    /// receives the ages of groups of them and their sizes.
    pub fn end(&mut self, until: Instant, mut waiting: impl FnMut(Duration, u64)) {
        let Some(from) = self.counts_from else { return };
        let next = self.next().max(from);
        // The interval is half-open.
        let all = self.backlog(next, until - Duration::from_nanos(1));
        self.due += all;
        let group = all.div_ceil(MOST_GROUPS).max(1);
        for first in (0..all).step_by(group as usize) {
            let due = next + Duration::from_nanos((first as f64 * self.gap) as u64);
            let (age, count) = (until.since(due), group.min(all - first));
            self.late_nanos.saturating_record_n(age.as_nanos() as u64, count);
            waiting(age, count);
        }
    }

    /// Returns the number of counted requests that were due.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Returns the delays of counted requests from due time to sending, in nanoseconds. Requests that were never sent
    /// count with their age at the end.
    pub fn late_nanos(&self) -> &Histogram<u64> {
        &self.late_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Instant = Instant::from_nanos(5_000_000_000);

    fn pace(arrivals: Arrivals, rate: f64) -> Pace {
        Pace::new(OpenLoop { rate, arrivals }, FROM, 1, 1, Rng::with_seed(1))
    }

    #[test]
    fn even_requests_keep_their_due_times_when_taken_late() {
        let mut pace = pace(Arrivals::Even, 3.0);
        assert_eq!((pace.share(FROM - Duration::from_nanos(1)), pace.share(FROM)), (0, 1));
        assert_eq!(pace.share(FROM + Duration::from_millis(700)), 3);
        assert_eq!(pace.take(), FROM);
        assert_eq!(pace.share(FROM), 0);
        assert_eq!(pace.share(FROM + Duration::from_secs(100)), 300);
        for _ in 1..300 {
            pace.take();
        }
        assert_eq!(pace.next(), FROM + Duration::from_secs(100), "rounding errors accumulate");
    }

    #[test]
    fn poisson_gaps_are_exponentially_distributed() {
        const COUNT: usize = 1_000_000;
        let mut pace = pace(Arrivals::Poisson, 10_000.0);
        let mut before = FROM;
        let gaps: Vec<f64> = std::iter::repeat_with(|| {
            let due = pace.take();
            due.since(std::mem::replace(&mut before, due)).as_nanos() as f64
        })
        .take(COUNT)
        .collect();
        let mean = gaps.iter().sum::<f64>() / COUNT as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / COUNT as f64;
        // The standard deviation equals the mean; that of the mean over so many gaps is a thousandth of it, of the
        // variance three.
        assert!((mean / 100_000.0 - 1.0).abs() < 0.004, "{mean}");
        assert!((variance / 1e10 - 1.0).abs() < 0.012, "{variance}");
        for (times, part) in [(0.1, 0.904_837), (1.0, 0.367_879), (3.0, 0.049_787)] {
            let longer = gaps.iter().filter(|gap| **gap > times * 100_000.0).count() as f64 / COUNT as f64;
            assert!((longer - part).abs() < 0.002, "{longer} of the gaps are longer than {times} times the mean");
        }
    }

    #[test]
    fn workers_parts_add_up_and_spread_over_connections() {
        let plan = OpenLoop { rate: 1000.0, arrivals: Arrivals::Even };
        let second = FROM + Duration::from_millis(999);
        let [one, three] = [1, 3].map(|part| Pace::new(plan, FROM, part, 4, Rng::with_seed(1)));
        assert_eq!((one.share(second), three.share(second)), (250, 250));
        assert_eq!(one.share(FROM), 1);
    }

    #[test]
    fn requests_due_while_measuring_count_whether_taken_or_not() {
        let at = |millis| FROM + Duration::from_millis(millis);
        let mut pace = pace(Arrivals::Even, 1000.0);
        for _ in 0..15 {
            let due = pace.take();
            pace.sent(due, due + Duration::from_secs(1));
        }
        pace.measure(at(20));
        for i in 15..30 {
            assert_eq!(pace.counts(pace.next()), i >= 20);
            let due = pace.take();
            pace.sent(due, due + Duration::from_millis(1));
        }
        assert_eq!((pace.due(), pace.late_nanos().len()), (10, 10));
        let mut ages = Vec::new();
        pace.end(at(50), |age, count| ages.push((age, count)));
        assert_eq!(pace.due(), 30);
        assert!((1..=20).rev().map(|millis| (Duration::from_millis(millis), 1)).eq(ages));
        assert_eq!((pace.late_nanos().len(), pace.late_nanos().max() / 1_000_000), (30, 20));

        let mut late = self::pace(Arrivals::Even, 1000.0);
        late.measure(at(20));
        late.end(at(50), |_, _| ());
        assert_eq!(late.due(), 30, "earlier requests do not count");

        let (mut endless, mut groups) = (self::pace(Arrivals::Poisson, 1e9), Vec::new());
        endless.measure(FROM);
        endless.end(FROM + Duration::from_secs(3600), |age, count| groups.push((age.as_secs(), count)));
        assert!(groups.len() <= MOST_GROUPS as usize && groups[0].0 >= 3599, "{groups:?}");
        assert_eq!(groups.iter().map(|(_, count)| count).sum::<u64>(), endless.due());
    }
}
