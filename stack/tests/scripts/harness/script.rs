//! Script: worker, wire, clock, and connection setup.

use super::arm::{Arm, Received};
use super::flow::{Flow, Got};
use super::params::{DELAYED_ACK, Peer, ms};
use super::segment::{Rel, SEG, Seg, Want, ack, data, syn, syn_ack};
use super::trace::{describe, describe_got};
use super::wire::{self, CWR, ECE, PEER_MAC, SYN, WORKER_MAC};
use linerate_bypass::memory_nic::{LinkConfig, MemoryNic, MemoryPacket, VirtualClock};
use linerate_bypass::{MacAddr, Nic, Packet};
use linerate_service::time::{Duration, Instant};
use linerate_stack::Config;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// Listening port of the worker.
const LISTEN: u16 = 7;
/// Port of the peer as client.
const CLIENT: u16 = 5000;
const SERVER: u16 = 80;
/// Packets in the pool of each end of the link.
const POOL: usize = 1024;
/// Worker turns without a time step after which the worker counts as spinning.
const TURNS: usize = 1000;

/// Running script.
pub struct Script {
    /// Workers; the script expects the segments of the first. See [`Arm`].
    pub(super) arms: Vec<Arm>,
    clock: VirtualClock,
    pub(super) flows: BTreeMap<u16, Flow>,
    /// Port of the peer for commands and segments without a port.
    pub(super) port: u16,
    peer: Peer,
    /// Segments of the worker that the script has not expected yet.
    pub(super) pending: VecDeque<Got>,
    /// All segments of the worker.
    pub sent: Vec<Got>,
    /// True if the configuration permits request-response mode.
    pub rr_allowed: bool,
    pub neighbor_requests: usize,
    /// Ethernet address of the peer.
    mac: [u8; 6],
    /// Frames of the worker without TCP.
    pub(super) non_tcp: Vec<Vec<u8>>,
    trace: String,
}

/// Initial conditions of a script.
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
            // A larger table takes longer to create than most scripts run.
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
            rr_allowed: true,
            neighbor_requests: 0,
            mac: PEER_MAC,
            non_tcp: Vec::new(),
            trace: String::new(),
        };
        script.run_until_idle();
        script
    }
}

fn peer_ip(ipv6: bool) -> IpAddr {
    if ipv6 { "fd00::1".parse().unwrap() } else { IpAddr::from([10, 0, 0, 1]) }
}

fn worker_ip(ipv6: bool) -> IpAddr {
    if ipv6 { "fd00::2".parse().unwrap() } else { IpAddr::from([10, 0, 0, 2]) }
}

impl Peer {
    /// Adds this peer's options to `seg`, a SYN or SYN-ACK.
    fn syn_with_options(&self, seg: Seg, now: Instant, echo: u32) -> Seg {
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

/// Packets that a worker reserves for control segments while connections write.
pub const CONTROL_RESERVE: usize = 32;

impl Script {
    /// Starts a listening worker.
    pub fn listen(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        Setup::new(peer, configure).start()
    }

    /// Starts a worker whose service connects to the peer. The script expects its SYN.
    pub fn connecting(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        Setup { connect: true, ..Setup::new(peer, configure) }.start()
    }

    /// Starts a listening worker on a link with this MTU.
    pub fn listen_on_mtu(peer: Peer, mtu: u16, configure: impl FnOnce(&mut Config)) -> Self {
        let link = LinkConfig { mtu, pool: POOL, data_room: usize::from(mtu) + 128, ..LinkConfig::default() };
        Setup { link, ..Setup::new(peer, configure) }.start()
    }

    /// Starts a listening worker on `link`.
    pub fn listen_over(peer: Peer, link: LinkConfig) -> Self {
        Setup { link, ..Setup::new(peer, |_| {}) }.start()
    }

    /// Starts a listening worker on `link` with this configuration.
    pub fn listen_over_with(peer: Peer, link: LinkConfig, configure: impl FnOnce(&mut Config)) -> Self {
        Setup { link, ..Setup::new(peer, configure) }.start()
    }

    /// Sets the peer of connections that are opened from now on.
    pub fn set_peer(&mut self, peer: Peer) {
        self.peer = peer;
    }

    /// Starts a script with a connection that the peer has opened over `link`.
    pub fn accepted_over(peer: Peer, link: LinkConfig) -> Self {
        Self::accepted_over_with(peer, link, |_| {})
    }

    /// Starts a script with a connection that the peer has opened over `link` to a worker with this configuration.
    pub fn accepted_over_with(peer: Peer, link: LinkConfig, configure: impl FnOnce(&mut Config)) -> Self {
        let mut script = Setup { link, ..Setup::new(peer, configure) }.start();
        script.handshake();
        script
    }

    /// Starts a script with a connection that the peer has opened.
    pub fn accepted(peer: Peer) -> Self {
        Self::accepted_with(peer, |_| {})
    }

    /// Starts a script with a connection that the peer has opened to a worker with this configuration.
    pub fn accepted_with(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        let mut script = Self::listen(peer, configure);
        script.handshake();
        script
    }

    /// Starts a script with a connection that the worker has opened.
    pub fn connected(peer: Peer) -> Self {
        Self::connected_with(peer, |_| {})
    }

    /// Starts a script with a connection that a worker with this configuration has opened.
    pub fn connected_with(peer: Peer, configure: impl FnOnce(&mut Config)) -> Self {
        let mut script = Self::connecting(peer.clone(), configure);
        script.expect(syn(0).any_ecn());
        script.expect_nothing_for(peer.rtt);
        script.inject_syn(syn_ack(0, 1));
        script.expect(ack(1, 1));
        script.expect_opened();
        script.check_negotiated();
        script
    }

    /// Opens a connection from the peer's current port.
    pub fn handshake(&mut self) {
        self.inject_syn(syn(0));
        self.expect(syn_ack(0, 1).any_ecn());
        self.expect_nothing_for(self.peer.rtt);
        self.inject(ack(1, 1));
        self.expect_opened();
        self.expect_nothing();
        self.check_negotiated();
    }

    /// Checks that every option the peer offers was negotiated.
    #[track_caller]
    fn check_negotiated(&mut self) {
        let peer = self.peer.clone();
        let flow = self.flow();
        let (timestamps, scaling, ecn) = (flow.has_timestamps(), flow.has_scaling(), flow.has_ecn());
        if (timestamps, scaling, ecn) != (peer.timestamps, peer.window_scale.is_some(), peer.ecn) {
            self.fail(&format!("negotiated: timestamps {timestamps}, window scaling {scaling}, ECN {ecn}"));
        }
    }

    /// Returns `seg`, a SYN, with the options of the peer.
    pub fn syn_with_options(&self, seg: Seg) -> Seg {
        let port = seg.port.unwrap_or(self.port);
        let echo = self.flows.get(&port).and_then(|flow| flow.last_tsval).unwrap_or(0);
        self.peer.syn_with_options(seg, self.now(), echo)
    }

    /// Injects `seg`, a SYN, with the options of the peer.
    pub fn inject_syn(&mut self, seg: Seg) -> &mut Self {
        let seg = self.syn_with_options(seg);
        self.inject(seg)
    }

    /// Injects `seg`, a SYN, with the options of the peer, in a packet that is shared while the returned packets (one
    /// per arm) are held.
    pub fn inject_shared_syn(&mut self, seg: Seg) -> Vec<MemoryPacket> {
        let seg = self.syn_with_options(seg);
        let frame = self.frame(&seg);
        let share = |arm: &mut Arm| {
            let packet = arm.packet(&frame);
            let share = packet.try_clone().expect("the peer's pool has a packet");
            arm.transmit(packet);
            share
        };
        let shares = self.arms.iter_mut().map(share).collect();
        self.run_until_idle();
        shares
    }

    /// Stops comparing arms. A fast path sends at once; the general path sends at the end of the turn, together with
    /// the other data that the service has written by then, so segment boundaries may differ.
    pub fn drop_other_arms(&mut self) {
        self.arms.truncate(1);
    }

    /// Returns the arm whose segments are expected.
    pub(super) fn first_arm(&mut self) -> &mut Arm {
        &mut self.arms[0]
    }

    /// Selects the peer's port of subsequent steps.
    pub fn on_port(&mut self, port: u16) -> &mut Self {
        self.port = port;
        self
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    pub fn flow(&mut self) -> &mut Flow {
        self.flow_of(self.port)
    }

    /// Returns the connection of a port of the peer.
    pub(super) fn flow_of(&mut self, port: u16) -> &mut Flow {
        let ipv6 = self.peer.ipv6;
        let (remote, local) = (SocketAddr::new(peer_ip(ipv6), port), SocketAddr::new(worker_ip(ipv6), LISTEN));
        self.flows.entry(port).or_insert_with(|| Flow::new(self.peer.clone(), remote, local))
    }

    /// Injects a segment and runs the worker until idle. Returns the script, to expect the response.
    #[track_caller]
    pub fn inject(&mut self, seg: Seg) -> &mut Self {
        self.inject_burst([seg]);
        self
    }

    /// Injects a segment `times` times, each after the worker is idle.
    #[track_caller]
    pub fn inject_times(&mut self, times: usize, seg: Seg) -> &mut Self {
        for _ in 0..times {
            self.inject(seg.clone());
        }
        self
    }

    /// Injects the segments `numbers` of a stream that is divided into segments of `len` bytes.
    #[track_caller]
    pub fn inject_run(&mut self, numbers: std::ops::Range<Rel>, len: Rel) -> &mut Self {
        for n in numbers {
            self.inject(data(1 + n * len, len));
        }
        self
    }

    /// Injects segments in one receive burst and runs the worker until idle.
    #[track_caller]
    pub fn inject_burst(&mut self, segs: impl IntoIterator<Item = Seg>) -> &mut Self {
        for seg in segs {
            let frame = self.frame(&seg);
            self.transmit(&frame);
        }
        self.run_until_idle();
        self
    }

    /// Returns the frame of a segment to inject.
    fn frame(&mut self, seg: &Seg) -> Vec<u8> {
        let now = self.now();
        let flow = self.flow_of(seg.port.unwrap_or(self.port));
        let raw = flow.emit(seg, now);
        let frame = wire::tcp_frame(flow.remote, flow.local, &raw);
        self.note(format_args!("inject {}", describe(seg)));
        frame
    }

    /// Injects an ICMP error from a router about `about`, a segment of the worker.
    pub fn inject_icmp(&mut self, kind: u8, code: u8, word: u32, about: &Got) {
        let quoted = about.raw.packet.clone();
        self.inject_icmp_quoting(kind, code, word, &quoted);
    }

    /// Injects an ICMP error that quotes `packet`.
    pub fn inject_icmp_quoting(&mut self, kind: u8, code: u8, word: u32, packet: &[u8]) {
        let router: IpAddr = if self.peer.ipv6 { "fd00::9".parse().unwrap() } else { IpAddr::from([10, 0, 0, 9]) };
        let frame = wire::icmp_error(router, worker_ip(self.peer.ipv6), kind, code, word, packet);
        self.note(format_args!("inject ICMP {kind}/{code} {word}"));
        self.transmit(&frame);
        self.run_until_idle();
    }

    /// Fills the worker's receive window from `seq`, except for the last `leave` bytes, and discards the replies.
    /// Returns the peer's next sequence number.
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
        self.fail("the window does not fill up");
    }

    /// Injects acknowledgements of the worker's data from `from` to `to`, one per [`SEG`] bytes.
    #[track_caller]
    pub fn ack_each(&mut self, from: Rel, to: Rel) {
        let seq = self.flow().peer_end;
        let mut next = from;
        while next < to {
            next = to.min(next + SEG);
            self.inject(ack(seq, next));
        }
    }

    /// Injects a segment as a chain of two packets: the headers and `first` bytes of payload, and the remaining
    /// payload.
    #[track_caller]
    pub fn inject_chain(&mut self, seg: Seg, first: usize) {
        self.inject_chunks(seg, &[first]);
    }

    /// Injects a segment as a chain of packets that is divided at the payload offsets `cuts`.
    #[track_caller]
    pub fn inject_chunks(&mut self, seg: Seg, cuts: &[usize]) {
        let now = self.now();
        let flow = self.flow_of(self.port);
        let raw = flow.emit(&seg, now);
        let frame = wire::tcp_frame(flow.remote, flow.local, &raw);
        self.note(format_args!("inject in {} chunks {}", cuts.len() + 1, describe(&seg)));
        let payload = frame.len() - raw.payload.len();
        let cuts: Vec<usize> = cuts.iter().map(|at| payload + at).collect();
        for arm in &mut self.arms {
            let packet = arm.chain(&frame, &cuts);
            arm.transmit(packet);
        }
        self.run_until_idle();
    }

    /// Changes the Ethernet address of the peer and announces it.
    pub fn change_peer_mac(&mut self, mac: [u8; 6]) {
        self.mac = mac;
        let ipv6 = self.peer.ipv6;
        self.transmit(&wire::announcement(peer_ip(ipv6), worker_ip(ipv6), mac));
        self.run_until_idle();
    }

    pub fn set_link(&mut self, up: bool) {
        self.note(format_args!("link {}", if up { "up" } else { "down" }));
        self.arms.iter().for_each(|arm| arm.nic.link().set_up(up));
    }

    pub fn set_receiving(&mut self, receives: bool) {
        self.note(format_args!("the peer's port {}", if receives { "receives" } else { "does not receive" }));
        self.arms.iter_mut().for_each(|arm| arm.receives = receives);
    }

    /// Returns true if the connection of the current port is in request-response mode.
    pub fn is_rr(&mut self) -> bool {
        self.run_until_idle();
        let port = self.port;
        let arm = self.first_arm();
        let id = arm.log.borrow().conns.get(&port).and_then(|conn| conn.id);
        id.is_some_and(|id| arm.worker.engine().in_rr_mode(id))
    }

    /// Expects the connection of the current port to be in request-response mode or not, if the configuration permits
    /// it.
    #[track_caller]
    pub fn expect_rr(&mut self, rr: bool) {
        if self.is_rr() != (rr && self.rr_allowed) {
            self.fail(&format!("expected request-response mode: {rr}"));
        }
    }

    fn transmit(&mut self, frame: &[u8]) {
        self.arms.iter_mut().for_each(|arm| arm.transmit_frame(frame));
    }

    /// Lets time pass. Segments sent meanwhile can be expected afterwards.
    #[track_caller]
    pub fn pass(&mut self, time: Duration) {
        self.run_until(self.now() + time, |_| false);
    }

    /// Runs every arm until idle, without a time step, and compares the arms.
    #[track_caller]
    pub(super) fn run_until_idle(&mut self) {
        let mut is_busy = false;
        for arm in 0..self.arms.len() {
            is_busy |= self.run_arm_until_idle(arm);
        }
        if !is_busy {
            return;
        }
        let (first, others) = self.arms.split_at(1);
        if let Some(difference) = others.iter().find_map(|arm| arm.difference(&first[0])) {
            self.fail(&difference);
        }
        self.arms.iter_mut().for_each(Arm::clear_compared);
    }

    /// Runs one arm until idle and records the segments of the first arm. Returns true if the arm did any work.
    #[track_caller]
    fn run_arm_until_idle(&mut self, at: usize) -> bool {
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
                    Received::NeighborRequest => self.neighbor_requests += 1,
                    Received::Other(bytes) => self.non_tcp.push(bytes),
                }
            }
            if !is_busy {
                let mismatch = self.arms[at].log.borrow_mut().mismatch.take();
                if let Some(mismatch) = mismatch {
                    self.fail(&format!("{mismatch}, with {}", self.arms[at].name));
                }
                return turn > 0;
            }
        }
        self.fail(&format!("the worker does not become idle, with {}", self.arms[at].name));
    }

    /// Lets time pass until `until`, or until `done` returns true.
    #[track_caller]
    pub(super) fn run_until(&mut self, until: Instant, mut done: impl FnMut(&mut Self) -> bool) {
        self.run_until_idle();
        while self.now() < until && !done(self) {
            let deadlines = self.arms.iter_mut().filter_map(|arm| arm.worker.next_deadline());
            let next = deadlines.min().unwrap_or(until).min(until);
            // Advance at least 1 µs past a deadline that caused no work.
            self.clock.advance_to(next.max(self.now() + Duration::from_micros(1)));
            self.run_until_idle();
        }
    }

    #[track_caller]
    fn take_segment(&mut self, captured: wire::Captured) {
        let (now, local, port) = (self.now(), captured.from, captured.to.port());
        let flow = self.flow_of(port);
        if captured.flags & SYN != 0 {
            // The worker chooses its own port when it connects.
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

    /// Appends a line to the trace.
    pub(super) fn note(&mut self, text: std::fmt::Arguments) {
        let at = self.now().as_micros();
        let _ = writeln!(self.trace, "{:5}.{:06} {text}", at / 1_000_000, at % 1_000_000);
    }

    #[track_caller]
    pub fn fail(&self, reason: &str) -> ! {
        panic!("{reason}\n\ntrace:\n{}", self.trace);
    }

    /// Returns the worker's drop count for `cause`.
    pub fn drops(&mut self, cause: &str) -> u64 {
        self.first_arm().worker.summary().drops.get(cause).copied().unwrap_or(0)
    }

    pub fn copied(&mut self) -> u64 {
        self.first_arm().worker.summary().copied_bytes
    }

    /// Returns the number of free packets in the pools of the peer and the worker.
    pub fn free_packets(&mut self) -> usize {
        self.run_until_idle();
        let arm = self.first_arm();
        arm.nic.pool_available() + arm.worker.nic().pool_available()
    }

    /// Returns the bytes that the worker's port has copied because it takes neither chains nor shared packets.
    pub fn copied_by_port(&mut self) -> u64 {
        self.first_arm().worker.nic().stats().copied_bytes
    }

    /// Allocates and returns all free packets of each worker's port.
    pub fn take_packets(&mut self) -> Vec<MemoryPacket> {
        let take = |arm: &mut Arm| std::iter::from_fn(|| arm.worker.nic().allocate()).collect::<Vec<_>>();
        self.arms.iter_mut().flat_map(take).collect()
    }

    /// Checks that no packet is lost and that no unexpected segment was sent.
    #[track_caller]
    pub fn expect_no_packets_held(&mut self) {
        self.pass(ms(1));
        for at in 0..self.arms.len() {
            let Arm { name, worker, nic, .. } = &mut self.arms[at];
            let free = |nic: &MemoryNic| (nic.pool_available(), nic.pool_capacity());
            let ((peers, of_peers), (available, capacity)) = (free(nic), free(worker.nic()));
            // While connections write, the worker reserves packets for control segments.
            let has_connections = linerate_stack::Engine::<MemoryNic>::connections(worker.engine()) > 0;
            let reserve = if has_connections { CONTROL_RESERVE } else { 0 };
            let is_back = available == capacity || available + reserve == capacity;
            if peers != of_peers || !is_back {
                let reason = format!(
                    "free packets: {peers} of {of_peers} at the peer, {available} of {capacity} at the worker, with {name}"
                );
                self.fail(&reason);
            }
        }
    }
}
