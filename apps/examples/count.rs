//! Example service on any network: counts the bytes of each connection and reports the number when the peer closes.
//!
//! `cargo run --example count -- --via kernel --listen 127.0.0.1:7777`, and from another shell
//! `nc -N 127.0.0.1 7777 <README.md`.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_bypass::{ConnId, Origin, Service, Transport};
use linerate_net::{CorePlacement, Listen, NetConfig, Network};
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

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

    /// Listening address
    #[arg(long)]
    listen: SocketAddr,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let stop = Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    let listen = Listen { tcp: vec![args.listen], udp: Vec::new() };
    let running = Network::open(&args.net, &listen, CorePlacement::First, &stop)?.start(|_| Count, stop)?;
    let (_services, counted) = running.join()?;
    println!("{} connections", counted.accepted);
    Ok(())
}
