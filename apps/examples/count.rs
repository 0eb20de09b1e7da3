//! Example service on any network: counts the bytes of each connection and reports the number when the peer closes.
//!
//! `cargo run --release --example count`, and from another shell `nc -N 127.0.0.1 7777 <README.md`.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate::{ConnId, Origin, Service, Transport};
use linerate::{NetConfig, Network};
use linerate_apps::inspect::InspectArgs;
use linerate_apps::signals;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Service that replies with the number of bytes received when the peer closes its side.
struct Count;

impl Service for Count {
    /// Bytes received on the connection so far.
    type Conn = u64;
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) -> u64 {
        0
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, count: &mut u64) {
        let n = net.received(conn);
        net.consume(conn, n);
        *count += n as u64;
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, count: &mut u64) {
        net.write(conn, format!("{count} bytes\n").as_bytes());
        net.close(conn);
    }
}

/// Count the bytes of each connection
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    net: NetConfig,

    #[command(flatten)]
    inspect: InspectArgs,

    /// Listening address
    #[arg(long, default_value = "127.0.0.1:7777")]
    listen: SocketAddr,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("count: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    // SIGINT and SIGTERM stop the workers. A time other than zero lets connections finish first.
    let stop = signals::interrupted()?;
    let listeners = args.inspect.listen()?;
    let network = Network::builder().config(args.net.clone()).listen(args.listen).stop(stop.clone()).build()?;
    let (addresses, workers) = (network.listening(), network.workers());
    // For --metrics, linerate top and linerate conns.
    let _inspection = listeners.serve(&network.stats_client(), workers)?;
    let running = network.start(|_| Count, stop)?;
    if running.await_ready() {
        println!("ready count on {addresses:?} via {}, {workers} workers", args.net.via);
    }
    let (_services, total) = running.join()?;
    eprintln!("{} connections", total.accepted);
    Ok(())
}
