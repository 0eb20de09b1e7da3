//! Traits of futures-io.

use crate::tcp::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

impl AsyncRead for OwnedReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        OwnedReadHalf::poll_read(self.get_mut(), cx, buffer)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        OwnedReadHalf::poll_read(self.get_mut().halves().0, cx, buffer)
    }
}

implement!(AsyncBufRead for OwnedReadHalf, this => this);
implement!(AsyncWrite for OwnedWriteHalf, this => this, poll_close);
implement!(AsyncBufRead for TcpStream, this => this.halves().0);
implement!(AsyncWrite for TcpStream, this => this.halves().1, poll_close);
