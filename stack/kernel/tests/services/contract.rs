//! Service that checks the order of events that [`Service`] defines, on any transport. It is used at both ends.

use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, CloseReason, ConnId, Origin, Service, Transport, WriteError};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Length of a message. Its first byte selects the server's action.
const MESSAGE: usize = 64;
/// Messages that a client sends on a connection whose server echoes them.
const MESSAGES: usize = 20;
/// Delay of the server's timer of a connection after its last message.
const TIMER: Duration = Duration::from_micros(50);

/// Server's action on a connection, selected by the first byte of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sends the message back.
    Echo,
    /// Fills the send queue, and closes.
    Close,
    /// Replies, and closes with a lingering close.
    Linger,
    Abort,
    /// Aborts this connection and the last readable connection of the same burst.
    AbortTwo,
}

const ACTIONS: [Action; 5] = [Action::Echo, Action::Close, Action::Linger, Action::Abort, Action::AbortTwo];

/// Events of a connection so far.
#[derive(Debug, Default)]
struct Record {
    /// True if `close`, `lingering_close` or `abort` was called.
    has_closed: bool,
    /// True if `lingering_close` or `abort` was called.
    is_silenced: bool,
    has_peer_closed: bool,
    timer: Option<Instant>,
}

/// State of a connection, created by `opened`.
#[derive(Debug)]
pub struct Conn {
    /// `None` at the server.
    action: Option<Action>,
    received: usize,
    sent: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub opened: usize,
    pub closed: usize,
    /// Connections served in `burst`, and by `readable`.
    pub served: usize,
    pub readable: usize,
    pub timers: usize,
    pub echoed: usize,
}

/// Service that panics on an event out of order.
#[derive(Debug, Default)]
pub struct Contract {
    remote: Option<SocketAddr>,
    /// Connections to open.
    connections: usize,
    is_client: bool,
    records: HashMap<ConnId, Record>,
    /// Connections of the last burst whose `readable` is still due.
    pending: Vec<ConnId>,
    pub counts: Counts,
}

impl Contract {
    pub fn server() -> Self {
        Self::default()
    }

    /// Creates a client with `connections` connections to `remote`. Each group of five uses one [`Action`]; every
    /// second group closes at once.
    pub fn client(remote: SocketAddr, connections: usize) -> Self {
        Contract { remote: Some(remote), connections, ..Self::default() }
    }

    /// Returns whether `connections` connections have been opened, and all are closed.
    pub fn is_done(&self, connections: usize) -> bool {
        self.counts.closed == connections && self.records.is_empty()
    }

    /// Asserts that all relevant events of a server have occurred.
    pub fn assert_covered(&self) {
        let Counts { served, readable, echoed, .. } = self.counts;
        assert!(served > 0 && readable > 0 && echoed > 0, "{:?}", self.counts);
    }

    /// Returns the record of `conn`, which must be able to have an event.
    #[track_caller]
    fn live(&mut self, conn: ConnId, event: &str) -> &mut Record {
        let record = self.records.get_mut(&conn).unwrap_or_else(|| panic!("{event} of {conn:?}, which is not open"));
        assert!(!record.is_silenced, "{event} of {conn:?}, which was aborted or closed with a lingering close");
        record
    }

    #[track_caller]
    fn assert_none_pending(&self, event: &str) {
        assert!(self.pending.is_empty(), "{event} before readable of {:?}", self.pending);
    }

    fn silence(&mut self, conn: ConnId) {
        self.pending.retain(|pending| *pending != conn);
        if let Some(record) = self.records.get_mut(&conn) {
            (record.is_silenced, record.has_closed) = (true, true);
        }
    }

    fn abort(&mut self, net: &mut impl Transport, conn: ConnId) {
        self.silence(conn);
        net.abort(conn);
        assert_eq!(net.received(conn), 0);
        assert_closed(net, conn);
    }

    fn close(&mut self, net: &mut impl Transport, conn: ConnId) {
        if let Some(record) = self.records.get_mut(&conn) {
            record.has_closed = true;
        }
        net.close(conn);
        assert_closed(net, conn);
    }

    /// Runs the actions that messages on `conn` select.
    fn serve(&mut self, net: &mut impl Transport, conn: ConnId) {
        // A closed connection sends nothing.
        if self.records.get(&conn).is_none_or(|record| record.has_closed) {
            return net.consume(conn, usize::MAX);
        }
        let Some(&first) = net.peek(conn).first() else { return };
        match ACTIONS[usize::from(first)] {
            Action::Echo => {
                self.counts.echoed += net.forward(conn, conn);
                net.set_timer(conn, Some(TIMER));
                if let Some(record) = self.records.get_mut(&conn) {
                    record.timer = Some(net.now() + TIMER);
                }
            }
            Action::Close => {
                net.consume(conn, usize::MAX);
                while net.write(conn, &[1; 1000]) == 1000 {}
                self.close(net, conn);
            }
            Action::Linger => {
                assert_eq!(net.write(conn, b"reply"), 5);
                net.lingering_close(conn);
                self.silence(conn);
                assert_closed(net, conn);
            }
            Action::Abort => self.abort(net, conn),
            Action::AbortTwo => {
                let last = self.pending.last().copied();
                last.iter().chain([&conn]).for_each(|conn| self.abort(net, *conn));
            }
        }
    }

    fn send(net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        if let Some(action) = state.action {
            let mut message = [7; MESSAGE];
            message[0] = action as u8;
            if net.write(conn, &message) == MESSAGE {
                state.sent += MESSAGE;
            }
        }
    }
}

/// Asserts that nothing can be sent on `conn`, and that the reason is its end.
#[track_caller]
fn assert_closed(net: &mut impl Transport, conn: ConnId) {
    assert_eq!((net.send_space(conn), net.write(conn, b"late")), (0, 0));
    assert_eq!(net.send(conn, Bytes::from_static(b"late")).unwrap_err().error, WriteError::Closed);
    assert_eq!(net.reserve(conn, 1).unwrap_err(), WriteError::Closed);
}

impl Service for Contract {
    type Conn = Conn;
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        if let Some(remote) = self.remote {
            (0..self.connections).for_each(|n| net.connect(remote, n as u64));
        }
    }

    fn turn(&mut self, _: &mut impl Transport) -> Option<Duration> {
        self.assert_none_pending("tend");
        None
    }

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        self.assert_none_pending("burst");
        assert!(!readable.is_empty(), "empty burst");
        for (at, conn) in readable.iter().enumerate() {
            self.live(*conn, "burst");
            assert!(!readable[..at].contains(conn), "{conn:?} is in a burst twice");
        }
        if self.is_client {
            // Clients leave all connections to `readable`.
            self.pending.extend(readable);
            return 0;
        }
        let served = readable.len().div_ceil(2);
        self.pending.extend(&readable[served..]);
        self.counts.served += served;
        for conn in &readable[..served] {
            self.serve(net, *conn);
        }
        served
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> Conn {
        let earlier = self.records.insert(conn, Record::default());
        assert!(earlier.is_none(), "{conn:?} is opened twice");
        let same_slot = |other: &&ConnId| other.slot() == conn.slot() && **other != conn;
        assert_eq!(self.records.keys().find(same_slot), None, "{conn:?} is opened in a slot that is in use");
        self.counts.opened += 1;
        let action = match origin {
            Origin::Accepted => None,
            Origin::Connected(_) => Some(ACTIONS[(self.counts.opened - 1) % ACTIONS.len()]),
        };
        self.is_client |= action.is_some();
        let mut state = Conn { action, received: 0, sent: 0 };
        Self::send(net, conn, &mut state);
        if action.is_some() && (self.counts.opened - 1) / ACTIONS.len() % 2 == 1 {
            // The server gets the connection, its data and its end together.
            self.close(net, conn);
        }
        state
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        let record = self.live(conn, "readable");
        assert!(!record.has_peer_closed, "readable of {conn:?} after peer_closed");
        let index = self.pending.iter().position(|pending| *pending == conn);
        let index =
            index.unwrap_or_else(|| panic!("readable of {conn:?} without a burst, or after it was served in one"));
        self.pending.remove(index);
        self.counts.readable += 1;
        if state.action.is_none() {
            return self.serve(net, conn);
        }
        state.received += net.received(conn);
        net.consume(conn, usize::MAX);
        if state.action == Some(Action::Echo) && state.received == state.sent && !self.records[&conn].has_closed {
            if state.sent == MESSAGES * MESSAGE {
                self.close(net, conn);
            } else {
                Self::send(net, conn, state);
            }
        }
    }

    fn writable(&mut self, _: &mut impl Transport, conn: ConnId, _: &mut Conn) {
        let record = self.live(conn, "writable");
        assert!(!record.has_closed, "writable of {conn:?} after close");
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut Conn) {
        assert!(!self.pending.contains(&conn), "peer_closed of {conn:?} before readable");
        let record = self.live(conn, "peer_closed");
        assert!(!std::mem::replace(&mut record.has_peer_closed, true), "peer_closed of {conn:?} comes twice");
        assert_eq!(net.received(conn), 0, "peer_closed of {conn:?} before it was read");
        if !self.records[&conn].has_closed {
            self.close(net, conn);
        }
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut Conn) {
        assert!(!self.pending.contains(&conn), "timer of {conn:?} before readable");
        self.counts.timers += 1;
        let now = net.now();
        let requested = self.live(conn, "timer").timer.take();
        assert!(requested.is_some_and(|at| at <= now), "timer of {conn:?} at {now:?}, requested for {requested:?}");
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, state: Conn, reason: CloseReason) {
        assert!(!self.pending.contains(&conn), "closed of {conn:?} before readable");
        let record = self.records.remove(&conn).unwrap_or_else(|| panic!("closed of {conn:?}, which is not open"));
        assert_eq!((net.received(conn), net.peer_addr(conn)), (0, None));
        assert!(
            reason != CloseReason::Finished || record.has_peer_closed || record.is_silenced,
            "{conn:?} has finished"
        );
        assert_ne!(reason, CloseReason::TimedOut, "{conn:?}: {state:?}");
        self.counts.closed += 1;
    }
}
