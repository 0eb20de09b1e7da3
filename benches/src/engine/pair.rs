//! Server of the stack and synthetic client, on the two ends of an in-memory link.

use crate::client::{BenchError, ClientConfig, SERVER, SERVER_MAC, SyntheticClient};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{BURST, Nic};
use linerate_load::Barrier;
use linerate_service::time::Instant;
use linerate_service::{Service, Summary, WorkerCtx};
#[cfg(feature = "fast-path-switches")]
use linerate_stack::FastPaths;
use linerate_stack::{Config, Engine, Mailboxes, Worker};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

/// Virtual time per turn, which drives the engine's timers, so that two runs are identical. It is about the real
/// duration of a turn of 32 echoes, and so short that a million connections are all used within 100 ms: the next
/// request acknowledges an echo, which must not be retransmitted before.
pub(super) const TURN: Duration = Duration::from_micros(2);
/// Turns without an answer after which the server counts as hanging.
pub(super) const MAX_IDLE_TURNS: usize = 8;

/// Measurement time of a load, which ends later than any run.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 30);

/// Load and server that run in turn.
pub(super) trait InTurn {
    /// Returns the number of operations that the measured end has received.
    fn received(&mut self) -> u64;

    /// Runs a turn of each end, and returns the time that the measured end spent.
    fn turns(&mut self) -> Duration;

    /// Runs both ends until `is_reached`. Fails if that takes longer than `connections` need to open.
    fn wait_until(&mut self, connections: usize, is_reached: impl Fn(&mut Self) -> bool) -> Result<(), BenchError> {
        for _ in 0..MAX_IDLE_TURNS * connections.max(1000) {
            if is_reached(self) {
                return Ok(());
            }
            self.turns();
        }
        Err(BenchError::Missing(connections))
    }

    /// Lets the load of `connections`, which are open, send. Returns what the measured end has received.
    fn begin(&mut self, barrier: &Barrier, connections: usize) -> Result<u64, BenchError> {
        barrier.prepare();
        barrier.begin();
        let received = self.received();
        // The load checks the barrier at intervals.
        self.wait_until(connections, |bench| bench.received() > received)?;
        Ok(self.received())
    }

    /// Runs both ends until the measured one has received `target` operations, and returns the time that it spent.
    fn run_to(&mut self, target: u64) -> Result<Duration, BenchError> {
        let (mut spent, mut idle) = (Duration::ZERO, 0);
        while let Some(missing) = target.checked_sub(self.received()).filter(|missing| *missing > 0) {
            let before = self.received();
            spent += self.turns();
            idle = if self.received() > before { 0 } else { idle + 1 };
            if idle > MAX_IDLE_TURNS {
                return Err(BenchError::Missing(missing as usize));
            }
        }
        Ok(spent)
    }
}

/// Options of the two ends that all kinds of work share.
#[derive(Debug, Clone, Copy)]
pub struct PairOptions {
    /// True if the client offers timestamps.
    pub timestamps: bool,
    /// True if the server computes and verifies checksums.
    pub software_checksum: bool,
    /// Fast paths of the server.
    #[cfg(feature = "fast-path-switches")]
    pub fast_paths: FastPaths,
}

impl Default for PairOptions {
    fn default() -> Self {
        PairOptions {
            timestamps: true,
            software_checksum: false,
            #[cfg(feature = "fast-path-switches")]
            fast_paths: FastPaths::ALL,
        }
    }
}

impl PairOptions {
    /// Returns the configuration of a stack with these fast paths.
    pub(super) fn stack(&self) -> Config {
        Config {
            seed: 1,
            #[cfg(feature = "fast-path-switches")]
            fast_paths: self.fast_paths,
            ..Config::default()
        }
    }
}

/// Configuration of the link and the two ends.
#[derive(Debug, Clone)]
pub struct PairConfig {
    /// Maximum number of concurrent connections.
    pub connections: usize,
    /// Tuples of addresses and ports of the client.
    pub tuples: usize,
    /// Packets that connections may hold for long, in addition to the usual pool.
    pub packets_held: usize,
    /// Options of the two ends.
    pub options: PairOptions,
    /// True if the ports have TSO and LRO, up to 64 KB.
    pub segmentation: bool,
}

/// Both ends.
pub struct Pair<E: Engine<MemoryNic>, S: Service> {
    server: Box<Worker<MemoryNic, S, E>>,
    client: SyntheticClient,
    now: Instant,
}

impl<E: Engine<MemoryNic>, S: Service> Pair<E, S> {
    /// Creates two ends that know each other's Ethernet address and have no connection. `service` is called with the
    /// address at which the server listens.
    ///
    /// # Errors
    /// If the client cannot send.
    pub fn new(
        config: &PairConfig,
        service: impl FnOnce(WorkerCtx<S::Message>, SocketAddr) -> S,
    ) -> Result<Self, BenchError> {
        let usual = LinkConfig::default();
        let link = LinkConfig {
            pool: usual.pool + 2 * config.packets_held,
            checksum_offload: !config.options.software_checksum,
            tso: config.segmentation.then_some(usize::from(u16::MAX)),
            ..usual
        };
        let (client, server) = Link::pair(link);
        let settings = ClientConfig {
            flows: config.tuples,
            timestamps: config.options.timestamps,
            software_checksum: config.options.software_checksum,
        };
        let client = SyntheticClient::new(client, &settings);
        let stack = Config {
            addresses: vec!["10.0.0.2/8".parse().expect("an address with a prefix")],
            mac: Some(SERVER_MAC),
            listen: vec![SERVER.into()],
            listen_udp: vec![SERVER.into()],
            max_connections: config.connections,
            ..config.options.stack()
        };
        let server = worker(&stack, server, |ctx| service(ctx, SERVER.into()));
        let mut pair = Pair { server, client, now: Instant::ZERO };
        pair.client.announce()?;
        pair.settle();
        Ok(pair)
    }

    pub fn client(&mut self) -> &mut SyntheticClient {
        &mut self.client
    }

    /// Returns the server's counters.
    pub fn summary(&mut self) -> Summary {
        self.server.summary()
    }

    /// Returns the number of used packets of both pools.
    pub fn packets_held(&mut self) -> usize {
        let nic = self.server.nic();
        nic.pool_capacity() - nic.pool_available() + self.client.packets_held()
    }

    /// Opens the connections `flows`.
    pub fn open(&mut self, flows: Range<usize>) -> Result<(), BenchError> {
        for first in flows.clone().step_by(BURST) {
            let burst = first..(first + BURST).min(flows.end);
            let n = burst.len();
            self.client.begin(burst)?;
            self.converse(n, |client| client.complete())?;
            self.settle();
        }
        Ok(())
    }

    /// Runs the server until `take` has accepted `n` answers from the client. Returns the time that the server spent.
    pub fn converse(
        &mut self,
        n: usize,
        mut take: impl FnMut(&mut SyntheticClient) -> Result<usize, BenchError>,
    ) -> Result<Duration, BenchError> {
        let mut spent = Duration::ZERO;
        let mut left = n;
        for _ in 0..MAX_IDLE_TURNS {
            spent += self.settle();
            left = left.saturating_sub(take(&mut self.client)?);
            if left == 0 {
                return Ok(spent);
            }
        }
        Err(BenchError::Missing(left))
    }

    /// Runs the server until it has received all frames of the client. Returns the time that it spent, from receive
    /// ring to transmit ring.
    pub fn settle(&mut self) -> Duration {
        let mut spent = self.turn(TURN);
        while self.server.nic().stats().rx_frames < self.client.sent() {
            spent += self.turn(TURN);
        }
        spent
    }

    /// Performs `n` operations in bursts of at most `most`, each by `perform`. Returns the time that the server spent.
    pub fn in_bursts(
        &mut self,
        n: usize,
        most: usize,
        mut perform: impl FnMut(&mut Self, usize) -> Result<Duration, BenchError>,
    ) -> Result<Duration, BenchError> {
        let mut spent = Duration::ZERO;
        for done in (0..n).step_by(most) {
            spent += perform(self, most.min(n - done))?;
        }
        Ok(spent)
    }

    /// Lets `duration` pass in `turns` turns.
    pub fn wait(&mut self, duration: Duration, turns: u32) {
        for _ in 0..turns {
            self.turn(duration / turns);
        }
    }

    fn turn(&mut self, takes: Duration) -> Duration {
        self.now += takes;
        let began = std::time::Instant::now();
        server_turn(&mut self.server, self.now);
        let spent = began.elapsed();
        self.client.set_time(self.now);
        spent
    }
}

/// Creates the only worker of a stack. It is boxed: the buffers of its slow path are too large for a thread's stack.
pub fn worker<E: Engine<MemoryNic>, S: Service>(
    config: &Config,
    nic: MemoryNic,
    service: impl FnOnce(WorkerCtx<S::Message>) -> S,
) -> Box<Worker<MemoryNic, S, E>> {
    Box::new(Worker::new(config, Mailboxes::for_workers(1).remove(0), nic, service, Instant::ZERO))
}

/// Separate function, so that a profiler can attribute the server's work.
#[inline(never)]
pub(super) fn server_turn<E: Engine<MemoryNic>, S: Service>(server: &mut Worker<MemoryNic, S, E>, now: Instant) {
    server.turn(now);
}
