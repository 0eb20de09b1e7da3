//! Percentiles and histograms of times.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Non-empty buckets of a histogram in ascending order; JSON is `[[upper end in µs, count], …]`. Values in a bucket are
/// at most its upper end, and less than a thousandth below it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Buckets(Vec<(f64, u64)>);

impl Buckets {
    /// Converts a histogram of nanoseconds.
    pub fn of_nanos(histogram: &Histogram<u64>) -> Self {
        let bucket = |upper: u64, count| (upper as f64 / 1000.0, count);
        Buckets(histogram.iter_recorded().map(|at| bucket(at.value_iterated_to(), at.count_at_value())).collect())
    }
}

/// Percentile of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Percentile {
    P50,
    P90,
    P99,
    P999,
    P9999,
}

impl Percentile {
    /// All percentiles in ascending order.
    pub const ALL: [Percentile; 5] =
        [Percentile::P50, Percentile::P90, Percentile::P99, Percentile::P999, Percentile::P9999];
    /// Samples beyond a percentile below which it is not reported: chance would determine it.
    const MIN_BEYOND: u64 = 10;

    /// Returns the name, and the samples beyond the percentile among 10 000.
    const fn properties(self) -> (&'static str, u64) {
        match self {
            Percentile::P50 => ("p50", 5000),
            Percentile::P90 => ("p90", 1000),
            Percentile::P99 => ("p99", 100),
            Percentile::P999 => ("p99.9", 10),
            Percentile::P9999 => ("p99.99", 1),
        }
    }

    /// Returns the name, such as `p99.9`.
    pub const fn name(self) -> &'static str {
        self.properties().0
    }

    /// Returns the number of samples from which the percentile is reported.
    pub const fn min_samples(self) -> u64 {
        Self::MIN_BEYOND * 10_000 / self.properties().1
    }

    fn quantile(self) -> f64 {
        1.0 - self.properties().1 as f64 / 10_000.0
    }
}

/// Percentiles in microseconds. Those with too few samples are absent: fewer than ten beyond the percentile.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Percentiles {
    /// Number of times.
    pub samples: u64,
    /// Median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// 90th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// 99.9th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999: Option<f64>,
    /// 99.99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p9999: Option<f64>,
    /// Maximum; zero without samples.
    pub max: f64,
}

impl Percentiles {
    /// Column headings.
    pub const HEAD: &str = "         p50        p90        p99      p99.9     p99.99        max      samples";

    /// Computes the percentiles of a histogram of nanoseconds.
    pub fn of_nanos(histogram: &Histogram<u64>) -> Self {
        let micros = |nanos| nanos as f64 / 1000.0;
        let samples = histogram.len();
        let at = |percentile: Percentile| {
            (samples >= percentile.min_samples()).then(|| micros(histogram.value_at_quantile(percentile.quantile())))
        };
        let [p50, p90, p99, p999, p9999] = Percentile::ALL.map(at);
        Percentiles { samples, p50, p90, p99, p999, p9999, max: micros(histogram.max()) }
    }

    /// Returns a percentile, if there are enough samples.
    pub fn get(&self, percentile: Percentile) -> Option<f64> {
        match percentile {
            Percentile::P50 => self.p50,
            Percentile::P90 => self.p90,
            Percentile::P99 => self.p99,
            Percentile::P999 => self.p999,
            Percentile::P9999 => self.p9999,
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = Percentile::ALL.map(|percentile| self.get(percentile)).into_iter();
        let max = (self.samples > 0).then_some(self.max);
        for (at, value) in values.chain([max]).enumerate() {
            let width = if at == 0 { 12 } else { 11 };
            write!(f, "{:>width$}", value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}")))?;
        }
        write!(f, " {:>12}", self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Times;
    use crate::report::Report;
    use std::time::Duration;

    fn histogram(micros: impl Iterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new(3).unwrap();
        micros.for_each(|micros| histogram.record(micros * 1000).unwrap());
        histogram
    }

    #[test]
    fn percentiles_are_in_microseconds_to_three_digits() {
        let all = Percentiles::of_nanos(&histogram(1..=100_000));
        let expected = [50_000.0, 90_000.0, 99_000.0, 99_900.0, 99_990.0, 100_000.0];
        let values = Percentile::ALL.map(|percentile| all.get(percentile).unwrap()).into_iter();
        for (value, expected) in values.chain([all.max]).zip(expected) {
            assert!((value - expected).abs() / expected < 0.001, "{value} is not {expected}");
        }
        assert_eq!(all.samples, 100_000);
    }

    #[test]
    fn percentile_needs_ten_samples_beyond() {
        for (samples, percentiles) in
            [(0, 0), (19, 0), (20, 1), (99, 1), (100, 2), (999, 2), (1000, 3), (10_000, 4), (99_999, 4), (100_000, 5)]
        {
            let some = Percentiles::of_nanos(&histogram(1..=samples));
            let present = Percentile::ALL.map(|percentile| some.get(percentile).is_some());
            assert!(present.iter().enumerate().all(|(at, present)| *present == (at < percentiles)), "{some:?}");
            let json = serde_json::to_value(some).unwrap();
            assert_eq!(json.as_object().unwrap().len(), percentiles + 2, "{json}");
            assert_eq!(serde_json::from_value::<Percentiles>(json).unwrap(), some);
            let text = some.to_string();
            let dashes = 5 - percentiles + usize::from(samples == 0);
            assert_eq!((text.matches('-').count(), text.chars().count()), (dashes, Percentiles::HEAD.len()), "{text}");
        }
    }

    #[test]
    fn buckets_hold_each_time_within_a_thousandth() {
        let mut rng = fastrand::Rng::with_seed(1);
        let nanos: Vec<u64> = (0..10_000).map(|i| rng.u64(1 << (i % 30)..2 << (i % 30))).collect();
        let mut histogram = crate::histogram_of_nanos();
        nanos.iter().for_each(|nanos| histogram.record(*nanos).unwrap());
        let Buckets(buckets) = Buckets::of_nanos(&histogram);
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0) && buckets.iter().all(|(_, count)| *count > 0));
        let mut lower = 0.0;
        for (upper, count) in buckets {
            let here = nanos.iter().map(|nanos| *nanos as f64 / 1000.0).filter(|us| *us > lower && *us <= upper);
            let here: Vec<f64> = here.collect();
            assert_eq!(here.len() as u64, count, "up to {upper}");
            assert!(here.iter().all(|us| upper - us <= us / 1000.0), "{here:?} up to {upper}");
            lower = upper;
        }
        let mut times = Times::default();
        times.record(3000);
        let with = serde_json::to_value(Report::new(1, Duration::from_secs(1), 0, 0, &times, true)).unwrap();
        assert_eq!(with["histogram"], serde_json::json!([[3.001, 1]]));
    }
}
