//! Goodput over a lossy path: Linerate's TCP compared with the kernel's over the same impairments.
#![forbid(unsafe_code)]

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::external::linerate;
use linerate_benches::goodput::{Measured, Pair, Setting, measure};
use linerate_benches::impair::path::{PathConfig, impair};
use linerate_benches::priority::raise_priority;
use linerate_harness::{Error, interrupt};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Required goodput of Linerate as sender, relative to the kernel's at the same loss.
const REQUIRED: f64 = 0.95;
/// Maximum lateness of the bridge in microseconds: beyond it the path differs from the requested one.
const LATE: f64 = 200.0;

/// Compare the goodput of Linerate with that of the kernel (CUBIC, SACK) over a path that loses frames
///
/// Two hosts, each a network namespace, are connected through `impair`, which must be beside this program, as must
/// linerate. Each measurement has new hosts and a new path. The measurements of one round use the same seed, so that
/// the path impairs their frames alike. Needs root, ethtool and ip.
#[derive(Parser)]
struct Args {
    /// Number of rounds; the medians are compared
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of a measurement in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Percentages of lost frames
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "0.1,1,5")]
    loss: Vec<f64>,

    /// Lose acknowledgements as well as data
    #[arg(long)]
    both_ways: bool,

    /// Other impairments of the path in each direction, in the syntax of impair --both
    #[arg(long, value_name = "SPEC", default_value = "delay=10ms,rate=100mbit,queue=250000")]
    path: String,

    /// Random seed of the first round
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Sender and receiver; the comparison needs the first two
    #[arg(long, value_name = "PAIR,…", value_delimiter = ',', value_enum, default_values_t = Pair::ALL)]
    pairs: Vec<Pair>,

    /// TCP engine of linerate [default: that of linerate]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,

    /// Value of linerate's --buffer; the kernel's buffers grow to 4 MB by default
    #[arg(long, value_name = "BYTES", default_value = "4m")]
    buffer: String,

    /// Congestion control of the kernel
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: String,

    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,

    /// Core of the bridge
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    bridge_core: usize,

    /// Core of linerate
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    linerate_core: usize,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    rounds: u32,
    seconds: u32,
    path: String,
    both_ways: bool,
    engine: Option<String>,
    buffer: String,
    congestion: String,
    results: Vec<Row>,
    ratios: Vec<Ratio>,
}

#[derive(Serialize)]
struct Row {
    loss_percent: f64,
    pair: Pair,
    /// Median of the rounds.
    mbit_per_s: f64,
    /// Result of each round.
    rounds: Vec<f64>,
    /// Frames lost by chance relative to received frames, in all rounds: the actual loss of the path.
    lost_percent: f64,
}

#[derive(Serialize)]
struct Ratio {
    loss_percent: f64,
    ratio: f64,
    required: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(loss) = args.loss.iter().find(|loss| !(0.0..=100.0).contains(*loss)) {
        eprintln!("goodput: --loss {loss}: percentages are from 0 to 100");
        return ExitCode::from(2);
    }
    let report = match run(&args) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("goodput: {error}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).expect("a report is made of plain values"));
    } else {
        print(&report);
    }
    if report.ratios.iter().all(|ratio| ratio.ratio >= ratio.required) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(args: &Args) -> Result<Report, Error> {
    interrupt::on_signals().map_err(|error| Error::Start { program: "goodput".to_owned(), error })?;
    let setting = Setting {
        linerate: linerate()?,
        engine: args.engine.clone(),
        buffer: args.buffer.clone(),
        linerate_core: args.linerate_core,
        congestion: args.congestion.clone(),
        v6: args.ipv6,
        duration: Duration::from_secs(args.seconds.into()),
    };
    let impair = impair()?;
    let _first = raise_priority();
    let mut runs: Vec<(f64, Pair, Vec<Measured>)> =
        args.loss.iter().flat_map(|loss| args.pairs.iter().map(|pair| (*loss, *pair, Vec::new()))).collect();
    // Measurements are interleaved by round, so that a temporary disturbance affects all alike.
    for round in 1..=args.rounds {
        for (loss, pair, runs) in &mut runs {
            let lossy = format!("{},loss={loss}%", args.path);
            let path = PathConfig {
                impair: impair.clone(),
                back: if args.both_ways { lossy.clone() } else { args.path.clone() },
                forth: lossy,
                seed: args.seed.wrapping_add(round.into()),
                core: Some(args.bridge_core),
            };
            let measured = measure(&setting, &path, *pair)?;
            let label = format!("round {round} of {}, loss {loss} %, {}", args.rounds, pair.name());
            eprintln!("{label}: {:.2} Mbit/s", measured.mbit_per_s());
            if let Some(doubt) = doubt(&measured) {
                eprintln!("{label}: {doubt}");
            }
            runs.push(measured);
        }
    }
    let results: Vec<Row> = runs.iter().map(|(loss, pair, runs)| row(*loss, *pair, runs)).collect();
    let ratios = args.loss.iter().filter_map(|loss| ratio(&results, *loss)).collect();
    Ok(Report {
        rounds: args.rounds,
        seconds: args.seconds,
        path: args.path.clone(),
        both_ways: args.both_ways,
        engine: args.engine.clone(),
        buffer: args.buffer.clone(),
        congestion: args.congestion.clone(),
        results,
        ratios,
    })
}

/// Returns the reason why the path of a measurement may differ from the requested one.
fn doubt(measured: &Measured) -> Option<String> {
    let crossing = &measured.crossing;
    if crossing.stray > 0 {
        return Some(format!("{} frames were lost in addition to the requested loss", crossing.stray));
    }
    let late = [crossing.forth.late_us.p99, crossing.back.late_us.p99, crossing.pauses_us.p99];
    let late = late.into_iter().fold(0.0, f64::max);
    (late > LATE).then(|| format!("one frame in a hundred was {late:.0} µs or more late"))
}

fn row(loss_percent: f64, pair: Pair, runs: &[Measured]) -> Row {
    let rounds: Vec<f64> = runs.iter().map(Measured::mbit_per_s).collect();
    let of = |count: fn(&Measured) -> u64| runs.iter().map(count).sum::<u64>() as f64;
    let lost = of(|run| run.crossing.forth.lost) / of(|run| run.crossing.forth.received).max(1.0);
    Row { loss_percent, pair, mbit_per_s: median(&rounds), rounds, lost_percent: lost * 100.0 }
}

fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 { figures[middle] } else { (figures[middle - 1] + figures[middle]) / 2.0 }
}

/// Returns the ratio of Linerate's goodput as sender to the kernel's.
fn ratio(results: &[Row], loss: f64) -> Option<Ratio> {
    let of = |pair| {
        let row = results.iter().find(|row| row.loss_percent == loss && row.pair == pair);
        row.map(|row| row.mbit_per_s)
    };
    let (linerate, linux) = (of(Pair::LinerateToLinux)?, of(Pair::LinuxToLinux)?);
    Some(Ratio { loss_percent: loss, ratio: linerate / linux, required: REQUIRED })
}

fn print(report: &Report) {
    let Report { path, buffer, congestion, .. } = report;
    println!("path: {path}, {}", if report.both_ways { "losing both ways" } else { "losing data only" });
    println!(
        "kernel: {congestion}; linerate: --buffer {buffer}{}\n",
        match &report.engine {
            Some(engine) => format!(" --engine {engine}"),
            None => String::new(),
        }
    );
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["loss %", "sender to receiver", "median Mbit/s", "least", "most", "frames lost %"]);
    for Row { loss_percent, pair, mbit_per_s, rounds, lost_percent } in &report.results {
        let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rounds.iter().copied().fold(0.0, f64::max);
        let [median, least, most] = [*mbit_per_s, least, most].map(|figure| format!("{figure:.2}"));
        let (loss, lost) = (loss_percent.to_string(), format!("{lost_percent:.2}"));
        table.add_row([loss, pair.name().to_owned(), median, least, most, lost]);
    }
    for column in table.column_iter_mut() {
        if column.index != 1 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    if report.ratios.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["loss %", "Linerate's goodput as sender, by Linux'", "required", ""]);
    for Ratio { loss_percent, ratio, required } in &report.ratios {
        let verdict = if ratio >= required { "met" } else { "missed" };
        table.add_row([loss_percent.to_string(), format!("{ratio:.3}"), format!("{required}"), verdict.to_owned()]);
    }
    println!("\n{table}");
}
