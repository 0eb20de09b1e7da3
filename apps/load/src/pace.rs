//! When the requests of an open loop are due, whether or not answers come.

use super::histogram_of_nanos;
use fastrand::Rng;
use hdrhistogram::Histogram;
use linerate_bypass::time::{Duration, Instant};
use serde::Serialize;

/// How the requests of an open loop follow each other.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// By chance, each as likely at one time as at another: the gaps are exponentially distributed. So come the requests of many who
    /// know nothing of each other.
    #[default]
    Poisson,
    /// At equal distances.
    Even,
}

/// What an open loop is to keep to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenLoop {
    /// Requests per second on all connections together, whether or not they are answered in time.
    pub rate: f64,
    /// How they follow each other.
    pub arrivals: Arrivals,
}

/// The requests of one worker, and how they were sent.
#[derive(Debug)]
pub struct Pace {
    arrivals: Arrivals,
    rng: Rng,
    from: Instant,
    /// Nanoseconds from one to the next, on average.
    gap: f64,
    /// The next one is so many nanoseconds after `from`.
    next: f64,
    /// Connections that they are spread over.
    connections: u64,
    /// How many have been taken.
    taken: u64,
    /// Those that are due from here on count.
    counts_from: Option<Instant>,
    /// How many of these were due.
    due: u64,
    late_nanos: Histogram<u64>,
}

impl Pace {
    /// The part of `plan` for `connections`, at least one, of `all` connections, from `from` on.
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

    /// An exponentially distributed gap.
    #[inline]
    fn draw(&mut self) -> f64 {
        // The logarithm's argument is above 0 and at most 1.
        -(1.0 - self.rng.f64()).ln() * self.gap
    }

    /// When the next one is due.
    #[inline]
    pub fn next(&self) -> Instant {
        Instant::from_nanos(self.from.as_nanos() + self.next as u64)
    }

    /// How many a connection is to take now, so that all have alike: at least one if one is due.
    pub fn share(&self, now: Instant) -> usize {
        self.backlog(self.next(), now).div_ceil(self.connections) as usize
    }

    /// About how many are due from `from` until `until`, if the next one is due at `from`.
    fn backlog(&self, from: Instant, until: Instant) -> u64 {
        if until < from { 0 } else { (until.since(from).as_nanos() as f64 / self.gap) as u64 + 1 }
    }

    /// Takes the next one: when it was due.
    #[inline]
    pub fn take(&mut self) -> Instant {
        let due = self.next();
        self.taken += 1;
        self.due += u64::from(self.counts(due));
        self.next = match self.arrivals {
            Arrivals::Poisson => self.next + self.draw(),
            // Counted from the beginning, so that what is rounded off does not add up.
            Arrivals::Even => self.taken as f64 * self.gap,
        };
        due
    }

    /// The first byte of one that was due at `due` has been handed over.
    #[inline]
    pub fn sent(&mut self, due: Instant, now: Instant) {
        if self.counts(due) {
            self.late_nanos.saturating_record(now.since(due).as_nanos() as u64);
        }
    }

    /// Those count that are due from now on.
    pub fn measure(&mut self, now: Instant) {
        self.counts_from = Some(now);
    }

    /// Whether one that was due at `due` counts.
    #[inline]
    pub fn counts(&self, due: Instant) -> bool {
        self.counts_from.is_some_and(|from| due >= from)
    }

    /// Measuring has ended. What is due by then and has not been taken was due all the same; how many these are is said on average.
    pub fn end(&mut self, until: Instant) {
        if let Some(from) = self.counts_from {
            // The end does not belong to it, as its beginning does.
            self.due += self.backlog(self.next().max(from), until - Duration::from_nanos(1));
        }
    }

    /// How many of those that count were due.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// How long after it was due each of them was sent, in nanoseconds, if it was.
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
    fn even_requests_are_due_at_equal_distances_however_late_they_are_taken() {
        let mut pace = pace(Arrivals::Even, 3.0);
        assert_eq!((pace.share(FROM - Duration::from_nanos(1)), pace.share(FROM)), (0, 1));
        assert_eq!(pace.share(FROM + Duration::from_millis(700)), 3);
        assert_eq!(pace.take(), FROM);
        assert_eq!(pace.share(FROM), 0);
        assert_eq!(pace.share(FROM + Duration::from_secs(100)), 300);
        for _ in 1..300 {
            pace.take();
        }
        assert_eq!(pace.next(), FROM + Duration::from_secs(100), "nothing adds up");
    }

    #[test]
    fn the_gaps_of_poissons_requests_have_an_exponential_distribution() {
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
        // Their standard deviation is their mean; that of the mean of so many is a thousandth of it, of the variance three.
        assert!((mean / 100_000.0 - 1.0).abs() < 0.004, "{mean}");
        assert!((variance / 1e10 - 1.0).abs() < 0.012, "{variance}");
        for (times, part) in [(0.1, 0.904_837), (1.0, 0.367_879), (3.0, 0.049_787)] {
            let longer = gaps.iter().filter(|gap| **gap > times * 100_000.0).count() as f64 / COUNT as f64;
            assert!((longer - part).abs() < 0.002, "{longer} of them are longer than {times} times the mean");
        }
    }

    #[test]
    fn the_parts_of_all_workers_make_the_rate_and_spread_over_their_connections() {
        let plan = OpenLoop { rate: 1000.0, arrivals: Arrivals::Even };
        let second = FROM + Duration::from_millis(999);
        let [one, three] = [1, 3].map(|part| Pace::new(plan, FROM, part, 4, Rng::with_seed(1)));
        assert_eq!((one.share(second), three.share(second)), (250, 250));
        assert_eq!(one.share(FROM), 1);
    }

    #[test]
    fn only_those_count_that_are_due_while_measuring_whether_they_are_taken_or_not() {
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
        pace.end(at(50));
        assert_eq!(pace.due(), 30);

        let mut behind = self::pace(Arrivals::Even, 1000.0);
        behind.measure(at(20));
        behind.end(at(50));
        assert_eq!(behind.due(), 30, "what was due before does not count");
    }
}
