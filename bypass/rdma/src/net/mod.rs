//! The connections of a running worker: what the service acts on, and where the events come from.
//!
//! Nothing here calls the service. What happens is noted (`opened`, `failed`, `ready`) and the worker delivers it, so that an
//! event in which the service ends another connection never runs inside one of that other.

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
use crate::verbs::{Completion, Cq, Datagram, Error, Errored, Mr, Mw, Qp, Srq, UdQp};
use draining::Draining;
use linerate_bypass::time::Instant;
use linerate_bypass::{Arena, CloseReason, ConnId, ConnSlab, ConnectError, Origin, Summary, Timers};
use polling::Polling;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// Completions that are polled at a time.
const BURST: usize = 32;
/// How long it takes until connections are asked again what they still hold, while there is no memory.
const PROBE_STARVED: Duration = Duration::from_micros(100);

/// What a worker has of its device.
pub struct Parts<C: Provider> {
    /// Where completions of its connections go.
    pub cqs: Vec<Cq<C>>,
    /// The buffers that all its connections share, if they do.
    pub srq: Option<Srq<C>>,
    /// The queue pair that all of them go by, if they are sessions.
    pub datagrams: Option<UdQp<C>>,
    /// The memory that the device reaches.
    pub mr: Mr<C>,
    /// Where what is sent and what is read is put: a part of the region.
    pub arena: Arena,
    /// Where buffers for messages are taken from, and messages of a few bytes that make the peer go on: another part, so that what
    /// services have to send leaves room for both.
    pub buffers: Arena,
    /// Windows through which peers read, which are all that there are.
    pub mws: Vec<Mw<C>>,
    /// Whether what a window is bound to is registered for that alone, since the device does not keep to a window's bounds.
    pub narrow: bool,
    /// Whether it does atomic operations.
    pub atomics: bool,
}

/// What came before the connection that it is for.
enum Early {
    Completion(Completion),
    Datagram(Datagram),
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
    /// The queue pair by which all sessions go, if there are any.
    datagrams: Option<UdQp<C>>,
    /// By the number of what carries it.
    by_number: HashMap<u64, ConnId, foldhash::fast::FixedState>,
    /// What has come for connections that are being made, by their numbers.
    expected: HashMap<u64, Vec<Early>, foldhash::fast::FixedState>,
    /// Queue pairs of connections that are over, until they are drained, by their numbers; and those that are.
    draining: HashMap<u32, Draining<C>, foldhash::fast::FixedState>,
    pub drained: Vec<Qp<C, Errored>>,
    /// Queue pairs for which all is to be polled that has been completed, and those for which it has been.
    polling: Polling,
    pub polled_for: Vec<u32>,
    pub timers: Timers,
    /// When sessions have something to send.
    pub session_timers: Timers,
    /// Sessions for whose datagrams there was no room.
    crowded: Vec<ConnId>,
    pub summary: Summary,
    /// Connections that are established and unknown to the service.
    pub opened: VecDeque<(ConnId, Origin)>,
    /// Connections that could not be made.
    pub failed: VecDeque<(u64, ConnectError)>,
    /// Connections that are asked for.
    pub wanted: VecDeque<(SocketAddr, u64)>,
    /// Connections with events to deliver.
    pub ready: VecDeque<ConnId>,
    /// Connections that have something to send or to post.
    dirty: Vec<ConnId>,
    /// Connections for which there was no memory.
    starved: Vec<ConnId>,
    /// The numbers of connections that are lost, and why.
    pub lost: Vec<(u64, CloseReason)>,
    /// Links that are over.
    pub buried: Vec<ConnCore<C>>,
    polled: Vec<Completion>,
    /// There is no device any more.
    is_over: bool,
    /// All that was completed has been polled.
    is_drained: bool,
    /// When silent peers were looked for.
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
            buried: Vec::new(),
            polled: Vec::with_capacity(BURST),
            is_over: false,
            is_drained: false,
            probed: Instant::ZERO,
            config,
        }
    }

    /// Whether there may be no connection more.
    pub fn is_full(&self) -> bool {
        self.is_over || self.slots.is_full()
    }

    /// A connection has been made, for which there is room.
    pub fn add(&mut self, link: ConnCore<C>, origin: Origin) {
        let number = link.transport.number();
        let Some(id) = self.slots.insert(Connection::new(link, self.now)) else { unreachable!("there is room") };
        self.by_number.insert(number, id);
        self.take_in_early(number);
        self.opened.push_back((id, origin));
        // Its ring, if it has one, is opened.
        self.set_dirty(id);
        match origin {
            Origin::Accepted => self.summary.accepted += 1,
            Origin::Connected(_) => self.summary.connected += 1,
        }
    }

    /// A window in the place of one that went with a link.
    pub fn add_window(&mut self, mw: Mw<C>) {
        self.mws.push(mw);
    }

    /// Windows that no connection has.
    #[cfg(test)]
    pub fn free_windows(&self) -> usize {
        self.mws.len()
    }

    /// The connection whose queue pair, or session, has this number.
    pub fn of_number(&self, number: u64) -> Option<ConnId> {
        self.by_number.get(&number).copied()
    }

    /// Polls a burst of completions of each queue. What the connector has said before it lets a peer send is heard between this and
    /// [`take_in`](Self::take_in).
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

    /// The device is of no use any more. Whoever runs the service goes on without it.
    #[cold]
    fn give_up(&mut self, error: &Error) {
        tracing::error!("{error}: all connections are over, and there will be no others");
        self.is_over = true;
        self.expected.clear();
        self.drained.extend(self.draining.drain().map(|(_, draining)| draining.into()));
        for id in self.slots.conn_ids() {
            self.end(id, CloseReason::Reset);
        }
    }

    /// Takes in what was polled, and returns how much that was.
    pub fn take_in(&mut self) -> usize {
        let mut polled = std::mem::take(&mut self.polled);
        let count = polled.len();
        for completion in polled.drain(..) {
            self.complete(completion);
        }
        self.polled = polled;
        self.polling.take_done(&mut self.polled_for);
        if self.is_drained {
            // What the lost ones had sent before has been taken in.
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

    /// Asks silent peers whether they are there: where something is under way, the device notices by itself that they are not.
    /// Those whose last messages are not signalled are asked sooner, and the answer says that these have been sent: what they are
    /// made of is kept until then. When memory is short, that is done soon.
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

    /// Asks the completion queues to ring their channel at the next completion.
    pub fn arm(&mut self) {
        if !self.is_over
            && let Err(error) = self.cqs.iter_mut().try_for_each(Cq::notify)
        {
            self.give_up(&error);
        }
    }

    /// Whether somebody waits for memory, which comes without a sign.
    pub fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// How many connections there are, those included that are being made for peers.
    pub fn connections(&self) -> usize {
        self.slots.len() + self.expected.len()
    }

    /// The connection with this number is being made: what comes for it is kept until it is added.
    pub fn expect(&mut self, number: u64) {
        // What was lost is another that had the number before.
        self.lost.retain(|(lost, _)| *lost != number);
        self.expected.insert(number, Vec::new());
    }

    /// It is not.
    pub fn expect_no_more(&mut self, number: u64) {
        // Buffers of the shared queue may be among what has come.
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
        // One that is over may have the number of another, whose completions are still to come.
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

    /// The queue pair of a connection has failed.
    fn fail(&mut self, id: ConnId, status: WcStatus) {
        if status == WcStatus::Flushed {
            // Buffers come back so, too, when the peer, which had finished, was the first to end the connection.
            return self.end_lost(id, CloseReason::Reset);
        }
        tracing::debug!("connection {id:?}: {status}");
        self.end(id, if status == WcStatus::RetryExceeded { CloseReason::TimedOut } else { CloseReason::Reset });
    }

    /// The connection is lost: that is no error where both had finished.
    fn end_lost(&mut self, id: ConnId, why: CloseReason) {
        let is_over = self.slots.get(id).is_some_and(|conn| {
            conn.peer_has_finished() && matches!(conn.sending, Sending::Finishing | Sending::Finished)
        });
        self.end(id, if is_over { CloseReason::Finished } else { why });
    }

    /// The peer does not keep to the protocol.
    fn refuse(&mut self, id: ConnId, why: &dyn std::fmt::Display) {
        tracing::warn!("connection {id:?} is closed: {why}");
        self.summary.drop_for("message: senseless", 1);
        self.end(id, CloseReason::Reset);
    }

    /// Takes a connection out of everything.
    pub fn remove(&mut self, id: ConnId) -> Option<Connection<C>> {
        let mut conn = self.slots.remove(id)?;
        self.timers.cancel(id, &mut conn.timer);
        if let ConnTransport::Ud(peer) = &mut conn.link.transport {
            self.session_timers.cancel(id, &mut peer.timer);
        }
        self.by_number.remove(&conn.link.transport.number());
        Some(conn)
    }

    /// Puts a connection into the list of those with events.
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

    /// Ends a connection, and forgets what was queued either way.
    pub fn abort_now(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        conn.rx.clear();
        conn.receiving = Receiving::Told;
        conn.pending = Pending::default();
        conn.one_sided_done.clear();
        self.end(id, CloseReason::Aborted);
    }

    /// Gives up the queue pair of a connection, whose last event follows after those that came before.
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
            // The peer waits to hear that its end has come.
            self.acknowledge(id);
        }
    }
}
