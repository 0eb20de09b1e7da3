//! `verbs-peer`: RoCEv2 of linerate as the peer of programs that use libibverbs and librdmacm, for the lab.
//!
//! It responds to them (`serve`), or sends them requests and checks the results (`request`). The protocol is that of
//! `suites/verbs.c`, and those of `rping` and `ucmatose`.
#![forbid(unsafe_code)]

mod peer;
mod request;
mod serve;

use clap::{Parser, ValueEnum};
use linerate::{NetConfig, Stop, Via};
use peer::{Peer, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Peer of programs that use libibverbs and librdmacm
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    network: NetConfig,

    /// Requests to send to the address of --to; without it, requests are answered until SIGINT
    #[arg(long, requires = "to", value_delimiter = ',')]
    request: Vec<Requests>,

    /// Address of the peer
    #[arg(long, value_name = "ADDRESS")]
    to: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Requests {
    /// Messages, WRITEs and READs of many sizes
    Transfers,
    /// Atomic operations
    Atomics,
    /// Requests of several kinds, outstanding at once
    Pipeline,
    /// A window of the peer, and SEND with invalidate
    Invalidation,
    /// Requests that the peer refuses
    Errors,
    /// A thousand connections at once
    Many,
    /// Requests of `rping -c`
    Rping,
    /// Requests of `ucmatose -s`
    Ucmatose,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let Via::Roce { port } = &cli.network.via else { return Err("--via roce:NETWORK is required".into()) };
    let [own, ..] = &cli.network.ip[..] else { return Err("--ip is required".into()) };
    let device = linerate::open_roce_device(port, &cli.network, &[], cli.to.is_some(), &Stop::default())?;
    let mut peer = Peer::new(device)?;
    let Some(to) = cli.to else {
        let stop = Arc::new(AtomicBool::new(false));
        flag::register(SIGINT, stop.clone())?;
        return serve::serve(&mut peer, own.address(), &stop);
    };
    let mut requester = request::Requester::new(peer, to);
    for requests in &cli.request {
        let done = requests.send(&mut requester).map_or_else(|error| error.to_string(), |()| "ok".to_owned());
        println!(
            "{}: {done}",
            requests.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        );
    }
    Ok(())
}

impl Requests {
    fn send(self, requester: &mut request::Requester) -> Result<()> {
        match self {
            Requests::Transfers => requester.transfers(),
            Requests::Atomics => requester.atomics(),
            Requests::Pipeline => requester.pipeline(),
            Requests::Invalidation => requester.invalidation(),
            Requests::Errors => requester.errors(),
            Requests::Many => requester.many(),
            Requests::Rping => requester.rping(),
            Requests::Ucmatose => requester.ucmatose(),
        }
    }
}
