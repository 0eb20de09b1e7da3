//! Both engines under the same traffic: the events of the services must not depend on the engine of either end.

use crate::scenario::{EngineKind, Scenario};
use crate::verdict::EndOutcome;
use crate::{number, simulate};

/// Seeds in a default run, each with four pairs of engines. With `SIMULATOR_SEEDS` a tenth of that number.
const SEEDS: u64 = 100;
const SHARE: u64 = 10;

/// Engines of the two hosts, the reference first.
const PAIRS: [[EngineKind; 2]; 4] = [
    [EngineKind::Native, EngineKind::Native],
    [EngineKind::Native, EngineKind::Smoltcp],
    [EngineKind::Smoltcp, EngineKind::Native],
    [EngineKind::Smoltcp, EngineKind::Smoltcp],
];

/// Compares the outcomes of `seed` with each pair of engines.
fn compare(seed: u64) -> Vec<[EndOutcome; 2]> {
    let outcomes = PAIRS.map(|engines| simulate(Scenario::draw_lossy(seed, engines), false).ends);
    for (engines, outcome) in PAIRS.iter().zip(&outcomes) {
        for (n, (ends, reference)) in outcome.iter().zip(&outcomes[0]).enumerate() {
            assert!(
                ends == reference,
                "seed {seed}: connection {n} has the outcome\n{ends:?}\nwith {engines:?}, and with {:?}\n{reference:?}",
                PAIRS[0]
            );
        }
    }
    let [reference, ..] = outcomes;
    reference
}

#[test]
fn outcomes_over_lossy_links_are_independent_of_engines() {
    let from = number("SIMULATOR_FROM").unwrap_or(0);
    let seeds = number("SIMULATOR_SEEDS").map_or(SEEDS, |seeds| seeds.div_ceil(SHARE));
    let bytes: u64 = (from..from + seeds).flat_map(compare).flatten().map(|end| end.received).sum();
    assert!(bytes > 0, "no seed transfers a byte");
}

#[test]
fn lossy_scenarios_differ_only_in_engines() {
    for seed in 0..50 {
        let [first, second] = [PAIRS[0], PAIRS[3]].map(|engines| Scenario::draw_lossy(seed, engines));
        let text = |scenario: &Scenario| format!("{:?} {:?}", scenario.link, scenario.connections);
        assert_eq!(text(&first), text(&second));
        let configs = |scenario: &Scenario| scenario.hosts.clone().map(|host| format!("{:?}", host.config));
        assert_eq!(configs(&first), configs(&second));
        assert!(first.connections.iter().all(|plan| plan.client.abort.is_none() && plan.server.abort.is_none()));
    }
}
