//! Stream of a client, whose first bytes identify the protocol.

use crate::frames::{ENHANCE_YOUR_CALM, Frames};
use hyper::rt::{Read, ReadBufCursor, Write};
use linerate_async::{OwnedReadHalf, OwnedWriteHalf, TcpStream, now};
use linerate_service::time::Instant;
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

/// Stream that replays the bytes read to identify its protocol, records the time of the last progress, and limits the
/// frames of HTTP/2.
pub(crate) struct ClientStream {
    // Dropped in this order, as a whole stream: closing lingers.
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    /// Bytes `replayed..read` are to be read again.
    first: [u8; PREFACE.len()],
    read: usize,
    replayed: usize,
    progress: Rc<Cell<Instant>>,
    /// Frames after the preface of HTTP/2.
    frames: Option<Frames>,
}

impl ClientStream {
    /// Creates a stream that stores the time of the last bytes of a response in `progress`.
    pub fn new(stream: TcpStream, progress: Rc<Cell<Instant>>) -> Self {
        let (reader, writer) = stream.into_split();
        ClientStream { reader, writer, first: [0; PREFACE.len()], read: 0, replayed: 0, progress, frames: None }
    }

    /// Waits for the first bytes. Returns `None` if the stream ends before they identify the protocol.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn protocol(&mut self) -> io::Result<Option<Protocol>> {
        while self.read < PREFACE.len() {
            let n = self.reader.read(&mut self.first[self.read..]).await?;
            self.read += n;
            if self.first[..self.read] != PREFACE[..self.read] {
                return Ok(Some(Protocol::Http1));
            }
            if n == 0 {
                return Ok(None);
            }
        }
        self.frames = Some(Frames::new(now()));
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
        let room = buffer.remaining();
        ready!(this.reader.poll_copy(cx, room, |part| {
            if let Some(frames) = &mut this.frames {
                frames.receive(part);
            }
            buffer.put_slice(part);
        }))?;
        let Some(frames) = &mut this.frames else { return Poll::Ready(Ok(())) };
        if !frames.is_flood(now) {
            return Poll::Ready(Ok(()));
        }
        if frames.has_sent_whole_frames() {
            // Nothing follows: hyper ends the connection at the error.
            let _ = this.writer.poll_write(cx, &ENHANCE_YOUR_CALM);
        }
        Poll::Ready(Err(io::Error::other("more frames than its responses are worth")))
    }
}

impl Write for ClientStream {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = ready!(self.writer.poll_write(cx, bytes))?;
        // HTTP/1.1 has nothing but responses.
        if self.frames.as_mut().is_none_or(|frames| frames.send(&bytes[..sent])) {
            self.progress.set(now());
        }
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The stream buffers nothing.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.shutdown();
        Poll::Ready(Ok(()))
    }
}
