//! Shared part of UDP loads: local ports on an open network, and one worker that sends from them.

use super::LoadArgs;
use super::SummaryReport;
use crate::error::Error;
use crate::inspect::IntrospectionArgs;
use linerate::RunContext;
use linerate::{self as net, CorePlacement, Listen, Network};
use linerate_bypass::Via;
use linerate_service::{Service, Stop};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Maximum number of local ports. Each uses memory of the stack.
const MAX_PORTS: u32 = 256;
/// Range of the first port, random so that two loads rarely collide.
const FIRST_PORT: std::ops::Range<u16> = 10_000..32_000;
/// Number of port ranges tried if a port is in use.
const ATTEMPTS: usize = 8;
/// Interval of checking for the end of the load.
const TICK: Duration = Duration::from_millis(5);

/// Network that listens on one local port per connection of the load.
pub struct Ports {
    network: Network,
    introspection: IntrospectionArgs,
    interrupted: Stop,
    via: Via,
    pub local: IpAddr,
    /// First local port.
    pub first: u16,
}

/// Checks the arguments of a UDP load before anything is opened.
pub fn check(args: &LoadArgs) -> Result<(), Error> {
    args.net.check_remote(args.connect)?;
    if args.net.via.is_rdma() {
        return Err(net::Error::NotWith { setting: "udp", via: "rdma" }.into());
    }
    if args.tls.is_used() {
        return Err(Error::Usage("--tls: UDP is not encrypted: leave it out".to_owned()));
    }
    let connections = args.connections;
    if connections > MAX_PORTS {
        let message = format!("--udp --connections {connections}: each uses a local port: give at most {MAX_PORTS}");
        return Err(Error::Usage(message));
    }
    Ok(())
}

impl Ports {
    /// Opens the network of `args`. A signal stops `interrupted`.
    pub fn open(args: &LoadArgs, interrupted: Stop) -> Result<Ports, Error> {
        let local = local(args)?;
        let mut first = FIRST_PORT.start + u16::from_ne_bytes(random()?) % FIRST_PORT.len() as u16;
        let mut attempts = ATTEMPTS;
        let network = loop {
            let udp = (first..).take(args.connections as usize).map(|port| SocketAddr::new(local, port)).collect();
            let listen = Listen { udp, ..Listen::default() };
            let builder = Network::builder().config(args.net.clone()).listen_on(listen);
            match builder.core_placement(CorePlacement::Last).stop(interrupted.clone()).build() {
                Err(net::Error::Kernel(_)) if attempts > 1 => {
                    attempts -= 1;
                    first = FIRST_PORT.start + (first + 997) % FIRST_PORT.len() as u16;
                }
                result => break result?,
            }
        };
        if network.workers() != 1 {
            let message = format!("--udp: replies may reach any of {} workers: use one worker", network.workers());
            return Err(Error::Usage(message));
        }
        let (introspection, via) = (args.introspection.clone(), args.net.via.clone());
        Ok(Ports { network, introspection, interrupted, via, local, first })
    }

    /// Runs the load that `make` creates from two flags: the first flag ends the load, and the load sets the second
    /// flag when it is done. Returns the load, its context, and whether a signal has arrived.
    pub fn run<S: Service<Message = Infallible> + Send + 'static>(
        self,
        make: impl Fn((Stop, Arc<AtomicBool>)) -> S + Send + Sync + 'static,
    ) -> Result<(Option<S>, RunContext, bool), Error> {
        let Ports { network, introspection, interrupted, via, .. } = self;
        let context = network.run_context();
        let _serving = introspection.serve(&network.stats_client(), network.workers())?;
        let done = Arc::new(AtomicBool::new(false));
        let flags = (interrupted.clone(), done.clone());
        let running = network.start(move |_| make(flags.clone()), Stop::default())?;
        while !running.is_finished() && !done.load(Ordering::Relaxed) {
            thread::sleep(TICK);
        }
        running.stop();
        let (loads, counted) = running.join()?;
        tracing::info!("{}", SummaryReport::new(&counted, &via));
        Ok((loads.into_iter().next(), context, interrupted.is_stopped()))
    }
}

/// Returns the source address.
fn local(args: &LoadArgs) -> Result<IpAddr, Error> {
    let is_ipv4 = args.connect.is_ipv4();
    if args.net.via == Via::Kernel {
        // The kernel selects the address.
        return Ok(if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() });
    }
    if args.net.uses_kernel_addresses() {
        // Connecting a datagram socket selects the source address and sends nothing.
        let any: IpAddr = if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let chosen = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(args.connect)?;
            socket.local_addr()
        });
        return chosen
            .map(|chosen| chosen.ip())
            .map_err(|error| Error::Usage(format!("--connect {}: the kernel has no route: {error}", args.connect)));
    }
    let own = args.net.ip.iter().map(|own| own.address()).find(|own| own.is_ipv4() == is_ipv4);
    own.ok_or_else(|| Error::Usage("--udp: the source address must be known: give it with --ip".to_owned()))
}

/// Returns random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(net::Error::NoRandomness)?;
    Ok(bytes)
}
