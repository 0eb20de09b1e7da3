//! A server of the stack and the synthetic client, on the two ends of a link in memory.

use crate::client::{ClientConfig, Endpoints, SyntheticClient, Wrong};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::time::Instant;
use linerate_bypass::{BURST, MacAddr, Nic, Service, Summary};
use linerate_stack::{Config, Engine, Mailboxes, Worker};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::time::Duration;

const ENDPOINTS: Endpoints = Endpoints {
    client_mac: MacAddr([2, 0, 0, 0, 0, 1]),
    client: Ipv4Addr::new(10, 1, 0, 1),
    server_mac: MacAddr([2, 0, 0, 0, 0, 2]),
    server: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7),
};
/// Virtual time that one turn takes: the engine's timers go by it, so that two runs do exactly the same. About what a
/// turn of 32 echoes does take, and so little that a million connections are all used within 100 ms: an echo is
/// acknowledged by the next request, and must not be taken for lost before.
const TURN: Duration = Duration::from_micros(2);
/// Turns after which a server that has not answered will not.
pub(super) const PATIENCE: usize = 8;

/// What the link and the two ends are like.
#[derive(Debug, Clone)]
pub struct PairConfig {
    /// Connections that there can be at once.
    pub connections: usize,
    /// Tuples of addresses and ports that the client has for them.
    pub tuples: usize,
    /// Packets that connections may hold for long, for which there is room beside what a link has anyhow.
    pub packets_held: usize,
    /// The client offers time stamps.
    pub timestamps: bool,
    /// The server verifies and computes checksums itself.
    pub software_checksum: bool,
    /// The ports cut what is sent and merge what is received, up to 64 KB (TSO and LRO).
    pub segmentation: bool,
}

/// The two ends.
pub struct Pair<E: Engine<MemoryNic>, S: Service> {
    /// On the heap: the buffers of its slow path are too large to be handed about on a thread's stack.
    server: Box<Worker<MemoryNic, S, E>>,
    client: SyntheticClient,
    now: Instant,
}

impl<E: Engine<MemoryNic>, S: Service> Pair<E, S> {
    /// Two ends that know each other's Ethernet address, and have no connection.
    pub fn new(config: &PairConfig, service: S) -> Result<Self, Wrong> {
        let usual = LinkConfig::default();
        let link = LinkConfig {
            pool: usual.pool + 2 * config.packets_held,
            checksum_offload: !config.software_checksum,
            tso: config.segmentation.then_some(usize::from(u16::MAX)),
            ..usual
        };
        let (client, server) = Link::pair(link);
        let settings = ClientConfig {
            endpoints: ENDPOINTS,
            flows: config.tuples,
            timestamps: config.timestamps,
            software_checksum: config.software_checksum,
        };
        let client = SyntheticClient::new(client, &settings);
        let stack = Config {
            addresses: vec!["10.0.0.2/8".parse().expect("an address with a prefix")],
            mac: Some(ENDPOINTS.server_mac),
            listen: vec![ENDPOINTS.server.into()],
            max_connections: config.connections,
            seed: 1,
            ..Config::default()
        };
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let server = Box::new(Worker::new(&stack, mailboxes, server, |_| service, Instant::ZERO));
        let mut pair = Pair { server, client, now: Instant::ZERO };
        pair.client.announce()?;
        pair.settle();
        Ok(pair)
    }

    /// The client.
    pub fn client(&mut self) -> &mut SyntheticClient {
        &mut self.client
    }

    /// What the server has counted.
    pub fn summary(&mut self) -> Summary {
        self.server.summary()
    }

    /// Packets of both ends' pools that are in use, by whomever.
    pub fn packets_held(&mut self) -> usize {
        let nic = self.server.nic();
        nic.pool_capacity() - nic.pool_available() + self.client.packets_held()
    }

    /// Opens connections `flows`.
    pub fn open(&mut self, flows: Range<usize>) -> Result<(), Wrong> {
        for first in flows.clone().step_by(BURST) {
            let burst = first..(first + BURST).min(flows.end);
            let n = burst.len();
            self.client.begin(burst)?;
            self.converse(n, |client| client.complete())?;
            self.settle();
        }
        Ok(())
    }

    /// Lets the server have turns until the client, which is given what came back by `take` after each, has taken `n`
    /// answers. Returns the time that the server spent.
    pub fn converse(
        &mut self,
        n: usize,
        mut take: impl FnMut(&mut SyntheticClient) -> Result<usize, Wrong>,
    ) -> Result<Duration, Wrong> {
        let mut spent = Duration::ZERO;
        let mut left = n;
        for _ in 0..PATIENCE {
            spent += self.settle();
            left = left.saturating_sub(take(&mut self.client)?);
            if left == 0 {
                return Ok(spent);
            }
        }
        Err(Wrong::Missing(left))
    }

    /// Lets the server have a turn, and further ones until it has received all that the client sent. Returns the time
    /// that it spent, from the frames in its receive ring to the frames in its transmit ring.
    pub fn settle(&mut self) -> Duration {
        let mut spent = self.turn(TURN);
        while self.server.nic().stats().rx_frames < self.client.sent() {
            spent += self.turn(TURN);
        }
        spent
    }

    /// Lets `duration` pass, in so many turns.
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

/// Under a name of its own, by which a profiler can tell the server's work from the client's.
#[inline(never)]
fn server_turn<E: Engine<MemoryNic>, S: Service>(server: &mut Worker<MemoryNic, S, E>, now: Instant) {
    server.turn(now);
}
