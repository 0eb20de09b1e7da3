//! Operations that a worker offers to its service.

use super::conn_id::ConnId;
use super::event::Datagram;
use crate::time::{Duration, Instant};
use crate::{Bytes, NoRemote, Remote};
use std::net::SocketAddr;

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
