//! Required ratios of figures of the same run.

use crate::report::Distance;
use crate::{MANY, ONE};
use linerate_benches::echo_pair::{Network, StackEngine};
use linerate_benches::requirements::ratios::{self, Figures, Kind, Ratio};

/// Minimum rate of the sleeping baseline relative to sockperf: a weak baseline would flatter the other figures.
const OF_SOCKPERF: f64 = 0.9;

/// Required ratios of an engine.
struct Required {
    /// Rate of many connections to that of the faster kernel baseline.
    rate: f64,
    /// Median round trip of the sleeping baseline to that of one connection.
    sleeping_rtt: f64,
    /// Median round trip of the spinning baseline to that of one connection.
    spinning_rtt: f64,
    /// Rate of many connections to the frames that `testpmd` bounces.
    bounces: Option<f64>,
}

impl Required {
    fn of(engine: StackEngine) -> Self {
        match engine {
            StackEngine::Native => {
                Required { rate: 15.0, sleeping_rtt: 10.0, spinning_rtt: 3.0, bounces: Some(1.0 / 3.0) }
            }
            StackEngine::Smoltcp => Required { rate: 5.0, sleeping_rtt: 5.0, spinning_rtt: 2.0, bounces: None },
        }
    }
}

/// Measurements other than the networks, requested in this run.
#[derive(Debug, Clone, Copy)]
pub struct Extras {
    pub testpmd: bool,
    pub sockperf: bool,
}

/// Returns all required ratios, at each distance with both figures.
pub fn all(networks: &[Network], beside: Extras, distances: &[Distance]) -> Vec<Ratio> {
    ratios::all(kinds(networks, beside), distances)
}

/// Returns the kinds of ratios for these networks and extras.
fn kinds(networks: &[Network], beside: Extras) -> Vec<Kind<Distance>> {
    let rate = |distance: &Distance, network, connections| Some(distance.row(network, connections)?.measured.rate);
    let rtt = |distance: &Distance, network| Some(distance.row(network, ONE)?.measured.rtt_us.p50);
    let mut kinds = Vec::new();
    for (network, engine) in networks.iter().filter_map(|network| Some((*network, network.engine()?))) {
        let required = Required::of(engine);
        let engine = Some(engine.value());
        let mut require = |requirement: &str, required, figures: Box<Figures<Distance>>| {
            kinds.push(Kind { engine, ..Kind::new(requirement, required, figures) });
        };
        require(
            "requests/s of 64 connections, to the faster kernel baseline's",
            required.rate,
            Box::new(move |distance| {
                let sleeping = rate(distance, Network::Sleeping, MANY)?;
                let spinning = rate(distance, Network::Spinning, MANY)?;
                Some((rate(distance, network, MANY)?, sleeping.max(spinning)))
            }),
        );
        require(
            "RTT p50 of one connection: the sleeping baseline's, to this",
            required.sleeping_rtt,
            Box::new(move |distance| Some((rtt(distance, Network::Sleeping)?, rtt(distance, network)?))),
        );
        require(
            "RTT p50 of one connection: the spinning baseline's, to this",
            required.spinning_rtt,
            Box::new(move |distance| Some((rtt(distance, Network::Spinning)?, rtt(distance, network)?))),
        );
        if let Some(required) = required.bounces.filter(|_| beside.testpmd) {
            require(
                "requests/s of 64 connections, to testpmd's bounces/s",
                required,
                Box::new(move |distance| Some((rate(distance, network, MANY)?, distance.bounces?))),
            );
        }
    }
    if beside.sockperf {
        let requirement = "requests/s of one connection: the sleeping baseline's, to sockperf's";
        let figures = move |distance: &Distance| {
            Some((rate(distance, Network::Sleeping, ONE)?, distance.sockperf.as_ref()?.rate))
        };
        kinds.push(Kind::new(requirement, OF_SOCKPERF, Box::new(figures)));
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Row, Sockperf};
    use linerate_benches::echo_pair::{Measured, Rtt};

    const TESTPMD: Extras = Extras { testpmd: true, sockperf: false };
    const SOCKPERF: Extras = Extras { testpmd: false, sockperf: true };

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
    fn native_engine_has_stricter_requirements() {
        let networks = Network::ALL;
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
    fn figures_of_the_same_distance_are_compared() {
        let native = Network::Virtio(StackEngine::Native);
        let networks = [native, Network::Sleeping, Network::Spinning];
        let near = [(native, 3000.0, 1.0), (Network::Sleeping, 9.0, 90.0), (Network::Spinning, 9.0, 90.0)];
        let far = [(native, 1500.0, 1.0)];
        let ratios = all(&networks, TESTPMD, &[distance(30.0, &near, None), distance(160.0, &far, Some(4500.0))]);
        let verdicts: Vec<_> = ratios.iter().map(|ratio| (ratio.transfer_ns, ratio.ratio, ratio.met)).collect();
        assert_eq!(verdicts[3], (Some(160.0), Some(1.0 / 3.0), true));
        assert!(verdicts[..3].iter().all(|(transfer_ns, _, met)| *transfer_ns == Some(30.0) && *met));
        let ratios = all(&networks, TESTPMD, &[distance(30.0, &near, None), distance(160.0, &[], Some(4500.0))]);
        assert_eq!((ratios[3].transfer_ns, ratios[3].ratio, ratios[3].met), (None, None, false));
        // A requested network without a stable distance is missing, and not met.
        let ratios = all(&networks, TESTPMD, &[distance(30.0, &near, None)]);
        assert_eq!((ratios.len(), ratios[3].ratio, ratios[3].met), (4, None, false));
        // Both distances with both figures count.
        let far = [(native, 1000.0, 1.0)];
        let ratios =
            all(&networks, TESTPMD, &[distance(30.0, &near, Some(4500.0)), distance(160.0, &far, Some(4500.0))]);
        let bounces: Vec<_> = ratios[3..].iter().map(|ratio| (ratio.transfer_ns, ratio.met)).collect();
        assert_eq!(bounces, [(Some(30.0), true), (Some(160.0), false)]);
    }

    #[test]
    fn sleeping_baseline_slower_than_sockperf_fails() {
        let networks = [Network::Sleeping, Network::Spinning];
        let figures = [(Network::Sleeping, 1.0, 1.0), (Network::Spinning, 1.0, 1.0)];
        let sockperf = Some(Sockperf { rate: 2.0, rtt_p50_us: 1.0 });
        let ratios = all(&networks, SOCKPERF, &[Distance { sockperf, ..distance(30.0, &figures, None) }]);
        assert_eq!((ratios.len(), ratios[0].ratio, ratios[0].met), (1, Some(0.5), false));
    }
}
