//! Senders through a bottleneck that marks packets, in virtual time, and notifications by packets.

use super::packets::*;
use super::scenarios::*;
use super::*;
use crate::{Config, Counters, Device, Driver, Engine, Path, Port};
use linerate_service::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Rates of the senders' links and of the bottleneck in bits per second, and the delay of each.
const LINK: u64 = 40_000_000_000;
const BOTTLENECK: u64 = 10_000_000_000;
const DELAY: Duration = Duration::from_micros(1);
/// Queue lengths in bytes between which packets are marked, with a probability of up to 1 % (the
/// paper's values for links of 40 Gb/s).
const MARKING: [u64; 2] = [5_000, 200_000];
const MARKED_AT_MOST: f64 = 0.01;
const MESSAGE: usize = 65_536;
const OUTSTANDING: u64 = 8;

fn micros(micros: u64) -> Instant {
    Instant::from_nanos(1000 * micros)
}

/// Time to send a packet.
fn serialization(bytes: usize, rate: u64) -> Duration {
    Duration::from_nanos(8_000_000_000 * bytes as u64 / rate)
}

struct Node {
    engine: Engine,
    now: Instant,
}

impl Driver for Node {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn turn(&mut self) {}
}

/// Link of a host, which has room for as much as it sends within a delay.
struct Link {
    now: Instant,
    free: Instant,
    is_ecn: bool,
    /// Packets with the times of their last bits.
    sent: Vec<(Instant, Vec<u8>)>,
}

impl Port for Link {
    fn has_room(&mut self) -> bool {
        self.free < self.now + DELAY
    }

    fn send(&mut self, path: &Path, len: usize, write: impl FnOnce(&mut [u8])) {
        let mut packet = vec![0; len];
        write(&mut packet);
        let mut bytes = [path.headers(len).bytes(), &packet].concat();
        bytes[1] |= if self.is_ecn { 2 } else { 0 };
        self.free = self.free.max(self.now) + serialization(bytes.len(), LINK);
        self.sent.push((self.free, bytes));
    }
}

struct Host {
    device: Device<Node>,
    link: Link,
    memory: Memory,
    keys: Keys,
    cq: Handle,
    starts: Instant,
    qps: Vec<(Handle, u32)>,
    /// Requests posted and completed.
    posted: u64,
    completed: u64,
}

impl Host {
    fn new(number: u8, qps: usize, is_ecn: bool, starts: Instant) -> Self {
        let ip = IpAddr::from([10, 0, 0, number]);
        let mut engine = Engine::new(&Config { seed: number.into(), mtu: 4300, addresses: vec![(ip, 8)] }).unwrap();
        if is_ecn {
            engine.enable_ecn();
        }
        let device = Device::new("host", Node { engine, now: Instant::ZERO });
        let pd = device.alloc_pd().unwrap();
        let memory = Memory::new(MESSAGE);
        let keys = call!(device.reg_mr(pd, memory.start(), MESSAGE, ALL)).unwrap().1;
        let cq = call!(device.create_cq(64, None, 0)).unwrap();
        let cap = QpCap { sends: 16, receives: 0, send_sges: 1, recv_sges: 0, inline: 0 };
        let attr = QpInitAttr { send_cq: cq, recv_cq: cq, srq: None, cap };
        let qps = (0..qps).map(|_| call!(device.create_qp(pd, &attr)).unwrap()).map(|(qp, number, _)| (qp, number));
        let qps = qps.collect();
        let link = Link { now: Instant::ZERO, free: Instant::ZERO, is_ecn, sent: Vec::new() };
        Host { device, link, memory, keys, cq, starts, qps, posted: 0, completed: 0 }
    }

    fn connect(&self, index: usize, peer: &Host, peer_index: usize) {
        let [gid, to] = [self, peer].map(|host| host.device.gids(1).unwrap()[0]);
        let (path, (qp, _)) = (AhAttr::to(to.raw, 0, &gid), self.qps[index]);
        let (mtu, peer_qp) = (Mtu::Mtu4096, peer.qps[peer_index].1);
        let (psn, responder_resources, min_rnr_timer) = (0, 8, 1);
        for transition in [
            End::init(),
            Transition::Rtr { mtu, qp: peer_qp, psn, responder_resources, min_rnr_timer, path },
            Transition::Rts { psn, timeout: 14, retries: 7, rnr_retries: 7, initiator_depth: 8 },
        ] {
            call!(self.device.modify_qp(qp, &transition)).unwrap();
        }
    }

    /// Polls completions and posts requests to write the memory of `peer`, or to read it.
    fn post(&mut self, peer: (u64, u32), reads: bool) {
        let mut into = Vec::with_capacity(64);
        call!(self.device.poll_cq(self.cq, &mut into)).unwrap();
        assert!(into.iter().all(|done| done.status == WcStatus::Success), "{into:?}");
        self.completed += into.len() as u64;
        while self.posted < self.completed + OUTSTANDING {
            self.posted += 1;
            let (address, rkey) = peer;
            let operation = if reads { Operation::Read { address, rkey } } else { Operation::Write { address, rkey } };
            let (address, len) = (self.memory.start() as u64, MESSAGE as u32);
            let sges = [Sge { address, len, lkey: self.keys.local }];
            let request = SendWr { id: self.posted, sges: &sges, operation, flags: SIGNALLED };
            call!(self.device.post_send(self.qps[0].0, &[request])).unwrap();
        }
    }

    fn counters(&self) -> Counters {
        self.device.driver().engine.counters()
    }
}

/// Place that a packet arrives at.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Bottleneck,
    Host(u8),
}

/// Packet that arrives at a time. The number keeps the order of those at the same time.
type Arrival = (Instant, u64, Place, Vec<u8>);

/// Senders, numbered from 1, and a receiver with a queue pair for each. Data pass through the bottleneck.
struct Incast {
    /// The receiver is the first host.
    hosts: Vec<Host>,
    now: Instant,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    count: u64,
    /// Time until which the bottleneck sends, and its longest queue in bytes since the last reset.
    busy_until: Instant,
    longest: u64,
    random: fastrand::Rng,
    reads: bool,
}

impl Incast {
    fn new(starts: &[Instant], is_ecn: bool, reads: bool) -> Self {
        let receiver = Host::new(0, starts.len(), is_ecn, Instant::ZERO);
        let senders = (1..).zip(starts).map(|(number, starts)| Host::new(number, 1, is_ecn, *starts));
        let hosts: Vec<_> = std::iter::once(receiver).chain(senders).collect();
        for (index, sender) in hosts[1..].iter().enumerate() {
            hosts[0].connect(index, sender, 0);
            sender.connect(0, &hosts[0], index);
        }
        let (now, random) = (Instant::ZERO, fastrand::Rng::with_seed(1));
        Incast { hosts, now, arrivals: BinaryHeap::new(), count: 0, busy_until: now, longest: 0, random, reads }
    }

    fn arrive(&mut self, at: Instant, place: Place, packet: Vec<u8>) {
        self.count += 1;
        self.arrivals.push(Reverse((at, self.count, place, packet)));
    }

    fn pass_bottleneck(&mut self, mut packet: Vec<u8>) {
        let waits = self.busy_until.since(self.now).as_nanos() as u64;
        let queue = waits * BOTTLENECK / 8_000_000_000;
        self.longest = self.longest.max(queue);
        let [least, most] = MARKING;
        let chance = if queue > most {
            1.0
        } else {
            MARKED_AT_MOST * queue.saturating_sub(least) as f64 / (most - least) as f64
        };
        if packet[1] & 3 == 2 && self.random.f64() < chance {
            packet[1] |= 3;
        }
        self.busy_until = self.busy_until.max(self.now) + serialization(packet.len(), BOTTLENECK);
        self.arrive(self.busy_until + DELAY, Place::Host(packet[19]), packet);
    }

    /// Performs the events of one point in time. Returns false if the next one is after `end`.
    fn step(&mut self, end: Instant) -> bool {
        let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        let turns = self.hosts.iter().filter_map(|Host { device, link, .. }| {
            let driver = device.driver();
            if driver.engine.is_pending() { Some(link.free - DELAY + NANO) } else { driver.engine.next_deadline() }
        });
        let starts = self.hosts[1..].iter().filter(|host| host.posted == 0).map(|host| host.starts);
        let Some(next) = turns.chain(arrival).chain(starts).min().filter(|next| *next <= end) else { return false };
        self.now = self.now.max(next);
        while let Some(Reverse((at, ..))) = self.arrivals.peek()
            && *at <= self.now
            && let Some(Reverse((_, _, place, packet))) = self.arrivals.pop()
        {
            match place {
                Place::Bottleneck => self.pass_bottleneck(packet),
                Place::Host(number) => {
                    self.hosts[usize::from(number)].device.driver().engine.receive(&packet, self.now);
                }
            }
        }
        let open = (self.hosts[0].memory.start() as u64, self.hosts[0].keys.remote);
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if index > 0 && host.starts <= self.now {
                host.post(open, self.reads);
            }
            host.link.now = self.now;
            host.device.driver().engine.transmit(self.now, &mut host.link);
            for (at, packet) in std::mem::take(&mut host.link.sent) {
                // The data of WRITEs go to the first host, those of READs come from it.
                let has_data = (packet[19] == 0) != self.reads;
                let place = if has_data { Place::Bottleneck } else { Place::Host(packet[19]) };
                self.arrive(at + DELAY, place, packet);
            }
        }
        true
    }

    /// Runs until `end`. Returns the rate of each sender in bits per second, and the longest queue.
    fn run(&mut self, end: Instant) -> (Vec<f64>, u64) {
        let began = self.now;
        let before: Vec<_> = self.hosts[1..].iter().map(|host| host.completed).collect();
        self.longest = 0;
        while self.step(end) {}
        self.now = end;
        let seconds = end.since(began).as_secs_f64();
        let after = self.hosts[1..].iter().map(|host| host.completed);
        let rate = |messages: u64| (messages * MESSAGE as u64 * 8) as f64 / seconds;
        (after.zip(before).map(|(after, before)| rate(after - before)).collect(), self.longest)
    }
}

const NANO: Duration = Duration::from_nanos(1);

#[test]
fn queue_of_the_bottleneck_stays_short_and_the_link_busy() {
    for reads in [false, true] {
        let mut without = Incast::new(&[Instant::ZERO], false, reads);
        without.run(micros(2_000));
        let (rates, longest) = without.run(micros(10_000));
        assert!(rates[0] > 0.9 * BOTTLENECK as f64 && longest > 400_000, "{rates:?} {longest}");
        assert_eq!(without.hosts[0].counters().marked, 0, "not ECN-capable");

        let mut with = Incast::new(&[Instant::ZERO], true, reads);
        with.run(micros(10_000));
        let (rates, longest) = with.run(micros(60_000));
        assert!(rates[0] > 0.8 * BOTTLENECK as f64, "{rates:?}");
        assert!(longest < 300_000, "{longest}");
        let [receiver, sender] = [0, 1].map(|host| with.hosts[host].counters());
        let (from, to) = if reads { (receiver, sender) } else { (sender, receiver) };
        assert!(to.marked >= to.notifications_sent && to.notifications_sent == from.notifications_received);
        assert!((1..=60_000 / 50).contains(&to.notifications_sent), "{}", to.notifications_sent);
        assert_eq!((from.timeouts, from.repeated, to.out_of_sequence), (0, 0, 0));
    }
}

#[test]
fn later_sender_gets_its_share() {
    let mut incast = Incast::new(&[Instant::ZERO, micros(5_000)], true, false);
    incast.run(micros(60_000));
    let (rates, longest) = incast.run(micros(160_000));
    let (least, most) = (rates[0].min(rates[1]), rates[0].max(rates[1]));
    assert!(least > 0.8 * most && least + most > 0.8 * BOTTLENECK as f64, "{rates:?}");
    assert!(longest < 400_000, "{longest}");
}

#[test]
fn marked_packet_causes_a_notification_per_interval() {
    for is_ecn in [false, true] {
        let script = Script::new();
        if is_ecn {
            script.sim.enable_ecn();
        }
        (0..8).for_each(|id| script.receive(id, 0, 8));
        let mut psn = 200;
        let mut mark = |traffic_class: u8| {
            let mut packet = script.packet((0x04, psn, vec![1])).bytes();
            packet[1] = traffic_class;
            script.fabric.inject([10, 0, 0, 1].into(), &packet);
            psn += 1;
        };
        let cnps = || script.sent().into_iter().filter(|(opcode, ..)| *opcode == 0x81).collect::<Vec<_>>();
        let cnp = || if is_ecn { vec![(0x81, 0, vec![0; 16])] } else { vec![] };
        mark(2);
        assert_eq!(cnps(), []);
        mark(3);
        mark(0x6b);
        assert_eq!(cnps(), cnp());
        script.pass(Duration::from_micros(49));
        mark(3);
        assert_eq!(cnps(), []);
        script.pass(Duration::from_micros(1));
        mark(3);
        assert_eq!(cnps(), cnp());
        assert_eq!(script.ends().len(), 5, "marked packets are received");
        let Counters { marked, notifications_sent, .. } = script.counters();
        assert_eq!((marked, notifications_sent), if is_ecn { (4, 2) } else { (0, 0) });
    }
}

#[test]
fn notification_has_the_layout_of_the_annex() {
    let script = Script::new();
    script.sim.enable_ecn();
    script.receive(0, 0, 8);
    let mut packet = script.packet((0x04, 200, vec![1])).bytes();
    packet[1] = 3;
    script.fabric.inject([10, 0, 0, 1].into(), &packet);
    script.pass(Duration::ZERO);
    let sent = script.fabric.take_sent();
    let notification = sent.iter().find(|packet| packet[28] == 0x81).unwrap();
    // Migrated, P_Key, BECN, the queue pair of the peer; 16 reserved bytes.
    let bth = [0x81, 0x40, 0xff, 0xff, 0x40, 0x77, 0x77, 0x77, 0, 0, 0, 0];
    assert_eq!(notification[28..56], [&bth[..], &[0; 16]].concat());
    assert_eq!(Packet::read(notification).opcode, 0x81, "the ICRC is valid");
}

#[test]
fn notification_delays_packets_of_its_queue_pair() {
    for is_ecn in [false, true] {
        let script = Script::new();
        if is_ecn {
            script.sim.enable_ecn();
        }
        // 50 Gb/s, and so on: a reduction per notification to the least rate.
        for _ in 0..20 {
            script.give([(0x81, 0, vec![0; 16])]);
            script.pass(Duration::from_micros(50));
        }
        (0..4).for_each(|id| script.post(id, 256));
        // One packet, and another one after 0.2 ms.
        let first = script.numbers().len();
        script.pass(Duration::from_micros(190));
        let second = script.numbers().len();
        script.pass(Duration::from_micros(50));
        assert_eq!((first, second, script.numbers().len()), if is_ecn { (1, 0, 1) } else { (4, 0, 0) });
        // Acknowledgements are not delayed.
        script.receive(9, 0, 8);
        script.give([(0x04, 200, vec![1])]);
        assert_eq!(script.acknowledgements(), [(200, ACK)]);
        script.pass(Duration::from_millis(1));
        let sent = script.numbers();
        assert_eq!(sent.len(), if is_ecn { 2 } else { 0 });
        script.acknowledge(103, ACK);
        assert_eq!(script.ends().len(), 5);
        assert_eq!(script.counters().notifications_received, 20);
    }
}

#[test]
fn notifications_of_others_are_discarded() {
    let script = Script::new();
    script.sim.enable_ecn();
    let mut packet = script.packet((0x81, 0, vec![0; 16]));
    packet.from = [10, 0, 0, 3].into();
    script.fabric.inject([10, 0, 0, 1].into(), &packet.bytes());
    script.give([(0x82, 0, vec![0; 16])]);
    let Counters { unexpected, notifications_received, .. } = script.counters();
    assert_eq!((unexpected, notifications_received), (2, 0));
}
