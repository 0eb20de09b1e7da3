//! DPDK ports (every `--via` except `kernel` and `rdma`): workers of the TCP/IP stack on the queue pairs of a port.

use super::dpdk_port;
use super::shared::{self, ControlThread, SharedHost};
use crate::capture::{CaptureConfig, CaptureFile, RunningCapture};
use crate::config::Listen;
use crate::config::{NetConfig, PortRange, Profile, TcpEngine};
use crate::error::Error;
use crate::jobs::{Job, Make};
use crate::stats_client::StatsClient;
use linerate_bypass::Via;
use linerate_bypass::arena::{Arena, ArenaConfig, ArenaError};
use linerate_bypass::dpdk::{self, Eal, Mbuf, PortConfig, QueuePair, XdpInterface};
use linerate_service::inspect::Link;
use linerate_service::time::{Clock, Duration};
use linerate_service::{Service, Stop, Summary, WorkerCtx};
use linerate_stack::{Config, Engine, Idle, Keepalive, Mailboxes, NativeEngine, RSS_KEY, Worker};
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Default keepalive idle time of servers, equal to the default of Redis (`tcp-keepalive`): connections of clients that
/// vanished without FIN or RST end after minutes, not hours.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// Returns the keepalive of `options`, or the default of a server; `None` if there is none.
fn keepalive(options: &NetConfig, listen: &Listen) -> Option<Keepalive> {
    let serves = !listen.tcp.is_empty() || !listen.by_worker.is_empty();
    let idle = options.native.keepalive.or(serves.then_some(KEEPALIVE))?;
    (!idle.is_zero()).then(|| Keepalive { idle, ..Keepalive::default() })
}

/// Returns a limit that zero disables, or `default` if it is not given.
fn time_limit(given: Option<Duration>, default: Option<Duration>) -> Option<Duration> {
    given.map_or(default, |limit| (!limit.is_zero()).then_some(limit))
}

/// Queue of an interface whose other queues belong to other processes.
pub struct OwnQueue {
    pub interface: Arc<XdpInterface>,
    pub index: u16,
    /// True if other processes serve the same addresses.
    pub has_siblings: bool,
}

/// An open DPDK port, and the stack configuration of its workers.
pub struct Port {
    /// Kernel's state of a shared interface, until the workers start.
    host: Option<SharedHost>,
    /// Control plane of a shared interface, once the workers have started.
    control: Option<ControlThread>,
    eal: Eal,
    port: dpdk::Port,
    config: Config,
    engine: TcpEngine,
    idle: Idle,
    via: Via,
    /// Capture file, until the workers start.
    output: Option<CaptureFile>,
    /// Running capture, once the workers have started.
    writing: Option<RunningCapture>,
}

impl Port {
    /// Starts EAL and opens the port with a queue pair for each of `workers` workers. A client's port, which must not
    /// send before the link is up, is opened once it is, or `stop`.
    pub fn open(
        options: &NetConfig,
        listen: &Listen,
        is_client: bool,
        workers: usize,
        stop: &Stop,
    ) -> Result<Self, Error> {
        Self::open_queue(options, listen, is_client, workers, stop, None)
    }

    /// Opens the port, or one `queue` of an interface.
    pub fn open_queue(
        options: &NetConfig,
        listen: &Listen,
        is_client: bool,
        workers: usize,
        stop: &Stop,
        queue: Option<OwnQueue>,
    ) -> Result<Self, Error> {
        let output = options.capture.as_ref().map(CaptureConfig::create).transpose()?;
        let tcp = listen.all_tcp(workers)?;
        let host =
            SharedHost::open(options, &Listen { tcp: tcp.clone(), udp: listen.udp.clone(), ..Listen::default() })?;
        shared::check_own_addresses(options)?;
        let kernel_addresses = host.as_ref().map(|host| shared::ips(&host.network()));
        let port = PortConfig {
            mtu: options.mtu,
            mac: options.mac,
            rss_key: RSS_KEY.first_chunk().copied(),
            vlan: options.vlan.is_some(),
            multi_segment: !options.single_segment,
            addresses: kernel_addresses.unwrap_or_else(|| options.ip.iter().map(|own| own.address()).collect()),
            endpoints: host.as_ref().map(SharedHost::endpoints),
            force: options.force,
            held: packets_of_port(options.native.max_packets),
            stop: stop.clone(),
            wakes: options.idle == Some(Idle::Wait),
            interface: queue.as_ref().map(|queue| queue.interface.clone()),
            ..PortConfig::default()
        };
        let ignore_syns = queue.as_ref().is_some_and(|queue| queue.has_siblings);
        let via = queue.map_or_else(|| options.via.clone(), |queue| options.via.with_queue(queue.index));
        let (eal, port) = dpdk_port::open(&via, &options.eal, options.arena, workers, port)?;
        if is_client {
            dpdk_port::await_link(&port, stop);
        }
        let defaults = match options.native.profile.unwrap_or_default() {
            Profile::Internet => Config::default(),
            Profile::Datacenter => Config::datacenter(),
        };
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).map_err(Error::NoRandomness)?;
        let outgoing = match &host {
            // An empty range.
            Some(host) => host.outgoing.map_or(RangeInclusive::new(1, 0), PortRange::into),
            None => options.outgoing_ports.map_or(Config::OUTGOING_PORTS, PortRange::into),
        };
        let config = Config {
            host: host.as_ref().map(SharedHost::network),
            outgoing_ports: outgoing,
            addresses: options.ip.clone(),
            gateways: options.gateway.clone(),
            connect_from: options.from.clone(),
            dhcp: options.dhcp,
            slaac: options.slaac,
            dad_transmits: if options.skip_dad { 0 } else { 1 },
            mac: options.mac,
            mtu: options.mtu,
            vlan: options.vlan,
            fragments: options.fragments,
            listen: tcp,
            listen_by_worker: listen.by_worker.clone(),
            listen_udp: listen.udp.clone(),
            rx_buffer: options.buffer,
            tx_buffer: options.buffer,
            max_packets: options.native.max_packets,
            max_packets_per_connection: options.native.max_packets_per_connection,
            max_connections: options.max_connections.unwrap_or(Config::MAX_CONNECTIONS),
            max_connections_per_source: options.max_connections_per_source,
            max_half_open_per_source: options.max_half_open_per_source,
            congestion: options.native.congestion.unwrap_or_default(),
            linger: options.native.linger,
            fin_timeout: time_limit(options.native.fin_timeout, defaults.fin_timeout),
            stall_timeout: time_limit(options.native.stall_timeout, defaults.stall_timeout),
            keepalive: keepalive(options, listen),
            idle_timeout: options.idle_timeout,
            pacing: options.native.pacing,
            ecn: options.native.ecn,
            ignore_syns,
            seed: u128::from_ne_bytes(seed),
            ..defaults
        };
        let (engine, via) = (options.engine.unwrap_or_default(), options.via.clone());
        let idle = options.idle.unwrap_or_default();
        Ok(Port { host, control: None, eal, port, config, engine, idle, via, output, writing: None })
    }

    /// Returns the queue pair of a port with one worker, and the configuration of its stack.
    pub fn take_queue(&mut self) -> Result<(QueuePair, Config), Error> {
        let mut queues = self.port.take_queues();
        if let Some(output) = self.output.take() {
            self.writing = Some(output.begin(&self.via, self.port.capabilities(), &mut queues)?);
        }
        Ok((queues.swap_remove(0), self.config.clone()))
    }

    /// Returns EAL.
    pub fn eal(&self) -> Eal {
        self.eal.clone()
    }

    /// Allocates `bytes` of memory that the port can send from; if EAL has too little, ordinary memory.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        self.eal.arena(bytes).or_else(|error| {
            tracing::warn!("sent values are copied, because the port cannot send from their memory: {error}");
            Arena::new(ArenaConfig { bytes, hugepages: true })
        })
    }

    /// Adds the link, and the frames that a shared interface passes to the kernel, to `stats`.
    pub fn add_to(&self, stats: &StatsClient) {
        let state = self.port.state().clone();
        // A weak reference: the port releases its reserved ports when it closes, even during a query.
        let shared = self.port.shared_interface().map(Arc::downgrade);
        stats.add_port(move |first| {
            first.link = Some(Link { interface: state.name().to_owned(), is_up: state.link_up() });
            let shared = shared.as_ref().and_then(Weak::upgrade);
            first.passed_frames = shared.and_then(|shared| shared.passed().ok());
        });
    }

    /// Returns the workers, each for its own thread; each increments `ready` when it serves.
    pub fn jobs<S: Service + 'static>(
        &mut self,
        make: Make<S>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
    ) -> Result<Vec<Job<S>>, Error> {
        match self.engine {
            TcpEngine::Native => self.native_jobs(make, stop, ready),
            #[cfg(feature = "smoltcp-engine")]
            TcpEngine::Smoltcp => self.jobs_of::<S, linerate_stack::SmoltcpEngine>(make, stop, ready),
            #[cfg(not(feature = "smoltcp-engine"))]
            TcpEngine::Smoltcp => Err(Error::NoSmoltcpEngine),
        }
    }

    /// As [`jobs`](Self::jobs), with the native engine.
    pub fn native_jobs<S: Service + 'static>(
        &mut self,
        make: Make<S>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
    ) -> Result<Vec<Job<S>>, Error> {
        self.jobs_of::<S, NativeEngine<Mbuf>>(make, stop, ready)
    }

    fn jobs_of<S: Service + 'static, E: Engine<QueuePair> + 'static>(
        &mut self,
        make: Make<S>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
    ) -> Result<Vec<Job<S>>, Error> {
        let mut queues = self.port.take_queues();
        if let Some(output) = self.output.take() {
            self.writing = Some(output.begin(&self.via, self.port.capabilities(), &mut queues)?);
        }
        let mailboxes = self.mailboxes(queues.len())?;
        let (clock, state) = (Clock::start(), self.port.state());
        state.stop_on_failure(stop);
        let job = |(queue, mailboxes): (QueuePair, Mailboxes<_, S::Message>)| -> Job<S> {
            let (eal, config, make) = (self.eal.clone(), self.config.clone(), make.clone());
            let (stop, ready, state) = (stop.clone(), ready.clone(), state.clone());
            Box::new(move || {
                let _known_to_eal = eal.register_thread()?;
                let worker: Worker<_, S, E> = Worker::new(&config, mailboxes, queue, |ctx| make(ctx), clock.now());
                let serves = || {
                    ready.fetch_add(1, Ordering::Relaxed);
                };
                let ended = worker.run(&clock, &stop, serves)?;
                state.check()?;
                Ok(ended)
            })
        };
        Ok(queues.into_iter().zip(mailboxes).map(job).collect())
    }

    /// Returns the mailboxes of `workers` workers, and starts the control plane of a shared interface.
    fn mailboxes<M: Send>(&mut self, workers: usize) -> Result<Vec<Mailboxes<Mbuf, M>>, Error> {
        let mut mailboxes = match self.idle {
            Idle::Poll => Mailboxes::for_workers(workers),
            Idle::Wait => Mailboxes::for_sleepers(workers).map_err(Error::NoSleeper)?,
        };
        if let (Some(host), Some(shared)) = (self.host.take(), self.port.shared_interface()) {
            let control = ControlThread::start(host, shared.clone(), &mut mailboxes);
            self.control = Some(control.map_err(Error::NoControlThread)?);
        }
        Ok(mailboxes)
    }

    /// Returns the worker of a port with one queue pair, for the thread that calls its turns.
    pub fn worker<S: Service>(
        &mut self,
        service: impl FnOnce(WorkerCtx<S::Message>) -> S,
        clock: &Clock,
    ) -> Result<Worker<QueuePair, S>, Error> {
        let (queue, config) = self.take_queue()?;
        let mailboxes = self.mailboxes(1)?.swap_remove(0);
        Ok(Worker::new(&config, mailboxes, queue, service, clock.now()))
    }

    /// Redirects segments to `address` to the port, where the interface is shared with the kernel.
    pub fn listen(&self, address: SocketAddr) -> io::Result<()> {
        self.port.shared_interface().map_or(Ok(()), |shared| shared.listen(address))
    }

    /// Undoes [`listen`](Self::listen).
    pub fn unlisten(&self, address: SocketAddr) -> io::Result<()> {
        self.port.shared_interface().map_or(Ok(()), |shared| shared.unlisten(address))
    }

    /// Redirects datagrams to `address` to the port, where the interface is shared with the kernel.
    pub fn listen_udp(&self, address: SocketAddr) -> io::Result<()> {
        self.port.shared_interface().map_or(Ok(()), |shared| shared.listen_udp(address))
    }

    /// Undoes [`listen_udp`](Self::listen_udp).
    pub fn unlisten_udp(&self, address: SocketAddr) -> io::Result<()> {
        self.port.shared_interface().map_or(Ok(()), |shared| shared.unlisten_udp(address))
    }

    /// Returns an error if the device has failed.
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.port.state().check()?)
    }

    /// Returns the drop counters of the port's devices. Call it after the workers have ended; dropping the port then
    /// closes its devices.
    pub fn summary(&self) -> Summary {
        dpdk_port::summary_of(&self.port)
    }
}

/// Returns the packets of the port that each worker needs for `max_packets`: its connections may hold seven eighths of
/// them.
fn packets_of_port(max_packets: Option<usize>) -> u32 {
    let held = max_packets.unwrap_or(0);
    u32::try_from(held.saturating_add(held.div_ceil(7))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULT_PACKETS;

    #[test]
    fn connections_may_hold_seven_eighths_of_the_packets_of_the_port() {
        for max_packets in [1, 7, 20_000, 57_344] {
            let packets = packets_of_port(Some(max_packets)) as usize;
            assert!(packets - packets / 8 >= max_packets, "{packets} for {max_packets}");
        }
        assert_eq!(packets_of_port(Some(DEFAULT_PACKETS)), 16_384, "the packets of a port by default");
        assert_eq!((packets_of_port(None), packets_of_port(Some(usize::MAX))), (0, u32::MAX));
    }
}
