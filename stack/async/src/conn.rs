//! State of a connection that its stream shares with the worker.

use crate::context::{self, Turn};
use crate::executor::Executor;
use crate::short_reads::SHORT;
use crate::waiter::Waiter;
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Transport};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

/// Reason that an operation on a connection fails. It is the source of an [`io::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("connection {local} to {peer}: {reason}")]
pub struct ConnError {
    /// Local address.
    pub local: SocketAddr,
    /// Peer's address.
    pub peer: SocketAddr,
    /// Reason.
    pub reason: ConnErrorReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum ConnErrorReason {
    #[error("reset by peer")]
    Reset,
    #[error("reset locally")]
    Aborted,
    #[error("timed out: the peer does not acknowledge")]
    TimedOut,
    #[error("idle timeout")]
    IdleTimeout,
    #[error("the local address has expired")]
    AddressLost,
    #[error("sending has been shut down")]
    ShutDown,
}

/// Longest response that is sent by [`Transport::respond`]. A longer response may not fit into one segment.
const RESPONSE: usize = 1024;

pub(crate) struct Conn {
    pub id: ConnId,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Identity of the executor that owns the connection.
    executor: usize,
    pub reader: Waiter,
    /// False after all received bytes were read, until more bytes or a FIN are received, or the connection ends.
    pub has_input: Cell<bool>,
    pub writer: Waiter,
    /// True if a response was sent by [`Transport::respond`] and no bytes were read since then.
    has_responded: Cell<bool>,
    /// True once more bytes were written after a response: the task writes its responses in parts, which are then sent
    /// together at the end of the turn.
    writes_parts: Cell<bool>,
    pub peer_closed: Cell<bool>,
    pub is_shut_down: Cell<bool>,
    pub ended: Cell<Option<CloseReason>>,
    /// Halves of the stream that have not been dropped.
    pub ends: Cell<u8>,
}

impl Conn {
    pub fn new(id: ConnId, net: &impl Transport, executor: &Executor) -> Self {
        // A connection that has just been opened has addresses.
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Conn {
            id,
            local: net.local_addr(id).unwrap_or(nowhere),
            peer: net.peer_addr(id).unwrap_or(nowhere),
            executor: executor.id(),
            reader: Waiter::default(),
            has_input: Cell::new(true),
            writer: Waiter::default(),
            has_responded: Cell::new(false),
            writes_parts: Cell::new(false),
            peer_closed: Cell::new(false),
            is_shut_down: Cell::new(false),
            ended: Cell::new(None),
            ends: Cell::new(0),
        }
    }

    /// Begins an operation of the running task.
    #[inline]
    fn poll_operation(&self, turn: &Turn<'_>, cx: &mut Context<'_>) -> Poll<()> {
        self.check_worker(turn);
        turn.executor.poll_operation(cx)
    }

    /// Panics in a task of another worker, where the identifier denotes another connection.
    #[inline]
    fn check_worker(&self, turn: &Turn<'_>) {
        if turn.executor.id() != self.executor {
            self.refuse_worker();
        }
    }

    #[cold]
    fn refuse_worker(&self) -> ! {
        panic!("connection {} belongs to another worker", self.peer)
    }

    /// Returns whether there is nothing to receive and the task of `cx` waited last, and registers this task again.
    #[inline]
    fn waits_again(&self, cx: &Context<'_>) -> bool {
        !self.has_input.get() && self.reader.wait_again(cx)
    }

    /// Receives a slice. Empty bytes are the end of the stream.
    #[inline]
    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        if self.waits_again(cx) {
            return Poll::Pending;
        }
        context::turn(|turn| {
            ready!(self.poll_operation(turn, cx));
            if self.has_input.get()
                && let Some(bytes) = turn.take(self)
            {
                return Poll::Ready(Ok(bytes));
            }
            self.poll_end(turn, cx).map_ok(|()| Bytes::new())
        })
    }

    /// Takes a received slice, by copy if it is short.
    #[inline]
    pub fn take_from(&self, net: &mut impl Transport, executor: &Executor) -> Option<Bytes> {
        executor.unconsumed.consume(net);
        let (slice, received) = net.front(self.id);
        let len = slice.len();
        let copy = executor.short_reads.copy(slice);
        if copy.is_some() {
            self.note_copied(net, executor, len, received);
            return copy;
        }
        let bytes = net.take(self.id, usize::MAX)?;
        self.note_read(received > bytes.len());
        Some(bytes)
    }

    /// Receives up to `room` bytes, at least one, and passes them to `copy`, slice by slice. At the end of the stream,
    /// `copy` is not called. `copy` runs no code of the application.
    #[inline]
    pub fn poll_copy(&self, cx: &mut Context<'_>, room: usize, copy: &mut dyn FnMut(&[u8])) -> Poll<io::Result<()>> {
        if self.waits_again(cx) {
            return Poll::Pending;
        }
        context::turn(|turn| {
            ready!(self.poll_operation(turn, cx));
            if self.has_input.get() && turn.copy(self, room, copy) > 0 {
                return Poll::Ready(Ok(()));
            }
            self.poll_end(turn, cx)
        })
    }

    /// Passes up to `room` received bytes to `copy`, slice by slice. Returns their number.
    #[inline]
    pub fn copy_from(
        &self,
        net: &mut impl Transport,
        executor: &Executor,
        room: usize,
        copy: &mut dyn FnMut(&[u8]),
    ) -> usize {
        executor.unconsumed.consume(net);
        let mut len = 0;
        loop {
            let (slice, received) = net.front(self.id);
            let n = slice.len().min(room - len);
            if n == 0 {
                return len;
            }
            copy(&slice[..n]);
            len += n;
            if !self.note_copied(net, executor, n, received) {
                return len;
            }
        }
    }

    /// Consumes the first `n` of the `received` bytes, which were copied. If no further bytes are left, a response or
    /// the end of the poll consumes them instead. Returns whether further bytes are left.
    #[inline]
    fn note_copied(&self, net: &mut impl Transport, executor: &Executor, n: usize, received: usize) -> bool {
        let has_more = received > n;
        if has_more {
            net.consume(self.id, n);
        } else {
            executor.unconsumed.set(self.id, n);
        }
        self.note_read(has_more);
        has_more
    }

    /// Updates the state after bytes were read.
    #[inline]
    fn note_read(&self, has_more: bool) {
        self.has_input.set(has_more);
        self.has_responded.set(false);
    }

    /// Waits for input, unless the stream has ended.
    #[inline]
    fn poll_end(&self, turn: &Turn<'_>, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match self.ended.get() {
            None if self.peer_closed.get() => Poll::Ready(Ok(())),
            None => {
                self.has_input.set(false);
                self.reader.wait(turn.executor, cx);
                Poll::Pending
            }
            Some(CloseReason::Finished) => Poll::Ready(Ok(())),
            Some(reason) => Poll::Ready(Err(self.ended_error(reason))),
        }
    }

    /// Sends by `send`, which returns `None` if there is no space.
    #[inline]
    fn poll_send<R>(&self, cx: &mut Context<'_>, send: impl FnOnce(&Turn<'_>) -> Option<R>) -> Poll<io::Result<R>> {
        context::turn(|turn| {
            ready!(self.poll_operation(turn, cx));
            if self.ended.get().is_some() || self.is_shut_down.get() {
                return Poll::Ready(Err(self.send_error()));
            }
            match send(turn) {
                Some(sent) => Poll::Ready(Ok(sent)),
                None => {
                    self.writer.wait(turn.executor, cx);
                    Poll::Pending
                }
            }
        })
    }

    /// Copies and sends as much of `bytes` as fits. Returns the number of bytes.
    #[inline]
    pub fn write_to(&self, net: &mut impl Transport, executor: &Executor, bytes: &[u8]) -> usize {
        if !self.writes_parts.get()
            && (1..=RESPONSE).contains(&bytes.len())
            && let Some(request) = executor.unconsumed.take_of(self.id)
            && net.respond(self.id, request, bytes.len(), |out| out.copy_from_slice(bytes))
        {
            self.has_responded.set(true);
            return bytes.len();
        }
        self.write_queued(net, executor, bytes)
    }

    #[inline(never)]
    fn write_queued(&self, net: &mut impl Transport, executor: &Executor, bytes: &[u8]) -> usize {
        if self.has_responded.get() {
            self.writes_parts.set(true);
        }
        executor.unconsumed.consume(net);
        net.write(self.id, bytes)
    }

    /// Copies and sends as much of `bytes` as fits. Returns the number of bytes.
    #[inline]
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |turn| {
            let sent = turn.write(self, bytes);
            (sent > 0 || bytes.is_empty()).then_some(sent)
        })
    }

    /// Returns the error of an attempt to send after the end.
    #[cold]
    fn send_error(&self) -> io::Error {
        match self.ended.get() {
            None | Some(CloseReason::Finished) => self.error(ConnErrorReason::ShutDown),
            Some(reason) => self.ended_error(reason),
        }
    }

    /// Sends `bytes`, or the part for which there is space. Returns `Ready` once all are sent. Short slices are copied.
    #[inline]
    pub fn poll_send_bytes(&self, cx: &mut Context<'_>, bytes: &mut Bytes) -> Poll<io::Result<()>> {
        self.poll_send(cx, |turn| {
            if bytes.len() <= SHORT {
                let sent = turn.write(self, bytes);
                bytes.advance(sent);
                return bytes.is_empty().then_some(());
            }
            turn.net(|net| send_slice(net, self.id, bytes))
        })
    }

    /// Finishes sending.
    pub fn shut_down(&self) {
        context::turn(|turn| {
            self.check_worker(turn);
            if !self.is_shut_down.replace(true) && self.ended.get().is_none() {
                turn.net(|net| net.close(self.id));
            }
        });
    }

    /// Calls `operation` unless the connection has ended. Does nothing outside of a turn: the worker has ended, and
    /// has reset its connections.
    pub fn drop_with(&self, operation: impl FnOnce(&mut dyn Transport, ConnId)) {
        let is_own = context::try_executor(|executor| executor.id() == self.executor);
        if is_own == Some(true) && self.ended.get().is_none() {
            context::net(|net| operation(net, self.id));
        }
    }

    fn ended_error(&self, reason: CloseReason) -> io::Error {
        self.error(match reason {
            CloseReason::Reset => ConnErrorReason::Reset,
            CloseReason::TimedOut => ConnErrorReason::TimedOut,
            CloseReason::IdleTimeout => ConnErrorReason::IdleTimeout,
            CloseReason::AddressLost => ConnErrorReason::AddressLost,
            _ => ConnErrorReason::Aborted,
        })
    }

    fn error(&self, reason: ConnErrorReason) -> io::Error {
        let kind = match reason {
            ConnErrorReason::Reset => io::ErrorKind::ConnectionReset,
            ConnErrorReason::TimedOut | ConnErrorReason::IdleTimeout => io::ErrorKind::TimedOut,
            ConnErrorReason::AddressLost => io::ErrorKind::AddrNotAvailable,
            ConnErrorReason::ShutDown => io::ErrorKind::BrokenPipe,
            ConnErrorReason::Aborted => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, ConnError { local: self.local, peer: self.peer, reason })
    }
}

/// Sends `bytes`, or the part for which there is space. Returns `None` if a part remains.
fn send_slice(net: &mut dyn Transport, id: ConnId, bytes: &mut Bytes) -> Option<()> {
    match net.send(id, std::mem::take(bytes)) {
        Ok(()) => return Some(()),
        Err(unsent) => *bytes = unsent.bytes,
    }
    while !bytes.is_empty() {
        let space = net.send_space(id).min(bytes.len());
        if space == 0 || net.send(id, bytes.slice(..space)).is_err() {
            return None;
        }
        bytes.advance(space);
    }
    Some(())
}

/// Connection attempt that failed. It is the source of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {remote}: {source}")]
struct ConnectFailed {
    remote: SocketAddr,
    source: ConnectError,
}

/// Returns the error of a connection attempt to `remote`.
pub(crate) fn connect_error(remote: SocketAddr, source: ConnectError) -> io::Error {
    let kind = match source {
        ConnectError::Refused => io::ErrorKind::ConnectionRefused,
        ConnectError::TimedOut => io::ErrorKind::TimedOut,
        ConnectError::InvalidAddress => io::ErrorKind::InvalidInput,
        ConnectError::NoLocalAddress => io::ErrorKind::AddrNotAvailable,
        ConnectError::TooMany => io::ErrorKind::QuotaExceeded,
        _ => io::ErrorKind::HostUnreachable,
    };
    io::Error::new(kind, ConnectFailed { remote, source })
}
