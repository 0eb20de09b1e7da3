//! `linerate echo`.

use super::{LoadArgs, OpenArgs, ServeArgs, TimesArgs, WorkArgs};
use crate::error::Error;
use hdrhistogram::Histogram;
use linerate_load::report::{ConnectsReport, EchoReport, OpenReport, PortWaitsReport, Report};
use linerate_load::services::{Busy, Echo};
use linerate_load::{Connected, Connects, EchoLoad, Use};
use linerate_net::units::parse_size;

/// Connections that may be on their way to be closed, at least, while others are opened.
const CLOSING: u32 = 32;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Serve echo over TCP and UDP
    Serve(EchoServeArgs),
    /// Send requests to an echo server, check every byte that comes back, and measure the round trips
    Load(EchoLoadArgs),
}

/// `linerate echo serve`.
#[derive(Debug, clap::Args)]
pub struct EchoServeArgs {
    #[command(flatten)]
    serve: ServeArgs,

    #[command(flatten)]
    work: WorkArgs,
}

/// `linerate echo load`.
#[derive(Debug, clap::Args)]
pub struct EchoLoadArgs {
    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    times: TimesArgs,

    #[command(flatten)]
    open: OpenArgs,

    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_size)]
    size: usize,

    /// Make a connection for each request: open it, send, await the answer, close it, and open the next; --connections is how many there
    /// are at a time, and the RTT is from when the connection is asked for until the answer is there; where no local port is free, the
    /// connection waits for one
    #[arg(long, conflicts_with_all = ["rate", "arrivals", "depth"])]
    reconnect: bool,

    /// Over UDP: each connection is a port of ours, and a request without an answer in 100 ms is lost (one worker only)
    #[arg(long, conflicts_with_all = ["reconnect"])]
    udp: bool,
}

/// Runs the command.
pub fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Serve(EchoServeArgs { serve, work: WorkArgs { service_time } }) => {
            if service_time.is_zero() {
                super::serve::serve("echo", &serve, true, |_| Echo).map(|_| ())
            } else {
                super::serve::serve("echo", &serve, true, move |_| Busy::new(Echo, service_time)).map(|_| ())
            }
        }
        Command::Load(args) if args.udp => super::echo_udp::run(&args.load, &args.times, args.size, &args.open),
        Command::Load(args) => {
            args.times.check(&args.load)?;
            if args.reconnect {
                return reconnect(&args);
            }
            let (size, depth, open) = (args.size, args.open.depth(), args.open.plan());
            let load = super::load::run(&args.load, "requests", move || EchoLoad::new(size, depth, open))?;
            let mut requests = 0;
            let mut rtt_nanos = Histogram::new(3).expect("3 digits are valid");
            for traffic in &load.traffic {
                requests += traffic.requests();
                rtt_nanos += traffic.rtt_nanos();
            }
            let bytes = requests * size as u64;
            let all = Report::new(requests, load.measured, bytes, load.errors.total(), &rtt_nanos)
                .with_histogram(args.times.histogram, &rtt_nanos);
            let paces = load.traffic.iter().filter_map(EchoLoad::pace);
            let open = open.map(|open| OpenReport::new(open, requests, paces));
            super::load::print(&args.load, EchoReport { all, open, datagrams: None }, load, None)
        }
    }
}

/// Makes a connection for each request.
fn reconnect(args: &EchoLoadArgs) -> Result<(), Error> {
    let each = Use { request: args.size, most: u64::MAX };
    // Those that are being closed are there too.
    let opening = args.load.connections.max(CLOSING) * 2;
    let load = super::load::run_parts(&args.load, opening, "connections", move |plan, board, worker, workers| {
        Connects::new(plan, board, worker, workers, each)
    })?;
    let mut requests = 0;
    let mut nanos = Histogram::new(3).expect("3 digits are valid");
    for Connected { connections, nanos: of_one, .. } in &load.traffic {
        requests += connections;
        nanos += of_one;
    }
    let bytes = requests * args.size as u64;
    let all = Report::new(requests, load.measured, bytes, load.errors.total(), &nanos)
        .with_histogram(args.times.histogram, &nanos);
    let first = load.why.map(|why| why.to_string());
    let port_waits = PortWaitsReport::new(load.traffic.iter().map(|traffic| traffic.port_waits));
    let report = ConnectsReport { connections: all.rate, all, port_waits };
    super::load::print(&args.load, report, load, first)
}
