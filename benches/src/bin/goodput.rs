//! Goodput over a lossy path: Linerate's TCP compared with the kernel's over the same impairments.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::impair::path::{Path, PathConfig, PathStats, impair};
use linerate_benches::linerate;
use linerate_benches::priority::raise_priority;
use linerate_benches::report::finish;
use linerate_benches::rounds::{self, Bound, Job, Plan, Report, Required, RoundsArgs, Row};
use linerate_harness::namespace::Host;
use linerate_harness::process::{Process, TIMEOUT};
use linerate_harness::{Error, interrupt};
use serde::Deserialize;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Required goodput of Linerate as sender, relative to the kernel's at the same loss.
const REQUIRED: f64 = 0.95;
/// Percentages of lost frames, and other impairments of the path in each direction, in the syntax of `impair`.
const LOSSES: [&str; 3] = ["0.1", "1", "5"];
const PATH: &str = "delay=10ms,rate=100mbit,queue=250000";
/// Options of linerate. The kernel's buffers grow to 4 MB by default.
const OPTIONS: &str = "--buffer 4m";
/// Congestion control of the kernel, that of the native engine.
const CONGESTION: &str = "cubic";
/// Maximum lateness of the bridge in microseconds: beyond it the path differs from the requested one.
const LATE: f64 = 200.0;
/// Senders and receivers: name, and whether each is the kernel. The sender listens on the near host.
const PAIRS: [(&str, bool, bool); 3] = [(LINUX, true, true), (SENDER, false, true), ("Linux to Linerate", true, false)];
const LINUX: &str = "Linux to Linux";
const SENDER: &str = "Linerate to Linux";

/// Compare the goodput of Linerate with that of the kernel over a path that loses frames
///
/// Two hosts, each a network namespace, are connected through `impair`, which must be in the directory of this program,
/// as must linerate. Each measurement has new hosts and a new path. The measurements of one round use the same seed, so
/// that the path impairs their frames alike. The bridge has the server's core, and both ends the load's. Needs root,
/// ethtool and ip.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: RoundsArgs,

    /// Lose acknowledgements as well as data
    #[arg(long)]
    both_ways: bool,

    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish("goodput", run(&args), Report::is_met)
}

fn run(args: &Args) -> Result<Report, Error> {
    interrupt::on_signals().map_err(|error| Error::Start { program: "goodput".to_owned(), error })?;
    let mut plan = Plan {
        heads: &["loss %", "sender to receiver"],
        values: &[("median Mbit/s", 2), ("frames lost %", 2)],
        jobs: Vec::new(),
        required: Vec::new(),
        legend: format!(
            "path: {PATH}, losing {}; kernel: {CONGESTION}; linerate: {OPTIONS}",
            if args.both_ways { "both ways" } else { "data only" }
        ),
    };
    for loss in LOSSES {
        for (name, by_kernel, to_kernel) in PAIRS {
            plan.jobs.push(Job::new(format!("loss {loss} %, {name}"), move |round| {
                Ok(vec![Row::new(&[loss, name], &measure(args, loss, round, by_kernel, to_kernel)?)])
            }));
        }
        plan.required.push(Required::new(
            format!("loss {loss} %: Linerate's goodput as sender, to Linux'"),
            Bound::AtLeast(REQUIRED),
            move |round| Some(round.value(&[loss, SENDER], 0)? / round.value(&[loss, LINUX], 0)?),
        ));
    }
    let _first = raise_priority();
    rounds::measure(&plan, &args.rounds)
}

/// Fields used from the output of `linerate chargen load --json`.
#[derive(Deserialize)]
struct Loaded {
    seconds: f64,
    bytes_down: f64,
}

/// Returns the goodput in 10⁶ bits per second on a new path with new hosts, and the percentage of lost frames.
fn measure(args: &Args, loss: &str, round: u32, by_kernel: bool, to_kernel: bool) -> Result<[f64; 2], Error> {
    let lossy = format!("{PATH},loss={loss}%");
    let path = Path::new(&PathConfig {
        impair: impair()?,
        back: if args.both_ways { lossy.clone() } else { PATH.to_owned() },
        forth: lossy,
        seed: (1 + round).into(),
        core: Some(args.rounds.cores.server),
    })?;
    let sender = SocketAddr::new(path.near().ip(args.ipv6), 19);
    let mut server = chargen(args, path.near(), by_kernel, &format!("serve --listen {sender}"))?;
    server.wait_for_line("ready")?;
    let time = args.rounds.duration();
    let load = format!("load --json --connect {sender} --warm-up 0 --duration {}ms", time.as_millis());
    let load = chargen(args, path.far(), to_kernel, &load)?;
    let command = load.command().to_owned();
    let printed = load.output(time + 2 * TIMEOUT)?;
    server.stop()?;
    let stats = path.stop()?;
    if let Some(doubt) = doubt(&stats) {
        eprintln!("{doubt}");
    }
    match serde_json::from_str::<Loaded>(&printed) {
        Ok(Loaded { seconds, bytes_down }) => {
            Ok([bytes_down * 8.0 / 1e6 / seconds, 100.0 * stats.forth.lost as f64 / stats.forth.received.max(1) as f64])
        }
        Err(_) => Err(Error::Unexpected { command, printed }),
    }
}

/// Starts a chargen server or load on `host` over its kernel, or over AF_XDP.
fn chargen(args: &Args, host: &Host, over_kernel: bool, words: &str) -> Result<Process, Error> {
    let mut command = host.command(&linerate()?);
    command.arg("chargen").args(words.split_whitespace()).arg(format!("--cores={}", args.rounds.cores.load));
    if over_kernel {
        host.address()?;
        // A namespace may not change its default, which is the host's, but its routes have their own.
        let interface = host.interface();
        host.namespace().ip(&format!("route change 10.99.0.0/24 dev {interface} congctl {CONGESTION}"))?;
        host.namespace().ip(&format!("-6 route add fd99::/64 dev {interface} metric 1 congctl {CONGESTION}"))?;
        command.args(["--via", "kernel"]);
    } else {
        command.args(host.via_args()).args(OPTIONS.split_whitespace());
    }
    Process::start(command)
}

/// Returns the reason why the path of a measurement may differ from the requested one.
fn doubt(stats: &PathStats) -> Option<String> {
    if stats.stray > 0 {
        return Some(format!("{} frames were lost in addition to the requested loss", stats.stray));
    }
    let late = [stats.forth.late_us.p99, stats.back.late_us.p99, stats.pauses_us.p99];
    let late = late.into_iter().fold(0.0, f64::max);
    (late > LATE).then(|| format!("one frame in a hundred was {late:.0} µs or more late"))
}
