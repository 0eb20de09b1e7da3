//! `linerate echo`.

use super::{LoadArgs, ServeArgs};
use crate::error::Error;
use crate::load::EchoLoad;
use crate::report::Report;
use crate::services::Echo;
use crate::units::parse_size;
use hdrhistogram::Histogram;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Serve echo over TCP and UDP
    Serve(ServeArgs),
    /// Send requests to an echo server, check every byte that comes back, and measure the round trips
    Load(EchoLoadArgs),
}

/// `linerate echo load`.
#[derive(Debug, clap::Args)]
pub struct EchoLoadArgs {
    #[command(flatten)]
    load: LoadArgs,

    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_size)]
    size: usize,

    /// Requests on the way on each connection
    #[arg(long, value_name = "REQUESTS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,

    /// Over UDP: each connection is a port of ours, and a request without an answer in 100 ms is lost (one worker only)
    #[arg(long)]
    udp: bool,
}

/// Runs the command.
pub fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Serve(args) => super::serve::serve("echo", &args, true, |_| Echo).map(|_| ()),
        Command::Load(args) if args.udp => super::echo_udp::run(&args.load, args.size, args.depth),
        Command::Load(args) => {
            let (size, depth) = (args.size, usize::from(args.depth));
            let load = super::load::run(&args.load, "requests", move || EchoLoad::new(size, depth))?;
            let mut requests = 0;
            let mut rtt_nanos = Histogram::new(3).expect("3 digits are valid");
            for traffic in &load.traffic {
                requests += traffic.requests();
                rtt_nanos += traffic.rtt_nanos();
            }
            let bytes = requests * size as u64;
            let report = Report::new(requests, load.measured, bytes, load.errors.total(), &rtt_nanos);
            super::load::print(&args.load, report, load, None)
        }
    }
}
