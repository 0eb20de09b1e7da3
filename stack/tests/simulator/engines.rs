//! Both engines under the same traffic: what the services see must not depend on which engine either end has.

use crate::scenario::{EngineKind, Scenario};
use crate::verdict::EndOutcome;
use crate::{number, simulate};

/// Seeds in an ordinary run, each with four pairs of engines. `SIMULATOR_SEEDS` runs a tenth of the number that it gives.
const SEEDS: u64 = 100;
const SHARE: u64 = 10;

/// The engines of the two hosts, the reference first.
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
                "seed {seed}: connection {n} comes to\n{ends:?}\nwith {engines:?}, and with {:?} to\n{reference:?}",
                PAIRS[0]
            );
        }
    }
    let [reference, ..] = outcomes;
    reference
}

#[test]
fn engines_lead_to_the_same_outcomes_over_lossy_links() {
    let from = number("SIMULATOR_FROM").unwrap_or(0);
    let seeds = number("SIMULATOR_SEEDS").map_or(SEEDS, |seeds| seeds.div_ceil(SHARE));
    let bytes: u64 = (from..from + seeds).flat_map(compare).flatten().map(|end| end.received).sum();
    assert!(bytes > 0, "no seed transfers a byte");
}

#[test]
fn lossy_scenarios_differ_in_nothing_but_the_engines() {
    for seed in 0..50 {
        let [first, second] = [PAIRS[0], PAIRS[3]].map(|engines| Scenario::draw_lossy(seed, engines));
        let text = |scenario: &Scenario| format!("{:?} {:?}", scenario.link, scenario.connections);
        assert_eq!(text(&first), text(&second));
        let configs = |scenario: &Scenario| scenario.hosts.clone().map(|host| format!("{:?}", host.config));
        assert_eq!(configs(&first), configs(&second));
        assert!(first.connections.iter().all(|plan| plan.client.abort.is_none() && plan.server.abort.is_none()));
    }
}
