//! Applications, and what they can do: the seam between a service and whatever carries its bytes.
//!
//! A [`Service`] is a value per worker that reacts to events of its connections. A [`Transport`] is the worker it
//! reacts on: the TCP stack, kernel sockets, or RDMA. Both are chosen at compile time, so an event costs a direct
//! call, and one service source serves every transport.

use crate::Bytes;
use crate::inspect::Look;
use crate::mailbox::Sender;
use crate::time::{Duration, Instant};
use crate::{NoRemote, Remote, RemoteDone};
use std::fmt;
use std::net::SocketAddr;

/// The name of one connection of one worker. It is never given to another connection while anyone can hold it:
/// a slot that is used again has another generation, and an operation on an old name does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    /// Workers that a `ConnId` can tell apart.
    pub const MAX_WORKERS: usize = 1 << 8;
    /// Connections of one worker that a `ConnId` can tell apart.
    pub const MAX_SLOTS: usize = 1 << 24;

    /// The connection in `slot` of `worker`, in the slot's `generation`.
    ///
    /// # Panics
    /// If `worker` or `slot` is not below [`MAX_WORKERS`](Self::MAX_WORKERS) or [`MAX_SLOTS`](Self::MAX_SLOTS).
    pub fn new(worker: usize, slot: usize, generation: u32) -> Self {
        assert!(worker < Self::MAX_WORKERS && slot < Self::MAX_SLOTS);
        ConnId(u64::from(generation) << 32 | (worker as u64) << 24 | slot as u64)
    }

    /// The worker that owns the connection.
    pub fn worker(self) -> usize {
        (self.0 >> 24) as usize & (Self::MAX_WORKERS - 1)
    }

    /// The connection's slot at its worker: small, dense, and used again.
    pub fn slot(self) -> usize {
        self.0 as usize & (Self::MAX_SLOTS - 1)
    }

    /// Which use of the slot this is.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// All of it as one number, for a [`Transport::connect`] token or a log.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The reverse of [`to_bits`](Self::to_bits).
    pub fn from_bits(bits: u64) -> Self {
        ConnId(bits)
    }
}

/// The names of one worker's connections: what is the same in all of them, for whoever makes and looks up many.
#[derive(Debug, Clone, Copy)]
pub struct Names(u32);

impl Names {
    /// Those of the connections of `worker`.
    ///
    /// # Panics
    /// If it is not below [`MAX_WORKERS`](ConnId::MAX_WORKERS).
    pub fn of(worker: usize) -> Self {
        Names(ConnId::new(worker, 0, 0).0 as u32)
    }

    /// The connection in `slot`, which is below [`MAX_SLOTS`](ConnId::MAX_SLOTS), in the slot's `generation`.
    #[inline(always)]
    pub fn name(self, slot: u32, generation: u32) -> ConnId {
        debug_assert!((slot as usize) < ConnId::MAX_SLOTS);
        ConnId(u64::from(generation) << 32 | u64::from(self.0 | slot))
    }

    /// The connection's slot, if it is of this worker; otherwise a number that is too large for a slot.
    #[inline(always)]
    pub fn slot(self, conn: ConnId) -> usize {
        (conn.0 as u32 ^ self.0) as usize
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.worker(), self.slot(), self.generation())
    }
}

/// How a connection came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A peer connected to one of our listening addresses.
    Accepted,
    /// [`Transport::connect`] was called with this token.
    Connected(u64),
}

/// Why an outgoing connection could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer answered with a reset: nothing listens there.
    #[error("connection refused")]
    Refused,
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// No route, no neighbour, or an ICMP error said so.
    #[error("host unreachable")]
    Unreachable,
    /// The address cannot be that of another host: it is this host's own, a loopback, broadcast or reserved one. The stack has
    /// no loopback.
    #[error("not the address of another host (own, loopback, broadcast or reserved)")]
    InvalidAddress,
    /// No local address of that family, or no ephemeral port is left.
    #[error("no local address or port left for it")]
    NoLocalAddress,
    /// The worker has as many connections as it may.
    #[error("too many connections")]
    TooMany,
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides closed, and all that was sent has been acknowledged.
    Finished,
    /// The peer reset it.
    Reset,
    /// We aborted it: the service did, or the worker while stopping.
    Aborted,
    /// The peer stopped answering.
    TimedOut,
    /// No data moved in either direction for as long as the transport's idle timeout. The peer has been sent a reset.
    IdleTimeout,
    /// The address that it was from is no longer ours: the time has run out for which a DHCP server had given it. The peer is not told.
    AddressLost,
}

/// A UDP datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Our end: where it arrived, or what to send it from.
    pub local: SocketAddr,
    /// The peer: where it came from, or where to send it to.
    pub remote: SocketAddr,
    /// What it carries.
    pub payload: Bytes,
}

/// What a service can do from within an event. Every operation names a connection of this worker by its
/// [`ConnId`]; on one that is gone, it does nothing and returns nothing, zero, or what it was given.
///
/// Received bytes form a queue of slices per connection; sent bytes are queued until the peer has acknowledged them. Both queues
/// are bounded: what is not consumed closes the peer's window, and what does not fit is refused, after which
/// [`Service::writable`] says when there is room.
pub trait Transport {
    /// When the current burst of events began. Constant within an event.
    fn now(&self) -> Instant;

    /// The number of this worker, counted from 0.
    fn worker(&self) -> usize;

    /// Our address of the connection.
    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr>;

    /// The peer's address of the connection.
    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr>;

    /// Bytes received and not yet consumed.
    fn received(&self, conn: ConnId) -> usize;

    /// The first slice of them, in place. Empty only when nothing is there.
    fn peek(&mut self, conn: ConnId) -> &[u8];

    /// Drops the first `n` received bytes (all, if there are fewer).
    fn consume(&mut self, conn: ConnId, n: usize);

    /// Takes the first received slice, or its first `max` bytes, to keep: no copy where the transport receives
    /// into memory that can be kept. `None` when nothing has been received or `max` is 0.
    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes>;

    /// Bytes that can be sent now. Zero counts as having found too little: [`Service::writable`] follows.
    fn room(&mut self, conn: ConnId) -> usize;

    /// Sends `bytes` without copying them where the transport can. They come back whole when there is no room
    /// for all of them.
    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes>;

    /// A place of up to `max` bytes in an outgoing buffer, to be filled and then sent with
    /// [`commit`](Self::commit); `None` when there is no room. It holds whatever was there.
    fn reserve(&mut self, conn: ConnId, max: usize) -> Option<&mut [u8]>;

    /// Sends the first `n` bytes of the place that the last [`reserve`](Self::reserve) gave.
    ///
    /// # Panics
    /// If `n` is more than was reserved.
    fn commit(&mut self, conn: ConnId, n: usize);

    /// Copies as much of `bytes` as fits into outgoing buffers and returns how much that was. What is worth a
    /// copy is short: larger pieces go by [`send`](Self::send).
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let Some(place) = self.reserve(conn, bytes.len() - written) else {
                break;
            };
            let n = place.len();
            place.copy_from_slice(&bytes[written..written + n]);
            self.commit(conn, n);
            written += n;
        }
        written
    }

    /// Consumes the first `request` received bytes, and sends `len` bytes, which `write` writes where they are sent from. Returns
    /// whether there was such a place; without one, the request has been consumed all the same, and nothing was written.
    ///
    /// What [`consume`](Self::consume), [`reserve`](Self::reserve) and [`commit`](Self::commit) do, in fewer steps where the
    /// request is all that was received and its answer fits into one segment. That goes out at once, so an answer should be whole:
    /// what is sent after it goes by itself.
    fn answer(&mut self, conn: ConnId, request: usize, len: usize, write: impl FnOnce(&mut [u8])) -> bool
    where
        Self: Sized,
    {
        answer_in_steps(self, conn, request, len, write)
    }

    /// Sends on `to` what was received on `from`, up to what `to` has room for, and returns how much that was.
    /// The two may be the same connection. Copies nothing where the transport can avoid it.
    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        let mut moved = 0;
        while self.received(from) > 0 {
            let room = self.room(to);
            let Some(bytes) = self.take(from, room) else {
                break;
            };
            let n = bytes.len();
            if self.send(to, bytes).is_err() {
                break;
            }
            moved += n;
        }
        moved
    }

    /// Finishes sending: the peer sees the end of the stream after everything sent so far. Receiving goes on, without a bound
    /// on bytes or time; [`lingering_close`](Self::lingering_close) has one.
    fn close(&mut self, conn: ConnId);

    /// Closes a connection whose further input is of no use (RFC 9112 §9.6): the peer sees the end of the stream after
    /// everything sent so far, and input is discarded until the peer closes, too. A peer that sends more than
    /// [`LINGER_BYTES`](crate::LINGER_BYTES) is reset, and so is one that has not closed within
    /// [`LINGER_TIME`](crate::LINGER_TIME), or, while it has not acknowledged everything, within
    /// [`LINGER_LIMIT`](crate::LINGER_LIMIT).
    ///
    /// [`Service::closed`] is the only further event of the connection, with [`CloseReason::Aborted`] after a reset by these
    /// bounds. No operation on it but [`abort`](Self::abort) is of use from then on.
    ///
    /// The default is for transports in memory, whose peers close.
    fn lingering_close(&mut self, conn: ConnId) {
        self.close(conn);
        self.consume(conn, usize::MAX);
    }

    /// Ends the connection at once with a reset; what was queued is dropped. [`Service::closed`] is the only further event of
    /// the connection.
    fn abort(&mut self, conn: ConnId);

    /// Asks for [`Service::timer`] after `delay`, in place of any time asked for before; `None` asks for none. An expiry of the
    /// earlier time that has not been delivered is dropped.
    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>);

    /// Begins to connect to `remote`. [`Service::opened`] or [`Service::failed`] says with the same `token` how
    /// it went.
    fn connect(&mut self, remote: SocketAddr, token: u64);

    /// Sends a datagram. It comes back when there is no room for it now, or no way to it.
    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram>;

    /// Drops a datagram that [`send_datagram`](Self::send_datagram) has given back, and counts it.
    fn drop_datagram(&mut self, datagram: Datagram) {
        drop(datagram);
    }

    /// Begins an operation on the memory of the connection's peer. [`Service::remote_done`] says with the same `token` what came of it.
    /// Those of one connection are done in their order.
    #[expect(unused_variables, reason = "the default has no such operations")]
    fn begin_remote(&mut self, conn: ConnId, operation: Remote, token: u64) -> Result<(), NoRemote> {
        Err(NoRemote::Unsupported)
    }
}

/// What [`Transport::answer`] does where it has no shorter way.
pub fn answer_in_steps(
    net: &mut impl Transport,
    conn: ConnId,
    request: usize,
    len: usize,
    write: impl FnOnce(&mut [u8]),
) -> bool {
    net.consume(conn, request);
    let Some(place) = net.reserve(conn, len).filter(|place| place.len() == len) else { return false };
    write(place);
    net.commit(conn, len);
    true
}

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

/// What other threads leave at a worker.
pub enum Letter<M> {
    /// A message, and to whom it goes.
    Message {
        /// The connection, or `None` for the worker's service.
        to: Option<ConnId>,
        /// What it says.
        message: M,
    },
    /// A question to the worker itself.
    Look(Box<Look>),
}

/// The way for other threads to wake a connection or a service, and to ask a worker how it is: one [`Mailbox`](crate::mailbox) per
/// worker.
pub struct Postbox<M> {
    workers: Vec<Sender<Letter<M>>>,
}

impl<M> Postbox<M> {
    /// A postbox that reaches the workers behind `workers`, in the order of their numbers.
    pub fn new(workers: Vec<Sender<Letter<M>>>) -> Self {
        Postbox { workers }
    }

    /// How many workers it reaches.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends `message` to the worker that owns `conn`, where [`Service::on_conn_message`] delivers it; if the connection
    /// is gone by then, the message is dropped. It comes back when that worker's mailbox is full.
    ///
    /// # Panics
    /// If `conn` is of a worker that this postbox does not reach.
    pub fn post(&self, conn: ConnId, message: M) -> Result<(), M> {
        self.send(conn.worker(), Some(conn), message)
    }

    /// Sends `message` to the service of `worker`, where [`Service::on_message`] delivers it for as long as the worker runs. It comes
    /// back when that worker's mailbox is full.
    ///
    /// # Panics
    /// If this postbox does not reach such a worker.
    pub fn tell(&self, worker: usize, message: M) -> Result<(), M> {
        self.send(worker, None, message)
    }

    /// Asks `worker`, which answers in its next turn; one that sleeps is woken. Returns whether there was room in its mailbox.
    ///
    /// # Panics
    /// If this postbox does not reach such a worker.
    pub fn look(&self, worker: usize, look: Look) -> bool {
        self.workers[worker].send(Letter::Look(Box::new(look))).is_ok()
    }

    fn send(&self, worker: usize, to: Option<ConnId>, message: M) -> Result<(), M> {
        match self.workers[worker].send(Letter::Message { to, message }) {
            Err(Letter::Message { message, .. }) => Err(message),
            // A mailbox gives back what it was given.
            Ok(()) | Err(Letter::Look(_)) => Ok(()),
        }
    }
}

impl<M> Clone for Postbox<M> {
    fn clone(&self) -> Self {
        Postbox { workers: self.workers.clone() }
    }
}

/// What a service is told when it is made, on its worker's thread.
pub struct Seat<M> {
    /// The number of this worker, counted from 0.
    pub worker: usize,
    /// How many workers there are.
    pub workers: usize,
    /// The way to every worker's connections.
    pub postbox: Postbox<M>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conn_id_keeps_its_three_parts_apart() {
        let id = ConnId::new(255, (1 << 24) - 1, u32::MAX);
        assert_eq!((id.worker(), id.slot(), id.generation()), (255, (1 << 24) - 1, u32::MAX));
        let id = ConnId::new(1, 2, 3);
        assert_eq!((id.worker(), id.slot(), id.generation()), (1, 2, 3));
        assert_eq!(ConnId::from_bits(id.to_bits()), id);
        assert_eq!(format!("{id:?}"), "1/2.3");
    }

    #[test]
    fn a_worker_knows_its_own_names() {
        let last = ConnId::MAX_SLOTS as u32 - 1;
        for (worker, slot, generation) in [(0, 0, 0), (7, 5, 3), (255, last, u32::MAX)] {
            let (names, conn) = (Names::of(worker), ConnId::new(worker, slot as usize, generation));
            assert_eq!((names.name(slot, generation), names.slot(conn)), (conn, slot as usize));
            assert!(Names::of(worker ^ 1).slot(conn) >= ConnId::MAX_SLOTS);
        }
    }
}
