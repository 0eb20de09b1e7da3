//! Connection table of workers over kernel sockets or RDMA: the lifecycle of each connection, and the events that its
//! service has not received yet.

use super::{ConnSlab, LINGER_TIME, Linger, Timer, Timers};
use crate::inspect::ConnState;
use crate::time::Instant;
use crate::{CloseReason, ConnId, ConnectError, Origin};
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
    /// Lingering close: input is discarded.
    Discarding(Linger),
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
    /// True if the connection is in [`ConnTable::ready`].
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

    /// Returns whether a lingering close is in progress: input is discarded, and the service gets only `closed`.
    #[inline]
    pub fn is_lingering(&self) -> bool {
        matches!(self.receiving, Receiving::Discarding(_))
    }

    /// Returns whether the service gets events other than `closed`.
    #[inline]
    pub fn is_served(&self) -> bool {
        self.stage == Stage::Open && !self.is_lingering()
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
    /// Timers of the connections.
    timers: Timers,
    /// Established connections whose `opened` is due.
    pub opened: VecDeque<(ConnId, Origin)>,
    /// Failed connection attempts, by token.
    pub failed: VecDeque<(u64, ConnectError)>,
    /// Connections with undelivered events.
    pub ready: VecDeque<ConnId>,
}

impl<T: Tracked> ConnTable<T> {
    /// Creates an empty table for up to `limit` connections of `worker`.
    pub fn new(worker: usize, limit: usize) -> Self {
        ConnTable {
            slots: ConnSlab::new(worker, limit),
            timers: Timers::default(),
            opened: VecDeque::new(),
            failed: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Returns the lifecycle of a connection.
    #[inline]
    pub fn life_mut(&mut self, id: ConnId) -> Option<&mut Lifecycle> {
        self.slots.get_mut(id).map(T::life_mut)
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

    /// Records that the events of a connection, which was taken from [`ready`](Self::ready), are being delivered.
    /// Returns `None` if the connection does not exist.
    #[inline]
    pub(super) fn unlist(&mut self, id: ConnId) -> Option<()> {
        self.life_mut(id)?.listed = false;
        Some(())
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

    /// Sets the timer of a connection, or stops it.
    #[inline]
    pub fn set_timer(&mut self, id: ConnId, deadline: Option<Instant>) {
        if let Some(conn) = self.slots.get_mut(id) {
            self.timers.set(id, &mut conn.life_mut().timer, deadline);
        }
    }

    /// Sets or stops the timer of a connection on behalf of its service.
    #[inline]
    pub fn set_service_timer(&mut self, id: ConnId, deadline: Option<Instant>) {
        if let Some(life) = self.life_mut(id).filter(|life| life.is_served()) {
            life.pending.timer = false;
            self.set_timer(id, deadline);
        }
    }

    /// Makes `timer` due for the connections whose timers have expired by `now`, up to the next one that is connecting
    /// or in a lingering close. Returns that connection; its deadline is handled by the transport.
    #[inline]
    pub fn expire(&mut self, now: Instant) -> Option<ConnId> {
        while let Some(id) = self.timers.pop(now) {
            let Some(life) = self.slots.get_mut(id).map(T::life_mut) else { continue };
            if !self.timers.fired(id, &mut life.timer, now) {
                continue;
            }
            if matches!(life.stage, Stage::Connecting(_)) || life.is_lingering() {
                return Some(id);
            }
            life.pending.timer = true;
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

    /// Begins a lingering close of a connection whose send direction is closed. Returns whether input is discarded:
    /// false if the peer has closed already, and the connection ends once all data is sent. Returns `None` if the
    /// connection has ended or the lingering close has begun.
    pub fn begin_lingering(&mut self, id: ConnId, now: Instant) -> Option<bool> {
        let life = self.life_mut(id).filter(|life| life.is_served())?;
        life.pending = Pending::default();
        let discards = life.receiving == Receiving::Open;
        life.receiving = if discards { Receiving::Discarding(Linger::new(now)) } else { Receiving::Reported };
        self.set_timer(id, discards.then(|| now + LINGER_TIME));
        Some(discards)
    }

    /// Handles the deadline of a lingering close. `is_delivered` states that the peer has acknowledged everything that
    /// was sent. Returns false if the connection is to be reset.
    #[must_use]
    pub fn extend_lingering(&mut self, id: ConnId, now: Instant, is_delivered: bool) -> bool {
        let Some(Receiving::Discarding(linger)) = self.slots.get(id).map(|conn| conn.life().receiving) else {
            return true;
        };
        let delay = linger.extend(now, is_delivered);
        self.set_timer(id, delay.map(|delay| now + delay));
        delay.is_some()
    }

    /// Records that the peer has closed during a lingering close. Returns whether both directions are finished.
    pub fn finish_lingering(&mut self, id: ConnId) -> bool {
        let Some(life) = self.life_mut(id) else { return false };
        life.receiving = Receiving::Reported;
        let is_finished = life.is_finished();
        self.set_timer(id, None);
        is_finished
    }

    /// Suppresses all events of a connection that is about to be reset, except `closed`.
    pub fn silence(&mut self, id: ConnId) {
        if let Some(life) = self.life_mut(id) {
            life.receiving = Receiving::Reported;
            life.pending = Pending::default();
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

    /// Removes a connection and its timer.
    pub fn remove(&mut self, id: ConnId) -> Option<T> {
        let mut conn = self.slots.remove(id)?;
        self.timers.cancel(id, &mut conn.life_mut().timer);
        Some(conn)
    }
}
