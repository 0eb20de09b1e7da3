//! Operations that a worker offers to its service.

use crate::inspect::{ConnInfo, TlsInfo};
use crate::time::{Duration, Instant};
use crate::{Bytes, ConnId, Datagram, OneSidedError, OneSidedOp, Unsent, WriteError};
use std::net::{IpAddr, SocketAddr};

/// Operations of a worker on its connections, called from the handlers of a [`Service`](crate::Service).
///
/// A connection is named by its [`ConnId`]. An operation on a connection that has ended, or on one of another worker,
/// does nothing and returns [`WriteError::Closed`], `None`, or 0. Lengths are bytes.
///
/// # Receiving
///
/// Each connection has a queue of received slices. [`peek`](Self::peek) and [`consume`](Self::consume) read in place;
/// [`take`](Self::take) keeps a slice beyond the event. The queue is bounded: unconsumed bytes reduce the receive
/// window that the peer may use, down to zero.
///
/// # Sending
///
/// Sent bytes are queued until the peer acknowledges them. The queue is bounded by [`send_space`](Self::send_space).
/// There are three ways to send:
///
/// | operation | copies | use |
/// |---|---|---|
/// | [`send`](Self::send) | none, where the transport can | [`Bytes`] that exist already, and long data |
/// | [`reserve`](Self::reserve), then [`commit`](Self::commit) | none | data that is written in place |
/// | [`write`](Self::write) | all bytes | short data |
///
/// An operation that finds too little space sends nothing, or a part, as it documents.
/// [`Service::writable`](crate::Service::writable) follows when there is space again.
///
/// # Closing
///
/// | operation | peer sees | received bytes | further events |
/// |---|---|---|---|
/// | [`close`](Self::close) | FIN, after all queued bytes | delivered as before | all but `writable` |
/// | [`lingering_close`](Self::lingering_close) | FIN, after all queued bytes | discarded, within bounds | `closed` |
/// | [`abort`](Self::abort) | reset; queued bytes are dropped | discarded | `closed` |
pub trait Transport {
    /// Returns the time at which the current burst of events began. It is constant within an event.
    fn now(&self) -> Instant;

    /// Returns the index of this worker, from 0.
    fn worker(&self) -> usize;

    /// Returns the local address of the connection.
    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr>;

    /// Returns the peer's address of the connection.
    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr>;

    /// Returns the number of bytes received and not yet consumed.
    fn received(&self, conn: ConnId) -> usize;

    /// Returns the first received slice, in place. It is empty only if nothing is received.
    fn peek(&mut self, conn: ConnId) -> &[u8];

    /// Returns the first received slice, in place, and the number of all received bytes: [`peek`](Self::peek) and
    /// [`received`](Self::received) by one operation.
    fn front(&mut self, conn: ConnId) -> (&[u8], usize) {
        let received = self.received(conn);
        (self.peek(conn), received)
    }

    /// Drops the first `n` received bytes, or all if there are fewer.
    fn consume(&mut self, conn: ConnId, n: usize);

    /// Takes the first received slice, or its first `max` bytes, out of the queue. Copies nothing where the transport
    /// receives into memory that can be kept. Returns `None` if nothing is received or `max` is 0.
    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes>;

    /// Returns the number of bytes that can be sent now. A result of 0 counts as an operation that found too little
    /// space: [`Service::writable`](crate::Service::writable) follows.
    fn send_space(&mut self, conn: ConnId) -> usize;

    /// Sends `bytes`, without a copy where the transport can.
    ///
    /// # Errors
    /// Returns `bytes`, and sends nothing, if there is not space for all of them, or if the connection is closed.
    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent>;

    /// Returns a part of an outgoing buffer, of 1 to `max` bytes, to be filled and sent with [`commit`](Self::commit).
    /// Its contents are unspecified.
    ///
    /// # Errors
    /// There is no space, `max` is 0, or the connection is closed.
    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError>;

    /// Sends the first `n` bytes of the buffer that the last [`reserve`](Self::reserve) returned.
    ///
    /// # Panics
    /// If `n` exceeds the length of that buffer.
    fn commit(&mut self, conn: ConnId, n: usize);

    /// Copies as much of `bytes` as fits into outgoing buffers and sends it. Returns the number of bytes sent. Copying
    /// is worthwhile for short data; [`send`](Self::send) is the operation for long data.
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let Ok(buffer) = self.reserve(conn, bytes.len() - written) else {
                break;
            };
            let n = buffer.len();
            buffer.copy_from_slice(&bytes[written..written + n]);
            self.commit(conn, n);
            written += n;
        }
        written
    }

    /// Consumes the first `request` received bytes and sends a response of `len` bytes, which `write` writes in place.
    /// Returns whether the response was sent. Without space for it, the request is consumed all the same, and `write`
    /// is not called.
    ///
    /// The effect is that of [`consume`](Self::consume), [`reserve`](Self::reserve) and [`commit`](Self::commit). The
    /// transport takes a shorter path if the request is all that was received and the response fits into one segment.
    /// That segment is sent at once, so the response should be complete: bytes sent later take another segment.
    fn respond(&mut self, conn: ConnId, request: usize, len: usize, write: impl FnOnce(&mut [u8])) -> bool
    where
        Self: Sized,
    {
        respond_in_steps(self, conn, request, len, write)
    }

    /// Sends bytes received on `from` to `to`, as many as `to` has space for. Returns their number. `from` and `to` may
    /// be the same connection. Copies nothing where the transport can.
    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        forward_in_steps(self, from, to)
    }

    /// Finishes sending: the peer sees the end of the stream after all bytes sent so far. Receiving goes on, without a
    /// bound on bytes or time; [`lingering_close`](Self::lingering_close) has bounds.
    fn close(&mut self, conn: ConnId);

    /// Closes a connection whose further input is of no use (RFC 9112 §9.6). The peer sees the end of the stream after
    /// all bytes sent so far, and input is discarded until the peer closes, too.
    ///
    /// The connection is reset if the peer sends more than [`LINGER_BYTES`](crate::LINGER_BYTES), or does not close
    /// within [`LINGER_TIME`](crate::LINGER_TIME). While the peer has not acknowledged everything, the time is
    /// [`LINGER_LIMIT`](crate::LINGER_LIMIT).
    ///
    /// [`Service::closed`](crate::Service::closed) is the only further event of the connection, with
    /// [`CloseReason::Aborted`](crate::CloseReason::Aborted) after such a reset. The only further operation with an
    /// effect is [`abort`](Self::abort).
    ///
    /// The default suits transports in memory, whose peers close.
    fn lingering_close(&mut self, conn: ConnId) {
        self.close(conn);
        self.consume(conn, usize::MAX);
    }

    /// Resets the connection at once and drops its queued bytes. [`Service::closed`](crate::Service::closed) is the
    /// only further event of the connection.
    fn abort(&mut self, conn: ConnId);

    /// Sets the timer of the connection: [`Service::timer`](crate::Service::timer) occurs after `delay`. Replaces the
    /// previous setting, including an expiry that has not been delivered. `None` stops the timer.
    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>);

    /// Starts a connection to `remote`. [`Service::opened`](crate::Service::opened) or
    /// [`Service::failed`](crate::Service::failed) reports the outcome with the same `token`.
    fn connect(&mut self, remote: SocketAddr, token: u64);

    /// Sends a datagram.
    ///
    /// # Errors
    /// Returns the datagram if there is no space for it now, or no route to its destination.
    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram>;

    /// Sends a datagram of `len` bytes from `local` to `remote`, which `write` writes in place. Returns whether it was
    /// sent; [`send_datagram`](Self::send_datagram) lists the reasons for a failure. `write` must write all bytes,
    /// because the buffer may contain old data. If the datagram cannot be sent, `write` need not be called.
    ///
    /// The default writes to new memory. The stack writes to the packet that it sends.
    fn write_datagram(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool
    where
        Self: Sized,
    {
        send_written(self, local, remote, len, write)
    }

    /// Returns the number of datagrams that can be sent now, if their destinations are resolved. The default suits
    /// transports that cannot know.
    fn datagram_space(&self) -> usize {
        usize::MAX
    }

    /// Drops a datagram that [`send_datagram`](Self::send_datagram) returned, and counts the drop.
    fn drop_datagram(&mut self, datagram: Datagram) {
        drop(datagram);
    }

    /// Returns the local address from which packets to `remote` should be sent. The default suits transports without
    /// addresses of their own.
    fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let _ = remote;
        None
    }

    /// Returns information about the connection, where the transport has any.
    fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        let _ = conn;
        None
    }

    /// Returns the details of TLS on the connection; `None` for a plain one.
    fn tls_info(&self, conn: ConnId) -> Option<TlsInfo> {
        let _ = conn;
        None
    }

    /// Sets the keepalive of the connection, in place of that of the worker. The default suits transports without one.
    fn set_keepalive(&mut self, conn: ConnId, keepalive: Option<Keepalive>) {
        let _ = (conn, keepalive);
    }

    /// Sets the time after which the connection ends while the peer does not acknowledge, in place of that of the
    /// worker; `None` restores it. The default suits transports without one.
    fn set_user_timeout(&mut self, conn: ConnId, timeout: Option<Duration>) {
        let _ = (conn, timeout);
    }

    /// Withholds segments that are not full for up to 200 ms while `corked`, as TCP_CORK. The default suits transports
    /// that cannot.
    fn set_corked(&mut self, conn: ConnId, corked: bool) {
        let _ = (conn, corked);
    }

    /// Starts an operation on the memory of the connection's peer.
    /// [`Service::one_sided_done`](crate::Service::one_sided_done) reports the result with the same `token`. Operations
    /// of one connection complete in the order in which they were started.
    ///
    /// # Errors
    /// The transport has no such operations, or no resources for another one now.
    #[expect(unused_variables, reason = "the default has no such operations")]
    fn post_one_sided(&mut self, conn: ConnId, operation: OneSidedOp, token: u64) -> Result<(), OneSidedError> {
        Err(OneSidedError::Unsupported)
    }
}

/// Implements [`Transport::forward`] by take and send, for transports or connections without a shorter path.
pub fn forward_in_steps(net: &mut (impl Transport + ?Sized), from: ConnId, to: ConnId) -> usize {
    let mut moved = 0;
    while net.received(from) > 0 {
        let space = net.send_space(to);
        let Some(bytes) = net.take(from, space) else {
            break;
        };
        let n = bytes.len();
        if net.send(to, bytes).is_err() {
            break;
        }
        moved += n;
    }
    moved
}

/// Implements [`Transport::respond`] by consume, reserve and commit, for transports without a shorter path.
pub fn respond_in_steps(
    net: &mut impl Transport,
    conn: ConnId,
    request: usize,
    len: usize,
    write: impl FnOnce(&mut [u8]),
) -> bool {
    net.consume(conn, request);
    let Some(buffer) = net.reserve(conn, len).ok().filter(|buffer| buffer.len() == len) else { return false };
    write(buffer);
    net.commit(conn, len);
    true
}

/// Implements [`Transport::write_datagram`] with a new buffer, for transports or datagrams without a shorter path.
pub fn send_written(
    net: &mut impl Transport,
    local: SocketAddr,
    remote: SocketAddr,
    len: usize,
    write: impl FnOnce(&mut [u8]),
) -> bool {
    let mut payload = vec![0; len];
    write(&mut payload);
    net.send_datagram(Datagram { local, remote, payload: payload.into() }).is_ok()
}

/// Keepalive timing of an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Time without a segment from the peer before the first probe, at most 38 hours.
    pub idle: Duration,
    /// Time between probes, at most 38 hours.
    pub interval: Duration,
    /// Number of unanswered probes before the connection is aborted.
    pub probes: u8,
}

impl Default for Keepalive {
    /// Returns an idle time of two hours (the minimum default of RFC 9293 §3.8.4), then nine probes 75 s apart, as
    /// common systems do.
    fn default() -> Self {
        Keepalive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}
