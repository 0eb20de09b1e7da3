//! The sockets of a running worker: what the service acts on, and where the events come from.
//!
//! Nothing here calls the service. What happens is noted (`opened`, `failed`, `ready`) and the worker delivers it,
//! so that an event in which the service ends another connection never runs inside one of that other.

use crate::connection::{Connection, Pending, Received, Receiving, Sending, Stage};
use crate::poller::{Events, Poller, Readiness, Ticker, Token};
use crate::queue::VECTOR;
use crate::slots::Slots;
use crate::timers::Timers;
use crate::udp::Udp;
use crate::{Config, errno};
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_bypass::{Block, BlockPool, Bytes, CloseReason, ConnId, ConnectError, Origin, Summary};
use rustix::net::SocketFlags;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// The size of the blocks that are read into and written from: what a second-level cache holds several of.
const BLOCK: usize = 64 << 10;
/// Blocks that are kept when nobody uses them.
const IDLE_BLOCKS: usize = 64;
/// The least of a block that is worth reading into.
const LEAST_READ: usize = 16 << 10;
/// The least that [`Net::place`] gives of what was asked for.
const LEAST_PLACE: usize = 4 << 10;
/// Bytes that one connection is read in one turn, so that the others have theirs.
const READ_BUDGET: usize = 128 << 10;
/// Connections that are accepted from one listener in one turn.
const ACCEPT_BUDGET: usize = 64;
/// How long to wait when the system has no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait when all blocks are in use.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);
/// How often all queues are gathered when all blocks are in use.
const RELIEF_PAUSE: Duration = Duration::from_millis(50);

struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    /// There may be more to accept.
    ready: bool,
}

/// The place that the service is writing to, at the beginning of the block that is written from.
#[derive(Clone, Copy)]
struct Placing {
    conn: ConnId,
    committed: usize,
    reserved: usize,
}

pub(crate) struct Net {
    clock: Clock,
    pub now: Instant,
    pub worker: usize,
    config: Config,
    poller: Poller,
    events: Events,
    ticker: Option<Ticker>,
    listeners: Vec<Listener>,
    accept_again: Option<Instant>,
    pub udp: Udp,
    pub slots: Slots,
    pub timers: Timers,
    pub summary: Summary,
    /// Connections that are established and unknown to the service.
    pub opened: VecDeque<(ConnId, Origin)>,
    /// Connections that could not be made.
    pub failed: VecDeque<(u64, ConnectError)>,
    /// Connections with events to deliver.
    pub ready: VecDeque<ConnId>,
    /// Connections of which the kernel may have more to read.
    unread: VecDeque<ConnId>,
    /// Connections that have something to write.
    dirty: Vec<ConnId>,
    /// Connections that wait for a block.
    thirsty: Vec<ConnId>,
    relieved: Option<Instant>,
    pool: BlockPool,
    rx_block: Option<Block>,
    tx_block: Option<Block>,
    placing: Option<Placing>,
}

impl Net {
    pub(crate) fn new(
        worker: usize,
        config: Config,
        poller: Poller,
        listeners: Vec<(TcpListener, SocketAddr)>,
        udp: Udp,
    ) -> Self {
        let listener = |(socket, address)| Listener { socket, address, ready: true };
        // At least one block to read into and one to write from.
        let blocks = (config.memory / BLOCK).max(2);
        Net {
            clock: Clock::start(),
            now: Instant::ZERO,
            worker,
            poller,
            events: Events::with_room(),
            ticker: None,
            listeners: listeners.into_iter().map(listener).collect(),
            accept_again: None,
            udp,
            slots: Slots::new(worker, config.max_connections),
            timers: Timers::default(),
            summary: Summary::default(),
            opened: VecDeque::new(),
            failed: VecDeque::new(),
            ready: VecDeque::new(),
            unread: VecDeque::new(),
            dirty: Vec::new(),
            thirsty: Vec::new(),
            relieved: None,
            pool: BlockPool::new(BLOCK, IDLE_BLOCKS.min(blocks), blocks),
            rx_block: None,
            tx_block: None,
            placing: None,
            config,
        }
    }

    pub(crate) fn listen_addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|listener| listener.address).collect()
    }

    /// How long the worker may sleep, `longest` at most: not at all while something is left to do, and with `None`
    /// until something happens.
    pub(crate) fn idle_time(&self, longest: Option<Duration>) -> Option<Duration> {
        let busy = !(self.ready.is_empty() && self.unread.is_empty() && self.failed.is_empty())
            || self.udp.is_ready()
            || self.accept_again.is_none() && self.listeners.iter().any(|listener| listener.ready);
        if busy {
            return Some(Duration::ZERO);
        }
        let timer = [self.timers.next(), self.accept_again].into_iter().flatten().min();
        let timer = timer.map(|at| at.since(self.clock.now()));
        let memory = (!self.thirsty.is_empty()).then_some(MEMORY_PAUSE);
        [longest, timer, memory].into_iter().flatten().min()
    }

    /// Wakes the worker regularly, for as long as it runs.
    pub(crate) fn tick(&mut self, interval: Duration) -> io::Result<()> {
        self.ticker = Some(self.poller.tick(interval)?);
        Ok(())
    }

    /// Waits up to `timeout`, forever if there is none, then takes in all that has happened.
    pub(crate) fn gather_events(&mut self, timeout: Option<Duration>) {
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.poller.wait(&mut events, timeout) {
            tracing::error!("cannot wait for events: {error}");
        }
        self.now = self.clock.now();
        for block in [&mut self.rx_block, &mut self.tx_block].into_iter().flatten() {
            block.reset();
        }
        self.udp.reset();
        if !self.thirsty.is_empty() {
            self.quench();
        }
        for _ in 0..self.unread.len() {
            if let Some(id) = self.unread.pop_front() {
                self.read(id);
            }
        }
        for event in events.iter() {
            match event {
                (Token::Connection(slot), readiness) => self.stream_event(slot, readiness),
                (Token::Listener(index), _) => self.listeners[index].ready = true,
                (Token::Udp(index), _) => self.udp.set_ready(index),
                (Token::Wake, _) => {}
                (Token::Tick, _) => self.ticker.iter().for_each(Ticker::ticked),
            }
        }
        self.events = events;
        self.accept();
        while let Some(id) = self.timers.pop(self.now) {
            self.timer_event(id);
        }
    }

    fn stream_event(&mut self, slot: usize, readiness: Readiness) {
        let Some(id) = self.slots.name(slot) else { return };
        let Some(conn) = self.slots.get_mut(id) else { return };
        let Some(stream) = &conn.stream else { return };
        conn.more_than_bytes |= readiness.more_than_bytes();
        if let Stage::Connecting(token) = conn.stage {
            match stream.take_error() {
                Ok(None) if stream.peer_addr().is_ok() => {
                    conn.stage = Stage::Open;
                    self.timers.set(id, &mut conn.timer, None);
                    self.opened.push_back((id, Origin::Connected(token)));
                    self.summary.connected += 1;
                }
                Ok(None) => return,
                Ok(Some(error)) | Err(error) => return self.fail(id, errno::connect_error(&error)),
            }
        }
        if readiness.readable() {
            self.read(id);
        }
        let Some(conn) = self.slots.get_mut(id) else { return };
        let Some(stream) = &conn.stream else { return };
        if readiness.error()
            && let Ok(Some(error)) = stream.take_error()
        {
            return self.end(id, errno::close_reason(&error));
        }
        if readiness.writable() && conn.blocked {
            conn.blocked = false;
            self.set_dirty(id);
        }
    }

    fn timer_event(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        if !self.timers.fired(id, &mut conn.timer, self.now) {
            return;
        }
        if let Stage::Connecting(_) = conn.stage {
            self.fail(id, ConnectError::TimedOut);
        } else {
            conn.pending.timer = true;
            self.list(id);
        }
    }

    fn accept(&mut self) {
        if self.accept_again.is_some_and(|at| self.now < at) {
            return;
        }
        self.accept_again = None;
        for listener in self.listeners.iter_mut().filter(|listener| listener.ready) {
            for _ in 0..ACCEPT_BUDGET {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let (stream, remote) = match rustix::net::acceptfrom_with(&listener.socket, flags) {
                    Ok((fd, Some(remote))) => match SocketAddr::try_from(remote) {
                        Ok(remote) => (TcpStream::from(fd), remote),
                        Err(_) => continue,
                    },
                    Ok((_, None)) => continue,
                    Err(rustix::io::Errno::AGAIN) => {
                        listener.ready = false;
                        break;
                    }
                    Err(error) if errno::is_shortage(error) => {
                        self.summary.drop_for("accept: no descriptor or memory", 1);
                        self.accept_again = Some(self.now + ACCEPT_PAUSE);
                        return;
                    }
                    // The connection was gone before we came to it.
                    Err(_) => continue,
                };
                if self.slots.is_full() {
                    reset(&stream);
                    self.summary.drop_for("accept: too many connections", 1);
                    continue;
                }
                let Some(id) = self.slots.insert(Connection::new(stream, remote, Stage::Open)) else { continue };
                let stream = self.slots.get(id).and_then(|conn| conn.stream.as_ref());
                if stream.is_some_and(|stream| self.poller.add_stream(stream, Token::Connection(id.slot())).is_err()) {
                    self.slots.remove(id);
                    self.summary.drop_for("accept: no descriptor or memory", 1);
                    continue;
                }
                self.opened.push_back((id, Origin::Accepted));
                self.summary.accepted += 1;
            }
        }
    }

    /// Begins to connect to `remote`.
    pub(crate) fn begin_connect(&mut self, remote: SocketAddr, token: u64) {
        if self.slots.is_full() {
            return self.failed.push_back((token, ConnectError::TooMany));
        }
        let stream = match open(remote, &self.config) {
            Ok(stream) => stream,
            Err(error) => return self.failed.push_back((token, errno::connect_error(&error))),
        };
        let Some(id) = self.slots.insert(Connection::new(stream, remote, Stage::Connecting(token))) else { return };
        let Some(conn) = self.slots.get_mut(id) else { return };
        let deadline = self.now + self.config.connect_timeout;
        self.timers.set(id, &mut conn.timer, Some(deadline));
        let added = conn.stream.as_ref().map(|stream| self.poller.add_stream(stream, Token::Connection(id.slot())));
        if let Some(Err(error)) = added {
            self.fail(id, errno::connect_error(&error));
        }
    }

    fn fail(&mut self, id: ConnId, error: ConnectError) {
        if let Some(Connection { stage: Stage::Connecting(token), .. }) = self.remove(id) {
            self.failed.push_back((token, error));
        }
    }

    /// Takes a connection out of everything.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Connection> {
        let mut conn = self.slots.remove(id)?;
        self.timers.forget(id, &mut conn.timer);
        Some(conn)
    }

    /// Puts a connection into the list of those with events.
    pub(crate) fn list(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.listed
        {
            conn.listed = true;
            self.ready.push_back(id);
        }
    }

    fn set_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }

    fn set_unread(&mut self, id: ConnId) {
        if let Some(conn) = self.slots.get_mut(id)
            && !conn.unread
        {
            conn.unread = true;
            self.unread.push_back(id);
        }
    }

    fn read(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        conn.unread = false;
        if conn.stage != Stage::Open || conn.paused {
            return;
        }
        let mut budget = READ_BUDGET;
        let mut broken = None;
        while conn.receiving == Receiving::Open {
            let room = self.config.rx_buffer - conn.rx.len();
            if room == 0 {
                conn.paused = true;
                break;
            }
            if budget == 0 {
                conn.unread = true;
                self.unread.push_back(id);
                break;
            }
            let Some(block) = with_room(&mut self.rx_block, &self.pool, LEAST_READ) else {
                self.thirsty.push(id);
                break;
            };
            let want = block.len().min(room).min(budget);
            let received = conn.read(block, want);
            if let Received::Last(n @ 1..) | Received::Some(n @ 1..) = received {
                self.summary.rx_frames += 1;
                self.summary.rx_bytes += n as u64;
                budget -= n;
            }
            match received {
                Received::Some(_) => {}
                Received::Last(_) | Received::Nothing | Received::End => break,
                Received::Broken(error) => {
                    broken = Some(errno::close_reason(&error));
                    break;
                }
            }
        }
        if conn.rx.is_scattered() {
            self.summary.copied_bytes += conn.rx.gather() as u64;
        }
        if conn.pending.readable || conn.peer_closed_is_due() {
            self.list(id);
        }
        if let Some(reason) = broken {
            self.end(id, reason);
        }
    }

    /// What consuming some of a connection's bytes leads to.
    pub(crate) fn consumed(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        if conn.peer_closed_is_due() {
            self.list(id);
        } else if conn.paused && conn.rx.len() <= self.config.rx_buffer / 2 {
            conn.paused = false;
            self.set_unread(id);
        }
    }

    /// Bytes that can be queued on a connection now; if there are fewer than `needed`, the service is to be told
    /// when there are more.
    pub(crate) fn room_for(&mut self, id: ConnId, needed: usize) -> usize {
        let placed = self.placing.filter(|placing| placing.conn == id).map_or(0, |placing| placing.committed);
        let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.may_send()) else { return 0 };
        let room = self.config.tx_buffer.saturating_sub(conn.tx.len() + placed);
        conn.wants_room |= room < needed;
        room
    }

    /// Queues a slice on a connection that has room for it.
    pub(crate) fn queue(&mut self, id: ConnId, bytes: Bytes) {
        self.seal();
        let Some(conn) = self.slots.get_mut(id) else { return };
        conn.tx.push(bytes);
        if !conn.blocked {
            if conn.tx.slices() >= VECTOR {
                return self.flush(id);
            }
        } else if conn.tx.is_scattered() {
            self.summary.copied_bytes += conn.tx.gather() as u64;
        }
        self.set_dirty(id);
    }

    /// A place of up to `max` bytes to write what is to be sent on a connection.
    pub(crate) fn place(&mut self, id: ConnId, max: usize) -> Option<&mut [u8]> {
        let wanted = self.room_for(id, max.min(1)).min(max);
        if wanted == 0 {
            return None;
        }
        let least = wanted.min(LEAST_PLACE);
        let committed = match self.placing {
            Some(placing) if placing.conn == id => placing.committed,
            _ => 0,
        };
        let fits = |block: &Block| block.len() - committed >= least;
        let committed = if committed > 0 && self.tx_block.as_ref().is_some_and(fits) {
            committed
        } else {
            self.seal();
            0
        };
        if committed == 0 && with_room(&mut self.tx_block, &self.pool, least).is_none() {
            if let Some(conn) = self.slots.get_mut(id) {
                conn.wants_room = true;
                self.thirsty.push(id);
            }
            return None;
        }
        let place = &mut self.tx_block.as_mut()?[committed..];
        let reserved = place.len().min(wanted);
        self.placing = Some(Placing { conn: id, committed, reserved });
        Some(&mut place[..reserved])
    }

    /// Sends `n` bytes of the last place.
    pub(crate) fn commit_place(&mut self, id: ConnId, n: usize) {
        if !self.slots.get(id).is_some_and(Connection::may_send) {
            return;
        }
        let reserved = match &mut self.placing {
            Some(placing) if placing.conn == id => {
                let reserved = std::mem::take(&mut placing.reserved);
                placing.committed += n.min(reserved);
                reserved
            }
            _ => 0,
        };
        assert!(n <= reserved, "cannot send {n} bytes of {reserved} reserved");
        self.set_dirty(id);
    }

    /// Makes what was committed a slice in its connection's queue.
    fn seal(&mut self) {
        if let Some(placing) = self.placing.take()
            && placing.committed > 0
            && let Some(block) = &mut self.tx_block
        {
            let bytes = block.split_to(placing.committed);
            if let Some(conn) = self.slots.get_mut(placing.conn).filter(|conn| conn.stage == Stage::Open) {
                conn.tx.push(bytes);
            }
        }
    }

    /// Writes what is queued on all connections.
    pub(crate) fn flush_all(&mut self) {
        while let Some(id) = self.dirty.pop() {
            self.flush(id);
        }
    }

    fn flush(&mut self, id: ConnId) {
        self.seal();
        let Some(conn) = self.slots.get_mut(id) else { return };
        conn.dirty = false;
        if conn.stage != Stage::Open {
            return;
        }
        let mut progress = false;
        while !conn.blocked && !conn.tx.is_empty() {
            match conn.write() {
                Ok(0) => {}
                Ok(n) => {
                    self.summary.tx_frames += 1;
                    self.summary.tx_bytes += n as u64;
                    progress = true;
                }
                Err(error) => return self.end(id, errno::close_reason(&error)),
            }
        }
        if let Err(error) = conn.finish_sending() {
            return self.end(id, errno::close_reason(&error));
        }
        if conn.is_finished() {
            return self.end(id, CloseReason::Finished);
        }
        if conn.blocked && conn.tx.is_scattered() {
            self.summary.copied_bytes += conn.tx.gather() as u64;
        }
        if progress && conn.wants_room && conn.tx.len() <= self.config.tx_buffer / 2 {
            conn.wants_room = false;
            conn.pending.writable = true;
            self.list(id);
        }
    }

    /// Finishes sending once the queue is sent.
    pub(crate) fn begin_close(&mut self, id: ConnId) {
        self.seal();
        if let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.may_send()) {
            conn.sending = Sending::Closing;
            conn.wants_room = false;
            conn.pending.writable = false;
            self.set_dirty(id);
        }
    }

    /// Resets a connection, and forgets what was queued either way.
    pub(crate) fn abort_now(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        if let Some(stream) = &conn.stream {
            reset(stream);
        }
        conn.rx.clear();
        conn.pending = Pending::default();
        self.end(id, CloseReason::Aborted);
    }

    /// Closes the socket of a connection, whose last event follows after those that came before.
    pub(crate) fn end(&mut self, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open) else { return };
        conn.stage = Stage::Ended(reason);
        conn.stream = None;
        conn.tx.clear();
        conn.wants_room = false;
        conn.pending.writable = false;
        conn.pending.timer = false;
        self.timers.forget(id, &mut conn.timer);
        conn.timer = Default::default();
        self.list(id);
    }

    /// Lets those that wait for a block try again, if there may be one.
    fn quench(&mut self) {
        let dry = self.pool.take().is_none();
        if dry && self.relieved.is_none_or(|at| self.now.since(at) >= RELIEF_PAUSE) {
            // Small remains of many blocks keep all of them: give those memory of their own.
            self.relieved = Some(self.now);
            for conn in self.slots.iter_mut() {
                for queue in [&mut conn.rx, &mut conn.tx] {
                    if queue.len() < queue.slices() * BLOCK / 4 {
                        self.summary.copied_bytes += queue.gather() as u64;
                    }
                }
            }
        }
        for id in std::mem::take(&mut self.thirsty) {
            let Some(conn) = self.slots.get_mut(id) else { continue };
            if conn.wants_room && conn.tx.len() <= self.config.tx_buffer / 2 {
                conn.wants_room = false;
                conn.pending.writable = true;
                self.list(id);
            }
            self.set_unread(id);
        }
    }
}

/// The current block, if it has room for `least` bytes, or else a new one; whatever is left of the current one if
/// there is none.
fn with_room<'a>(current: &'a mut Option<Block>, pool: &BlockPool, least: usize) -> Option<&'a mut Block> {
    if current.as_ref().is_none_or(|block| block.len() < least)
        && let Some(block) = pool.take()
    {
        *current = Some(block);
    }
    current.as_mut().filter(|block| !block.is_empty())
}

/// Makes the closing of `stream` a reset.
fn reset(stream: &TcpStream) {
    // If it fails, the peer sees the end of the stream instead.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn open(remote: SocketAddr, config: &Config) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(config.user_timeout))?;
    match socket.connect(&SockAddr::from(remote)) {
        Ok(()) => {}
        Err(error) if rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}
