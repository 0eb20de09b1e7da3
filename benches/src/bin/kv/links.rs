//! Round by round: each server under its loads.

use crate::Error;
use crate::report::{Distance, Report};
use crate::required;
use linerate_benches::client::Wrong;
use linerate_benches::distance::{Cores, apart, of};
use linerate_benches::echo_pair;
use linerate_benches::engine::Bench;
use linerate_benches::external::process::{self, interruption, linerate};
use linerate_benches::kv::by_turns::{self, ByTurns, TURN};
use linerate_benches::kv::turns::{Plan, Turns};
use linerate_benches::kv::{CONNECTIONS, LONG, Row, Setting, Way, answer_to_get, copied, measure, obstacle};
use linerate_benches::priority::come_first;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Long values that are fetched from the service alone.
const FETCHED: usize = 10_000;

#[derive(clap::Args)]
pub struct Args {
    /// How often each measurement is made; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// How long each load measures, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// How many keys there are
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=4_000_000))]
    keys: u64,

    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(14..=1024))]
    size: u32,

    /// The core of the servers
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    server_core: usize,

    /// The core of the loads
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    load_core: usize,

    /// Measure these only; what is held against another then counts as not met
    #[arg(long, value_name = "WAY,…", value_delimiter = ',', value_enum, default_values_t = Way::ALL)]
    ways: Vec<Way>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What is measured, and what is not, with the reason.
pub struct Ways {
    pub measured: Vec<Way>,
    pub missing: Vec<(Way, String)>,
}

impl Ways {
    /// Those of `asked` that this machine lets us measure; TAP stands in for AF_XDP.
    fn possible(asked: &[Way], setting: &Setting, interrupted: &AtomicBool) -> Result<Self, process::Error> {
        let mut ways = Ways { measured: Vec::new(), missing: Vec::new() };
        for way in Way::ALL.into_iter().chain(asked.contains(&Way::Tap).then_some(Way::Tap)) {
            if !asked.contains(&way) {
                ways.missing.push((way, format!("{} was left out", way.name())));
                continue;
            }
            let Some(why) = obstacle(setting, way, interrupted)? else {
                ways.measured.push(way);
                continue;
            };
            eprintln!("not measured: {}: {why}", way.name());
            ways.missing.push((way, why));
            if way == Way::AfXdp && !asked.contains(&Way::Tap) && obstacle(setting, Way::Tap, interrupted)?.is_none() {
                eprintln!("measured in its stead: {}", Way::Tap.name());
                ways.measured.push(Way::Tap);
            }
        }
        Ok(ways)
    }

    /// Why one of these is not measured, if one is not.
    pub fn lacking(&self, needed: &[Way]) -> Option<String> {
        self.missing.iter().find(|(way, _)| needed.contains(way)).map(|(_, why)| why.clone())
    }
}

pub fn run(args: &Args) -> Result<Report, Error> {
    let failed = |error| process::Error::Start { program: "kv".to_owned(), error };
    let interrupted = interruption().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let pair = echo_pair::Setting {
        linerate: linerate()?,
        scratch: scratch.path().to_owned(),
        server_core: args.server_core,
        load_core: args.load_core,
        size: args.size,
        duration: Duration::from_secs(args.seconds.into()),
    };
    let setting = Setting { pair, keys: args.keys };
    let _first = come_first();
    let ways = Ways::possible(&args.ways, &setting, &interrupted)?;
    let cores = Cores { server: args.server_core, load: args.load_core };
    let mut runs: Vec<(f64, Vec<Row>)> = Vec::new();
    let at_distances = |runs: &[(f64, Vec<Row>)]| -> Vec<Distance> {
        let alike = apart(runs.iter().map(|(distance, _)| *distance).collect());
        alike.iter().map(|alike| Distance::new(alike[alike.len() / 2], of(alike, runs).flatten())).collect()
    };
    // What there was never both of at one distance gets as many rounds again.
    let is_short = |runs: &[(f64, Vec<Row>)]| {
        let ratios = required::ratios(&ways, &at_distances(runs));
        ratios.iter().any(|ratio| ratio.ratio.is_none() && ratio.lacking.is_none())
    };
    let mut round = 0;
    // Round by round, so that what disturbs the machine for a while disturbs all alike.
    while round < args.rounds || (round < 2 * args.rounds && is_short(&runs)) {
        round += 1;
        for way in &ways.measured {
            eprintln!("round {round}: {}", way.name());
            runs.extend(cores.held(|| measure(&setting, *way, &interrupted))?);
        }
    }
    let mut turns = Vec::new();
    if ways.lacking(&required::OVER_VIRTIO).is_none() {
        eprintln!("kv and echo over virtio, by turns");
        // Some are lost when the cores move: twice as long as each load measures in all rounds that were asked for.
        let each = setting.pair.duration * args.rounds * 2;
        turns = by_turns::measure(&setting, cores, each.div_duration_f64(TURN).ceil() as usize, &interrupted)?;
    }
    let by_turns = ByTurns::of(&turns);
    let mut limits = Vec::new();
    if ways.measured.contains(&Way::Virtio) {
        eprintln!("GETs of {LONG} bytes");
        limits.extend(required::long_values(copied(&setting, &interrupted)?, copied_by_service()?));
    }
    let distances = at_distances(&runs);
    limits.extend(required::errors(&distances));
    let mut ratios = required::of_echo(&ways, &by_turns);
    ratios.extend(required::ratios(&ways, &distances));
    let Args { seconds, keys, size, .. } = *args;
    Ok(Report { connections: CONNECTIONS, rounds: round, seconds, keys, size, distances, by_turns, ratios, limits })
}

/// Bytes that the service copies for each long value that it sends.
fn copied_by_service() -> Result<f64, Wrong> {
    let plan = Plan { depth: 1, keys: 100, value: LONG as usize, gets: 100, together: false, export: 0 };
    let mut turns = Turns::new(plan);
    let before = turns.answered();
    turns.run(FETCHED)?;
    let after = turns.answered();
    let gets = (after.written + after.sent - before.written - before.sent) as f64 / answer_to_get(plan.value) as f64;
    // What stands around the value is always written.
    let around = (answer_to_get(plan.value) - plan.value as u64) as f64;
    Ok((after.written - before.written) as f64 / gets - around)
}
