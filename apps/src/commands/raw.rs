//! `linerate raw`.

use super::shared::partial::{Interruption, print_report};
use crate::commands::shared::{SummaryReport, WithContext, signals};
use crate::error::Error;
use linerate::RunContext;
use linerate::units::{format_duration, parse_duration, parse_duration_or_none};
use linerate::{self as net, CorePlacement, FramePortConfig, FrameWorker};
use linerate_bypass::Nic;
use linerate_load::raw::{Load, Reflector, SMALLEST, summary_of};
use linerate_load::report::Report;
use linerate_load::{Counts, Errors, FlightPlan};
use linerate_process::output::{eprint_line, print_line};
use linerate_service::time::Clock;
use linerate_service::{Stop, Summary};
use std::time::Duration;

/// Subcommands of `linerate raw`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Reflect every frame with its Ethernet addresses swapped
    Reflect(ReflectArgs),
    /// Send frames to a reflector and measure throughput, loss and round-trip times
    Load(RawLoadArgs),
}

/// Arguments of `linerate raw reflect`.
#[derive(Debug, clap::Args)]
pub struct ReflectArgs {
    #[command(flatten)]
    port: FramePortConfig,

    /// Print the summary as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Arguments of `linerate raw load`.
#[derive(Debug, clap::Args)]
pub struct RawLoadArgs {
    #[command(flatten)]
    port: FramePortConfig,

    /// Frame payload in bytes, without the 14-byte Ethernet header
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = FlightPlan::default().size as u16,
        value_parser = clap::value_parser!(u16).range(SMALLEST as i64..),
        help_heading = "Load",
    )]
    size: u16,

    /// Number of frames in flight
    #[arg(
        long,
        value_name = "FRAMES",
        default_value_t = FlightPlan::default().slots as u16,
        value_parser = clap::value_parser!(u16).range(1..=4096),
        help_heading = "Load",
    )]
    depth: u16,

    /// Measurement time: 500ms, 5s, 2m
    #[arg(
        long,
        value_name = "TIME",
        default_value = format_duration(FlightPlan::default().duration),
        value_parser = parse_duration,
        help_heading = "Load",
    )]
    duration: Duration,

    /// Time before the measurement in which frames are sent but not counted: 500ms, 5s, or 0
    #[arg(
        long,
        value_name = "TIME",
        default_value = format_duration(FlightPlan::default().warm_up),
        value_parser = parse_duration_or_none,
        help_heading = "Load",
    )]
    warm_up: Duration,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Include the histogram of round-trip times: [µs, count] per bucket, with three significant digits
    #[arg(long, requires = "json", help_heading = "Load")]
    histogram: bool,
}

/// Runs `linerate raw`.
pub fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Reflect(args) => reflect(&args),
        Command::Load(args) => load(&args),
    }
}

fn reflect(args: &ReflectArgs) -> Result<(), Error> {
    let stop = signals::interrupted().map_err(Error::Signals)?;
    let ready = format!("ready raw reflect via {}, 1 worker", args.port.via);
    let mut printed = Ok(());
    let ((), total) = args.port.run(CorePlacement::First, Reflect, &stop, || printed = print_line(ready))?;
    printed.map_err(Error::Output)?;
    let summary = WithContext { result: SummaryReport::new(&total, &args.port.via), context: RunContext::default() };
    if args.json {
        return print_line(summary.json()).map_err(Error::Output);
    }
    eprint_line(summary);
    Ok(())
}

struct Reflect;

impl FrameWorker for Reflect {
    type Outcome = ();

    fn check_payload(&self, _: usize) -> Result<(), net::Error> {
        Ok(())
    }

    fn needs_link(&self) -> bool {
        false
    }

    fn run(self, nic: impl Nic, stop: &Stop) -> ((), Summary) {
        let mut reflector = Reflector::new(nic);
        while !stop.is_stopped() {
            if reflector.turn() == 0 {
                std::hint::spin_loop();
            }
        }
        let mut summary = summary_of(reflector.nic().stats());
        summary.drop_for("not reflected", reflector.unanswered());
        ((), summary)
    }
}

fn load(args: &RawLoadArgs) -> Result<(), Error> {
    let stop = signals::interrupted().map_err(Error::Signals)?;
    let mut run = [0; 8];
    getrandom::fill(&mut run).map_err(net::Error::NoRandomness)?;
    let plan = FlightPlan {
        size: args.size.into(),
        slots: args.depth.into(),
        warm_up: args.warm_up,
        duration: args.duration,
        open: None,
    };
    let worker = Send { plan, run: u64::from_ne_bytes(run) };
    let ((counts, measured), total) = args.port.run(CorePlacement::Last, worker, &stop, || ())?;
    tracing::info!("{}", SummaryReport::new(&total, &args.port.via));
    let interruption = Interruption::check(stop.is_stopped(), measured, args.duration)?;
    if measured.is_zero() {
        return Err(Error::NoReflector(args.port.via.clone()));
    }
    let Counts { answered: frames, lost, corrupt, times, .. } = counts;
    let errors = Errors { corrupt, stalled: times.stalled(), ..Errors::default() };
    let failed = lost + errors.total();
    let report = Report::new(frames, measured, frames * u64::from(args.size), failed, &times, args.histogram);
    print_report(args.json, report, RunContext::default(), interruption)?;
    if failed == 0 { Ok(()) } else { Err(Error::Datagrams { lost, errors, first: None }) }
}

struct Send {
    plan: FlightPlan,
    run: u64,
}

impl FrameWorker for Send {
    type Outcome = (Counts, Duration);

    fn check_payload(&self, mtu: usize) -> Result<(), net::Error> {
        let size = self.plan.size;
        if size <= mtu { Ok(()) } else { Err(net::Error::FrameTooLong { size, most: mtu }) }
    }

    fn needs_link(&self) -> bool {
        true
    }

    fn run(self, nic: impl Nic, stop: &Stop) -> (Self::Outcome, Summary) {
        let clock = Clock::start();
        let mut load = Load::new(nic, self.plan, self.run);
        while load.turn(clock.now()) {
            if stop.is_stopped() {
                load.flight().stop(clock.now());
            }
        }
        let (counts, measured) = load.flight().result();
        let counts = counts.clone();
        let mut summary = summary_of(load.nic().stats());
        summary.drop_for("late or duplicate", counts.late);
        summary.drop_for("foreign frame", load.foreign());
        ((counts, measured), summary)
    }
}
