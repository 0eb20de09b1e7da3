//! What the project requires of the figures, as ratios of figures of the same run.

use crate::report::{Bounces, Row, Sockperf};
use crate::{MANY, ONE};
use linerate_benches::echo_pair::{Network, StackEngine};
use serde::Serialize;

/// The sleeping baseline's rate by that of sockperf: a weak baseline would flatter everything else.
const OF_SOCKPERF: f64 = 0.9;

/// One ratio of two figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// The engine, if it is about one and there is a choice.
    pub engine: Option<&'static str>,
    /// Of what.
    pub what: &'static str,
    /// The figures' ratio.
    pub ratio: f64,
    /// At least this much is required.
    pub required: f64,
    /// Whether it is, and may be said to be.
    pub met: bool,
    /// Whether the cores were as far from each other for one figure as for the other.
    pub comparable: bool,
}

/// How much further from each other cores may be for one figure than for the other.
const COMPARABLE: f64 = 1.5;

/// Whether cores that a cache line takes so many nanoseconds to get across were as far from each other both times.
pub fn is_alike(one: f64, other: f64) -> bool {
    one.max(other) <= one.min(other) * COMPARABLE
}

/// A figure, and how far the cores were from each other when it was measured.
#[derive(Clone, Copy)]
struct Figure {
    value: f64,
    transfer_ns: f64,
}

impl Ratio {
    fn new(engine: Option<&'static str>, what: &'static str, of: Figure, to: Figure, required: f64) -> Self {
        let ratio = of.value / to.value;
        let comparable = is_alike(of.transfer_ns, to.transfer_ns);
        Ratio { engine, what, ratio, required, met: comparable && ratio >= required, comparable }
    }
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

/// All ratios that something is required of.
pub fn all(
    networks: &[Network],
    results: &[Row],
    sockperf: Option<&Sockperf>,
    bounces: Option<&Bounces>,
) -> Vec<Ratio> {
    let row = |network: Network, connections| -> &Row {
        let row = results.iter().find(|row| row.is_of(network, connections));
        row.expect("every network is measured with both numbers of connections")
    };
    let rate = |network, connections| {
        let Row { transfer_ns, measured, .. } = row(network, connections);
        Figure { value: measured.rate, transfer_ns: *transfer_ns }
    };
    let rtt = |network| {
        let Row { transfer_ns, measured, .. } = row(network, ONE);
        Figure { value: measured.rtt_us.p50, transfer_ns: *transfer_ns }
    };
    let (sleeping, spinning) = (rate(Network::Sleeping, MANY), rate(Network::Spinning, MANY));
    let faster = if sleeping.value > spinning.value { sleeping } else { spinning };
    let mut ratios = Vec::new();
    for (network, engine) in networks.iter().filter_map(|network| Some((*network, network.engine()?))) {
        let required = Required::of(engine);
        let mut push = |what, of, to, required| ratios.push(Ratio::new(engine.value(), what, of, to, required));
        push(
            "requests/s of 64 connections, to the faster kernel baseline's",
            rate(network, MANY),
            faster,
            required.rate,
        );
        push(
            "RTT p50 of one connection: the sleeping baseline's, to this",
            rtt(Network::Sleeping),
            rtt(network),
            required.sleeping_rtt,
        );
        push(
            "RTT p50 of one connection: the spinning baseline's, to this",
            rtt(Network::Spinning),
            rtt(network),
            required.spinning_rtt,
        );
        if let (Some(Bounces { transfer_ns, rate: bounces }), Some(required)) = (bounces, required.bounces) {
            push(
                "requests/s of 64 connections, to testpmd's bounces/s",
                rate(network, MANY),
                Figure { value: *bounces, transfer_ns: *transfer_ns },
                required,
            );
        }
    }
    if let Some(Sockperf { transfer_ns, rate: ping_pongs, .. }) = sockperf {
        let what = "requests/s of one connection: the sleeping baseline's, to sockperf's";
        let ping_pongs = Figure { value: *ping_pongs, transfer_ns: *transfer_ns };
        ratios.push(Ratio::new(None, what, rate(Network::Sleeping, ONE), ping_pongs, OF_SOCKPERF));
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_benches::echo_pair::{Measured, Rtt};

    fn rows(figures: &[(Network, f64, f64)]) -> Vec<Row> {
        let row = |connections, rate, p50| {
            move |network| {
                let rtt_us = Rtt { p50, p99: 2.0 * p50, p999: 3.0 * p50 };
                Row::new(network, connections, 30.0, Measured { rate, errors: 0, rtt_us })
            }
        };
        let both = |(network, rate, p50): &(Network, f64, f64)| {
            [row(MANY, *rate, 100.0)(*network), row(ONE, 1.0, *p50)(*network)]
        };
        figures.iter().flat_map(both).collect()
    }

    #[test]
    fn the_native_engine_is_held_to_more_than_the_other() {
        let engines = [StackEngine::Native, StackEngine::Smoltcp];
        let networks = Network::all(&engines);
        let results = rows(&[
            (networks[0], 1500.0, 2.0),
            (networks[1], 700.0, 2.0),
            (Network::Sleeping, 50.0, 20.0),
            (Network::Spinning, 100.0, 5.0),
        ]);
        let ratios = all(&networks, &results, None, Some(&Bounces { transfer_ns: 30.0, rate: 4500.0 }));
        let verdicts: Vec<_> = ratios.iter().map(|ratio| (ratio.engine, ratio.ratio, ratio.met)).collect();
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
    fn figures_that_were_measured_with_cores_further_apart_are_not_compared() {
        let networks = Network::all(&[StackEngine::Native]);
        let results =
            rows(&[(networks[0], 1500.0, 1.0), (Network::Sleeping, 9.0, 90.0), (Network::Spinning, 9.0, 90.0)]);
        for (transfer_ns, comparable) in [(20.0, true), (44.0, true), (46.0, false), (19.0, false)] {
            let ratios = all(&networks, &results, None, Some(&Bounces { transfer_ns, rate: 1500.0 }));
            assert!(ratios[..3].iter().all(|ratio| ratio.met && ratio.comparable));
            assert_eq!((ratios[3].met, ratios[3].comparable), (comparable, comparable), "{transfer_ns}");
        }
    }

    #[test]
    fn a_sleeping_baseline_slower_than_sockperf_is_told() {
        let networks = Network::all(&[]);
        let results = rows(&[(Network::Sleeping, 1.0, 1.0), (Network::Spinning, 1.0, 1.0)]);
        let ratios = all(&networks, &results, Some(&Sockperf { transfer_ns: 30.0, rate: 2.0, rtt_p50_us: 1.0 }), None);
        assert_eq!((ratios.len(), ratios[0].ratio, ratios[0].met), (1, 0.5, false));
    }
}
