//! Shared part of all load commands: runs a load, watches its progress, and prints the report.

use super::partial::{Interruption, print_report};
use super::tls::TlsLoadArgs;
use super::{SummaryReport, signals};
use crate::error::Error;
use crate::inspect::IntrospectionArgs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linerate::RunContext;
use linerate::units::{format_duration, parse_address, parse_duration, parse_duration_or_none};
use linerate::{CorePlacement, NetConfig, Network, NetworkBuilder};
use linerate_bypass::Via;
use linerate_load::report::{BulkReport, Report};
use linerate_load::{
    Arrivals, Barrier, Bulk, Direction, Errors, Load, OpenLoop, Plan, Times, Traffic, WorkerLoad, allocate_payload,
};
use linerate_service::{ConnectError, Stop};
use serde::Serialize;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Interval of checking the load and updating the progress line.
const TICK: Duration = Duration::from_millis(5);
/// Time limit for opening connections, plus one millisecond per connection.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// Time limit without a reply while the server is prepared.
const PREPARING_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for peers to close after the measurement.
const DRAINING_LIMIT: Duration = Duration::from_secs(3);

/// Arguments of every load command.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Address or host name, and port, of the server
    #[arg(long, value_name = "ADDR:PORT", required = false, value_parser = parse_address, display_order = 1)]
    pub connect: SocketAddr,

    /// Number of consecutive server ports, beginning with the port of --connect, used in turn. One local address allows
    /// 64512 connections to each port
    #[arg(
        long,
        value_name = "N",
        default_value_t = Plan::default().ports,
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Load",
    )]
    ports: u16,

    /// Number of connections, distributed over the workers
    #[arg(
        long,
        value_name = "N",
        default_value_t = Plan::default().connections as u32,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        help_heading = "Load",
    )]
    pub connections: u32,

    /// Time before the measurement in which traffic is sent but not counted: 500ms, 5s, 2m
    #[arg(
        long,
        value_name = "TIME",
        default_value = format_duration(Plan::default().warm_up),
        value_parser = parse_duration_or_none,
        help_heading = "Load",
    )]
    pub warm_up: Duration,

    /// Measurement time, after all connections are open: 500ms, 5s, 2m
    #[arg(
        long,
        value_name = "TIME",
        default_value = format_duration(Plan::default().duration),
        value_parser = parse_duration,
        help_heading = "Load",
    )]
    pub duration: Duration,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// TLS options.
    #[command(flatten)]
    pub tls: TlsLoadArgs,

    /// Introspection options.
    #[command(flatten)]
    pub introspection: IntrospectionArgs,

    /// Network options.
    #[command(flatten)]
    pub net: NetConfig,
}

/// Arguments of loads that measure request times.
#[derive(Debug, clap::Args)]
pub struct TimesArgs {
    /// Include the histogram of request times with --json: [[upper end of a bucket in µs, requests], …]
    #[arg(long, help_heading = "Load")]
    pub histogram: bool,
}

impl TimesArgs {
    /// Checks the arguments against those of `load`.
    pub fn check(&self, load: &LoadArgs) -> Result<(), Error> {
        if self.histogram && !load.json {
            return Err(Error::Usage("--histogram: part of the JSON output: add --json".to_owned()));
        }
        Ok(())
    }
}

/// Arguments of loads that support an open loop.
#[derive(Debug, clap::Args)]
pub struct OpenArgs {
    /// Send at this total rate in requests per second, whether or not replies arrive, and measure from the intended
    /// send time [default: closed loop]
    #[arg(long, value_name = "REQUESTS", value_parser = parse_rate, help_heading = "Load")]
    rate: Option<f64>,

    /// Arrival process of --rate: poisson (random, like many clients) or even (constant intervals) [default: poisson]
    #[arg(long, value_enum, value_name = "HOW", requires = "rate", hide_possible_values = true, help_heading = "Load")]
    arrivals: Option<Arrivals>,

    /// Requests in flight per connection; with --rate, the maximum [default: 1; with --rate 64]
    #[arg(
        long,
        value_name = "REQUESTS",
        value_parser = clap::value_parser!(u16).range(1..=4096),
        help_heading = "Load",
    )]
    depth: Option<u16>,
}

impl OpenArgs {
    /// Returns the open loop, if --rate is given.
    pub fn plan(&self) -> Option<OpenLoop> {
        self.rate.map(|rate| OpenLoop { rate, arrivals: self.arrivals.unwrap_or_default() })
    }

    /// Returns the number of requests in flight per connection.
    pub fn depth(&self) -> usize {
        let default = if self.rate.is_some() { OpenLoop::DEPTH } else { 1 };
        self.depth.map_or(default, usize::from)
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1e9).contains(rate));
    rate.ok_or_else(|| "give requests per second, such as 50000".to_owned())
}

impl LoadArgs {
    /// Checks that the local addresses have enough ports for the connections.
    fn check_local_ports(&self) -> Result<(), Error> {
        let Some(ports) = self.net.local_ports() else { return Ok(()) };
        let remedy = match self.net.via {
            Via::Kernel => "or widen net.ipv4.ip_local_port_range by sysctl",
            _ if self.net.uses_kernel_addresses() || self.net.outgoing_ports.is_some() => "or widen --outgoing-ports",
            _ => "or give further source addresses by --ip and --from",
        };
        let sources = self.net.from.iter().filter(|ip| ip.is_ipv4() == self.connect.is_ipv4()).count();
        let most = ports.count() as u64 * sources.max(1) as u64 * u64::from(self.ports);
        if u64::from(self.connections) <= most {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "--connections {}: the source addresses have {most} ports for the server's {}: use up to {most}, let the \
             server listen on further ports and give their number by --ports, {remedy}",
            self.connections,
            if self.ports == 1 { "port".to_owned() } else { format!("{} ports", self.ports) },
        )))
    }

    /// Returns the parameters of the load.
    fn plan(&self) -> Plan {
        let LoadArgs { connect: remote, ports, warm_up, duration, .. } = *self;
        Plan { remote, ports, connections: self.connections as usize, warm_up, duration }
    }
}

/// Results of all workers of a load.
pub struct Measured<T> {
    /// Traffic of each worker.
    pub traffic: Vec<T>,
    pub errors: Errors,
    /// Measurement time.
    pub measured: Duration,
    /// Basis of the measurement.
    pub context: RunContext,
    /// Set if a signal ended the measurement early.
    pub interruption: Option<Interruption>,
    /// Error of the last connection that could not be opened.
    pub reason: Option<ConnectError>,
}

impl<T> Measured<T> {
    /// Creates the report of `requests` with `bytes` of payload, and counts the stalled requests of `times` as errors.
    pub fn report(&mut self, requests: u64, bytes: u64, times: &Times, histogram: bool) -> Report {
        self.errors.stalled = times.stalled();
        Report::new(requests, self.measured, bytes, self.errors.total(), times, histogram)
    }
}

/// Work that a progress line shows.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Unit of progress.
    pub unit: &'static str,
    /// Number of keys that are set before the measurement.
    pub keys: u64,
}

impl Work {
    /// Returns work in `unit` without keys.
    pub fn in_unit(unit: &'static str) -> Work {
        Work { unit, keys: 0 }
    }
}

/// Runs a load until it ends or a signal arrives.
pub fn run<T: Traffic>(
    args: &LoadArgs,
    work: Work,
    traffic: impl Fn() -> T + Send + Sync + 'static,
) -> Result<Measured<T>, Error> {
    run_parts(args, args.connections, work, move |plan, barrier, worker, workers| {
        Load::new(plan, barrier, worker, workers, traffic())
    })
}

/// Like [`run`], with parts created by `make` from the plan, the barrier, the worker number and the number of workers.
/// `opening` is the maximum number of simultaneous connections, including closing ones.
pub fn run_parts<P: WorkerLoad>(
    args: &LoadArgs,
    opening: u32,
    work: Work,
    make: impl Fn(&Plan, Arc<Barrier>, usize, usize) -> P + Send + Sync + 'static,
) -> Result<Measured<P::Traffic>, Error> {
    let interrupted = signals::interrupted().map_err(Error::Signals)?;
    args.net.check_remote(args.connect)?;
    let plan = args.plan();
    plan.check()?;
    args.check_local_ports()?;
    let builder = Network::builder().config(args.net.for_client(opening)).core_placement(CorePlacement::Last);
    let builder = args.tls.config()?.into_iter().fold(builder, NetworkBuilder::tls);
    let network = builder.stop(interrupted.clone()).build()?;
    allocate_payload(&network, &args.net.via);
    let context = network.run_context();
    let barrier = Arc::new(Barrier::new(network.workers(), plan.connections));
    let _serving = args.introspection.serve(&network.stats_client(), network.workers())?;
    let running = {
        let (plan, barrier) = (plan.clone(), barrier.clone());
        network.start(move |ctx| make(&plan, barrier.clone(), ctx.worker, ctx.workers), Stop::default())?
    };
    let mut watch = Watch::new(&plan, &barrier, work);
    while !running.is_finished() && !watch.is_done(&interrupted) {
        thread::sleep(TICK);
    }
    watch.progress.finish_and_clear();
    let stalled = watch.stalled;
    running.stop();
    let opened = barrier.opened();
    let unopened = plan.connections - opened - barrier.failed();

    let (traffic, errors, measured) = (Vec::new(), Errors::default(), Duration::ZERO);
    let mut all = Measured { traffic, errors, measured, context, interruption: None, reason: None };
    let (loads, counted) = running.join()?;
    tracing::info!("{}", SummaryReport::new(&counted, &args.net.via));
    for load in loads {
        let outcome = load.into_outcome();
        all.traffic.push(outcome.traffic);
        all.errors += outcome.errors;
        all.measured = all.measured.max(outcome.measured);
        all.reason = all.reason.or(outcome.last_failure);
    }
    all.interruption = Interruption::check(interrupted.is_stopped(), all.measured, plan.duration)?;
    if opened == 0 {
        return Err(Error::no_connection(plan.remote, all.reason));
    }
    if stalled {
        return Err(Error::Stalled { remote: plan.remote, limit: PREPARING_LIMIT });
    }
    all.errors.unopened += unopened as u64;
    Ok(all)
}

/// Prints the report. Returns an error if the load was interrupted or had errors; `first` describes the first error.
pub fn print<T>(
    args: &LoadArgs,
    report: impl Display + Serialize,
    measured: Measured<T>,
    first: Option<String>,
) -> Result<(), Error> {
    let Measured { errors, context, interruption, .. } = measured;
    print_report(args.json, report, context, interruption)?;
    if errors.total() == 0 { Ok(()) } else { Err(Error::Load { errors, first }) }
}

/// Runs a bulk load and prints its report.
pub fn run_bulk(args: &LoadArgs, direction: Direction) -> Result<(), Error> {
    let load = run(args, Work::in_unit("bytes"), move || Bulk::new(direction))?;
    let up = load.traffic.iter().map(Bulk::up).sum();
    let down = load.traffic.iter().map(Bulk::down).sum();
    print(args, BulkReport::new(up, down, load.measured, load.errors.total()), load, None)
}

/// Supervision of a load: starts the measurement, shows progress, and detects the end.
struct Watch<'a> {
    plan: &'a Plan,
    barrier: &'a Barrier,
    work: Work,
    progress: ProgressBar,
    started: Instant,
    /// Time of the last observed preparation progress, and the progress.
    preparing: Option<(Instant, u64)>,
    stalled: bool,
    /// Start of the measurement, after the warm-up.
    began: Option<Instant>,
    /// Set once workers were observed to be stopped.
    stopped: bool,
    /// Deadline for workers to end.
    give_up: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn new(plan: &'a Plan, barrier: &'a Barrier, work: Work) -> Self {
        let progress = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {wide_msg}");
        progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Watch {
            plan,
            barrier,
            work,
            progress,
            started: Instant::now(),
            preparing: None,
            stalled: false,
            began: None,
            stopped: false,
            give_up: None,
        }
    }

    /// Shows `done` of `all` steps, with a message.
    fn show(&self, done: u64, all: u64, message: String) {
        self.progress.set_length(all);
        self.progress.set_position(done.min(all));
        self.progress.set_message(message);
    }

    fn is_done(&mut self, interrupted: &Stop) -> bool {
        let now = Instant::now();
        if interrupted.is_stopped() {
            self.barrier.stop();
        }
        if self.barrier.is_stopped() && !self.stopped {
            self.stopped = true;
            let end = now + DRAINING_LIMIT;
            self.give_up = Some(self.give_up.map_or(end, |before| before.min(end)));
        }
        let millis = |time: Duration| time.as_millis() as u64;
        match self.began {
            None => self.advance_to_measurement(now),
            Some(began) if now < began => {
                let warm_up = self.plan.warm_up;
                self.show(millis(warm_up.saturating_sub(began - now)), millis(warm_up), "warming up".to_owned());
            }
            Some(began) => {
                let (time, duration) = (now - began, self.plan.duration);
                let rate = self.barrier.total_progress() as f64 / time.as_secs_f64().max(0.001);
                let (seconds, of) = (time.as_secs_f64(), duration.as_secs_f64());
                let message = format!("{seconds:.1} of {of:.1} s, {rate:.0} {}/s", self.work.unit);
                self.show(millis(time), millis(duration), message);
            }
        }
        self.progress.tick();
        self.barrier.all_done() || self.give_up.is_some_and(|end| now > end)
    }

    /// Waits until connections are open and the server is prepared, and then starts the workers.
    fn advance_to_measurement(&mut self, now: Instant) {
        let Some((seen, done)) = &mut self.preparing else {
            let limit = OPENING_LIMIT + Duration::from_millis(self.plan.connections as u64);
            if self.barrier.all_decided() || now > self.started + limit {
                if self.barrier.opened() == 0 {
                    self.give_up = Some(self.started);
                } else {
                    tracing::info!("{} connections are open", self.barrier.opened());
                    self.barrier.prepare();
                    self.preparing = Some((now, 0));
                    self.begin_if_prepared(now);
                }
            }
            let (opened, all) = (self.barrier.opened() as u64, self.plan.connections as u64);
            self.show(opened, all, format!("{opened} of {all} connections"));
            return;
        };
        let progress = self.barrier.total_progress();
        if progress != *done {
            (*seen, *done) = (now, progress);
        } else if now > *seen + PREPARING_LIMIT && !self.barrier.is_stopped() {
            self.stalled = true;
            self.barrier.stop();
        }
        let keys = self.work.keys;
        self.show(progress, keys, format!("loading keys: {progress} of {keys}"));
        self.begin_if_prepared(now);
    }

    fn begin_if_prepared(&mut self, now: Instant) {
        if self.barrier.all_prepared() && !self.barrier.is_stopped() {
            tracing::info!("{}", if self.plan.warm_up.is_zero() { "measuring" } else { "warming up" });
            self.barrier.begin();
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
    fn progress_covers_each_phase() {
        let plan = Plan { connections: 10, warm_up: Duration::from_secs(3600), ..Plan::default() };
        let barrier = Barrier::new(1, plan.connections);
        let mut watch = Watch::new(&plan, &barrier, Work { unit: "requests", keys: 500 });
        watch.progress.set_draw_target(ProgressDrawTarget::hidden());
        let mut seen = || {
            assert!(!watch.is_done(&Stop::default()));
            (watch.progress.position(), watch.progress.length().unwrap(), watch.progress.message())
        };
        (0..3).for_each(|_| barrier.connection_opened());
        assert_eq!(seen(), (3, 10, "3 of 10 connections".to_owned()));
        (0..7).for_each(|_| barrier.connection_opened());
        assert_eq!(seen(), (10, 10, "10 of 10 connections".to_owned()));
        barrier.progress(0, 40);
        assert_eq!(seen(), (40, 500, "loading keys: 40 of 500".to_owned()));
        barrier.worker_prepared();
        seen();
        assert_eq!((seen().1, seen().2), (3_600_000, "warming up".to_owned()));
    }

    #[test]
    fn rate_is_bounded() {
        assert_eq!(parse_rate("50000"), Ok(50_000.0));
        for text in ["", "-1", "0", "NaN", "inf", "1e10"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
