//! One thread's loop: take in what is completed, tell the service, post what it has to say.

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

/// Messages that are delivered in one turn at most.
const BUDGET: usize = 256;
/// Turns without work before an idle worker that may sleep does.
const IDLE_TURNS: u32 = 1000;
/// How long it sleeps when there is something to be tried again.
const MOMENT: Duration = Duration::from_millis(1);

/// What the connector tells a worker.
pub enum ConnectorEvent<C: Provider> {
    /// The connection with this number is being made. It is told before its peer may send.
    Expected(u64),
    /// It is not made.
    Unexpected(u64),
    /// A connection has been made.
    Made(ConnCore<C>, Origin),
    /// The connection asked for with this token could not be made.
    Failed(u64, ConnectError),
    /// The connection with this number is lost: its peer is gone, or the device cannot go on with it.
    Lost(u64, CloseReason),
    /// In the place of one that went with a link.
    Mw(Mw<C>),
    /// A queue pair of a link that was over is to be drained, to be used again.
    Drain(Qp<C, Errored>),
    /// All that has been completed for the queue pair with this number, whose connection is over, is to be polled.
    Poll(u32),
}

/// What a worker asks of the connector.
pub enum ConnectorRequest<C: Provider> {
    /// Accept no more connections, of whichever worker.
    Refuse,
    /// Connect `worker` to `remote`.
    Connect {
        /// Who asks.
        worker: usize,
        /// Where to.
        remote: SocketAddr,
        /// What the service knows it by.
        token: u64,
    },
    /// A link of this worker's is over.
    Bury(usize, ConnCore<C>),
    /// A queue pair of this worker's has been drained, or could not be.
    Drained(usize, Qp<C, Errored>),
    /// All has been polled that was completed for the queue pair with this number, when this worker was told to.
    Polled(usize, u32),
}

/// A service running over verbs, on the thread that made it.
pub struct Worker<C: Provider, S: Service> {
    net: Net<C>,
    service: S,
    /// By slot.
    states: Vec<Option<S::Conn>>,
    messages: Receiver<AppMsg<S::Message>>,
    news: Receiver<ConnectorEvent<C>>,
    commands: Sender<ConnectorRequest<C>>,
    /// What the connector had no room for.
    unsent: VecDeque<ConnectorRequest<C>>,
    /// What it is woken by, if it may sleep.
    rest: Option<IdleWait<C>>,
    /// Time of the next [`Service::poll`] at the latest.
    poll_at: Option<Instant>,
    started: bool,
    /// Kept for its memory.
    burst: Vec<ConnId>,
}

/// How a worker hears of others, and tells them.
pub struct WorkerChannels<C: Provider, M> {
    /// Messages for its service and its connections.
    pub messages: Receiver<AppMsg<M>>,
    /// What the connector says.
    pub news: Receiver<ConnectorEvent<C>>,
    /// What the connector is asked.
    pub commands: Sender<ConnectorRequest<C>>,
    /// What wakes it, if it may sleep: its queue, and the mailboxes above, are made with it.
    pub rest: Option<IdleWait<C>>,
}

impl<C: Provider, S: Service> Worker<C, S> {
    /// The worker with this number, and what it has of the device.
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

    /// What has happened so far.
    pub fn summary(&self) -> &Summary {
        &self.net.summary
    }

    /// How often it has slept.
    pub fn waits(&self) -> u64 {
        self.rest.as_ref().map_or(0, |rest| rest.waits)
    }

    /// The service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Windows that no connection has.
    #[cfg(test)]
    pub(crate) fn free_windows(&self) -> usize {
        self.net.free_windows()
    }

    /// The service, to be told something by a test.
    #[cfg(test)]
    pub(crate) fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    /// One turn. Returns how many completions, messages and events there were.
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

    /// Runs until `stop`; then ends all connections, and returns the service and what happened. When the device fails, its
    /// connections end, and the worker goes on. One that may sleep does after a while without work, and sees `stop` within 20 ms.
    /// While it is to drain, it tells how many connections it has left.
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

    /// Has the connector accept no more connections: who asks for one is refused.
    pub fn stop_listening(&mut self) {
        self.unsent.push_back(ConnectorRequest::Refuse);
    }

    /// Sleeps until there is something to do, if it may.
    pub(crate) fn sleep(&mut self, clock: &Clock) {
        if self.messages.about_to_sleep() && self.news.about_to_sleep() {
            self.net.arm();
            // What was completed before that does not ring.
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

    /// What the connector has said.
    fn hear(&mut self) -> usize {
        let mut heard = 0;
        while let Some(news) = self.news.receive() {
            heard += 1;
            match news {
                ConnectorEvent::Expected(number) => self.net.expect(number),
                ConnectorEvent::Unexpected(number) => self.net.expect_no_more(number),
                ConnectorEvent::Made(link, origin) if !self.net.is_full() => self.net.add(link, origin),
                ConnectorEvent::Made(link, origin) => {
                    self.net.bury(link);
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

    /// Asks the connector for what is wanted.
    fn tell(&mut self) {
        let worker = self.net.worker;
        // What is over goes first: there may be no more queue pairs than connections.
        self.unsent.extend(self.net.buried.drain(..).map(|link| ConnectorRequest::Bury(worker, link)));
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

    /// Connections made and not made.
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
        // Only those there are now: the service may at once try again, and again in vain.
        for _ in 0..self.net.failed.len() {
            let Some((token, error)) = self.net.failed.pop_front() else { break };
            delivered += 1;
            self.net.summary.failed += 1;
            self.service.failed(&mut self.net, token, error);
        }
        delivered
    }

    /// Everything that happened to connections. What happens to them meanwhile is for the next turn.
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
            // Each step asks anew: the service may have ended the connection, or told it something else, in the one before.
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
            self.bury(id);
            if let Some(state) = state {
                self.closed(id, state, reason);
            }
        }
    }

    fn bury(&mut self, id: ConnId) {
        if let Some(conn) = self.net.remove(id) {
            self.net.bury(conn.link);
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

    /// Ends all connections, and returns the service and what happened. What is buried goes to the connector.
    pub fn finish(mut self) -> (S, Summary) {
        for id in self.net.slots.conn_ids() {
            self.net.abort_now(id);
            let Some(Stage::Ended(reason)) = self.net.slots.get(id).map(|conn| conn.stage) else { continue };
            self.bury(id);
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
