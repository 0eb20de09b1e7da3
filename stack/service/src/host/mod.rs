//! Delivery of a worker's events to its service, in the order that [`Service`] defines.

mod conn_slab;
mod conn_table;
mod event_batch;
mod linger;
#[cfg(test)]
mod tests;
mod timers;

pub use conn_slab::ConnSlab;
pub use conn_table::{ConnTable, Lifecycle, Receiving, Sending, Stage, Tracked};
pub use event_batch::{Event, EventBatch};
pub use linger::{LINGER_BYTES, LINGER_LIMIT, LINGER_TIME, Silenced, lingering_close};
pub use timers::{Timer, Timers};

use crate::inspect::{self, ConnInfo, Inspect, Snapshot};
use crate::mailbox::Receiver;
use crate::time::Instant;
use crate::{AppMsg, ConnId, OneSidedResult, Service, Transport};
use linger::{discard_if_silenced, expire_if_silenced};

/// Rounds of events in one turn: a service call may cause further events.
const EVENT_ROUNDS: usize = 4;
/// Maximum messages delivered in one turn.
const MESSAGES_PER_TURN: usize = 256;

/// Transport of a [`ServiceHost`].
///
/// A transport never calls its service. It records events, and the host takes and delivers them, so that ending another
/// connection inside an event never delivers an event of that connection recursively.
pub trait HostedNet: Transport {
    /// Maximum number of slots to visit for one query.
    const SLOTS_PER_QUERY: usize = inspect::SLOTS_PER_QUERY;

    /// Moves the events since the last call into the empty `events`. `others` has the events of each connection in the
    /// order of [`Event`]. All data of a connection that have arrived produce a single event.
    fn take_events(&mut self, events: &mut EventBatch);

    /// Returns whether [`take_events`](Self::take_events) may return events now.
    fn has_events(&self) -> bool;

    /// Sends pending data. Called after each round of events.
    fn flush(&mut self);

    /// Sends the pending data of few connections, where that should not wait for the events of all others.
    #[inline(always)]
    fn after_event(&mut self) {}

    /// Returns the silenced connections. The transport adds those that it aborts, and records changes of timers.
    fn silenced(&mut self) -> &mut Silenced;

    /// Returns whether the connection is established and has not ended.
    fn is_open(&self, conn: ConnId) -> bool;

    /// Returns whether the peer has acknowledged everything that was sent, a sent end of the stream included.
    fn is_delivered(&self, conn: ConnId) -> bool;

    /// Sets the timer of a connection with a lingering close.
    fn set_deadline(&mut self, conn: ConnId, at: Instant);

    /// Returns the next result of a one-sided operation of a connection.
    #[inline]
    fn next_one_sided(&mut self, conn: ConnId) -> Option<(u64, OneSidedResult)> {
        let _ = conn;
        None
    }

    /// Records that `peer_closed` has been delivered, or needs no delivery because the connection is silenced.
    #[inline(always)]
    fn peer_closed_reported(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// Removes an ended connection, whose `closed` event is being delivered, and releases its resources.
    fn release(&mut self, conn: ConnId);

    /// Returns the counters and gauges, except those of the service.
    fn snapshot(&mut self) -> Snapshot;

    /// Returns the number of slots that have ever held a connection.
    fn slot_count(&self) -> usize;

    /// Returns the state of the connection in `slot` for queries.
    fn conn_info(&self, slot: usize) -> Option<ConnInfo>;
}

/// Service with its transport and the states of its connections.
pub struct ServiceHost<N, S: Service> {
    /// Transport.
    pub net: N,
    /// Service.
    pub service: S,
    /// Mailbox of the worker.
    pub messages: Receiver<AppMsg<S::Message>>,
    /// State of each connection, by slot.
    states: Vec<Option<S::Conn>>,
    started: bool,
    /// Reused buffer, empty between calls.
    events: EventBatch,
}

impl<N: HostedNet, S: Service> ServiceHost<N, S> {
    /// Creates a host. The service is not started.
    pub fn new(net: N, service: S, messages: Receiver<AppMsg<S::Message>>) -> Self {
        ServiceHost { net, service, messages, states: Vec::new(), started: false, events: EventBatch::default() }
    }

    /// Starts the service in the first call.
    #[inline]
    pub fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.service.start(&mut self.net);
            self.net.after_event();
        }
    }

    /// Returns whether the service has started.
    #[inline]
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Returns whether the service has had a connection.
    pub fn has_had_connections(&self) -> bool {
        !self.states.is_empty()
    }

    /// Delivers events and lets the transport send until there are no more events, within the share of the turn.
    /// Returns the number of events.
    pub fn deliver(&mut self) -> usize {
        let mut delivered = 0;
        for _ in 0..EVENT_ROUNDS {
            self.net.take_events(&mut self.events);
            let events = self.events.len();
            delivered += events;
            if events > 0 {
                self.dispatch();
            }
            self.net.flush();
            if events == 0 || !self.net.has_events() {
                break;
            }
        }
        self.net.silenced().end_timers();
        delivered
    }

    /// Delivers one batch of events.
    fn dispatch(&mut self) {
        let ServiceHost { net, service, states, events, .. } = self;
        let is_plain = events.readable.len() == events.len();
        if !is_plain {
            for &(conn, origin) in &events.opened {
                let state = service.opened(net, conn, origin);
                if states.len() <= conn.slot() {
                    states.resize_with(conn.slot() + 1, || None);
                }
                states[conn.slot()] = Some(state);
                net.after_event();
            }
            // `opened` may have consumed the received data.
            events.readable.retain(|conn| net.received(*conn) > 0);
        }
        if !net.silenced().is_empty() {
            events.readable.retain(|conn| !discard_if_silenced(net, *conn));
        }
        let mut served = 0;
        if !events.readable.is_empty() {
            served = service.burst(net, &events.readable);
            net.after_event();
        }
        for &conn in events.readable.iter().skip(served) {
            if !net.silenced().is_empty() && discard_if_silenced(net, conn) {
                continue;
            }
            if let Some(Some(state)) = states.get_mut(conn.slot()) {
                service.readable(net, conn, state);
                net.after_event();
            }
        }
        if !is_plain {
            self.dispatch_others();
        }
        self.events.clear();
    }

    /// Delivers events other than `opened` and `readable`.
    fn dispatch_others(&mut self) {
        let ServiceHost { net, service, states, events, .. } = self;
        for event in &events.others {
            match *event {
                Event::Failed(token, error) => service.failed(net, token, error),
                Event::OneSidedDone(conn) => {
                    while let Some((token, result)) = net.next_one_sided(conn) {
                        if !net.silenced().has(conn)
                            && let Some(Some(state)) = states.get_mut(conn.slot())
                        {
                            service.one_sided_done(net, conn, state, token, result);
                        }
                    }
                }
                // No `writable` after `close`, or when the space has been used since.
                Event::Writable(conn) => {
                    if !net.silenced().has(conn)
                        && net.send_space(conn) > 0
                        && let Some(Some(state)) = states.get_mut(conn.slot())
                    {
                        service.writable(net, conn, state);
                    }
                }
                Event::PeerClosed(conn) => {
                    if !net.silenced().has(conn)
                        && let Some(Some(state)) = states.get_mut(conn.slot())
                    {
                        service.peer_closed(net, conn, state);
                    }
                    net.peer_closed_reported(conn);
                }
                // The last event of a connection, which releases its slot.
                Event::Closed(..) => continue,
            }
            net.after_event();
        }
        for &conn in &events.timers {
            if !net.silenced().is_rearmed(conn)
                && !expire_if_silenced(net, conn)
                && let Some(Some(state)) = states.get_mut(conn.slot())
            {
                service.timer(net, conn, state);
                net.after_event();
            }
        }
        self.dispatch_closed();
    }

    /// Delivers [`Event::Closed`] and releases the connections.
    fn dispatch_closed(&mut self) {
        let ServiceHost { net, service, states, events, .. } = self;
        for event in &events.others {
            let Event::Closed(conn, reason) = *event else { continue };
            net.silenced().forget(conn);
            net.release(conn);
            if let Some(state) = states.get_mut(conn.slot()).and_then(Option::take) {
                service.closed(net, conn, state, reason);
                net.after_event();
            }
        }
    }

    /// Delivers messages and answers queries, and returns their number.
    pub fn deliver_messages(&mut self) -> usize {
        let mut read = 0;
        while read < MESSAGES_PER_TURN
            && let Some(message) = self.messages.receive()
        {
            read += 1;
            match message {
                AppMsg::Query(query) => query.answer(self),
                AppMsg::Message { to: None, message } => self.service.message(&mut self.net, message),
                AppMsg::Message { to: Some(conn), message } => {
                    if self.net.is_open(conn)
                        && !self.net.silenced().has(conn)
                        && let Some(Some(state)) = self.states.get_mut(conn.slot())
                    {
                        self.service.conn_message(&mut self.net, conn, state, message);
                    }
                }
            }
        }
        if read > 0 {
            self.net.after_event();
        }
        read
    }

    /// Resets `conns`, which are all connections, and delivers their `closed` events but no others.
    pub fn abort_all(&mut self, conns: Vec<ConnId>) {
        for conn in conns {
            self.net.abort(conn);
        }
        self.net.take_events(&mut self.events);
        self.dispatch_closed();
        self.events.clear();
    }
}

impl<N: HostedNet, S: Service> Inspect for ServiceHost<N, S> {
    const SLOTS_PER_QUERY: usize = N::SLOTS_PER_QUERY;

    fn snapshot(&mut self) -> Snapshot {
        Snapshot { service: self.service.metrics(), ..self.net.snapshot() }
    }

    fn slots(&self) -> usize {
        self.net.slot_count()
    }

    fn connection(&self, slot: usize) -> Option<ConnInfo> {
        let info = self.net.conn_info(slot)?;
        let tls = self.service.tls_info(info.conn);
        Some(ConnInfo { tls, ..info })
    }
}
