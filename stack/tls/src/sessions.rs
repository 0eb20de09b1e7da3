//! TLS states of a worker's connections.

use crate::handshake::Handshake;
use crate::open_conn::{Failure, OpenConn, Shared, Unsent};
use crate::record::Alert;
use crate::table::Table;
use linerate_service::inspect::TlsInfo;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, LINGER_LIMIT, Origin, Transport};

/// Interval of passes over the connections: keys without records for one to two of them are forgotten.
const REST_TIME: Duration = Duration::from_secs(10);
/// Connections of a pass in one turn.
const RESTS: usize = 64;

/// Handshake of one connection.
pub struct Handshaking {
    pub handshake: Handshake,
    pub origin: Origin,
    /// Records that are not processed yet, without the incomplete one at the end.
    pub input: Vec<u8>,
    /// Incomplete record at the end of the input.
    pub partial: Vec<u8>,
    pub unsent: Unsent,
    /// Source, for the limit of each.
    pub source: u64,
    /// Time spent on this handshake.
    pub spent: Duration,
    /// True if this end has sent records.
    pub has_sent: bool,
    /// True if the next step waits for a later turn.
    pub is_waiting: bool,
}

impl Handshaking {
    pub fn new(handshake: Handshake, origin: Origin, source: u64) -> Self {
        let (input, partial, unsent) = (Vec::new(), Vec::new(), Unsent::default());
        let spent = Duration::ZERO;
        Handshaking { handshake, origin, input, partial, unsent, source, spent, has_sent: false, is_waiting: false }
    }
}

/// State of one connection.
pub enum Session {
    /// Connection without TLS.
    Plain,
    Handshaking(Box<Handshaking>),
    Open(Box<OpenConn>),
    /// Connection whose service receives only `closed`.
    Dead(Box<Dead>),
}

impl Session {
    /// Returns the state after the end, with records to send.
    pub fn dead(reason: Option<CloseReason>, unsent: Unsent) -> Self {
        Session::Dead(Box::new(Dead { reason, unsent }))
    }
}

/// State of a connection whose service receives only `closed`.
pub struct Dead {
    /// Reason to report in place of that of the transport.
    pub reason: Option<CloseReason>,
    /// Records to send before the transport is closed.
    pub unsent: Unsent,
}

/// States of all connections of one worker.
#[derive(Default)]
pub struct Sessions {
    pub table: Table<Session>,
    pub shared: Shared,
    resting: Resting,
}

/// Progress of a pass over the connections, which forgets the expanded keys of those without records since the last.
#[derive(Default)]
struct Resting {
    /// Begin of the next pass, unless nothing has happened since a pass without expanded keys.
    next: Option<Instant>,
    slot: usize,
    /// True if the pass has found expanded keys.
    has_keys: bool,
}

impl Sessions {
    /// Returns the state of an open connection, and what all connections share.
    #[inline]
    pub fn open_mut(&mut self, conn: ConnId) -> Option<(&mut OpenConn, &mut Shared)> {
        match self.table.get_mut(conn) {
            Some(Session::Open(open)) => Some((open, &mut self.shared)),
            _ => None,
        }
    }

    /// Plans a pass that forgets keys, unless one is planned.
    #[inline]
    pub fn plan_rest(&mut self, net: &impl Transport) {
        if self.resting.next.is_none() {
            self.resting.next = Some(net.now() + REST_TIME);
        }
    }

    /// Forgets keys of idle connections, a few in each turn. Returns the time until the next turn for it.
    pub fn rest(&mut self, now: Instant) -> Option<Duration> {
        let Resting { next, slot, has_keys } = &mut self.resting;
        let due = (*next)?;
        if now < due {
            return Some(due.since(now));
        }
        let end = self.table.len().min(*slot + RESTS);
        for slot in *slot..end {
            if let Some(Session::Open(open)) = self.table.at_mut(slot) {
                *has_keys |= open.rest();
            }
        }
        *slot = end;
        if end < self.table.len() {
            return Some(Duration::ZERO);
        }
        *slot = 0;
        *next = std::mem::take(has_keys).then(|| now + REST_TIME);
        next.map(|_| REST_TIME)
    }

    /// Returns whether events of a connection may be delivered to the service.
    #[inline]
    pub fn is_live(&self, conn: ConnId) -> bool {
        matches!(self.table.get(conn), Some(Session::Open(_) | Session::Plain))
    }

    /// Returns the details of TLS on a connection, after its handshake.
    pub fn tls_info(&self, conn: ConnId) -> Option<TlsInfo> {
        match self.table.get(conn) {
            Some(Session::Open(open)) => Some(open.info()),
            _ => None,
        }
    }

    /// Ends an open connection after an error.
    pub fn fail(&mut self, net: &mut impl Transport, conn: ConnId, failure: Failure) {
        let Some((open, shared)) = self.open_mut(conn) else { return };
        match failure {
            Failure::Local(alert) => {
                open.send_alert(net, conn, alert, shared);
                *shared.counters.alerts_sent.entry(alert).or_default() += 1;
                self.end(net, conn, Some(CloseReason::Aborted));
            }
            Failure::Peer(alert) => {
                *shared.counters.alerts_received.entry(alert).or_default() += 1;
                self.abort(net, conn, Some(CloseReason::Reset));
            }
        }
    }

    /// Ends a connection after its unsent records, and discards its input. `reason` replaces that of the transport.
    pub fn end(&mut self, net: &mut impl Transport, conn: ConnId, reason: Option<CloseReason>) {
        let unsent = match self.table.remove(conn) {
            Some(Session::Open(open)) => open.release(&mut self.shared),
            Some(Session::Handshaking(handshaking)) => handshaking.unsent,
            _ => return,
        };
        if unsent.is_empty() {
            net.lingering_close(conn);
        } else {
            net.set_timer(conn, Some(LINGER_LIMIT));
        }
        self.table.insert(conn, Session::dead(reason, unsent));
    }

    /// Closes a connection with close_notify, and discards its input.
    pub fn linger(&mut self, net: &mut impl Transport, conn: ConnId) {
        let Some((open, shared)) = self.open_mut(conn) else { return };
        if !open.is_closed {
            open.flush(net, conn, shared);
            open.send_alert(net, conn, Alert::CloseNotify as u8, shared);
        }
        self.end(net, conn, None);
    }

    /// Resets a connection. `reason` replaces that of the transport.
    pub fn abort(&mut self, net: &mut impl Transport, conn: ConnId, reason: Option<CloseReason>) {
        match self.table.remove(conn) {
            Some(Session::Open(open)) => drop(open.release(&mut self.shared)),
            Some(Session::Dead(dead)) if dead.reason.is_some() => {
                self.table.insert(conn, Session::dead(dead.reason, Unsent::default()));
                return net.abort(conn);
            }
            None => return net.abort(conn),
            Some(_) => {}
        }
        self.table.insert(conn, Session::dead(reason, Unsent::default()));
        net.abort(conn);
    }

    /// Sends more of the unsent records of a connection, which has space again.
    pub fn flush_unsent(&mut self, net: &mut impl Transport, conn: ConnId) {
        let buffers = &mut self.shared.buffers;
        match self.table.get_mut(conn) {
            Some(Session::Handshaking(handshaking)) => {
                handshaking.unsent.flush(net, conn, buffers);
            }
            Some(Session::Open(open)) => {
                if !open.unsent.is_empty() && open.unsent.flush(net, conn, buffers) && open.is_closed {
                    net.close(conn);
                }
            }
            Some(Session::Dead(dead)) => {
                if !dead.unsent.is_empty() && dead.unsent.flush(net, conn, buffers) {
                    net.lingering_close(conn);
                }
            }
            Some(Session::Plain) | None => {}
        }
    }

    /// Sends the data that services have written, and consumes opened records.
    #[inline]
    pub fn flush(&mut self, net: &mut impl Transport) {
        while let Some(conn) = self.shared.staged.pop() {
            if let Some((open, shared)) = self.open_mut(conn) {
                open.flush(net, conn, shared);
            }
        }
        while let Some(conn) = self.shared.opened.pop() {
            if let Some((open, _)) = self.open_mut(conn) {
                open.consume_opened(net, conn);
            }
        }
    }
}
