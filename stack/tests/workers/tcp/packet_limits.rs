//! Limits on the port's packets held by connections and services, and behaviour before the pool is empty.

use crate::common::client::{Client, Close};
use crate::common::services::Echo;
use crate::common::{Host, Net, SERVER, host, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_bypass::{Capabilities, MacAddr, Nic, QueueStats};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, Origin, Service, Transport};
use linerate_stack::{Config, Mailboxes, Worker};
use std::cell::Cell;
use std::rc::Rc;

/// Port that reports a pool level set by the test.
struct Scarce {
    nic: MemoryNic,
    left: Rc<Cell<usize>>,
}

impl Nic for Scarce {
    type Packet = MemoryPacket;

    fn mac(&self) -> MacAddr {
        self.nic.mac()
    }

    fn capabilities(&self) -> &Capabilities {
        self.nic.capabilities()
    }

    fn link_up(&mut self) -> bool {
        self.nic.link_up()
    }

    fn rx_burst(&mut self, into: &mut Vec<MemoryPacket>) -> usize {
        self.nic.rx_burst(into)
    }

    fn tx_burst(&mut self, from: &mut Vec<MemoryPacket>) -> usize {
        self.nic.tx_burst(from)
    }

    fn allocate(&mut self) -> Option<MemoryPacket> {
        self.nic.allocate()
    }

    fn attach(&mut self, bytes: Bytes) -> Result<MemoryPacket, Bytes> {
        self.nic.attach(bytes)
    }

    fn pool_left(&mut self) -> Option<usize> {
        Some(self.left.get())
    }

    fn stats(&self) -> QueueStats {
        self.nic.stats()
    }
}

#[test]
fn packets_kept_by_service_close_windows_before_drops() {
    const ALL: usize = 32 << 20;
    let (a, b) = Link::pair(LinkConfig::default());
    let clock = a.link().clock().clone();
    let pool = b.capabilities().pool;
    let left = Rc::new(Cell::new(pool));
    let scarce = Scarce { nic: b, left: left.clone() };
    let mailboxes = Mailboxes::for_workers(1).remove(0);
    let mut target: Worker<_, _> = Worker::new(&server(), mailboxes, scarce, |_| Echo::default(), Instant::ZERO);
    let mut source = Host::new(&host(1), vec![a], || Client::new(SERVER, 1, ALL));
    let mut received_after = |turns: u32| {
        for _ in 0..turns {
            clock.advance(Duration::from_micros(10));
            source.workers[0].turn(clock.now());
            target.turn(clock.now());
        }
        let dropped = target.summary().drops.get("receive queue full").copied().unwrap_or(0);
        assert_eq!(dropped, 0);
        source.service().outcomes[0].received
    };
    assert!((1..ALL).contains(&received_after(20)));
    // Two fifths of the packets are free, and the queues are nearly empty: the service holds the other packets. The
    // next reading of the pool level, which is due, reduces the window to one segment.
    left.set(pool * 2 / 5);
    clock.advance(Duration::from_millis(1));
    received_after(2_000);
    // Hardly any packet is free.
    left.set(pool / 5);
    received_after(2_000);
    let stalled = received_after(2_000);
    assert_eq!(received_after(10_000), stalled);
    assert!(stalled < ALL);
    left.set(pool);
    // Long before a zero-window probe.
    assert!(received_after(200) > stalled);
    assert_eq!(received_after(100_000), ALL);
}

/// Service that sends the data it has received as often as permitted, up to a thousand times.
#[derive(Default)]
struct Slices {
    slice: Bytes,
    sent: usize,
    at_once: usize,
}

impl Slices {
    fn send(&mut self, net: &mut impl Transport, conn: ConnId) {
        while self.sent < 1000 && net.send(conn, self.slice.clone()).is_ok() {
            self.sent += 1;
        }
    }
}

impl Service for Slices {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.slice = net.take(conn, 10).expect("received data");
        self.send(net, conn);
        self.at_once = self.sent;
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.send(net, conn);
    }
}

#[test]
fn queued_send_data_is_bounded_across_connections() {
    let target = Config { max_packets: Some(70), ..server() };
    let client = || Client::new(SERVER, 1, 10).closing(Close::Never);
    let mut net = Net::with(LinkConfig::default(), 1, &host(1), client, &target, Slices::default);
    net.expect("all data received", Duration::from_secs(10), |net| {
        net.a.service().outcomes.first().is_some_and(|outcome| outcome.received == 10_000)
    });
    // Four sevenths, the share of a single connection. The rest is for connections that hold less and for reception.
    assert_eq!(net.b.service().at_once, 40);
}
