//! Traits of hyper 1.

use crate::context;
use crate::tcp::TcpStream;
use crate::time::{self, Sleep};
use hyper::rt::{Executor, Read, ReadBufCursor, Timer, Write};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

impl Read for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        self.get_mut().halves().0.poll_copy(cx, room, |part| buffer.put_slice(part))
    }
}

impl Write for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().halves().1.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().shutdown();
        Poll::Ready(Ok(()))
    }
}

/// Executor of hyper that spawns tasks on the current worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct HyperExecutor;

impl<F> Executor<F> for HyperExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        drop(crate::spawn(future));
    }
}

/// Timer of hyper on the clock of the current worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct HyperTimer;

impl hyper::rt::Sleep for Sleep {}

impl Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(time::sleep(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(time::sleep(deadline.saturating_duration_since(self.now())))
    }

    fn now(&self) -> Instant {
        context::executor(|executor| executor.std_now())
    }
}
