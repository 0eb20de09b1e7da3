//! Connections of a worker: the state that services act on, and the source of their events.
//!
//! Nothing here calls the service. Events are recorded in the [`ConnTable`], and the worker's
//! [`ServiceHost`](linerate_service::ServiceHost) delivers them.

mod datagrams;
mod draining;
mod polling;
mod receiving;
mod remote;
mod sending;
mod transport;

use crate::Config;
use crate::connection::conn_transport::ConnTransport;
use crate::connection::{ConnCore, Connection};
use crate::provider::{AhAttr, Provider, WcStatus};
use crate::queues::Queues;
use crate::verbs::{Completion, Cq, Error, Errored, Mr, Mw, Qp, Srq, UdMessage, UdQp};
use draining::Draining;
use linerate_bypass::{Arena, CpuTime};
use linerate_service::inspect::{ConnInfo, Gauges, Snapshot};
use linerate_service::time::Instant;
use linerate_service::{
    CloseReason, ConnId, ConnTable, ConnectError, EventBatch, HostedNet, OneSidedResult, Origin, Sending, Silenced,
    Stage, Summary, Timers,
};
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

struct Lost {
    number: u64,
    reason: CloseReason,
    /// Polls until all completions that precede the loss are known to be processed.
    polls: u32,
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
    pub table: ConnTable<Connection<C>>,
    /// UD queue pair of all sessions, if any.
    datagrams: Option<UdQp<C>>,
    /// Time when the UD queue pair failed, until it is rebuilt.
    datagrams_failed_at: Option<Instant>,
    /// Connections by queue pair number or session number.
    by_number: HashMap<u64, ConnId, foldhash::fast::FixedState>,
    /// Completions and datagrams of connections being established, by number.
    expected: HashMap<u64, Vec<Early>, foldhash::fast::FixedState>,
    /// Queue pairs of ended connections: being drained, by number, and drained.
    draining: HashMap<u32, Draining<C>, foldhash::fast::FixedState>,
    pub drained: Vec<Qp<C, Errored>>,
    /// Queue pairs whose remaining completions are being polled, and numbers of the finished ones.
    polling: Polling,
    pub polled_for: Vec<u32>,
    /// Timers of session retransmissions and acknowledgements.
    pub session_timers: Timers,
    /// Sessions that found the UD send queue full.
    crowded: Vec<ConnId>,
    pub summary: Summary,
    /// Requested connects.
    pub wanted: VecDeque<(SocketAddr, u64)>,
    /// Connections with data to send or buffers to post.
    dirty: Vec<ConnId>,
    /// Connections that found no memory.
    starved: Vec<ConnId>,
    /// Lost connections that have not ended.
    lost: Vec<Lost>,
    /// Sessions whose peers do not answer, with the paths to them.
    pub moved: Vec<(u64, AhAttr)>,
    /// Reason that the device has failed, until the connector is notified.
    pub failure: Option<String>,
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
            datagrams_failed_at: None,
            mr,
            arena,
            buffers,
            mws,
            narrow,
            atomics,
            table: ConnTable::new(worker, config.max_connections),
            by_number: HashMap::default(),
            expected: HashMap::default(),
            draining: HashMap::default(),
            drained: Vec::new(),
            polling: Polling::default(),
            polled_for: Vec::new(),
            session_timers: Timers::default(),
            crowded: Vec::new(),
            summary: Summary::default(),
            wanted: VecDeque::new(),
            dirty: Vec::new(),
            starved: Vec::new(),
            lost: Vec::new(),
            moved: Vec::new(),
            failure: None,
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
        self.is_over || self.table.slots.is_full()
    }

    /// Adds an established connection. The caller has checked [`is_full`](Self::is_full).
    pub fn add(&mut self, link: ConnCore<C>, origin: Origin) {
        let number = link.transport.number();
        let Some(id) = self.table.slots.insert(Connection::new(link, self.now)) else {
            unreachable!("the caller has checked is_full")
        };
        self.by_number.insert(number, id);
        self.take_in_early(number);
        self.table.report_opened(id, origin);
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
        for lost in &mut self.lost {
            lost.polls = lost.polls.saturating_sub(1);
        }
    }

    fn poll_queues(&mut self) {
        let Net { cqs, polled, is_drained, .. } = self;
        if let Some(cq) = cqs.first() {
            cq.progress();
        }
        let result = cqs.iter_mut().filter(|cq| !cq.is_unused()).try_for_each(|cq| {
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
        self.failure = Some(error.to_string());
        self.expected.clear();
        self.drained.extend(self.draining.drain().map(|(_, draining)| draining.into()));
        for id in self.table.slots.conn_ids() {
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
        if !self.lost.is_empty() {
            self.end_all_lost();
        }
        // The connector keeps the connections that are not established yet.
        self.table.expire(self.now);
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

    /// Records the loss of connection `number`.
    pub fn lose(&mut self, number: u64, reason: CloseReason) {
        self.lost.push(Lost { number, reason, polls: self.polls_until_empty() });
    }

    /// Ends the lost connections whose data, sent before the loss, has been processed: when all queues are empty, or
    /// after the polls that empty a full queue, because other connections may keep the queues busy for ever.
    #[cold]
    fn end_all_lost(&mut self) {
        let is_drained = self.is_drained;
        let due: Vec<Lost> = self.lost.extract_if(.., |lost| is_drained || lost.polls == 0).collect();
        for Lost { number, reason, .. } in due {
            if let Some(id) = self.of_number(number) {
                self.end_lost(id, reason);
            }
        }
    }

    /// Replaces the queues, one of which has failed, and ends all connections.
    #[cold]
    pub fn rebuilt(&mut self, queues: Queues<C>) {
        for id in self.table.slots.conn_ids() {
            self.end(id, CloseReason::Reset);
        }
        // Requests on the old queues no longer complete.
        self.expected.clear();
        self.lost.clear();
        self.polled.clear();
        self.datagrams_failed_at = None;
        self.drained.extend(self.draining.drain().map(|(_, draining)| draining.into()));
        Queues { cqs: self.cqs, srq: self.srq, datagrams: self.datagrams } = queues;
    }

    /// Probes silent peers; with requests outstanding, the device detects a dead peer itself. Connections whose last
    /// requests are unsignalled are probed sooner, because the completion releases the memory of those requests, and
    /// at once while memory is exhausted.
    #[cold]
    fn probe(&mut self) {
        self.give_up_draining();
        self.expect_datagrams();
        let after = self.config.probe_after;
        self.probed = self.now;
        for index in 0..self.table.slots.slot_count() {
            let Some(id) = self.table.slots.conn_id(index) else { continue };
            let Some(conn) = self.table.slots.get_mut(id).filter(|conn| conn.life.stage == Stage::Open) else {
                continue;
            };
            let quiet_for = if conn.link.transport.is_silent() { after / 4 } else { after };
            let is_due = conn.last_completion + quiet_for <= self.now
                || !self.starved.is_empty() && conn.link.transport.is_silent();
            if is_due && !conn.is_probed {
                conn.is_probed = true;
                conn.link.transport.probe();
                self.set_dirty(id);
            }
        }
    }

    /// Requests a channel event at the next completion of each queue in use. The connector wakes the worker for the
    /// first connection of an unused queue.
    pub fn arm(&mut self) {
        if !self.is_over
            && let Err(error) = self.cqs.iter_mut().filter(|cq| !cq.is_unused()).try_for_each(Cq::notify)
        {
            self.give_up(&error);
        }
    }

    /// Returns true if connections wait for memory, whose release generates no event.
    pub fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Returns the statistics, with those of the device at its first worker.
    pub fn total(&self) -> Summary {
        let mut total = Summary { cpu_us: CpuTime::of_thread().micros(), ..self.summary.clone() };
        if self.worker == 0
            && let Some(counts) = self.mr.pd().provider().packet_counts()
        {
            // Sessions of datagrams repeat their own.
            total.retransmitted = Some(total.retransmitted.unwrap_or(0) + counts.repeated);
            counts.dropped.into_iter().for_each(|(cause, n)| total.drop_for(cause, n));
            total.congestion.extend(counts.congestion.into_iter().filter(|(_, n)| *n > 0));
        }
        total
    }

    /// Returns the number of connections, including those being established for peers.
    pub fn connections(&self) -> usize {
        self.table.slots.len() + self.expected.len()
    }

    /// Keeps completions of connection `number`, which is being established, until it is added.
    pub fn expect(&mut self, number: u64) {
        // An entry in `lost` refers to an earlier connection with the same number.
        self.lost.retain(|lost| lost.number != number);
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
        if completion.status() != WcStatus::Success {
            self.note_error(&completion);
        }
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
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        let Some(qp) = conn.link.transport.qp().filter(|qp| qp.owns(&completion)) else { return };
        if completion.is_buffer() {
            let message = qp.received(completion);
            self.message(id, message);
        } else {
            let done = qp.sent(completion);
            self.done(id, done);
        }
    }

    /// Returns the peer and the queue pair of a connection, for log lines.
    #[cold]
    fn described(&self, id: ConnId) -> String {
        let Some(conn) = self.table.slots.get(id) else { return "an ended connection".to_owned() };
        let qp = match conn.link.transport.qp_numbers() {
            (Some(qp), _) => format!("queue pair {qp}"),
            (None, peer) => format!("queue pair {} of the peer", peer.unwrap_or(0)),
        };
        format!("the connection with {} by {qp}", conn.link.remote)
    }

    /// Counts and logs a failed completion. Buffers and requests are also flushed when a connection ends in good order.
    #[cold]
    fn note_error(&mut self, completion: &Completion) {
        let status = completion.status();
        *self.summary.verbs_errors.entry(status.name()).or_default() += 1;
        if status == WcStatus::Flushed {
            return;
        }
        let (qp, vendor_error) = (completion.qp(), completion.vendor_error());
        let peer = self.of_number(qp.into()).map(|id| self.described(id));
        let peer = peer.unwrap_or_else(|| format!("queue pair {qp} without a connection"));
        tracing::info!("{peer}: {status} ({}, vendor error {vendor_error:#x})", status.name());
    }

    /// Handles a failed completion of a connection.
    fn fail(&mut self, id: ConnId, status: WcStatus) {
        if status == WcStatus::Flushed {
            // Buffers are also flushed when the peer has finished and disconnects first.
            return self.end_lost(id, CloseReason::Reset);
        }
        self.end(id, if status == WcStatus::RetryExceeded { CloseReason::TimedOut } else { CloseReason::Reset });
    }

    /// Ends a lost connection. The loss is no error if both ends had finished.
    fn end_lost(&mut self, id: ConnId, reason: CloseReason) {
        let is_over =
            self.table.slots.get(id).is_some_and(|conn| conn.life.peer_has_finished() && conn.life.has_sent_end());
        self.end(id, if is_over { CloseReason::Finished } else { reason });
    }

    /// Ends a connection whose peer violated the protocol.
    fn refuse(&mut self, id: ConnId, reason: &dyn std::fmt::Display) {
        tracing::warn!("{} is closed: {reason}", self.described(id));
        self.summary.drop_for("message: senseless", 1);
        self.end(id, CloseReason::Reset);
    }

    fn set_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.table.slots.get_mut(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }
}

impl<C: Provider> Net<C> {
    /// Counts a failed connection attempt, and makes `failed` due.
    pub fn report_failed(&mut self, token: u64, error: ConnectError) {
        self.summary.failed += 1;
        self.table.report_failed(token, error);
    }

    /// Ends an established connection.
    fn end(&mut self, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.table.end(id, reason) else { return };
        conn.tx.clear();
        if matches!(conn.link.transport, ConnTransport::Ud(_)) && reason == CloseReason::Finished {
            // The peer waits for the acknowledgement of its last message.
            self.acknowledge(id);
        }
    }
}

impl<C: Provider> HostedNet for Net<C> {
    #[inline]
    fn take_events(&mut self, events: &mut EventBatch) {
        self.table.take_events(events);
    }

    #[inline]
    fn has_events(&self) -> bool {
        self.table.has_events()
    }

    fn flush(&mut self) {
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
        self.table.slots.get(conn).is_some_and(|conn| conn.life.sending == Sending::Finished)
    }

    fn set_deadline(&mut self, conn: ConnId, at: Instant) {
        self.table.set_timer(conn, Some(at));
    }

    #[inline]
    fn next_one_sided(&mut self, conn: ConnId) -> Option<(u64, OneSidedResult)> {
        self.table.slots.get_mut(conn)?.one_sided_done.pop_front()
    }

    fn peer_closed_reported(&mut self, conn: ConnId) {
        if self.table.peer_closed_reported(conn) {
            self.end(conn, CloseReason::Finished);
        }
    }

    /// Hands an ended connection to the connector.
    fn release(&mut self, id: ConnId) {
        let Some(mut conn) = self.table.release(id, &mut self.summary) else { return };
        if let ConnTransport::Ud(peer) = &mut conn.link.transport {
            self.session_timers.cancel(id, &mut peer.timer);
        }
        self.by_number.remove(&conn.link.transport.number());
        self.retire(conn.link);
    }

    fn snapshot(&mut self) -> Snapshot {
        let gauges = Gauges { connections: self.table.slots.len() as u64, ..Gauges::default() };
        Snapshot { worker: self.worker, summary: self.total(), gauges, ..Snapshot::default() }
    }

    fn slot_count(&self) -> usize {
        self.table.slots.slot_count()
    }

    fn conn_info(&self, slot: usize) -> Option<ConnInfo> {
        let connection = self.table.slots.at(slot)?;
        Some(ConnInfo {
            conn: self.table.slots.conn_id(slot)?,
            local: Some(connection.link.local),
            remote: connection.link.remote,
            state: connection.life.conn_state(),
            unread: connection.rx.len() as u64,
            unsent: connection.tx.len() as u64,
            tcp: connection.link.transport.tcp_info(connection.link.longest),
            verbs: Some(connection.verbs_info()),
            tls: None,
        })
    }
}
