//! Lingering close (RFC 9112 §9.6), and the set of connections whose service receives only `closed`.
//!
//! A server that closes a socket with unread input causes a reset, which can destroy the last reply before the client
//! has read it. [`Transport::lingering_close`](crate::Transport::lingering_close) therefore discards input until the
//! peer closes, too. The bounds keep a peer that sends without end, or that never closes, from occupying a worker or a
//! connection.

use super::HostedNet;
use crate::ConnId;
use crate::time::{Duration, Instant};
use foldhash::fast::FixedState;
use std::collections::{HashMap, HashSet};

/// Maximum number of received bytes that a lingering close discards before it resets the connection.
pub const LINGER_BYTES: usize = 1 << 20;
/// Time after which a lingering close resets the connection if the peer has acknowledged everything and not closed.
pub const LINGER_TIME: Duration = Duration::from_secs(5);
/// Time after which a lingering close resets the connection, even if the peer has not acknowledged everything.
pub const LINGER_LIMIT: Duration = Duration::from_secs(30);

/// State of one lingering close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Linger {
    /// Bytes that may still be discarded.
    left: usize,
    /// End of [`LINGER_LIMIT`].
    until: Instant,
}

impl Linger {
    /// Starts a lingering close at `now`. The first deadline is [`LINGER_TIME`] later.
    fn new(now: Instant) -> Self {
        Linger { left: LINGER_BYTES, until: now + LINGER_LIMIT }
    }

    /// Counts `n` discarded bytes. Returns whether they are within [`LINGER_BYTES`].
    #[must_use]
    fn discard(&mut self, n: usize) -> bool {
        let is_within = n <= self.left;
        self.left = self.left.saturating_sub(n);
        is_within
    }

    /// Returns the time to the next deadline after one that expires at `now`, or `None` if the connection is to be
    /// reset. `is_delivered` states that the peer has acknowledged everything that was sent.
    #[must_use]
    fn extend(&self, now: Instant, is_delivered: bool) -> Option<Duration> {
        let left = self.until.since(now);
        (!is_delivered && left > Duration::ZERO).then(|| left.min(LINGER_TIME))
    }
}

/// Connections whose service receives only `closed`, and expired timers that are out of date.
#[derive(Default)]
pub struct Silenced {
    /// Connections that the service aborted (`None`) or closed with a lingering close, until `closed` is delivered.
    conns: HashMap<ConnId, Option<Linger>, FixedState>,
    /// Connections whose timer was set while expired timers awaited delivery. Their expiry is out of date.
    rearmed: HashSet<ConnId, FixedState>,
    /// True if expired timers may await delivery.
    timers_pending: bool,
}

impl Silenced {
    /// Returns whether no connection is silenced, in which case events need no lookup.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Returns whether `conn` is silenced.
    pub fn has(&self, conn: ConnId) -> bool {
        !self.is_empty() && self.conns.contains_key(&conn)
    }

    /// Silences a connection that is being aborted.
    pub fn insert(&mut self, conn: ConnId) {
        self.conns.insert(conn, None);
    }

    /// Records that timers have expired, or may expire before the next delivery.
    #[inline(always)]
    pub fn begin_timers(&mut self) {
        self.timers_pending = true;
    }

    /// Records that the timer of `conn` is set or stopped. An expiry that awaits delivery is suppressed.
    #[inline]
    pub fn rearm(&mut self, conn: ConnId) {
        if self.timers_pending {
            self.rearmed.insert(conn);
        }
    }

    /// Returns whether the expiry of the timer of `conn` is out of date.
    pub(super) fn is_rearmed(&self, conn: ConnId) -> bool {
        !self.rearmed.is_empty() && self.rearmed.contains(&conn)
    }

    /// Removes `conn` when its `closed` event is delivered.
    pub(super) fn forget(&mut self, conn: ConnId) {
        if !self.is_empty() {
            self.conns.remove(&conn);
        }
    }

    /// Records that all expired timers have been delivered.
    #[inline(always)]
    pub(super) fn end_timers(&mut self) {
        self.timers_pending = false;
        if !self.rearmed.is_empty() {
            self.rearmed.clear();
        }
    }
}

/// Implements [`Transport::lingering_close`](crate::Transport::lingering_close). The timer of the connection, which the
/// service no longer uses, becomes the deadline.
pub fn lingering_close(net: &mut impl HostedNet, conn: ConnId) {
    if !net.is_open(conn) || net.silenced().has(conn) {
        return;
    }
    net.close(conn);
    let now = net.now();
    net.set_deadline(conn, now + LINGER_TIME);
    net.silenced().rearm(conn);
    net.silenced().conns.insert(conn, Some(Linger::new(now)));
    discard_if_silenced(net, conn);
}

/// Discards the input of a silenced connection, and resets the connection when a lingering close has discarded too
/// much. Returns false if `conn` is not silenced.
#[cold]
pub(super) fn discard_if_silenced(net: &mut impl HostedNet, conn: ConnId) -> bool {
    if !net.silenced().has(conn) {
        return false;
    }
    let received = net.received(conn);
    net.consume(conn, received);
    if let Some(Some(linger)) = net.silenced().conns.get_mut(&conn)
        && !linger.discard(received)
    {
        net.abort(conn);
    }
    true
}

/// Handles the expired deadline of a lingering close: resets the connection, or sets the next deadline while the peer
/// has not acknowledged everything. Returns false if `conn` is not silenced.
pub(super) fn expire_if_silenced(net: &mut impl HostedNet, conn: ConnId) -> bool {
    if net.silenced().is_empty() {
        return false;
    }
    let Some(silenced) = net.silenced().conns.get(&conn).copied() else { return false };
    if let Some(linger) = silenced {
        let now = net.now();
        match linger.extend(now, net.is_delivered(conn)) {
            Some(delay) => net.set_deadline(conn, now + delay),
            None => net.abort(conn),
        }
    }
    true
}
