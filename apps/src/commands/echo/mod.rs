//! `linerate echo`.

mod udp;

use super::shared::load::Work;
use super::shared::{self, ECHO_ADDRESS, LoadArgs, OpenArgs, ServeArgs, TimesArgs, WorkArgs};
use crate::error::Error;
use linerate::units::{format_size, parse_size};
use linerate_load::report::{ConnectsReport, EchoReport, IncastReport, OpenReport, PortWaitsReport};
use linerate_load::services::{Busy, Echo};
use linerate_load::{ConnectPlan, Connects, EchoLoad, FlightPlan, Incast};
use linerate_service::WorkerCtx;

/// Minimum number of additional connections that may be closing while others are opened.
const CLOSING: u32 = 32;

/// Subcommands of `linerate echo`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run an echo server over TCP and UDP
    Serve(EchoServeArgs),
    /// Send requests to an echo server, verify every byte of the replies, and measure round-trip times
    Load(EchoLoadArgs),
}

/// Arguments of `linerate echo serve`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("listen", |arg| arg.default_value(ECHO_ADDRESS)))]
pub struct EchoServeArgs {
    #[command(flatten)]
    serve: ServeArgs,

    #[command(flatten)]
    work: WorkArgs,
}

/// Arguments of `linerate echo load`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("connect", |arg| arg.default_value(ECHO_ADDRESS)))]
pub struct EchoLoadArgs {
    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    times: TimesArgs,

    #[command(flatten)]
    open: OpenArgs,

    /// Request size in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value = format_size(FlightPlan::default().size as u64),
        value_parser = parse_size,
        help_heading = "Load",
    )]
    size: usize,

    /// Open and close a connection for each request. --connections is the number of simultaneous connections; the RTT
    /// includes the handshake. A connection waits if no local port is free
    #[arg(long, conflicts_with_all = ["rate", "arrivals", "depth"], help_heading = "Load")]
    reconnect: bool,

    /// Send one request on all connections of a worker at once, and the next when all are answered. The RTT is the time
    /// until the last answer
    #[arg(long, conflicts_with_all = ["rate", "arrivals", "depth", "reconnect", "udp"], help_heading = "Load")]
    incast: bool,

    /// Use UDP. Each connection is a local port; a request without a reply within 100 ms is lost (one worker only)
    #[arg(long, conflicts_with_all = ["reconnect"], help_heading = "Load")]
    udp: bool,
}

/// Runs `linerate echo`. A server prints `other_networks`, if its network was not chosen.
pub fn run(command: Command, other_networks: Option<&str>) -> Result<(), Error> {
    match command {
        Command::Serve(EchoServeArgs { serve, work }) => match work.time() {
            None => shared::serve::serve("echo", &serve, true, other_networks, |_| Echo).map(|_| ()),
            Some(time) => {
                let busy = move |ctx: WorkerCtx<_>| Busy::new(Echo, time, ctx.worker as u64);
                shared::serve::serve("echo", &serve, true, other_networks, busy).map(|_| ())
            }
        },
        Command::Load(args) if args.udp => udp::run(&args.load, &args.times, args.size, &args.open),
        Command::Load(args) => {
            args.times.check(&args.load)?;
            if args.reconnect {
                return reconnect(&args);
            }
            if args.incast {
                return incast(&args);
            }
            let (size, depth, open) = (args.size, args.open.depth(), args.open.plan());
            let make = move || EchoLoad::new(size, depth, open);
            let mut load = shared::load::run(&args.load, Work::in_unit("requests"), make)?;
            let requests = load.traffic.iter().map(EchoLoad::requests).sum::<u64>();
            let times = load.traffic.iter().map(EchoLoad::times).sum();
            let all = load.report(requests, requests * size as u64, &times, args.times.histogram);
            let paces = load.traffic.iter().filter_map(EchoLoad::pace);
            let open = open.map(|open| OpenReport::new(open, requests, paces));
            shared::load::print(&args.load, EchoReport { all, open, datagrams: None }, load, None)
        }
    }
}

/// Runs the load with requests on all connections at once.
fn incast(args: &EchoLoadArgs) -> Result<(), Error> {
    let size = args.size;
    let mut load = shared::load::run(&args.load, Work::in_unit("requests"), move || Incast::new(size))?;
    let requests = load.traffic.iter().map(Incast::requests).sum::<u64>();
    let times = load.traffic.iter().map(Incast::times).sum();
    let all = load.report(requests, requests * size as u64, &times, args.times.histogram);
    shared::load::print(&args.load, IncastReport { all }, load, None)
}

/// Runs the load with one connection per request.
fn reconnect(args: &EchoLoadArgs) -> Result<(), Error> {
    let each = ConnectPlan { request: args.size, most: u64::MAX };
    // Closing connections also count.
    let opening = args.load.connections.max(CLOSING) * 2;
    let mut load = shared::load::run_parts(
        &args.load,
        opening,
        Work::in_unit("connections"),
        move |plan, barrier, worker, workers| Connects::new(plan, barrier, worker, workers, each),
    )?;
    let requests = load.traffic.iter().map(|traffic| traffic.connections).sum::<u64>();
    let times = load.traffic.iter().map(|traffic| &traffic.times).sum();
    let all = load.report(requests, requests * args.size as u64, &times, args.times.histogram);
    let first = load.reason.map(|reason| reason.to_string());
    let port_waits = PortWaitsReport::new(load.traffic.iter().map(|traffic| traffic.port_waits));
    let report = ConnectsReport { connections: all.rate, all, port_waits };
    shared::load::print(&args.load, report, load, first)
}
