//! Worker loop: process completions, call the service, post requests.

use crate::Config;
use crate::connection::ConnCore;
use crate::net::{Net, Parts};
use crate::provider::{AhAttr, Provider};
use crate::queues::Queues;
use crate::verbs::{Ah, Errored, Mw, Qp};
use crate::waker::IdleWait;
use linerate_service::mailbox::{Receiver, Sender};
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{AppMsg, CloseReason, ConnectError, Drain, Origin, Service, ServiceHost, Stop, Summary};
use std::collections::VecDeque;
use std::net::SocketAddr;

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
    /// Queues that replace the queues of the worker, one of which has failed. All connections of the worker have ended.
    Rebuilt(Box<Queues<C>>),
    /// Renewed address of the peer of the session with this number.
    Readdressed(u64, Ah<C>),
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
    /// Queue pair of this worker that was drained, or whose draining failed.
    Drained(usize, Qp<C, Errored>),
    /// All completions of the queue pair with this number were polled, as requested from this worker.
    Polled(usize, u32),
    /// The peer of this session of a worker does not answer at this path.
    Readdress(usize, u64, AhAttr),
    /// A completion queue cannot be polled, for this reason.
    DeviceFailed(String),
}

/// Worker that runs a service over verbs.
pub struct Worker<C: Provider, S: Service> {
    host: ServiceHost<Net<C>, S>,
    events: Receiver<ConnectorEvent<C>>,
    commands: Sender<ConnectorRequest<C>>,
    /// Requests that the connector had no room for.
    unsent: VecDeque<ConnectorRequest<C>>,
    /// Present if the worker may sleep.
    rest: Option<IdleWait<C>>,
    /// Latest time of the next [`Service::turn`].
    poll_at: Option<Instant>,
}

/// Channels of a worker.
pub struct WorkerChannels<C: Provider, M> {
    /// Messages for the service and its connections.
    pub messages: Receiver<AppMsg<M>>,
    /// Events from the connector.
    pub events: Receiver<ConnectorEvent<C>>,
    /// Requests to the connector.
    pub commands: Sender<ConnectorRequest<C>>,
    /// Present if the worker may sleep. The completion queues and the mailboxes above must be created with it.
    pub rest: Option<IdleWait<C>>,
}

impl<C: Provider, S: Service> Worker<C, S> {
    /// Creates worker number `worker`.
    pub fn new(
        worker: usize,
        config: Config,
        parts: Parts<C>,
        channels: WorkerChannels<C, S::Message>,
        service: S,
    ) -> Self {
        let WorkerChannels { messages, events, commands, rest } = channels;
        let net = Net::new(worker, config, parts);
        let host = ServiceHost::new(net, service, messages);
        Worker { host, events, commands, unsent: VecDeque::new(), rest, poll_at: None }
    }

    /// Returns the statistics.
    pub fn summary(&self) -> &Summary {
        &self.host.net.summary
    }

    /// Returns how often the worker has slept.
    pub fn waits(&self) -> u64 {
        self.host.net.summary.sleeps
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.host.service
    }

    /// Returns the number of unused memory windows.
    #[cfg(test)]
    pub(crate) fn free_windows(&self) -> usize {
        self.host.net.free_windows()
    }

    /// Returns the number of connections being established for peers.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> usize {
        self.host.net.connections()
    }

    /// Returns the service, for tests.
    #[cfg(test)]
    pub(crate) fn service_mut(&mut self) -> &mut S {
        &mut self.host.service
    }

    /// Runs one turn. Returns the number of completions, messages and events processed.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.host.net.now = now;
        self.host.start();
        let mut work = self.host.deliver_messages();
        self.host.net.poll();
        work += self.process_events();
        let host = &mut self.host;
        let came = host.net.take_in();
        self.poll_at = host.service.turn(&mut host.net).map(|rest| now + rest);
        work += came + host.deliver();
        self.send_requests();
        let summary = &mut self.host.net.summary;
        summary.turns += 1;
        summary.busy_turns += u64::from(work > 0);
        summary.bursts += u64::from(came > 0);
        work
    }

    /// Runs until `stop`, then ends all connections and returns the service and the statistics. After a device
    /// failure the worker keeps running without connections. An idle worker that may sleep does so. While draining, it
    /// reports the number of remaining connections.
    pub fn run(mut self, clock: &Clock, stop: &Stop) -> (S, Summary) {
        let mut idle_turns = 0;
        let mut drain = Drain::default();
        if let Some(rest) = &mut self.rest
            && let Some(longest) = stop.wake_by(rest.wake())
        {
            rest.longest = rest.longest.min(longest);
        }
        while !stop.is_stopped() {
            if stop.is_draining() {
                if drain.is_listening() {
                    self.stop_listening();
                }
                drain.report(stop, self.host.net.connections());
            }
            match self.turn(clock.now()) {
                0 if idle_turns > IDLE_TURNS && self.rest.is_some() => {
                    if self.sleep(clock) > 0 {
                        idle_turns = 0;
                    }
                }
                0 => {
                    idle_turns += 1;
                    std::hint::spin_loop();
                }
                _ => idle_turns = 0,
            }
        }
        self.finish()
    }

    /// Makes the connector refuse all further connections.
    pub fn stop_listening(&mut self) {
        self.unsent.push_back(ConnectorRequest::Refuse);
    }

    /// Sleeps until an event, if the worker may sleep. Returns the work of the turns before and after.
    pub(crate) fn sleep(&mut self, clock: &Clock) -> usize {
        let (mut work, mut has_slept) = (0, false);
        if self.host.messages.about_to_sleep() && self.events.about_to_sleep() {
            self.host.net.arm();
            // Completions that precede the request generate no event.
            let now = clock.now();
            work = self.turn(now);
            if work == 0 {
                let tries_again = !self.unsent.is_empty() || self.host.net.is_starved();
                let moment = tries_again.then_some(now + MOMENT);
                let next =
                    [self.host.net.table.next_deadline(), self.host.net.session_timers.next(), self.poll_at, moment]
                        .into_iter()
                        .flatten()
                        .min();
                if let Some(rest) = &mut self.rest {
                    rest.wait(next.map_or(Duration::MAX, |next| next.since(now)));
                    has_slept = true;
                }
            }
        }
        self.host.messages.awake();
        self.events.awake();
        if has_slept {
            work = self.turn(clock.now());
            self.host.net.summary.sleeps += 1;
            self.host.net.summary.wakeups += u64::from(work > 0);
        }
        work
    }

    /// Processes events of the connector.
    fn process_events(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.events.receive() {
            count += 1;
            match event {
                ConnectorEvent::Expected(number) => self.host.net.expect(number),
                ConnectorEvent::Unexpected(number) => self.host.net.expect_no_more(number),
                ConnectorEvent::Made(link, origin) if !self.host.net.is_full() => self.host.net.add(link, origin),
                ConnectorEvent::Made(link, origin) => {
                    self.host.net.retire(link);
                    if let Origin::Connected(token) = origin {
                        self.host.net.report_failed(token, ConnectError::TooMany);
                    }
                }
                ConnectorEvent::Failed(token, error) => self.host.net.report_failed(token, error),
                ConnectorEvent::Lost(number, reason) => self.host.net.lose(number, reason),
                ConnectorEvent::Readdressed(number, ah) => self.host.net.readdress(number, ah),
                ConnectorEvent::Rebuilt(queues) => self.host.net.rebuilt(*queues),
                ConnectorEvent::Mw(mw) => self.host.net.add_window(mw),
                ConnectorEvent::Drain(qp) => self.host.net.drain(qp),
                ConnectorEvent::Poll(qp) => self.host.net.poll_for(qp),
            }
        }
        count
    }

    /// Sends requests to the connector.
    fn send_requests(&mut self) {
        let worker = self.host.net.worker;
        self.unsent.extend(self.host.net.failure.take().map(ConnectorRequest::DeviceFailed));
        // Ended connections first: the number of queue pairs is limited by the number of connections.
        self.unsent.extend(self.host.net.retired.drain(..).map(|link| ConnectorRequest::Retire(worker, link)));
        self.unsent.extend(self.host.net.drained.drain(..).map(|qp| ConnectorRequest::Drained(worker, qp)));
        self.unsent.extend(self.host.net.polled_for.drain(..).map(|qp| ConnectorRequest::Polled(worker, qp)));
        let moved = self.host.net.moved.drain(..);
        self.unsent.extend(moved.map(|(number, path)| ConnectorRequest::Readdress(worker, number, path)));
        let connects =
            self.host.net.wanted.drain(..).map(|(remote, token)| ConnectorRequest::Connect { worker, remote, token });
        self.unsent.extend(connects);
        while let Some(command) = self.unsent.pop_front() {
            if let Err(command) = self.commands.send(command) {
                self.unsent.push_front(command);
                return;
            }
        }
    }

    /// Ends all connections, hands them to the connector, and returns the service and the statistics.
    pub fn finish(mut self) -> (S, Summary) {
        let conns = self.host.net.table.slots.conn_ids();
        self.host.abort_all(conns);
        self.send_requests();
        let summary = self.host.net.total();
        (self.host.service, summary)
    }
}
