//! `linerate echo load --udp`.

use super::{LoadArgs, OpenArgs, TimesArgs};
use crate::error::Error;
use crate::load::{Counts, FlightPlan, Probe, UdpEchoLoad};
use crate::net::{self, Listen, Network, Place};
use crate::output::print_line;
use crate::over::Over;
use crate::report::{EchoReport, OpenReport, Report};
use crate::signals;
use crate::summary::Shown;
use linerate_bypass::Via;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The most bytes of a request: what UDP over IPv4 carries.
const LARGEST: usize = 65_507;
/// The most ports of ours: each takes memory of the stack's.
const PORTS: u32 = 256;
/// Where they begin: anywhere here, so that two loads hardly have the same.
const FIRST_PORT: std::ops::Range<u16> = 10_000..32_000;
/// How often other ports are tried if somebody has one of them.
const ATTEMPTS: usize = 8;
/// How often it is looked whether it is over.
const TICK: Duration = Duration::from_millis(5);

/// Runs it and prints its report.
pub fn run(args: &LoadArgs, times: &TimesArgs, size: usize, open: &OpenArgs) -> Result<(), Error> {
    times.check(args)?;
    let (remote, connections) = (args.connect, args.connections);
    args.net.check_remote(remote)?;
    if matches!(args.net.via, Via::Rdma { .. }) {
        return Err(net::Error::NotWith { what: "--udp", via: "rdma" }.into());
    }
    let usage = |text: String| Err(Error::Usage(text));
    if !(Probe::SMALLEST..=LARGEST).contains(&size) {
        return usage(format!("--udp --size {size}: give from {} to {LARGEST} bytes", Probe::SMALLEST));
    }
    if connections > PORTS {
        return usage(format!("--udp --connections {connections}: each is a port of ours: give {PORTS} at most"));
    }
    let local = local(args)?;
    let interrupted = signals::stop_flag().map_err(Error::Signals)?;
    let run = u64::from_ne_bytes(random()?);
    let mut first = FIRST_PORT.start + u16::from_ne_bytes(random()?) % FIRST_PORT.len() as u16;
    let mut attempts = ATTEMPTS;
    let network = loop {
        let udp = (first..).take(connections as usize).map(|port| SocketAddr::new(local, port)).collect();
        let listen = Listen { tcp: Vec::new(), udp };
        match Network::<std::convert::Infallible>::open(&args.net, &listen, Place::Last, &interrupted) {
            Err(net::Error::Kernel(_)) if attempts > 1 => {
                attempts -= 1;
                first = FIRST_PORT.start + (first + 997) % FIRST_PORT.len() as u16;
            }
            result => break result?,
        }
    };
    if network.workers() != 1 {
        return usage(format!("--udp: answers may reach any of {} workers: give one", network.workers()));
    }
    let basis = network.basis();
    let (depth, open) = (open.depth(), open.plan());
    let places = connections as usize * depth;
    let plan = FlightPlan { size, places, warm_up: args.warm_up(), duration: args.duration(), open };
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::new(AtomicBool::new(false));
    let running = {
        let flags = (interrupted, over.clone());
        network
            .start(move |_| UdpEchoLoad::new(remote, (local, first), depth, plan, run, flags.clone()), stop.clone())?
    };
    while !running.is_over() && !over.load(Ordering::Relaxed) {
        thread::sleep(TICK);
    }
    stop.store(true, Ordering::Relaxed);
    let (loads, counted) = running.join()?;
    tracing::info!("{}", Shown::from(&counted));
    let load = loads.first();
    let Some((counts, measured)) = load.map(UdpEchoLoad::result).filter(|(_, time)| !time.is_zero()) else {
        return Err(Error::NoConnection { remote, why: None });
    };
    let Counts { answered, lost, corrupt, rtt_nanos, .. } = counts;
    let errors = lost + corrupt;
    let report = Report::new(*answered, measured, answered * size as u64, errors, rtt_nanos)
        .with_histogram(times.histogram, rtt_nanos);
    let paces = load.and_then(UdpEchoLoad::pace).into_iter();
    let open = open.map(|open| OpenReport::new(open, *answered, paces));
    let report = Over { result: EchoReport { all: report, open }, basis };
    print_line(if args.is_json() { report.json() } else { report.to_string() }).map_err(Error::Output)?;
    if errors == 0 { Ok(()) } else { Err(Error::Frames { lost: *lost, corrupt: *corrupt }) }
}

/// The address to send from.
fn local(args: &LoadArgs) -> Result<IpAddr, Error> {
    let is_ipv4 = args.connect.is_ipv4();
    if args.net.via == Via::Kernel {
        // The kernel chooses.
        return Ok(if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() });
    }
    let own = args.net.ip.iter().map(|own| own.address()).find(|own| own.is_ipv4() == is_ipv4);
    own.ok_or_else(|| Error::Usage("--udp: the address to send from has to be known: give it with --ip".to_owned()))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(net::Error::NoRandomness)?;
    Ok(bytes)
}
