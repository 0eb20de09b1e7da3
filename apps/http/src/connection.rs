//! One connection of a client.

use crate::body::Body;
use crate::client_stream::{ClientStream, Protocol};
use crate::server::{Limits, WorkerState};
use hyper::body::{Body as _, Incoming};
use hyper::header::EXPECT;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use linerate_async::{HyperExecutor, HyperTimer, TcpStream, draining, now, sleep_until};
use linerate_service::time::{Duration, Instant};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

/// Smallest buffer of hyper.
const MIN_BUFFER: usize = 8192;
/// Maximum concurrent requests of an HTTP/2 connection.
const STREAMS: u32 = 128;
/// Maximum length of a request body that is discarded before the response.
const DISCARDED: u64 = 65_536;
/// Receive window of an HTTP/2 connection and of each stream.
const WINDOW: u32 = 65_535;

/// Builders of connections with the limits of a server.
pub(crate) struct Builders {
    http1: http1::Builder,
    http2: http2::Builder<HyperExecutor>,
}

impl Builders {
    pub fn new(limits: &Limits) -> Self {
        let mut http1 = http1::Builder::new();
        http1.max_header_size(limits.header_bytes).max_buf_size(limits.header_bytes.max(MIN_BUFFER));
        // `Watch` limits the time of all phases of a connection.
        http1.header_read_timeout(None);
        let mut http2 = http2::Builder::new(HyperExecutor);
        http2.timer(HyperTimer).max_concurrent_streams(STREAMS).max_header_list_size(limits.header_bytes as u32);
        http2.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        Builders { http1, http2 }
    }
}

/// Serves the requests of one connection until its end.
pub(crate) async fn serve(stream: TcpStream, worker: Rc<WorkerState>) {
    let progress = Rc::new(Cell::new(now()));
    let watch = Watch { progress: &progress, timeout: worker.limits().client_timeout };
    let mut stream = ClientStream::new(stream, progress.clone());
    let Some(Ok(Some(protocol))) = watch.limit(stream.protocol(), |_| {}, Drained::Ends).await else { return };
    let service = service_fn(|request| respond(worker.clone(), request));
    let builders = worker.builders();
    let ended = match protocol {
        Protocol::Http1 => {
            let connection = builders.http1.serve_connection(stream, service);
            watch.limit(connection, http1::Connection::graceful_shutdown, Drained::Finishes).await
        }
        Protocol::Http2 => {
            let connection = builders.http2.serve_connection(stream, service);
            watch.limit(connection, http2::Connection::graceful_shutdown, Drained::Finishes).await
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!("connection of a client: {error}");
    }
}

/// Returns the response to `request`.
///
/// A short body is discarded first: over HTTP/2 a response before its end is followed by RST_STREAM (RFC 9113 §8.1),
/// which some clients take for an error. Clients with `Expect` wait for the response (RFC 9110 §10.1.1).
async fn respond(worker: Rc<WorkerState>, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let is_short = request.body().size_hint().lower() <= DISCARDED;
    if !request.body().is_end_stream() && is_short && !request.headers().contains_key(EXPECT) {
        let mut left = DISCARDED;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(request.body_mut()).poll_frame(cx)).await {
            let len = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(len) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    }
    worker.respond(&request)
}

/// Effect of a drain on a phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drained {
    /// The phase ends.
    Ends,
    /// The phase finishes the requests that it has received, and then ends.
    Finishes,
}

/// Limit of the time without sent bytes of a response, because the client has not sent a complete request or does not
/// receive the response.
struct Watch<'a> {
    progress: &'a Cell<Instant>,
    timeout: Duration,
}

impl Watch<'_> {
    /// Waits for `phase`, which is dropped at the time limit. Calls `finish` when the worker drains.
    async fn limit<F: Future>(&self, phase: F, finish: impl Fn(Pin<&mut F>), drained: Drained) -> Option<F::Output> {
        let (mut phase, mut draining) = (pin!(phase), pin!(draining()));
        let mut deadline = pin!(sleep_until(self.progress.get() + self.timeout));
        let mut is_draining = false;
        poll_fn(|cx| {
            if !is_draining && draining.as_mut().poll(cx).is_ready() {
                is_draining = true;
                finish(phase.as_mut());
                if drained == Drained::Ends {
                    return Poll::Ready(None);
                }
            }
            if let Poll::Ready(output) = phase.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            while deadline.as_mut().poll(cx).is_ready() {
                let due = self.progress.get() + self.timeout;
                if due <= now() {
                    return Poll::Ready(None);
                }
                deadline.set(sleep_until(due));
            }
            Poll::Pending
        })
        .await
    }
}
