//! The service's end: takes in what the worker tells, and lets the service act.

use crate::Config;
use crate::crossing::{Commands, Event, Events, Shared};
use crate::net::Net;
use crate::stream::{End, Stream};
use crate::table::Table;
use linerate_bypass::mailbox::{Receiver, Sender};
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_bypass::{AppMsg, AppSender, CloseReason, ConnId, Service, WorkerCtx};
use std::sync::Arc;

/// Batches and messages that are taken in in one turn.
const BATCHES_PER_TURN: usize = 4;
const MESSAGES_PER_TURN: usize = 256;
/// Turns without work before a thread that may sleep does.
const IDLE_TURNS: u32 = 1000;
/// How long it sleeps at most while something waits that nobody wakes it for.
const MOMENT: Duration = Duration::from_micros(50);

/// A service's thread that has no service yet.
pub struct Station<M> {
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    pub(crate) config: Config,
    pub(crate) app_sender: AppSender<M>,
    pub(crate) letters: Receiver<AppMsg<M>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: Receiver<Events>,
    pub(crate) events_back: Sender<Events>,
    pub(crate) commands_empty: Receiver<Commands>,
}

/// A service on its thread.
pub struct Runner<S: Service> {
    net: Net,
    service: S,
    states: Table<S::Conn>,
    letters: Receiver<AppMsg<S::Message>>,
    events: Receiver<Events>,
    events_back: Sender<Events>,
    started: bool,
    /// The worker has ended.
    over: bool,
    poll_at: Option<Instant>,
    /// What is to be delivered of a batch: connections with something to read, those with room again, and then what else happened,
    /// in its order.
    readable: Vec<ConnId>,
    writable: Vec<ConnId>,
    others: Vec<Other>,
    /// Connections whose timers have come.
    due: Vec<ConnId>,
    /// Kept for its memory.
    spare: Vec<ConnId>,
}

/// Event of a connection other than bytes and room.
enum Other {
    PeerClosed(ConnId),
    Closed(ConnId, CloseReason),
}

impl<M: Send + 'static> Station<M> {
    /// The service that `make` makes, on this thread.
    pub fn manned<S: Service<Message = M>>(self, make: impl FnOnce(WorkerCtx<M>) -> S) -> Runner<S> {
        let Station { worker, workers, config, app_sender, letters, shared, events, events_back, commands_empty } =
            self;
        let _ = shared.thread.set(std::thread::current());
        let service = make(WorkerCtx { worker, workers, app_sender });
        Runner {
            net: Net::new(worker, config, shared, commands_empty),
            service,
            states: Table::new(),
            letters,
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

    /// The service, for a look at it.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Whether the worker has ended, and everything has been delivered.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// One turn: what the worker has told is delivered, and what the service does about it is passed on. Returns how many events
    /// and messages there were.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.net.now = now;
        let mut work = self.deliver_letters();
        for _ in 0..BATCHES_PER_TURN {
            let Some(batch) = self.events.receive() else { break };
            work += batch.items.len() + batch.datagrams.len();
            self.take_in(batch);
        }
        work += self.fire_timers();
        if self.started && !self.over {
            self.poll_at = self.service.poll(&mut self.net).map(|rest| now + rest);
        }
        self.retry();
        self.deliver_ends();
        self.net.flush();
        work
    }

    fn sleep(&mut self, clock: &Clock) {
        if self.events.about_to_sleep() && self.letters.about_to_sleep() {
            let now = clock.now();
            let waits = self.net.is_backed_up() || !self.net.out_of_memory.is_empty();
            let moment = waits.then_some(now + MOMENT);
            match [self.net.timers.next(), self.poll_at, moment].into_iter().flatten().min() {
                Some(next) => std::thread::park_timeout(next.since(now)),
                None => std::thread::park(),
            }
        }
        self.events.awake();
        self.letters.awake();
    }

    fn deliver_letters(&mut self) -> usize {
        for n in 0..MESSAGES_PER_TURN {
            let Some(letter) = self.letters.receive() else { return n };
            match letter {
                // It is the worker that has connections and counters; who asks here hears that nobody answers.
                AppMsg::Query(_) => {}
                AppMsg::Message { to: None, message } => self.service.on_message(&mut self.net, message),
                AppMsg::Message { to: Some(conn), message } => {
                    if self.net.stream_mut(conn).is_some()
                        && let Some(state) = self.states.get_mut(conn)
                    {
                        self.service.on_conn_message(&mut self.net, conn, state, message);
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
                        // Another one may have to be told that it is gone first: its slot may be this one's.
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
                        stream.starved = false;
                        if std::mem::take(&mut stream.wants_room) {
                            self.writable.push(conn);
                        }
                    }
                }
                Event::PeerClosed(conn) => self.others.push(Other::PeerClosed(conn)),
                Event::Closed(conn, why) => self.others.push(Other::Closed(conn, why)),
                Event::End => self.over = true,
            }
        }
        drop(addresses);
        self.deliver();
        for datagram in batch.datagrams.drain(..) {
            self.service.datagram(&mut self.net, datagram);
        }
        // There is room for all batches that there are.
        let _ = self.events_back.send(batch);
        if self.over {
            for conn in self.states.names() {
                self.close(conn, CloseReason::Aborted);
            }
        }
    }

    /// Delivers what was taken in.
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
            self.tell_writable(conn);
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
                    // The service has not read everything yet, and is not to lose it.
                    if let Some(stream) = self.net.stream_mut(conn) {
                        stream.finished = true;
                        stream.end = End::Due;
                    }
                    self.net.streams.set_aside(conn);
                    self.states.set_aside(conn);
                }
                Other::Closed(conn, why) => self.close(conn, why),
            }
            self.deliver_ends();
        }
        self.others = others;
    }

    fn tell_writable(&mut self, conn: ConnId) {
        if self.net.stream_mut(conn).is_some_and(|stream| !stream.closed)
            && let Some(state) = self.states.get_mut(conn)
        {
            self.service.writable(&mut self.net, conn, state);
        }
    }

    fn close(&mut self, conn: ConnId, why: CloseReason) {
        self.net.remove(conn);
        if let Some(state) = self.states.remove(conn) {
            self.service.closed(&mut self.net, conn, state, why);
        }
    }

    /// Tells the service of the ends of streams that it has just read to.
    fn deliver_ends(&mut self) {
        while let Some(conn) = self.net.ended.pop() {
            let Some(stream) = self.net.streams.get_mut(conn) else { continue };
            if stream.end_is_due() {
                stream.end = End::Told;
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
        // All that are due before any is told: one that asks for the time that it is gets it in the next turn.
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

    /// Lets those try again that had found no memory.
    fn retry(&mut self) {
        for conn in std::mem::take(&mut self.net.out_of_memory) {
            if self.net.stream_mut(conn).is_some_and(|stream| std::mem::take(&mut stream.wants_room)) {
                self.tell_writable(conn);
            }
        }
    }
}
