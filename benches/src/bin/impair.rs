//! Network emulator for machines whose kernel has none: connects two ports by a bridge that delays, loses and reorders
//! frames.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::impair::path::{Direction, PathStats, Percentiles};
use linerate_benches::impair::{Bridge, BridgeConfig, BridgeStats, spec};
use linerate_benches::priority::raise_priority;
use linerate_benches::transfer::pin;
use linerate_bypass::dpdk::{Drops, Eal, EalConfig, Port, PortConfig};
use linerate_bypass::memory_nic::Impairments;
use linerate_bypass::{Nic, Via};
use linerate_harness::interrupt::{self, is_interrupted};
use linerate_service::time::{Clock, Duration};
use rustix::thread::set_current_timer_slack;
use std::error::Error;
use std::io::Write;
use std::num::NonZeroU64;
use std::process::ExitCode;

/// Sleep time of an idle bridge: the maximum delay before it sees a frame.
const NAP: Duration = Duration::from_micros(50);
/// Permitted extension of a sleep by the kernel. Its default equals the sleep time.
const SLACK: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
/// Maximum number of frames in flight in each direction.
const FRAMES: usize = 8192;

/// Connect two ports by a bridge that impairs the frames between them, until a signal arrives, and print the statistics
/// as one JSON object
///
/// Kernel interfaces at its ends must send complete frames: turn off checksum and segmentation offload at the far end
/// of each veth pair (ethtool -K IFACE tx off tso off gso off gro off).
#[derive(Parser)]
#[command(after_help = format!("An impairment SPEC is a list of {}.", spec::NAMES))]
struct Args {
    /// First port: af_xdp:INTERFACE, tap:INTERFACE or a socket, in the syntax of linerate --via
    #[arg(long, value_name = "NET")]
    a: Via,

    /// Second port
    #[arg(long, value_name = "NET")]
    b: Via,

    /// Impairments from the first port to the second
    #[arg(long, value_name = "SPEC", value_parser = spec::parse, default_value = "")]
    a_to_b: Impairments,

    /// Impairments from the second port to the first
    #[arg(long, value_name = "SPEC", value_parser = spec::parse, default_value = "")]
    b_to_a: Impairments,

    /// Random seed: equal seeds impair equal frames alike
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Core of the bridge
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
}

/// Returns the statistics of a direction. `drops` are those of the receiving port.
fn direction(crossed: &BridgeStats, drops: Drops) -> Direction {
    Direction {
        received: crossed.received,
        sent: crossed.sent,
        lost: crossed.impaired.lost,
        queue_full: crossed.impaired.queue_full,
        no_room: crossed.no_room + crossed.impaired.no_packet,
        not_sendable: crossed.not_sendable,
        not_received: drops.rx_missed + drops.rx_errors + drops.rx_no_mbuf,
        late_us: Percentiles::from_nanos(&crossed.late_nanos),
    }
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("impair: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    interrupt::on_signals()?;
    let _first = raise_priority();
    if let Some(core) = args.core {
        pin(core).map_err(|error| format!("cannot run on core {core}: {error}"))?;
    }
    let eal = Eal::start(&EalConfig::for_via(&args.a, Vec::new()))?;
    let open = |via: &Via| {
        let config = PortConfig { stop: interrupt::flag().into(), ..PortConfig::default() };
        Port::open(&eal, via, config)
    };
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let (Some(queue_a), Some(queue_b)) = (a.take_queues().pop(), b.take_queues().pop()) else {
        return Err("a port has no queue".into());
    };
    let _known_to_eal = eal.register_thread()?;
    let [a_to_b, b_to_a] = [args.a_to_b, args.b_to_a].map(|one| Impairments { seed: args.seed, ..one });
    let mut bridge = Bridge::new(queue_a, queue_b, BridgeConfig { a_to_b, b_to_a, frames: FRAMES });
    println!("ready impair between {} and {}", args.a, args.b);
    std::io::stdout().flush()?;
    forward(&mut bridge);
    let (a_to_b, b_to_a) = bridge.crossed();
    let stats = PathStats {
        forth: direction(&a_to_b, a.drops()),
        back: direction(&b_to_a, b.drops()),
        pauses_us: Percentiles::from_nanos(bridge.pauses_nanos()),
        stray: 0,
    };
    println!("{}", serde_json::to_string(&stats)?);
    Ok(())
}

/// Forwards frames until an interruption.
fn forward<A: Nic, B: Nic>(bridge: &mut Bridge<A, B>) {
    if let Err(error) = set_current_timer_slack(Some(SLACK)) {
        eprintln!("impair: sleeps will be longer than intended ({error})");
    }
    let clock = Clock::start();
    while !is_interrupted() {
        if !bridge.turn(clock.now()) {
            let until_due = bridge.next_due().map_or(NAP, |due| due.since(clock.now()));
            std::thread::sleep(until_due.min(NAP));
        }
    }
}
