//! The same echo load over a virtio-user link with the TCP stack and over kernel sockets, side by side in one run.
#![forbid(unsafe_code)]

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::echo_pair::{Measured, Network, Setting, measure};
use linerate_benches::process::{Error, come_first, interruption, linerate};
use linerate_benches::sockperf;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The loads: many connections for the rate, one for the round trip.
const MANY: u32 = 64;
const ONE: u32 = 1;
/// What is required: many connections' rate by that of the faster kernel baseline; one connection's median round trip
/// by which the sleeping and the spinning baseline's are divided; the sleeping baseline's rate by that of sockperf.
const REQUIRED_RATE: f64 = 5.0;
const REQUIRED_SLEEPING_RTT: f64 = 5.0;
const REQUIRED_SPINNING_RTT: f64 = 2.0;
const REQUIRED_OF_SOCKPERF: f64 = 0.9;

/// Compare echo over virtio-user and the TCP stack with echo over kernel sockets, on the same two cores
#[derive(Parser)]
struct Args {
    /// How often each measurement is made; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// How long each measurement lasts, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(14..=65_507))]
    size: u32,

    /// The core of the servers
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    server_core: usize,

    /// The core of the loads
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    load_core: usize,

    /// Hold the sleeping baseline against sockperf too
    #[arg(long)]
    sockperf: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    rounds: u32,
    seconds: u32,
    size: u32,
    results: Vec<Row>,
    sockperf: Option<Sockperf>,
    ratios: Vec<Ratio>,
}

#[derive(Serialize)]
struct Row {
    network: Network,
    connections: u32,
    #[serde(flatten)]
    measured: Measured,
}

#[derive(Serialize)]
struct Sockperf {
    rate: f64,
    rtt_p50_us: f64,
}

#[derive(Serialize)]
struct Ratio {
    what: &'static str,
    ratio: f64,
    required: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let report = match run(&args) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("compare: {error}");
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
    let failed = |error| Error::Start { program: "compare".to_owned(), error };
    let interrupted = interruption().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let setting = Setting {
        linerate: linerate()?,
        scratch: scratch.path().to_owned(),
        server_core: args.server_core,
        load_core: args.load_core,
        size: args.size,
        duration: Duration::from_secs(args.seconds.into()),
    };
    if args.sockperf && !sockperf::is_installed() {
        let error = std::io::Error::other("apt-get install sockperf");
        return Err(Error::Start { program: "sockperf".to_owned(), error });
    }
    come_first();
    let mut runs = Network::ALL.map(|network| (network, [Vec::new(), Vec::new()]));
    let mut ping_pongs = Vec::new();
    // Round by round, so that what disturbs the machine for a while disturbs all alike.
    for round in 1..=args.rounds {
        for (network, runs) in &mut runs {
            eprintln!("round {round} of {}: {}", args.rounds, network.name());
            let measured = measure(&setting, *network, &[MANY, ONE], &interrupted)?;
            runs.iter_mut().zip(measured).for_each(|(runs, one)| runs.push(one));
        }
        if args.sockperf {
            eprintln!("round {round} of {}: sockperf", args.rounds);
            ping_pongs.push(ping_pong(&setting, &interrupted)?);
        }
    }
    let results = [MANY, ONE].into_iter().enumerate().flat_map(|(at, connections)| {
        let row = move |(network, runs): &(Network, [Vec<Measured>; 2])| Row {
            network: *network,
            connections,
            measured: Measured::median(&runs[at]),
        };
        runs.iter().map(row).collect::<Vec<_>>()
    });
    let results: Vec<Row> = results.collect();
    let sockperf = (!ping_pongs.is_empty()).then(|| Sockperf {
        rate: median(ping_pongs.iter().map(|one| one.rate)),
        rtt_p50_us: median(ping_pongs.iter().map(|one| one.rtt_p50_us)),
    });
    let ratios = ratios(&results, sockperf.as_ref());
    Ok(Report { rounds: args.rounds, seconds: args.seconds, size: args.size, results, sockperf, ratios })
}

fn ping_pong(setting: &Setting, interrupted: &AtomicBool) -> Result<sockperf::PingPong, Error> {
    let Setting { server_core, load_core, size, duration, .. } = *setting;
    sockperf::ping_pong(server_core, load_core, size, duration, interrupted)
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn ratios(results: &[Row], sockperf: Option<&Sockperf>) -> Vec<Ratio> {
    let of = |network, connections| {
        let row = results.iter().find(|row| row.network == network && row.connections == connections);
        row.expect("every network is measured with both numbers of connections").measured
    };
    let faster = of(Network::Sleeping, MANY).rate.max(of(Network::Spinning, MANY).rate);
    let rtt = |network| of(network, ONE).rtt_us.p50;
    let mut ratios = vec![
        Ratio {
            what: "requests/s of 64 connections, to the faster kernel baseline's",
            ratio: of(Network::Virtio, MANY).rate / faster,
            required: REQUIRED_RATE,
        },
        Ratio {
            what: "RTT p50 of one connection: the sleeping baseline's, to this",
            ratio: rtt(Network::Sleeping) / rtt(Network::Virtio),
            required: REQUIRED_SLEEPING_RTT,
        },
        Ratio {
            what: "RTT p50 of one connection: the spinning baseline's, to this",
            ratio: rtt(Network::Spinning) / rtt(Network::Virtio),
            required: REQUIRED_SPINNING_RTT,
        },
    ];
    if let Some(sockperf) = sockperf {
        ratios.push(Ratio {
            what: "requests/s of one connection: the sleeping baseline's, to sockperf's",
            ratio: of(Network::Sleeping, ONE).rate / sockperf.rate,
            required: REQUIRED_OF_SOCKPERF,
        });
    }
    ratios
}

fn print(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["network", "connections", "requests/s", "RTT p50 µs", "p99 µs", "p99.9 µs", "errors"]);
    for Row { network, connections, measured: Measured { rate, errors, rtt_us } } in &report.results {
        table.add_row([
            network.name().to_owned(),
            connections.to_string(),
            format!("{rate:.0}"),
            format!("{:.1}", rtt_us.p50),
            format!("{:.1}", rtt_us.p99),
            format!("{:.1}", rtt_us.p999),
            errors.to_string(),
        ]);
    }
    if let Some(Sockperf { rate, rtt_p50_us }) = &report.sockperf {
        let (name, rate, rtt) = ("sockperf, sleeping", format!("{rate:.0}"), format!("{rtt_p50_us:.1}"));
        table.add_row([name, "1", &*rate, &*rtt, "", "", ""]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}\n");

    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["comparison", "ratio", "required", ""]);
    for Ratio { what, ratio, required } in &report.ratios {
        let verdict = if ratio >= required { "met" } else { "missed" };
        table.add_row([what.to_string(), format!("{ratio:.2}"), format!("{required:.1}"), verdict.to_string()]);
    }
    println!("{table}");
}
