//! The script itself: the worker, the wire, the clock, and how a connection is brought about.

use super::app::{App, Command, Log};
use super::flow::{Flow, Got};
use super::params::{DELAYED_ACK, Engine, Peer, assert_consistent, is_exchanging, ms};
use super::segment::{Rel, SEG, Seg, Want, ack, data, syn, syn_ack};
use super::trace::{describe, describe_got};
use super::wire::{self, CWR, ECE, PEER_MAC, SYN, WORKER_MAC};
use linerate_bypass::memory::{Link, LinkConfig, MemoryNic, MemoryPacket, VirtualClock};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{MacAddr, Nic, Packet, Postbox, RxChecksum};
use linerate_stack::{Config, Crossing, Worker};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// The worker's listening port, and the peer's ports when it connects and when it is connected to.
const LISTEN: u16 = 7;
const CLIENT: u16 = 5000;
const SERVER: u16 = 80;
/// Packets of each end of the link.
const POOL: usize = 4096;
/// Turns without time passing after which the worker is taken to spin.
const TURNS: usize = 1000;

/// A script under way.
pub struct Script {
    /// Boxed: a worker is large, and a script is moved about.
    pub(super) worker: Box<Worker<MemoryNic, App, Engine>>,
    nic: MemoryNic,
    clock: VirtualClock,
    pub(super) log: Rc<RefCell<Log>>,
    pub(super) postbox: Postbox<Command>,
    pub(super) flows: BTreeMap<u16, Flow>,
    /// The peer's port where none is said.
    pub(super) port: u16,
    /// What new flows are like.
    peer: Peer,
    /// Segments that the worker has sent and nobody has expected yet.
    pub(super) pending: VecDeque<Got>,
    /// All that it has sent.
    pub sent: Vec<Got>,
    /// Connections may be such as take turns, as far as the configuration is concerned.
    pub exchanges: bool,
    /// How often it has asked for a neighbour's address.
    pub questions: usize,
    /// The peer's Ethernet address.
    mac: [u8; 6],
    /// Other IP packets that it has sent.
    pub(super) others: Vec<Vec<u8>>,
    trace: String,
}

/// What a script begins with.
struct Setup {
    config: Config,
    link: LinkConfig,
    connect: bool,
    peer: Peer,
}

impl Setup {
    fn new(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            addresses: vec!["10.0.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()],
            mac: Some(MacAddr(WORKER_MAC)),
            dad_transmits: 0,
            listen: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
            seed: 1,
            ..Config::default()
        };
        configure(&mut config);
        let link = LinkConfig { pool: POOL, ..LinkConfig::default() };
        Setup { config, link, connect: false, peer }
    }

    fn start(self) -> Script {
        let Setup { config, link, connect, peer } = self;
        let clock = link.clock.clone();
        let (nic, worker_nic) = Link::pair(link);
        let crossing = Crossing::between(1).remove(0);
        let postbox = crossing.postbox();
        let log = Rc::new(RefCell::new(Log::default()));
        let port = if connect { SERVER } else { CLIENT };
        let remote = SocketAddr::new(peer_ip(peer.ipv6), port);
        let app = App { log: log.clone(), connect: if connect { vec![remote] } else { Vec::new() } };
        let worker = Box::new(Worker::new(&config, crossing, worker_nic, |_| app, Instant::ZERO));
        let (flows, pending, others) = (BTreeMap::new(), VecDeque::new(), Vec::new());
        let trace = String::new();
        let (sent, exchanges, questions, mac) = (Vec::new(), true, 0, PEER_MAC);
        let mut script = Script {
            worker,
            nic,
            clock,
            log,
            postbox,
            flows,
            port,
            peer,
            pending,
            sent,
            exchanges,
            questions,
            mac,
            others,
            trace,
        };
        script.settle();
        script
    }
}

/// The peer's address.
fn peer_ip(ipv6: bool) -> IpAddr {
    if ipv6 { "fd00::1".parse().unwrap() } else { IpAddr::from([10, 0, 0, 1]) }
}

/// The worker's address.
fn worker_ip(ipv6: bool) -> IpAddr {
    if ipv6 { "fd00::2".parse().unwrap() } else { IpAddr::from([10, 0, 0, 2]) }
}

impl Peer {
    /// `seg`, a SYN with or without an acknowledgement, with what this peer says in it.
    fn hello(&self, seg: Seg, now: Instant, echo: u32) -> Seg {
        let mut seg = seg.window(self.window);
        seg.mss = self.mss.map_or(Want::Absent, Want::Is);
        seg.window_scale = self.window_scale.map_or(Want::Absent, Want::Is);
        if self.sack {
            seg = seg.sack_permitted();
        }
        if self.timestamps {
            seg = seg.timestamp(Flow::peer_clock(now), echo);
        }
        if self.ecn {
            seg = if seg.flags & wire::ACK != 0 { seg.with(ECE) } else { seg.with(ECE | CWR) };
        }
        seg
    }
}

/// Packets that a worker sets aside while connections write.
const SET_ASIDE: usize = 32;

impl Script {
    /// A worker that listens, and a peer that has done nothing yet.
    pub fn listen(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        Setup::new(peer, configure).start()
    }

    /// A worker whose service has begun to connect to the peer: its SYN is there to be expected.
    pub fn connecting(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        Setup { connect: true, ..Setup::new(peer, configure) }.start()
    }

    /// A worker on a link with this MTU, that listens.
    pub fn listen_on_mtu(peer: Peer, mtu: u16, configure: impl FnOnce(&mut Config)) -> Self {
        let link = LinkConfig { mtu, pool: POOL, data_room: usize::from(mtu) + 128, ..LinkConfig::default() };
        Setup { link, ..Setup::new(peer, configure) }.start()
    }

    /// A worker on such a link, that listens.
    pub fn listen_over(peer: Peer, link: LinkConfig) -> Self {
        Setup { link, ..Setup::new(peer, |_| {}) }.start()
    }

    /// A connection that the peer has opened over such a link.
    pub fn accepted_over(peer: Peer, link: LinkConfig) -> Self {
        Self::accepted_over_with(peer, link, |_| {})
    }

    /// A connection that the peer has opened over such a link to a worker with this configuration.
    pub fn accepted_over_with(peer: Peer, link: LinkConfig, configure: impl FnOnce(&mut Config)) -> Self {
        let mut script = Setup { link, ..Setup::new(peer, configure) }.start();
        script.shake_hands();
        script
    }

    /// A connection that the peer has opened.
    pub fn accepted(peer: Peer) -> Self {
        Self::accepted_with(peer, |_| {})
    }

    /// A connection that the peer has opened to a worker with this configuration.
    pub fn accepted_with(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        let mut script = Self::listen(peer, configure);
        script.shake_hands();
        script
    }

    /// A connection that the worker has opened.
    pub fn connected(peer: Peer) -> Self {
        Self::connected_with(peer, |_| {})
    }

    /// A connection that a worker with this configuration has opened.
    pub fn connected_with(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        let mut script = Self::connecting(peer.clone(), configure);
        script.expect(syn(0).any_ecn());
        script.expect_nothing_for(peer.rtt);
        script.inject_hello(syn_ack(0, 1));
        script.expect(ack(1, 1));
        script.expect_opened();
        script.check_negotiated();
        script
    }

    /// The peer opens a connection from the current port.
    pub fn shake_hands(&mut self) {
        self.inject_hello(syn(0));
        self.expect(syn_ack(0, 1).any_ecn());
        self.expect_nothing_for(self.peer.rtt);
        self.inject(ack(1, 1));
        self.expect_opened();
        self.expect_nothing();
        self.check_negotiated();
    }

    /// What the peer offers has been taken up: a script about it would mean nothing otherwise.
    #[track_caller]
    fn check_negotiated(&mut self) {
        let peer = self.peer.clone();
        let flow = self.flow();
        let (timestamps, scaling, ecn) = (flow.has_timestamps(), flow.has_scaling(), flow.has_ecn());
        if (timestamps, scaling, ecn) != (peer.timestamps, peer.window_scale.is_some(), peer.ecn) {
            self.fail(&format!("negotiated: timestamps {timestamps}, window scaling {scaling}, ECN {ecn}"));
        }
    }

    /// `seg`, a SYN, with the options of the peer.
    fn hello(&self, seg: Seg) -> Seg {
        let port = seg.port.unwrap_or(self.port);
        let echo = self.flows.get(&port).and_then(|flow| flow.last_tsval).unwrap_or(0);
        self.peer.hello(seg, self.now(), echo)
    }

    /// Injects `seg`, a SYN, with the options of the peer.
    pub fn inject_hello(&mut self, seg: Seg) {
        let hello = self.hello(seg);
        self.inject(hello);
    }

    /// Injects `seg`, a SYN, with the options of the peer, in a packet that nobody may write to as long as what is returned
    /// is kept.
    pub fn inject_shared_hello(&mut self, seg: Seg) -> MemoryPacket {
        let hello = self.hello(seg);
        let frame = self.frame(&hello);
        let packet = self.packet(&frame);
        let share = packet.try_clone().expect("the peer's packets come back");
        assert_eq!(self.nic.tx_burst(&mut vec![packet]), 1, "the link takes a frame");
        self.settle();
        share
    }

    /// Lets what follows be about the peer's port `port`, where nothing else is said.
    pub fn on_port(&mut self, port: u16) -> &mut Self {
        self.port = port;
        self
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The connection of the current port.
    pub fn flow(&mut self) -> &mut Flow {
        self.flow_of(self.port)
    }

    /// The connection of a port of the peer.
    pub(super) fn flow_of(&mut self, port: u16) -> &mut Flow {
        let ipv6 = self.peer.ipv6;
        let (remote, local) = (SocketAddr::new(peer_ip(ipv6), port), SocketAddr::new(worker_ip(ipv6), LISTEN));
        self.flows.entry(port).or_insert_with(|| Flow::new(self.peer.clone(), remote, local))
    }

    /// Sends a segment to the worker, and lets the worker do what it does at once.
    #[track_caller]
    pub fn inject(&mut self, seg: Seg) {
        self.inject_burst([seg]);
    }

    /// Sends segments to the worker that it receives in one burst.
    #[track_caller]
    pub fn inject_burst(&mut self, segs: impl IntoIterator<Item = Seg>) {
        for seg in segs {
            let frame = self.frame(&seg);
            self.put(&frame);
        }
        self.settle();
    }

    /// The frame of a segment that is about to be injected.
    fn frame(&mut self, seg: &Seg) -> Vec<u8> {
        let now = self.now();
        let flow = self.flow_of(seg.port.unwrap_or(self.port));
        let raw = flow.emit(seg, now);
        let frame = wire::tcp_frame(flow.remote, flow.local, &raw);
        self.note(format_args!("inject {}", describe(seg)));
        frame
    }

    /// An ICMP error about `about`, a segment of the worker: from the peer's address or, with `from_router`, from a
    /// router's.
    pub fn inject_icmp(&mut self, kind: u8, code: u8, word: u32, about: &Got) {
        let quoted = about.raw.packet.clone();
        self.inject_icmp_quoting(kind, code, word, &quoted);
    }

    /// An ICMP error that quotes `packet`.
    pub fn inject_icmp_quoting(&mut self, kind: u8, code: u8, word: u32, packet: &[u8]) {
        let router: IpAddr = if self.peer.ipv6 { "fd00::9".parse().unwrap() } else { IpAddr::from([10, 0, 0, 9]) };
        let frame = wire::icmp_error(router, worker_ip(self.peer.ipv6), kind, code, word, packet);
        self.note(format_args!("inject ICMP {kind}/{code} {word}"));
        self.put(&frame);
        self.settle();
    }

    /// The peer fills the window that the worker offers, from `seq` on, but for the last `leave` bytes; what the worker
    /// answers is dropped. Returns the peer's next sequence number.
    #[track_caller]
    pub fn fill_window(&mut self, mut seq: Rel, leave: Rel) -> Rel {
        for _ in 0..1000 {
            let room = self.flow().right_edge - seq - leave;
            if room <= 0 {
                return seq;
            }
            let len = room.min(SEG);
            self.inject(data(seq, len));
            self.pass(DELAYED_ACK + ms(5));
            self.drain();
            seq += len;
        }
        self.fail("the window has no end");
    }

    /// The peer acknowledges what the worker has sent up to `to`, a segment of [`SEG`] bytes at a time, from `from` on.
    #[track_caller]
    pub fn ack_each(&mut self, from: Rel, to: Rel) {
        let seq = self.flow().peer_end;
        let mut next = from;
        while next < to {
            next = to.min(next + SEG);
            self.inject(ack(seq, next));
        }
    }

    /// Sends a segment to the worker as a chain of packets: the headers and `first` bytes of payload in one, and
    /// the rest in another.
    #[track_caller]
    pub fn inject_chain(&mut self, seg: Seg, first: usize) {
        let now = self.now();
        let flow = self.flow_of(self.port);
        let raw = flow.emit(&seg, now);
        let frame = wire::tcp_frame(flow.remote, flow.local, &raw);
        self.note(format_args!("inject in two pieces {}", describe(&seg)));
        let (front, rest) = frame.split_at(frame.len() - raw.payload.len() + first);
        let pieces = [front, rest].map(|bytes| {
            let mut packet = self.nic.allocate().expect("the peer's packets come back");
            packet.append(bytes.len()).expect("a piece fits into a packet").copy_from_slice(bytes);
            packet
        });
        let [mut packet, tail] = pieces;
        assert!(packet.chain(tail).is_ok());
        assert_eq!(self.nic.tx_burst(&mut vec![packet]), 1, "the link takes a frame");
        self.settle();
    }

    /// The peer has another Ethernet address from now on, and says so.
    pub fn move_peer(&mut self, mac: [u8; 6]) {
        self.mac = mac;
        let ipv6 = self.peer.ipv6;
        self.put(&wire::announcement(peer_ip(ipv6), worker_ip(ipv6), mac));
        self.settle();
    }

    /// The link goes down, or up.
    pub fn set_link(&mut self, up: bool) {
        self.note(format_args!("link {}", if up { "up" } else { "down" }));
        self.nic.link().set_up(up);
    }

    /// Whether the connection of the current port is one whose ends take turns.
    pub fn is_exchanging(&mut self) -> bool {
        self.settle();
        let id = self.log.borrow().conns.get(&self.port).and_then(|conn| conn.id);
        id.is_some_and(|id| is_exchanging(self.worker.engine(), id))
    }

    /// The connection of the current port is, or is not, one whose ends take turns, if it may be.
    #[track_caller]
    pub fn expect_exchanging(&mut self, exchanging: bool) {
        if self.is_exchanging() != (exchanging && self.exchanges) {
            self.fail(&format!("a connection whose ends take turns: {exchanging} was expected"));
        }
    }

    fn packet(&mut self, frame: &[u8]) -> MemoryPacket {
        let mut packet = self.nic.allocate().expect("the peer's packets come back");
        packet.append(frame.len()).expect("a frame fits into a packet").copy_from_slice(frame);
        packet
    }

    fn put(&mut self, frame: &[u8]) {
        let packet = self.packet(frame);
        assert_eq!(self.nic.tx_burst(&mut vec![packet]), 1, "the link takes a frame");
    }

    /// Lets time pass; what the worker sends meanwhile can be expected afterwards.
    #[track_caller]
    pub fn pass(&mut self, time: Duration) {
        self.run_until(self.now() + time, |_| false);
    }

    /// Lets everything happen that happens at this time.
    #[track_caller]
    pub(super) fn settle(&mut self) {
        for _ in 0..TURNS {
            let now = self.now();
            let work = self.worker.turn(now);
            assert_consistent(self.worker.engine());
            if self.take_frames() + work == 0 {
                let wrong = self.log.borrow_mut().wrong.take();
                if let Some(wrong) = wrong {
                    self.fail(&wrong);
                }
                return;
            }
        }
        self.fail("the worker does not come to rest");
    }

    /// Lets time pass until `until`, or until `done`.
    #[track_caller]
    pub(super) fn run_until(&mut self, until: Instant, mut done: impl FnMut(&mut Self) -> bool) {
        self.settle();
        while self.now() < until && !done(self) {
            let next = self.worker.next_deadline().unwrap_or(until).min(until);
            // A deadline that led to nothing: a microsecond on.
            self.clock.advance_to(next.max(self.now() + Duration::from_micros(1)));
            self.settle();
        }
    }

    /// Takes what the worker has sent, and answers for its neighbours.
    #[track_caller]
    fn take_frames(&mut self) -> usize {
        let mut frames = Vec::with_capacity(256);
        while self.nic.rx_burst(&mut frames) > 0 && frames.len() + 32 <= frames.capacity() {}
        let n = frames.len();
        for frame in frames {
            let bytes: Vec<u8> = frame.segments().flatten().copied().collect();
            let port_sums = frame.rx_info().l4_checksum == RxChecksum::Good;
            match wire::read_tcp(&bytes, self.mac, port_sums) {
                Err(error) => self.fail(&format!("the worker sends {error}: {bytes:02x?}")),
                Ok(Some(captured)) => self.take_segment(captured),
                Ok(None) => match wire::neighbor_answer(&bytes, self.mac) {
                    Some(answer) => {
                        self.questions += 1;
                        self.put(&answer);
                    }
                    None => self.others.push(bytes),
                },
            }
        }
        n
    }

    #[track_caller]
    fn take_segment(&mut self, captured: wire::Captured) {
        let (now, local, port) = (self.now(), captured.from, captured.to.port());
        let flow = self.flow_of(port);
        if captured.flags & SYN != 0 {
            // Where the worker connects from is its own choice.
            flow.local = local;
        }
        let got = flow.read(captured, now);
        let checked = flow.check(&got);
        self.note(format_args!("worker {}", describe_got(&got)));
        if let Err(error) = checked {
            self.fail(&format!("the worker sends {error}"));
        }
        self.sent.push(got.clone());
        self.pending.push_back(got);
    }

    /// Writes a line of the trace.
    pub(super) fn note(&mut self, what: std::fmt::Arguments) {
        let at = self.now().as_micros();
        let _ = writeln!(self.trace, "{:5}.{:06} {what}", at / 1_000_000, at % 1_000_000);
    }

    /// Fails the script.
    #[track_caller]
    pub fn fail(&self, why: &str) -> ! {
        panic!("{why}\n\nwhat happened:\n{}", self.trace);
    }

    /// What the worker has dropped for `cause`.
    pub fn drops(&mut self, cause: &str) -> u64 {
        self.worker.summary().drops.get(cause).copied().unwrap_or(0)
    }

    /// Packets of the peer's and the worker's pools that nobody holds.
    pub fn free_packets(&mut self) -> usize {
        self.settle();
        self.nic.pool_available() + self.worker.nic().pool_available()
    }

    /// Takes all packets that the worker's port has left, for as long as they are kept.
    pub fn take_packets(&mut self) -> Vec<MemoryPacket> {
        std::iter::from_fn(|| self.worker.nic().allocate()).collect()
    }

    /// Ends the script: whatever the worker has sent must have been expected, and no packet may be lost for good.
    ///
    /// Not every script needs it: it is for those about what is left behind.
    #[track_caller]
    pub fn expect_all_packets_back(&mut self) {
        self.pass(ms(1));
        if self.nic.pool_available() != self.nic.pool_capacity() {
            self.fail("packets of the peer that have not come back");
        }
        let (available, capacity) = (self.worker.nic().pool_available(), self.worker.nic().pool_capacity());
        // While a service writes, some are set aside for what is not payload.
        let has_connections = linerate_stack::Engine::<MemoryNic>::connections(self.worker.engine()) > 0;
        let set_aside = if has_connections { SET_ASIDE } else { 0 };
        if available != capacity && available + set_aside != capacity {
            self.fail(&format!("{available} of {capacity} packets of the worker are free"));
        }
    }
}
