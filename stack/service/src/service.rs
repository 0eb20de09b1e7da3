//! Event handlers of an application.

use crate::inspect::{ServiceMetrics, TlsInfo};
use crate::time::Duration;
use crate::{CloseReason, ConnId, ConnectError, Datagram, OneSidedResult, Origin, Transport};
use std::net::SocketAddr;

/// Event handlers of an application. A worker creates one value on its own thread and calls it on that thread only.
///
/// Every handler receives the [`Transport`] as `net`. A handler that concerns one connection also receives the
/// [`ConnId`] and the state that [`opened`](Self::opened) returned for it. Only `opened` has to be implemented; every
/// other handler does nothing by default.
///
/// A handler must not block: all connections of the worker wait for it.
///
/// # Order of events
///
/// Every transport delivers events in the following order. A turn of a worker may pass through the steps several times.
///
/// 1. [`opened`](Self::opened) for every connection that was established.
/// 2. [`burst`](Self::burst), if at least one connection has unread bytes. It lists each such connection once. Every
///    listed connection has been opened, and is neither closed, nor aborted, nor in a lingering close.
/// 3. [`readable`](Self::readable) for each connection that `burst` listed and did not report as served. `readable`
///    never occurs without a preceding `burst`.
/// 4. [`writable`](Self::writable), [`peer_closed`](Self::peer_closed), [`timer`](Self::timer) and
///    [`closed`](Self::closed). Events of one connection occur in this order, with
///    [`one_sided_done`](Self::one_sided_done) before `peer_closed`. Steps 3 and 4 of different connections may
///    interleave.
///
/// `opened` is the first event of a connection and `closed` the last; each occurs once. `peer_closed` occurs at most
/// once, after everything that the peer sent has been consumed. [`conn_message`](Self::conn_message),
/// [`message`](Self::message), [`turn`](Self::turn), [`datagram`](Self::datagram) and [`failed`](Self::failed)
/// may occur before, between and after these steps.
///
/// # Operations within events
///
/// A handler may operate on any connection of its worker, `burst` included:
///
/// - After [`Transport::close`], received bytes and `peer_closed` are delivered as before; `writable` no longer occurs.
/// - After [`Transport::lingering_close`] and [`Transport::abort`], only `closed` occurs, even if another event was due
///   in the same turn.
/// - `closed` is never delivered within another handler, but in step 4 of this or a later turn. The [`ConnId`] is valid
///   until then.
/// - An event may find less than it announces, if an earlier event of the turn has consumed the bytes or used the
///   space.
///
/// A connection that the peer resets, or that times out, may lose bytes that have arrived and have not been delivered:
/// `closed` may occur without `readable` and `peer_closed`.
#[expect(unused_variables, reason = "default handlers ignore their arguments")]
pub trait Service {
    /// State of one connection.
    type Conn;

    /// Message from another thread to the service or to one of its connections, sent by an
    /// [`AppSender`](crate::AppSender).
    type Message: Send + 'static;

    /// Called once, when the worker starts, before all other events. Outgoing connections can be started here.
    fn start(&mut self, net: &mut impl Transport) {}

    /// Called with all connections that have unread bytes, to prefetch for all of them or to serve them together.
    /// Returns how many of them, from the front, have been served.
    ///
    /// The worker calls [`readable`](Self::readable) for the others only. Events of step 4 occur for both (see
    /// [Order of events](Self#order-of-events)). A connection that the service closes or aborts in this call may be
    /// counted as served or not.
    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        0
    }

    /// Called when a connection is established. Returns the state of the connection. Bytes can be sent from now on.
    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> Self::Conn;

    /// Called when the connection that [`Transport::connect`] started with `token` could not be established.
    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {}

    /// Called when bytes have arrived. Bytes that the service does not consume stay in the receive queue; the event
    /// does not recur for them until more bytes arrive.
    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// Called when there is send space again after an operation found too little. Never occurs after
    /// [`Transport::close`].
    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// Called when the peer has finished sending (FIN) and all received bytes have been consumed. The service can go
    /// on sending until it calls [`Transport::close`].
    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// Called when the timer of the connection expires ([`Transport::set_timer`]).
    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn) {}

    /// Called for a message to this connection ([`AppSender::send_to_conn`](crate::AppSender::send_to_conn)).
    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Self::Conn, message: Self::Message) {
    }

    /// Called for a message to the service of this worker
    /// ([`AppSender::send_to_worker`](crate::AppSender::send_to_worker)).
    fn message(&mut self, net: &mut impl Transport, message: Self::Message) {}

    /// Called once per turn of the worker, for background work. The work should be short, because connections wait for
    /// it. Returns the longest time for which the worker may sleep if nothing happens; `None` is no limit.
    #[inline(always)]
    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        None
    }

    /// Called for a datagram to one of the worker's UDP addresses.
    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {}

    /// Called when the host `remote` has reported that no program receives the datagram sent to it from `local` (ICMP
    /// port unreachable). An attacker who guesses the ports can forge such reports.
    fn datagram_refused(&mut self, net: &mut impl Transport, local: SocketAddr, remote: SocketAddr) {}

    /// Called for a datagram of a protocol with its own integrity check, if the worker has a port for one. `packet`
    /// begins with the IP header, and its IP and UDP headers are valid. The packet is released after the call.
    fn raw_datagram(&mut self, net: &mut impl Transport, packet: &[u8]) {}

    /// Called when the one-sided operation that [`Transport::post_one_sided`] started with `token` has completed.
    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        state: &mut Self::Conn,
        token: u64,
        outcome: OneSidedResult,
    ) {
    }

    /// Returns the metrics of the service. Called for [queries](crate::inspect) only.
    fn metrics(&self) -> ServiceMetrics {
        ServiceMetrics::default()
    }

    /// Returns the details of TLS on a connection, if the service encrypts it. Called for
    /// [queries](crate::inspect) only.
    fn tls_info(&self, conn: ConnId) -> Option<TlsInfo> {
        None
    }

    /// Called when a connection has ended. Returns its state to the service. `conn` is invalid from now on.
    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, state: Self::Conn, reason: CloseReason) {}
}
