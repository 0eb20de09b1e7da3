//! Rounds of measurements over links: each server under its loads.

use crate::Error;
use crate::report::{Distance, Report};
use crate::required;
use linerate_benches::client::BenchError;
use linerate_benches::distance::{Cores, at_distance, group_by_distance};
use linerate_benches::echo_pair;
use linerate_benches::engine::Bench;
use linerate_benches::external::linerate;
use linerate_benches::kv::interleaved::{self, Interleaved, TURN};
use linerate_benches::kv::service::{ServiceBench, Workload};
use linerate_benches::kv::{CONNECTIONS, Contender, LONG, Row, Setting, answer_to_get, copied, measure, obstacle};
use linerate_benches::priority::raise_priority;
use linerate_harness::interrupt;
use std::time::Duration;

/// Number of long values fetched from the service alone.
const FETCHED: usize = 10_000;

#[derive(clap::Args)]
pub struct Args {
    /// Number of rounds; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of each load in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=4_000_000))]
    keys: u64,

    /// Size of a value in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(14..=1024))]
    size: u32,

    #[command(flatten)]
    cores: Cores,

    /// Measure only these; a comparison with another one then counts as not met
    #[arg(long, alias = "ways", value_name = "CONTENDER,…", value_delimiter = ',', value_enum, default_values_t = Contender::ALL)]
    contenders: Vec<Contender>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Measurable contenders, and the others with the reason.
pub struct Contenders {
    pub measured: Vec<Contender>,
    pub missing: Vec<(Contender, String)>,
}

impl Contenders {
    /// Returns the contenders of `requested` that this machine can measure; TAP replaces AF_XDP if needed.
    fn possible(requested: &[Contender], setting: &Setting) -> Result<Self, linerate_harness::Error> {
        let mut contenders = Contenders { measured: Vec::new(), missing: Vec::new() };
        for contender in Contender::ALL.into_iter().chain(requested.contains(&Contender::Tap).then_some(Contender::Tap))
        {
            if !requested.contains(&contender) {
                contenders.missing.push((contender, format!("{} was excluded", contender.name())));
                continue;
            }
            let Some(why) = obstacle(setting, contender)? else {
                contenders.measured.push(contender);
                continue;
            };
            eprintln!("not measured: {}: {why}", contender.name());
            contenders.missing.push((contender, why));
            if contender == Contender::AfXdp
                && !requested.contains(&Contender::Tap)
                && obstacle(setting, Contender::Tap)?.is_none()
            {
                eprintln!("measured instead: {}", Contender::Tap.name());
                contenders.measured.push(Contender::Tap);
            }
        }
        Ok(contenders)
    }

    /// Returns the reason why one of `needed` is not measured, if any.
    pub fn lacking(&self, needed: &[Contender]) -> Option<String> {
        self.missing.iter().find(|(contender, _)| needed.contains(contender)).map(|(_, why)| why.clone())
    }
}

pub fn run(args: &Args) -> Result<Report, Error> {
    let failed = |error| linerate_harness::Error::Start { program: "kv".to_owned(), error };
    interrupt::on_signals().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let pair = echo_pair::Setting {
        linerate: linerate()?,
        scratch: scratch.path().to_owned(),
        server_core: args.cores.server,
        load_core: args.cores.load,
        size: args.size,
        duration: Duration::from_secs(args.seconds.into()),
    };
    let setting = Setting { pair, keys: args.keys };
    let _first = raise_priority();
    let contenders = Contenders::possible(&args.contenders, &setting)?;
    let cores = args.cores;
    let mut runs: Vec<(f64, Vec<Row>)> = Vec::new();
    let at_distances = |runs: &[(f64, Vec<Row>)]| -> Vec<Distance> {
        let alike = group_by_distance(runs.iter().map(|(distance, _)| *distance).collect());
        alike.iter().map(|alike| Distance::new(alike[alike.len() / 2], at_distance(alike, runs).flatten())).collect()
    };
    // Contenders without two comparable distances get as many rounds again.
    let is_short = |runs: &[(f64, Vec<Row>)]| {
        let ratios = required::ratios(&contenders, &at_distances(runs));
        ratios.iter().any(|ratio| ratio.ratio.is_none() && ratio.lacking.is_none())
    };
    let mut round = 0;
    // Measurements are interleaved by round, so that a temporary disturbance affects all alike.
    while round < args.rounds || (round < 2 * args.rounds && is_short(&runs)) {
        round += 1;
        for contender in &contenders.measured {
            eprintln!("round {round}: {}", contender.name());
            runs.extend(cores.measure_stable(|| measure(&setting, *contender))?);
        }
    }
    let mut turns = Vec::new();
    if contenders.lacking(&required::OVER_VIRTIO).is_none() {
        eprintln!("kv and echo over virtio, interleaved");
        // Slots are lost when the cores move, so this takes twice as long as each load in all requested rounds.
        let each = setting.pair.duration * args.rounds * 2;
        turns = interleaved::measure(&setting, cores, each.div_duration_f64(TURN).ceil() as usize)?;
    }
    let by_turns = Interleaved::of(&turns);
    let mut limits = Vec::new();
    if contenders.measured.contains(&Contender::Virtio) {
        eprintln!("GETs of {LONG} bytes");
        limits.extend(required::long_values(copied(&setting)?, copied_by_service()?));
    }
    let distances = at_distances(&runs);
    limits.extend(required::errors(&distances));
    let mut ratios = required::of_echo(&contenders, &by_turns);
    ratios.extend(required::ratios(&contenders, &distances));
    let Args { seconds, keys, size, .. } = *args;
    Ok(Report { connections: CONNECTIONS, rounds: round, seconds, keys, size, distances, by_turns, ratios, limits })
}

/// Returns the bytes that the service copies per long value.
fn copied_by_service() -> Result<f64, BenchError> {
    let plan = Workload { depth: 1, keys: 100, value: LONG as usize, gets: 100, together: false, export: 0 };
    let mut bench = ServiceBench::new(plan);
    let before = bench.answered();
    bench.run(FETCHED)?;
    let after = bench.answered();
    let gets = (after.written + after.sent - before.written - before.sent) as f64 / answer_to_get(plan.value) as f64;
    // The framing of the value is always written.
    let around = (answer_to_get(plan.value) - plan.value as u64) as f64;
    Ok((after.written - before.written) as f64 / gets - around)
}
