//! Body of a response.

use hyper::body::{Bytes, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes of one frame of a body. hyper copies each frame to the transport's buffers, and holds at most one frame beyond
/// the limit of its own buffer.
const FRAME: usize = 64 << 10;

/// Shared bytes, which hyper takes frame by frame.
#[derive(Debug, Clone, Default)]
pub struct Body(Bytes);

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body(bytes)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    #[inline]
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let rest = &mut self.0;
        let data = match rest.len() {
            0 => return Poll::Ready(None),
            1..=FRAME => std::mem::take(rest),
            _ => rest.split_to(FRAME),
        };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}
