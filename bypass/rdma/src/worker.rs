//! Worker loop: process completions, call the service, post requests.

use crate::Config;
use crate::connection::{ConnCore, Receiving, Sending, Stage};
use crate::net::{Net, Parts};
use crate::provider::Provider;
use crate::verbs::{Errored, Mw, Qp};
use crate::waker::IdleWait;
use linerate_bypass::inspect::{ConnInfo, ConnState, Gauges, Inspect, Snapshot, TcpInfo};
use linerate_bypass::mailbox::{Receiver, Sender};
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_bypass::{AppMsg, CloseReason, ConnId, ConnectError, Drain, Origin, Service, Stop, Summary};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Maximum messages delivered in one turn.
const BUDGET: usize = 256;
/// Turns without work before an idle worker sleeps.
const IDLE_TURNS: u32 = 1000;
/// Sleep while a request must be retried.
const MOMENT: Duration = Duration::from_millis(1);

/// Event from the connector to a worker.
pub enum ConnectorEvent<C: Provider> {
    /// The connection with this number is being established. Sent before the peer can send data.
    Expected(u64),
    /// The connection with this number was not established.
    Unexpected(u64),
    /// Established connection.
    Made(ConnCore<C>, Origin),
    /// Failure of the connect with this token.
    Failed(u64, ConnectError),
    /// The connection with this number is lost: the peer is gone or the device failed.
    Lost(u64, CloseReason),
    /// Memory window that replaces one of an ended connection.
    Mw(Mw<C>),
    /// Queue pair of an ended connection, to be drained for reuse.
    Drain(Qp<C, Errored>),
    /// Request to poll all completions of the queue pair with this number, whose connection has ended.
    Poll(u32),
}

/// Request from a worker to the connector.
pub enum ConnectorRequest<C: Provider> {
    /// Accept no more connections for any worker.
    Refuse,
    /// Connect `worker` to `remote`.
    Connect {
        /// Requesting worker.
        worker: usize,
        /// Address of the peer.
        remote: SocketAddr,
        /// Token of the service.
        token: u64,
    },
    /// Ended connection of this worker.
    Retire(usize, ConnCore<C>),
    /// Queue pair of this worker that was drained, or that could not be.
    Drained(usize, Qp<C, Errored>),
    /// All completions of the queue pair with this number were polled, as requested from this worker.
    Polled(usize, u32),
}

/// Worker that runs a service over verbs.
pub struct Worker<C: Provider, S: Service> {
    net: Net<C>,
    service: S,
    /// Connection state of the service, by slot.
    states: Vec<Option<S::Conn>>,
    messages: Receiver<AppMsg<S::Message>>,
    news: Receiver<ConnectorEvent<C>>,
    commands: Sender<ConnectorRequest<C>>,
    /// Requests that the connector had no room for.
    unsent: VecDeque<ConnectorRequest<C>>,
    /// Present if the worker may sleep.
    rest: Option<IdleWait<C>>,
    /// Latest time of the next [`Service::poll`].
    poll_at: Option<Instant>,
    started: bool,
    /// Reused allocation.
    burst: Vec<ConnId>,
}

/// Channels of a worker.
pub struct WorkerChannels<C: Provider, M> {
    /// Messages for the service and its connections.
    pub messages: Receiver<AppMsg<M>>,
    /// Events from the connector.
    pub news: Receiver<ConnectorEvent<C>>,
    /// Requests to the connector.
    pub commands: Sender<ConnectorRequest<C>>,
    /// Present if the worker may sleep. Its completion queue and the mailboxes above are created with it.
    pub rest: Option<IdleWait<C>>,
}

impl<C: Provider, S: Service> Worker<C, S> {
    /// Creates worker number `worker`.
    pub fn new(
        worker: usize,
        config: Config,
        parts: Parts<C>,
        lines: WorkerChannels<C, S::Message>,
        service: S,
    ) -> Self {
        let WorkerChannels { messages, news, commands, rest } = lines;
        let net = Net::new(worker, config, parts);
        let (states, burst, unsent) = (Vec::new(), Vec::new(), VecDeque::new());
        let (poll_at, started) = (None, false);
        Worker { net, service, states, messages, news, commands, unsent, rest, poll_at, started, burst }
    }

    /// Returns the statistics.
    pub fn summary(&self) -> &Summary {
        &self.net.summary
    }

    /// Returns how often the worker has slept.
    pub fn waits(&self) -> u64 {
        self.rest.as_ref().map_or(0, |rest| rest.waits)
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Returns the number of unused memory windows.
    #[cfg(test)]
    pub(crate) fn free_windows(&self) -> usize {
        self.net.free_windows()
    }

    /// Returns the service, for tests.
    #[cfg(test)]
    pub(crate) fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    /// Runs one turn. Returns the number of completions, messages and events processed.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.net.now = now;
        if !self.started {
            self.started = true;
            self.service.start(&mut self.net);
        }
        let mut work = self.deliver_messages();
        self.net.poll();
        work += self.hear();
        let came = self.net.take_in();
        work += came;
        self.poll_at = self.service.poll(&mut self.net).map(|rest| now + rest);
        work += self.deliver_outcomes();
        work += self.deliver_ready();
        self.net.flush_all();
        self.tell();
        let summary = &mut self.net.summary;
        summary.turns += 1;
        summary.busy_turns += u64::from(work > 0);
        summary.bursts += u64::from(came > 0);
        work
    }

    /// Runs until `stop`, then ends all connections and returns the service and the statistics. After a device
    /// failure the worker keeps running without connections. An idle worker that may sleep does so, and notices
    /// `stop` within 20 ms. While draining, it reports the number of remaining connections.
    pub fn run(mut self, clock: &Clock, stop: &Stop) -> (S, Summary) {
        let mut idle_turns = 0;
        let mut drain = Drain::default();
        while !stop.is_stopped() {
            if stop.is_draining() {
                if drain.is_listening() {
                    self.stop_listening();
                }
                drain.report(stop, self.net.connections());
            }
            match self.turn(clock.now()) {
                0 if idle_turns > IDLE_TURNS && self.rest.is_some() => self.sleep(clock),
                0 => {
                    idle_turns += 1;
                    std::hint::spin_loop();
                }
                _ => idle_turns = 0,
            }
        }
        tracing::debug!("worker {} has slept {} times", self.net.worker, self.waits());
        self.finish()
    }

    /// Makes the connector refuse all further connections.
    pub fn stop_listening(&mut self) {
        self.unsent.push_back(ConnectorRequest::Refuse);
    }

    /// Sleeps until an event, if the worker may sleep.
    pub(crate) fn sleep(&mut self, clock: &Clock) {
        if self.messages.about_to_sleep() && self.news.about_to_sleep() {
            self.net.arm();
            // Completions that precede the request generate no event.
            let now = clock.now();
            if self.turn(now) == 0 {
                let tries_again = !self.unsent.is_empty() || self.net.is_starved();
                let moment = tries_again.then_some(now + MOMENT);
                let next = [self.net.timers.next(), self.net.session_timers.next(), self.poll_at, moment]
                    .into_iter()
                    .flatten()
                    .min();
                if let Some(rest) = &mut self.rest {
                    rest.wait(next.map_or(Duration::MAX, |next| next.since(now)));
                }
            }
        }
        self.messages.awake();
        self.news.awake();
    }

    /// Processes events of the connector.
    fn hear(&mut self) -> usize {
        let mut heard = 0;
        while let Some(news) = self.news.receive() {
            heard += 1;
            match news {
                ConnectorEvent::Expected(number) => self.net.expect(number),
                ConnectorEvent::Unexpected(number) => self.net.expect_no_more(number),
                ConnectorEvent::Made(link, origin) if !self.net.is_full() => self.net.add(link, origin),
                ConnectorEvent::Made(link, origin) => {
                    self.net.retire(link);
                    if let Origin::Connected(token) = origin {
                        self.net.failed.push_back((token, ConnectError::TooMany));
                    }
                }
                ConnectorEvent::Failed(token, error) => self.net.failed.push_back((token, error)),
                ConnectorEvent::Lost(number, why) => self.net.lost.push((number, why)),
                ConnectorEvent::Mw(mw) => self.net.add_window(mw),
                ConnectorEvent::Drain(qp) => self.net.drain(qp),
                ConnectorEvent::Poll(qp) => self.net.poll_for(qp),
            }
        }
        heard
    }

    /// Sends requests to the connector.
    fn tell(&mut self) {
        let worker = self.net.worker;
        // Ended connections first: the number of queue pairs is limited by that of connections.
        self.unsent.extend(self.net.retired.drain(..).map(|link| ConnectorRequest::Retire(worker, link)));
        self.unsent.extend(self.net.drained.drain(..).map(|qp| ConnectorRequest::Drained(worker, qp)));
        self.unsent.extend(self.net.polled_for.drain(..).map(|qp| ConnectorRequest::Polled(worker, qp)));
        let connects =
            self.net.wanted.drain(..).map(|(remote, token)| ConnectorRequest::Connect { worker, remote, token });
        self.unsent.extend(connects);
        while let Some(command) = self.unsent.pop_front() {
            if let Err(command) = self.commands.send(command) {
                self.unsent.push_front(command);
                return;
            }
        }
    }

    /// Delivers established and failed connections.
    fn deliver_outcomes(&mut self) -> usize {
        let mut delivered = 0;
        while let Some((id, origin)) = self.net.opened.pop_front() {
            delivered += 1;
            let state = self.service.opened(&mut self.net, id, origin);
            if self.states.len() <= id.slot() {
                self.states.resize_with(id.slot() + 1, || None);
            }
            self.states[id.slot()] = Some(state);
        }
        // The service may reconnect at once and fail again: only the failures present now are delivered.
        for _ in 0..self.net.failed.len() {
            let Some((token, error)) = self.net.failed.pop_front() else { break };
            delivered += 1;
            self.net.summary.failed += 1;
            self.service.failed(&mut self.net, token, error);
        }
        delivered
    }

    /// Delivers all events of connections. Events that occur meanwhile wait for the next turn.
    fn deliver_ready(&mut self) -> usize {
        let count = self.net.ready.len();
        self.burst.clear();
        let readable = |id: &ConnId| self.net.slots.get(*id).is_some_and(|conn| conn.pending.readable);
        self.burst.extend(self.net.ready.iter().copied().filter(readable));
        if !self.burst.is_empty() {
            let served = self.service.burst(&mut self.net, &self.burst);
            for id in self.burst.iter().take(served) {
                if let Some(conn) = self.net.slots.get_mut(*id) {
                    conn.pending.readable = false;
                }
            }
        }
        for _ in 0..count {
            let Some(id) = self.net.ready.pop_front() else { break };
            self.deliver(id);
        }
        count
    }

    fn deliver(&mut self, id: ConnId) {
        let Worker { net, service, states, .. } = self;
        let Some(conn) = net.slots.get_mut(id) else { return };
        let Some(state) = states.get_mut(id.slot()) else { return };
        conn.listed = false;
        if let Some(state) = state {
            // Each step looks the connection up again, because the service may have ended it in the previous step.
            if net.slots.get_mut(id).is_some_and(|conn| std::mem::take(&mut conn.pending.readable)) {
                service.readable(net, id, state);
            }
            while let Some((token, outcome)) = net.slots.get_mut(id).and_then(|conn| conn.one_sided_done.pop_front()) {
                service.one_sided_done(net, id, state, token, outcome);
            }
            if net.slots.get_mut(id).is_some_and(|conn| std::mem::take(&mut conn.pending.writable)) {
                service.writable(net, id, state);
            }
            if let Some(conn) = net.slots.get_mut(id)
                && conn.peer_closed_is_due()
            {
                conn.receiving = Receiving::Told;
                service.peer_closed(net, id, state);
                if net.slots.get(id).is_some_and(|conn| conn.is_finished()) {
                    net.end(id, CloseReason::Finished);
                }
            }
            if net.slots.get_mut(id).is_some_and(|conn| std::mem::take(&mut conn.pending.timer)) {
                service.timer(net, id, state);
            }
        }
        if let Some(conn) = net.slots.get(id)
            && let Stage::Ended(reason) = conn.stage
        {
            let state = state.take();
            self.retire(id);
            if let Some(state) = state {
                self.closed(id, state, reason);
            }
        }
    }

    fn retire(&mut self, id: ConnId) {
        if let Some(conn) = self.net.remove(id) {
            self.net.retire(conn.link);
        }
    }

    fn closed(&mut self, id: ConnId, state: S::Conn, reason: CloseReason) {
        match reason {
            CloseReason::Finished => self.net.summary.finished += 1,
            _ => self.net.summary.broken += 1,
        }
        self.service.closed(&mut self.net, id, state, reason);
    }

    fn deliver_messages(&mut self) -> usize {
        let mut read = 0;
        while read < BUDGET
            && let Some(letter) = self.messages.receive()
        {
            read += 1;
            let (to, message) = match letter {
                AppMsg::Message { to, message } => (to, message),
                AppMsg::Query(look) => {
                    look.answer(self);
                    continue;
                }
            };
            let Some(id) = to else {
                self.service.on_message(&mut self.net, message);
                continue;
            };
            if self.net.slots.get(id).is_some_and(|conn| conn.stage == Stage::Open && !conn.is_lingering())
                && let Some(Some(state)) = self.states.get_mut(id.slot())
            {
                self.service.on_conn_message(&mut self.net, id, state, message);
            }
        }
        read
    }

    /// Ends all connections, hands them to the connector, and returns the service and the statistics.
    pub fn finish(mut self) -> (S, Summary) {
        for id in self.net.slots.conn_ids() {
            self.net.abort_now(id);
            let Some(Stage::Ended(reason)) = self.net.slots.get(id).map(|conn| conn.stage) else { continue };
            self.retire(id);
            if let Some(state) = self.states.get_mut(id.slot()).and_then(Option::take) {
                self.closed(id, state, reason);
            }
        }
        self.tell();
        (self.service, self.net.summary)
    }
}

impl<C: Provider, S: Service> Inspect for Worker<C, S> {
    fn snapshot(&mut self) -> Snapshot {
        let gauges = Gauges { connections: self.net.slots.len() as u64, ..Gauges::default() };
        Snapshot {
            worker: self.net.worker,
            summary: self.net.summary.clone(),
            gauges,
            shortages: None,
            requests: self.service.requests(),
            slow_requests: self.service.slow_requests(),
        }
    }

    fn slots(&self) -> usize {
        self.net.slots.slot_count()
    }

    fn connection(&self, slot: usize) -> Option<ConnInfo> {
        let conn = self.net.slots.conn_id(slot)?;
        let connection = self.net.slots.get(conn)?;
        let state = match connection.stage {
            Stage::Open => {
                let we_finished = matches!(connection.sending, Sending::Finishing | Sending::Finished);
                ConnState::of_ends(connection.peer_has_finished(), we_finished)
            }
            Stage::Ended(_) => ConnState::Closed,
        };
        Some(ConnInfo {
            conn,
            local: Some(connection.link.local),
            remote: connection.link.remote,
            state,
            unread: connection.rx.len() as u64,
            unsent: connection.tx.len() as u64,
            tcp: TcpInfo::default(),
        })
    }
}
