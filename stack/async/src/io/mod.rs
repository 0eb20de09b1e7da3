//! Traits of other libraries.

/// Implements the traits that tokio and futures-io define alike, except for the method `$end` that ends a stream, for
/// `$type`, whose half `$half` of the value `$this` carries the data.
#[cfg(any(feature = "futures", feature = "tokio"))]
macro_rules! implement {
    (AsyncBufRead for $type:ty, $this:ident => $half:expr) => {
        impl AsyncBufRead for $type {
            fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                let $this = self.get_mut();
                OwnedReadHalf::poll_fill_buf($half, cx)
            }

            fn consume(self: Pin<&mut Self>, n: usize) {
                let $this = self.get_mut();
                OwnedReadHalf::consume($half, n);
            }
        }
    };
    (AsyncWrite for $type:ty, $this:ident => $half:expr, $end:ident) => {
        impl AsyncWrite for $type {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                let $this = self.get_mut();
                OwnedWriteHalf::poll_write($half, cx, bytes)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn $end(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.get_mut().shutdown();
                Poll::Ready(Ok(()))
            }
        }
    };
}

#[cfg(feature = "futures")]
mod futures;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;
#[cfg(feature = "tokio")]
mod tokio;
