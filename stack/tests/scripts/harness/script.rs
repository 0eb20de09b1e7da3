//! The script itself: the worker, the wire, the clock, and how a connection is brought about.

use super::arm::{Arm, Received};
use super::flow::{Flow, Got};
use super::params::{DELAYED_ACK, Peer, is_exchanging, ms};
use super::segment::{Rel, SEG, Seg, Want, ack, data, syn, syn_ack};
use super::trace::{describe, describe_got};
use super::wire::{self, CWR, ECE, PEER_MAC, SYN, WORKER_MAC};
use linerate_bypass::memory_nic::{LinkConfig, MemoryNic, MemoryPacket, VirtualClock};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{MacAddr, Nic, Packet};
use linerate_stack::Config;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// The worker's listening port, and the peer's ports when it connects and when it is connected to.
const LISTEN: u16 = 7;
const CLIENT: u16 = 5000;
const SERVER: u16 = 80;
/// Packets of each end of the link.
const POOL: usize = 1024;
/// Turns without time passing after which the worker is taken to spin.
const TURNS: usize = 1000;

/// A script under way.
pub struct Script {
    /// The workers: the first is the one whose segments are expected, see [`Arm`].
    pub(super) arms: Vec<Arm>,
    clock: VirtualClock,
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
            // A table for more takes longer to make than most scripts take.
            max_connections: 4096,
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
        let port = if connect { SERVER } else { CLIENT };
        let remote = SocketAddr::new(peer_ip(peer.ipv6), port);
        let arms = Arm::all(&config, &link, connect.then_some(remote));
        let mut script = Script {
            arms,
            clock,
            flows: BTreeMap::new(),
            port,
            peer,
            pending: VecDeque::new(),
            sent: Vec::new(),
            exchanges: true,
            questions: 0,
            mac: PEER_MAC,
            others: Vec::new(),
            trace: String::new(),
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

    /// A worker on such a link with this configuration, that listens.
    pub fn listen_over_with(peer: Peer, link: LinkConfig, configure: impl FnOnce(&mut Config)) -> Self {
        Setup { link, ..Setup::new(peer, configure) }.start()
    }

    /// Lets connections that are opened from now on be those of another peer.
    pub fn use_peer(&mut self, peer: Peer) {
        self.peer = peer;
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
    pub fn hello(&self, seg: Seg) -> Seg {
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
    /// is kept: one for each worker.
    pub fn inject_shared_hello(&mut self, seg: Seg) -> Vec<MemoryPacket> {
        let hello = self.hello(seg);
        let frame = self.frame(&hello);
        let share = |arm: &mut Arm| {
            let packet = arm.packet(&frame);
            let share = packet.try_clone().expect("the peer's packets come back");
            arm.put(packet);
            share
        };
        let shares = self.arms.iter_mut().map(share).collect();
        self.settle();
        shares
    }

    /// From here on the script is about the worker whose segments it expects, and no other: what a fast path sends at once, the general
    /// path sends at the end of the turn, together with what else the service has written by then.
    pub fn without_controls(&mut self) {
        self.arms.truncate(1);
    }

    /// The worker whose segments are expected.
    pub(super) fn own(&mut self) -> &mut Arm {
        &mut self.arms[0]
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
        self.inject_pieces(seg, &[first]);
    }

    /// Sends a segment to the worker as a chain of packets: at each of `cuts`, places in the payload, another packet begins.
    #[track_caller]
    pub fn inject_pieces(&mut self, seg: Seg, cuts: &[usize]) {
        let now = self.now();
        let flow = self.flow_of(self.port);
        let raw = flow.emit(&seg, now);
        let frame = wire::tcp_frame(flow.remote, flow.local, &raw);
        self.note(format_args!("inject in {} pieces {}", cuts.len() + 1, describe(&seg)));
        let payload = frame.len() - raw.payload.len();
        let cuts: Vec<usize> = cuts.iter().map(|at| payload + at).collect();
        for arm in &mut self.arms {
            let packet = arm.chain(&frame, &cuts);
            arm.put(packet);
        }
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
        self.arms.iter().for_each(|arm| arm.nic.link().set_up(up));
    }

    /// The peer's port stops receiving, or receives again.
    pub fn set_receiving(&mut self, receives: bool) {
        self.note(format_args!("the peer's port {}", if receives { "receives" } else { "stops receiving" }));
        self.arms.iter_mut().for_each(|arm| arm.receives = receives);
    }

    /// Whether the connection of the current port is one whose ends take turns.
    pub fn is_exchanging(&mut self) -> bool {
        self.settle();
        let port = self.port;
        let own = self.own();
        let id = own.log.borrow().conns.get(&port).and_then(|conn| conn.id);
        id.is_some_and(|id| is_exchanging(own.worker.engine(), id))
    }

    /// The connection of the current port is, or is not, one whose ends take turns, if it may be.
    #[track_caller]
    pub fn expect_exchanging(&mut self, exchanging: bool) {
        if self.is_exchanging() != (exchanging && self.exchanges) {
            self.fail(&format!("a connection whose ends take turns: {exchanging} was expected"));
        }
    }

    fn put(&mut self, frame: &[u8]) {
        self.arms.iter_mut().for_each(|arm| arm.put_frame(frame));
    }

    /// Lets time pass; what the worker sends meanwhile can be expected afterwards.
    #[track_caller]
    pub fn pass(&mut self, time: Duration) {
        self.run_until(self.now() + time, |_| false);
    }

    /// Lets everything happen that happens at this time, to each worker.
    #[track_caller]
    pub(super) fn settle(&mut self) {
        let mut is_busy = false;
        for arm in 0..self.arms.len() {
            is_busy |= self.settle_arm(arm);
        }
        if !is_busy {
            return;
        }
        let (own, others) = self.arms.split_at(1);
        if let Some(difference) = others.iter().find_map(|arm| arm.difference(&own[0])) {
            self.fail(&difference);
        }
        self.arms.iter_mut().for_each(Arm::forget);
    }

    /// Lets everything happen to one worker. Returns whether anything did. What the script's own sends is noted, to be expected.
    #[track_caller]
    fn settle_arm(&mut self, at: usize) -> bool {
        let now = self.now();
        for turn in 0..TURNS {
            let (received, is_busy) = match self.arms[at].turn(now, self.mac) {
                Ok(turn) => turn,
                Err(error) => self.fail(&error),
            };
            for frame in received {
                match frame {
                    _ if at > 0 => {}
                    Received::Segment(captured) => self.take_segment(captured),
                    Received::Question => self.questions += 1,
                    Received::Other(bytes) => self.others.push(bytes),
                }
            }
            if !is_busy {
                let wrong = self.arms[at].log.borrow_mut().wrong.take();
                if let Some(wrong) = wrong {
                    self.fail(&format!("{wrong}, with {}", self.arms[at].name));
                }
                return turn > 0;
            }
        }
        self.fail(&format!("the worker does not come to rest, with {}", self.arms[at].name));
    }

    /// Lets time pass until `until`, or until `done`.
    #[track_caller]
    pub(super) fn run_until(&mut self, until: Instant, mut done: impl FnMut(&mut Self) -> bool) {
        self.settle();
        while self.now() < until && !done(self) {
            let deadlines = self.arms.iter_mut().filter_map(|arm| arm.worker.next_deadline());
            let next = deadlines.min().unwrap_or(until).min(until);
            // A deadline that led to nothing: a microsecond on.
            self.clock.advance_to(next.max(self.now() + Duration::from_micros(1)));
            self.settle();
        }
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
        self.own().worker.summary().drops.get(cause).copied().unwrap_or(0)
    }

    /// Returns the payload bytes that the worker has copied.
    pub fn copied(&mut self) -> u64 {
        self.own().worker.summary().copied_bytes
    }

    /// Packets of the peer's and the worker's pools that nobody holds.
    pub fn free_packets(&mut self) -> usize {
        self.settle();
        let own = self.own();
        own.nic.pool_available() + own.worker.nic().pool_available()
    }

    /// Bytes that the worker's port has copied because it takes no chains and no shared packets.
    pub fn copied_by_port(&mut self) -> u64 {
        self.own().worker.nic().stats().copied_bytes
    }

    /// Takes all packets that each worker's port has left, for as long as they are kept.
    pub fn take_packets(&mut self) -> Vec<MemoryPacket> {
        let take = |arm: &mut Arm| std::iter::from_fn(|| arm.worker.nic().allocate()).collect::<Vec<_>>();
        self.arms.iter_mut().flat_map(take).collect()
    }

    /// Ends the script: whatever the worker has sent must have been expected, and no packet may be lost for good.
    ///
    /// Not every script needs it: it is for those about what is left behind.
    #[track_caller]
    pub fn expect_all_packets_back(&mut self) {
        self.pass(ms(1));
        for at in 0..self.arms.len() {
            let Arm { name, worker, nic, .. } = &mut self.arms[at];
            let free = |nic: &MemoryNic| (nic.pool_available(), nic.pool_capacity());
            let ((peers, of_peers), (available, capacity)) = (free(nic), free(worker.nic()));
            // While a service writes, some are set aside for what is not payload.
            let has_connections = linerate_stack::Engine::<MemoryNic>::connections(worker.engine()) > 0;
            let set_aside = if has_connections { SET_ASIDE } else { 0 };
            let is_back = available == capacity || available + set_aside == capacity;
            if peers != of_peers || !is_back {
                let why = format!(
                    "{peers} of {of_peers} packets of the peer are free, {available} of {capacity} of the worker, with {name}"
                );
                self.fail(&why);
            }
        }
    }
}
