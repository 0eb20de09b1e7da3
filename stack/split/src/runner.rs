//! Runner: the service's end, which receives events and calls the service.

use crate::Config;
use crate::net::Net;
use crate::queues::{Commands, Event, Events, SharedQueues};
use crate::stream::{End, Stream};
use crate::table::Table;
use linerate_service::mailbox::{Receiver, Sender};
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{AppMsg, AppSender, CloseReason, ConnId, Service, WorkerCtx};
use std::sync::Arc;

/// Batches and messages processed in one turn.
const BATCHES_PER_TURN: usize = 4;
const MESSAGES_PER_TURN: usize = 256;
/// Number of turns without work after which a thread that may sleep does so.
const IDLE_TURNS: u32 = 1000;
/// Maximum sleep while commands wait to be sent, or connections wait for memory: neither event wakes the thread.
const MOMENT: Duration = Duration::from_micros(50);

/// Service's thread without its service.
pub struct RunnerSetup<M> {
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    pub(crate) config: Config,
    pub(crate) app_sender: AppSender<M>,
    pub(crate) messages: Receiver<AppMsg<M>>,
    pub(crate) shared: Arc<SharedQueues>,
    pub(crate) events: Receiver<Events>,
    pub(crate) events_back: Sender<Events>,
    pub(crate) commands_empty: Receiver<Commands>,
}

/// Service on its thread.
pub struct Runner<S: Service> {
    net: Net,
    service: S,
    states: Table<S::Conn>,
    messages: Receiver<AppMsg<S::Message>>,
    events: Receiver<Events>,
    events_back: Sender<Events>,
    started: bool,
    /// True if the worker has ended.
    over: bool,
    poll_at: Option<Instant>,
    /// Undelivered events of a batch: connections with data, connections with room, and all other events in order.
    readable: Vec<ConnId>,
    writable: Vec<ConnId>,
    others: Vec<Other>,
    /// Connections whose timers have expired.
    due: Vec<ConnId>,
    /// Reused buffer.
    spare: Vec<ConnId>,
}

/// Event of a connection other than data and room.
enum Other {
    PeerClosed(ConnId),
    Closed(ConnId, CloseReason),
}

impl<M: Send + 'static> RunnerSetup<M> {
    /// Creates the service with `make`, on this thread.
    pub fn with_service<S: Service<Message = M>>(self, make: impl FnOnce(WorkerCtx<M>) -> S) -> Runner<S> {
        let RunnerSetup { worker, workers, config, app_sender, messages, shared, events, events_back, commands_empty } =
            self;
        let _ = shared.thread.set(std::thread::current());
        let service = make(WorkerCtx { worker, workers, app_sender });
        Runner {
            net: Net::new(worker, config, shared, commands_empty),
            service,
            states: Table::new(),
            messages,
            events,
            events_back,
            started: false,
            over: false,
            poll_at: None,
            readable: Vec::new(),
            writable: Vec::new(),
            others: Vec::new(),
            due: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl<S: Service> Runner<S> {
    /// Runs until the worker has ended, and returns the service.
    pub fn run(mut self, clock: &Clock) -> S {
        let mut idle_turns = 0;
        while !self.over {
            if self.turn(clock.now()) > 0 {
                idle_turns = 0;
                continue;
            }
            idle_turns += 1;
            if self.net.config.sleeps && idle_turns > IDLE_TURNS {
                self.sleep(clock);
            } else if self.net.config.co_scheduled {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        self.service
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Returns whether the worker has ended and all events have been delivered.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Runs one turn: delivers the worker's events and passes on the service's commands. Returns the number of events
    /// and messages.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.net.now = now;
        let mut work = self.deliver_messages();
        for _ in 0..BATCHES_PER_TURN {
            let Some(batch) = self.events.receive() else { break };
            work += batch.items.len() + batch.datagrams.len();
            self.take_in(batch);
        }
        work += self.fire_timers();
        if self.started && !self.over {
            self.poll_at = self.service.turn(&mut self.net).map(|rest| now + rest);
        }
        self.retry();
        self.deliver_ends();
        self.net.flush();
        work
    }

    fn sleep(&mut self, clock: &Clock) {
        if self.events.about_to_sleep() && self.messages.about_to_sleep() {
            let now = clock.now();
            let waits = self.net.has_unsent_commands() || !self.net.out_of_memory.is_empty();
            let moment = waits.then_some(now + MOMENT);
            match [self.net.timers.next(), self.poll_at, moment].into_iter().flatten().min() {
                Some(next) => std::thread::park_timeout(next.since(now)),
                None => std::thread::park(),
            }
        }
        self.events.awake();
        self.messages.awake();
    }

    fn deliver_messages(&mut self) -> usize {
        for n in 0..MESSAGES_PER_TURN {
            let Some(message) = self.messages.receive() else { return n };
            match message {
                // The worker has the connections and counters; dropping the query reports that there is no reply.
                AppMsg::Query(_) => {}
                AppMsg::Message { to: None, message } => self.service.message(&mut self.net, message),
                AppMsg::Message { to: Some(conn), message } => {
                    if self.net.stream_mut(conn).is_some()
                        && let Some(state) = self.states.get_mut(conn)
                    {
                        self.service.conn_message(&mut self.net, conn, state, message);
                    }
                }
            }
        }
        MESSAGES_PER_TURN
    }

    fn take_in(&mut self, mut batch: Events) {
        let mut addresses = batch.addresses.drain(..);
        for event in batch.items.drain(..) {
            match event {
                Event::Start => {
                    self.started = true;
                    self.service.start(&mut self.net);
                }
                Event::Opened(conn, origin) => {
                    if !self.others.is_empty() || !self.writable.is_empty() {
                        // Deliver first: `closed` of the previous connection in this slot may be pending.
                        self.deliver();
                    }
                    if let Some(addresses) = addresses.next() {
                        self.net.streams.insert(conn, Stream::new(addresses, self.net.config.window));
                        let state = self.service.opened(&mut self.net, conn, origin);
                        self.states.insert(conn, state);
                    }
                }
                Event::Failed(token, error) => self.service.failed(&mut self.net, token, error),
                Event::Data(conn, bytes) => {
                    if self.net.receive(conn, bytes) {
                        self.readable.push(conn);
                    }
                }
                Event::Room(conn, room) => {
                    if let Some(stream) = self.net.streams.get_mut(conn) {
                        stream.credit += room;
                        stream.waits_for_room = false;
                        if std::mem::take(&mut stream.wants_room) {
                            self.writable.push(conn);
                        }
                    }
                }
                Event::PeerClosed(conn) => self.others.push(Other::PeerClosed(conn)),
                Event::Closed(conn, reason) => self.others.push(Other::Closed(conn, reason)),
                Event::End => self.over = true,
            }
        }
        drop(addresses);
        self.deliver();
        for datagram in batch.datagrams.drain(..) {
            self.service.datagram(&mut self.net, datagram);
        }
        // The mailbox has room for all existing batches.
        let _ = self.events_back.send(batch);
        if self.over {
            for conn in self.states.ids() {
                self.close(conn, CloseReason::Aborted);
            }
        }
    }

    /// Delivers the received events.
    fn deliver(&mut self) {
        if !self.readable.is_empty() {
            let mut readable = std::mem::replace(&mut self.readable, std::mem::take(&mut self.spare));
            if std::mem::take(&mut self.net.has_silenced) {
                readable.retain(|conn| self.net.stream_mut(*conn).is_some());
            }
            let served = if readable.is_empty() { 0 } else { self.service.burst(&mut self.net, &readable) };
            for (at, conn) in readable.drain(..).enumerate() {
                let Some(stream) = self.net.stream_mut(conn) else { continue };
                stream.listed = false;
                if at >= served
                    && let Some(state) = self.states.get_mut(conn)
                {
                    self.service.readable(&mut self.net, conn, state);
                }
            }
            self.spare = readable;
        }
        let mut writable = std::mem::take(&mut self.writable);
        for conn in writable.drain(..) {
            self.notify_writable(conn);
        }
        self.writable = writable;
        self.deliver_ends();
        let mut others = std::mem::take(&mut self.others);
        for other in others.drain(..) {
            match other {
                Other::PeerClosed(conn) => {
                    if let Some(stream) = self.net.stream_mut(conn) {
                        stream.end = End::Due;
                        if stream.end_is_due() {
                            self.net.ended.push(conn);
                        }
                    }
                }
                Other::Closed(conn, CloseReason::Finished)
                    if self.net.stream_mut(conn).is_some_and(|stream| !stream.received.is_empty()) =>
                {
                    // The service has unread data, which it must not lose.
                    if let Some(stream) = self.net.stream_mut(conn) {
                        stream.finished = true;
                        stream.end = End::Due;
                    }
                    self.net.streams.move_aside(conn);
                    self.states.move_aside(conn);
                }
                Other::Closed(conn, reason) => self.close(conn, reason),
            }
            self.deliver_ends();
        }
        self.others = others;
    }

    fn notify_writable(&mut self, conn: ConnId) {
        if self.net.stream_mut(conn).is_some_and(|stream| !stream.closed)
            && let Some(state) = self.states.get_mut(conn)
        {
            self.service.writable(&mut self.net, conn, state);
        }
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        self.net.remove(conn);
        if let Some(state) = self.states.remove(conn) {
            self.service.closed(&mut self.net, conn, state, reason);
        }
    }

    /// Delivers `peer_closed` for streams that have just been read to the end.
    fn deliver_ends(&mut self) {
        while let Some(conn) = self.net.ended.pop() {
            let Some(stream) = self.net.streams.get_mut(conn) else { continue };
            if stream.end_is_due() {
                stream.end = End::Reported;
                if let Some(state) = self.states.get_mut(conn) {
                    self.service.peer_closed(&mut self.net, conn, state);
                }
            }
            if self.net.streams.get(conn).is_some_and(|stream| stream.finished) {
                self.close(conn, CloseReason::Finished);
            }
        }
    }

    fn fire_timers(&mut self) -> usize {
        let now = self.net.now;
        let Net { streams, timers, .. } = &mut self.net;
        // Collect all expired timers first: one that is set again at once expires in the next turn.
        while let Some(conn) = timers.pop(now) {
            if let Some(stream) = streams.get_mut(conn)
                && timers.fired(conn, &mut stream.timer, now)
            {
                stream.timer_due = true;
                self.due.push(conn);
            }
        }
        let fired = self.due.len();
        let mut due = std::mem::take(&mut self.due);
        for conn in due.drain(..) {
            if self.net.stream_mut(conn).is_some_and(|stream| std::mem::take(&mut stream.timer_due))
                && let Some(state) = self.states.get_mut(conn)
            {
                self.service.timer(&mut self.net, conn, state);
            }
        }
        self.due = due;
        fired
    }

    /// Retries connections that found no memory.
    fn retry(&mut self) {
        for conn in std::mem::take(&mut self.net.out_of_memory) {
            if self.net.stream_mut(conn).is_some_and(|stream| std::mem::take(&mut stream.wants_room)) {
                self.notify_writable(conn);
            }
        }
    }
}
