//! Applications, and what they can do: the seam between a service and whatever carries its bytes.
//!
//! A [`Service`] is a value per worker that reacts to events of its connections. A [`Transport`] is the worker it
//! reacts on: the TCP stack, kernel sockets, or RDMA. Both are chosen at compile time, so an event costs a direct
//! call, and one service source serves every transport.

mod conn_id;
mod conn_slab;
mod event;
mod linger;
mod message;
mod stop;
mod timers;
mod transport;

pub use conn_id::{ConnId, Names};
pub use conn_slab::Slots;
pub use event::{CloseReason, ConnectError, Datagram, Origin};
pub use linger::{LINGER_BYTES, LINGER_LIMIT, LINGER_TIME, Linger};
pub use message::{Letter, Postbox, Seat};
pub use stop::{Drain, Stop};
pub use timers::{Timer, Timers};
pub use transport::{Transport, answer_in_steps};

use crate::RemoteDone;
use crate::time::Duration;

/// An application: one value per worker, made and used on the worker's thread, so it needs neither locks nor
/// `Send`.
///
/// All events have a default that does nothing but [`opened`](Self::opened), which makes the connection's state.
///
/// # Order of events
///
/// Every transport keeps to the following order. A turn of a worker may go through it several times.
///
/// 1. [`opened`](Self::opened) of every connection that was established.
/// 2. [`burst`](Self::burst), if any connection has something to read. It names each such connection once. Every connection that
///    it names has been opened, and is neither closed, nor aborted, nor subject to a lingering close.
/// 3. [`readable`](Self::readable) of each connection that `burst` named and did not count as served. `readable` never comes
///    without a `burst` before it.
/// 4. [`writable`](Self::writable), [`peer_closed`](Self::peer_closed), [`timer`](Self::timer) and [`closed`](Self::closed). Those
///    of one connection come in this order, and [`remote_done`](Self::remote_done) comes before `peer_closed`. Steps 3 and 4 of
///    different connections may interleave.
///
/// `opened` is the first event of a connection and `closed` the last; each comes once. `peer_closed` comes at most once, when all
/// that the peer sent has been consumed. [`on_conn_message`](Self::on_conn_message), [`on_message`](Self::on_message),
/// [`poll`](Self::poll), `datagram` and `failed` may come before, between and after these steps.
///
/// A service may act on any of its connections in any event, `burst` included:
///
/// - After [`Transport::close`], input is delivered as before and `peer_closed` follows, but `writable` does not come.
/// - After [`Transport::lingering_close`] and [`Transport::abort`], nothing but `closed` comes, even if another event was due in the
///   same turn.
/// - `closed` is never delivered within an event, but in step 4 of this or a later turn. Until then the [`ConnId`] stays valid.
/// - An event may find less than it announces, because the service has consumed or used it in an earlier event of the turn.
///
/// A peer that resets its connection, or that is lost, may take bytes along that have arrived and not been delivered: `closed` may
/// come without `readable` and `peer_closed`.
#[expect(unused_variables, reason = "the default of an event ignores what it is told")]
pub trait Service {
    /// What the service keeps for each connection.
    type Conn;

    /// What other threads may tell it, or one of its connections, through a [`Postbox`].
    type Message: Send + 'static;

    /// The worker runs: the time to connect out.
    fn start(&mut self, net: &mut impl Transport) {}

    /// These connections have something to read: the time to prefetch for all of them, or to serve them together. Returns how many
    /// of them, the first ones, have been served. The worker leaves their [`readable`](Self::readable) events out, as if they had
    /// been delivered; those of the others follow. Events of step 4 come for both (see [Order of events](Self#order-of-events)).
    ///
    /// A connection that the service closes or aborts here may be counted as served or not.
    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        0
    }

    /// A connection is established and can be sent on. Returns its state.
    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> Self::Conn;

    /// The connection asked for with `token` could not be made.
    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {}

    /// More bytes have arrived. What is left unconsumed stays; there is no further event for it until more
    /// arrive.
    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// There is room again after an operation found too little. Never comes after [`Transport::close`].
    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// The peer has finished sending and everything it sent has been consumed. Sending can go on until
    /// [`Transport::close`].
    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// The time asked for with [`Transport::set_timer`] has come.
    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// A message arrived for this connection through a [`Postbox`].
    fn on_conn_message(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        state: &mut Self::Conn,
        message: Self::Message,
    ) {
    }

    /// A message arrived for this worker's service through a [`Postbox`].
    fn on_message(&mut self, net: &mut impl Transport, message: Self::Message) {}

    /// A turn of the worker: the time for a piece of what is done in the background, a small one, as connections wait
    /// meanwhile. Returns how long the worker may rest before the next turn if nothing happens; `None` is as long as it likes.
    #[inline(always)]
    fn poll(&mut self, net: &mut impl Transport) -> Option<Duration> {
        None
    }

    /// A datagram arrived on one of our UDP addresses.
    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {}

    /// An operation on the peer's memory has been done, which [`Transport::begin_remote`] began with this token.
    fn remote_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        state: &mut Self::Conn,
        token: u64,
        outcome: RemoteDone,
    ) {
    }

    /// Requests that it has done so far, if it knows what a request is and counts them anyway. Asked for by who looks into a running
    /// worker, and never else.
    fn requests(&self) -> Option<u64> {
        None
    }

    /// Returns the number of requests so far that held the worker for so long that other connections noticed, if the service measures
    /// that. It is asked for as [`requests`](Self::requests) is.
    fn slow_requests(&self) -> Option<u64> {
        None
    }

    /// The connection is gone, and here is its state back. The last event of `conn`, which names nothing any more.
    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, state: Self::Conn, why: CloseReason) {}
}
