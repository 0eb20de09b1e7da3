//! Latency of requests, from the burst in which they arrive to their replies, as a histogram.
//!
//! One burst in [`SAMPLED`] is timed, and each of its requests counts with the duration of the burst. A request for
//! another worker counts when its batch returns.

use crate::service::Kv;
use linerate_service::inspect::ServiceMetric;
use linerate_service::time::Instant;
use linerate_service::{ConnId, Transport};

/// One burst in this many is timed: reading the clock for each burst would cost more than a hundredth of a GET.
pub(in crate::service) const SAMPLED: u64 = 16;

/// Upper bound of the first bucket: 2⁹ ns. Each further bound is twice the one before.
const FIRST_BITS: u32 = 9;
/// Bounds of the buckets in seconds.
const BOUNDS: [&str; 18] = [
    "5.12e-07",
    "1.024e-06",
    "2.048e-06",
    "4.096e-06",
    "8.192e-06",
    "1.6384e-05",
    "3.2768e-05",
    "6.5536e-05",
    "0.000131072",
    "0.000262144",
    "0.000524288",
    "0.001048576",
    "0.002097152",
    "0.004194304",
    "0.008388608",
    "0.016777216",
    "0.033554432",
    "+Inf",
];

/// Histogram of the sampled requests.
#[derive(Debug, Default)]
pub(in crate::service) struct Latency {
    buckets: [u64; BOUNDS.len()],
    nanos: u64,
    /// Start of the burst that is being timed.
    pub since: Option<Instant>,
}

impl Latency {
    fn record(&mut self, nanos: u64, count: u64) {
        let bits = u64::BITS - (nanos.saturating_sub(1) >> FIRST_BITS).leading_zeros();
        self.buckets[(bits as usize).min(BOUNDS.len() - 1)] += count;
        self.nanos += nanos * count;
    }

    /// Returns the cumulative buckets, and the sum of the latencies in nanoseconds.
    pub fn metrics(&self) -> impl Iterator<Item = ServiceMetric> {
        let counts = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        let buckets =
            BOUNDS.into_iter().zip(counts).map(|(part, value)| ServiceMetric { name: "latency", part, value });
        buckets.chain([ServiceMetric { name: "latency sum", part: "", value: self.nanos }])
    }
}

impl Kv {
    /// Serves a burst and counts the latency of its requests.
    #[cold]
    #[inline(never)]
    pub(in crate::service) fn timed_burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        let before = self.stats.commands + self.counts.keys();
        let since = self.stopwatch.now();
        self.latency.since = Some(since);
        let served = self.serve_burst(net, readable);
        self.latency.since = None;
        let count = self.stats.commands + self.counts.keys() - before;
        self.note_latency(since, count);
        served
    }

    /// Counts `count` requests that have been replied to and arrived in the burst that began at `since`.
    #[cold]
    pub(in crate::service) fn note_latency(&mut self, since: Instant, count: u64) {
        let nanos = self.stopwatch.now().since(since).as_nanos();
        self.latency.record(u64::try_from(nanos).unwrap_or(u64::MAX), count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_powers_of_two() {
        for (n, bound) in BOUNDS[..BOUNDS.len() - 1].iter().enumerate() {
            assert_eq!(bound.parse::<f64>().unwrap(), (1_u64 << (FIRST_BITS as usize + n)) as f64 / 1e9, "{bound}");
        }
    }

    #[test]
    fn latency_up_to_a_bound_is_in_its_bucket() {
        for (n, bucket) in
            [(0, 0), (512, 0), (513, 1), (1024, 1), (1025, 2), (1 << 25, 16), ((1 << 25) + 1, 17), (1 << 40, 17)]
        {
            let mut latency = Latency::default();
            latency.record(n, 3);
            let values: Vec<_> = latency.metrics().map(|metric| metric.value).collect();
            let expected: Vec<_> = (0..BOUNDS.len()).map(|at| if at < bucket { 0 } else { 3 }).chain([3 * n]).collect();
            assert_eq!(values, expected, "{n}");
        }
    }
}
