//! Well-behaved clients of echo and key-value servers beside attackers.
#![forbid(unsafe_code)]

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::distance::{Cores, median};
use linerate_benches::echo_pair::Measured;
use linerate_benches::external::linerate;
use linerate_benches::hostile::{Attack, Plan, RECOVERY, Recovery, Round, Service, Setting};
use linerate_benches::priority::raise_priority;
use linerate_harness::{Error, interrupt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Minimum rate of the clients during an attack, relative to the control.
const RATE: f64 = 0.8;
/// Maximum 99th percentile of the clients' round trips during an attack, in microseconds.
const P99_US: f64 = 5000.0;
/// Maximum time until the number of held packets is normal, in seconds.
const RECOVERED: f64 = 30.0;
/// Number of counters per table row.
const COUNTERS: usize = 2;

/// Measure well-behaved clients of echo and key-value servers beside attackers
///
/// The server, the clients, the attackers and a sink are network namespaces connected by a bridge; the server runs over
/// AF_XDP. Each round measures the clients undisturbed, beside the frames of the attack addressed to the sink (the
/// control), and during the attack. After the last round the link of the attackers is cut. Needs root, ethtool and ip;
/// linerate must be beside this program.
#[derive(Parser)]
struct Args {
    /// Number of rounds per attack; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of one measurement in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=600_000))]
    milliseconds: u32,

    /// Maximum frames per second of an attack
    #[arg(long, value_name = "FRAMES", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    rate: u32,

    /// Attacked services
    #[arg(long, value_name = "SERVICE,…", value_delimiter = ',', value_enum, default_values_t = [Service::Echo, Service::Kv])]
    services: Vec<Service>,

    /// Attacks
    #[arg(long, value_name = "ATTACK,…", value_delimiter = ',', value_enum, default_values_t = Attack::ALL)]
    attacks: Vec<Attack>,

    /// Numbers of attackers instead of the defaults of each attack; without effect on floods
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    attackers: Vec<u32>,

    #[command(flatten)]
    cores: Cores,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    rounds: u32,
    milliseconds: u32,
    rate: u32,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    service: Service,
    attack: Attack,
    attackers: usize,
    rounds: Vec<Round>,
    met: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let report = match run(&args) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("hostile: {error}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).expect("a report is made of plain values"));
    } else {
        print(&report);
    }
    if report.results.iter().all(|row| row.met) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(args: &Args) -> Result<Report, Error> {
    let failed = |error| Error::Start { program: "hostile".to_owned(), error };
    interrupt::on_signals().map_err(failed)?;
    let setting = Setting {
        linerate: linerate()?,
        server_core: args.cores.server,
        load_core: args.cores.load,
        duration: Duration::from_millis(args.milliseconds.into()),
    };
    raise_open_files().map_err(failed)?;
    let _first = raise_priority();
    let per_millisecond = args.rate as usize / 1000;
    let mut results = Vec::new();
    for &service in &args.services {
        for &attack in args.attacks.iter().filter(|attack| attack.concerns(service)) {
            for attackers in attackers(args, attack) {
                eprintln!("{}: {}, {attackers}", service.name(), attack.name());
                let plan = Plan { service, attack, attackers, per_millisecond };
                let rounds = (1..=args.rounds)
                    .map(|round| plan.measure(&setting, round == args.rounds))
                    .collect::<Result<Vec<_>, _>>()?;
                results.push(Row { service, attack, attackers, met: is_met(&rounds), rounds });
            }
        }
    }
    Ok(Report { rounds: args.rounds, milliseconds: args.milliseconds, rate: args.rate, results })
}

/// Returns the numbers of attackers to measure.
fn attackers(args: &Args, attack: Attack) -> Vec<usize> {
    if args.attackers.is_empty() || attack.attackers() == [0] {
        return attack.attackers().to_vec();
    }
    args.attackers.iter().map(|n| *n as usize).collect()
}

/// Raises the limit of open files to its maximum.
fn raise_open_files() -> std::io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

fn ratio(rounds: &[Round]) -> Option<f64> {
    median(rounds.iter().filter_map(Round::ratio))
}

/// Returns the median of a figure over the rounds that have one.
fn figure(rounds: &[Round], of: fn(&Round) -> Option<Measured>, figure: fn(Measured) -> f64) -> Option<f64> {
    median(rounds.iter().filter_map(of).map(figure))
}

fn is_met(rounds: &[Round]) -> bool {
    let p99 = figure(rounds, |round| round.attacked, |measured| measured.rtt_us.p99);
    let recovered = rounds
        .iter()
        .filter_map(|round| round.recovery)
        .all(|recovery| recovery.seconds.is_some_and(|seconds| seconds <= RECOVERED));
    ratio(rounds).is_some_and(|ratio| ratio >= RATE) && p99.is_some_and(|p99| p99 <= P99_US) && recovered
}

fn print(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "service",
        "attack",
        "attackers",
        "attack/s",
        "requests/s: undisturbed",
        "control",
        "attacked",
        "ratio",
        "p50 µs: undisturbed",
        "attacked",
        "p99 µs: undisturbed",
        "control",
        "attacked",
        "packets held",
        "normal after s",
        "counted",
        "",
    ]);
    for row in &report.results {
        table.add_row(cells(row));
    }
    for column in table.column_iter_mut().filter(|column| (2..15).contains(&column.index)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}

fn cells(row: &Row) -> Vec<String> {
    let rounds = &row.rounds;
    let number = |n: Option<f64>| n.map_or_else(|| "–".to_owned(), |n| format!("{n:.0}"));
    let of = |of: fn(&Round) -> Option<Measured>, figure_of: fn(Measured) -> f64| number(figure(rounds, of, figure_of));
    let last = rounds.last();
    let recovered = match last.and_then(|round| round.recovery) {
        None => "–".to_owned(),
        Some(Recovery { seconds: Some(seconds), .. }) => format!("{seconds:.1}"),
        Some(Recovery { held, .. }) => {
            format!("> {}: {} held", RECOVERY.as_secs(), number(held.map(|held| held as f64)))
        }
    };
    let counted: Vec<String> = last.map_or_else(Vec::new, |round| {
        round.counters.iter().take(COUNTERS).map(|(name, n)| format!("{name}: {n}")).collect()
    });
    vec![
        row.service.name().to_owned(),
        row.attack.name().to_owned(),
        if row.attackers == 0 { "–".to_owned() } else { row.attackers.to_string() },
        number(median(rounds.iter().map(|round| round.per_second))),
        of(|round| round.undisturbed, |measured| measured.rate),
        of(|round| round.control, |measured| measured.rate),
        of(|round| round.attacked, |measured| measured.rate),
        ratio(rounds).map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}")),
        of(|round| round.undisturbed, |measured| measured.rtt_us.p50),
        of(|round| round.attacked, |measured| measured.rtt_us.p50),
        of(|round| round.undisturbed, |measured| measured.rtt_us.p99),
        of(|round| round.control, |measured| measured.rtt_us.p99),
        of(|round| round.attacked, |measured| measured.rtt_us.p99),
        number(rounds.iter().filter_map(|round| round.held).max().map(|held| held as f64)),
        recovered,
        counted.join(", "),
        if row.met { "met" } else { "not met" }.to_owned(),
    ]
}
