//! The same echo load over a virtio-user link with the TCP stack and over kernel sockets, and what the link can do
//! without any protocol, side by side in one run.
#![forbid(unsafe_code)]

mod ratios;
mod report;

use clap::Parser;
use linerate_benches::distance::{Cores, apart, median, of};
use linerate_benches::echo_pair::{Measured, Network, Setting, engines_of, measure};
use linerate_benches::external::process::{Error, interruption, linerate};
use linerate_benches::external::{sockperf, testpmd};
use linerate_benches::priority::come_first;
use ratios::Beside;
use report::{Distance, Report, Row, Sockperf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The loads: many connections for the rate, one for the round trip.
const MANY: u32 = 64;
const ONE: u32 = 1;

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

    /// Leave out what two dpdk-testpmd do over the same link; without it their figure is needed
    #[arg(long)]
    no_testpmd: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let report = match run(&args) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("virtio_vs_kernel: {error}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).expect("a report is made of plain values"));
    } else {
        println!("{report}");
    }
    if report.ratios.iter().all(|ratio| ratio.met) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(args: &Args) -> Result<Report, Error> {
    let failed = |error| Error::Start { program: "virtio_vs_kernel".to_owned(), error };
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
        return Err(missing("sockperf", "apt-get install sockperf"));
    }
    if !args.no_testpmd && !testpmd::is_installed() {
        return Err(missing("dpdk-testpmd", "apt-get install dpdk-dev, or --no-testpmd to do without it"));
    }
    let _first = come_first();
    let networks = Network::all(&engines_of(&setting.linerate, &interrupted)?);
    // How far the cores were from each other is noted beside each.
    let cores = Cores { server: args.server_core, load: args.load_core };
    let mut runs: Vec<Vec<(f64, Vec<Measured>)>> = networks.iter().map(|_| Vec::new()).collect();
    let (mut ping_pongs, mut bounces) = (Vec::new(), Vec::new());
    // Round by round, so that what disturbs the machine for a while disturbs all alike.
    for round in 1..=args.rounds {
        let say = |what: &str| eprintln!("round {round} of {}: {what}", args.rounds);
        for (network, runs) in networks.iter().zip(&mut runs) {
            say(&network.name());
            runs.extend(cores.held(|| measure(&setting, *network, &[MANY, ONE], &interrupted))?);
        }
        if !args.no_testpmd {
            say("dpdk-testpmd");
            bounces.extend(cores.held(|| bounce(&setting, &interrupted))?);
        }
        if args.sockperf {
            say("sockperf");
            ping_pongs.extend(cores.held(|| ping_pong(&setting, &interrupted))?);
        }
    }
    let mut all: Vec<f64> = runs.iter().flatten().map(|(distance, _)| *distance).collect();
    all.extend(bounces.iter().map(|(distance, _)| *distance));
    all.extend(ping_pongs.iter().map(|(distance, _)| *distance));
    let at_distance = |alike: Vec<f64>| {
        let mut results = Vec::new();
        for (load, connections) in [MANY, ONE].into_iter().enumerate() {
            for (network, runs) in networks.iter().zip(&runs) {
                let measured: Vec<Measured> = of(&alike, runs).map(|measured| measured[load]).collect();
                if !measured.is_empty() {
                    results.push(Row::new(*network, connections, Measured::median(&measured)));
                }
            }
        }
        let rate = median(of(&alike, &ping_pongs).map(|one| one.rate));
        let rtt = median(of(&alike, &ping_pongs).map(|one| one.rtt_p50_us));
        Distance {
            transfer_ns: alike[alike.len() / 2],
            results,
            bounces: median(of(&alike, &bounces).copied()),
            sockperf: rate.zip(rtt).map(|(rate, rtt_p50_us)| Sockperf { rate, rtt_p50_us }),
        }
    };
    let distances: Vec<Distance> = apart(all).into_iter().map(at_distance).collect();
    let beside = Beside { testpmd: !args.no_testpmd, sockperf: args.sockperf };
    let ratios = ratios::all(&networks, beside, &distances);
    let Args { rounds, seconds, size, .. } = *args;
    Ok(Report { rounds, seconds, size, distances, ratios })
}

fn missing(program: &str, remedy: &str) -> Error {
    Error::Start { program: program.to_owned(), error: std::io::Error::other(remedy.to_owned()) }
}

fn ping_pong(setting: &Setting, interrupted: &AtomicBool) -> Result<sockperf::PingPong, Error> {
    let Setting { server_core, load_core, size, duration, .. } = *setting;
    sockperf::ping_pong(server_core, load_core, size, duration, interrupted)
}

fn bounce(setting: &Setting, interrupted: &AtomicBool) -> Result<f64, Error> {
    let Setting { server_core, load_core, duration, ref scratch, .. } = *setting;
    testpmd::bounces(scratch, server_core, load_core, duration, interrupted)
}
