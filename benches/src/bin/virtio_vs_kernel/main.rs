//! Compares the same echo load over a virtio-user link with the TCP stack and over kernel sockets, beside the capacity
//! of the link without a protocol.
#![forbid(unsafe_code)]

mod brief;
mod ratios;
mod report;

use clap::Parser;
use linerate_benches::distance::{Cores, at_distance, group_by_distance, median};
use linerate_benches::echo_pair::{Measured, Network, Setting, measure};
use linerate_benches::external::linerate;
use linerate_benches::external::{sockperf, testpmd};
use linerate_benches::priority::raise_priority;
use linerate_benches::report::finish;
use linerate_harness::{Error, interrupt};
use ratios::Extras;
use report::{Distance, Report, Row, Sockperf};
use std::process::ExitCode;
use std::time::Duration;

/// Numbers of connections: many for the rate, one for the round trip.
const MANY: u32 = 64;
const ONE: u32 = 1;

/// Compare echo over virtio-user and the TCP stack with echo over kernel sockets, on the same two cores
#[derive(Parser)]
struct Args {
    /// Number of rounds; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of each measurement in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Size of a request in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(14..=65_507))]
    size: u32,

    #[command(flatten)]
    cores: Cores,

    /// Also compare the sleeping baseline with sockperf
    #[arg(long)]
    sockperf: bool,

    /// Skip the measurement of the same link with two dpdk-testpmd, which is required by default
    #[arg(long)]
    no_testpmd: bool,

    /// Measure each network once, with the native engine, and compare without requirements
    #[arg(long, conflicts_with_all = ["rounds", "sockperf", "no_testpmd"])]
    brief: bool,

    /// With --brief, measure only the kernel, for a linerate without DPDK
    #[arg(long, requires = "brief")]
    kernel_only: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.brief {
        let brief = in_setting(&args, |setting| brief::run(setting, args.kernel_only));
        return finish("virtio_vs_kernel", brief, args.json, |_| true);
    }
    let report = in_setting(&args, |setting| run(&args, setting));
    finish("virtio_vs_kernel", report, args.json, |report| report.ratios.iter().all(|ratio| ratio.met))
}

/// Calls `measure` with a scratch directory and raised priority.
fn in_setting<T>(args: &Args, measure: impl FnOnce(&Setting) -> Result<T, Error>) -> Result<T, Error> {
    let failed = |error| Error::Start { program: "virtio_vs_kernel".to_owned(), error };
    interrupt::on_signals().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let setting = Setting {
        linerate: linerate()?,
        scratch: scratch.path().to_owned(),
        server_core: args.cores.server,
        load_core: args.cores.load,
        size: args.size,
        duration: Duration::from_secs(args.seconds.into()),
    };
    let _first = raise_priority();
    measure(&setting)
}

fn run(args: &Args, setting: &Setting) -> Result<Report, Error> {
    if args.sockperf && !sockperf::is_installed() {
        return Err(missing("sockperf", "apt-get install sockperf"));
    }
    if !args.no_testpmd && !testpmd::is_installed() {
        return Err(missing("dpdk-testpmd", "apt-get install dpdk-dev, or use --no-testpmd"));
    }
    let networks = Network::ALL;
    // The distance of the cores is recorded with each measurement.
    let cores = args.cores;
    let mut runs: Vec<Vec<(f64, Vec<Measured>)>> = networks.iter().map(|_| Vec::new()).collect();
    let (mut ping_pongs, mut bounces) = (Vec::new(), Vec::new());
    // Measurements are interleaved by round, so that a temporary disturbance affects all alike.
    for round in 1..=args.rounds {
        let print_progress = |text: &str| eprintln!("round {round} of {}: {text}", args.rounds);
        for (network, runs) in networks.iter().zip(&mut runs) {
            print_progress(&network.name());
            runs.extend(cores.measure_stable(|| measure(setting, *network, &[MANY, ONE]))?);
        }
        if !args.no_testpmd {
            print_progress("dpdk-testpmd");
            bounces.extend(cores.measure_stable(|| bounce(setting))?);
        }
        if args.sockperf {
            print_progress("sockperf");
            ping_pongs.extend(cores.measure_stable(|| ping_pong(setting))?);
        }
    }
    let mut all: Vec<f64> = runs.iter().flatten().map(|(distance, _)| *distance).collect();
    all.extend(bounces.iter().map(|(distance, _)| *distance));
    all.extend(ping_pongs.iter().map(|(distance, _)| *distance));
    let summarise = |alike: Vec<f64>| {
        let mut results = Vec::new();
        for (load, connections) in [MANY, ONE].into_iter().enumerate() {
            for (network, runs) in networks.iter().zip(&runs) {
                let measured: Vec<Measured> = at_distance(&alike, runs).map(|measured| measured[load]).collect();
                if !measured.is_empty() {
                    results.push(Row::new(*network, connections, Measured::median(&measured)));
                }
            }
        }
        let rate = median(at_distance(&alike, &ping_pongs).map(|one| one.rate));
        let rtt = median(at_distance(&alike, &ping_pongs).map(|one| one.rtt_p50_us));
        Distance {
            transfer_ns: alike[alike.len() / 2],
            results,
            bounces: median(at_distance(&alike, &bounces).copied()),
            sockperf: rate.zip(rtt).map(|(rate, rtt_p50_us)| Sockperf { rate, rtt_p50_us }),
        }
    };
    let distances: Vec<Distance> = group_by_distance(all).into_iter().map(summarise).collect();
    let beside = Extras { testpmd: !args.no_testpmd, sockperf: args.sockperf };
    let ratios = ratios::all(&networks, beside, &distances);
    let Args { rounds, seconds, size, .. } = *args;
    Ok(Report { rounds, seconds, size, distances, ratios })
}

fn missing(program: &str, remedy: &str) -> Error {
    Error::Start { program: program.to_owned(), error: std::io::Error::other(remedy.to_owned()) }
}

fn ping_pong(setting: &Setting) -> Result<sockperf::PingPong, Error> {
    let Setting { server_core, load_core, size, duration, .. } = *setting;
    sockperf::ping_pong(server_core, load_core, size, duration)
}

fn bounce(setting: &Setting) -> Result<f64, Error> {
    let Setting { server_core, load_core, duration, ref scratch, .. } = *setting;
    testpmd::bounces(scratch, server_core, load_core, duration)
}
