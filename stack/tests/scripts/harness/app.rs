//! The service on the worker: it does what the script tells it to, and writes down what happens to it.

use super::segment::Rel;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Bytes, CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

/// Byte `at` of every stream, counted from 0.
pub fn stream_byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// The bytes of a stream from sequence number `seq` on, of which 1 is the first.
pub fn stream(seq: Rel, len: Rel) -> Vec<u8> {
    (seq - 1..seq - 1 + len).map(|at| stream_byte(at as u64)).collect()
}

/// What a script tells a connection's service.
#[derive(Debug, Clone)]
pub enum Command {
    /// Write so many bytes of the stream, at once or as there is room.
    Write(usize),
    /// Ask for a place for so many bytes, and leave it.
    Reserve(usize),
    /// Write so many bytes of the stream into a place for more.
    Fill(usize),
    /// Hand over so many bytes of the stream as one slice.
    Send(usize),
    /// Hand over so many bytes, which are too many: they come back, and the service is called when there is room.
    Offer(usize),
    /// Consume so many bytes of what has been received.
    Read(usize),
    /// Consume what arrives, from now on and what is there already, or leave it.
    Reading(bool),
    /// Write so many bytes when something becomes readable next.
    Answer(usize),
    /// Send back what arrives, from now on and what is there already.
    Echo,
    /// Consume what arrives and write as much, from now on and of what is there already.
    Repeat,
    /// [`Repeat`](Self::Repeat), each piece in one step.
    RepeatAtOnce,
    /// Send back what is there.
    Forward,
    /// Consume so many bytes and write so many of the stream, in one step.
    AnswerAtOnce(usize, usize),
    /// Look at what has been received, and leave it.
    Peek,
    /// Ask how much can be sent.
    Room,
    /// Take so many bytes of the first slice received, at most, and keep them.
    Take(usize),
    /// Be called after this time.
    Timer(Option<Duration>),
    /// Do this when something becomes readable next, and nothing else.
    Next(Vec<Command>),
    Close,
    Abort,
}

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppEvent {
    Opened(Origin),
    Failed(ConnectError),
    PeerClosed,
    Timer,
    /// There is room for what was offered.
    Writable,
    Closed(CloseReason),
}

/// What a service does with what arrives.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Habit {
    #[default]
    Leave,
    Consume,
    Echo,
    Repeat,
    RepeatAtOnce,
}

/// What is known of one connection, by the peer's port.
#[derive(Debug, Default)]
pub struct Conn {
    pub id: Option<ConnId>,
    /// Bytes delivered: consumed, or waiting to be.
    pub delivered: Rel,
    /// Bytes consumed.
    pub consumed: Rel,
    /// What happened and has not been expected yet.
    pub events: VecDeque<(Instant, AppEvent)>,
    habit: Habit,
    /// What to do in its place when something becomes readable next.
    next: Vec<Command>,
    /// Bytes of the stream written or sent back, and still to be written.
    written: u64,
    to_write: usize,
    answer: usize,
    kept: Vec<Bytes>,
    wants_room: bool,
    closing: bool,
}

/// What the service shares with the script.
#[derive(Debug, Default)]
pub struct Log {
    pub conns: BTreeMap<u16, Conn>,
    /// Events since the arms of the script were last compared, by the peer's port.
    pub news: Vec<(u16, Instant, AppEvent)>,
    /// Something was delivered that was never sent.
    pub wrong: Option<String>,
}

impl Log {
    /// The events since the last comparison, each connection's in order.
    pub fn news_by_port(&self) -> Vec<(u16, Instant, AppEvent)> {
        let mut news = self.news.clone();
        news.sort_by_key(|(port, ..)| *port);
        news
    }
}

impl Conn {
    /// Bytes delivered, consumed, written, and still to be written.
    pub fn progress(&self) -> (Rel, Rel, u64, usize) {
        (self.delivered, self.consumed, self.written, self.to_write)
    }
}

/// The service.
pub struct App {
    pub log: Rc<RefCell<Log>>,
    /// Where it connects when it is started.
    pub connect: Vec<SocketAddr>,
}

impl App {
    fn event(&self, port: u16, at: Instant, event: AppEvent) {
        let mut log = self.log.borrow_mut();
        log.conns.entry(port).or_default().events.push_back((at, event));
        log.news.push((port, at, event));
    }

    fn read(&self, net: &mut impl Transport, conn: ConnId, port: u16, most: usize) {
        let mut log = self.log.borrow_mut();
        let Log { conns, wrong, .. } = &mut *log;
        let state = conns.entry(port).or_default();
        state.delivered = state.consumed + net.received(conn) as Rel;
        let mut left = most;
        while left > 0 {
            let slice = net.peek(conn);
            if slice.is_empty() {
                break;
            }
            let n = slice.len().min(left);
            for (i, byte) in slice[..n].iter().enumerate() {
                let at = state.consumed as u64 + i as u64;
                if *byte != stream_byte(at) && wrong.is_none() {
                    *wrong = Some(format!("byte {at} delivered from port {port} is not that of the stream"));
                }
            }
            net.consume(conn, n);
            state.consumed += n as Rel;
            left -= n;
        }
    }

    /// Sends back what is there: as the stream that it writes, if as much has been written as consumed.
    fn forward(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        self.peek(net, conn, port);
        let n = net.forward(conn, conn);
        let mut log = self.log.borrow_mut();
        let state = log.conns.entry(port).or_default();
        state.consumed += n as Rel;
        state.written += n as u64;
        state.delivered = state.consumed + net.received(conn) as Rel;
    }

    /// Checks that what was received is of the stream.
    fn peek(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        let mut log = self.log.borrow_mut();
        let Log { conns, wrong, .. } = &mut *log;
        let consumed = conns.entry(port).or_default().consumed;
        let received = net.received(conn);
        let slice = net.peek(conn);
        let is_stream = slice.iter().enumerate().all(|(i, byte)| *byte == stream_byte(consumed as u64 + i as u64));
        if !is_stream || slice.len() > received || slice.is_empty() != (received == 0) {
            *wrong = Some(format!("{} of {received} bytes received are not those behind {consumed}", slice.len()));
        }
    }

    /// Takes bytes of the first slice, to keep them.
    fn take(&self, net: &mut impl Transport, conn: ConnId, port: u16, most: usize) {
        self.peek(net, conn, port);
        let Some(bytes) = net.take(conn, most) else { return };
        let mut log = self.log.borrow_mut();
        let state = log.conns.entry(port).or_default();
        state.delivered = state.delivered.max(state.consumed + (bytes.len() + net.received(conn)) as Rel);
        state.consumed += bytes.len() as Rel;
        state.kept.push(bytes);
    }

    /// Checks that what was kept is still what it was.
    fn check_kept(&self) {
        let mut log = self.log.borrow_mut();
        let Log { conns, wrong, .. } = &mut *log;
        for bytes in conns.values().flat_map(|state| &state.kept) {
            // Long enough to be found in one place only.
            let is_stream =
                (0..10_000).any(|at| bytes.iter().enumerate().all(|(i, byte)| *byte == stream_byte(at + i as u64)));
            if !is_stream {
                *wrong = Some("bytes that the service has kept have changed".into());
            }
        }
    }

    fn act(&self, net: &mut impl Transport, conn: ConnId, port: u16, habit: Habit) {
        match habit {
            Habit::Leave => self.read(net, conn, port, 0),
            Habit::Consume => self.read(net, conn, port, usize::MAX),
            Habit::Echo => self.forward(net, conn, port),
            Habit::Repeat => self.repeat(net, conn, port),
            Habit::RepeatAtOnce => self.repeat_at_once(net, conn, port),
        }
    }

    fn repeat(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        let n = net.received(conn);
        self.read(net, conn, port, n);
        self.log.borrow_mut().conns.entry(port).or_default().to_write += n;
        self.pump(net, conn, port);
    }

    fn repeat_at_once(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        loop {
            self.peek(net, conn, port);
            match net.peek(conn).len() {
                0 => break,
                n => self.answer_at_once(net, conn, port, n, n),
            }
        }
    }

    /// Consumes `request` bytes and writes `len`, those behind what is waiting for room.
    fn answer_at_once(&self, net: &mut impl Transport, conn: ConnId, port: u16, request: usize, len: usize) {
        let received = net.received(conn);
        let mut log = self.log.borrow_mut();
        let state = log.conns.entry(port).or_default();
        state.delivered = state.consumed + received as Rel;
        state.consumed += request.min(received) as Rel;
        if state.to_write > 0 {
            net.consume(conn, request);
            state.to_write += len;
            return;
        }
        let written = state.written;
        let is_written = net.respond(conn, request, len, |place| {
            assert_eq!(place.len(), len, "the place is as long as the answer");
            place.iter_mut().zip(written..).for_each(|(byte, at)| *byte = stream_byte(at));
        });
        if is_written {
            state.written += len as u64;
        } else {
            state.to_write += len;
            drop(log);
            self.pump(net, conn, port);
        }
    }

    fn obey(&self, net: &mut impl Transport, conn: ConnId, port: u16, command: Command) {
        match command {
            Command::Write(n) => {
                self.log.borrow_mut().conns.entry(port).or_default().to_write += n;
                self.pump(net, conn, port);
            }
            Command::Reserve(n) => {
                if let Some(place) = net.reserve(conn, n) {
                    place.fill(0xee);
                }
            }
            Command::Fill(n) => {
                let mut log = self.log.borrow_mut();
                let state = log.conns.entry(port).or_default();
                if let Some(place) = net.reserve(conn, n + 7) {
                    place.fill(0xee);
                    place.iter_mut().zip(state.written..).take(n).for_each(|(byte, at)| *byte = stream_byte(at));
                    net.commit(conn, n);
                    state.written += n as u64;
                }
            }
            Command::Send(n) => {
                let mut log = self.log.borrow_mut();
                let state = log.conns.entry(port).or_default();
                let bytes: Vec<u8> = (state.written..state.written + n as u64).map(stream_byte).collect();
                if net.send(conn, Bytes::from(bytes)).is_ok() {
                    state.written += n as u64;
                } else {
                    log.wrong = Some(format!("a slice of {n} bytes did not fit"));
                }
            }
            Command::Offer(n) => {
                let taken = net.send(conn, Bytes::from(vec![0; n])).is_ok();
                let mut log = self.log.borrow_mut();
                log.conns.entry(port).or_default().wants_room = true;
                if taken {
                    log.wrong = Some(format!("there is room for {n} bytes"));
                }
            }
            Command::Read(n) => self.read(net, conn, port, n),
            Command::Reading(reading) => {
                let habit = if reading { Habit::Consume } else { Habit::Leave };
                self.log.borrow_mut().conns.entry(port).or_default().habit = habit;
                self.act(net, conn, port, habit);
            }
            Command::Echo => {
                self.log.borrow_mut().conns.entry(port).or_default().habit = Habit::Echo;
                self.act(net, conn, port, Habit::Echo);
            }
            Command::Repeat => {
                self.log.borrow_mut().conns.entry(port).or_default().habit = Habit::Repeat;
                self.act(net, conn, port, Habit::Repeat);
            }
            Command::RepeatAtOnce => {
                self.log.borrow_mut().conns.entry(port).or_default().habit = Habit::RepeatAtOnce;
                self.act(net, conn, port, Habit::RepeatAtOnce);
            }
            Command::Forward => self.forward(net, conn, port),
            Command::AnswerAtOnce(request, len) => {
                self.peek(net, conn, port);
                self.answer_at_once(net, conn, port, request, len);
            }
            Command::Peek => self.peek(net, conn, port),
            Command::Room => _ = net.send_space(conn),
            Command::Take(n) => self.take(net, conn, port, n),
            Command::Timer(after) => net.set_timer(conn, after),
            Command::Next(commands) => self.log.borrow_mut().conns.entry(port).or_default().next = commands,
            Command::Answer(n) => self.log.borrow_mut().conns.entry(port).or_default().answer = n,
            Command::Close => {
                self.log.borrow_mut().conns.entry(port).or_default().closing = true;
                self.pump(net, conn, port);
            }
            Command::Abort => net.abort(conn),
        }
    }

    fn pump(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        let mut log = self.log.borrow_mut();
        let state = log.conns.entry(port).or_default();
        while state.to_write > 0 {
            let Some(place) = net.reserve(conn, state.to_write) else { return };
            let n = place.len();
            for (i, byte) in place.iter_mut().enumerate() {
                *byte = stream_byte(state.written + i as u64);
            }
            net.commit(conn, n);
            state.written += n as u64;
            state.to_write -= n;
        }
        if state.closing {
            state.closing = false;
            net.close(conn);
        }
    }
}

impl Service for App {
    /// The peer's port.
    type Conn = u16;
    type Message = Command;

    fn start(&mut self, net: &mut impl Transport) {
        for to in &self.connect {
            net.connect(*to, to.port().into());
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> u16 {
        let port = net.peer_addr(conn).map_or(0, |addr| addr.port());
        // A connection of the same port before this one has left events to be expected, and nothing else.
        let old = self.log.borrow_mut().conns.remove(&port).unwrap_or_default();
        let new = Conn { id: Some(conn), events: old.events, habit: Habit::Consume, ..Conn::default() };
        self.log.borrow_mut().conns.insert(port, new);
        self.event(port, net.now(), AppEvent::Opened(origin));
        port
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.event(token as u16, net.now(), AppEvent::Failed(error));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, port: &mut u16) {
        let (habit, answer, next) = {
            let mut log = self.log.borrow_mut();
            let state = log.conns.entry(*port).or_default();
            let answer = std::mem::take(&mut state.answer);
            state.to_write += answer;
            state.delivered = state.consumed + net.received(conn) as Rel;
            (state.habit, answer, std::mem::take(&mut state.next))
        };
        if next.is_empty() {
            self.act(net, conn, *port, habit);
        }
        next.into_iter().for_each(|command| self.obey(net, conn, *port, command));
        if answer > 0 {
            self.pump(net, conn, *port);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, port: &mut u16) {
        self.pump(net, conn, *port);
        let wants_room = self.log.borrow_mut().conns.get_mut(port).map(|state| std::mem::take(&mut state.wants_room));
        if wants_room == Some(true) {
            self.event(*port, net.now(), AppEvent::Writable);
        }
        if self.log.borrow().conns.get(port).is_some_and(|state| state.habit == Habit::Echo) {
            self.forward(net, conn, *port);
        }
    }

    fn timer(&mut self, net: &mut impl Transport, _: ConnId, port: &mut u16) {
        self.event(*port, net.now(), AppEvent::Timer);
        self.check_kept();
    }

    fn peer_closed(&mut self, net: &mut impl Transport, _: ConnId, port: &mut u16) {
        self.event(*port, net.now(), AppEvent::PeerClosed);
    }

    fn on_conn_message(&mut self, net: &mut impl Transport, conn: ConnId, port: &mut u16, command: Command) {
        self.obey(net, conn, *port, command);
    }

    fn closed(&mut self, net: &mut impl Transport, _: ConnId, port: u16, why: CloseReason) {
        self.event(port, net.now(), AppEvent::Closed(why));
        if let Some(state) = self.log.borrow_mut().conns.get_mut(&port) {
            state.id = None;
        }
    }
}
