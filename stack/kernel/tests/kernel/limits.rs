//! Limits, and errors of impossible configurations.

use crate::common::{DEADLINE, listening, local, turn_until, worker};
use crate::services::Echo;
use linerate_kernel::{Config, Error, Worker, bind};
use linerate_service::{CloseReason, ConnId, Origin, Service, Transport};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

#[test]
fn excess_connection_is_reset_and_a_freed_slot_is_reused() {
    let mut worker = worker(&Config { max_connections: 3, ..listening() }, Echo::default());
    let address = worker.tcp_addrs()[0];
    let mut streams: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    let refused = |worker: &Worker<Echo>| worker.summary().drops.get("accept: too many connections").copied();
    turn_until(&mut worker, "two refused", |worker| refused(worker) == Some(2));
    assert_eq!(worker.summary().accepted, 3);
    for stream in &mut streams[3..] {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    streams.clear();
    turn_until(&mut worker, "all gone", |worker| worker.service().closed.len() == 3);
    let _another = TcpStream::connect(address).unwrap();
    turn_until(&mut worker, "another accepted", |worker| worker.summary().accepted == 4);
    assert_eq!(refused(&worker), Some(2));
}

#[test]
fn echo_to_a_stalled_peer_is_bounded_and_others_are_served() {
    let config = Config { rx_buffer: 50_000, tx_buffer: 50_000, ..listening() };
    let mut worker = worker(&config, Echo::default());
    let address = worker.tcp_addrs()[0];
    let mut selfish = TcpStream::connect(address).unwrap();
    selfish.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut stuck = 0;
    turn_until(&mut worker, "peer blocked", |_| {
        match selfish.write(&[7; 100_000]) {
            Ok(n) => (sent, stuck) = (sent + n, 0),
            Err(_) => stuck += 1,
        }
        stuck > 100
    });
    let summary = worker.summary();
    assert!(summary.rx_bytes - summary.tx_bytes <= 100_000, "{summary:?}");
    assert!(worker.service().most_received <= 50_000);
    let before = summary.tx_bytes;
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(b"hello").unwrap();
    turn_until(&mut worker, "another served", |worker| worker.summary().tx_bytes == before + 5);
    other.read_exact(&mut [0; 5]).unwrap();
    // When the peer reads, all data arrive.
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    turn_until(&mut worker, "all returned", |_| {
        while let Ok(n) = selfish.read(&mut buffer) {
            assert!(buffer[..n].iter().all(|&byte| byte == 7));
            received += n;
        }
        received == sent
    });
}

/// Service that never consumes the single bytes of the first 40 connections, and echoes on the others.
#[derive(Default)]
struct Hoarder {
    hoarded: usize,
    echo: Echo,
}

impl Service for Hoarder {
    type Conn = usize;
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, conn: ConnId, _: Origin) -> usize {
        conn.slot()
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, slot: &mut usize) {
        if *slot < 40 {
            self.hoarded += 1;
            assert_eq!(net.peek(conn).first(), Some(&(*slot as u8)));
        } else {
            self.echo.readable(net, conn, &mut ());
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut usize) {
        net.forward(conn, conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: usize, reason: CloseReason) {
        self.echo.closed.push(reason);
    }
}

#[test]
fn unread_bytes_in_many_blocks_do_not_exhaust_memory() {
    // Memory for eight blocks of 64 KB, and forty connections that would each hold one.
    let mut worker = worker(&Config { memory: 512 << 10, ..listening() }, Hoarder::default());
    let address = worker.tcp_addrs()[0];
    let mut hoarders = Vec::new();
    for number in 0..40 {
        hoarders.push(TcpStream::connect(address).unwrap());
        turn_until(&mut worker, "accepted", |worker| worker.summary().accepted == number + 1);
    }
    let mut honest = TcpStream::connect(address).unwrap();
    honest.set_nonblocking(true).unwrap();
    for (number, hoarder) in hoarders.iter_mut().enumerate() {
        hoarder.write_all(&[number as u8]).unwrap();
        let mut sent = 0;
        let mut received = 0;
        let mut buffer = vec![0; 200_000];
        turn_until(&mut worker, "other connection served", |worker| {
            if sent < 200_000 {
                sent += honest.write(&buffer[sent..]).unwrap_or(0);
            }
            received += honest.read(&mut buffer[received..]).unwrap_or(0);
            received == 200_000 && worker.service().hoarded == number + 1
        });
    }
    let copied = worker.summary().copied_bytes;
    assert!((1..40_000).contains(&copied), "copies are limited: {copied} bytes");
}

#[test]
fn accept_pauses_without_descriptors_and_resumes() {
    // The limit applies to the whole process, so this test runs in a separate one.
    linerate_harness::rerun::alone(|| {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let mut worker = worker(&listening(), Echo::default());
        let address = worker.tcp_addrs()[0];
        let mut client = TcpStream::connect(address).unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: limit.maximum }).unwrap();
        let shortages = |worker: &Worker<Echo>| worker.summary().drops.get("accept: no descriptor or memory").copied();
        let mut turns = 0;
        turn_until(&mut worker, "two failures", |worker| {
            turns += 1;
            shortages(worker) >= Some(2)
        });
        assert!(turns > 20, "accept retries without pause: {turns} turns");
        setrlimit(Resource::Nofile, limit).unwrap();
        client.write_all(b"x").unwrap();
        turn_until(&mut worker, "served", |worker| worker.summary().tx_bytes == 1);
        client.read_exact(&mut [0; 1]).unwrap();
    });
}

/// Service that counts the expiries of its timer.
struct Ticker(u32);

impl Service for Ticker {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.set_timer(conn, Some(Duration::from_millis(2)));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.consume(conn, usize::MAX);
        net.set_timer(conn, None);
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.0 += 1;
        net.set_timer(conn, Some(Duration::from_millis(2)));
    }
}

#[test]
fn timer_ends_a_sleep_until_it_is_cancelled() {
    let mut worker = worker(&listening(), Ticker(0));
    let mut stream = TcpStream::connect(worker.tcp_addrs()[0]).unwrap();
    turn_until(&mut worker, "accepted", |worker| worker.summary().accepted == 1);
    let start = std::time::Instant::now();
    while worker.service().0 < 10 {
        worker.turn(DEADLINE);
    }
    assert!(start.elapsed() >= Duration::from_millis(18) && start.elapsed() < DEADLINE);
    stream.write_all(b"x").unwrap();
    turn_until(&mut worker, "byte received", |worker| worker.summary().rx_bytes == 1);
    let ticks = worker.service().0;
    (0..20).for_each(|_| worker.turn(Duration::from_millis(1)));
    assert_eq!(worker.service().0, ticks);
}

/// Service that works in the background every two milliseconds until it receives a message.
#[derive(Default)]
struct Gardener {
    turns: u32,
    stopped: bool,
}

impl Service for Gardener {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn message(&mut self, _: &mut impl Transport, (): ()) {
        self.stopped = true;
    }

    fn turn(&mut self, _: &mut impl Transport) -> Option<linerate_service::time::Duration> {
        self.turns += 1;
        (!self.stopped).then_some(Duration::from_millis(2))
    }
}

#[test]
fn sleep_ends_at_the_service_deadline_or_on_a_message() {
    let (app_sender, mut sockets) = bind(&listening(), 1).unwrap();
    let mut worker = Worker::new(sockets.remove(0), Gardener::default());
    let start = std::time::Instant::now();
    while worker.service().turns < 10 {
        worker.turn(DEADLINE);
    }
    assert!(start.elapsed() >= Duration::from_millis(18) && start.elapsed() < DEADLINE);
    app_sender.send_to_worker(0, ()).unwrap();
    worker.turn(DEADLINE);
    assert!(worker.service().stopped);
    // From another thread, during a longer sleep.
    let telling = std::thread::spawn(move || app_sender.send_to_worker(0, ()).unwrap());
    let turns = worker.service().turns;
    worker.turn(DEADLINE);
    telling.join().unwrap();
    assert_eq!((worker.service().turns, start.elapsed() < DEADLINE), (turns + 1, true));
}

fn error(config: &Config, workers: usize) -> Error {
    bind::<()>(config, workers).map(|_| ()).unwrap_err()
}

#[test]
fn taken_port_is_refused_even_if_its_owner_shares_it() {
    let taken = TcpListener::bind(local()).unwrap();
    let config = Config { listen: vec![taken.local_addr().unwrap()], ..Config::default() };
    let (_, bound) = bind::<()>(&listening(), 2).unwrap();
    let shared = Config { listen: bound[0].tcp_addrs(), ..Config::default() };
    for (config, workers) in [(&config, 1), (&config, 2), (&shared, 1), (&shared, 2)] {
        let error = error(config, workers);
        assert!(matches!(error, Error::Taken { address, .. } if address == config.listen[0]), "{error}");
        assert!(error.to_string().contains(&config.listen[0].to_string()), "{error}");
    }
    let taken = UdpSocket::bind(local()).unwrap();
    let config = Config { listen_udp: vec![taken.local_addr().unwrap()], ..Config::default() };
    assert!(matches!(error(&config, 1), Error::Taken { .. }));
    let twice = Config { listen: vec![bound[0].tcp_addrs()[0]; 2], ..Config::default() };
    drop(bound);
    assert!(matches!(error(&twice, 2), Error::Taken { .. }));
}

#[test]
fn impossible_configuration_is_refused_with_a_remedy() {
    let elsewhere = Config { listen: vec!["192.0.2.1:7".parse().unwrap()], ..Config::default() };
    let not_ours = error(&elsewhere, 1);
    assert!(matches!(not_ours, Error::NotOurs { .. }));
    assert!(not_ours.to_string().contains("tcp 192.0.2.1:7 is not an address of this host"), "{not_ours}");
    assert!(matches!(error(&listening(), 0), Error::Workers(0)));
    assert!(matches!(error(&listening(), 257), Error::Workers(257)));
    assert!(matches!(error(&Config { tx_buffer: 0, ..listening() }, 1), Error::Zero("tx_buffer")));
}

#[test]
fn port_is_free_once_its_service_has_ended() {
    let (_, sockets) = bind::<()>(&listening(), 1).unwrap();
    let config = Config { listen: sockets[0].tcp_addrs(), ..Config::default() };
    let mut worker = Worker::new(sockets.into_iter().next().unwrap(), Echo::default());
    let stream = TcpStream::connect(config.listen[0]).unwrap();
    turn_until(&mut worker, "accepted", |worker| worker.summary().accepted == 1);
    drop(worker);
    drop(stream);
    bind::<()>(&config, 2).unwrap();
}

#[test]
fn only_idle_connection_is_reset() {
    let idle_timeout = Some(Duration::from_millis(400));
    let mut worker = worker(&Config { idle_timeout, ..listening() }, Echo::default());
    let address = worker.tcp_addrs()[0];
    let mut idle = TcpStream::connect(address).unwrap();
    let mut used = TcpStream::connect(address).unwrap();
    used.set_nonblocking(true).unwrap();
    turn_until(&mut worker, "idle connection reset", |worker| {
        used.write_all(b"x").unwrap();
        let _ = used.read(&mut [0; 64]);
        !worker.service().closed.is_empty()
    });
    assert_eq!(worker.service().closed, [CloseReason::IdleTimeout]);
    assert_eq!(worker.summary().drops.get("connection idle for too long"), Some(&1));
    assert_eq!(worker.summary().broken, 1);
    idle.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(idle.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // From here on the other connection is idle as well.
    turn_until(&mut worker, "other connection reset", |worker| worker.service().closed.len() == 2);
}
