//! Every `--via` but `kernel` and `rdma`: workers of the TCP/IP stack on the queue pairs of a DPDK port.

use super::{Job, dpdk_port};
use crate::args::{EngineArg, NetArgs, ProfileArg};
use crate::capture::{CaptureFile, RunningCapture};
use crate::error::Error;
use crate::network::Listen;
use crate::tx_arena::{PER_WORKER, set_arena};
use linerate_bypass::arena::{Arena, ArenaConfig, ArenaError};
use linerate_bypass::dpdk::{self, Eal, Mbuf, PortConfig, QueuePair};
use linerate_bypass::time::{Clock, Duration};
use linerate_bypass::{Service, Stop, Summary, Via, WorkerCtx};
use linerate_stack::{Config, Engine, Keepalive, Mailboxes, NativeEngine, RSS_KEY, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Default keepalive idle time of servers, that of Redis (`tcp-keepalive`): connections of clients that vanished
/// without FIN or RST end after minutes, not hours.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// Returns the keepalive of `args`, or the default of a server; `None` if there is none.
fn keepalive(args: &NetArgs, listen: &Listen) -> Option<Keepalive> {
    let serves = !listen.tcp.is_empty();
    let idle = args.keepalive.or(serves.then_some(KEEPALIVE))?;
    (!idle.is_zero()).then(|| Keepalive { idle, ..Keepalive::default() })
}

/// An open DPDK port, and the stack configuration of its workers.
pub struct Port {
    eal: Eal,
    port: dpdk::Port,
    config: Config,
    engine: EngineArg,
    via: Via,
    /// Capture file before the workers start, and the running capture after.
    output: Option<CaptureFile>,
    writing: Option<RunningCapture>,
}

impl Port {
    /// Starts EAL and opens the port with a queue pair for each of `workers` workers. Waiting for the other end of a
    /// link ends when `stop` is set.
    pub fn open(args: &NetArgs, listen: &Listen, workers: usize, stop: &Arc<AtomicBool>) -> Result<Self, Error> {
        let output = args.capture.create()?;
        let eal = dpdk_port::start_eal(&args.via, &args.eal)?;
        match eal.arena(workers * PER_WORKER) {
            Ok(arena) => set_arena(arena),
            Err(error) => tracing::warn!("constant payload is copied for each packet: {error}"),
        }
        let port = PortConfig {
            mtu: args.mtu,
            mac: args.mac,
            rss_key: RSS_KEY.first_chunk().copied(),
            vlan: args.vlan.is_some(),
            multi_segment: !args.no_multi_segment,
            force: args.force,
            stop: stop.clone(),
            ..PortConfig::default()
        };
        let port = dpdk_port::open(&eal, &args.via, workers, port)?;
        // A network without listeners is a client's, which must not send before the link is up.
        if listen.tcp.is_empty() {
            dpdk_port::await_link(&port, stop);
        }
        let defaults = match args.profile.unwrap_or_default() {
            ProfileArg::Internet => Config::default(),
            ProfileArg::Datacenter => Config::datacenter(),
        };
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).map_err(Error::NoRandomness)?;
        let config = Config {
            addresses: args.ip.clone(),
            gateways: args.gateway.clone(),
            connect_from: args.from.clone(),
            dhcp: args.dhcp,
            slaac: args.slaac,
            dad_transmits: if args.no_dad { 0 } else { 1 },
            mac: args.mac,
            mtu: args.mtu,
            vlan: args.vlan,
            fragments: args.fragments,
            listen: listen.tcp.clone(),
            listen_udp: listen.udp.clone(),
            rx_buffer: args.buffer,
            tx_buffer: args.buffer,
            max_packets: args.max_packets,
            max_packets_per_connection: args.max_packets_per_connection,
            max_connections_per_source: args.max_connections_per_source,
            max_half_open_per_source: args.max_half_open_per_source,
            congestion: args.congestion.unwrap_or_default(),
            linger: args.linger,
            fin_timeout: args
                .fin_timeout
                .map_or(defaults.fin_timeout, |timeout| (!timeout.is_zero()).then_some(timeout)),
            stall_timeout: args
                .stall_timeout
                .map_or(defaults.stall_timeout, |timeout| (!timeout.is_zero()).then_some(timeout)),
            keepalive: keepalive(args, listen),
            idle_timeout: args.idle_timeout,
            pacing: args.pacing,
            ecn: args.ecn,
            idle: args.idle.map_or(defaults.idle, Into::into),
            seed: u128::from_ne_bytes(seed),
            ..defaults
        };
        let (engine, via) = (args.engine.unwrap_or_default(), args.via.clone());
        Ok(Port { eal, port, config, engine, via, output, writing: None })
    }

    /// Allocates `bytes` of memory that the port can send from; if EAL has too little, ordinary memory.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        self.eal.arena(bytes).or_else(|error| {
            tracing::warn!("sent values are copied, because the port cannot send from their memory: {error}");
            Arena::new(ArenaConfig { bytes, hugepages: true })
        })
    }

    /// Returns the workers, each for its own thread; each increments `ready` when it serves.
    pub fn jobs<S: Service + 'static>(
        &mut self,
        make: Arc<impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
    ) -> Result<Vec<Job<S>>, Error> {
        let mut queues = self.port.take_queues();
        if let Some(output) = self.output.take() {
            self.writing = Some(output.begin(&self.via, self.port.capabilities(), &mut queues)?);
        }
        Ok(match self.engine {
            EngineArg::Native => self.jobs_of::<S, NativeEngine<Mbuf>>(queues, make, stop, ready),
            #[cfg(feature = "smoltcp-engine")]
            EngineArg::Smoltcp => self.jobs_of::<S, linerate_stack::SmoltcpEngine>(queues, make, stop, ready),
            #[cfg(not(feature = "smoltcp-engine"))]
            EngineArg::Smoltcp => return Err(Error::NoSmoltcpEngine),
        })
    }

    fn jobs_of<S: Service + 'static, E: Engine<QueuePair> + 'static>(
        &self,
        queues: Vec<QueuePair>,
        make: Arc<impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
    ) -> Vec<Job<S>> {
        let clock = Clock::start();
        let mailboxes = Mailboxes::for_workers(queues.len());
        let job = |(queue, mailboxes): (QueuePair, Mailboxes<_, S::Message>)| -> Job<S> {
            let (eal, config, make) = (self.eal.clone(), self.config.clone(), make.clone());
            let (stop, ready) = (stop.clone(), ready.clone());
            Box::new(move || {
                let _known_to_eal = eal.register_thread()?;
                let worker: Worker<_, S, E> = Worker::new(&config, mailboxes, queue, |ctx| make(ctx), clock.now());
                let serves = || {
                    ready.fetch_add(1, Ordering::Relaxed);
                };
                Ok(worker.run(&clock, &stop, serves)?)
            })
        };
        queues.into_iter().zip(mailboxes).map(job).collect()
    }

    /// Returns the drop counters of the port's devices. Call it after the workers have ended; dropping the port then
    /// closes its devices.
    pub fn summary(&self) -> Summary {
        dpdk_port::summary_of(&self.port)
    }
}
