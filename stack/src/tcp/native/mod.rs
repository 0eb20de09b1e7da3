//! [`Engine`] interface of the native engine.

pub(crate) mod inspect;
mod operations;
mod tcp_info;

use crate::config::Config;
use crate::config::fast_paths::FastPath;
use crate::engine::{Engine, SegmentMeta, Segments};
use crate::ip::egress::Egress;
use crate::rng;
use crate::tcp::buffers::mbufs_held::MbufsHeld;
use crate::tcp::clock::tick::Tick;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::clock::wheel::Wheel;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::fair_share::Sweep;
use crate::tcp::connection::secrets::Secrets;
use crate::tcp::connection::settings::{Listener as Listening, Settings};
use crate::tcp::connection::{Clock, Connection, Listener, Shared, Timers};
use crate::tcp::tables::ephemeral_ports::EphemeralPorts;
use crate::tcp::tables::flow_table::FlowTable;
use crate::tcp::tables::per_source_limits::PerSourceLimits;
use crate::tcp::tables::time_wait::TimeWait;
use crate::tcp::tcb::cold::EndReason;
use crate::tcp::tcb::conn_buffers::ConnBufferPool;
use crate::tcp::tcb::rr_state::RrPool;
use crate::tcp::tcb::tx_backlog::TxBacklog;
use crate::tcp::tcb::{Flags, State};
use crate::tcp::{Counters, NativeEngine};
use crate::wire::icmp::IcmpError;
use crate::wire::tcp::options;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::Tuple;
use hashbrown::HashMap;
use linerate_bypass::{BURST, Nic, Packet};
use linerate_service::inspect::{ConnInfo, Gauges};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, ConnIdSpace, Event, EventBatch, Keepalive, Summary, Unsent, WriteError};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Connections per turn that retry a failed packet allocation.
const ALLOC_RETRIES_PER_TURN: usize = 4 * BURST;

/// Connections whose state fits into the L1 and L2 caches. Below this number, prefetching costs more than it saves.
const CACHE_RESIDENT: usize = 1280;

/// Interval between two readings of the port's free packets. A reading touches more than one cache line.
const POOL_PERIOD: Duration = Duration::from_millis(1);

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Begins to accept connections to `address`.
    pub(crate) fn listen(&mut self, address: SocketAddr) {
        self.shared.settings.listen.push(Listening::new(&address));
    }

    /// Stops accepting connections to `address`. Half-open connections may still be established.
    pub(crate) fn unlisten(&mut self, address: SocketAddr) {
        let ended = Listening::new(&address);
        self.shared.settings.listen.retain(|other| *other != ended);
    }
}

impl<N: Nic, C: CongestionControl> Engine<N> for NativeEngine<N::Packet, C> {
    fn new(config: &Config, worker: usize, workers: usize, egress: &mut Egress<N>, now: Instant) -> Self {
        let mut random = fastrand::Rng::with_seed(rng::draw(config.seed, "native", worker));
        let control = C::new(config, 536);
        let settings = Settings::new(config, &control, egress);
        let secrets = Secrets::from_seed(config.seed);
        let shared = Shared {
            conn_ids: ConnIdSpace::new(worker),
            free: Vec::new(),
            buffers: ConnBufferPool::new(control.handles_ecn_echo()),
            rr: RrPool::new(),
            table: FlowTable::with_capacity(settings.connections),
            key: secrets.table_key(),
            time_wait: TimeWait::new(config.max_time_wait, secrets.table_key()),
            common_mss: settings.mss(true) - options::TIMESTAMP_LEN as u16,
            secrets,
            ports: EphemeralPorts::new(worker, workers, random.u64(..), config),
            timers: Timers {
                wheel: Wheel::new(now),
                service: HashMap::with_hasher(foldhash::fast::FixedState::default()),
                linger: HashMap::with_hasher(foldhash::fast::FixedState::default()),
                overrides: HashMap::with_hasher(foldhash::fast::FixedState::default()),
            },
            connect_tokens: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(random.u64(..))),
            listener: Listener {
                half_open: 0,
                per_source: PerSourceLimits::from_config(config, random.u64(..)),
                cookies_sent: None,
            },
            mbufs_held: MbufsHeld::default(),
            window_held: VecDeque::new(),
            pool_checked_at: now,
            sweep: Sweep::new(now),
            active: Vec::new(),
            tx_backlog: TxBacklog::default(),
            events: EventBatch::default(),
            alloc_blocked: VecDeque::new(),
            clock: Clock { now, timestamp_ms: timestamp_clock(now), earliest_rto: [Tick::NONE; 2] },
            counters: Counters::default(),
            settings,
        };
        NativeEngine {
            initial_control: C::new(config, shared.common_mss.into()),
            tcbs: Vec::with_capacity(shared.settings.connections),
            cold: Vec::with_capacity(shared.settings.connections),
            shared,
            expired: Vec::new(),
            spare_active: Vec::new(),
        }
    }

    fn rx_burst(&mut self, burst: &mut Segments<N::Packet>, egress: &mut Egress<N>, now: Instant) {
        self.process_burst(burst, egress, now);
    }

    #[inline]
    fn processes_immediately(&self) -> bool {
        self.tcbs.len() <= CACHE_RESIDENT && self.shared.settings.fast_paths.has(FastPath::Immediate)
    }

    #[inline(always)]
    fn rx_segment(&mut self, packet: N::Packet, meta: &SegmentMeta, egress: &mut Egress<N>, now: Instant) {
        self.process_one(packet, *meta, egress, now);
    }

    fn icmp_error(&mut self, tuple: Tuple, sequence: u32, error: IcmpError) {
        let slot = self.lookup(tuple.hash_with(&self.shared.key), &tuple);
        if let Some(mut connection) = slot.and_then(|slot| self.connection(slot)) {
            connection.demote().icmp_error(Seq(sequence), error);
        }
    }

    fn neighbor_unreachable(&mut self, ip: IpAddr) {
        let connect_tokens: Vec<u32> = self.shared.connect_tokens.keys().copied().collect();
        for slot in connect_tokens {
            let Some(mut connection) = self.connection(slot) else { continue };
            if connection.tcb.state == State::SynSent && connection.tcb.tuple.remote().ip() == ip {
                connection.end(EndReason::Unreachable);
            }
        }
    }

    fn address_removed(&mut self, ip: IpAddr) {
        self.for_each(|connection| {
            let tcb = &*connection.tcb;
            if tcb.tuple.local().ip() == ip && !matches!(tcb.state, State::Closed | State::TimeWait) {
                connection.demote().end(EndReason::AddressLost);
            }
        });
    }

    fn set_mtu_v6(&mut self, mtu: usize) {
        self.shared.settings.set_mtu_v6(mtu);
        self.for_each(|connection| {
            if !connection.tcb.tuple.is_ipv4() && connection.tcb.state.is_synchronized() {
                connection.demote().lower_mtu(mtu as u16);
            }
        });
    }

    fn expire(&mut self, now: Instant) {
        self.shared.set_now(now);
        for _ in 0..self.shared.alloc_blocked.len().min(ALLOC_RETRIES_PER_TURN) {
            let Some(slot) = self.shared.alloc_blocked.pop_front() else { break };
            if let Some(mut connection) = self.connection(slot) {
                connection.demote().notify();
            }
        }
        self.reopen_windows();
        self.expire_timers(now);
    }

    fn take_events(&mut self, events: &mut EventBatch) {
        self.shared.rr.collect(&mut self.shared.events.readable);
        // The connections stay in the list for `flush`: nearly all of them have something to send.
        let active = std::mem::take(&mut self.shared.active);
        for &slot in &active {
            if let Some(mut connection) = self.connection(slot)
                && connection.tcb.flags.has(Flags::NOTIFY)
            {
                connection.report_events();
            }
        }
        self.shared.active = active;
        std::mem::swap(events, &mut self.shared.events);
    }

    fn has_events(&self) -> bool {
        !self.shared.active.is_empty() || self.shared.rr.has_unanswered() || !self.shared.events.is_empty()
    }

    fn release(&mut self, conn: ConnId, _now: Instant) {
        let Some(Connection { slot, tcb, cold, shared }) = self.open_connection(conn) else { return };
        if cold.end_reason != EndReason::Finished {
            shared.counters.broken += 1;
        } else {
            shared.counters.finished += 1;
        }
        shared.remove(slot, tcb);
    }

    fn flush(&mut self, egress: &mut Egress<N>, now: Instant) {
        // A vhost port learns from the guest whether it supports TSO.
        self.shared.settings.update_tso(egress.capabilities());
        if now.since(self.shared.pool_checked_at) >= POOL_PERIOD {
            self.shared.pool_checked_at = now;
            self.update_app_held(egress);
        }
        self.sweep_if_due(egress, now);
        self.drain_backlog(egress, now);
        self.rr_flush(egress, now);
        // Connections that become active during this flush are sent in the next turn.
        let mut active = std::mem::replace(&mut self.shared.active, std::mem::take(&mut self.spare_active));
        for &slot in &active {
            let Some(tcb) = self.tcbs.get_mut(slot as usize) else { continue };
            let had = tcb.flags;
            let data = tcb.unsent > 0;
            tcb.flags.clear(Flags::TX_PENDING | Flags::NOTIFY);
            let waits = || data && !egress.has_data_room();
            if had.has(Flags::TX_PENDING) && (waits() || !self.transmit(slot, data, egress, now)) {
                self.shared.tx_backlog.push(slot);
            }
            if had.has(Flags::NOTIFY)
                && let Some(mut connection) = self.connection(slot)
            {
                connection.demote().notify();
            }
        }
        active.clear();
        self.spare_active = active;
        egress.hold_data(!self.shared.tx_backlog.is_empty());
    }

    fn next_deadline(&self) -> Option<Instant> {
        let reopens = !self.shared.window_held.is_empty() && !self.shared.is_low();
        // A service without a packet retries until an allocation succeeds.
        let retries_alloc = !self.shared.alloc_blocked.is_empty();
        let sends = !self.shared.tx_backlog.is_empty();
        if sends || Engine::<N>::has_events(self) || reopens || retries_alloc {
            return Some(Instant::ZERO);
        }
        // The application may free packets on another thread, which wakes nobody.
        let pool = (!self.shared.window_held.is_empty()).then(|| self.shared.pool_checked_at + POOL_PERIOD);
        let Shared { timers, time_wait, .. } = &self.shared;
        let deadlines = [timers.wheel.next_expiry(), time_wait.next_deadline(), self.shared.next_sweep(), pool];
        deadlines.into_iter().flatten().min()
    }

    fn connections(&self) -> usize {
        self.len()
    }

    fn stop_listening(&mut self) {
        self.shared.settings.listen.clear();
    }

    fn close_all(&mut self) {
        self.for_each(|connection| connection.demote().close());
    }

    fn abort_all(&mut self) {
        self.for_each(|connection| connection.demote().abort());
    }

    fn summarize(&self, summary: &mut Summary) {
        summary.accepted += self.shared.counters.accepted;
        summary.connected += self.shared.counters.connected;
        summary.failed += self.shared.counters.failed;
        summary.finished += self.shared.counters.finished;
        summary.broken += self.shared.counters.broken;
        summary.retransmitted = Some(self.shared.counters.retransmitted);
        summary.copied_bytes += self.shared.counters.copied;
        summary.drop_for("receive queue full", self.shared.counters.pruned);
        summary.drop_for("FIN-WAIT-2 timed out", self.shared.counters.fin_timeouts);
        summary.drop_for("connection idle for too long", self.shared.counters.idle_timeouts);
        summary.drop_for("peer acknowledged nothing for too long", self.shared.counters.stalled);
        summary.drop_for("reset under memory pressure", self.shared.counters.shed);
        summary.drop_for("out-of-order data discarded", self.shared.counters.discarded);
        summary.drop_for("TIME-WAIT ended early", self.shared.time_wait.ended_early());
    }

    fn fill_gauges(&self, gauges: &mut Gauges) {
        gauges.connections = self.len() as u64;
        gauges.half_open = Some(self.half_open() as u64);
        gauges.time_wait = Some(self.time_wait() as u64);
        gauges.packets_held = Some(self.shared.mbufs_held.all as u64);
    }

    fn slot_count(&self) -> usize {
        self.tcbs.len()
    }

    fn conn_info(&self, slot: usize) -> Option<ConnInfo> {
        self.conn_info(slot)
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.tcb(conn).map(|tcb| tcb.tuple.local())
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.tcb(conn).map(|tcb| tcb.tuple.remote())
    }

    fn received(&self, conn: ConnId) -> usize {
        let Some(tcb) = self.tcb(conn) else { return 0 };
        if tcb.received == 0 {
            self.shared.note_empty_read(conn.slot() as u32, tcb);
        }
        tcb.received as usize
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        <Self as Engine<N>>::front(self, conn).0
    }

    #[inline]
    fn front(&mut self, conn: ConnId) -> (&[u8], usize) {
        let Some(tcb) = self.tcb(conn) else { return (&[], 0) };
        let slice = match self.shared.rr.peek(tcb) {
            Some(slice) => slice,
            None => self.shared.peek_queued(conn.slot() as u32, tcb),
        };
        (slice, tcb.received as usize)
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        let Some(mut connection) = self.open_connection(conn) else { return };
        if !connection.rr_consume(n) {
            connection.consume(n);
        }
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        let mut connection = self.open_connection(conn)?;
        connection.rr_take(max).unwrap_or_else(|| connection.demote().take(max))
    }

    fn send_space(&mut self, conn: ConnId) -> usize {
        let Some(mut connection) = self.open_connection(conn) else { return 0 };
        let space = connection.send_space();
        if space == 0 {
            connection.demote().want_room();
        }
        space
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        match self.open_connection(conn) {
            Some(mut connection) => connection.demote().send(bytes),
            None => Err(Unsent { bytes, error: WriteError::Closed }),
        }
    }

    fn reserve(&mut self, conn: ConnId, max: usize, egress: &mut Egress<N>) -> Result<&mut [u8], WriteError> {
        let mut connection = self.open_connection(conn).ok_or(WriteError::Closed)?;
        match connection.rr_reserve(max, egress) {
            0 => {
                connection.demote();
                connection.reserve(max, egress)
            }
            n => connection.rr_reserved_mut(n).ok_or(WriteError::Full),
        }
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        let Some(mut connection) = self.open_connection(conn) else { return };
        if !connection.rr_commit(n) {
            connection.demote().commit(n);
        }
    }

    fn respond<W: FnOnce(&mut [u8])>(
        &mut self,
        conn: ConnId,
        (request_len, len): (usize, usize),
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<(), W> {
        match self.open_connection(conn) {
            Some(mut connection) => connection.rr_respond((request_len, len), write, egress, now),
            None => Err(write),
        }
    }

    fn forward(&mut self, from: ConnId, to: ConnId, egress: &mut Egress<N>, now: Instant) -> usize {
        self.forward(from, to, egress, now)
    }

    fn close(&mut self, conn: ConnId) {
        if let Some(mut connection) = self.open_connection(conn) {
            connection.demote().close();
        }
    }

    fn abort(&mut self, conn: ConnId) {
        if let Some(mut connection) = self.open_connection(conn) {
            connection.demote().abort();
        }
    }

    fn set_timer(&mut self, conn: ConnId, at: Option<Instant>) {
        if let Some(mut connection) = self.open_connection(conn) {
            connection.demote().set_service_timer(at);
        }
    }

    fn set_keepalive(&mut self, conn: ConnId, keepalive: Option<Keepalive>, now: Instant) {
        self.shared.settings.may_keep_alive |= keepalive.is_some();
        if let Some(mut connection) = self.open_connection(conn) {
            connection.demote().set_keepalive(keepalive, now);
        }
    }

    fn set_user_timeout(&mut self, conn: ConnId, timeout: Option<Duration>) {
        if let Some(connection) = self.open_connection(conn) {
            connection.shared.timers.overrides.entry(connection.slot).or_default().user_timeout = timeout;
        }
    }

    fn set_corked(&mut self, conn: ConnId, corked: bool) {
        if let Some(mut connection) = self.open_connection(conn) {
            connection.demote().set_corked(corked);
        }
    }

    fn connect(&mut self, remote: SocketAddr, token: u64, egress: &mut Egress<N>, now: Instant) {
        if let Err(error) = self.active_open(remote, token, egress, now) {
            self.shared.counters.failed += 1;
            self.shared.events.others.push(Event::Failed(token, error));
        }
    }
}
