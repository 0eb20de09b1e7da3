//! State of a connection that its stream shares with the worker.

use crate::context::{self, Turn};
use crate::executor::Executor;
use crate::waiter::Waiter;
use linerate_bypass::{Bytes, CloseReason, ConnId, ConnectError, Transport};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

/// Reason why an operation on a connection fails. It is the source of an [`io::Error`].
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

/// Reason of a [`ConnError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnErrorReason {
    /// The peer reset the connection.
    #[error("reset by peer")]
    Reset,
    /// The connection was reset locally.
    #[error("reset locally")]
    Aborted,
    /// The peer stopped acknowledging.
    #[error("timed out: the peer does not acknowledge")]
    TimedOut,
    /// No data moved within the idle timeout.
    #[error("idle timeout")]
    IdleTimeout,
    /// The local address has expired.
    #[error("the local address has expired")]
    AddressLost,
    /// Sending was attempted after the end of the stream.
    #[error("sending has been shut down")]
    ShutDown,
}

/// Longest slice that [`Conn::poll_send_bytes`] copies. The copy takes fewer instructions than a packet for the headers
/// that are chained to the slice.
const SHORT: usize = 256;

/// Connection of one worker.
pub(crate) struct Conn {
    pub id: ConnId,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Identity of the executor that owns the connection.
    executor: usize,
    pub reader: Waiter,
    /// False after an attempt to receive has found nothing, until the next event of received bytes.
    pub has_input: Cell<bool>,
    pub writer: Waiter,
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
            peer_closed: Cell::new(false),
            is_shut_down: Cell::new(false),
            ended: Cell::new(None),
            ends: Cell::new(0),
        }
    }

    /// Begins an operation of the running task.
    #[inline]
    fn poll_operation(&self, turn: &Turn<'_>, cx: &mut Context<'_>) -> Poll<()> {
        assert_eq!(turn.executor.id(), self.executor, "connection {} belongs to another worker", self.peer);
        turn.executor.poll_operation(cx)
    }

    /// Receives by `receive`, which returns `None` if nothing is received. Returns `None` at the end of the stream.
    #[inline]
    pub fn poll_receive<R>(
        &self,
        cx: &mut Context<'_>,
        receive: impl FnOnce(&mut dyn Transport, ConnId) -> Option<R>,
    ) -> Poll<io::Result<Option<R>>> {
        let received = context::turn(|turn| {
            std::task::ready!(self.poll_operation(turn, cx));
            if !self.has_input.get() {
                return Poll::Ready(None);
            }
            let received = turn.net(|net| receive(net, self.id));
            if received.is_none() {
                self.has_input.set(false);
            }
            Poll::Ready(received)
        });
        if let Some(received) = std::task::ready!(received) {
            return Poll::Ready(Ok(Some(received)));
        }
        match self.ended.get() {
            None if self.peer_closed.get() => Poll::Ready(Ok(None)),
            None => {
                self.reader.wait(cx);
                Poll::Pending
            }
            Some(CloseReason::Finished) => Poll::Ready(Ok(None)),
            Some(reason) => Poll::Ready(Err(self.ended_error(reason))),
        }
    }

    /// Sends by `send`, which returns `None` if there is no space.
    #[inline]
    pub fn poll_send<R>(
        &self,
        cx: &mut Context<'_>,
        send: impl FnOnce(&mut dyn Transport, ConnId) -> Option<R>,
    ) -> Poll<io::Result<R>> {
        let sent = context::turn(|turn| {
            std::task::ready!(self.poll_operation(turn, cx));
            if self.ended.get().is_some() || self.is_shut_down.get() {
                return Poll::Ready(Err(self.send_error()));
            }
            Poll::Ready(Ok(turn.net(|net| send(net, self.id))))
        });
        match std::task::ready!(sent)? {
            Some(sent) => Poll::Ready(Ok(sent)),
            None => {
                self.writer.wait(cx);
                Poll::Pending
            }
        }
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
        self.poll_send(cx, |net, id| {
            if bytes.len() <= SHORT {
                bytes.advance(net.write(id, bytes));
                return bytes.is_empty().then_some(());
            }
            match net.send(id, std::mem::take(bytes)) {
                Ok(()) => return Some(()),
                Err(unsent) => *bytes = unsent,
            }
            while !bytes.is_empty() {
                let space = net.send_space(id).min(bytes.len());
                if space == 0 || net.send(id, bytes.slice(..space)).is_err() {
                    return None;
                }
                bytes.advance(space);
            }
            Some(())
        })
    }

    /// Finishes sending.
    pub fn shut_down(&self) {
        if !self.is_shut_down.replace(true) && self.ended.get().is_none() {
            context::net(|net| net.close(self.id));
        }
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
