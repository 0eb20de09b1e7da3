//! Connection load over the TCP/IP stack, on a memory link with a virtual clock.

use super::*;
use crate::services::Echo;
use crate::testing::a_second;
use linerate_bypass::MacAddr;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_stack::{Config, Engine, Mailboxes, NativeEngine, SmoltcpEngine, Worker};

/// Ephemeral ports of an address.
const PORTS: u64 = 64_512;
const SECOND: Duration = Duration::from_secs(1);

type Native = NativeEngine<<MemoryNic as linerate_bypass::Nic>::Packet>;

/// A load and a server with one address and one port.
struct Bench<E: Engine<MemoryNic>> {
    load: Worker<MemoryNic, Connects>,
    server: Worker<MemoryNic, Echo, E>,
    barrier: Arc<Barrier>,
    now: Instant,
}

impl<E: Engine<MemoryNic>> Bench<E> {
    /// Creates a load with `slots` concurrent connections for `duration`, as worker 0 of `workers`, which share the
    /// local ports.
    fn new(slots: usize, duration: Duration, workers: usize) -> Self {
        let now = Instant::ZERO + SECOND;
        let [client, peer] = [1, 2].map(|host: u8| Config {
            addresses: vec![format!("10.0.0.{host}/24").parse().unwrap()],
            mac: Some(MacAddr([2, 0, 0, 0, 0, host])),
            listen: if host == 2 { vec!["10.0.0.2:7".parse().unwrap()] } else { Vec::new() },
            max_connections: 1024,
            seed: host.into(),
            ..Config::default()
        });
        let (near, far) = Link::pair(LinkConfig::default());
        let barrier = Arc::new(Barrier::new(1, slots));
        barrier.begin();
        let plan = Plan { duration, ..a_second(slots) };
        let service = Connects::new(&plan, barrier.clone(), 0, 1, ConnectPlan { request: 64, most: u64::MAX });
        let load = Worker::new(&client, Mailboxes::for_workers(workers).remove(0), near, |_| service, now);
        let server = Worker::new(&peer, Mailboxes::for_workers(1).remove(0), far, |_| Echo, now);
        Bench { load, server, barrier, now }
    }

    /// Runs both hosts until the load ends. Time advances by `step` per turn, or by a millisecond while the load waits
    /// for a port.
    fn run(&mut self, step: Duration) -> &Outcome<ConnectStats> {
        let begun = self.now;
        while !self.barrier.all_done() {
            assert!(self.now.since(begun) < 120 * SECOND, "the load does not end");
            self.load.turn(self.now);
            self.server.turn(self.now);
            self.now += if self.load.service().port_wait.is_some() { Duration::from_millis(1) } else { step };
        }
        &self.load.service().outcome
    }
}

#[test]
fn ports_are_reused_at_nearly_a_million_connections_a_second() {
    let mut bench = Bench::<Native>::new(64, SECOND * 2 / 5, 1);
    let Outcome { traffic, errors, measured, .. } = bench.run(Duration::from_micros(16));
    let rate = traffic.connections as f64 / measured.as_secs_f64();
    assert_eq!((*errors, traffic.port_waits), (Errors::default(), PortWaits::default()));
    assert!(traffic.connections > 300_000 && rate > 750_000.0, "{} at {rate}/s", traffic.connections);
    assert!(traffic.connections > 4 * PORTS);
}

#[test]
fn load_of_a_server_without_timestamps_waits_for_the_end_of_time_wait() {
    // Worker 0 of 64 has a thousand ports.
    let mut bench = Bench::<SmoltcpEngine>::new(16, 70 * SECOND, 64);
    let Outcome { traffic, errors, measured, .. } = bench.run(Duration::from_micros(16));
    let connections = traffic.connections as f64 / (PORTS / 64) as f64;
    assert_eq!((*errors, *measured), (Errors::default(), 70 * SECOND));
    assert!((1.8..2.2).contains(&connections), "each port should be used twice, was used {connections} times");
    let waited = traffic.port_waits.time;
    assert!(waited > 60 * SECOND && waited < 70 * SECOND, "{waited:?}");
    // One attempt per 64 ms.
    let failed = bench.load.summary().failed;
    assert!((900..1200).contains(&failed), "{failed} attempts");
}
