//! Service that executes the plans of its connections and checks its events.

mod echo;

use crate::content::Stream;
use crate::dice::Dice;
use crate::ledger::{Ledger, SeenEvent};
use crate::plan::{Abort, EndPlan, Finish, Pace, Reading, Source, Writing};
use linerate_bypass::memory_nic::End;
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Origin, Service, Transport, WriteError};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

/// Received bytes allowed beyond the receive buffer: a window field is rounded up to its unit, 16 bytes for 1 MB.
const WINDOW_UNIT: usize = 64;

/// Service of one worker at `end`.
pub struct Actor {
    end: End,
    ledger: Rc<RefCell<Ledger>>,
    /// Open connections that this worker has initiated.
    initiated: usize,
    at_once: usize,
    /// Relay connection without a partner.
    alone: Option<(ConnId, usize)>,
    /// Relay connections, each with its partner and the partner's number.
    partners: Vec<(ConnId, ConnId, usize)>,
}

/// State of a connection in its service.
pub struct Conn {
    n: usize,
    plan: EndPlan,
    dice: Dice,
    source: Source,
    /// End of the read or write pause, and whether the pause has happened.
    reading: Progress,
    writing: Progress,
    /// Kept bytes: end of the holding time, and stream position.
    held: VecDeque<(Instant, Bytes, u64)>,
    /// Taken bytes without send buffer space.
    backlog: Option<Bytes>,
    abort_at: Option<Instant>,
    finish_at: Option<Instant>,
    partner_by: Option<Instant>,
}

/// Progress of one direction according to its pace.
struct Progress {
    pace: Pace,
    /// Bytes permitted before `next`.
    left: u64,
    next: Option<Instant>,
    paused: bool,
}

impl Progress {
    fn new(pace: Pace) -> Self {
        let left = match pace {
            Pace::Eager => u64::MAX,
            Pace::Portions { bytes, .. } => bytes,
            Pace::Pause { after, .. } => after,
        };
        Progress { pace, left, next: None, paused: false }
    }

    /// Returns the bytes permitted now.
    fn allowance(&mut self, now: Instant) -> u64 {
        if self.next.is_some_and(|next| next <= now) {
            self.next = None;
            self.left = match self.pace {
                Pace::Portions { bytes, .. } => bytes,
                _ => u64::MAX,
            };
        }
        if self.next.is_none() && self.left == 0 {
            let wait = match self.pace {
                Pace::Portions { every, .. } => every,
                Pace::Pause { length, .. } if !self.paused => length,
                _ => Duration::ZERO,
            };
            self.paused = true;
            self.next = Some(now + wait);
        }
        self.left
    }

    fn passed(&mut self, bytes: u64, now: Instant) {
        self.left = self.left.saturating_sub(bytes);
        self.allowance(now);
    }
}

impl Actor {
    pub fn new(end: End, ledger: Rc<RefCell<Ledger>>) -> Self {
        let at_once = ledger.borrow().scenario.at_once;
        Actor { end, ledger, initiated: 0, at_once, alone: None, partners: Vec::new() }
    }

    /// Opens connections up to the concurrency limit.
    fn connect(&mut self, net: &mut impl Transport) {
        while self.initiated < self.at_once {
            let Some(n) = self.ledger.borrow_mut().next(self.end) else { return };
            let host = 1 + self.end.other() as u8;
            let ipv6 = self.ledger.borrow().scenario.connections[n].ipv6;
            let to = if ipv6 { format!("[fd00::{host}]:7") } else { format!("10.0.0.{host}:7") };
            net.connect(to.parse::<SocketAddr>().unwrap(), n as u64);
            self.initiated += 1;
        }
    }

    fn incoming(&self, n: usize) -> Stream {
        self.ledger.borrow().incoming(n, self.end)
    }

    /// Records `n` received bytes and checks `bytes` if they are visible.
    fn received(&self, conn: &Conn, bytes: Option<&[u8]>, len: usize) {
        let incoming = self.incoming(conn.n);
        let mut ledger = self.ledger.borrow_mut();
        let sent = ledger.of(conn.n, self.end.other()).sent;
        let record = ledger.note(conn.n, self.end);
        if let Some(bytes) = bytes
            && let Some(at) = incoming.differs(record.received, bytes)
        {
            let offset = record.received + at as u64;
            let found = incoming.find(&bytes[at..]);
            panic!("connection {}: byte {offset} at {:?} is wrong; its position is {found:?}", conn.n, self.end);
        }
        record.received += len as u64;
        let received = record.received;
        assert!(received <= sent, "connection {}: {received} bytes received of {sent} sent", conn.n);
    }

    fn sent(&self, n: usize, len: usize) {
        self.ledger.borrow_mut().note(n, self.end).sent += len as u64;
    }

    /// Performs all actions that are possible now.
    fn act(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn) {
        let now = net.now();
        if self.ledger.borrow().of(conn.n, self.end).aborted || self.aborts(net, id, conn, now) {
            return;
        }
        self.check_bounds(net, id, conn);
        while conn.held.front().is_some_and(|(until, ..)| *until <= now) {
            self.release_kept(conn);
        }
        conn.finish_at = conn.finish_at.filter(|at| *at > now);
        match conn.source {
            Source::Echo(how) => self.echo(net, id, conn, how, now),
            Source::Relay => self.relay(net, id, conn, now),
            Source::Bulk(total) => {
                self.read(net, id, conn, now);
                self.write(net, id, conn, total, now);
            }
            Source::Nothing => self.read(net, id, conn, now),
        }
        self.finish(net, id, conn, now);
        if !self.aborts(net, id, conn, now) {
            self.set_timer(net, id, conn, now);
        }
    }

    /// Drops the oldest kept bytes after checking that they are unchanged.
    fn release_kept(&self, conn: &mut Conn) {
        let Some((_, bytes, at)) = conn.held.pop_front() else { return };
        let differs = self.incoming(conn.n).differs(at, &bytes);
        assert_eq!(differs, None, "connection {}: bytes from {at} have changed while kept", conn.n);
    }

    /// Checks the bounds of the queues.
    fn check_bounds(&self, net: &mut impl Transport, id: ConnId, conn: &Conn) {
        let ledger = self.ledger.borrow();
        let config = &ledger.scenario.host(self.end).config;
        let received = net.received(id);
        let bound = config.rx_buffer.unwrap_or(4 << 20).max(4 << 10) + WINDOW_UNIT;
        assert!(received <= bound, "connection {}: {received} bytes queued in a buffer of {bound}", conn.n);
        let room = net.send_space(id);
        let bound = config.tx_buffer.unwrap_or(1 << 20).max(4 << 10);
        assert!(room <= bound, "connection {}: space for {room} bytes in a buffer of {bound}", conn.n);
        assert!(net.local_addr(id).is_some() && net.peer_addr(id).is_some());
        assert_eq!(net.peek(id).is_empty(), received == 0, "connection {}: {received} bytes to be read", conn.n);
    }

    fn read(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn, now: Instant) {
        loop {
            let allowance = usize::try_from(conn.reading.allowance(now)).unwrap_or(usize::MAX);
            if allowance == 0 || net.received(id) == 0 {
                return;
            }
            let len = match conn.plan.reading {
                Reading::Consume(most) => {
                    let most = most.min(allowance);
                    let (waiting, slice) = (net.received(id), net.peek(id));
                    let mut len = slice.len().min(most);
                    if conn.dice.chance(0.5) {
                        len = conn.dice.0.usize(1..=len);
                    }
                    if conn.dice.chance(0.05) {
                        // Bytes after the first slice are not visible.
                        len = conn.dice.0.usize(1..=waiting.min(most));
                        self.received(conn, None, len);
                    } else {
                        self.received(conn, Some(&slice[..len]), len);
                    }
                    net.consume(id, len);
                    assert_eq!(net.received(id), waiting - len);
                    len
                }
                Reading::Take(most) => {
                    let bytes = net.take(id, most.min(allowance)).expect("there are bytes to take");
                    self.received(conn, Some(&bytes), bytes.len());
                    bytes.len()
                }
                Reading::Hold { slices, length } => {
                    if conn.held.len() >= slices {
                        return;
                    }
                    let at = self.ledger.borrow().of(conn.n, self.end).received;
                    let bytes = net.take(id, allowance).expect("there are bytes to take");
                    self.received(conn, Some(&bytes), bytes.len());
                    let len = bytes.len();
                    conn.held.push_back((now + length, bytes, at));
                    len
                }
            };
            conn.reading.passed(len as u64, now);
        }
    }

    fn write(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn, total: u64, now: Instant) {
        let mut idle = 0;
        // A plan may draw writes of zero bytes, so try several times.
        while idle < 4 {
            let record = self.ledger.borrow().of(conn.n, self.end).clone();
            let left = (total - record.sent).min(conn.writing.allowance(now));
            if left == 0 || record.closed {
                return;
            }
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let (most, how) = match conn.plan.writing {
                Writing::Mixed(most) => {
                    let most = conn.dice.log_uniform(1, most as u64) as usize;
                    let how = [Writing::Reserve(1), Writing::Write(1), Writing::Static(1), Writing::Heap(1)];
                    (most, conn.dice.pick(&how))
                }
                how @ (Writing::Reserve(most) | Writing::Write(most) | Writing::Static(most) | Writing::Heap(most)) => {
                    (most, how)
                }
            };
            let least = if matches!(how, Writing::Static(_) | Writing::Heap(_)) { conn.plan.chunk } else { 1 };
            let chunk = record.outgoing.chunk(record.sent, left.min(most.max(least)));
            let sent = match how {
                Writing::Reserve(_) | Writing::Mixed(_) => {
                    let Ok(space) = net.reserve(id, chunk.len()) else { return };
                    let mut len = space.len();
                    assert!((1..=chunk.len()).contains(&len));
                    space.copy_from_slice(&chunk[..len]);
                    if conn.dice.chance(0.1) {
                        len = conn.dice.0.usize(0..=len);
                    }
                    if len > 0 || conn.dice.chance(0.5) {
                        net.commit(id, len);
                    }
                    len
                }
                Writing::Write(_) => net.write(id, chunk),
                Writing::Static(_) | Writing::Heap(_) => {
                    let bytes = if matches!(how, Writing::Static(_)) {
                        Bytes::from_static(chunk)
                    } else {
                        let whole = Bytes::from([&[0; 3], chunk, &[1; 5]].concat());
                        whole.slice(3..3 + chunk.len())
                    };
                    if let Err(unsent) = net.send(id, bytes) {
                        assert_eq!(&unsent.bytes[..], chunk, "refused bytes are returned completely");
                        return;
                    }
                    chunk.len()
                }
            };
            self.sent(conn.n, sent);
            conn.writing.passed(sent as u64, now);
            if sent < chunk.len() && matches!(how, Writing::Write(_)) {
                return;
            }
            idle = if sent == 0 { idle + 1 } else { 0 };
        }
    }

    fn finish(&self, net: &mut impl Transport, id: ConnId, conn: &mut Conn, now: Instant) {
        let mut ledger = self.ledger.borrow_mut();
        let record = ledger.of(conn.n, self.end);
        let all_sent = match conn.source {
            Source::Nothing => true,
            Source::Bulk(total) => record.sent == total,
            Source::Echo(_) => record.peer_closed && conn.backlog.is_none(),
            Source::Relay => false,
        };
        if record.closed || !all_sent {
            return;
        }
        let now_is_the_time = match conn.plan.finish {
            Finish::WhenSent => true,
            Finish::WhenReceived(bytes) => record.received >= bytes,
            Finish::WhenPeerHas => record.peer_closed,
            Finish::After(_) => conn.finish_at.is_none(),
        };
        if !now_is_the_time {
            return;
        }
        ledger.note(conn.n, self.end).closed = true;
        if let Some(Abort::WhenClosed(delay)) = conn.plan.abort {
            conn.abort_at = Some(now + delay);
        }
        net.close(id);
        // Sending fails after close.
        assert_eq!(net.send_space(id), 0);
        assert_eq!(net.send(id, Bytes::from_static(b"late")).unwrap_err().error, WriteError::Closed);
        assert_eq!(net.reserve(id, 1).unwrap_err(), WriteError::Closed);
    }

    /// Aborts if the plan's condition holds. Returns true if it did.
    fn aborts(&self, net: &mut impl Transport, id: ConnId, conn: &mut Conn, now: Instant) -> bool {
        let mut ledger = self.ledger.borrow_mut();
        let record = ledger.of(conn.n, self.end);
        let aborts = match conn.plan.abort {
            _ if record.aborted => return true,
            None => false,
            Some(Abort::AtOpen) => true,
            Some(Abort::Sent(bytes)) => record.sent >= bytes,
            Some(Abort::Received(bytes)) => record.received >= bytes,
            Some(Abort::WhenPeerHasClosed) => record.peer_closed,
            Some(Abort::After(_) | Abort::WhenClosed(_)) => conn.abort_at.is_some_and(|at| at <= now),
        };
        if aborts {
            let record = ledger.note(conn.n, self.end);
            record.aborted = true;
            record.timer = None;
            net.abort(id);
        }
        aborts
    }

    fn set_timer(&self, net: &mut impl Transport, id: ConnId, conn: &Conn, now: Instant) {
        let held = conn.held.front().map(|(until, ..)| *until);
        let times = [conn.reading.next, conn.writing.next, held, conn.abort_at, conn.finish_at, conn.partner_by];
        // No timer for actions that are due and wait for another event.
        let next = times.into_iter().flatten().filter(|at| *at > now).min();
        let mut ledger = self.ledger.borrow_mut();
        if ledger.of(conn.n, self.end).timer != next {
            ledger.note(conn.n, self.end).timer = next;
            net.set_timer(id, next.map(|at| at.since(now)));
        }
    }
}

impl Service for Actor {
    type Conn = Conn;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        self.connect(net);
    }

    fn opened(&mut self, net: &mut impl Transport, id: ConnId, origin: Origin) -> Conn {
        let (local, remote) = (net.local_addr(id).unwrap(), net.peer_addr(id).unwrap());
        let n = match origin {
            Origin::Connected(n) => {
                self.ledger.borrow_mut().client_opened(n as usize, local, remote);
                n as usize
            }
            Origin::Accepted => self.ledger.borrow().accepted(local, remote),
        };
        let mut ledger = self.ledger.borrow_mut();
        assert!(!ledger.of(n, self.end).opened, "connection {n} opened twice at {:?}", self.end);
        let plan = ledger.scenario.connections[n].of(self.end).clone();
        let incoming = ledger.incoming(n, self.end);
        let record = ledger.note(n, self.end);
        record.opened = true;
        record.events.push(SeenEvent::Opened);
        if matches!(plan.source, Source::Echo(_) | Source::Relay) {
            record.outgoing = incoming;
        }
        drop(ledger);
        let now = net.now();
        let mut conn = Conn {
            n,
            dice: Dice::new(plan.seed),
            source: plan.source,
            reading: Progress::new(plan.reading_pace),
            writing: Progress::new(plan.writing_pace),
            held: VecDeque::new(),
            backlog: None,
            abort_at: match plan.abort {
                Some(Abort::After(delay)) => Some(now + delay),
                _ => None,
            },
            finish_at: match plan.finish {
                Finish::After(delay) => Some(now + delay),
                _ => None,
            },
            partner_by: None,
            plan,
        };
        if conn.source == Source::Relay {
            self.find_partner(id, &mut conn, now);
        }
        self.act(net, id, &mut conn);
        conn
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        let n = token as usize;
        assert!(!self.ledger.borrow().of(n, self.end).opened, "connection {n} failed after it was opened");
        let mut ledger = self.ledger.borrow_mut();
        let record = ledger.note(n, self.end);
        record.failed = Some(error);
        record.events.push(SeenEvent::Failed(error));
        drop(ledger);
        self.initiated -= 1;
        self.connect(net);
    }

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        for id in readable {
            assert!(net.received(*id) > 0, "{id:?} is readable without data");
        }
        0
    }

    fn readable(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn) {
        self.act(net, id, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn) {
        self.act(net, id, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn) {
        let mut ledger = self.ledger.borrow_mut();
        let peer = ledger.of(conn.n, self.end.other()).clone();
        let record = ledger.note(conn.n, self.end);
        if !record.aborted {
            assert!(peer.closed, "connection {}: peer_closed without a close of the peer", conn.n);
            assert_eq!(record.received, peer.sent, "connection {}: peer_closed before all data was read", conn.n);
            assert!(!record.peer_closed, "connection {}: peer_closed twice", conn.n);
        }
        record.peer_closed = true;
        record.events.push(SeenEvent::PeerClosed);
        drop(ledger);
        self.act(net, id, conn);
    }

    fn timer(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn) {
        let now = net.now();
        let mut ledger = self.ledger.borrow_mut();
        let record = ledger.note(conn.n, self.end);
        if !record.aborted {
            let requested = record.timer.take();
            assert!(requested.is_some_and(|at| at <= now), "connection {}: timer for {requested:?} at {now:?}", conn.n);
        }
        drop(ledger);
        self.act(net, id, conn);
    }

    fn closed(&mut self, net: &mut impl Transport, id: ConnId, mut conn: Conn, reason: CloseReason) {
        assert!(net.peer_addr(id).is_none() && net.received(id) == 0 && net.take(id, 1).is_none());
        // Kept bytes outlive the connection.
        while !conn.held.is_empty() {
            self.release_kept(&mut conn);
        }
        let mut ledger = self.ledger.borrow_mut();
        let record = ledger.note(conn.n, self.end);
        assert_eq!(record.ended, None, "connection {}: closed twice", conn.n);
        record.ended = Some(reason);
        record.events.push(SeenEvent::Ended(reason));
        record.timer = None;
        drop(ledger);
        if self.alone.is_some_and(|(alone, _)| alone == id) {
            self.alone = None;
        }
        if let Some((partner, m)) = self.partner(id) {
            self.partners.retain(|(own, ..)| *own != id);
            let mut ledger = self.ledger.borrow_mut();
            let other = ledger.of(m, self.end);
            let (over, closed) = (other.is_finished(), other.closed);
            if !over && reason != CloseReason::Finished {
                let record = ledger.note(m, self.end);
                record.aborted = true;
                record.timer = None;
                net.abort(partner);
            } else if !over && !closed {
                ledger.note(m, self.end).closed = true;
                net.close(partner);
            }
        }
        let is_client = self.ledger.borrow().scenario.connections[conn.n].from == self.end;
        if is_client {
            self.initiated -= 1;
            self.connect(net);
        }
    }
}
