//! The four small services that every transport must support, each on its own thread next to a worker over kernel
//! sockets, and properties of the two threads.

#[path = "../../kernel/tests/services/clients.rs"]
mod clients;
#[path = "../../kernel/tests/services/mod.rs"]
mod services;

use clients::{DEADLINE, client, echo_datagrams, echo_exact, receive_exact};
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_kernel::{Config as KernelConfig, Worker, bind};
use linerate_service::time::Clock;
use linerate_service::{AppSender, Bytes, CloseReason, ConnId, Origin, Service, Stop, Summary, Transport, WorkerCtx};
use linerate_split::{Commands, Config, split};
use services::{Chargen, Deferred, Echo, Proxy, UdpEcho, pattern};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const WINDOW: usize = 64 << 10;

/// A service and its worker, each on a thread.
struct Running<S> {
    address: SocketAddr,
    stop: Stop,
    worker: JoinHandle<Summary>,
    service: JoinHandle<S>,
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn listening() -> KernelConfig {
    KernelConfig { listen: vec![local()], ..KernelConfig::default() }
}

fn start<S: Service + Send + 'static>(
    sockets: &KernelConfig,
    sleeps: bool,
    make: impl FnOnce(WorkerCtx<S::Message>) -> S + Send + 'static,
) -> Running<S> {
    let arena = Arena::new(ArenaConfig { bytes: 16 << 20, hugepages: false }).unwrap();
    let config = Config { window: WINDOW, arena, co_scheduled: !sleeps, sleeps };
    let (app_sender, mut bound) = bind::<Commands>(sockets, 1).unwrap();
    let bound = bound.remove(0);
    let address = *bound.tcp_addrs().iter().chain(&bound.udp_addrs()).next().unwrap();
    let (relay, setup) = split::<S::Message>(1, &config).pop().unwrap();
    let stop = Stop::default();
    let service = std::thread::spawn(move || setup.with_service(make).run(&Clock::start()));
    let worker = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let relay = relay.attach(WorkerCtx { worker: 0, workers: 1, app_sender });
            let (relay, mut summary) = Worker::new(bound, relay).run(&stop);
            relay.end(&mut summary);
            summary
        }
    });
    Running { address, stop, worker, service }
}

impl<S> Running<S> {
    fn finish(self) -> (S, Summary) {
        self.stop.stop();
        let summary = self.worker.join().unwrap();
        (self.service.join().unwrap(), summary)
    }
}

#[test]
fn chargen_stream_arrives_intact() {
    let length = 30_000_000;
    let server = start(&listening(), true, move |_| Chargen::new(length));
    receive_exact(&client(server.address), length);
    let (_, summary) = server.finish();
    assert_eq!(summary.tx_bytes, length);
}

#[test]
fn service_waits_for_a_stalled_peer() {
    let config = KernelConfig { tx_buffer: WINDOW, ..listening() };
    let server = start(&config, false, |_| Chargen::new(u64::MAX));
    let mut stream = client(server.address);
    // Both buffers fill: the kernel's part can be read at once, the rest waits.
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    stream.shutdown(Shutdown::Read).unwrap();
    drop(stream);
    let (service, summary) = server.finish();
    assert!(service.sent - summary.tx_bytes <= 3 * WINDOW as u64, "{} and {}", service.sent, summary.tx_bytes);
    assert_eq!((summary.accepted, summary.broken + summary.finished), (1, 1));
}

#[test]
fn large_stream_is_echoed_through_small_windows() {
    for sleeps in [true, false] {
        let server = start(&listening(), sleeps, |_| Echo::default());
        echo_exact(server.address, 3_000_000);
        let (_, summary) = server.finish();
        assert_eq!((summary.accepted, summary.finished), (1, 1));
    }
}

#[test]
fn single_byte_slices_do_not_stall_a_stream() {
    let server = start(&listening(), true, |_| Echo::default());
    let mut stream = client(server.address);
    stream.set_nodelay(true).unwrap();
    let mut back = [0; 1];
    for n in 0..2000 {
        stream.write_all(&[pattern(n)]).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back[0], pattern(n));
    }
    server.finish();
}

#[test]
fn proxy_splices_both_directions_and_half_closes() {
    let upstream = start(&listening(), true, |_| Echo::default());
    let to = upstream.address;
    let proxy = start(&listening(), true, move |_| Proxy::new(to));
    echo_exact(proxy.address, 1_000_000);
    assert_eq!(proxy.finish().0.closed, [CloseReason::Finished; 2]);
    upstream.finish();
}

#[test]
fn deferred_replies_from_another_thread_arrive() {
    let (service, orders) = Deferred::new();
    let (publish_sender, app_sender_rx) = channel::<AppSender<Bytes>>();
    let server = start(&listening(), true, move |ctx| {
        publish_sender.send(ctx.app_sender).unwrap();
        service
    });
    let app_sender = app_sender_rx.recv().unwrap();
    let helper = std::thread::spawn(move || Deferred::answer(orders, app_sender));
    let mut stream = client(server.address);
    for text in ["abc", "defgh"] {
        stream.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, text.as_bytes());
    }
    drop(stream);
    server.finish();
    helper.join().unwrap();
}

#[test]
fn datagrams_are_echoed() {
    let config = KernelConfig { listen_udp: vec![local()], ..KernelConfig::default() };
    let server = start(&config, true, |_| UdpEcho::default());
    echo_datagrams(server.address);
    assert_eq!(server.finish().0.echoed, 5);
}

/// Service that reads only in timer events, and reports the reason for the end of each connection.
struct Late {
    reasons: Sender<CloseReason>,
    read: Vec<u8>,
}

impl Service for Late {
    type Conn = bool;
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> bool {
        net.set_timer(conn, Some(Duration::from_millis(50)));
        net.close(conn);
        false
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, ended: &mut bool) {
        assert!(!*ended, "peer_closed before all data");
        while let Some(bytes) = net.take(conn, 7) {
            self.read.extend_from_slice(&bytes);
        }
        net.set_timer(conn, Some(Duration::from_millis(1)));
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, ended: &mut bool) {
        assert_eq!(net.received(conn), 0);
        *ended = true;
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, ended: bool, reason: CloseReason) {
        assert!(ended || reason != CloseReason::Finished);
        self.reasons.send(reason).unwrap();
    }
}

#[test]
fn late_reads_after_the_end_of_a_connection_lose_nothing() {
    let (reasons, ends) = channel();
    let server = start(&listening(), true, |_| Late { reasons, read: Vec::new() });
    let sent: Vec<u8> = (0..20_000).map(pattern).collect();
    for _ in 0..3 {
        let mut stream = client(server.address);
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(ends.recv_timeout(DEADLINE).unwrap(), CloseReason::Finished);
    }
    let (service, _) = server.finish();
    assert!(service.read == [&sent[..], &sent, &sent].concat());
}

/// Service that blocks while `still` is set, and echoes.
struct Standing {
    still: Arc<AtomicBool>,
    most: usize,
}

impl Service for Standing {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        while self.still.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        self.most = self.most.max(net.received(conn));
        net.forward(conn, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.forward(conn, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.close(conn);
    }
}

#[test]
fn blocked_service_closes_windows_and_resumes() {
    let still = Arc::new(AtomicBool::new(true));
    let server = start(&listening(), true, {
        let still = still.clone();
        move |_| Standing { still, most: 0 }
    });
    let mut stream = client(server.address);
    stream.set_nonblocking(true).unwrap();
    let block: Vec<u8> = (0..100_000).map(pattern).collect();
    let (mut sent, mut full) = (Vec::new(), 0);
    // Until no data move for a while, beyond the kernel's buffers.
    while full < 50 {
        let at = sent.len() % block.len();
        match stream.write(&block[at..]) {
            Ok(n) => {
                sent.extend_from_slice(&block[at..at + n]);
                full = 0;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
    // More connections arrive while it is blocked.
    let others: Vec<TcpStream> = (0..20).map(|_| client(server.address)).collect();
    for mut other in &others {
        other.write_all(b"hello").unwrap();
    }
    still.store(false, Ordering::Relaxed);
    stream.set_nonblocking(false).unwrap();
    let mut back = vec![0; sent.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == sent);
    for mut other in others {
        let mut back = [0; 5];
        other.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello");
    }
    drop(stream);
    let (service, _) = server.finish();
    assert!(service.most <= 2 * WINDOW, "{} bytes at once", service.most);
}

/// Service that panics on the first received byte.
struct Failing;

impl Service for Failing {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {
        panic!("intended by the test");
    }
}

#[test]
fn worker_of_a_panicked_service_can_be_stopped() {
    let server = start(&listening(), true, |_| Failing);
    let mut stream = client(server.address);
    stream.write_all(b"x").unwrap();
    assert!(server.service.join().is_err());
    server.stop.stop();
    server.worker.join().unwrap();
}

/// Service with a timer that is always due.
struct Restless {
    timers: u64,
}

impl Service for Restless {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.set_timer(conn, Some(Duration::ZERO));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.forward(conn, conn);
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.timers += 1;
        net.set_timer(conn, Some(Duration::ZERO));
    }
}

#[test]
fn always_due_timer_does_not_starve_other_events() {
    let server = start(&listening(), true, |_| Restless { timers: 0 });
    let mut stream = client(server.address);
    for _ in 0..100 {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    let (service, _) = server.finish();
    assert!(service.timers > 100);
}
