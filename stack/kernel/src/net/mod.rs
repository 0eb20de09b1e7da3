//! Sockets of a running worker: transport of the service and source of events.
//!
//! Nothing here calls the service. Events are recorded in the [`ConnTable`], and the worker's
//! [`ServiceHost`](linerate_service::ServiceHost) delivers them.

mod descriptors;
mod idle;
mod memory;
mod open;
mod receive;
mod send;

use crate::connection::Connection;
use crate::poller::{Events, Poller, Readiness, Token};
use crate::udp::Udp;
use crate::{Config, errno};
pub(crate) use descriptors::Descriptors;
use idle::Idle;
use linerate_bypass::{CpuTime, tcp_info};
use linerate_service::inspect::{ConnInfo, Gauges, Snapshot, Summary};
use linerate_service::mailbox::Wake;
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{CloseReason, ConnId, ConnTable, ConnectError, EventBatch, HostedNet, Origin, Silenced, Stage};
use memory::Memory;
use open::Listener;
use send::Placing;
use socket2::SockRef;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Number of connections up to which a spinning worker reads all without epoll: a failed read costs at most as much as
/// a call of `epoll_wait`.
const FEW_CONNECTIONS: usize = 2;
/// Turns of a spinning worker between calls of `epoll_wait`, for new connections, send space and wakes.
const EPOLL_EVERY: u32 = 16;

pub(crate) struct Net {
    clock: Clock,
    pub now: Instant,
    pub worker: usize,
    config: Config,
    poller: Poller,
    events: Events,
    /// Turns of a spinning worker.
    turns: u32,
    listeners: Vec<Listener>,
    accept_again: Option<Instant>,
    descriptors: Descriptors,
    pub udp: Udp,
    pub table: ConnTable<Connection>,
    pub summary: Summary,
    /// Connections with possibly more data in the kernel.
    unread: VecDeque<ConnId>,
    /// Connections with data to write.
    tx_pending: Vec<ConnId>,
    memory: Memory,
    placing: Option<Placing>,
    /// Search for idle connections, if there is an idle timeout.
    idle: Option<Idle>,
}

impl Net {
    pub(crate) fn new(
        worker: usize,
        config: Config,
        poller: Poller,
        listeners: Vec<(TcpListener, SocketAddr)>,
        udp: Udp,
        descriptors: Descriptors,
    ) -> Self {
        let listener = |(socket, address)| Listener { socket, address, ready: true };
        Net {
            clock: Clock::start(),
            now: Instant::ZERO,
            worker,
            poller,
            events: Events::with_room(),
            turns: 0,
            listeners: listeners.into_iter().map(listener).collect(),
            accept_again: None,
            descriptors,
            udp,
            table: ConnTable::new(worker, config.max_connections),
            summary: Summary::default(),
            unread: VecDeque::new(),
            tx_pending: Vec::new(),
            memory: Memory::new(config.memory),
            placing: None,
            idle: config.idle_timeout.map(Idle::new),
            config,
        }
    }

    pub(crate) fn listen_addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|listener| listener.address).collect()
    }

    /// Returns the time that the worker may sleep, at most `longest`: zero while work remains, `None` for no limit.
    pub(crate) fn idle_time(&self, longest: Option<Duration>) -> Option<Duration> {
        let busy = self.table.has_events()
            || !self.unread.is_empty()
            || self.udp.is_ready()
            || self.accept_again.is_none() && self.listeners.iter().any(|listener| listener.ready);
        if busy {
            return Some(Duration::ZERO);
        }
        let idle = self.idle.as_ref().filter(|_| self.table.slots.len() > 0).map(Idle::next);
        let timer = [self.table.next_deadline(), self.accept_again, idle].into_iter().flatten().min();
        let timer = timer.map(|at| at.since(self.clock.now()));
        [longest, timer, self.memory.pause()].into_iter().flatten().min()
    }

    /// Returns the function that wakes the worker.
    pub(crate) fn wake(&self) -> Wake {
        self.poller.waker.wake()
    }

    /// Gathers events without waiting. While there are few connections, most turns read all of them without
    /// `epoll_wait`, which saves the latency of one system call.
    pub(crate) fn gather_spinning(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.table.slots.slot_count() > FEW_CONNECTIONS || self.turns.is_multiple_of(EPOLL_EVERY) {
            return self.gather_events(Some(Duration::ZERO));
        }
        for slot in 0..self.table.slots.slot_count() {
            if let Some(id) = self.table.slots.conn_id(slot) {
                self.set_unread(id);
            }
        }
        self.take_in(&Events::default());
    }

    /// Waits up to `timeout`, or indefinitely, then gathers all events.
    pub(crate) fn gather_events(&mut self, timeout: Option<Duration>) {
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.poller.wait(&mut events, timeout) {
            tracing::error!("cannot wait for events: {error}");
        }
        self.take_in(&events);
        self.events = events;
    }

    /// Reads the clock for further events.
    pub fn update_time(&mut self) {
        self.now = self.clock.now();
    }

    fn take_in(&mut self, events: &Events) {
        self.update_time();
        self.memory.reset();
        self.udp.reset();
        self.retry_waiting();
        for _ in 0..self.unread.len() {
            if let Some(id) = self.unread.pop_front() {
                self.read(id);
            }
        }
        for event in events.iter() {
            match event {
                (Token::Connection(slot), readiness) => self.stream_event(slot, readiness),
                (Token::Listener(index), _) => {
                    // The listener may have been closed since.
                    if let Some(listener) = self.listeners.get_mut(index) {
                        listener.ready = true;
                    }
                }
                (Token::Udp(index), _) => self.udp.set_ready(index),
                (Token::Wake, _) => {}
            }
        }
        self.accept();
        while let Some(id) = self.table.expire(self.now) {
            self.fail(id, ConnectError::TimedOut);
        }
        self.end_idle();
    }

    fn stream_event(&mut self, slot: usize, readiness: Readiness) {
        let Some(id) = self.table.slots.conn_id(slot) else { return };
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        let Some(stream) = &conn.stream else { return };
        conn.more_than_bytes |= readiness.more_than_bytes();
        if let Stage::Connecting(token) = conn.life.stage {
            match stream.take_error() {
                Ok(None) if stream.peer_addr().is_ok() => {
                    conn.life.stage = Stage::Open;
                    self.table.set_timer(id, None);
                    self.table.report_opened(id, Origin::Connected(token));
                    self.summary.connected += 1;
                }
                Ok(None) => return,
                Ok(Some(error)) | Err(error) => return self.fail(id, errno::connect_error(&error)),
            }
        }
        if readiness.readable() {
            self.read(id);
        }
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        let Some(stream) = &conn.stream else { return };
        if readiness.error()
            && let Ok(Some(error)) = stream.take_error()
        {
            return self.end(id, errno::close_reason(&error));
        }
        if readiness.writable() && conn.blocked {
            conn.blocked = false;
            self.set_dirty(id);
        }
    }

    pub(crate) fn set_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.table.slots.get_mut(id)
            && !conn.tx_pending
        {
            conn.tx_pending = true;
            self.tx_pending.push(id);
        }
    }

    fn set_unread(&mut self, id: ConnId) {
        if let Some(conn) = self.table.slots.get_mut(id)
            && !conn.unread
        {
            conn.unread = true;
            self.unread.push_back(id);
        }
    }

    /// Resets a connection for `reason` and drops its queues.
    pub(crate) fn reset_as(&mut self, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        if let Some(stream) = &conn.stream {
            reset(stream);
        }
        conn.rx.clear();
        self.table.silence(id);
        self.end(id, reason);
    }

    /// Counts a sent datagram of `len` bytes.
    pub(crate) fn count_datagram(&mut self, len: usize) {
        self.summary.tx_frames += 1;
        self.summary.tx_bytes += len as u64;
    }
}

impl Net {
    /// Ends an established connection and closes its socket.
    fn end(&mut self, id: ConnId, reason: CloseReason) {
        if let Some(conn) = self.table.end(id, reason) {
            conn.stream = None;
            conn.tx.clear();
        }
    }

    /// Counts a failed connection attempt, and makes `failed` due.
    fn report_failed(&mut self, token: u64, error: ConnectError) {
        self.summary.failed += 1;
        self.table.report_failed(token, error);
    }
}

impl HostedNet for Net {
    /// Fewer slots than by default, because each takes a system call.
    const SLOTS_PER_QUERY: usize = 64;

    fn take_events(&mut self, events: &mut EventBatch) {
        self.table.take_events(events);
    }

    fn has_events(&self) -> bool {
        self.table.has_events()
    }

    fn flush(&mut self) {
        self.flush_all();
    }

    fn after_event(&mut self) {
        self.flush_all();
    }

    #[inline]
    fn silenced(&mut self) -> &mut Silenced {
        &mut self.table.silenced
    }

    fn is_open(&self, conn: ConnId) -> bool {
        self.table.is_open(conn)
    }

    fn is_delivered(&self, conn: ConnId) -> bool {
        let Some(conn) = self.table.slots.get(conn) else { return true };
        let in_flight = || conn.stream.as_ref().and_then(|stream| tcp_info(stream).ok()?.in_flight);
        conn.tx.is_empty() && in_flight().is_none_or(|bytes| bytes == 0)
    }

    fn set_deadline(&mut self, conn: ConnId, at: Instant) {
        self.table.set_timer(conn, Some(at));
    }

    fn peer_closed_reported(&mut self, conn: ConnId) {
        if self.table.peer_closed_reported(conn) {
            self.end(conn, CloseReason::Finished);
        }
    }

    fn release(&mut self, conn: ConnId) {
        self.table.release(conn, &mut self.summary);
    }

    fn snapshot(&mut self) -> Snapshot {
        let gauges = Gauges { connections: self.table.slots.len() as u64, ..Gauges::default() };
        let summary = Summary { cpu_us: CpuTime::of_thread().micros(), ..self.summary.clone() };
        Snapshot { worker: self.worker, summary, gauges, ..Snapshot::default() }
    }

    fn slot_count(&self) -> usize {
        self.table.slots.slot_count()
    }

    fn conn_info(&self, slot: usize) -> Option<ConnInfo> {
        let connection = self.table.slots.at(slot)?;
        let stream = connection.stream.as_ref();
        Some(ConnInfo {
            conn: self.table.slots.conn_id(slot)?,
            local: stream.and_then(|stream| stream.local_addr().ok()),
            remote: connection.remote,
            state: connection.life.conn_state(),
            unread: connection.rx.len() as u64,
            unsent: connection.tx.len() as u64,
            // A socket just closed has no kernel state.
            tcp: stream.and_then(|stream| tcp_info(stream).ok()).unwrap_or_default(),
            verbs: None,
            tls: None,
        })
    }
}

/// Makes closing `stream` send a reset.
fn reset(stream: &TcpStream) {
    // On failure, the peer sees the end of the stream instead.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
