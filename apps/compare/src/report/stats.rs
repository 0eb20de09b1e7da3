//! Medians and spreads over the rounds of a row, and what may be said of two of them.

use crate::results::{Fixed, Round};
use linerate_load::report::Percentiles;
use std::cmp::Ordering;

/// A row comes near its client's ceiling from this part of it on.
pub const NEAR_CEILING: f64 = 0.9;
/// What was measured this often has a spread of its own.
const SPREAD_FROM: usize = 3;
/// What was measured less often, or once, may be off by this part of it for all that is known.
pub const UNKNOWN: f64 = 0.05;

/// A quantity over rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Half of the rounds are at most this.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The first and the third quartile, of four rounds and more.
    pub quartiles: Option<(f64, f64)>,
    /// Rounds.
    pub rounds: usize,
}

impl Spread {
    /// Of the values that there are. `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * (values.len() - 1) as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        let (min, max) = (*values.first()?, *values.last()?);
        let quartiles = (values.len() >= 4).then(|| (at(0.25), at(0.75)));
        Some(Spread { median: at(0.5), min, max, quartiles, rounds: values.len() })
    }

    /// Of what was measured once.
    pub fn once(value: f64) -> Option<Self> {
        Spread::of([value])
    }

    /// Where it may lie: the smallest to the largest, and wider where there were too few rounds to know.
    pub fn range(&self) -> (f64, f64) {
        match self.rounds < SPREAD_FROM {
            true => (self.min * (1.0 - UNKNOWN), self.max * (1.0 + UNKNOWN)),
            false => (self.min, self.max),
        }
    }

    /// Half the width of its range, as a part of the median.
    pub fn relative(&self) -> f64 {
        let (low, high) = self.range();
        if self.median > 0.0 { (high - low) / 2.0 / self.median } else { 0.0 }
    }

    /// The same with a range at least this part of the median to each side.
    pub fn widened(self, part: f64) -> Self {
        let (min, max) = (self.min.min(self.median * (1.0 - part)), self.max.max(self.median * (1.0 + part)));
        Spread { min, max, rounds: self.rounds.max(SPREAD_FROM), ..self }
    }

    /// Whether it is more or less than another one. `None`: their ranges overlap, and no difference can be shown.
    pub fn against(&self, other: &Self) -> Option<Ordering> {
        let ((low, high), (other_low, other_high)) = (self.range(), other.range());
        match () {
            () if low > other_high => Some(Ordering::Greater),
            () if high < other_low => Some(Ordering::Less),
            () => None,
        }
    }

    /// How many times another one it is: of the medians, and at least and at most. `None` if the other one is nothing.
    pub fn times(&self, other: &Self) -> Option<(f64, f64, f64)> {
        let ((low, high), (other_low, other_high)) = (self.range(), other.range());
        (other_low > 0.0).then(|| (self.median / other.median, low / other_high, high / other_low))
    }
}

/// A row at one of the fixed settings, over its rounds. What was not counted in any round is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct PointStats {
    /// Requests per second.
    pub rate: Option<Spread>,
    /// Round trips in µs: p50, p90, p99, p99.9 and the longest. Of rounds in which anything was answered.
    pub rtt: [Option<Spread>; 5],
    /// Microseconds of processor for each request.
    pub cpu_us: Option<Spread>,
    /// Cycles for each.
    pub cycles: Option<Spread>,
    /// Instructions for each.
    pub instructions: Option<Spread>,
    /// Bytes that our code copied for each.
    pub copied: Option<Spread>,
    /// Bytes that what is below copied for each.
    pub copied_below: Option<Spread>,
    /// Frames for each, both ways together.
    pub frames: Option<Spread>,
    /// Frames that one poll brought.
    pub batch: Option<Spread>,
    /// Nanoseconds for a cache line from core to core.
    pub transfer_ns: Option<Spread>,
    /// What went wrong in all rounds together.
    pub errors: u64,
    /// What part of its client's ceiling the rate is, if that is known.
    pub of_ceiling: Option<f64>,
}

/// One of the percentiles.
type Of = fn(&Percentiles) -> f64;

/// What [`PointStats::rtt`] has.
pub const QUANTILES: [(&str, Of); 5] = [
    ("p50", |rtt| rtt.p50),
    ("p90", |rtt| rtt.p90),
    ("p99", |rtt| rtt.p99),
    ("p99.9", |rtt| rtt.p999),
    ("max", |rtt| rtt.max),
];

impl PointStats {
    /// Of what was measured.
    pub fn of(fixed: &Fixed) -> Self {
        let rounds = &fixed.rounds;
        let over = |value: &dyn Fn(&Round) -> Option<f64>| Spread::of(rounds.iter().filter_map(value));
        let each =
            |count: &dyn Fn(&Round) -> Option<f64>| over(&|round| Some(count(round)? / some(round.server.requests)?));
        let whole = |count: Option<u64>| count.map(|count| count as f64);
        let rate = over(&|round| (round.seconds > 0.0).then(|| round.requests as f64 / round.seconds));
        PointStats {
            rate,
            rtt: QUANTILES.map(|(_, at)| over(&|round| (round.requests > 0).then(|| at(&round.rtt_us)))),
            cpu_us: each(&|round| Some(round.server.cpu_seconds? * 1e6)),
            cycles: each(&|round| whole(round.server.cycles)),
            instructions: each(&|round| whole(round.server.instructions)),
            copied: each(&|round| whole(round.server.copied)),
            copied_below: each(&|round| whole(round.server.copied_below)),
            frames: each(&|round| whole(round.server.rx_frames?.checked_add(round.server.tx_frames?))),
            batch: over(&|round| Some(whole(round.server.rx_frames)? / some(round.server.bursts?)?)),
            transfer_ns: over(&|round| round.transfer_ns),
            errors: rounds.iter().map(|round| round.errors).sum(),
            of_ceiling: rate
                .zip(fixed.client_ceiling.filter(|&ceiling| ceiling > 0.0))
                .map(|(rate, of)| rate.median / of),
        }
    }

    /// Whether the client was the limit, and not the row.
    pub fn is_limited_by_client(&self) -> bool {
        self.of_ceiling.is_some_and(|part| part >= NEAR_CEILING)
    }

    /// The median round trip.
    pub fn p50(&self) -> Option<Spread> {
        self.rtt[0]
    }

    /// Every quantity by its name, with its unit.
    pub fn all(&self) -> Vec<(String, Spread)> {
        let mut all = vec![("requests/s".to_owned(), self.rate)];
        all.extend(QUANTILES.iter().zip(self.rtt).map(|((name, _), rtt)| (format!("round trip {name}, µs"), rtt)));
        for (name, spread) in [
            ("server CPU, µs per request", self.cpu_us),
            ("cycles per request", self.cycles),
            ("instructions per request", self.instructions),
            ("bytes copied by our code, per request", self.copied),
            ("bytes copied below, per request", self.copied_below),
            ("frames per request", self.frames),
            ("frames per poll that brought any", self.batch),
            ("cache line from core to core, ns", self.transfer_ns),
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
        let rtt_us = Percentiles { p50: 10.0, p90: 20.0, p99: 30.0, p999: 40.0, max: 50.0 };
        Round { transfer_ns: None, requests, seconds, errors: 1, rtt_us, histogram: Vec::new(), server }
    }

    fn fixed(rounds: Vec<Round>, client_ceiling: Option<f64>) -> PointStats {
        PointStats::of(&Fixed { point: Point { connections: 1, depth: 1 }, rounds, client_ceiling })
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert_eq!(spread.quartiles, Some((1.75, 3.25)));
    }

    #[test]
    fn three_rounds_have_no_quartiles_and_none_have_nothing() {
        assert_eq!(Spread::of([1.0, 5.0, 2.0]).unwrap().quartiles, None);
        assert_eq!(Spread::of([1.0, 5.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    #[test]
    fn ranges_that_overlap_show_no_difference() {
        let (low, high) = (Spread::of([1.0, 2.0, 3.0]).unwrap(), Spread::of([4.0, 5.0, 6.0]).unwrap());
        let middle = Spread::of([3.0, 3.5, 4.0]).unwrap();
        assert_eq!((low.against(&high), high.against(&low)), (Some(Ordering::Less), Some(Ordering::Greater)));
        assert_eq!((low.against(&middle), middle.against(&high)), (None, None));
        assert_eq!(high.times(&low), Some((2.5, 4.0 / 3.0, 6.0)));
        assert_eq!(high.times(&Spread::of([0.0, 1.0, 2.0]).unwrap()), None);
    }

    #[test]
    fn what_was_measured_once_may_be_off_by_a_part() {
        let once = |value| Spread::once(value).unwrap();
        assert_eq!(once(100.0).against(&once(108.0)), None);
        assert_eq!(once(100.0).against(&once(112.0)), Some(Ordering::Less));
        assert_eq!(once(100.0).widened(0.2).against(&once(112.0)), None);
    }

    #[test]
    fn costs_are_of_the_servers_requests_and_rates_of_the_loads() {
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
        assert_eq!(stats.rtt.map(median), [10.0, 20.0, 30.0, 40.0, 50.0]);
        assert!(stats.is_limited_by_client(), "100 of 110 is more than nine tenths");
    }

    #[test]
    fn far_below_its_ceiling_or_without_one_no_client_limits() {
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
