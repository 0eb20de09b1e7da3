//! Echoes over queue pairs of RoCEv2 in software, at the server.

use super::Bench;
use super::pair::{FOREVER, InTurn, TURN};
use crate::client::BenchError;
use linerate_bypass::MacAddr;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_load::services::Echo;
use linerate_load::{Barrier, EchoLoad, Plan};
use linerate_rdma::{Adapter, Connect, Connector, Started, Worker, WorkerParts};
use linerate_roce::{Carrier, Device, Driver, Engine, StreamTable, UDP_PORT};
use linerate_service::time::Instant;
use linerate_service::{AppSender, Service};
use linerate_stack::{Config, NativeEngine};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Engine over the stack on an in-memory link, in virtual time.
pub(crate) struct Node(pub Box<linerate_stack::Worker<MemoryNic, Carrier, NativeEngine<MemoryPacket>>>);

impl Driver for Node {
    fn engine(&mut self) -> &mut Engine {
        &mut self.0.service_mut().engine
    }

    fn now(&self) -> Instant {
        self.0.service().now
    }

    fn turn(&mut self) {
        let now = self.now();
        self.0.turn(now);
    }

    fn streams(&mut self) -> Option<&mut StreamTable> {
        self.0.service_mut().streams.as_deref_mut()
    }
}

type Verbs = Device<Node>;

/// One end: the adapter's worker and connector on a device.
pub(crate) struct RoceEnd<S: Service> {
    pub device: Arc<Verbs>,
    pub worker: Worker<Verbs, S>,
    pub connector: Connector<Verbs>,
    is_server: bool,
    /// Open for as long as the worker runs.
    _messages: AppSender<S::Message>,
}

impl<S: Service> RoceEnd<S> {
    /// Creates the end 10.0.0.`host`.
    pub fn new(nic: MemoryNic, host: u8, listen: &[SocketAddr], config: &linerate_rdma::Config, service: S) -> Self {
        let ip = IpAddr::from([10, 0, 0, host]);
        // The exchange over TCP needs streams.
        let streams = (config.connect == Connect::Exchange).then(|| StreamTable::new(listen.to_vec()));
        let stack = Config {
            addresses: vec![format!("{ip}/8").parse().expect("an address with a prefix")],
            mac: Some(MacAddr([2, 0, 0, 0, 0, host])),
            listen_udp: vec![SocketAddr::new(ip, UDP_PORT)],
            listen_udp_raw: Some(UDP_PORT),
            listen: if streams.is_some() { listen.to_vec() } else { Vec::new() },
            max_connections: if streams.is_some() { config.max_connections } else { 1 },
            seed: 1,
            ..Config::default()
        };
        let engine = linerate_roce::Config { seed: host.into(), mtu: 1500, addresses: vec![(ip, 8)] };
        let engine = Engine::new(&engine).expect("an MTU above the least, and a descriptor");
        let streams = streams.map(|streams| Box::new(streams.expect("a descriptor")));
        let carrier = Carrier { engine, now: Instant::ZERO, streams };
        let device = Arc::new(Device::new("roce", Node(super::worker(&stack, nic, |_| carrier))));
        let adapter = Adapter::open(&device, config, listen, 1).expect("a device with all verbs");
        let Started { connector, mut workers, app_sender } = adapter.start().expect("memory for one worker");
        let WorkerParts { worker, config, parts, channels } = workers.remove(0);
        let worker = Worker::new(worker, config, parts, channels, service);
        RoceEnd { device, worker, connector, is_server: !listen.is_empty(), _messages: app_sender }
    }

    /// Sets the time of the device's next turns.
    pub fn set_time(&self, now: Instant) {
        self.device.driver().0.service_mut().now = now;
    }

    /// Runs a turn and returns its duration.
    fn timed_turn(&mut self, now: Instant) -> Duration {
        self.set_time(now);
        let began = std::time::Instant::now();
        if self.is_server {
            server_turn(&mut self.worker, now);
        } else {
            self.worker.turn(now);
        }
        began.elapsed()
    }
}

/// Echo load and echo server on queue pairs, with one request in flight on each.
pub struct Roce {
    server: RoceEnd<Echo>,
    load: RoceEnd<linerate_load::Load<EchoLoad>>,
    now: Instant,
    /// Requests that the server has received when the current run is complete.
    target: u64,
}

impl Roce {
    /// Opens `connections` connections, on which requests of `size` bytes are exchanged.
    ///
    /// # Errors
    /// If a connection cannot be opened.
    pub fn new(connections: usize, size: usize) -> Result<Self, BenchError> {
        Roce::with(linerate_rdma::Config::default(), connections, size)
    }

    fn with(config: linerate_rdma::Config, connections: usize, size: usize) -> Result<Self, BenchError> {
        let config = linerate_rdma::Config { max_connections: connections, ..config };
        let (near, far) = Link::pair(LinkConfig::default());
        let remote = SocketAddr::from(([10, 0, 0, 2], 7));
        let plan = Plan { remote, connections, duration: FOREVER, ..Plan::default() };
        let barrier = Arc::new(Barrier::new(1, connections));
        let load = linerate_load::Load::new(&plan, barrier.clone(), 0, 1, EchoLoad::new(size, 1, None));
        let server = RoceEnd::new(far, 2, &[remote], &config, Echo);
        let load = RoceEnd::new(near, 1, &[], &config, load);
        let mut bench = Roce { server, load, now: Instant::ZERO, target: 0 };
        bench.wait_until(connections, |bench| {
            bench.connect();
            barrier.opened() == connections
        })?;
        bench.target = bench.begin(&barrier, connections)?;
        // First-use allocations are done after one request on each connection.
        bench.run(connections)?;
        Ok(bench)
    }

    /// Runs the connectors.
    fn connect(&mut self) {
        self.server.connector.turn(self.now).expect("a live device");
        self.load.connector.turn(self.now).expect("a live device");
    }
}

impl InTurn for Roce {
    /// Returns the number of messages that the server has received.
    fn received(&mut self) -> u64 {
        self.server.worker.summary().rx_frames
    }

    fn turns(&mut self) -> Duration {
        self.now += TURN;
        self.load.timed_turn(self.now);
        self.server.timed_turn(self.now)
    }
}

impl Bench for Roce {
    fn run(&mut self, echoes: usize) -> Result<Duration, BenchError> {
        self.target += echoes as u64;
        self.run_to(self.target)
    }
}

/// Separate function, so that a profiler can attribute the server's work.
#[inline(never)]
fn server_turn<S: Service>(server: &mut Worker<Verbs, S>, now: Instant) {
    server.turn(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_rdma::Mode;

    #[test]
    fn every_request_is_answered_over_each_kind_of_connection() {
        answers_every_request(Connect::Manager, Mode::Send);
        answers_every_request(Connect::Exchange, Mode::Send);
        answers_every_request(Connect::Exchange, Mode::Ud);
    }

    fn answers_every_request(connect: Connect, mode: Mode) {
        let config = linerate_rdma::Config { connect, mode, ..linerate_rdma::Config::default() };
        let mut bench = Roce::with(config, 16, 64).unwrap();
        let before = bench.server.worker.summary().clone();
        bench.run(1600).unwrap();
        let after = bench.server.worker.summary();
        let [received, sent] = [after.rx_bytes - before.rx_bytes, after.tx_bytes - before.tx_bytes];
        assert!(received >= 1600 * 64 && received.abs_diff(sent) <= 16 * 80, "{received} and {sent}");
    }
}
