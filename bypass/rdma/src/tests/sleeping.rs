//! Sleeping workers are woken by every kind of event.

use super::rig::{Peer, Rig, Setup};
use crate::{Adapter, Config, Connect, Started, Worker, WorkerParts};
use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig, Mode, SimDevice};
use linerate_service::inspect::{ConnState, StatsQuery};
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{AppSender, CloseReason, ConnId, Origin, Service, Transport};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

/// Time limit of a test.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out that never expires in a test.
const FOR_EVER: Duration = Duration::from_secs(3600);
const TIMER: Duration = Duration::from_millis(3);

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Opened,
    Timer,
    Echo,
    Closed(CloseReason),
}

#[derive(Debug)]
enum Order {
    SetTimer,
    Ping,
    Close,
}

/// Service that executes orders on its connection and reports events, or echoes.
struct Pinger {
    remote: Option<SocketAddr>,
    conn: Option<ConnId>,
    events: mpsc::Sender<Event>,
    is_over: bool,
}

impl Pinger {
    fn report(&self, event: Event) {
        if self.remote.is_some() {
            self.events.send(event).unwrap();
        }
    }
}

impl Service for Pinger {
    type Conn = ();
    type Message = Order;

    fn start(&mut self, net: &mut impl Transport) {
        if let Some(remote) = self.remote {
            net.connect(remote, 1);
        }
    }

    fn opened(&mut self, _: &mut impl Transport, conn: ConnId, _: Origin) {
        self.conn = Some(conn);
        self.report(Event::Opened);
    }

    fn message(&mut self, net: &mut impl Transport, order: Order) {
        let conn = self.conn.unwrap();
        match order {
            Order::SetTimer => net.set_timer(conn, Some(TIMER)),
            Order::Ping => {
                net.reserve(conn, 1).unwrap()[0] = b'!';
                net.commit(conn, 1);
            }
            Order::Close => net.close(conn),
        }
    }

    fn timer(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {
        self.report(Event::Timer);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        if self.remote.is_none() {
            net.forward(conn, conn);
        } else {
            net.consume(conn, 1);
            self.report(Event::Echo);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.close(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.is_over = true;
        self.report(Event::Closed(reason));
    }
}

/// Runs an end on its own threads, with a worker that sleeps when idle, until its connection ends. Returns the sender
/// of orders, the listening address, and the worker's thread, which returns the number of sleeps.
fn run(
    device: &Arc<SimDevice>,
    (connect, mode): (Connect, crate::Mode),
    listen: &[SocketAddr],
    remote: Option<SocketAddr>,
    events: &mpsc::Sender<Event>,
) -> (AppSender<Order>, Vec<SocketAddr>, thread::JoinHandle<u64>) {
    let config = Config { rests: true, max_connections: 1, connect, mode, ..Config::default() };
    let adapter = Adapter::open(device, &config, listen, 1).unwrap();
    let listening = adapter.listening();
    let Started { connector, mut workers, app_sender } = adapter.start().unwrap();
    let WorkerParts { worker, config, parts, mut channels } = workers.pop().unwrap();
    channels.rest.as_mut().unwrap().longest = FOR_EVER;
    let service = Pinger { remote, conn: None, events: events.clone(), is_over: false };
    let worker = thread::spawn(move || {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let connector = thread::spawn(move || connector.run(&Clock::start(), || seen.load(Ordering::Relaxed), || {}));
        let clock = Clock::start();
        let mut worker = Worker::new(worker, config, parts, channels, service);
        while !worker.service().is_over {
            if worker.turn(clock.now()) == 0 {
                worker.sleep(&clock);
            }
        }
        let waits = worker.waits();
        drop(worker);
        over.store(true, Ordering::Relaxed);
        connector.join().unwrap().unwrap();
        waits
    });
    (app_sender, listening, worker)
}

fn both_workers_wake(connect: Connect, mode: crate::Mode) {
    let fabric = Fabric::new(FabricConfig { mode: Mode::Auto, ..FabricConfig::default() });
    let device = |number| fabric.device("model", DeviceConfig::roce([127, 0, 0, number].into()));
    let [a, b] = [1, 2].map(device);
    let (events, seen) = mpsc::channel();
    let expect = |event| assert_eq!(seen.recv_timeout(TIMEOUT), Ok(event));
    let listen = SocketAddr::from(([127, 0, 0, 2], if connect == Connect::Manager { 7 } else { 0 }));
    let (_, listening, server) = run(&b, (connect, mode), &[listen], None, &events);
    let (app_sender, _, client) = run(&a, (connect, mode), &[], Some(listening[0]), &events);
    // Connector events.
    expect(Event::Opened);
    for _ in 0..500 {
        // Messages and completions.
        app_sender.send_to_worker(0, Order::Ping).unwrap();
        expect(Event::Echo);
    }
    // Statistics queries.
    let (reply, answer) = mpsc::channel();
    assert!(app_sender.query(0, StatsQuery::Counters { reply }));
    let stats = answer.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((stats.worker, stats.gauges.connections, stats.summary.connected), (0, 1, 1));
    assert!(stats.summary.rx_frames >= 500, "{stats:?}");
    let (reply, answer) = mpsc::channel();
    assert!(app_sender.query(0, StatsQuery::Connections { from: 0, most: 10, reply }));
    let stats = answer.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((stats.connections.len(), stats.next), (1, None));
    let info = &stats.connections[0];
    assert_eq!((info.state, info.unread, info.unsent), (ConnState::Established, 0, 0));
    assert_eq!(info.remote, listening[0]);
    let verbs = info.verbs.as_ref().unwrap();
    assert_eq!(
        (verbs.state, verbs.qp.is_some(), verbs.peer_qp.is_some()),
        ("rts", mode != crate::Mode::Ud, mode == crate::Mode::Ud)
    );
    assert!(verbs.credits > 0);
    // Timers.
    app_sender.send_to_worker(0, Order::SetTimer).unwrap();
    expect(Event::Timer);
    app_sender.send_to_worker(0, Order::Close).unwrap();
    expect(Event::Closed(CloseReason::Finished));
    for worker in [client, server] {
        // The exact number depends on scheduling.
        assert!(worker.join().unwrap() > 0, "the worker never slept");
    }
    drop((a, b));
    assert_eq!(fabric.live(), Default::default());
}

#[test]
fn every_event_wakes_worker() {
    both_workers_wake(Connect::Manager, crate::Mode::Send);
}

#[test]
fn every_event_wakes_worker_with_tcp_exchange() {
    both_workers_wake(Connect::Exchange, crate::Mode::Send);
}

#[test]
fn every_event_wakes_worker_with_sessions() {
    both_workers_wake(Connect::Exchange, crate::Mode::Ud);
}

#[test]
fn failed_device_stops_workers_and_is_reported() {
    for is_removed in [false, true] {
        let fabric = Fabric::new(FabricConfig { mode: Mode::Auto, ..FabricConfig::default() });
        let config = DeviceConfig { flushes_on_fatal: false, ..DeviceConfig::roce([127, 0, 0, 1].into()) };
        let device = fabric.device("model", config);
        let config = Config { max_connections: 1, ..Config::default() };
        let adapter = Adapter::open(&device, &config, &[], 1).unwrap();
        let Started { connector, workers, .. } = adapter.start::<()>().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (seen, stop) = (over.clone(), over.clone());
        let is_over = move || seen.load(Ordering::Relaxed);
        let stops = move || stop.store(true, Ordering::Relaxed);
        let connector = thread::spawn(move || connector.run(&Clock::start(), is_over, stops));
        if is_removed {
            fabric.vanish(&device, true);
        } else {
            fabric.fatal(&device);
        }
        let error = connector.join().unwrap().unwrap_err();
        assert!(over.load(Ordering::Relaxed));
        assert!(error.to_string().starts_with("RDMA device model has failed: "), "{error}");
        drop(workers);
    }
}

#[test]
fn worker_does_not_sleep_with_pending_completions() {
    let defaults = Setup::default();
    let setup = Setup { config: Config { rests: true, ..defaults.config }, ..defaults };
    let mut rig = Rig::new(&setup, [Peer::sends(&[(10, false)]), Peer::echoes()]);
    rig.connect(&setup);
    rig.ends.iter_mut().for_each(|end| _ = end.worker.turn(Instant::ZERO));
    // The message is present before notification is requested.
    rig.fabric.run();
    let worker = &mut rig.ends[1].worker;
    worker.sleep(&Clock::start());
    assert_eq!((worker.service().received, worker.waits()), (10, 0));
    worker.sleep(&Clock::start());
    assert_eq!(worker.waits(), 1);
}
