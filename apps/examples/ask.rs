//! Example client on any network: connects, sends a text, closes its side, and prints the reply.
//!
//! `cargo run --release --example ask -- --connect 127.0.0.1:7777 --text hello`, while the example `count` runs.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use linerate::{CorePlacement, NetConfig, Network};
use linerate_apps::signals;
use linerate_service::Stop;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Longest reply that is kept, in bytes.
const LONGEST: usize = 1 << 16;

/// Client of one connection.
struct Ask {
    remote: SocketAddr,
    text: String,
    reply: Vec<u8>,
    /// Result of the connection: the reply is complete, or the reason why it is not.
    result: Result<(), String>,
    /// Stops the worker at the end of the connection.
    stop: Stop,
}

impl Service for Ask {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        // The token returns in `opened` or `failed`, for services with several connections.
        net.connect(self.remote, 0);
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        self.result = Err(format!("{}: {error}", self.remote));
        self.stop.stop();
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        // A short text fits into the empty send buffer. A longer one continues in `writable`.
        net.write(conn, self.text.as_bytes());
        net.close(conn);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        while let Some(bytes) = net.take(conn, LONGEST) {
            let room = LONGEST - self.reply.len();
            self.reply.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), why: CloseReason) {
        if why != CloseReason::Finished {
            self.result = Err(format!("{}: the connection ended early: {why:?}", self.remote));
        }
        self.stop.stop();
    }
}

/// Send a text and print the reply
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    net: NetConfig,

    /// Address of the server
    #[arg(long, default_value = "127.0.0.1:7777")]
    connect: SocketAddr,

    /// Text to send
    #[arg(long, default_value = "hello")]
    text: String,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let stop = signals::interrupted()?;
    args.net.check_remote(args.connect)?;
    // A client has no listening address and, by convention, the last core.
    let builder = Network::builder().config(args.net).core_placement(CorePlacement::Last);
    let network = builder.stop(stop.clone()).build()?;
    let (remote, flag) = (args.connect, stop.clone());
    let ask = move |_| Ask { remote, text: args.text.clone(), reply: Vec::new(), result: Ok(()), stop: flag.clone() };
    let (services, _) = network.start(ask, stop)?.join()?;
    for Ask { reply, result, .. } in services {
        result?;
        print!("{}", String::from_utf8_lossy(&reply));
    }
    Ok(())
}
