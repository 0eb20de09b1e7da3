//! Whole networks in virtual time, drawn from seeds: two hosts, a link that is as bad as it gets, and services that do all
//! that services can do. Whatever happens, streams are exact, packets come back, and nothing is forgotten.
//!
//! The services must see the same whichever engines the two ends have: see [`engines`].
//!
//! `cargo test -p linerate-stack --test simulator` runs a few thousand seeds. More, or others:
//! `SIMULATOR_SEEDS=100000 SIMULATOR_FROM=1000000`. One that failed, again, and what was on the wire:
//! `SIMULATOR_SEED=1234 SIMULATOR_PCAP=/tmp/1234.pcap cargo test -p linerate-stack --test simulator -- --nocapture replay`.

#[path = "simulator/content.rs"]
mod content;
#[path = "simulator/dice.rs"]
mod dice;
#[path = "simulator/engines.rs"]
mod engines;
#[path = "simulator/ledger.rs"]
mod ledger;
#[path = "simulator/plan.rs"]
mod plan;
#[path = "simulator/scenario.rs"]
mod scenario;
#[path = "simulator/service.rs"]
mod service;
#[path = "simulator/verdict.rs"]
mod verdict;
#[path = "simulator/wire.rs"]
mod wire;
#[path = "simulator/world.rs"]
mod world;

use linerate_bypass::memory_nic::write_pcap;
use scenario::Scenario;
use world::{Outcome, World};

/// Seeds in an ordinary run.
const SEEDS: u64 = 4000;
/// Seeds beyond those that have found something: a receive queue longer than its bound, both ends' windows closed for ever.
const FOUND: [u64; 2] = [5428, 19_468];
/// Failures after which a part gives up.
const FAILURES: usize = 5;
/// Parts that the seeds are run in, at the same time where there are cores for it.
const PARTS: u64 = 4;

/// Says how to run a failed seed again, and writes its frames if that was asked for.
struct Report {
    seed: u64,
    world: World,
}

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} failed: SIMULATOR_SEED={0} replays it", self.seed);
        }
        if let Some(file) = std::env::var_os("SIMULATOR_PCAP")
            && !self.world.frames.is_empty()
        {
            let mut pcap = Vec::new();
            let written = write_pcap(&mut pcap, &self.world.frames).and_then(|()| std::fs::write(&file, pcap));
            match written {
                Ok(()) => eprintln!("{} frames written to {}", self.world.frames.len(), file.display()),
                Err(error) => eprintln!("{}: {error}", file.display()),
            }
        }
    }
}

/// Runs what `seed` stands for.
fn simulate(scenario: Scenario, keeps: bool) -> Outcome {
    let seed = scenario.seed;
    let mut report = Report { seed, world: World::new(scenario, keeps) };
    report.world.finish()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is not a number")))
}

fn part(part: u64) {
    let from = number("SIMULATOR_FROM").unwrap_or(0);
    let seeds = number("SIMULATOR_SEEDS").unwrap_or(SEEDS);
    let (mut connections, mut finished) = (0, 0);
    let mut failed = Vec::new();
    for seed in (from..from + seeds).chain(FOUND).filter(|seed| seed % PARTS == part) {
        match std::panic::catch_unwind(|| simulate(Scenario::draw(seed), false)) {
            Ok(outcome) => {
                connections += outcome.connections;
                finished += outcome.finished;
            }
            Err(_) => failed.push(seed),
        }
        if failed.len() == FAILURES {
            break;
        }
    }
    assert!(failed.is_empty(), "these seeds failed: {failed:?}");
    println!("{finished} of {connections} connections finished");
    assert!(finished * 10 >= connections * 6, "{finished} of {connections} connections finished");
}

#[test]
fn the_first_quarter_of_the_seeds_holds() {
    part(0);
}

#[test]
fn the_second_quarter_of_the_seeds_holds() {
    part(1);
}

#[test]
fn the_third_quarter_of_the_seeds_holds() {
    part(2);
}

#[test]
fn the_last_quarter_of_the_seeds_holds() {
    part(3);
}

/// Runs the seed in `SIMULATOR_SEED`, if there is one.
#[test]
fn replay() {
    if let Some(seed) = number("SIMULATOR_SEED") {
        let scenario = Scenario::draw(seed);
        println!("{scenario:#?}");
        let outcome = simulate(scenario, true);
        println!("{} of {} connections finished", outcome.finished, outcome.connections);
    }
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    for seed in 0..60 {
        let [first, second] = [(); 2].map(|()| simulate(Scenario::draw(seed), true).frames);
        assert!(!first.is_empty());
        assert!(first == second, "seed {seed}");
    }
}
