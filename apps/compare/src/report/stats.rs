//! Medians and spreads over the rounds of a row, and the comparison of two spreads.

use crate::results::{Fixed, Round};
use linerate_load::report::{Percentile, Percentiles};
use linerate_process::cpu_time::DISTURBED;
use std::cmp::Ordering;

/// Fraction of the client's ceiling from which a row counts as limited by its client.
pub const NEAR_CEILING: f64 = 0.9;
/// Number of measurements from which the observed spread is used.
const SPREAD_FROM: usize = 3;
/// Relative uncertainty assumed for fewer measurements.
pub const UNKNOWN: f64 = 0.05;

/// Distribution of a quantity over rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// First and third quartile, for four rounds or more.
    pub quartiles: Option<(f64, f64)>,
    pub rounds: usize,
}

impl Spread {
    /// Creates the spread of `values`; `None` if there are none.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let rank = part * (values.len() - 1) as f64;
            let (below, above) = (values[rank.floor() as usize], values[rank.ceil() as usize]);
            below + (above - below) * rank.fract()
        };
        let (min, max) = (*values.first()?, *values.last()?);
        let quartiles = (values.len() >= 4).then(|| (at(0.25), at(0.75)));
        Some(Spread { median: at(0.5), min, max, quartiles, rounds: values.len() })
    }

    /// Creates the spread of a single measurement.
    pub fn once(value: f64) -> Option<Self> {
        Spread::from_values([value])
    }

    /// Returns the range of plausible values: minimum to maximum, widened for few rounds.
    pub fn range(&self) -> (f64, f64) {
        match self.rounds < SPREAD_FROM {
            true => (self.min * (1.0 - UNKNOWN), self.max * (1.0 + UNKNOWN)),
            false => (self.min, self.max),
        }
    }

    /// Returns half the width of the range, relative to the median.
    pub fn relative(&self) -> f64 {
        let (low, high) = self.range();
        if self.median > 0.0 { (high - low) / 2.0 / self.median } else { 0.0 }
    }

    /// Widens the range to at least this fraction of the median on each side.
    pub fn widened(self, part: f64) -> Self {
        let (min, max) = (self.min.min(self.median * (1.0 - part)), self.max.max(self.median * (1.0 + part)));
        Spread { min, max, rounds: self.rounds.max(SPREAD_FROM), ..self }
    }

    /// Compares with another spread; `None` if the ranges overlap.
    pub fn against(&self, other: &Self) -> Option<Ordering> {
        let ((low, high), (other_low, other_high)) = (self.range(), other.range());
        match () {
            () if low > other_high => Some(Ordering::Greater),
            () if high < other_low => Some(Ordering::Less),
            () => None,
        }
    }

    /// Returns the ratio to another spread: of the medians, minimum and maximum. `None` if the other is zero.
    pub fn times(&self, other: &Self) -> Option<(f64, f64, f64)> {
        let ((low, high), (other_low, other_high)) = (self.range(), other.range());
        (other_low > 0.0).then(|| (self.median / other.median, low / other_high, high / other_low))
    }
}

/// Statistics of a row at a fixed setting. Quantities not counted in any round are `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct PointStats {
    /// Requests per second.
    pub rate: Option<Spread>,
    /// Round trips in µs: p50, p90, p99, p99.9, p99.99 and maximum, of the rounds with enough answers.
    pub rtt: [Option<Spread>; 6],
    /// Round trips of a round.
    pub samples: Option<Spread>,
    /// Microseconds of processor time per request.
    pub cpu_us: Option<Spread>,
    /// Cycles per request.
    pub cycles: Option<Spread>,
    /// Instructions per request.
    pub instructions: Option<Spread>,
    /// Bytes copied by Linerate per request.
    pub copied: Option<Spread>,
    /// Bytes copied below Linerate per request.
    pub copied_below: Option<Spread>,
    /// Frames per request, both directions together.
    pub frames: Option<Spread>,
    /// Frames per poll that returned any.
    pub batch: Option<Spread>,
    /// Nanoseconds of a cache-line transfer between cores.
    pub transfer_ns: Option<Spread>,
    /// Part of the cores' time that others had, in per cent.
    pub others: Option<Spread>,
    /// Errors of all rounds.
    pub errors: u64,
    /// Rate relative to the client's ceiling, if known.
    pub of_ceiling: Option<f64>,
}

/// Accessor of a percentile.
type Of = fn(&Percentiles) -> Option<f64>;

/// Percentiles of [`PointStats::rtt`].
pub const QUANTILES: [(&str, Of); 6] = [
    (Percentile::P50.name(), |rtt| rtt.p50),
    (Percentile::P90.name(), |rtt| rtt.p90),
    (Percentile::P99.name(), |rtt| rtt.p99),
    (Percentile::P999.name(), |rtt| rtt.p999),
    (Percentile::P9999.name(), |rtt| rtt.p9999),
    ("max", |rtt| Some(rtt.max)),
];

impl PointStats {
    /// Computes the statistics of a fixed setting.
    pub fn from_rounds(fixed: &Fixed) -> Self {
        let rounds = &fixed.rounds;
        let over = |value: &dyn Fn(&Round) -> Option<f64>| Spread::from_values(rounds.iter().filter_map(value));
        let each =
            |count: &dyn Fn(&Round) -> Option<f64>| over(&|round| Some(count(round)? / some(round.server.requests)?));
        let whole = |count: Option<u64>| count.map(|count| count as f64);
        let rate = over(&|round| (round.seconds > 0.0).then(|| round.requests as f64 / round.seconds));
        PointStats {
            rate,
            rtt: QUANTILES.map(|(_, at)| over(&|round| at(&round.rtt_us).filter(|_| round.requests > 0))),
            samples: over(&|round| Some(round.rtt_us.samples as f64).filter(|samples| *samples > 0.0)),
            cpu_us: each(&|round| Some(round.server.cpu_seconds? * 1e6)),
            cycles: each(&|round| whole(round.server.cycles)),
            instructions: each(&|round| whole(round.server.instructions)),
            copied: each(&|round| whole(round.server.copied)),
            copied_below: each(&|round| whole(round.server.copied_below)),
            frames: each(&|round| whole(round.server.rx_frames?.checked_add(round.server.tx_frames?))),
            batch: over(&|round| Some(whole(round.server.rx_frames)? / some(round.server.bursts?)?)),
            transfer_ns: over(&|round| round.transfer_ns),
            others: over(&|round| Some(round.others? * 100.0)),
            errors: rounds.iter().map(|round| round.errors).sum(),
            of_ceiling: rate
                .zip(fixed.client_ceiling.filter(|&ceiling| ceiling > 0.0))
                .map(|(rate, of)| rate.median / of),
        }
    }

    /// Returns whether the client limited the rate.
    pub fn is_limited_by_client(&self) -> bool {
        self.of_ceiling.is_some_and(|part| part >= NEAR_CEILING)
    }

    /// Returns whether others had so much of the cores' time that they disturbed the measurement in most rounds.
    pub fn is_disturbed(&self) -> bool {
        self.others.is_some_and(|part| part.median >= DISTURBED * 100.0)
    }

    /// Returns every quantity with its name and unit.
    pub fn all(&self) -> Vec<(String, Spread)> {
        let mut all = vec![("requests/s".to_owned(), self.rate)];
        all.extend(QUANTILES.iter().zip(self.rtt).map(|((name, _), rtt)| (format!("round trip {name}, µs"), rtt)));
        for (name, spread) in [
            ("round trips of a round", self.samples),
            ("server CPU, µs per request", self.cpu_us),
            ("cycles per request", self.cycles),
            ("instructions per request", self.instructions),
            ("bytes copied by Linerate, per request", self.copied),
            ("bytes copied below Linerate, per request", self.copied_below),
            ("frames per request", self.frames),
            ("frames per poll that returned any", self.batch),
            ("cache-line transfer between cores, ns", self.transfer_ns),
            ("time of the cores that others had, %", self.others),
        ] {
            all.push((name.to_owned(), spread));
        }
        all.into_iter().filter_map(|(name, spread)| Some((name, spread?))).collect()
    }
}

fn some(count: u64) -> Option<f64> {
    (count > 0).then_some(count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Point, ServerSide};

    fn round(requests: u64, seconds: f64, server: ServerSide) -> Round {
        let (p50, p90, p99, p999) = (Some(10.0), Some(20.0), Some(30.0), Some(40.0));
        let rtt_us = Percentiles { samples: requests, p50, p90, p99, p999, p9999: None, max: 50.0 };
        Round { transfer_ns: None, others: None, requests, seconds, errors: 1, rtt_us, histogram: Vec::new(), server }
    }

    fn fixed(rounds: Vec<Round>, client_ceiling: Option<f64>) -> PointStats {
        PointStats::from_rounds(&Fixed { point: Point { connections: 1, depth: 1 }, rounds, client_ceiling })
    }

    #[test]
    fn median_of_an_even_number_is_the_mean_of_the_middle_two() {
        let spread = Spread::from_values([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert_eq!(spread.quartiles, Some((1.75, 3.25)));
    }

    #[test]
    fn quartiles_need_four_rounds() {
        assert_eq!(Spread::from_values([1.0, 5.0, 2.0]).unwrap().quartiles, None);
        assert_eq!(Spread::from_values([1.0, 5.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Spread::from_values([]), None);
        assert_eq!(Spread::from_values([f64::NAN]), None);
    }

    #[test]
    fn overlapping_ranges_show_no_difference() {
        let (low, high) =
            (Spread::from_values([1.0, 2.0, 3.0]).unwrap(), Spread::from_values([4.0, 5.0, 6.0]).unwrap());
        let middle = Spread::from_values([3.0, 3.5, 4.0]).unwrap();
        assert_eq!((low.against(&high), high.against(&low)), (Some(Ordering::Less), Some(Ordering::Greater)));
        assert_eq!((low.against(&middle), middle.against(&high)), (None, None));
        assert_eq!(high.times(&low), Some((2.5, 4.0 / 3.0, 6.0)));
        assert_eq!(high.times(&Spread::from_values([0.0, 1.0, 2.0]).unwrap()), None);
    }

    #[test]
    fn single_measurement_has_an_assumed_uncertainty() {
        let once = |value| Spread::once(value).unwrap();
        assert_eq!(once(100.0).against(&once(108.0)), None);
        assert_eq!(once(100.0).against(&once(112.0)), Some(Ordering::Less));
        assert_eq!(once(100.0).widened(0.2).against(&once(112.0)), None);
    }

    #[test]
    fn costs_use_server_requests_and_rates_use_load_requests() {
        let server = ServerSide {
            requests: 400,
            cpu_seconds: Some(0.002),
            cycles: Some(4000),
            rx_frames: Some(400),
            tx_frames: Some(200),
            bursts: Some(100),
            ..ServerSide::default()
        };
        let stats = fixed(vec![round(200, 2.0, server)], Some(110.0));
        let median = |spread: Option<Spread>| spread.unwrap().median;
        assert_eq!((median(stats.rate), median(stats.cpu_us), median(stats.cycles)), (100.0, 5.0, 10.0));
        assert_eq!((median(stats.frames), median(stats.batch), stats.instructions), (1.5, 4.0, None));
        let rtt = stats.rtt.map(|rtt| rtt.map(|rtt| rtt.median));
        assert_eq!(rtt, [Some(10.0), Some(20.0), Some(30.0), Some(40.0), None, Some(50.0)]);
        assert_eq!(median(stats.samples), 200.0);
        assert!(stats.is_limited_by_client(), "100 of 110 is more than nine tenths");
    }

    #[test]
    fn client_limits_only_near_its_ceiling() {
        let rounds = || vec![round(100, 1.0, ServerSide::default())];
        assert!(!fixed(rounds(), Some(112.0)).is_limited_by_client());
        assert!(!fixed(rounds(), None).is_limited_by_client());
        assert!(fixed(rounds(), Some(111.0)).is_limited_by_client());
    }

    #[test]
    fn rounds_without_answers_have_no_round_trips() {
        let stats = fixed(vec![round(0, 0.0, ServerSide::default()), round(0, 1.0, ServerSide::default())], None);
        assert_eq!((stats.rtt[0], stats.cpu_us, stats.errors), (None, None, 2));
        assert_eq!(stats.rate.unwrap().max, 0.0);
        assert_eq!(fixed(Vec::new(), Some(1.0)).rate, None);
    }
}
