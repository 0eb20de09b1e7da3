//! Sockets of a running worker: transport of the service and source of events.
//!
//! Nothing here calls the service. Events are queued (`opened`, `failed`, `ready`) and the worker delivers them, so
//! that ending another connection inside an event never delivers an event of that connection recursively.

mod idle;
mod linger;
mod memory;
mod open;
mod receive;
mod send;

use crate::connection::{Connection, Pending, Receiving, Stage};
use crate::poller::{Events, Poller, Readiness, Ticker, Token};
use crate::udp::Udp;
use crate::{Config, errno};
use idle::Idle;
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_bypass::{CloseReason, ConnId, ConnSlab, ConnectError, Origin, Summary, Timers};
use memory::Memory;
use open::Listener;
use send::Placing;
use socket2::SockRef;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Number of connections up to which a spinning worker reads all without epoll: a failed read costs at most as much as
/// a query.
const FEW_CONNECTIONS: usize = 2;
/// Turns of a spinning worker between queries of epoll, for new connections, send space and wakes.
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
    ticker: Option<Ticker>,
    listeners: Vec<Listener>,
    accept_again: Option<Instant>,
    pub udp: Udp,
    pub slots: ConnSlab<Connection>,
    pub timers: Timers,
    pub summary: Summary,
    /// Established connections that the service does not know yet.
    pub opened: VecDeque<(ConnId, Origin)>,
    /// Failed connection attempts.
    pub failed: VecDeque<(u64, ConnectError)>,
    /// Connections with undelivered events.
    pub ready: VecDeque<ConnId>,
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
    ) -> Self {
        let listener = |(socket, address)| Listener { socket, address, ready: true };
        Net {
            clock: Clock::start(),
            now: Instant::ZERO,
            worker,
            poller,
            events: Events::with_room(),
            turns: 0,
            ticker: None,
            listeners: listeners.into_iter().map(listener).collect(),
            accept_again: None,
            udp,
            slots: ConnSlab::new(worker, config.max_connections),
            timers: Timers::default(),
            summary: Summary::default(),
            opened: VecDeque::new(),
            failed: VecDeque::new(),
            ready: VecDeque::new(),
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

    /// Returns how long the worker may sleep, at most `longest`: zero while work remains, `None` until an event.
    pub(crate) fn idle_time(&self, longest: Option<Duration>) -> Option<Duration> {
        let busy = !(self.ready.is_empty() && self.unread.is_empty() && self.failed.is_empty())
            || self.udp.is_ready()
            || self.accept_again.is_none() && self.listeners.iter().any(|listener| listener.ready);
        if busy {
            return Some(Duration::ZERO);
        }
        let idle = self.idle.as_ref().filter(|_| self.slots.len() > 0).map(Idle::next);
        let timer = [self.timers.next(), self.accept_again, idle].into_iter().flatten().min();
        let timer = timer.map(|at| at.since(self.clock.now()));
        [longest, timer, self.memory.pause()].into_iter().flatten().min()
    }

    /// Wakes the worker at regular intervals.
    pub(crate) fn tick(&mut self, interval: Duration) -> io::Result<()> {
        self.ticker = Some(self.poller.tick(interval)?);
        Ok(())
    }

    /// Gathers events without waiting. While there are few connections, most turns read them without asking epoll,
    /// which saves one system call of latency.
    pub(crate) fn gather_spinning(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.slots.slot_count() > FEW_CONNECTIONS || self.turns.is_multiple_of(EPOLL_EVERY) {
            return self.gather_events(Some(Duration::ZERO));
        }
        for slot in 0..self.slots.slot_count() {
            if let Some(id) = self.slots.conn_id(slot) {
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

    /// Updates the time of further events.
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
                    // It may have been closed since.
                    if let Some(listener) = self.listeners.get_mut(index) {
                        listener.ready = true;
                    }
                }
                (Token::Udp(index), _) => self.udp.set_ready(index),
                (Token::Wake, _) => {}
                (Token::Tick, _) => self.ticker.iter().for_each(Ticker::ticked),
            }
        }
        self.accept();
        while let Some(id) = self.timers.pop(self.now) {
            self.timer_event(id);
        }
        self.end_idle();
    }

    fn stream_event(&mut self, slot: usize, readiness: Readiness) {
        let Some(id) = self.slots.conn_id(slot) else { return };
        let Some(conn) = self.slots.get_mut(id) else { return };
        let Some(stream) = &conn.stream else { return };
        conn.more_than_bytes |= readiness.more_than_bytes();
        if let Stage::Connecting(token) = conn.stage {
            match stream.take_error() {
                Ok(None) if stream.peer_addr().is_ok() => {
                    conn.stage = Stage::Open;
                    self.timers.set(id, &mut conn.timer, None);
                    self.opened.push_back((id, Origin::Connected(token)));
                    self.summary.connected += 1;
                }
                Ok(None) => return,
                Ok(Some(error)) | Err(error) => return self.fail(id, errno::connect_error(&error)),
            }
        }
        if readiness.readable() {
            self.read(id);
        }
        let Some(conn) = self.slots.get_mut(id) else { return };
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

    fn timer_event(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        if !self.timers.fired(id, &mut conn.timer, self.now) {
            return;
        }
        if let Stage::Connecting(_) = conn.stage {
            self.fail(id, ConnectError::TimedOut);
        } else if let Receiving::Discarding(linger) = conn.receiving {
            self.linger_expired(id, linger);
        } else {
            conn.pending.timer = true;
            self.list(id);
        }
    }

    /// Removes a connection from all lists.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Connection> {
        let mut conn = self.slots.remove(id)?;
        self.timers.cancel(id, &mut conn.timer);
        Some(conn)
    }

    /// Adds a connection to the list of those with events.
    pub(crate) fn list(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.listed
        {
            conn.listed = true;
            self.ready.push_back(id);
        }
    }

    fn set_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.tx_pending
        {
            conn.tx_pending = true;
            self.tx_pending.push(id);
        }
    }

    fn set_unread(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.unread
        {
            conn.unread = true;
            self.unread.push_back(id);
        }
    }

    /// Resets a connection and drops its queues.
    pub(crate) fn abort_now(&mut self, id: ConnId) {
        self.reset_as(id, CloseReason::Aborted);
    }

    /// Resets a connection for `reason` and drops its queues.
    fn reset_as(&mut self, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        if let Some(stream) = &conn.stream {
            reset(stream);
        }
        conn.rx.clear();
        conn.receiving = Receiving::Reported;
        conn.pending = Pending::default();
        self.end(id, reason);
    }

    /// Closes the socket of a connection. `closed` follows after earlier events.
    pub(crate) fn end(&mut self, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open) else { return };
        conn.stage = Stage::Ended(reason);
        conn.stream = None;
        conn.tx.clear();
        conn.wants_room = false;
        conn.pending.writable = false;
        conn.pending.timer = false;
        self.timers.cancel(id, &mut conn.timer);
        conn.timer = Default::default();
        self.list(id);
    }
}

/// Makes closing `stream` send a reset.
fn reset(stream: &TcpStream) {
    // On failure, the peer sees the end of the stream instead.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
