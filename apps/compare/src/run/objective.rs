//! Search for the highest offered load at which a percentile of the round trips stays within an objective (`--slo`).

use super::plan::Extent;
use crate::results::{Objective, SweepPoint};
use linerate::units::parse_duration;
use linerate_load::report::Percentile;
use std::str::FromStr;

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(name, limit)| {
            let percentile = Percentile::ALL.into_iter().find(|percentile| percentile.name() == name)?;
            Some((percentile, limit))
        });
        let (percentile, limit) = parts.ok_or("write p50, p90, p99, p99.9 or p99.99 and a time, such as p99=50us")?;
        Ok(Objective { percentile, limit_us: parse_duration(limit)?.as_secs_f64() * 1e6 })
    }
}

/// Returns the number of bisections.
fn halvings(extent: Extent) -> u32 {
    match extent {
        Extent::Brief => 3,
        Extent::Short => 4,
        Extent::Full => 6,
    }
}

/// Returns the maximum number of rounds at an offered rate. The majority decides, so fewer are measured if they agree.
fn rounds(extent: Extent) -> u32 {
    if extent == Extent::Brief { 1 } else { 3 }
}

/// Returns the maximum number of rounds of a search.
pub fn max_rounds(extent: Extent) -> u32 {
    halvings(extent) * rounds(extent)
}

/// Returns the width of the last interval of a search up to `peak`.
pub fn resolution(peak: f64, extent: Extent) -> f64 {
    peak / f64::from(1 << halvings(extent))
}

/// Bisects the offered rates between zero and `peak`. `measure` measures one round at a rate. Returns the deciding
/// round of each rate, by rate, and the reason for ending early, if any.
pub fn search(
    objective: Objective,
    peak: f64,
    extent: Extent,
    mut measure: impl FnMut(f64) -> Result<SweepPoint, String>,
) -> (Vec<SweepPoint>, Option<String>) {
    let (mut met, mut missed, mut points, mut ended) = (0.0, peak, Vec::new(), None);
    for _ in 0..halvings(extent) {
        let rate = f64::midpoint(met, missed);
        match decide(objective, rounds(extent), || measure(rate)) {
            Ok(point) => {
                *if point.is_within_objective() { &mut met } else { &mut missed } = rate;
                points.push(point);
            }
            Err(reason) => {
                ended = Some(reason);
                break;
            }
        }
    }
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    (points, ended)
}

/// Measures up to `most` rounds at one rate until the majority is known, and returns the median one.
fn decide(
    objective: Objective,
    most: u32,
    mut measure: impl FnMut() -> Result<SweepPoint, String>,
) -> Result<SweepPoint, String> {
    let mut rounds: Vec<(bool, f64, SweepPoint)> = Vec::new();
    let count = |rounds: &[(bool, f64, SweepPoint)], is_missed| {
        rounds.iter().filter(|(missed, ..)| *missed == is_missed).count() as u32
    };
    while [false, true].iter().all(|is_missed| count(&rounds, *is_missed) <= most / 2) {
        let point = measure()?;
        let percentile = point.rtt_us.and_then(|rtt| rtt.get(objective.percentile));
        let us = match percentile {
            Some(us) => us,
            None if point.saturated => f64::INFINITY,
            None => return Err(too_few(objective.percentile, &point)),
        };
        rounds.push((point.saturated || us > objective.limit_us, us, point));
    }
    let within = [count(&rounds, false), rounds.len() as u32];
    rounds.sort_by(|(one_missed, one, _), (other_missed, other, _)| {
        one_missed.cmp(other_missed).then(one.total_cmp(other))
    });
    let (.., point) = rounds.swap_remove(rounds.len() / 2);
    Ok(SweepPoint { within: Some(within), ..point })
}

fn too_few(percentile: Percentile, point: &SweepPoint) -> String {
    format!(
        "at {:.0} requests/s, {} needs {} round trips, and a round had {}: measure longer, with --round-time",
        point.x,
        percentile.name(),
        percentile.min_samples(),
        point.rtt_us.map_or(0, |rtt| rtt.samples)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_load::report::Percentiles;

    const EXTENTS: [Extent; 3] = [Extent::Brief, Extent::Short, Extent::Full];
    const P99: Objective = Objective { percentile: Percentile::P99, limit_us: 50.0 };

    fn point(x: f64, p99: Option<f64>, saturated: bool) -> SweepPoint {
        let rtt_us = Some(Percentiles { samples: 500, p99, ..Percentiles::default() });
        SweepPoint { x, rate: x, rtt_us, saturated, errors: 0, within: None, batch: None }
    }

    /// Searches for the rate at which the service time of a queue reaches the objective: 10 µs without load, and
    /// infinite at `most`.
    fn search_queue(most: f64, extent: Extent) -> Vec<SweepPoint> {
        let p99 = |rate: f64| if rate < most { 10.0 / (1.0 - rate / most) } else { f64::INFINITY };
        let (points, ended) = search(P99, 1e6, extent, |rate| Ok(point(rate, Some(p99(rate)), rate >= most)));
        assert_eq!(ended, None);
        points
    }

    #[test]
    fn highest_rate_is_found_to_the_resolution() {
        for extent in EXTENTS {
            for most in [1e5, 3e5, 6.2e5, 1e6, 1.3e6] {
                let points = search_queue(most, extent);
                let highest =
                    points.iter().rev().find(|point| point.is_within_objective()).map_or(0.0, |point| point.x);
                let exact = (0.8 * most).min(1e6);
                assert!(highest <= exact && exact <= highest + resolution(1e6, extent), "{most}: {highest}");
                assert!(points.is_sorted_by(|one, other| one.x < other.x) && points.len() as u32 == halvings(extent));
            }
        }
    }

    #[test]
    fn majority_of_rounds_decides() {
        for (times, within, p99) in [
            (&[20.0, 30.0][..], [2, 2], 30.0),
            (&[20.0, 90.0, 40.0], [2, 3], 40.0),
            (&[90.0, 20.0, 60.0], [1, 3], 60.0),
            (&[60.0, 90.0], [0, 2], 90.0),
        ] {
            let mut next = times.iter();
            let decided = decide(P99, 3, || Ok(point(1.0, Some(*next.next().unwrap()), false))).unwrap();
            assert_eq!((decided.within, decided.rtt_us.unwrap().p99), (Some(within), Some(p99)));
            assert_eq!(decided.is_within_objective(), p99 <= 50.0);
            assert_eq!(next.next(), None);
        }
    }

    #[test]
    fn brief_search_has_one_round_at_each_rate() {
        let mut measured = 0;
        let (points, _) = search(P99, 1e6, Extent::Brief, |rate| {
            measured += 1;
            Ok(point(rate, Some(if rate > 4e5 { 90.0 } else { 20.0 }), false))
        });
        assert_eq!((measured, points.len()), (max_rounds(Extent::Brief), 3));
        assert!(points.iter().all(|point| point.within.is_some_and(|[_, all]| all == 1)));
        assert_eq!(points.iter().map(|point| point.is_within_objective()).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn saturated_server_misses_the_objective() {
        assert_eq!(decide(P99, 3, || Ok(point(1.0, Some(5.0), true))).unwrap().within, Some([0, 2]));
        assert_eq!(decide(P99, 3, || Ok(point(1.0, None, true))).unwrap().within, Some([0, 2]));
    }

    #[test]
    fn too_few_round_trips_end_the_search() {
        let (points, ended) =
            search(P99, 1e6, Extent::Short, |rate| Ok(point(rate, (rate > 4e5).then_some(90.0), false)));
        assert_eq!(points.len(), 1);
        assert!(ended.unwrap().contains("p99 needs 1000 round trips, and a round had 500"));
    }

    #[test]
    fn objectives_are_parsed() {
        assert_eq!("p99=50us".parse(), Ok(P99));
        let objective: Objective = "p99.99=2ms".parse().unwrap();
        assert_eq!((objective.percentile, objective.limit_us), (Percentile::P9999, 2000.0));
        for text in ["p99", "p98=50us", "p99=50", "p99=0us", "max=1ms"] {
            assert!(text.parse::<Objective>().is_err(), "{text}");
        }
    }
}
