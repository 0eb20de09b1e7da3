//! Traits of tokio.

use crate::tcp::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

impl AsyncRead for OwnedReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        self.get_mut().poll_copy(cx, room, |part| buffer.put_slice(part))
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().halves().0).poll_read(cx, buffer)
    }
}

implement!(AsyncBufRead for OwnedReadHalf, this => this);
implement!(AsyncWrite for OwnedWriteHalf, this => this, poll_shutdown);
implement!(AsyncBufRead for TcpStream, this => this.halves().0);
implement!(AsyncWrite for TcpStream, this => this.halves().1, poll_shutdown);
