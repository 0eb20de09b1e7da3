//! Connections of a worker: the state that services act on, and the source of their events.
//!
//! Nothing here calls the service. Events are recorded (`opened`, `failed`, `ready`) and delivered by the worker, so
//! that a service that ends another connection does so outside any event of that connection.

mod datagrams;
mod draining;
mod lingering;
mod polling;
mod receiving;
mod remote;
mod sending;
mod transport;

pub(crate) use sending::KEPT;

use crate::Config;
use crate::connection::conn_transport::ConnTransport;
use crate::connection::{ConnCore, Connection, Pending, Receiving, Sending, Stage};
use crate::provider::{Provider, WcOpcode, WcStatus};
use crate::verbs::{Completion, Cq, Error, Errored, Mr, Mw, Qp, Srq, UdMessage, UdQp};
use draining::Draining;
use linerate_bypass::time::Instant;
use linerate_bypass::{Arena, CloseReason, ConnId, ConnSlab, ConnectError, Origin, Summary, Timers};
use polling::Polling;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// Completions polled at a time.
const BURST: usize = 32;
/// Interval of probes for releasable memory while memory is exhausted.
const PROBE_STARVED: Duration = Duration::from_micros(100);

/// Verbs objects and memory of one worker.
pub struct Parts<C: Provider> {
    /// Completion queues of the connections.
    pub cqs: Vec<Cq<C>>,
    /// Shared receive queue, if connections share buffers.
    pub srq: Option<Srq<C>>,
    /// UD queue pair, if connections are sessions.
    pub datagrams: Option<UdQp<C>>,
    /// Registered memory.
    pub mr: Mr<C>,
    /// Memory for data to send and to read: a part of the region.
    pub arena: Arena,
    /// Memory for receive buffers and for control messages, separate so that data to send cannot exhaust it.
    pub buffers: Arena,
    /// All memory windows for offers.
    pub mws: Vec<Mw<C>>,
    /// Windows are bound to a registration of the slice alone, because the device does not enforce the bounds of a
    /// window.
    pub narrow: bool,
    /// The device supports atomic operations.
    pub atomics: bool,
}

/// Completion or datagram that precedes its connection.
enum Early {
    Completion(Completion),
    Datagram(UdMessage),
}

pub(crate) struct Net<C: Provider> {
    pub now: Instant,
    pub worker: usize,
    config: Config,
    cqs: Vec<Cq<C>>,
    srq: Option<Srq<C>>,
    mr: Mr<C>,
    arena: Arena,
    buffers: Arena,
    mws: Vec<Mw<C>>,
    narrow: bool,
    atomics: bool,
    pub slots: ConnSlab<Connection<C>>,
    /// UD queue pair of all sessions, if any.
    datagrams: Option<UdQp<C>>,
    /// Connections by queue pair number or session number.
    by_number: HashMap<u64, ConnId, foldhash::fast::FixedState>,
    /// Completions and datagrams of connections being established, by number.
    expected: HashMap<u64, Vec<Early>, foldhash::fast::FixedState>,
    /// Queue pairs of ended connections being drained, by number; and those that are drained.
    draining: HashMap<u32, Draining<C>, foldhash::fast::FixedState>,
    pub drained: Vec<Qp<C, Errored>>,
    /// Queue pairs whose remaining completions are being polled, and those for which that is done.
    polling: Polling,
    pub polled_for: Vec<u32>,
    pub timers: Timers,
    /// Timers of session retransmissions and acknowledgements.
    pub session_timers: Timers,
    /// Sessions that found the UD send queue full.
    crowded: Vec<ConnId>,
    pub summary: Summary,
    /// Established connections that the service does not know yet.
    pub opened: VecDeque<(ConnId, Origin)>,
    /// Failed connects.
    pub failed: VecDeque<(u64, ConnectError)>,
    /// Requested connects.
    pub wanted: VecDeque<(SocketAddr, u64)>,
    /// Connections with events to deliver.
    pub ready: VecDeque<ConnId>,
    /// Connections with data to send or buffers to post.
    dirty: Vec<ConnId>,
    /// Connections that found no memory.
    starved: Vec<ConnId>,
    /// Numbers of lost connections, with the reason.
    pub lost: Vec<(u64, CloseReason)>,
    /// Ended connections for the connector.
    pub retired: Vec<ConnCore<C>>,
    polled: Vec<Completion>,
    /// The device has failed.
    is_over: bool,
    /// The last poll emptied all completion queues.
    is_drained: bool,
    /// Time of the last probe for silent peers.
    probed: Instant,
}

impl<C: Provider> Net<C> {
    pub fn new(worker: usize, config: Config, parts: Parts<C>) -> Self {
        let Parts { cqs, srq, datagrams, mr, arena, buffers, mws, narrow, atomics } = parts;
        Net {
            now: Instant::ZERO,
            worker,
            cqs,
            srq,
            datagrams,
            mr,
            arena,
            buffers,
            mws,
            narrow,
            atomics,
            slots: ConnSlab::new(worker, config.max_connections),
            by_number: HashMap::default(),
            expected: HashMap::default(),
            draining: HashMap::default(),
            drained: Vec::new(),
            polling: Polling::default(),
            polled_for: Vec::new(),
            timers: Timers::default(),
            session_timers: Timers::default(),
            crowded: Vec::new(),
            summary: Summary::default(),
            opened: VecDeque::new(),
            failed: VecDeque::new(),
            wanted: VecDeque::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            starved: Vec::new(),
            lost: Vec::new(),
            retired: Vec::new(),
            polled: Vec::with_capacity(BURST),
            is_over: false,
            is_drained: false,
            probed: Instant::ZERO,
            config,
        }
    }

    /// Returns true if no connection can be added.
    pub fn is_full(&self) -> bool {
        self.is_over || self.slots.is_full()
    }

    /// Adds an established connection. The caller has checked [`is_full`](Self::is_full).
    pub fn add(&mut self, link: ConnCore<C>, origin: Origin) {
        let number = link.transport.number();
        let Some(id) = self.slots.insert(Connection::new(link, self.now)) else {
            unreachable!("the caller has checked is_full")
        };
        self.by_number.insert(number, id);
        self.take_in_early(number);
        self.opened.push_back((id, origin));
        // Opens the ring, if any.
        self.set_dirty(id);
        match origin {
            Origin::Accepted => self.summary.accepted += 1,
            Origin::Connected(_) => self.summary.connected += 1,
        }
    }

    /// Returns a memory window to the worker.
    pub fn add_window(&mut self, mw: Mw<C>) {
        self.mws.push(mw);
    }

    /// Returns the number of unused windows.
    #[cfg(test)]
    pub fn free_windows(&self) -> usize {
        self.mws.len()
    }

    /// Returns the connection with this queue pair number or session number.
    pub fn of_number(&self, number: u64) -> Option<ConnId> {
        self.by_number.get(&number).copied()
    }

    /// Polls a burst of completions of each queue. Events of the connector must be processed between this and
    /// [`take_in`](Self::take_in): the connector announces a connection before the peer can send on it.
    pub fn poll(&mut self) {
        self.is_drained = true;
        if !self.is_over {
            self.poll_queues();
        }
        self.polling.polled(self.is_drained);
    }

    fn poll_queues(&mut self) {
        let Net { cqs, polled, is_drained, .. } = self;
        let result = cqs.iter_mut().try_for_each(|cq| {
            let completions = cq.poll(BURST)?;
            *is_drained &= completions.len() < BURST;
            polled.extend(completions);
            Ok(())
        });
        if let Err(error) = result {
            self.give_up(&error);
        }
    }

    /// Ends all connections after a device failure. The worker keeps running.
    #[cold]
    fn give_up(&mut self, error: &Error) {
        tracing::error!("{error}: all connections have ended and no further ones are possible");
        self.is_over = true;
        self.expected.clear();
        self.drained.extend(self.draining.drain().map(|(_, draining)| draining.into()));
        for id in self.slots.conn_ids() {
            self.end(id, CloseReason::Reset);
        }
    }

    /// Processes the polled completions and returns their number.
    pub fn take_in(&mut self) -> usize {
        let mut polled = std::mem::take(&mut self.polled);
        let count = polled.len();
        for completion in polled.drain(..) {
            self.complete(completion);
        }
        self.polled = polled;
        self.polling.take_done(&mut self.polled_for);
        if self.is_drained {
            // All data sent before the loss has been processed.
            for (number, why) in std::mem::take(&mut self.lost) {
                if let Some(id) = self.of_number(number) {
                    self.end_lost(id, why);
                }
            }
        }
        while let Some(id) = self.timers.pop(self.now) {
            self.timer_event(id);
        }
        while let Some(id) = self.session_timers.pop(self.now) {
            self.session_timer_event(id);
        }
        let wait = if self.starved.is_empty() { self.config.probe_after / 4 } else { PROBE_STARVED };
        if self.now >= self.probed + wait {
            self.probe();
        }
        for id in std::mem::take(&mut self.starved) {
            self.set_dirty(id);
        }
        count
    }

    /// Probes silent peers; with requests outstanding, the device detects a dead peer itself. Connections whose last
    /// requests are unsignalled are probed sooner, because the completion releases the memory of those requests, and
    /// at once while memory is exhausted.
    #[cold]
    fn probe(&mut self) {
        self.give_up_draining();
        let after = self.config.probe_after;
        self.probed = self.now;
        for index in 0..self.slots.slot_count() {
            let Some(id) = self.slots.conn_id(index) else { continue };
            let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open) else { continue };
            let quiet_for = if conn.link.transport.is_silent() { after / 4 } else { after };
            let is_due =
                conn.heard + quiet_for <= self.now || !self.starved.is_empty() && conn.link.transport.is_silent();
            if is_due && !conn.is_probed {
                conn.is_probed = true;
                conn.link.transport.probe();
                self.set_dirty(id);
            }
        }
    }

    /// Requests a channel event at the next completion.
    pub fn arm(&mut self) {
        if !self.is_over
            && let Err(error) = self.cqs.iter_mut().try_for_each(Cq::notify)
        {
            self.give_up(&error);
        }
    }

    /// Returns true if connections wait for memory, whose release generates no event.
    pub fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Returns the number of connections, including those being established for peers.
    pub fn connections(&self) -> usize {
        self.slots.len() + self.expected.len()
    }

    /// Keeps completions of connection `number`, which is being established, until it is added.
    pub fn expect(&mut self, number: u64) {
        // An entry in `lost` refers to an earlier connection with the same number.
        self.lost.retain(|(lost, _)| *lost != number);
        self.expected.insert(number, Vec::new());
    }

    /// Stops expecting connection `number`, which was not established.
    pub fn expect_no_more(&mut self, number: u64) {
        // The kept completions may include buffers of the shared receive queue.
        self.take_in_early(number);
    }

    fn take_in_early(&mut self, number: u64) {
        for early in self.expected.remove(&number).unwrap_or_default() {
            match early {
                Early::Completion(completion) => self.complete(completion),
                Early::Datagram(datagram) => self.datagram(datagram),
            }
        }
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        let verbs = &mut self.summary.verbs;
        *if completion.is_buffer() { &mut verbs.buffers_completed } else { &mut verbs.requests_completed } += 1;
        if let Some(datagrams) = &self.datagrams
            && datagrams.owns(&completion)
        {
            return self.datagram_completed(completion);
        }
        let number = completion.qp().into();
        let id = self.of_number(number);
        if id.is_none() {
            if let Some(early) = self.expected.get_mut(&number) {
                return early.push(Early::Completion(completion));
            }
            if self.draining.contains_key(&completion.qp()) {
                return self.come_back(completion);
            }
        }
        if let Some(srq) = &mut self.srq
            && completion.is_buffer()
            && srq.owns(&completion)
        {
            let message = srq.complete(completion);
            if let Some(id) = id {
                self.message(id, message);
            }
            return;
        }
        // Completions of an ended connection may carry the number of a new one.
        let Some(id) = id else { return };
        let Some(conn) = self.slots.get_mut(id) else { return };
        let Some(qp) = conn.link.transport.qp().filter(|qp| qp.owns(&completion)) else { return };
        if completion.is_buffer() {
            let is_written = completion.opcode() == WcOpcode::ReceiveWrite;
            let message = qp.received(completion);
            if let (true, Ok(copy)) = (is_written, &message) {
                self.summary.copied_bytes += copy.len() as u64;
            }
            self.message(id, message);
        } else {
            let done = qp.sent(completion);
            self.done(id, done);
        }
    }

    fn timer_event(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        if self.timers.fired(id, &mut conn.timer, self.now) {
            if let Receiving::Discarding(linger) = conn.receiving {
                return self.linger_expired(id, linger);
            }
            conn.pending.timer = true;
            self.list(id);
        }
    }

    /// Handles a failed completion of a connection.
    fn fail(&mut self, id: ConnId, status: WcStatus) {
        if status == WcStatus::Flushed {
            // Buffers are also flushed when the peer has finished and disconnects first.
            return self.end_lost(id, CloseReason::Reset);
        }
        tracing::debug!("connection {id:?}: {status}");
        self.end(id, if status == WcStatus::RetryExceeded { CloseReason::TimedOut } else { CloseReason::Reset });
    }

    /// Ends a lost connection. The loss is no error if both ends had finished.
    fn end_lost(&mut self, id: ConnId, why: CloseReason) {
        let is_over = self.slots.get(id).is_some_and(|conn| {
            conn.peer_has_finished() && matches!(conn.sending, Sending::Finishing | Sending::Finished)
        });
        self.end(id, if is_over { CloseReason::Finished } else { why });
    }

    /// Ends a connection whose peer violated the protocol.
    fn refuse(&mut self, id: ConnId, why: &dyn std::fmt::Display) {
        tracing::warn!("connection {id:?} is closed: {why}");
        self.summary.drop_for("message: senseless", 1);
        self.end(id, CloseReason::Reset);
    }

    /// Removes a connection from all tables.
    pub fn remove(&mut self, id: ConnId) -> Option<Connection<C>> {
        let mut conn = self.slots.remove(id)?;
        self.timers.cancel(id, &mut conn.timer);
        if let ConnTransport::Ud(peer) = &mut conn.link.transport {
            self.session_timers.cancel(id, &mut peer.timer);
        }
        self.by_number.remove(&conn.link.transport.number());
        Some(conn)
    }

    /// Adds a connection to those with events to deliver.
    pub fn list(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.listed
        {
            conn.listed = true;
            self.ready.push_back(id);
        }
    }

    fn set_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Ends a connection and drops all queued data.
    pub fn abort_now(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        conn.rx.clear();
        conn.receiving = Receiving::Told;
        conn.pending = Pending::default();
        conn.one_sided_done.clear();
        self.end(id, CloseReason::Aborted);
    }

    /// Ends a connection. Its last event follows the earlier ones.
    pub fn end(&mut self, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open) else { return };
        conn.stage = Stage::Ended(reason);
        let is_session = matches!(conn.link.transport, ConnTransport::Ud(_));
        conn.tx.clear();
        conn.wants_room = false;
        conn.pending.writable = false;
        conn.pending.timer = false;
        self.timers.cancel(id, &mut conn.timer);
        conn.timer = Default::default();
        self.list(id);
        if is_session && reason == CloseReason::Finished {
            // The peer waits for the acknowledgement of its last message.
            self.acknowledge(id);
        }
    }
}
