//! Endpoint under test on an in-memory link, on a virtual clock, with the invariants for any input.

use super::flow::{Conn, Flow, Source, pattern};
use super::frames::{self, ACK, Located, Output, SYN, Segment, Sent, Tuple};
use super::probe::{Op, Probe, ServiceEvent};
use super::setup::{Setup, USER_TIMEOUT};
use linerate_bypass::memory_nic::{Link, MemoryNic};
use linerate_bypass::{L4, Nic, Packet, RxChecksum, TxOffload};
use linerate_service::time::{Duration, Instant};
use linerate_service::{AppSender, CloseReason, ConnId};
use linerate_stack::{Engine, Mailboxes, Worker};
use std::collections::BTreeMap;

/// Maximum number of turns without a clock step. Sending all queued data takes a few.
const MOST_TURNS: usize = 200;
/// Maximum length of each packet of a divided frame.
const CHUNK: usize = 2000;

#[derive(Debug, Clone, Copy, Default)]
pub struct Delivery {
    /// Offset at which the frame is divided into a chain.
    pub cut: Option<usize>,
    /// True if the port reports the checksums as verified.
    pub verified: bool,
}

/// Endpoint and the other end of its link.
pub struct Rig {
    pub setup: Setup,
    link: Link,
    worker: Worker<MemoryNic, Probe>,
    wire: MemoryNic,
    app_sender: AppSender<Op>,
    flows: BTreeMap<Tuple, Flow>,
    /// Tuple of each connection that the service knows.
    conns: BTreeMap<ConnId, Tuple>,
    /// Connections that the endpoint initiated, in order.
    dialled: Vec<Tuple>,
    /// Frames and operations since the last [`settle`](Self::settle).
    stimuli: usize,
    received: Vec<<MemoryNic as Nic>::Packet>,
    /// Segments without payload and other frames that the endpoint has sent.
    replies: usize,
    /// True if `FUZZ_TRACE` is set, which prints the exchange.
    traces: bool,
}

impl Rig {
    pub fn new(setup: Setup) -> Rig {
        let (endpoint, wire) = Link::pair(setup.link());
        let link = wire.link().clone();
        // Not at time zero, which means "never" in places.
        link.clock().advance(Duration::from_secs(1000));
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let app_sender = mailboxes.app_sender();
        let worker = Worker::new(&setup.endpoint(), mailboxes, endpoint, |_| Probe::new(setup), link.clock().now());
        let mut rig = Rig {
            setup,
            link,
            worker,
            wire,
            app_sender,
            flows: BTreeMap::new(),
            conns: BTreeMap::new(),
            dialled: Vec::new(),
            stimuli: 0,
            received: Vec::with_capacity(32),
            replies: 0,
            traces: std::env::var_os("FUZZ_TRACE").is_some(),
        };
        for frame in frames::introductions() {
            rig.put(&frame, Delivery::default());
        }
        rig.settle();
        rig
    }

    pub fn now(&self) -> Instant {
        self.link.clock().now()
    }

    /// Returns flow number `n`: one of the peer's, or from 4 the endpoint's own.
    pub fn tuple(&self, n: u8) -> Tuple {
        let own = usize::from(n & 7).checked_sub(4).and_then(|n| self.dialled.get(n));
        own.copied().unwrap_or_else(|| Tuple::accepted(n & 3, self.setup.six() ^ (n & 1 != 0)))
    }

    pub fn flow(&mut self, tuple: Tuple) -> &mut Flow {
        self.flows.entry(tuple).or_default()
    }

    /// Returns the open connection on `tuple`.
    pub fn conn(&self, tuple: &Tuple) -> Option<ConnId> {
        self.conns.iter().rfind(|(_, known)| *known == tuple).map(|(conn, _)| *conn)
    }

    /// Queues `frame` for the endpoint's next turn. TCP payload is replaced by the peer's stream. `fix` corrects the
    /// checksums.
    pub fn push(&mut self, mut frame: Vec<u8>, fix: bool, delivery: Delivery) {
        if let Some(located) = Located::find(&frame) {
            located.fill(&mut frame, |seq| pattern(&located.tuple, seq));
            let len = located.payload.len() as u32;
            let (flags, ack, window) = (located.flags(&frame), located.ack(&frame), located.window(&frame));
            let first = located.first(&frame);
            self.trace(|| format!("> {first} +{len} flags {flags:#04x} ack {ack} window {window}, {located:?}"));
            self.flow(located.tuple).give(first, len, flags, ack, window);
        }
        if fix {
            frames::fix_checksums(&mut frame);
        }
        self.stimuli += 1;
        self.put(&frame, delivery);
    }

    fn put(&mut self, frame: &[u8], delivery: Delivery) {
        let cut = delivery.cut.unwrap_or(CHUNK).clamp(60, CHUNK).min(frame.len());
        let (head, mut rest) = frame.split_at(cut);
        let Some(mut packet) = self.packet(head) else { return };
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(rest.len().min(CHUNK));
            let Some(tail) = self.packet(chunk) else { return };
            if packet.chain(tail).is_err() {
                return;
            }
            rest = later;
        }
        let config = self.link.config();
        if let Some(located) = Located::find(frame).filter(|_| config.checksum_offload && delivery.verified) {
            let headers = located.payload.start;
            let offload = TxOffload {
                l2_len: 14,
                l3_len: located.tcp - 14,
                l4_len: headers - located.tcp,
                ipv4: located.tuple.local.is_ipv4(),
                ipv4_checksum: true,
                l4_checksum: Some(L4::Tcp),
                tso: (frame.len() > usize::from(config.mtu) + 14).then_some(500),
            };
            packet.set_tx_offload(offload);
        }
        let mut burst = vec![packet];
        if self.wire.tx_burst(&mut burst) == 0 {
            // The ring is full: run the endpoint.
            self.turn();
            self.wire.tx_burst(&mut burst);
        }
    }

    fn packet(&mut self, bytes: &[u8]) -> Option<<MemoryNic as Nic>::Packet> {
        let mut packet = self.wire.allocate()?;
        packet.append(bytes.len())?.copy_from_slice(bytes);
        Some(packet)
    }

    /// Sends `segment` on `tuple` with correct checksums.
    pub fn send(&mut self, tuple: &Tuple, segment: &Segment, delivery: Delivery) {
        self.push(frames::tcp(tuple, segment), true, delivery);
    }

    /// Requests an operation of the service on `conn`.
    pub fn run_op(&mut self, conn: ConnId, op: Op) {
        self.trace(|| format!("! {op:?} on {conn:?}"));
        self.stimuli += 1;
        let _ = self.app_sender.send_to_conn(conn, op);
    }

    fn trace(&self, text: impl FnOnce() -> String) {
        if self.traces {
            eprintln!("{:>12} {}", self.now().as_micros() - 1_000_000_000, text());
        }
    }

    /// Runs one turn of the endpoint. Returns true if it did any work.
    fn turn(&mut self) -> bool {
        let now = self.now();
        let worked = self.worker.turn(now) > 0;
        let events = std::mem::take(&mut *self.worker.service().events.borrow_mut());
        for event in events {
            self.trace(|| format!("  {event:?}").chars().take(120).collect());
            self.note(event);
        }
        self.worker.engine().assert_consistent();
        for (conn, tuple) in self.conns.clone() {
            let numbers = self.worker.engine().numbers(conn);
            self.flow(tuple).check_received(conn, numbers);
            if self.flow(tuple).conn(conn).is_none() {
                self.conns.remove(&conn);
            }
        }
        let mut sent = false;
        while self.wire.rx_burst(&mut self.received) > 0 {
            sent = true;
            let mut received = std::mem::take(&mut self.received);
            for frame in received.drain(..) {
                let summed = frame.rx_info().l4_checksum == RxChecksum::Good;
                let bytes = frame.segments().collect::<Vec<_>>().concat();
                drop(frame);
                match frames::read(&bytes, summed) {
                    Output::Tcp(segment) => self.take(&segment),
                    Output::Question { target } => {
                        if let Some(answer) = frames::answer(target) {
                            self.put(&answer, Delivery::default());
                        }
                    }
                    Output::Other => self.replies += 1,
                }
            }
            self.received = received;
        }
        worked || sent
    }

    fn note(&mut self, event: ServiceEvent) {
        match event {
            ServiceEvent::Opened { conn, tuple } => {
                assert!(self.conns.insert(conn, tuple).is_none(), "{conn:?} opened twice");
                self.flow(tuple).opened(conn, tuple);
            }
            ServiceEvent::Read { conn, bytes } => self.known(conn).reads(bytes),
            ServiceEvent::Wrote { conn, len } => self.known(conn).sends(len as u32, Source::Written),
            ServiceEvent::Forwarded { from, to, len } => {
                let source = self.known(from);
                let received = Source::Received { from: source.tuple, seq: source.next_to_read() };
                source.skips(len as u32);
                self.known(to).sends(len as u32, received);
            }
            ServiceEvent::Ended { conn, left } => {
                assert_eq!(left, 0, "peer_closed with unread bytes");
                let conn = self.known(conn);
                assert!(!conn.ended, "peer_closed twice");
                conn.ended = true;
            }
            ServiceEvent::Closed { conn, reason } => {
                let known = self.known(conn);
                known.open = false;
                assert!(
                    known.ended || reason != CloseReason::Finished || known.numbers().is_none_or(|n| n.received > 0)
                );
            }
            ServiceEvent::Readable { conn } => assert!(!self.known(conn).ended, "readable after peer_closed"),
            ServiceEvent::Writable { conn } => {
                self.known(conn);
            }
            ServiceEvent::Failed { .. } => {}
        }
    }

    /// Returns a connection that the service has seen open and not close.
    fn known(&mut self, conn: ConnId) -> &mut Conn {
        let tuple = self.conns.get(&conn).copied().unwrap_or_else(|| panic!("{conn:?} is unknown or closed"));
        self.flow(tuple).conn(conn).unwrap_or_else(|| panic!("an event of the closed connection {conn:?}"))
    }

    /// Records a `segment` of the endpoint.
    fn take(&mut self, segment: &Sent) {
        if segment.flags & (SYN | ACK) == SYN && !self.dialled.contains(&segment.tuple) {
            self.dialled.push(segment.tuple);
        }
        self.trace(|| {
            let Sent { seq, ack, flags, window, payload, tuple, .. } = segment;
            format!("< {seq} +{} flags {flags:#04x} ack {ack} window {window}, to {}", payload.len(), tuple.remote)
        });
        if segment.payload.is_empty() {
            self.replies += 1;
        }
        let tso = self.link.config().tso.is_some();
        let flow = self.flow(segment.tuple);
        flow.take(segment);
        flow.check_sent(segment, tso);
    }

    /// Runs the endpoint until idle and checks that its work is bounded.
    pub fn settle(&mut self) {
        let stimuli = std::mem::take(&mut self.stimuli);
        let (replies, conns) = (self.replies, self.connections());
        let mut turns = 0;
        while self.turn() {
            turns += 1;
            assert!(turns < MOST_TURNS + stimuli, "{turns} turns without becoming idle");
        }
        // A frame may cause a reply and a neighbour request; a timer or an operation may cause a segment.
        let most = 2 * stimuli + 2 * (conns + self.connections()) + 4;
        let replies = self.replies - replies;
        assert!(replies <= most, "{replies} segments without payload after {stimuli} stimuli");
    }

    /// Lets `duration` pass, from one deadline of the endpoint to the next.
    pub fn pass(&mut self, duration: Duration) {
        self.settle();
        let until = self.now() + duration;
        let mut wakings = 0;
        loop {
            let now = self.now();
            // Work that lacks packets or space is not retried at the same instant.
            let next = self.worker.next_deadline().unwrap_or(until).max(now + Duration::from_millis(1));
            if next >= until {
                break;
            }
            self.link.clock().advance_to(next);
            self.settle();
            wakings += 1;
            let per_second = 200 * (1 + self.connections() as u64);
            let most = 100 + per_second * (1 + duration.as_secs());
            assert!(wakings < most, "{wakings} wakings within {duration:?}");
        }
        self.link.clock().advance_to(until);
        self.settle();
    }

    /// Returns the number of connections of the endpoint in any state.
    fn connections(&self) -> usize {
        Engine::<MemoryNic>::connections(self.worker.engine())
    }

    /// Opens flow number `n` as an ordinary peer does, with the options of the setup. Returns true on success.
    pub fn open(&mut self, n: u8) -> bool {
        let (tuple, setup) = (self.tuple(n), self.setup);
        let isn = setup.isn();
        let mut options = vec![2, 4, 0x05, 0xb4];
        if setup.sack() {
            options.extend_from_slice(&[1, 1, 4, 2]);
        }
        if setup.timestamps() {
            options.extend_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]);
        }
        if let Some(scale) = setup.window_scale() {
            options.extend_from_slice(&[1, 3, 3, scale]);
        }
        let ecn = if setup.ecn() { frames::ECE | frames::CWR } else { 0 };
        let syn = Segment { seq: isn, flags: SYN | ecn, window: 65_535, options, ..Segment::default() };
        self.send(&tuple, &syn, Delivery::default());
        self.settle();
        let ack = self.next(&tuple, ACK, 0);
        self.send(&tuple, &ack, Delivery::default());
        self.settle();
        self.conn(&tuple).is_some()
    }

    /// Returns the next segment of an ordinary peer of `tuple`, with `flags` and `len` bytes.
    pub fn next(&mut self, tuple: &Tuple, flags: u8, len: usize) -> Segment {
        let timestamps = self.setup.timestamps();
        let flow = self.flow(*tuple);
        let options = if timestamps { timestamp(2, flow.ts) } else { Vec::new() };
        Segment { seq: flow.ack, ack: flow.nxt, flags, window: 5000, options, len, ..Segment::default() }
    }

    /// Ends the run: remaining connections time out or are reset, and all resources are released.
    pub fn finish(mut self) {
        self.settle();
        if self.setup.ends_in_silence() {
            // The peer is silent: half-open connections expire one timeout later.
            self.pass(self.setup.endpoint().half_open_timeout * 2);
            assert_eq!(self.worker.engine().half_open(), 0, "half-open connections");
            // Connections that wait for the peer end one timeout or probe after the user timeout.
            self.pass(3 * USER_TIMEOUT);
            for (conn, tuple) in self.conns.clone() {
                let Some(numbers) = self.worker.engine().numbers(conn) else { continue };
                let waits = numbers.una != numbers.nxt || numbers.unsent > 0;
                assert!(!waits, "{tuple:?} waits for a silent peer: {numbers:?}");
                let is_probed = self.setup.endpoint().keepalive.is_some() && !numbers.peer_finished;
                assert!(!is_probed, "{tuple:?} is open with a silent peer: {numbers:?}");
            }
        }
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.run_op(conn, Op::Abort);
        }
        self.settle();
        assert!(self.conns.is_empty(), "not closed after abort: {:?}", self.conns);
        // Half-open connections, connection attempts and TIME-WAIT expire.
        self.pass(Duration::from_secs(200));
        assert_eq!(self.connections(), 0, "connections unknown to the service");
        assert_eq!(self.worker.engine().time_wait(), 0, "connections in TIME-WAIT");
        let summary = self.worker.summary();
        assert_eq!(summary.drops.get("too long for the port"), None, "frames that the port could not send");
        let Rig { worker, wire, .. } = self;
        let nic = worker.into_nic();
        assert_eq!(nic.pool_available(), nic.pool_capacity(), "packets of the endpoint's pool");
        assert_eq!(wire.pool_available(), wire.pool_capacity(), "packets of the peer's pool");
    }
}

/// Returns a padded timestamps option.
pub fn timestamp(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10], &value.to_be_bytes()[..], &echo.to_be_bytes()].concat()
}
