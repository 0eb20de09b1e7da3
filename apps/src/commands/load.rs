//! What all load commands share: running a load, watching over it, and telling what came out.

use crate::error::Error;
use crate::inspect::IntrospectionArgs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linerate_bypass::ConnectError;
use linerate_load::report::BulkReport;
use linerate_load::{Arrivals, Board, Bulk, Direction, Errors, Load, OpenLoop, Part, Plan, Traffic};
use linerate_net::Shown;
use linerate_net::process::output::print_line;
use linerate_net::process::signals;
use linerate_net::units::{parse_address, parse_duration, parse_duration_or_none};
use linerate_net::{Basis, Over};
use linerate_net::{Listen, NetArgs, Network, Place};
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

    /// On how many ports the server listens, from that of --connect on: connections go to them in turn, of which there can be 64512 to
    /// each from one address
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    ports: u16,

    /// How many connections, spread over the workers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,

    /// How long to send as while measuring, before what is sent counts: 500ms, 5s, 2m
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration_or_none)]
    warm_up: Duration,

    /// How long to measure, once all connections are open: 500ms, 5s, 2m
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    duration: Duration,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Who may look in while it runs.
    #[command(flatten)]
    pub introspection: IntrospectionArgs,
}

/// What load commands take that measure how long requests take.
#[derive(Debug, clap::Args)]
pub struct TimesArgs {
    /// Print all times too, not only percentiles: with --json, [[upper end of a bucket in µs, requests], …]
    #[arg(long)]
    pub histogram: bool,
}

impl TimesArgs {
    /// What they say against those of `load`.
    pub fn check(&self, load: &LoadArgs) -> Result<(), Error> {
        if self.histogram && !load.json {
            return Err(Error::Usage("--histogram: it is a part of the JSON object: give --json too".to_owned()));
        }
        Ok(())
    }
}

/// Requests that may be on the way on each connection of an open loop, unless said otherwise: enough that a server that is behind,
/// and not the load, decides what waits, for as long as it is not far behind.
const OPEN_DEPTH: u16 = 64;

/// What load commands take that can be open loops.
#[derive(Debug, clap::Args)]
pub struct OpenArgs {
    /// Send so many requests a second in all, whether or not they are answered in time, and count their times from when
    /// they were due [default: as many as are answered]
    #[arg(long, value_name = "REQUESTS", value_parser = parse_rate)]
    rate: Option<f64>,

    /// How the requests of --rate follow each other: poisson, by chance as those of many clients do, or even, at equal distances
    /// [default: poisson]
    #[arg(long, value_enum, value_name = "HOW", requires = "rate", hide_possible_values = true)]
    arrivals: Option<Arrivals>,

    /// Requests on the way on each connection; with --rate, as many as there may be [default: 1; with --rate 64]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: Option<u16>,
}

impl OpenArgs {
    /// The open loop, if it is one.
    pub fn plan(&self) -> Option<OpenLoop> {
        self.rate.map(|rate| OpenLoop { rate, arrivals: self.arrivals.unwrap_or_default() })
    }

    /// Requests on the way on each connection.
    pub fn depth(&self) -> usize {
        self.depth.unwrap_or(if self.rate.is_some() { OPEN_DEPTH } else { 1 }).into()
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1e9).contains(rate));
    rate.ok_or_else(|| "write a number of requests a second, such as 50000".to_owned())
}

impl LoadArgs {
    /// How long to measure.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// How long requests are sent before they count.
    pub fn warm_up(&self) -> Duration {
        self.warm_up
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
    /// What it was measured over.
    pub basis: Basis,
    /// Why the last connection that could not be opened could not.
    pub why: Option<ConnectError>,
}

/// Runs a load whose progress is counted in `unit`, until its time is over or a signal comes.
pub fn run<T: Traffic>(
    args: &LoadArgs,
    unit: &str,
    traffic: impl Fn() -> T + Send + Sync + 'static,
) -> Result<Measured<T>, Error> {
    run_parts(args, args.connections, unit, move |plan, board, worker, workers| {
        Load::new(plan, board, worker, workers, traffic())
    })
}

/// The same with parts that `make` makes of the plan, the board, a worker and how many there are, and that have up to `opening`
/// connections at a time, those included that are being closed.
pub fn run_parts<P: Part>(
    args: &LoadArgs,
    opening: u32,
    unit: &str,
    make: impl Fn(&Plan, Arc<Board>, usize, usize) -> P + Send + Sync + 'static,
) -> Result<Measured<P::Traffic>, Error> {
    let interrupted = signals::stop_flag().map_err(Error::Signals)?;
    args.net.check_remote(args.connect)?;
    if args.connect.port().checked_add(args.ports - 1).is_none() {
        return Err(Error::Usage(format!("--ports {}: there are not so many from {} on", args.ports, args.connect)));
    }
    let network = Network::open(&args.net.opening(opening), &Listen::default(), Place::Last, &interrupted)?;
    let basis = network.basis();
    let (ports, connections, warm_up) = (args.ports, args.connections as usize, args.warm_up);
    let plan = Plan { remote: args.connect, ports, connections, warm_up, duration: args.duration };
    let board = Arc::new(Board::new(network.workers(), plan.connections));
    let stop = Arc::new(AtomicBool::new(false));
    let _serving = args.introspection.serve(&network.way(), network.workers())?;
    let running = {
        let (plan, board) = (plan.clone(), board.clone());
        network.start(move |seat| make(&plan, board.clone(), seat.worker, seat.workers), stop.clone())?
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

    let (traffic, errors, measured) = (Vec::new(), Errors::default(), Duration::ZERO);
    let mut all = Measured { traffic, errors, measured, basis, why: None };
    let (loads, counted) = running.join()?;
    tracing::info!("{}", Shown::from(&counted));
    for load in loads {
        let outcome = load.into_outcome();
        all.traffic.push(outcome.traffic);
        all.errors += outcome.errors;
        all.measured = all.measured.max(outcome.measured);
        all.why = all.why.or(outcome.last_failure);
    }
    if opened == 0 {
        return Err(Error::NoConnection { remote: plan.remote, why: all.why });
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
    let Measured { errors, basis, .. } = measured;
    let report = Over { result: report, basis };
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
    /// When measuring began, or will when all is warm.
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
            Some(began) if now < began => self.progress.set_message("warming up"),
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
            tracing::info!("{}", if self.plan.warm_up.is_zero() { "measuring" } else { "warming up" });
            self.board.begin();
            let began = now + self.plan.warm_up;
            self.began = Some(began);
            self.give_up.get_or_insert(began + self.plan.duration + DRAINING_LIMIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_bounds() {
        assert_eq!(parse_rate("50000"), Ok(50_000.0));
        for text in ["", "-1", "0", "NaN", "inf", "1e10"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
