//! Times of a load's requests, including requests without an answer.

use hdrhistogram::Histogram;
use linerate_service::time::Duration;
use std::ops::AddAssign;

/// Initial range of histograms: times up to a minute need no resizing.
const USUAL_NANOS: u64 = 60_000_000_000;
/// Minimum age of a stalled request: more than a retransmission timeout (200 ms on Linux), or than the time for which a
/// busy machine does not run the server.
const STALL: Duration = Duration::from_millis(500);
/// Minimum age of a stalled request as a multiple of the 99th percentile.
const STALL_P99: u64 = 10;

/// Creates a histogram of times with three digits.
pub(crate) fn histogram_of_nanos() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_max(USUAL_NANOS, 3).expect("the bounds are valid");
    histogram.auto(true);
    histogram
}

/// Times of requests in nanoseconds, to three digits.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    answered: Histogram<u64>,
    /// Ages at the end of the measurement of requests without an answer.
    unanswered: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        Times { answered: histogram_of_nanos(), unanswered: histogram_of_nanos() }
    }
}

impl AddAssign<&Times> for Times {
    fn add_assign(&mut self, other: &Times) {
        self.answered += &other.answered;
        self.unanswered += &other.unanswered;
    }
}

impl<'a> std::iter::Sum<&'a Times> for Times {
    fn sum<I: Iterator<Item = &'a Times>>(all: I) -> Times {
        all.fold(Times::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

impl Times {
    /// Records the time of an answered request.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.answered.saturating_record(nanos);
    }

    /// Records `count` requests that have waited this long for an answer when the measurement ends.
    pub fn record_unanswered(&mut self, age: Duration, count: u64) {
        self.unanswered.saturating_record_n(age.as_nanos() as u64, count);
    }

    /// Returns the times of the answered requests.
    pub fn answered(&self) -> &Histogram<u64> {
        &self.answered
    }

    /// Returns all times. A request without an answer counts with its age if that exceeds the 99th percentile of the
    /// others: a longer wait is known, and the requests that are always outstanding when a load ends do not lower the
    /// percentiles.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = self.answered.clone();
        for (nanos, count) in self.waiting_longer_than(self.p99()) {
            all.saturating_record_n(nanos, count);
        }
        all
    }

    /// Returns the number of stalled requests: those that waited much longer than others when the measurement ended.
    pub fn stalled(&self) -> u64 {
        let limit = (STALL.as_nanos() as u64).max(self.p99().saturating_mul(STALL_P99));
        self.waiting_longer_than(limit).map(|(_, count)| count).sum()
    }

    fn p99(&self) -> u64 {
        self.answered.value_at_quantile(0.99)
    }

    fn waiting_longer_than(&self, nanos: u64) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.unanswered.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value()));
        buckets.filter(move |(age, _)| *age > nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_without_an_answer_counts_if_it_waited_longer_than_others() {
        let mut times = Times::default();
        (1..=1000).for_each(|micros| times.record(micros * 1000));
        times.record_unanswered(Duration::from_micros(500), 7);
        assert_eq!((times.all(), times.stalled()), (times.answered().clone(), 0));
        times.record_unanswered(Duration::from_millis(499), 1);
        assert_eq!((times.all().len(), times.stalled()), (1001, 0));
        times.record_unanswered(Duration::from_secs(3), 3);
        let all = times.all();
        assert_eq!((all.len(), times.stalled()), (1004, 3));
        assert!(all.equivalent(all.max(), 3_000_000_000) && all.equivalent(all.value_at_quantile(0.5), 502_000));
    }

    #[test]
    fn stall_is_relative_to_the_other_requests() {
        let mut times = Times::default();
        times.record_unanswered(Duration::from_millis(600), 1);
        assert_eq!(times.stalled(), 1, "no request was answered");
        times.record(100_000_000);
        assert_eq!(times.stalled(), 0);
        let sum: Times = [&times, &times].into_iter().sum();
        assert_eq!((sum.answered().len(), sum.all().len()), (2, 4));
    }
}
