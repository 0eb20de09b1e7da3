//! Delivery of events by workers over kernel sockets or RDMA, in the order that [`Service`] defines.

mod conn_slab;
mod conn_table;
mod linger;
mod timers;

pub use conn_slab::ConnSlab;
pub use conn_table::{ConnTable, Lifecycle, Receiving, Sending, Stage, Tracked};
pub use linger::{LINGER_BYTES, LINGER_LIMIT, LINGER_TIME, Linger};
pub use timers::{Timer, Timers};

use crate::inspect::{self, ConnInfo, Gauges, Inspect, Snapshot, Summary};
use crate::mailbox::Receiver;
use crate::{AppMsg, CloseReason, ConnId, OneSidedResult, Service, Transport};

/// Maximum messages delivered in one turn.
const MESSAGES_PER_TURN: usize = 256;

/// Transport of a [`ServiceHost`].
///
/// A transport never calls its service. It records events in its [`ConnTable`], and the host delivers them, so that
/// ending another connection inside an event never delivers an event of that connection recursively.
pub trait HostedNet: Transport {
    /// Connection.
    type Conn: Tracked;

    /// Maximum number of slots to visit for one query.
    const SLOTS_PER_QUERY: usize = inspect::SLOTS_PER_QUERY;

    /// Returns the connections.
    fn table(&self) -> &ConnTable<Self::Conn>;

    /// Returns the connections for modification.
    fn table_mut(&mut self) -> &mut ConnTable<Self::Conn>;

    /// Returns the counters.
    fn summary(&mut self) -> &mut Summary;

    /// Ends an established connection.
    fn end(&mut self, conn: ConnId, reason: CloseReason);

    /// Removes an ended connection and releases its resources.
    fn release(&mut self, conn: ConnId);

    /// Sends pending data. Called after the events of each connection.
    #[inline]
    fn after_events(&mut self) {}

    /// Returns the next result of a one-sided operation of a connection.
    #[inline]
    fn next_one_sided(&mut self, conn: ConnId) -> Option<(u64, OneSidedResult)> {
        let _ = conn;
        None
    }

    /// Returns the state of a connection for queries.
    fn conn_info(&self, conn: ConnId) -> Option<ConnInfo>;
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
    /// Reused buffer.
    burst: Vec<ConnId>,
}

impl<N: HostedNet, S: Service> ServiceHost<N, S> {
    /// Creates a host. The service is not started.
    pub fn new(net: N, service: S, messages: Receiver<AppMsg<S::Message>>) -> Self {
        ServiceHost { net, service, messages, states: Vec::new(), started: false, burst: Vec::new() }
    }

    /// Starts the service in the first call.
    #[inline]
    pub fn start(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            self.service.start(&mut self.net);
            self.net.after_events();
        }
    }

    /// Delivers established and failed connections, and returns their number.
    pub fn deliver_outcomes(&mut self) -> usize {
        let mut delivered = 0;
        while let Some((id, origin)) = self.net.table_mut().opened.pop_front() {
            delivered += 1;
            let state = self.service.opened(&mut self.net, id, origin);
            if self.states.len() <= id.slot() {
                self.states.resize_with(id.slot() + 1, || None);
            }
            self.states[id.slot()] = Some(state);
            self.net.after_events();
        }
        // Only the failures present now: the service may retry at once and fail again.
        for _ in 0..self.net.table().failed.len() {
            let Some((token, error)) = self.net.table_mut().failed.pop_front() else { break };
            delivered += 1;
            self.net.summary().failed += 1;
            self.service.failed(&mut self.net, token, error);
            self.net.after_events();
        }
        delivered
    }

    /// Delivers the events of connections, and returns the number of connections. Events that occur during the delivery
    /// wait for the next turn, so that devices and timers are served in between.
    pub fn deliver_ready(&mut self) -> usize {
        let ServiceHost { net, service, burst, .. } = self;
        let ConnTable { slots, ready, .. } = net.table();
        let count = ready.len();
        burst.clear();
        let readable = |id: &ConnId| slots.get(*id).is_some_and(|conn| conn.life().pending.readable);
        burst.extend(ready.iter().copied().filter(readable));
        if !burst.is_empty() {
            let served = service.burst(net, burst);
            for id in burst.iter().take(served) {
                if let Some(life) = net.table_mut().life_mut(*id) {
                    life.pending.readable = false;
                }
            }
        }
        for _ in 0..count {
            let Some(id) = self.net.table_mut().ready.pop_front() else { break };
            self.deliver(id);
            self.net.after_events();
        }
        count
    }

    #[inline]
    fn deliver(&mut self, id: ConnId) {
        let ServiceHost { net, service, states, .. } = self;
        let Some(()) = net.table_mut().unlist(id) else { return };
        let Some(state) = states.get_mut(id.slot()) else { return };
        if let Some(state) = state {
            // Each step looks the connection up again, because the service may have ended it in the previous step.
            if net.table_mut().life_mut(id).is_some_and(|life| std::mem::take(&mut life.pending.readable)) {
                service.readable(net, id, state);
            }
            while let Some((token, outcome)) = net.next_one_sided(id) {
                service.one_sided_done(net, id, state, token, outcome);
            }
            if net.table_mut().life_mut(id).is_some_and(|life| std::mem::take(&mut life.pending.writable)) {
                service.writable(net, id, state);
            }
            if let Some(conn) = net.table_mut().slots.get_mut(id)
                && conn.peer_closed_is_due()
            {
                conn.life_mut().receiving = Receiving::Reported;
                service.peer_closed(net, id, state);
                if net.table_mut().life_mut(id).is_some_and(|life| life.is_finished()) {
                    net.end(id, CloseReason::Finished);
                }
            }
            if net.table_mut().life_mut(id).is_some_and(|life| std::mem::take(&mut life.pending.timer)) {
                service.timer(net, id, state);
            }
        }
        if let Some(conn) = net.table().slots.get(id)
            && let Stage::Ended(reason) = conn.life().stage
        {
            let state = state.take();
            net.release(id);
            if let Some(state) = state {
                self.closed(id, state, reason);
            }
        }
    }

    fn closed(&mut self, id: ConnId, state: S::Conn, reason: CloseReason) {
        match reason {
            CloseReason::Finished => self.net.summary().finished += 1,
            _ => self.net.summary().broken += 1,
        }
        self.service.closed(&mut self.net, id, state, reason);
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
                AppMsg::Message { to: Some(id), message } => {
                    if self.net.table().slots.get(id).is_some_and(|conn| conn.life().is_served())
                        && let Some(Some(state)) = self.states.get_mut(id.slot())
                    {
                        self.service.conn_message(&mut self.net, id, state, message);
                    }
                }
            }
        }
        self.net.after_events();
        read
    }

    /// Returns the number of connections for which `opened` has not been called.
    pub fn unopened(&self) -> usize {
        let slots = &self.net.table().slots;
        let is_known = |id: &ConnId| self.states.get(id.slot()).is_some_and(Option::is_some);
        slots.conn_ids().iter().filter(|id| !is_known(id)).count()
    }

    /// Resets all connections.
    pub fn abort_all(&mut self) {
        for id in self.net.table().slots.conn_ids() {
            self.net.abort(id);
            let stage = self.net.table().slots.get(id).map(|conn| conn.life().stage);
            self.net.release(id);
            if let Some(Stage::Ended(reason)) = stage
                && let Some(state) = self.states.get_mut(id.slot()).and_then(Option::take)
            {
                self.closed(id, state, reason);
            }
        }
    }
}

impl<N: HostedNet, S: Service> Inspect for ServiceHost<N, S> {
    const SLOTS_PER_QUERY: usize = N::SLOTS_PER_QUERY;

    fn snapshot(&mut self) -> Snapshot {
        Snapshot {
            worker: self.net.worker(),
            summary: self.net.summary().clone(),
            gauges: Gauges { connections: self.net.table().slots.len() as u64, ..Gauges::default() },
            service: self.service.metrics(),
            ..Snapshot::default()
        }
    }

    fn slots(&self) -> usize {
        self.net.table().slots.slot_count()
    }

    fn connection(&self, slot: usize) -> Option<ConnInfo> {
        self.net.conn_info(self.net.table().slots.conn_id(slot)?)
    }
}
