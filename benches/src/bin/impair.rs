//! Network emulator for machines whose kernel has none: connects two ports by a bridge that delays, loses and reorders
//! frames.
#![forbid(unsafe_code)]

use clap::Parser;
use hdrhistogram::Histogram;
use linerate_benches::impair::spec::{self, Spec};
use linerate_benches::impair::{Bridge, BridgeConfig, BridgeStats};
use linerate_benches::priority::raise_priority;
use linerate_bypass::dpdk::{Drops, Eal, EalConfig, Pci, Port, PortConfig};
use linerate_bypass::memory_nic::{ImpairmentStats, Impairments};
use linerate_bypass::{Nic, Via};
use linerate_harness::interrupt::{self, is_interrupted};
use linerate_service::time::{Clock, Duration};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::num::NonZeroU64;
use std::process::ExitCode;

/// Sleep time of an idle bridge: the maximum delay before it sees a frame.
const NAP: Duration = Duration::from_micros(50);
/// Permitted extension of a sleep by the kernel. Its default equals the sleep time.
const SLACK: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

/// Connect two ports by a bridge that impairs the frames between them, until a signal arrives
///
/// Kernel interfaces at its ends must send complete frames: turn off checksum and segmentation offload at the far end
/// of each veth pair (ethtool -K IFACE tx off tso off gso off gro off).
#[derive(Parser)]
#[command(after_help = format!("An impairment SPEC is a list of {}.", spec::NAMES))]
struct Args {
    /// First port: pci:ADDRESS, af_xdp:INTERFACE, tap:INTERFACE or a socket, in the syntax of linerate --via
    #[arg(long, value_name = "NET")]
    a: Via,

    /// Second port
    #[arg(long, value_name = "NET")]
    b: Via,

    /// Impairments of both directions
    #[arg(long, value_name = "SPEC", default_value = "")]
    both: Spec,

    /// Additional impairments from the first port to the second
    #[arg(long, value_name = "SPEC", default_value = "")]
    a_to_b: Spec,

    /// Additional impairments from the second port to the first
    #[arg(long, value_name = "SPEC", default_value = "")]
    b_to_a: Spec,

    /// Random seed: equal seeds impair equal frames alike
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Maximum number of frames in flight in each direction
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    frames: u32,

    /// Never sleep: exact times, at the cost of a whole core
    #[arg(long)]
    poll: bool,

    /// Core of the bridge
    #[arg(long, value_name = "CORE", value_parser = clap::value_parser!(u32).range(..CpuSet::MAX_CPU as i64))]
    core: Option<u32>,

    /// Use an interface even if it carries this host's default route
    #[arg(long)]
    force: bool,

    /// Print the statistics as one JSON object
    #[arg(long)]
    json: bool,

    /// Arguments for EAL, after --
    #[arg(last = true, value_name = "EAL ARGS")]
    eal: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    a_to_b: Direction,
    b_to_a: Direction,
    /// Intervals between two polls of the ports.
    pauses_us: Percentiles,
}

#[derive(Serialize)]
struct Direction {
    received: u64,
    sent: u64,
    lost: u64,
    queue_full: u64,
    too_long: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    truncated: u64,
    /// Dropped because too many frames were in flight.
    no_room: u64,
    /// Dropped because the port could not send the frame.
    not_sendable: u64,
    /// Dropped by the receiving port.
    not_received: u64,
    late_us: Percentiles,
}

#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Percentiles {
    fn of_nanos(histogram: &Histogram<u64>) -> Self {
        let micros = |nanos| nanos as f64 / 1e3;
        let at = |quantile| micros(histogram.value_at_quantile(quantile));
        Percentiles { p50: at(0.5), p99: at(0.99), max: micros(histogram.max()) }
    }
}

impl Direction {
    fn new(crossed: &BridgeStats, drops: Drops) -> Self {
        let ImpairmentStats { lost, queue_full, too_long, duplicated, reordered, corrupted, truncated, .. } =
            crossed.impaired;
        Direction {
            received: crossed.received,
            sent: crossed.sent,
            lost,
            queue_full,
            too_long,
            duplicated,
            reordered,
            corrupted,
            truncated,
            no_room: crossed.no_room + crossed.impaired.no_packet,
            not_sendable: crossed.not_sendable,
            not_received: drops.rx_missed + drops.rx_errors + drops.rx_no_mbuf,
            late_us: Percentiles::of_nanos(&crossed.late_nanos),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("impair: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    interrupt::on_signals()?;
    let [a_to_b, b_to_a] = [&args.a_to_b, &args.b_to_a].map(|one| {
        let base = Impairments { seed: args.seed, ..Impairments::default() };
        one.onto(&args.both.onto(&base))
    });
    if [&args.both, &args.a_to_b, &args.b_to_a].iter().any(|spec| spec.names_queue())
        && a_to_b.rate.is_none()
        && b_to_a.rate.is_none()
    {
        return Err("a queue needs a rate: add rate=".into());
    }
    let _first = raise_priority();
    if let Some(core) = args.core {
        let mut only = CpuSet::new();
        only.set(core as usize);
        sched_setaffinity(None, &only).map_err(|error| format!("cannot run on core {core}: {error}"))?;
    }
    let eal = Eal::start(&eal_config(args))?;
    let open = |via: &Via| {
        let config = PortConfig { force: args.force, stop: interrupt::flag().into(), ..PortConfig::default() };
        Port::open(&eal, via, config)
    };
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let (Some(queue_a), Some(queue_b)) = (a.take_queues().pop(), b.take_queues().pop()) else {
        return Err("a port has no queue".into());
    };
    let _known_to_eal = eal.register_thread()?;
    let mut bridge = Bridge::new(queue_a, queue_b, BridgeConfig { a_to_b, b_to_a, frames: args.frames as usize });
    println!("ready impair between {} and {}", args.a, args.b);
    std::io::stdout().flush()?;
    forward(&mut bridge, args.poll);
    let (a_to_b, b_to_a) = bridge.crossed();
    print(
        &Report {
            a_to_b: Direction::new(&a_to_b, a.drops()),
            b_to_a: Direction::new(&b_to_a, b.drops()),
            pauses_us: Percentiles::of_nanos(bridge.pauses_nanos()),
        },
        args.json,
    )
}

/// Returns the EAL configuration for both ports.
fn eal_config(args: &Args) -> EalConfig {
    let mut config = EalConfig::for_via(&args.a, args.eal.clone());
    config.pci = match (config.pci, EalConfig::for_via(&args.b, Vec::new()).pci) {
        (Pci::Only(a), Pci::Only(b)) => Pci::Only([a, b].concat()),
        (Pci::Any, _) | (_, Pci::Any) => Pci::Any,
        (Pci::Only(some), Pci::None) | (Pci::None, Pci::Only(some)) => Pci::Only(some),
        (Pci::None, Pci::None) => Pci::None,
    };
    config
}

/// Forwards frames until an interruption.
fn forward<A: Nic, B: Nic>(bridge: &mut Bridge<A, B>, poll: bool) {
    if let Err(error) = set_current_timer_slack(Some(SLACK)) {
        eprintln!("impair: sleeps will be longer than intended ({error})");
    }
    let clock = Clock::start();
    while !is_interrupted() {
        if bridge.turn(clock.now()) {
            continue;
        }
        if poll {
            std::hint::spin_loop();
        } else {
            let until_due = bridge.next_due().map_or(NAP, |due| due.since(clock.now()));
            std::thread::sleep(until_due.min(NAP));
        }
    }
}

fn print(report: &Report, json: bool) -> Result<(), Box<dyn Error>> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    for (name, direction) in [("a to b", &report.a_to_b), ("b to a", &report.b_to_a)] {
        let counts = serde_json::to_value(direction)?;
        let counts = counts.as_object().into_iter().flatten();
        let counts: Vec<_> = counts
            .filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0))
            .map(|(name, count)| format!("{} {count}", name.replace('_', " ")))
            .collect();
        let late = &direction.late_us;
        let late = format!("sent too late by µs: p50 {:.0}, p99 {:.0}, max {:.0}", late.p50, late.p99, late.max);
        println!("{name}: {}; {late}", if counts.is_empty() { "no frames".to_owned() } else { counts.join(", ") });
    }
    let Percentiles { p50, p99, max } = report.pauses_us;
    println!("interval between polls in µs: p50 {p50:.0}, p99 {p99:.0}, max {max:.0}");
    Ok(())
}
