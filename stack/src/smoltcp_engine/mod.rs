//! TCP by smoltcp's sockets: the reference, and the conventional copying design.
//!
//! Each flow is a socket in a set of its own behind our 4-tuple table, all polled through one IP-level interface, so
//! that the cost of a packet does not grow with the number of flows. Payload is copied into a socket's ring on
//! receive and out of one on transmit.
//!
//! Known limits, from smoltcp: a retransmission time-out of at least a second, which resends the whole window; SACK is
//! sent but not read; any reset inside the window ends a connection; initial sequence numbers come from the seeded generator
//! alone.

mod flow;
mod operations;

use crate::config::Config;
use crate::copies::Copies;
use crate::device::{Device, our_time, smoltcp_time};
use crate::drops::Cause;
use crate::egress::Egress;
use crate::engine::{Engine, Event, Segment};
use crate::ports::Ports;
use crate::reply::Reply;
use crate::slots::Slots;
use crate::time_wait::{Answer, TimeWait};
use crate::tuple::Tuple;
use crate::wheel::Wheel;
use flow::{Fate, Flow, Phase};
use hashbrown::HashMap;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Bytes, CloseReason, ConnId, ConnectError, Nic, Packet, Summary, prefetch_whole};
use smoltcp::iface::{Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{HardwareAddress, IpListenEndpoint, TcpPacket};
use std::net::{IpAddr, SocketAddr};

/// Segments that one flow sends before the next gets its turn.
const SEGMENTS_PER_TURN: usize = 32;
/// Sockets with their buffers kept for the next connections.
const SPARE: usize = 256;
/// How soon to ask again when smoltcp says "now" but sent nothing.
const SOON: Duration = Duration::from_millis(1);

/// How long a FIN may go unacknowledged before we repeat it ourselves.
const FIN_AGAIN: Duration = Duration::from_secs(2);

/// The smoltcp engine of one worker.
pub struct SmoltcpEngine {
    interface: Interface,
    slots: Slots<Box<Flow>>,
    table: HashMap<Tuple, u32, foldhash::fast::FixedState>,
    time_wait: TimeWait,
    /// Token 2 × slot is the flow's own timer, 2 × slot + 1 its service's.
    wheel: Wheel,
    fired: Vec<u32>,
    ports: Ports,
    listen: Vec<SocketAddr>,
    limits: Limits,
    half_open: usize,
    /// The slots of a burst's flows.
    burst: Vec<u32>,
    touched: Vec<u32>,
    dirty: Vec<u32>,
    /// Events that no flow holds.
    pending: Vec<Event>,
    spare: Vec<(SocketSet<'static>, SocketHandle)>,
    /// A chain in one piece; a way from one socket's ring to another's.
    scratch: Vec<u8>,
    copies: Copies,
    copied_bytes: u64,
    counts: Counts,
}

struct Limits {
    connections: usize,
    half_open: usize,
    half_open_timeout: smoltcp::time::Duration,
    user_timeout: smoltcp::time::Duration,
    rx_buffer: usize,
    tx_buffer: usize,
}

#[derive(Default)]
struct Counts {
    accepted: u64,
    connected: u64,
    failed: u64,
    finished: u64,
    broken: u64,
}

impl SmoltcpEngine {
    /// Lets the flow in `slot` be looked at in the next `collect`.
    fn touch(&mut self, slot: u32) {
        if let Some(flow) = self.slots.get_mut(slot)
            && !flow.touched
        {
            flow.touched = true;
            self.touched.push(slot);
        }
    }

    /// Lets the flow in `slot` send in the next `flush`.
    fn dirty(&mut self, slot: u32) {
        if let Some(flow) = self.slots.get_mut(slot)
            && !flow.dirty
        {
            flow.dirty = true;
            self.dirty.push(slot);
        }
    }

    fn listens(&self, local: SocketAddr) -> bool {
        let matches = |listen: &SocketAddr| {
            listen.port() == local.port()
                && (listen.ip() == local.ip() || listen.ip().is_unspecified() && listen.is_ipv4() == local.is_ipv4())
        };
        self.listen.iter().any(matches)
    }

    /// What to do with a segment of no known flow: a slot for a new one, or an answer.
    fn admit<N: Nic>(
        &mut self,
        tuple: Tuple,
        tcp: &TcpPacket<&[u8]>,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<u32> {
        match self.time_wait.answer(&tuple, tcp) {
            None | Some(Answer::Reopen) => {}
            Some(Answer::Ignore) => return None,
            Some(Answer::Acknowledge(reply)) => {
                reply.send(&tuple, egress, now);
                return None;
            }
        }
        let begins = tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin();
        if !begins || !self.listens(tuple.local()) {
            if let Some(reset) = Reply::reset_for(tcp) {
                reset.send(&tuple, egress, now);
            }
            return None;
        }
        if self.half_open >= self.limits.half_open {
            egress.drop_for(Cause::HalfOpenFull);
            return None;
        }
        let Some(slot) = self.insert(tuple, Phase::HalfOpen) else {
            egress.drop_for(Cause::TooMany);
            return None;
        };
        let local = tuple.local();
        let timeout = self.limits.half_open_timeout;
        let socket = self.slots.get_mut(slot)?.socket_mut();
        socket.set_timeout(Some(timeout));
        let endpoint = IpListenEndpoint { addr: Some(local.ip().into()), port: local.port() };
        if socket.listen(endpoint).is_err() {
            self.remove(slot, now);
            return None;
        }
        self.half_open += 1;
        Some(slot)
    }

    fn insert(&mut self, tuple: Tuple, phase: Phase) -> Option<u32> {
        if self.slots.len() >= self.limits.connections {
            return None;
        }
        let mut set = self.spare.pop().unwrap_or_else(|| flow::new_set(self.limits.rx_buffer, self.limits.tx_buffer));
        let socket = set.0.get_mut::<smoltcp::socket::tcp::Socket>(set.1);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some(smoltcp::time::Duration::from_millis(10)));
        let slot = self.slots.insert(Box::new(Flow::new(tuple, phase, set)))?;
        self.table.insert(tuple, slot);
        Some(slot)
    }

    /// Forgets the flow in `slot`, but for a record if it is in TIME-WAIT.
    fn remove(&mut self, slot: u32, now: Instant) {
        let Some(flow) = self.slots.remove(slot) else { return };
        self.table.remove(&flow.tuple);
        self.wheel.disarm(2 * slot);
        self.wheel.disarm(2 * slot + 1);
        if flow.phase == Phase::HalfOpen {
            self.half_open -= 1;
        }
        if let (State::TimeWait, Some(sent)) = (flow.socket().state(), flow.sent) {
            self.time_wait.insert(flow.tuple, sent.next_sequence, sent.acknowledged, sent.window, now);
        }
        let mut set = flow.into_set();
        if self.spare.len() < SPARE {
            // As good as new: an aborted socket without a peer, which the next use sets up again.
            let socket = set.0.get_mut::<smoltcp::socket::tcp::Socket>(set.1);
            socket.abort();
            self.spare.push(set);
        }
    }

    /// Begins to load what the segments of `tuples` will touch: with many flows, most of it is far from the core, and
    /// it comes faster together than one after the other.
    fn fetch_ahead<'a>(&mut self, tuples: impl Iterator<Item = &'a Tuple>) {
        self.burst.clear();
        self.burst.extend(tuples.filter_map(|tuple| self.table.get(tuple)));
        if self.burst.len() < 2 {
            return;
        }
        for &slot in &self.burst {
            if let Some(flow) = self.slots.get(slot) {
                prefetch_whole(&**flow);
            }
        }
        for &slot in &self.burst {
            if let Some(flow) = self.slots.get(slot) {
                prefetch_whole(flow.socket());
            }
        }
    }

    fn segment<N: Nic>(&mut self, segment: Segment<N::Packet>, egress: &mut Egress<N>, now: Instant) {
        let Segment { packet, tuple, ip_header } = segment;
        let mut scratch = std::mem::take(&mut self.scratch);
        let data = if packet.len() == packet.data().len() {
            packet.data()
        } else {
            // smoltcp reads a packet in one piece.
            scratch.clear();
            packet.segments().for_each(|bytes| scratch.extend_from_slice(bytes));
            self.copied_bytes += (scratch.len() - ip_header) as u64;
            &scratch
        };
        let tcp = TcpPacket::new_unchecked(&data[ip_header..]);
        let slot = match self.table.get(&tuple) {
            Some(&slot) => Some(slot),
            None => self.admit(tuple, &tcp, egress, now),
        };
        if let Some(slot) = slot
            && let Some(flow) = self.slots.get_mut(slot)
        {
            let before = flow.socket().state();
            let queued = flow.socket().recv_queue();
            let mut device = Device::new(Medium::Ip, egress, now).after(flow.sent).receiving(data);
            self.interface.poll_ingress_single(smoltcp_time(now), &mut device, &mut flow.sockets);
            flow.sent = device.sent;
            flow.note_end(before, tcp.rst());
            if tcp.fin() && flow.socket().state() != before {
                flow.peer_end = Some((tcp.seq_number() + tcp.segment_len()).0 as u32);
            }
            self.copied_bytes += (flow.socket().recv_queue().saturating_sub(queued)) as u64;
            self.touch(slot);
            self.dirty(slot);
        }
        self.scratch = scratch;
    }

    /// Sends what the flow in `slot` has to send. Returns whether there is more.
    fn flush_flow<N: Nic>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) -> bool {
        let Some(flow) = self.slots.get_mut(slot) else { return false };
        flow.dirty = false;
        let before = flow.socket().state();
        let at = smoltcp_time(now);
        let mut more = true;
        let mut deadline = None;
        for _ in 0..SEGMENTS_PER_TURN {
            let mut device = Device::new(Medium::Ip, egress, now).after(flow.sent);
            let result = self.interface.poll_egress(at, &mut device, &mut flow.sockets);
            let exhausted = device.exhausted;
            flow.sent = device.sent;
            // Asking when there is something to do next costs less than trying to send once more in vain.
            deadline = self.interface.poll_at(at, &flow.sockets);
            if result == PollResult::None || deadline.is_none_or(|deadline| deadline > at) {
                more = exhausted;
                break;
            }
        }
        flow.note_end(before, false);
        let changed = flow.socket().state() != before;
        if !flow.fin_untended() {
            flow.fin_again = None;
        } else if flow.fin_again.is_none_or(|at| at <= now) {
            if let (Some(_), Some(fin)) = (flow.fin_again, flow.fin()) {
                fin.send(&flow.tuple, egress, now);
            }
            flow.fin_again = Some(now + FIN_AGAIN);
        }
        match [deadline.map(our_time), flow.fin_again].into_iter().flatten().min() {
            _ if more => {}
            Some(deadline) => self.wheel.arm(2 * slot, deadline.max(now + SOON)),
            None => self.wheel.disarm(2 * slot),
        }
        // Those about to go wait for what was just sent.
        if changed || matches!(before, State::Closed | State::TimeWait) {
            self.touch(slot);
        }
        more
    }
}

impl<N: Nic> Engine<N> for SmoltcpEngine {
    fn new(config: &Config, worker: usize, workers: usize, egress: &mut Egress<N>, now: Instant) -> Self {
        let mut random = fastrand::Rng::with_seed(config.seed ^ (worker as u64) << 32);
        let mut settings = smoltcp::iface::Config::new(HardwareAddress::Ip);
        settings.random_seed = random.u64(..);
        let mut interface = Interface::new(settings, &mut Device::new(Medium::Ip, egress, now), smoltcp_time(now));
        // The demultiplexer has seen to it that what gets here is for us.
        interface.set_any_ip(true);
        let smoltcp_duration = |d: Duration| smoltcp::time::Duration::from_micros(d.as_micros() as u64);
        SmoltcpEngine {
            interface,
            slots: Slots::new(worker),
            table: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(random.u64(..))),
            time_wait: TimeWait::new(random.u64(..)),
            wheel: Wheel::new(now),
            fired: Vec::new(),
            ports: Ports::new(worker, workers, random.u64(..)),
            listen: config.listen.clone(),
            limits: Limits {
                connections: config.max_connections.min(ConnId::MAX_SLOTS),
                half_open: config.max_half_open,
                half_open_timeout: smoltcp_duration(config.half_open_timeout),
                user_timeout: smoltcp_duration(config.user_timeout),
                rx_buffer: config.rx_buffer,
                tx_buffer: config.tx_buffer,
            },
            half_open: 0,
            burst: Vec::new(),
            touched: Vec::new(),
            dirty: Vec::new(),
            pending: Vec::new(),
            spare: Vec::new(),
            scratch: Vec::new(),
            copies: Copies::new(),
            copied_bytes: 0,
            counts: Counts::default(),
        }
    }

    fn segments(&mut self, burst: &mut Vec<Segment<N::Packet>>, egress: &mut Egress<N>, now: Instant) {
        self.fetch_ahead(burst.iter().map(|segment| &segment.tuple));
        for segment in burst.drain(..) {
            self.segment(segment, egress, now);
        }
    }

    fn unreachable(&mut self, tuple: Tuple, sequence: u32) {
        let Some(&slot) = self.table.get(&tuple) else { return };
        let Some(flow) = self.slots.get_mut(slot) else { return };
        // RFC 5927 §4.1: only what quotes the SYN that is in flight counts, and only before the connection exists.
        let syn = flow.sent.map(|sent| sent.next_sequence.wrapping_sub(1));
        if let Phase::Connecting(token) = flow.phase
            && syn == Some(sequence)
        {
            self.fail(slot, token, ConnectError::Unreachable);
        }
    }

    fn neighbor_lost(&mut self, ip: IpAddr) {
        let connecting = self.slots.iter_mut().filter_map(|(slot, flow)| match flow.phase {
            Phase::Connecting(token) if flow.tuple.remote().ip() == ip => Some((slot, token)),
            _ => None,
        });
        for (slot, token) in connecting.collect::<Vec<_>>() {
            self.fail(slot, token, ConnectError::Unreachable);
        }
    }

    fn expire(&mut self, now: Instant) {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.expire(now, &mut fired);
        for token in fired.drain(..) {
            let slot = token / 2;
            if token % 2 == 0 {
                self.dirty(slot);
            } else if self.slots.get_mut(slot).is_some_and(|flow| flow.phase == Phase::Open) {
                self.pending.push(Event::Timer(self.slots.id(slot)));
            }
        }
        self.fired = fired;
        self.time_wait.expire(now);
    }

    fn collect(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.pending);
        let mut touched = std::mem::take(&mut self.touched);
        for slot in touched.drain(..) {
            let conn = self.slots.id(slot);
            let Some(flow) = self.slots.get_mut(slot) else { continue };
            flow.touched = false;
            let phase = flow.phase;
            match flow.look(conn, events) {
                Fate::Stays => {}
                Fate::Opened => {
                    flow.socket_mut().set_timeout(Some(self.limits.user_timeout));
                    if phase == Phase::HalfOpen {
                        self.half_open -= 1;
                        self.counts.accepted += 1;
                    } else {
                        self.counts.connected += 1;
                    }
                }
                Fate::Vanishes => {
                    self.counts.failed += u64::from(matches!(phase, Phase::Connecting(_)));
                    // Only TIME-WAIT leaves a record, and a flow never established is not in it.
                    self.remove(slot, Instant::ZERO);
                }
            }
        }
        self.touched = touched;
    }

    fn release(&mut self, conn: ConnId, now: Instant) {
        let Some(flow) = self.slots.find(conn) else { return };
        match flow.reason.unwrap_or(CloseReason::Finished) {
            CloseReason::Finished => self.counts.finished += 1,
            _ => self.counts.broken += 1,
        }
        self.remove(conn.slot() as u32, now);
    }

    fn flush(&mut self, egress: &mut Egress<N>, now: Instant) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&slot| {
            let more = self.flush_flow(slot, egress, now);
            if more && let Some(flow) = self.slots.get_mut(slot) {
                flow.dirty = true;
            }
            more
        });
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn next_deadline(&self) -> Option<Instant> {
        if !self.dirty.is_empty() || !self.touched.is_empty() || !self.pending.is_empty() {
            return Some(Instant::ZERO);
        }
        [self.wheel.next_expiry(), self.time_wait.next_deadline()].into_iter().flatten().min()
    }

    fn connections(&self) -> usize {
        self.slots.len()
    }

    fn close_all(&mut self) {
        let all: Vec<u32> = self.slots.iter_mut().map(|(slot, _)| slot).collect();
        for slot in all {
            if let Some(flow) = self.slots.get_mut(slot) {
                flow.socket_mut().close();
                self.dirty(slot);
            }
        }
    }

    fn abort_all(&mut self) {
        let all: Vec<u32> = self.slots.iter_mut().map(|(slot, _)| slot).collect();
        for slot in all {
            self.abort_flow(slot);
        }
    }

    fn summarize(&self, summary: &mut Summary) {
        summary.accepted += self.counts.accepted;
        summary.connected += self.counts.connected;
        summary.failed += self.counts.failed;
        summary.finished += self.counts.finished;
        summary.broken += self.counts.broken;
        summary.copied_bytes += self.copied_bytes;
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.slots.find(conn).map(|flow| flow.addresses().0)
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.slots.find(conn).map(|flow| flow.addresses().1)
    }

    fn received(&self, conn: ConnId) -> usize {
        self.slots.find(conn).map_or(0, |flow| flow.socket().recv_queue())
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.slots.find_mut(conn).and_then(|flow| flow.socket_mut().peek(usize::MAX).ok()).unwrap_or_default()
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.drop_received(conn, n);
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        self.take_received(conn, max)
    }

    fn room(&mut self, conn: ConnId) -> usize {
        self.room_to_send(conn)
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes> {
        self.send_bytes(conn, bytes)
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Option<&mut [u8]> {
        self.reserve_place(conn, max)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        self.commit_place(conn, n);
    }

    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        self.forward_received(from, to)
    }

    fn close(&mut self, conn: ConnId) {
        if let Some(flow) = self.slots.find_mut(conn) {
            // Nothing more will be sent to carry an acknowledgement along.
            flow.socket_mut().set_ack_delay(None);
            flow.socket_mut().close();
            self.dirty(conn.slot() as u32);
        }
    }

    fn abort(&mut self, conn: ConnId) {
        if self.slots.find(conn).is_some() {
            self.abort_flow(conn.slot() as u32);
        }
    }

    fn set_timer(&mut self, conn: ConnId, at: Option<Instant>) {
        if self.slots.find(conn).is_some() {
            let token = 2 * conn.slot() as u32 + 1;
            match at {
                Some(at) => self.wheel.arm(token, at),
                None => self.wheel.disarm(token),
            }
        }
    }

    fn connect(&mut self, remote: SocketAddr, token: u64, egress: &mut Egress<N>, _now: Instant) {
        if let Err(error) = self.begin(remote, token, egress) {
            self.counts.failed += 1;
            self.pending.push(Event::Failed(token, error));
        }
    }
}
