//! Stream of a client, whose first bytes identify the protocol.

use hyper::rt::{Read, ReadBufCursor, Write};
use linerate_async::{TcpStream, now};
use linerate_bypass::time::Instant;
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// First bytes of a client that knows that the server supports HTTP/2 (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Version of HTTP of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Stream that replays the bytes read to identify its protocol, and records the time of the last progress.
pub(crate) struct ClientStream {
    stream: TcpStream,
    /// Bytes `replayed..read` are to be read again.
    first: [u8; PREFACE.len()],
    read: usize,
    replayed: usize,
    progress: Rc<Cell<Instant>>,
}

impl ClientStream {
    /// Creates a stream that stores the time of the last bytes sent in `progress`.
    pub fn new(stream: TcpStream, progress: Rc<Cell<Instant>>) -> Self {
        ClientStream { stream, first: [0; PREFACE.len()], read: 0, replayed: 0, progress }
    }

    /// Waits for the first bytes. Returns `None` if the stream ends before they identify the protocol.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn protocol(&mut self) -> io::Result<Option<Protocol>> {
        while self.read < PREFACE.len() {
            let n = self.stream.read(&mut self.first[self.read..]).await?;
            self.read += n;
            if self.first[..self.read] != PREFACE[..self.read] {
                return Ok(Some(Protocol::Http1));
            }
            if n == 0 {
                return Ok(None);
            }
        }
        Ok(Some(Protocol::Http2))
    }
}

impl Read for ClientStream {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.replayed < this.read {
            let n = buffer.remaining().min(this.read - this.replayed);
            buffer.put_slice(&this.first[this.replayed..this.replayed + n]);
            this.replayed += n;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(cx, buffer)
    }
}

impl Write for ClientStream {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.progress.set(now());
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
