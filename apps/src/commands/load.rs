//! What all load commands share: running a load, watching over it, and telling what came out.

use crate::error::Error;
use crate::load::{Board, Bulk, Direction, Errors, Load, Plan, Traffic};
use crate::net::{Listen, NetArgs, Network, Place};
use crate::output::print_line;
use crate::over::{Device, Over};
use crate::report::BulkReport;
use crate::signals;
use crate::summary::Shown;
use crate::units::{parse_address, parse_duration};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often a load is looked after, and how often its progress is shown.
const TICK: Duration = Duration::from_millis(5);
/// How long connections may take to be opened: this, and a millisecond for each.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// How long a server that is prepared may answer nothing.
const PREPARING_LIMIT: Duration = Duration::from_secs(10);
/// How long peers may take to close after the measurement.
const DRAINING_LIMIT: Duration = Duration::from_secs(3);

/// What every load command takes.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Where its bytes go.
    #[command(flatten)]
    pub net: NetArgs,

    /// The server
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub connect: SocketAddr,

    /// How many connections, spread over the workers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,

    /// How long to measure, once all connections are open: 500ms, 5s, 2m
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    duration: Duration,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl LoadArgs {
    /// How long to measure.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Whether one JSON object is to be printed.
    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// What all workers of a load measured.
pub struct Measured<T> {
    /// Each worker's traffic.
    pub traffic: Vec<T>,
    /// What went wrong.
    pub errors: Errors,
    /// How long was measured.
    pub measured: Duration,
    /// The device that it was measured over.
    pub device: Option<Device>,
}

/// Runs a load whose progress is counted in `unit`, until its time is over or a signal comes.
pub fn run<T: Traffic>(
    args: &LoadArgs,
    unit: &str,
    traffic: impl Fn() -> T + Send + Sync + 'static,
) -> Result<Measured<T>, Error> {
    let interrupted = signals::stop_flag().map_err(Error::Signals)?;
    args.net.check_remote(args.connect)?;
    let network = Network::open(&args.net.opening(args.connections), &Listen::default(), Place::Last, &interrupted)?;
    let device = network.device();
    let plan = Plan { remote: args.connect, connections: args.connections as usize, duration: args.duration };
    let board = Arc::new(Board::new(network.workers(), plan.connections));
    let stop = Arc::new(AtomicBool::new(false));
    let running = {
        let (plan, board) = (plan.clone(), board.clone());
        let make = move |worker, workers| Load::new(&plan, board.clone(), worker, workers, traffic());
        network.start(move |seat| make(seat.worker, seat.workers), stop.clone())?
    };
    let mut watch = Watch::new(&plan, &board, unit);
    while !running.is_over() && !watch.is_over(&interrupted) {
        thread::sleep(TICK);
    }
    watch.progress.finish_and_clear();
    let stalled = watch.stalled;
    stop.store(true, Ordering::Relaxed);
    let opened = board.opened();
    let unopened = plan.connections - opened - board.failed();

    let mut all = Measured { traffic: Vec::new(), errors: Errors::default(), measured: Duration::ZERO, device };
    let mut why = None;
    let (loads, counted) = running.join()?;
    tracing::info!("{}", Shown::from(&counted));
    for load in loads {
        let outcome = load.into_outcome();
        all.traffic.push(outcome.traffic);
        all.errors += outcome.errors;
        all.measured = all.measured.max(outcome.measured);
        why = why.or(outcome.last_failure);
    }
    if opened == 0 {
        return Err(Error::NoConnection { remote: plan.remote, why });
    }
    if stalled {
        return Err(Error::Stalled { remote: plan.remote, limit: PREPARING_LIMIT });
    }
    all.errors.unopened += unopened as u64;
    Ok(all)
}

/// Prints `report` on what was `measured`. A load with errors is a failure all the same, of which `first` says what the first one
/// was.
pub fn print<T>(
    args: &LoadArgs,
    report: impl Display + Serialize,
    measured: Measured<T>,
    first: Option<String>,
) -> Result<(), Error> {
    let Measured { errors, device, .. } = measured;
    let report = Over { result: report, device };
    print_line(if args.json { report.json() } else { report.to_string() }).map_err(Error::Output)?;
    if errors.total() == 0 { Ok(()) } else { Err(Error::Load { errors, first }) }
}

/// Runs a bulk load and prints its report.
pub fn run_bulk(args: &LoadArgs, direction: Direction) -> Result<(), Error> {
    let load = run(args, "bytes", move || Bulk::new(direction))?;
    let up = load.traffic.iter().map(Bulk::up).sum();
    let down = load.traffic.iter().map(Bulk::down).sum();
    print(args, BulkReport::new(up, down, load.measured, load.errors.total()), load, None)
}

/// Looks after a load: lets it begin, shows how it goes on, and sees when it is over.
struct Watch<'a> {
    plan: &'a Plan,
    board: &'a Board,
    unit: &'a str,
    progress: ProgressBar,
    started: Instant,
    /// When the server was last seen to be prepared further, and how far.
    preparing: Option<(Instant, u64)>,
    stalled: bool,
    began: Option<Instant>,
    /// When draining has taken too long.
    give_up: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn new(plan: &'a Plan, board: &'a Board, unit: &'a str) -> Self {
        let progress = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        progress.set_style(ProgressStyle::default_spinner());
        Watch {
            plan,
            board,
            unit,
            progress,
            started: Instant::now(),
            preparing: None,
            stalled: false,
            began: None,
            give_up: None,
        }
    }

    fn is_over(&mut self, interrupted: &AtomicBool) -> bool {
        let now = Instant::now();
        if interrupted.load(Ordering::Relaxed) && !self.board.is_stopped() {
            self.board.stop();
            self.give_up = Some(now + DRAINING_LIMIT);
        }
        match self.began {
            None => self.lead_to_the_beginning(now),
            Some(began) => {
                let seconds = (now - began).as_secs_f64();
                let rate = self.board.total_progress() as f64 / seconds.max(0.001);
                self.progress.set_message(format!(
                    "{seconds:.1} of {:.1} s, {rate:.0} {}/s",
                    self.plan.duration.as_secs_f64(),
                    self.unit
                ));
            }
        }
        self.progress.tick();
        self.board.all_done() || self.give_up.is_some_and(|end| now > end)
    }

    /// Sees the connections opened and the server prepared, and then lets the workers begin.
    fn lead_to_the_beginning(&mut self, now: Instant) {
        let Some((seen, done)) = &mut self.preparing else {
            let limit = OPENING_LIMIT + Duration::from_millis(self.plan.connections as u64);
            if self.board.all_decided() || now > self.started + limit {
                if self.board.opened() == 0 {
                    self.give_up = Some(self.started);
                } else {
                    tracing::info!("{} connections are open", self.board.opened());
                    self.board.prepare();
                    self.preparing = Some((now, 0));
                    self.begin_when_prepared(now);
                }
            }
            self.progress.set_message(format!("{} of {} connections", self.board.opened(), self.plan.connections));
            return;
        };
        let progress = self.board.total_progress();
        if progress != *done {
            (*seen, *done) = (now, progress);
        } else if now > *seen + PREPARING_LIMIT && !self.board.is_stopped() {
            self.stalled = true;
            self.board.stop();
            self.give_up = Some(now + DRAINING_LIMIT);
        }
        self.progress.set_message(format!("preparing: {progress} {}", self.unit));
        self.begin_when_prepared(now);
    }

    fn begin_when_prepared(&mut self, now: Instant) {
        if self.board.all_prepared() && !self.board.is_stopped() {
            tracing::info!("measuring");
            self.board.begin();
            self.began = Some(now);
            self.give_up.get_or_insert(now + self.plan.duration + DRAINING_LIMIT);
        }
    }
}
