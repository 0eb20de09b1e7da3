//! Service under test: executes the commands of a script and records its events.

use super::segment::Rel;
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

/// Returns byte `at` (counted from 0) of every stream.
pub fn stream_byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// Returns `len` bytes of a stream from sequence number `seq`. The first byte of a stream has number 1.
pub fn stream(seq: Rel, len: Rel) -> Vec<u8> {
    (seq - 1..seq - 1 + len).map(|at| stream_byte(at as u64)).collect()
}

/// Action that a script requests of the service of a connection.
#[derive(Debug, Clone)]
pub enum Command {
    /// Write this many bytes of the stream, waiting for buffer space.
    Write(usize),
    /// Reserve space for this many bytes and do not commit it.
    Reserve(usize),
    /// Reserve space for more and commit this many bytes of the stream.
    Fill(usize),
    /// Send this many bytes of the stream as one owned slice.
    Send(usize),
    /// Send this many owned bytes, which exceed the buffer space: the call fails and `writable` follows.
    Oversend(usize),
    /// Consume this many received bytes.
    Read(usize),
    /// Consume received data now and in future, or leave it unread.
    Reading(bool),
    /// Write this many bytes at the next `readable`.
    WriteOnReadable(usize),
    /// Forward received data to the peer, now and in future.
    Echo,
    /// Consume received data and write as many bytes, now and in future.
    CopyBack,
    /// [`CopyBack`](Self::CopyBack) through [`Transport::respond`], one slice at a time.
    AnswerEach,
    /// Take received slices and write their bytes, now and in future.
    TakeBack,
    /// Forward the received data to the peer once.
    Forward,
    /// Consume this many bytes and write that many in one [`Transport::respond`].
    Answer(usize, usize),
    /// Check the received data and leave it unread.
    Peek,
    /// Query the send buffer space.
    Room,
    /// Take at most this many bytes of the first received slice and keep them.
    Take(usize),
    Timer(Option<Duration>),
    /// Run these commands at the next `readable` in place of the default action.
    OnReadable(Vec<Command>),
    Close,
    Abort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppEvent {
    Opened(Origin),
    Failed(ConnectError),
    PeerClosed,
    Timer,
    /// Buffer space is available after [`Command::Oversend`].
    Writable,
    Closed(CloseReason),
}

/// Default action on received data.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    #[default]
    Leave,
    Consume,
    Echo,
    CopyBack,
    AnswerEach,
    TakeBack,
}

/// State of one connection, by the peer's port.
#[derive(Debug, Default)]
pub struct Conn {
    pub id: Option<ConnId>,
    /// Bytes delivered, consumed or not.
    pub delivered: Rel,
    pub consumed: Rel,
    /// Events that the script has not expected yet.
    pub events: VecDeque<(Instant, AppEvent)>,
    read_mode: ReadMode,
    /// Commands to run at the next `readable` in place of the default action.
    on_readable: Vec<Command>,
    /// Bytes of the stream written or forwarded.
    written: u64,
    /// Bytes to write when buffer space is available.
    to_write: usize,
    write_on_readable: usize,
    taken: Vec<Bytes>,
    wants_writable: bool,
    closing: bool,
}

/// State that the service shares with the script.
#[derive(Debug, Default)]
pub struct Log {
    pub conns: BTreeMap<u16, Conn>,
    /// Events since the last comparison of the arms, by the peer's port.
    pub uncompared: Vec<(u16, Instant, AppEvent)>,
    /// Description of delivered data that differs from the stream.
    pub mismatch: Option<String>,
}

impl Log {
    /// Returns the events since the last comparison, in order for each connection.
    pub fn uncompared_by_port(&self) -> Vec<(u16, Instant, AppEvent)> {
        let mut events = self.uncompared.clone();
        events.sort_by_key(|(port, ..)| *port);
        events
    }
}

impl Conn {
    /// Returns the bytes delivered, consumed, written, and waiting to be written.
    pub fn progress(&self) -> (Rel, Rel, u64, usize) {
        (self.delivered, self.consumed, self.written, self.to_write)
    }
}

/// Service under test.
pub struct App {
    pub log: Rc<RefCell<Log>>,
    /// Addresses to connect to at start.
    pub connect: Vec<SocketAddr>,
}

impl App {
    fn event(&self, port: u16, at: Instant, event: AppEvent) {
        let mut log = self.log.borrow_mut();
        log.conns.entry(port).or_default().events.push_back((at, event));
        log.uncompared.push((port, at, event));
    }

    fn read(&self, net: &mut impl Transport, conn: ConnId, port: u16, most: usize) {
        let mut log = self.log.borrow_mut();
        let Log { conns, mismatch, .. } = &mut *log;
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
                if *byte != stream_byte(at) && mismatch.is_none() {
                    *mismatch = Some(format!("byte {at} delivered from port {port} differs from the stream"));
                }
            }
            net.consume(conn, n);
            state.consumed += n as Rel;
            left -= n;
        }
    }

    /// Forwards the received data. If the service has written as many bytes as it consumed, the result continues its
    /// stream.
    fn forward(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        self.peek(net, conn, port);
        let n = net.forward(conn, conn);
        let mut log = self.log.borrow_mut();
        let state = log.conns.entry(port).or_default();
        state.consumed += n as Rel;
        state.written += n as u64;
        state.delivered = state.consumed + net.received(conn) as Rel;
    }

    /// As [`forward`](Self::forward), by slices that the service takes and copies.
    fn take_back(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        self.peek(net, conn, port);
        let mut n = 0;
        while net.received(conn) > 0 {
            let space = net.send_space(conn);
            let Some(bytes) = net.take(conn, space) else { break };
            n += bytes.len();
            assert_eq!(net.write(conn, &bytes), bytes.len(), "the space was available");
        }
        let mut log = self.log.borrow_mut();
        let state = log.conns.entry(port).or_default();
        state.consumed += n as Rel;
        state.written += n as u64;
        state.delivered = state.consumed + net.received(conn) as Rel;
    }

    /// Checks the received data against the stream.
    fn peek(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        let mut log = self.log.borrow_mut();
        let Log { conns, mismatch, .. } = &mut *log;
        let consumed = conns.entry(port).or_default().consumed;
        let (received, first) = (net.received(conn), net.peek(conn).len());
        let (slice, all) = net.front(conn);
        assert_eq!((slice.len(), all), (first, received), "as `peek` and `received` separately");
        let is_stream = slice.iter().enumerate().all(|(i, byte)| *byte == stream_byte(consumed as u64 + i as u64));
        if !is_stream || slice.len() > received || slice.is_empty() != (received == 0) {
            *mismatch = Some(format!("{} of {received} received bytes at offset {consumed} differ", slice.len()));
        }
    }

    /// Takes and keeps bytes of the first slice.
    fn take(&self, net: &mut impl Transport, conn: ConnId, port: u16, most: usize) {
        self.peek(net, conn, port);
        let Some(bytes) = net.take(conn, most) else { return };
        let mut log = self.log.borrow_mut();
        let state = log.conns.entry(port).or_default();
        state.delivered = state.delivered.max(state.consumed + (bytes.len() + net.received(conn)) as Rel);
        state.consumed += bytes.len() as Rel;
        state.taken.push(bytes);
    }

    /// Checks that the taken bytes are unchanged.
    fn check_taken(&self) {
        let mut log = self.log.borrow_mut();
        let Log { conns, mismatch, .. } = &mut *log;
        for bytes in conns.values().flat_map(|state| &state.taken) {
            // A taken slice is long enough to occur at one offset only.
            let is_stream =
                (0..10_000).any(|at| bytes.iter().enumerate().all(|(i, byte)| *byte == stream_byte(at + i as u64)));
            if !is_stream {
                *mismatch = Some("bytes taken by the service have changed".into());
            }
        }
    }

    fn on_data(&self, net: &mut impl Transport, conn: ConnId, port: u16, mode: ReadMode) {
        match mode {
            ReadMode::Leave => self.read(net, conn, port, 0),
            ReadMode::Consume => self.read(net, conn, port, usize::MAX),
            ReadMode::Echo => self.forward(net, conn, port),
            ReadMode::CopyBack => self.copy_back(net, conn, port),
            ReadMode::AnswerEach => self.answer_each(net, conn, port),
            ReadMode::TakeBack => self.take_back(net, conn, port),
        }
    }

    fn set_read_mode(&self, net: &mut impl Transport, conn: ConnId, port: u16, mode: ReadMode) {
        self.log.borrow_mut().conns.entry(port).or_default().read_mode = mode;
        self.on_data(net, conn, port, mode);
    }

    fn copy_back(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        let n = net.received(conn);
        self.read(net, conn, port, n);
        self.log.borrow_mut().conns.entry(port).or_default().to_write += n;
        self.pump(net, conn, port);
    }

    fn answer_each(&self, net: &mut impl Transport, conn: ConnId, port: u16) {
        loop {
            self.peek(net, conn, port);
            match net.peek(conn).len() {
                0 => break,
                n => self.answer(net, conn, port, n, n),
            }
        }
    }

    /// Consumes `request` bytes and writes `len` bytes, after the bytes that wait for buffer space.
    fn answer(&self, net: &mut impl Transport, conn: ConnId, port: u16, request: usize, len: usize) {
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
        let is_written = net.respond(conn, request, len, |space| {
            assert_eq!(space.len(), len, "the reserved space is as long as the answer");
            space.iter_mut().zip(written..).for_each(|(byte, at)| *byte = stream_byte(at));
        });
        if is_written {
            state.written += len as u64;
        } else {
            state.to_write += len;
            drop(log);
            self.pump(net, conn, port);
        }
    }

    fn execute(&self, net: &mut impl Transport, conn: ConnId, port: u16, command: Command) {
        match command {
            Command::Write(n) => {
                self.log.borrow_mut().conns.entry(port).or_default().to_write += n;
                self.pump(net, conn, port);
            }
            Command::Reserve(n) => {
                if let Ok(space) = net.reserve(conn, n) {
                    space.fill(0xee);
                }
            }
            Command::Fill(n) => {
                let mut log = self.log.borrow_mut();
                let state = log.conns.entry(port).or_default();
                if let Ok(space) = net.reserve(conn, n + 7) {
                    space.fill(0xee);
                    space.iter_mut().zip(state.written..).take(n).for_each(|(byte, at)| *byte = stream_byte(at));
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
                    log.mismatch = Some(format!("no buffer space for a slice of {n} bytes"));
                }
            }
            Command::Oversend(n) => {
                let accepted = net.send(conn, Bytes::from(vec![0; n])).is_ok();
                let mut log = self.log.borrow_mut();
                log.conns.entry(port).or_default().wants_writable = true;
                if accepted {
                    log.mismatch = Some(format!("a slice of {n} bytes was accepted"));
                }
            }
            Command::Read(n) => self.read(net, conn, port, n),
            Command::Reading(reading) => {
                self.set_read_mode(net, conn, port, if reading { ReadMode::Consume } else { ReadMode::Leave });
            }
            Command::Echo => self.set_read_mode(net, conn, port, ReadMode::Echo),
            Command::CopyBack => self.set_read_mode(net, conn, port, ReadMode::CopyBack),
            Command::AnswerEach => self.set_read_mode(net, conn, port, ReadMode::AnswerEach),
            Command::TakeBack => self.set_read_mode(net, conn, port, ReadMode::TakeBack),
            Command::Forward => self.forward(net, conn, port),
            Command::Answer(request, len) => {
                self.peek(net, conn, port);
                self.answer(net, conn, port, request, len);
            }
            Command::Peek => self.peek(net, conn, port),
            Command::Room => _ = net.send_space(conn),
            Command::Take(n) => self.take(net, conn, port, n),
            Command::Timer(after) => net.set_timer(conn, after),
            Command::OnReadable(commands) => {
                self.log.borrow_mut().conns.entry(port).or_default().on_readable = commands
            }
            Command::WriteOnReadable(n) => self.log.borrow_mut().conns.entry(port).or_default().write_on_readable = n,
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
            let Ok(space) = net.reserve(conn, state.to_write) else { return };
            let n = space.len();
            for (i, byte) in space.iter_mut().enumerate() {
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
        // An earlier connection of the same port leaves only events.
        let old = self.log.borrow_mut().conns.remove(&port).unwrap_or_default();
        let new = Conn { id: Some(conn), events: old.events, read_mode: ReadMode::Consume, ..Conn::default() };
        self.log.borrow_mut().conns.insert(port, new);
        self.event(port, net.now(), AppEvent::Opened(origin));
        port
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.event(token as u16, net.now(), AppEvent::Failed(error));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, port: &mut u16) {
        let (mode, answer, commands) = {
            let mut log = self.log.borrow_mut();
            let state = log.conns.entry(*port).or_default();
            let answer = std::mem::take(&mut state.write_on_readable);
            state.to_write += answer;
            state.delivered = state.consumed + net.received(conn) as Rel;
            (state.read_mode, answer, std::mem::take(&mut state.on_readable))
        };
        if commands.is_empty() {
            self.on_data(net, conn, *port, mode);
        }
        commands.into_iter().for_each(|command| self.execute(net, conn, *port, command));
        if answer > 0 {
            self.pump(net, conn, *port);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, port: &mut u16) {
        self.pump(net, conn, *port);
        let wants_writable =
            self.log.borrow_mut().conns.get_mut(port).map(|state| std::mem::take(&mut state.wants_writable));
        if wants_writable == Some(true) {
            self.event(*port, net.now(), AppEvent::Writable);
        }
        let mode = self.log.borrow().conns.get(port).map(|state| state.read_mode);
        match mode {
            Some(ReadMode::Echo) => self.forward(net, conn, *port),
            Some(ReadMode::TakeBack) => self.take_back(net, conn, *port),
            _ => {}
        }
    }

    fn timer(&mut self, net: &mut impl Transport, _: ConnId, port: &mut u16) {
        self.event(*port, net.now(), AppEvent::Timer);
        self.check_taken();
    }

    fn peer_closed(&mut self, net: &mut impl Transport, _: ConnId, port: &mut u16) {
        self.event(*port, net.now(), AppEvent::PeerClosed);
    }

    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, port: &mut u16, command: Command) {
        self.execute(net, conn, *port, command);
    }

    fn closed(&mut self, net: &mut impl Transport, _: ConnId, port: u16, reason: CloseReason) {
        self.event(port, net.now(), AppEvent::Closed(reason));
        if let Some(state) = self.log.borrow_mut().conns.get_mut(&port) {
            state.id = None;
        }
    }
}
