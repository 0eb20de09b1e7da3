//! What the project requires of the figures, as ratios of figures of the same run.

use crate::report::Distance;
use crate::{MANY, ONE};
use linerate_benches::echo_pair::{Network, StackEngine};
use serde::Serialize;

/// The sleeping baseline's rate by that of sockperf: a weak baseline would flatter everything else.
const OF_SOCKPERF: f64 = 0.9;

/// One ratio of two figures, with the cores so far from each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// The engine, if it is about one and there is a choice.
    pub engine: Option<&'static str>,
    /// Of what.
    pub what: &'static str,
    /// Nanoseconds that a cache line took from one core to the other; `None` if no distance was met with for both figures.
    pub transfer_ns: Option<f64>,
    /// The figures' ratio, if there is one.
    pub ratio: Option<f64>,
    /// At least this much is required.
    pub required: f64,
    /// Whether it is.
    pub met: bool,
}

/// How much further from each other cores may be for one figure than for the other.
const COMPARABLE: f64 = 1.5;

/// Whether cores that a cache line takes so many nanoseconds to get across were as far from each other both times.
pub fn is_alike(one: f64, other: f64) -> bool {
    one.max(other) <= one.min(other) * COMPARABLE
}

/// The `distances` that there were: each is alike to the first of its own, and those of the nearest cores come first.
pub fn apart(mut distances: Vec<f64>) -> Vec<Vec<f64>> {
    distances.sort_by(f64::total_cmp);
    let mut apart: Vec<Vec<f64>> = Vec::new();
    for distance in distances {
        match apart.last_mut().filter(|alike| is_alike(alike[0], distance)) {
            Some(alike) => alike.push(distance),
            None => apart.push(vec![distance]),
        }
    }
    apart
}

/// What is required of an engine.
struct Required {
    /// Many connections' rate by that of the faster kernel baseline.
    rate: f64,
    /// One connection's median round trip, by which the sleeping baseline's is divided.
    sleeping_rtt: f64,
    /// The same with the spinning baseline's.
    spinning_rtt: f64,
    /// Many connections' rate by the frames that `testpmd` bounces.
    bounces: Option<f64>,
}

impl Required {
    fn of(engine: StackEngine) -> Self {
        match engine {
            StackEngine::Native => {
                Required { rate: 15.0, sleeping_rtt: 10.0, spinning_rtt: 3.0, bounces: Some(1.0 / 3.0) }
            }
            StackEngine::Only | StackEngine::Smoltcp => {
                Required { rate: 5.0, sleeping_rtt: 5.0, spinning_rtt: 2.0, bounces: None }
            }
        }
    }
}

/// A kind of ratio, and which two figures of a distance it is of.
struct Kind {
    engine: Option<&'static str>,
    what: &'static str,
    required: f64,
    figures: Box<Figures>,
}

/// Two figures of a distance, if there are both.
type Figures = dyn Fn(&Distance) -> Option<(f64, f64)>;

/// What is measured beside the networks, whether or not it was at any distance.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    pub testpmd: bool,
    pub sockperf: bool,
}

/// All ratios that something is required of, at each distance at which there are both figures.
pub fn all(networks: &[Network], beside: Beside, distances: &[Distance]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for Kind { engine, what, required, figures } in kinds(networks, beside) {
        let found = distances.iter().filter_map(|distance| {
            let (of, to) = figures(distance)?;
            let ratio = of / to;
            let (transfer_ns, met) = (Some(distance.transfer_ns), ratio >= required);
            Some(Ratio { engine, what, transfer_ns, ratio: Some(ratio), required, met })
        });
        let before = ratios.len();
        ratios.extend(found);
        if ratios.len() == before {
            ratios.push(Ratio { engine, what, transfer_ns: None, ratio: None, required, met: false });
        }
    }
    ratios
}

/// The kinds of ratios that there are with these networks and what is measured beside.
fn kinds(networks: &[Network], beside: Beside) -> Vec<Kind> {
    let rate = |distance: &Distance, network, connections| Some(distance.row(network, connections)?.measured.rate);
    let rtt = |distance: &Distance, network| Some(distance.row(network, ONE)?.measured.rtt_us.p50);
    let mut kinds = Vec::new();
    for (network, engine) in networks.iter().filter_map(|network| Some((*network, network.engine()?))) {
        let required = Required::of(engine);
        let engine = engine.value();
        kinds.push(Kind {
            engine,
            what: "requests/s of 64 connections, to the faster kernel baseline's",
            required: required.rate,
            figures: Box::new(move |distance| {
                let sleeping = rate(distance, Network::Sleeping, MANY)?;
                let spinning = rate(distance, Network::Spinning, MANY)?;
                Some((rate(distance, network, MANY)?, sleeping.max(spinning)))
            }),
        });
        kinds.push(Kind {
            engine,
            what: "RTT p50 of one connection: the sleeping baseline's, to this",
            required: required.sleeping_rtt,
            figures: Box::new(move |distance| Some((rtt(distance, Network::Sleeping)?, rtt(distance, network)?))),
        });
        kinds.push(Kind {
            engine,
            what: "RTT p50 of one connection: the spinning baseline's, to this",
            required: required.spinning_rtt,
            figures: Box::new(move |distance| Some((rtt(distance, Network::Spinning)?, rtt(distance, network)?))),
        });
        if let Some(required) = required.bounces.filter(|_| beside.testpmd) {
            kinds.push(Kind {
                engine,
                what: "requests/s of 64 connections, to testpmd's bounces/s",
                required,
                figures: Box::new(move |distance| Some((rate(distance, network, MANY)?, distance.bounces?))),
            });
        }
    }
    if beside.sockperf {
        kinds.push(Kind {
            engine: None,
            what: "requests/s of one connection: the sleeping baseline's, to sockperf's",
            required: OF_SOCKPERF,
            figures: Box::new(move |distance| {
                Some((rate(distance, Network::Sleeping, ONE)?, distance.sockperf.as_ref()?.rate))
            }),
        });
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Row, Sockperf};
    use linerate_benches::echo_pair::{Measured, Rtt};

    const TESTPMD: Beside = Beside { testpmd: true, sockperf: false };
    const SOCKPERF: Beside = Beside { testpmd: false, sockperf: true };

    fn distance(transfer_ns: f64, figures: &[(Network, f64, f64)], bounces: Option<f64>) -> Distance {
        let row = |connections, rate, p50| {
            move |network| {
                let rtt_us = Rtt { p50, p99: 2.0 * p50, p999: 3.0 * p50 };
                Row::new(network, connections, Measured { rate, errors: 0, rtt_us })
            }
        };
        let both = |(network, rate, p50): &(Network, f64, f64)| {
            [row(MANY, *rate, 100.0)(*network), row(ONE, 1.0, *p50)(*network)]
        };
        Distance { transfer_ns, results: figures.iter().flat_map(both).collect(), bounces, sockperf: None }
    }

    #[test]
    fn the_native_engine_is_held_to_more_than_the_other() {
        let engines = [StackEngine::Native, StackEngine::Smoltcp];
        let networks = Network::all(&engines);
        let figures = [
            (networks[0], 1500.0, 2.0),
            (networks[1], 700.0, 2.0),
            (Network::Sleeping, 50.0, 20.0),
            (Network::Spinning, 100.0, 5.0),
        ];
        let ratios = all(&networks, TESTPMD, &[distance(30.0, &figures, Some(4500.0))]);
        let verdicts: Vec<_> = ratios.iter().map(|ratio| (ratio.engine, ratio.ratio.unwrap(), ratio.met)).collect();
        assert_eq!(
            verdicts,
            [
                (Some("native"), 15.0, true),
                (Some("native"), 10.0, true),
                (Some("native"), 2.5, false),
                (Some("native"), 1.0 / 3.0, true),
                (Some("smoltcp"), 7.0, true),
                (Some("smoltcp"), 10.0, true),
                (Some("smoltcp"), 2.5, true),
            ]
        );
    }

    #[test]
    fn figures_are_compared_with_those_of_the_same_distance() {
        let networks = Network::all(&[StackEngine::Native]);
        let native = networks[0];
        let near = [(native, 3000.0, 1.0), (Network::Sleeping, 9.0, 90.0), (Network::Spinning, 9.0, 90.0)];
        let far = [(native, 1500.0, 1.0)];
        let ratios = all(&networks, TESTPMD, &[distance(30.0, &near, None), distance(160.0, &far, Some(4500.0))]);
        let verdicts: Vec<_> = ratios.iter().map(|ratio| (ratio.transfer_ns, ratio.ratio, ratio.met)).collect();
        assert_eq!(verdicts[3], (Some(160.0), Some(1.0 / 3.0), true));
        assert!(verdicts[..3].iter().all(|(transfer_ns, _, met)| *transfer_ns == Some(30.0) && *met));
        let ratios = all(&networks, TESTPMD, &[distance(30.0, &near, None), distance(160.0, &[], Some(4500.0))]);
        assert_eq!((ratios[3].transfer_ns, ratios[3].ratio, ratios[3].met), (None, None, false));
        // What was asked for and never had cores that held still is missing, and not met.
        let ratios = all(&networks, TESTPMD, &[distance(30.0, &near, None)]);
        assert_eq!((ratios.len(), ratios[3].ratio, ratios[3].met), (4, None, false));
        // Where there are both at two distances, both count.
        let far = [(native, 1000.0, 1.0)];
        let ratios =
            all(&networks, TESTPMD, &[distance(30.0, &near, Some(4500.0)), distance(160.0, &far, Some(4500.0))]);
        let bounces: Vec<_> = ratios[3..].iter().map(|ratio| (ratio.transfer_ns, ratio.met)).collect();
        assert_eq!(bounces, [(Some(30.0), true), (Some(160.0), false)]);
    }

    #[test]
    fn distances_fall_apart_where_they_differ_by_half() {
        assert_eq!(apart(vec![165.0, 30.0, 13.0, 44.0, 160.0]), [vec![13.0], vec![30.0, 44.0], vec![160.0, 165.0]]);
        assert!(apart(Vec::new()).is_empty());
        assert!(is_alike(30.0, 45.0) && is_alike(30.0, 20.0) && !is_alike(30.0, 46.0));
    }

    #[test]
    fn a_sleeping_baseline_slower_than_sockperf_is_told() {
        let networks = Network::all(&[]);
        let figures = [(Network::Sleeping, 1.0, 1.0), (Network::Spinning, 1.0, 1.0)];
        let sockperf = Some(Sockperf { rate: 2.0, rtt_p50_us: 1.0 });
        let ratios = all(&networks, SOCKPERF, &[Distance { sockperf, ..distance(30.0, &figures, None) }]);
        assert_eq!((ratios.len(), ratios[0].ratio, ratios[0].met), (1, Some(0.5), false));
    }
}
