//! TCP by smoltcp sockets: the reference engine, with the conventional copying design.
//!
//! Each flow is a socket in a set of its own, found by its 4-tuple. All are polled through one IP-level interface,
//! so that the cost of a packet does not grow with the number of flows. Payload is copied into a socket's ring on
//! reception and out of one on transmission.
//!
//! Limits of smoltcp: the RTO is at least one second and resends the whole window; SACK is sent but not read; any reset
//! in the window ends a connection; initial sequence numbers come from the seeded generator alone.

mod reset_reply;

mod flow;
mod input;
mod operations;
mod output;

use crate::config::Config;
use crate::engine::{Engine, SegmentMeta, Segments};
use crate::ip::egress::Egress;
use crate::ip::udp::copy_pool;
use crate::rng;
use crate::slow_path::device::{Device, to_smoltcp_time};
use crate::tcp::clock::wheel::Wheel;
use crate::tcp::tables::ephemeral_ports::EphemeralPorts;
use crate::tcp::tables::per_source_limits::PerSourceLimits;
use crate::tcp::tables::time_wait::{TimeWait, TimeWaitEntry};
use crate::wire::icmp::IcmpError;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::{HashKey, Tuple};
use flow::{Fate, Flow, Phase};
use hashbrown::HashMap;
use linerate_bypass::{BufferPool, Nic};
use linerate_service::inspect::{ConnInfo, Gauges, TcpInfo};
use linerate_service::time::{Duration, Instant};
use linerate_service::{
    Bytes, CloseReason, ConnId, ConnSlab, ConnectError, Event, EventBatch, Summary, Unsent, WriteError,
};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::tcp::State;
use smoltcp::wire::HardwareAddress;
use std::net::{IpAddr, SocketAddr};

/// Default size of a socket's buffers in bytes.
const BUFFER: usize = 64 << 10;

/// Maximum spare sockets kept for reuse.
const SPARE: usize = 256;

/// smoltcp engine of one worker.
pub struct SmoltcpEngine {
    interface: Interface,
    slots: ConnSlab<Box<Flow>>,
    table: HashMap<Tuple, u32, foldhash::fast::FixedState>,
    time_wait: TimeWait,
    /// Token 2 × slot is the flow's own timer, 2 × slot + 1 the timer of its service.
    wheel: Wheel,
    fired: Vec<u32>,
    ports: EphemeralPorts,
    listen: Vec<SocketAddr>,
    limits: Limits,
    half_open: usize,
    /// Per-source limits, if configured.
    per_source: Option<Box<PerSourceLimits>>,
    /// Slots of a burst's flows.
    burst: Vec<u32>,
    touched: Vec<u32>,
    tx_pending: Vec<u32>,
    events: EventBatch,
    spare: Vec<(SocketSet<'static>, SocketHandle)>,
    /// Buffer to linearise chained packets, and to move data between sockets.
    scratch: Vec<u8>,
    copies: BufferPool,
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
    /// Marks the flow in `slot` for inspection in the next `take_events`.
    fn touch(&mut self, slot: u32) {
        if let Some(flow) = self.slots.at_mut(slot as usize)
            && !flow.touched
        {
            flow.touched = true;
            self.touched.push(slot);
        }
    }

    /// Marks the flow in `slot` for transmission in the next `flush`.
    fn tx_pending(&mut self, slot: u32) {
        if let Some(flow) = self.slots.at_mut(slot as usize)
            && !flow.tx_pending
        {
            flow.tx_pending = true;
            self.tx_pending.push(slot);
        }
    }

    fn insert(&mut self, tuple: Tuple, phase: Phase) -> Option<u32> {
        if self.slots.len() >= self.limits.connections {
            return None;
        }
        let mut set = self.spare.pop().unwrap_or_else(|| flow::new_set(self.limits.rx_buffer, self.limits.tx_buffer));
        let socket = set.0.get_mut::<smoltcp::socket::tcp::Socket>(set.1);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some(smoltcp::time::Duration::from_millis(10)));
        let slot = self.slots.insert(Box::new(Flow::new(tuple, phase, set)))?.slot() as u32;
        self.table.insert(tuple, slot);
        Some(slot)
    }

    fn leave_half_open(&mut self, tuple: &Tuple) {
        self.half_open -= 1;
        if let Some(sources) = &mut self.per_source {
            sources.establish(tuple);
        }
    }

    /// Removes the flow in `slot`, leaving a record if it is in TIME-WAIT.
    fn remove(&mut self, slot: u32, now: Instant) {
        let conn = self.slots.conn_id(slot as usize);
        let Some(flow) = conn.and_then(|conn| self.slots.remove(conn)) else { return };
        self.table.remove(&flow.tuple);
        self.wheel.disarm(2 * slot);
        self.wheel.disarm(2 * slot + 1);
        if flow.phase == Phase::HalfOpen {
            self.leave_half_open(&flow.tuple);
        }
        if flow.is_accepted
            && let Some(sources) = &mut self.per_source
        {
            sources.remove(&flow.tuple);
        }
        if let (State::TimeWait, Some(sent)) = (flow.socket().state(), flow.sent) {
            let record = TimeWaitEntry {
                tuple: flow.tuple,
                next: Seq(sent.next_sequence),
                peer_next: Seq(sent.acknowledged),
                ts_recent: None,
                window: sent.window,
            };
            self.time_wait.insert(record, now);
        }
        let mut set = flow.into_set();
        if self.spare.len() < SPARE {
            // An aborted socket without a peer is reusable.
            let socket = set.0.get_mut::<smoltcp::socket::tcp::Socket>(set.1);
            socket.abort();
            self.spare.push(set);
        }
    }
}

impl<N: Nic> Engine<N> for SmoltcpEngine {
    fn new(config: &Config, worker: usize, workers: usize, egress: &mut Egress<N>, now: Instant) -> Self {
        let mut random = fastrand::Rng::with_seed(rng::draw(config.seed, "smoltcp", worker));
        let mut settings = smoltcp::iface::Config::new(HardwareAddress::Ip);
        settings.random_seed = random.u64(..);
        let mut interface = Interface::new(settings, &mut Device::new(Medium::Ip, egress, now), to_smoltcp_time(now));
        // The demultiplexer passes on local destinations only.
        interface.set_any_ip(true);
        let smoltcp_duration = |d: Duration| smoltcp::time::Duration::from_micros(d.as_micros() as u64);
        SmoltcpEngine {
            interface,
            slots: ConnSlab::new(worker, ConnId::MAX_SLOTS),
            table: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(random.u64(..))),
            time_wait: TimeWait::new(config.max_time_wait, HashKey::new(|| random.u64(..))),
            wheel: Wheel::new(now),
            fired: Vec::new(),
            ports: EphemeralPorts::new(worker, workers, random.u64(..), config),
            listen: config.listen.clone(),
            limits: Limits {
                connections: config.max_connections.min(ConnId::MAX_SLOTS),
                half_open: config.max_half_open,
                half_open_timeout: smoltcp_duration(config.half_open_timeout),
                user_timeout: smoltcp_duration(config.user_timeout),
                rx_buffer: config.rx_buffer.unwrap_or(BUFFER),
                tx_buffer: config.tx_buffer.unwrap_or(BUFFER),
            },
            half_open: 0,
            per_source: PerSourceLimits::from_config(config, random.u64(..)),
            burst: Vec::new(),
            touched: Vec::new(),
            tx_pending: Vec::new(),
            events: EventBatch::default(),
            spare: Vec::new(),
            scratch: Vec::new(),
            copies: copy_pool(),
            copied_bytes: 0,
            counts: Counts::default(),
        }
    }

    fn rx_burst(&mut self, burst: &mut Segments<N::Packet>, egress: &mut Egress<N>, now: Instant) {
        self.fetch_ahead(burst.metas().iter().map(|meta| &meta.tuple));
        for (packet, meta) in burst.drain() {
            self.segment(packet, meta, egress, now);
        }
    }

    fn rx_segment(&mut self, packet: N::Packet, meta: &SegmentMeta, egress: &mut Egress<N>, now: Instant) {
        self.segment(packet, *meta, egress, now);
    }

    fn icmp_error(&mut self, tuple: Tuple, sequence: u32, error: IcmpError) {
        if error != IcmpError::Unreachable {
            return;
        }
        let Some(&slot) = self.table.get(&tuple) else { return };
        let Some(flow) = self.slots.at_mut(slot as usize) else { return };
        // RFC 5927 §4.1: only an error that quotes the SYN in flight is accepted, and only before the connection is
        // established.
        let syn = flow.sent.map(|sent| sent.next_sequence.wrapping_sub(1));
        if let Phase::Connecting(token) = flow.phase
            && syn == Some(sequence)
        {
            self.fail(slot, token, ConnectError::Unreachable);
        }
    }

    fn neighbor_unreachable(&mut self, ip: IpAddr) {
        let connecting = self.slots.iter_mut().filter_map(|(slot, flow)| match flow.phase {
            Phase::Connecting(token) if flow.tuple.remote().ip() == ip => Some((slot as u32, token)),
            _ => None,
        });
        for (slot, token) in connecting.collect::<Vec<_>>() {
            self.fail(slot, token, ConnectError::Unreachable);
        }
    }

    fn address_removed(&mut self, ip: IpAddr) {
        let of_it = |(slot, flow): (usize, &mut Box<Flow>)| {
            (flow.tuple.local().ip() == ip).then_some((slot as u32, flow.phase))
        };
        for (slot, phase) in self.slots.iter_mut().filter_map(of_it).collect::<Vec<_>>() {
            let Some(flow) = self.slots.at_mut(slot as usize) else { continue };
            match phase {
                Phase::HalfOpen => self.remove(slot, Instant::ZERO),
                Phase::Connecting(token) => self.fail(slot, token, ConnectError::NoLocalAddress),
                Phase::Open if !matches!(flow.socket().state(), State::Closed | State::TimeWait) => {
                    flow.silence(flow::new_set(self.limits.rx_buffer, self.limits.tx_buffer), CloseReason::AddressLost);
                    self.touch(slot);
                }
                Phase::Open | Phase::Gone => {}
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.expire(now, &mut fired);
        for token in fired.drain(..) {
            let slot = token / 2;
            if token % 2 == 0 {
                self.tx_pending(slot);
            } else if let Some(flow) = self.slots.at_mut(slot as usize)
                && flow.phase == Phase::Open
            {
                if flow.timer > now {
                    self.wheel.arm(token, flow.timer);
                } else {
                    self.events.timers.extend(self.slots.conn_id(slot as usize));
                }
            }
        }
        self.fired = fired;
        self.time_wait.expire(now);
    }

    fn take_events(&mut self, events: &mut EventBatch) {
        let mut touched = std::mem::take(&mut self.touched);
        for slot in touched.drain(..) {
            let Some(conn) = self.slots.conn_id(slot as usize) else { continue };
            let Some(flow) = self.slots.at_mut(slot as usize) else { continue };
            flow.touched = false;
            let phase = flow.phase;
            match flow.look(conn, &mut self.events) {
                Fate::Unchanged => {}
                Fate::Opened => {
                    flow.socket_mut().set_timeout(Some(self.limits.user_timeout));
                    let tuple = flow.tuple;
                    if phase == Phase::HalfOpen {
                        self.leave_half_open(&tuple);
                        self.counts.accepted += 1;
                    } else {
                        self.counts.connected += 1;
                    }
                }
                Fate::EndsUnknown => {
                    self.counts.failed += u64::from(matches!(phase, Phase::Connecting(_)));
                    // Only TIME-WAIT leaves a record, and a flow that was never established is not in it.
                    self.remove(slot, Instant::ZERO);
                }
            }
        }
        self.touched = touched;
        std::mem::swap(events, &mut self.events);
    }

    fn has_events(&self) -> bool {
        !self.touched.is_empty() || !self.events.is_empty()
    }

    fn release(&mut self, conn: ConnId, now: Instant) {
        let Some(flow) = self.slots.get(conn) else { return };
        match flow.reason.unwrap_or(CloseReason::Finished) {
            CloseReason::Finished => self.counts.finished += 1,
            _ => self.counts.broken += 1,
        }
        self.remove(conn.slot() as u32, now);
    }

    fn flush(&mut self, egress: &mut Egress<N>, now: Instant) {
        let mut tx_pending = std::mem::take(&mut self.tx_pending);
        tx_pending.retain(|&slot| {
            let more = self.flush_flow(slot, egress, now);
            if more && let Some(flow) = self.slots.at_mut(slot as usize) {
                flow.tx_pending = true;
            }
            more
        });
        tx_pending.append(&mut self.tx_pending);
        self.tx_pending = tx_pending;
    }

    fn next_deadline(&self) -> Option<Instant> {
        if !self.tx_pending.is_empty() || Engine::<N>::has_events(self) {
            return Some(Instant::ZERO);
        }
        [self.wheel.next_expiry(), self.time_wait.next_deadline()].into_iter().flatten().min()
    }

    fn connections(&self) -> usize {
        self.slots.len()
    }

    fn stop_listening(&mut self) {
        self.listen.clear();
    }

    fn close_all(&mut self) {
        for slot in 0..self.slots.slot_count() as u32 {
            if let Some(flow) = self.slots.at_mut(slot as usize) {
                flow.socket_mut().close();
                self.tx_pending(slot);
            }
        }
    }

    fn abort_all(&mut self) {
        for slot in 0..self.slots.slot_count() as u32 {
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
        summary.drop_for("TIME-WAIT ended early", self.time_wait.ended_early());
    }

    fn fill_gauges(&self, gauges: &mut Gauges) {
        gauges.connections = self.slots.len() as u64;
        gauges.half_open = Some(self.half_open as u64);
        gauges.time_wait = Some(self.time_wait.len() as u64);
    }

    fn slot_count(&self) -> usize {
        self.slots.slot_count()
    }

    fn conn_info(&self, slot: usize) -> Option<ConnInfo> {
        let flow = self.slots.at(slot)?;
        let socket = flow.socket();
        let (local, remote) = flow.addresses();
        Some(ConnInfo {
            conn: self.slots.conn_id(slot)?,
            local: Some(local),
            remote,
            state: flow.conn_state(),
            unread: socket.recv_queue() as u64,
            // The send queue includes data in flight, which the socket does not distinguish.
            unsent: socket.send_queue() as u64,
            tcp: TcpInfo::default(),
            verbs: None,
            tls: None,
        })
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.slots.get(conn).map(|flow| flow.addresses().0)
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.slots.get(conn).map(|flow| flow.addresses().1)
    }

    fn received(&self, conn: ConnId) -> usize {
        self.slots.get(conn).map_or(0, |flow| flow.socket().recv_queue())
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.slots.get_mut(conn).and_then(|flow| flow.socket_mut().peek(usize::MAX).ok()).unwrap_or_default()
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.consume(conn, n);
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        self.take(conn, max)
    }

    fn send_space(&mut self, conn: ConnId) -> usize {
        self.send_space(conn)
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        self.send(conn, bytes)
    }

    fn reserve(&mut self, conn: ConnId, max: usize, _: &mut Egress<N>) -> Result<&mut [u8], WriteError> {
        self.reserve(conn, max)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        self.commit(conn, n);
    }

    fn forward(&mut self, from: ConnId, to: ConnId, _: &mut Egress<N>, _: Instant) -> usize {
        self.forward(from, to)
    }

    fn close(&mut self, conn: ConnId) {
        if let Some(flow) = self.slots.get_mut(conn) {
            // No later segment can carry the acknowledgement.
            flow.socket_mut().set_ack_delay(None);
            flow.socket_mut().close();
            self.tx_pending(conn.slot() as u32);
        }
    }

    fn abort(&mut self, conn: ConnId) {
        if self.slots.get(conn).is_some() {
            self.abort_flow(conn.slot() as u32);
        }
    }

    fn set_timer(&mut self, conn: ConnId, at: Option<Instant>) {
        if let Some(flow) = self.slots.get_mut(conn) {
            let token = 2 * conn.slot() as u32 + 1;
            match at {
                Some(at) => {
                    // The wheel fires earlier if the time is days ahead.
                    flow.timer = at;
                    self.wheel.arm(token, at);
                }
                None => self.wheel.disarm(token),
            }
        }
    }

    fn connect(&mut self, remote: SocketAddr, token: u64, egress: &mut Egress<N>, now: Instant) {
        if let Err(error) = self.begin(remote, token, egress, now) {
            self.counts.failed += 1;
            self.events.others.push(Event::Failed(token, error));
        }
    }
}
