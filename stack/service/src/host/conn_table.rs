//! Connection table of workers over kernel sockets or RDMA: the lifecycle of each connection, and the events that its
//! service has not received yet.

use super::{ConnSlab, Event, EventBatch, Silenced, Timer, Timers};
use crate::inspect::{ConnState, Summary};
use crate::time::Instant;
use crate::{CloseReason, ConnId, ConnectError, Origin, WriteError};
use std::collections::VecDeque;

/// Progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Connecting, by the call with this token.
    Connecting(u64),
    /// Established.
    Open,
    /// Ended; `closed` is still due.
    Ended(CloseReason),
}

/// State of the receive direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// Data may follow.
    Open,
    /// The peer's end of stream has been received.
    Ended,
    /// The end of stream has been reported to the service, after all data.
    Reported,
}

/// State of the send direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// The service may send.
    Open,
    /// The service has closed; queued data is still being sent.
    Closing,
    /// The end of stream is sent and not yet acknowledged, on transports that observe the acknowledgement.
    Finishing,
    /// The transport has delivered, or will deliver, all data and the end of stream.
    Finished,
}

/// Undelivered events of a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// `readable` is due.
    pub readable: bool,
    /// `one_sided_done` is due.
    pub one_sided_done: bool,
    /// `writable` is due.
    pub writable: bool,
    /// `timer` is due.
    pub timer: bool,
}

/// Lifecycle of one connection.
#[derive(Debug)]
pub struct Lifecycle {
    /// Progress.
    pub stage: Stage,
    /// Receive direction.
    pub receiving: Receiving,
    /// Send direction.
    pub sending: Sending,
    /// Undelivered events.
    pub pending: Pending,
    /// True if the service found too little send space and expects `writable`.
    pub wants_room: bool,
    /// Timer of the service. During a lingering close it holds the deadline.
    timer: Timer,
    /// True if the connection is in the list of those with undelivered events.
    listed: bool,
}

impl Lifecycle {
    /// Creates the lifecycle of a connection in `stage`, open in both directions.
    pub fn new(stage: Stage) -> Self {
        Lifecycle {
            stage,
            receiving: Receiving::Open,
            sending: Sending::Open,
            pending: Pending::default(),
            wants_room: false,
            timer: Timer::default(),
            listed: false,
        }
    }

    /// Returns whether the service may send.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.stage == Stage::Open && self.sending == Sending::Open
    }

    /// Returns whether the peer has finished sending.
    pub fn peer_has_finished(&self) -> bool {
        matches!(self.receiving, Receiving::Ended | Receiving::Reported)
    }

    /// Returns whether the end of stream has been sent.
    pub fn has_sent_end(&self) -> bool {
        matches!(self.sending, Sending::Finishing | Sending::Finished)
    }

    /// Returns whether both directions are finished.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.stage == Stage::Open && self.receiving == Receiving::Reported && self.sending == Sending::Finished
    }

    /// Returns the state for queries.
    pub fn conn_state(&self) -> ConnState {
        match self.stage {
            Stage::Connecting(_) => ConnState::SynSent,
            Stage::Open => ConnState::of_ends(self.peer_has_finished(), self.has_sent_end()),
            Stage::Ended(_) => ConnState::Closed,
        }
    }
}

/// Connection with a lifecycle.
pub trait Tracked {
    /// Returns the lifecycle.
    fn life(&self) -> &Lifecycle;
    /// Returns the lifecycle for modification.
    fn life_mut(&mut self) -> &mut Lifecycle;
    /// Returns whether the service has consumed all received data.
    fn is_read(&self) -> bool;

    /// Returns whether `peer_closed` is due.
    #[inline]
    fn peer_closed_is_due(&self) -> bool {
        self.life().receiving == Receiving::Ended && self.is_read()
    }
}

/// Connections of a worker, and their undelivered events.
pub struct ConnTable<T> {
    /// Connections.
    pub slots: ConnSlab<T>,
    /// Connections whose service receives only `closed`.
    pub silenced: Silenced,
    /// Timers of the connections.
    timers: Timers,
    /// Established connections whose `opened` is due, and failed connection attempts.
    outcomes: EventBatch,
    /// Connections with other undelivered events.
    ready: VecDeque<ConnId>,
}

impl<T: Tracked> ConnTable<T> {
    /// Creates an empty table for up to `limit` connections of `worker`.
    pub fn new(worker: usize, limit: usize) -> Self {
        ConnTable {
            slots: ConnSlab::new(worker, limit),
            silenced: Silenced::default(),
            timers: Timers::default(),
            outcomes: EventBatch::default(),
            ready: VecDeque::new(),
        }
    }

    /// Makes `opened` due.
    pub fn report_opened(&mut self, id: ConnId, origin: Origin) {
        self.outcomes.opened.push((id, origin));
    }

    /// Makes `failed` due.
    pub fn report_failed(&mut self, token: u64, error: ConnectError) {
        self.outcomes.others.push(Event::Failed(token, error));
    }

    /// Returns the number of connections that are not established yet.
    pub fn connecting(&mut self) -> usize {
        self.slots.iter_mut().filter(|(_, conn)| matches!(conn.life().stage, Stage::Connecting(_))).count()
    }

    /// Returns whether events are due.
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty() || !self.outcomes.is_empty()
    }

    /// Implements [`HostedNet::take_events`](super::HostedNet::take_events).
    pub fn take_events(&mut self, events: &mut EventBatch) {
        std::mem::swap(events, &mut self.outcomes);
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { break };
            let Some(conn) = self.slots.get_mut(id) else { continue };
            let peer_closed = conn.peer_closed_is_due();
            let life = conn.life_mut();
            let pending = std::mem::take(&mut life.pending);
            life.listed = false;
            if pending.readable {
                events.readable.push(id);
            }
            if pending.one_sided_done {
                events.others.push(Event::OneSidedDone(id));
            }
            if pending.writable {
                events.others.push(Event::Writable(id));
            }
            if peer_closed {
                events.others.push(Event::PeerClosed(id));
            }
            if pending.timer {
                events.timers.push(id);
            }
            match life.stage {
                // `peer_closed` precedes `closed`, and is due once the service has consumed all data.
                Stage::Ended(_) if pending.readable && life.receiving == Receiving::Ended => self.list(id),
                Stage::Ended(reason) => events.others.push(Event::Closed(id, reason)),
                _ => {}
            }
        }
    }

    /// Returns whether a connection is established and has not ended.
    #[inline]
    pub fn is_open(&self, id: ConnId) -> bool {
        self.slots.get(id).is_some_and(|conn| conn.life().stage == Stage::Open)
    }

    /// Returns whether the service may send on a connection.
    #[inline]
    pub fn may_send(&self, id: ConnId) -> bool {
        self.slots.get(id).is_some_and(|conn| conn.life().may_send())
    }

    /// Returns the reason that nothing can be sent on a connection, if there is one.
    pub fn write_error(&self, id: ConnId) -> WriteError {
        if self.may_send(id) { WriteError::Full } else { WriteError::Closed }
    }

    /// Returns the lifecycle of a connection.
    #[inline]
    pub fn life_mut(&mut self, id: ConnId) -> Option<&mut Lifecycle> {
        self.slots.get_mut(id).map(T::life_mut)
    }

    /// Calls `change` with a connection, and lists it as one with events if the result is true. Does nothing if there
    /// is no such connection.
    #[inline]
    pub fn update(&mut self, id: ConnId, change: impl FnOnce(&mut T) -> bool) {
        if let Some(conn) = self.slots.get_mut(id)
            && change(conn)
            && !std::mem::replace(&mut conn.life_mut().listed, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Lists a connection as one with events.
    #[inline]
    pub fn list(&mut self, id: ConnId) {
        if let Some(life) = self.life_mut(id)
            && !std::mem::replace(&mut life.listed, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Makes `writable` due if the service waits for send space.
    pub fn offer_room(&mut self, id: ConnId) {
        if let Some(life) = self.life_mut(id)
            && std::mem::take(&mut life.wants_room)
        {
            life.pending.writable = true;
            self.list(id);
        }
    }

    /// Returns the earliest deadline of a timer.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Sets the timer of a connection or stops it.
    #[inline]
    pub fn set_timer(&mut self, id: ConnId, deadline: Option<Instant>) {
        if let Some(conn) = self.slots.get_mut(id) {
            self.timers.set(id, &mut conn.life_mut().timer, deadline);
        }
    }

    /// Sets or stops the timer of a connection on behalf of its service.
    #[inline]
    pub fn set_service_timer(&mut self, id: ConnId, deadline: Option<Instant>) {
        if self.is_open(id) && !self.silenced.has(id) {
            self.silenced.rearm(id);
            self.set_timer(id, deadline);
        }
    }

    /// Makes `timer` due for the connections whose timers have expired by `now`, up to the next one that is connecting.
    /// Returns that connection; its deadline is handled by the transport.
    #[inline]
    pub fn expire(&mut self, now: Instant) -> Option<ConnId> {
        while let Some(id) = self.timers.pop(now) {
            let Some(life) = self.slots.get_mut(id).map(T::life_mut) else { continue };
            if !self.timers.fired(id, &mut life.timer, now) {
                continue;
            }
            if matches!(life.stage, Stage::Connecting(_)) {
                return Some(id);
            }
            life.pending.timer = true;
            self.silenced.begin_timers();
            self.list(id);
        }
        None
    }

    /// Closes the send direction after the queued data. Returns false if it is closed already.
    pub fn begin_close(&mut self, id: ConnId) -> bool {
        let Some(life) = self.life_mut(id).filter(|life| life.may_send()) else { return false };
        life.sending = Sending::Closing;
        life.wants_room = false;
        life.pending.writable = false;
        true
    }

    /// Records that `peer_closed` has been delivered. Returns whether both directions are finished.
    pub fn peer_closed_reported(&mut self, id: ConnId) -> bool {
        let Some(life) = self.life_mut(id) else { return false };
        life.receiving = Receiving::Reported;
        life.is_finished()
    }

    /// Suppresses all events of an established connection that is about to be reset, except `closed`.
    pub fn silence(&mut self, id: ConnId) {
        if let Some(life) = self.life_mut(id).filter(|life| !matches!(life.stage, Stage::Connecting(_))) {
            life.pending = Pending::default();
            self.silenced.insert(id);
        }
    }

    /// Ends an established connection: `closed` follows after earlier events. Returns the connection, for its resources
    /// to be released, or `None` if it is not established.
    pub fn end(&mut self, id: ConnId, reason: CloseReason) -> Option<&mut T> {
        let life = self.slots.get_mut(id).map(T::life_mut).filter(|life| life.stage == Stage::Open)?;
        life.stage = Stage::Ended(reason);
        life.wants_room = false;
        (life.pending.writable, life.pending.timer) = (false, false);
        self.timers.cancel(id, &mut life.timer);
        life.timer = Timer::default();
        self.list(id);
        self.slots.get_mut(id)
    }

    /// Removes an ended connection and counts it.
    pub fn release(&mut self, id: ConnId, summary: &mut Summary) -> Option<T> {
        let conn = self.remove(id)?;
        match conn.life().stage {
            Stage::Ended(CloseReason::Finished) => summary.finished += 1,
            _ => summary.broken += 1,
        }
        Some(conn)
    }

    /// Removes a connection and its timer.
    pub fn remove(&mut self, id: ConnId) -> Option<T> {
        let mut conn = self.slots.remove(id)?;
        self.timers.cancel(id, &mut conn.life_mut().timer);
        Some(conn)
    }
}
