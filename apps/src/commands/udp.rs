//! What loads over UDP share: ports of ours on an open network, one worker that sends from them, and its end.

use super::LoadArgs;
use crate::error::Error;
use crate::inspect::IntrospectionArgs;
use linerate_bypass::{Service, Via};
use linerate_net::Basis;
use linerate_net::Shown;
use linerate_net::{self as net, Listen, Network, Place};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The most ports of ours: each takes memory of the stack's.
const PORTS: u32 = 256;
/// Where they begin: anywhere here, so that two loads hardly have the same.
const FIRST_PORT: std::ops::Range<u16> = 10_000..32_000;
/// How often other ports are tried if somebody has one of them.
const ATTEMPTS: usize = 8;
/// How often it is looked whether it is over.
const TICK: Duration = Duration::from_millis(5);

/// A network on which as many ports are listened on as a load has connections.
pub struct Ports {
    network: Network<Infallible>,
    introspection: IntrospectionArgs,
    interrupted: Arc<AtomicBool>,
    /// Our address.
    pub local: IpAddr,
    /// The first of the ports.
    pub first: u16,
}

/// Checks what a load of datagrams is told before anything is opened.
pub fn check(args: &LoadArgs) -> Result<(), Error> {
    args.net.check_remote(args.connect)?;
    if matches!(args.net.via, Via::Rdma { .. }) {
        return Err(net::Error::NotWith { what: "--udp", via: "rdma" }.into());
    }
    let connections = args.connections;
    if connections > PORTS {
        let said = format!("--udp --connections {connections}: each is a port of ours: give {PORTS} at most");
        return Err(Error::Usage(said));
    }
    Ok(())
}

impl Ports {
    /// Opens the network of `args`; a signal sets `interrupted`.
    pub fn open(args: &LoadArgs, interrupted: Arc<AtomicBool>) -> Result<Ports, Error> {
        let local = local(args)?;
        let mut first = FIRST_PORT.start + u16::from_ne_bytes(random()?) % FIRST_PORT.len() as u16;
        let mut attempts = ATTEMPTS;
        let network = loop {
            let udp = (first..).take(args.connections as usize).map(|port| SocketAddr::new(local, port)).collect();
            let listen = Listen { tcp: Vec::new(), udp };
            match Network::<Infallible>::open(&args.net, &listen, Place::Last, &interrupted) {
                Err(net::Error::Kernel(_)) if attempts > 1 => {
                    attempts -= 1;
                    first = FIRST_PORT.start + (first + 997) % FIRST_PORT.len() as u16;
                }
                result => break result?,
            }
        };
        if network.workers() != 1 {
            let said = format!("--udp: answers may reach any of {} workers: give one", network.workers());
            return Err(Error::Usage(said));
        }
        Ok(Ports { network, introspection: args.introspection.clone(), interrupted, local, first })
    }

    /// Runs the load that `make` makes of what ends it and of what it sets in the end. Returns it, and what it ran on.
    pub fn run<S: Service<Message = Infallible> + Send + 'static>(
        self,
        make: impl Fn((Arc<AtomicBool>, Arc<AtomicBool>)) -> S + Send + Sync + 'static,
    ) -> Result<(Option<S>, Basis), Error> {
        let Ports { network, introspection, interrupted, .. } = self;
        let basis = network.basis();
        let _serving = introspection.serve(&network.way(), network.workers())?;
        let (over, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let flags = (interrupted, over.clone());
        let running = network.start(move |_| make(flags.clone()), stop.clone())?;
        while !running.is_over() && !over.load(Ordering::Relaxed) {
            thread::sleep(TICK);
        }
        stop.store(true, Ordering::Relaxed);
        let (loads, counted) = running.join()?;
        tracing::info!("{}", Shown::from(&counted));
        Ok((loads.into_iter().next(), basis))
    }
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

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(net::Error::NoRandomness)?;
    Ok(bytes)
}
