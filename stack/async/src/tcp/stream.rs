//! Streams.

use crate::conn::Conn;
use crate::context;
use linerate_service::{Bytes, CloseReason, ConnId};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// TCP connection.
///
/// # Receiving
///
/// Received bytes wait in the transport's queue until a task reads them. A task that does not read closes the receive
/// window, which stops the peer. [`read_bytes`](Self::read_bytes) takes a received slice, and
/// [`fill_buf`](Self::fill_buf) borrows it, without a copy of more than 256 bytes; [`read`](Self::read) copies.
///
/// # Sending
///
/// Sent bytes wait in the transport's queue until the peer acknowledges them. A task that writes waits while the queue
/// is full. [`write_bytes`](Self::write_bytes) sends more than 256 bytes without a copy where the transport can;
/// [`write`](Self::write) copies. Nothing is buffered in the stream: flushing does nothing. A response of at most 1024
/// bytes, written in the poll that has read all of the request, is sent at once; other bytes are sent together at the
/// end of the worker's turn.
///
/// # Ending
///
/// [`shutdown`](Self::shutdown) ends sending only (half-close). Dropping the stream closes the connection: the peer
/// receives all bytes written so far and the end of the stream, and further input is discarded within the bounds of
/// [`lingering_close`](linerate_service::Transport::lingering_close). [`reset`](Self::reset), and a panic of the task
/// that holds the stream, reset the connection.
#[derive(Debug)]
#[must_use = "dropping a stream closes the connection"]
pub struct TcpStream {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
}

/// Receiving half of a [`TcpStream`]. If it is dropped first, the connection goes on sending, and unread input closes
/// the receive window.
#[derive(Debug)]
pub struct OwnedReadHalf {
    end: End,
    /// Unconsumed rest of the slice that [`fill_buf`](Self::fill_buf) has returned.
    borrowed: Bytes,
}

/// Sending half of a [`TcpStream`]. Dropping it ends sending.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    end: End,
}

/// Share of a connection. The connection is closed when the last share is dropped.
struct End {
    conn: Rc<Conn>,
    sends: bool,
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.conn.local, self.conn.peer)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let conn = &self.conn;
        let is_panic = context::try_executor(|executor| executor.is_unwinding()) == Some(true);
        let is_last = conn.ends.replace(conn.ends.get() - 1) == 1;
        if is_panic {
            conn.drop_with(|net, id| net.abort(id));
        } else if is_last {
            conn.drop_with(|net, id| net.lingering_close(id));
        } else if self.sends && !conn.is_shut_down.replace(true) {
            conn.drop_with(|net, id| net.close(id));
        }
    }
}

impl TcpStream {
    pub(crate) fn new(conn: Rc<Conn>) -> Self {
        conn.ends.set(2);
        let end = |sends| End { conn: conn.clone(), sends };
        TcpStream {
            reader: OwnedReadHalf { end: end(false), borrowed: Bytes::new() },
            writer: OwnedWriteHalf { end: end(true) },
        }
    }

    /// Connects to `remote`. A connection that is established after the future was dropped is reset.
    ///
    /// # Errors
    /// The connection could not be established. The source of the error is a
    /// [`ConnectError`](linerate_service::ConnectError).
    pub async fn connect(remote: SocketAddr) -> io::Result<TcpStream> {
        let (token, connecting) = context::executor(|executor| executor.registry.begin_connect());
        context::net(|net| net.connect(remote, token));
        poll_fn(|cx| connecting.poll(cx)).await.map_err(|error| crate::conn::connect_error(remote, error))
    }

    /// Returns the identifier of the connection at its worker.
    pub fn id(&self) -> ConnId {
        self.conn().id
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.conn().local)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.conn().peer)
    }

    /// Waits for received bytes and takes a slice of them. A slice of more than 256 bytes is not copied where the
    /// transport receives into memory that can be kept. Empty bytes are the end of the stream. No bytes are lost if the
    /// future is dropped.
    ///
    /// # Errors
    /// The connection was reset or timed out.
    #[inline]
    pub fn read_bytes(&mut self) -> impl Future<Output = io::Result<Bytes>> {
        self.reader.read_bytes()
    }

    /// Waits for received bytes and copies them into `buffer`. Returns their number; 0 is the end of the stream, or an
    /// empty buffer. No bytes are lost if the future is dropped.
    ///
    /// # Errors
    /// The connection was reset or timed out.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        self.reader.read(buffer)
    }

    /// Waits for received bytes and borrows a slice of them, which stays unread until [`consume`](Self::consume). An
    /// empty slice is the end of the stream.
    ///
    /// # Errors
    /// The connection was reset or timed out.
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf().await
    }

    /// Drops the first `n` bytes of the slice that [`fill_buf`](Self::fill_buf) returns.
    ///
    /// # Panics
    /// If `n` exceeds the length of the slice.
    pub fn consume(&mut self, n: usize) {
        self.reader.consume(n);
    }

    /// Sends `bytes`. More than 256 bytes are not copied where the transport can send without a copy. If the future is
    /// dropped before it is complete, a part may have been sent.
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    #[inline]
    pub fn write_bytes(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> {
        self.writer.write_bytes(bytes)
    }

    /// Waits for send space, copies as much of `bytes` as fits, and returns the number of bytes sent.
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<usize>> {
        self.writer.write(bytes)
    }

    /// Copies and sends all of `bytes`. If the future is dropped before it is complete, a part may have been sent.
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    #[inline]
    pub fn write_all(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> {
        self.writer.write_all(bytes)
    }

    /// Finishes sending: the peer sees the end of the stream after all bytes sent so far. Receiving goes on.
    pub fn shutdown(&mut self) {
        self.writer.shutdown();
    }

    /// Resets the connection.
    pub fn reset(self) {
        self.conn().drop_with(|net, id| net.abort(id));
        self.conn().ended.set(Some(CloseReason::Aborted));
    }

    /// Divides the stream into halves for two tasks.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (self.reader, self.writer)
    }

    #[cfg_attr(not(any(feature = "tokio", feature = "futures", feature = "hyper")), expect(dead_code))]
    pub(crate) fn halves(&mut self) -> (&mut OwnedReadHalf, &mut OwnedWriteHalf) {
        (&mut self.reader, &mut self.writer)
    }

    fn conn(&self) -> &Conn {
        &self.reader.end.conn
    }
}

impl OwnedReadHalf {
    /// As [`TcpStream::read_bytes`].
    ///
    /// # Errors
    /// The connection was reset or timed out.
    #[inline]
    pub fn read_bytes(&mut self) -> impl Future<Output = io::Result<Bytes>> {
        poll_fn(|cx| self.poll_read_bytes(cx))
    }

    /// As [`TcpStream::read`].
    ///
    /// # Errors
    /// The connection was reset or timed out.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        poll_fn(|cx| self.poll_read(cx, buffer))
    }

    /// As [`TcpStream::fill_buf`].
    ///
    /// # Errors
    /// The connection was reset or timed out.
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        poll_fn(|cx| self.poll_borrow(cx)).await?;
        Ok(&self.borrowed)
    }

    /// As [`TcpStream::consume`].
    ///
    /// # Panics
    /// If `n` exceeds the length of the slice.
    pub fn consume(&mut self, n: usize) {
        self.borrowed.advance(n);
    }

    /// Polls for a received slice. Empty bytes are the end of the stream.
    ///
    /// # Errors
    /// The connection was reset or timed out.
    #[inline]
    pub fn poll_read_bytes(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        if !self.borrowed.is_empty() {
            return Poll::Ready(Ok(std::mem::take(&mut self.borrowed)));
        }
        self.end.conn.poll_take(cx)
    }

    /// Polls for received bytes and copies them into `buffer`. Returns their number; 0 is the end of the stream, or an
    /// empty buffer.
    ///
    /// # Errors
    /// The connection was reset or timed out.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        let room = buffer.len();
        let copied = self.poll_copy(cx, room, |part| {
            buffer[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        });
        copied.map_ok(|()| filled)
    }

    /// Polls for a received slice and borrows it. An empty slice is the end of the stream.
    ///
    /// # Errors
    /// The connection was reset or timed out.
    pub fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        ready!(self.poll_borrow(cx))?;
        Poll::Ready(Ok(&self.borrowed))
    }

    fn poll_borrow(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.borrowed.is_empty() {
            self.borrowed = ready!(self.poll_read_bytes(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Polls for received bytes and passes up to `room` of them to `copy`, slice by slice. No slice is the end of the
    /// stream.
    ///
    /// # Errors
    /// The connection was reset or timed out.
    pub fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        mut copy: impl FnMut(&[u8]),
    ) -> Poll<io::Result<()>> {
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        if !self.borrowed.is_empty() {
            let n = self.borrowed.len().min(room);
            copy(&self.borrowed[..n]);
            self.borrowed.advance(n);
            return Poll::Ready(Ok(()));
        }
        self.end.conn.poll_copy(cx, room, &mut copy)
    }
}

impl OwnedWriteHalf {
    /// As [`TcpStream::write_bytes`].
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    #[inline]
    pub fn write_bytes(&mut self, mut bytes: Bytes) -> impl Future<Output = io::Result<()>> {
        poll_fn(move |cx| self.poll_write_bytes(cx, &mut bytes))
    }

    /// As [`TcpStream::write`].
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<usize>> {
        poll_fn(|cx| self.poll_write(cx, bytes))
    }

    /// As [`TcpStream::write_all`].
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.write(bytes).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// As [`TcpStream::shutdown`].
    pub fn shutdown(&mut self) {
        self.end.conn.shut_down();
    }

    /// Polls until all of `bytes` are sent. Bytes that were sent are removed from `bytes`.
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    #[inline]
    pub fn poll_write_bytes(&mut self, cx: &mut Context<'_>, bytes: &mut Bytes) -> Poll<io::Result<()>> {
        self.end.conn.poll_send_bytes(cx, bytes)
    }

    /// Polls for send space and copies as much of `bytes` as fits. Returns the number of bytes sent.
    ///
    /// # Errors
    /// The connection has ended, or sending was shut down.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.end.conn.poll_write(cx, bytes)
    }
}
