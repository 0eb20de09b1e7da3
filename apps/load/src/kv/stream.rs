//! Connection of a key-value load: outstanding requests and their transmission.

use super::one_sided::PendingGets;
use super::protocol::{Reply, Request, RequestQueue};
use crate::{Keyspace, Pace};
use linerate_service::time::Instant;
use linerate_service::{ConnId, Transport};

/// Connection of a [`KvLoad`](crate::KvLoad).
pub struct Stream {
    /// Requests without an answer, oldest first.
    pub(in crate::kv) outstanding: RequestQueue,
    pub(in crate::kv) unwritten: Unwritten,
    pub(in crate::kv) reply: Reply,
    /// One-sided GETs.
    pub(in crate::kv) gets_pending: PendingGets,
}

/// Unwritten part of the youngest outstanding requests.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// Requests not completely written; of the first, `written` bytes are.
    pub(in crate::kv) requests: usize,
    written: usize,
    /// Unwritten bytes, and number of long requests among these requests.
    bytes: usize,
    long: usize,
}

impl Unwritten {
    /// Records that `bytes` more have been written, of `requests` requests; of the last, `written` of `size` bytes.
    #[cold]
    fn advance(&mut self, bytes: usize, requests: usize, written: usize, size: usize) {
        let is_whole = written == size;
        self.bytes -= bytes;
        self.requests -= requests - usize::from(!is_whole);
        self.written = if is_whole { 0 } else { written };
    }
}

impl Stream {
    /// Creates a connection with up to `depth` outstanding requests.
    pub(in crate::kv) fn new(depth: usize) -> Self {
        Stream {
            outstanding: RequestQueue::new(depth),
            unwritten: Unwritten::default(),
            reply: Reply::new(),
            gets_pending: PendingGets::default(),
        }
    }

    /// Queues `request`.
    #[inline]
    pub(in crate::kv) fn enqueue(&mut self, request: Request, space: &Keyspace) {
        let (size, is_long) = request.size(space.plan.protocol, &space.values);
        self.outstanding.push(request);
        self.unwritten.requests += 1;
        self.unwritten.bytes += size;
        self.unwritten.long += usize::from(is_long);
    }

    /// Writes queued requests as far as there is room.
    #[inline]
    pub(in crate::kv) fn write(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        space: &Keyspace,
        pace: &mut Option<Pace>,
        now: Instant,
    ) {
        while self.unwritten.bytes > 0 {
            if self.unwritten.long > 0 {
                if !self.write_one(net, conn, space, pace, now) {
                    return;
                }
                continue;
            }
            let first = self.outstanding.len() - self.unwritten.requests;
            let Ok(buffer) = net.reserve(conn, self.unwritten.bytes) else { return };
            let (at, next, written) = self.fill(buffer, space, pace, now);
            if at == self.unwritten.bytes {
                self.unwritten = Unwritten::default();
            } else if let Some(last) = self.outstanding.get(next - 1) {
                let size = last.size(space.plan.protocol, &space.values).0;
                self.unwritten.advance(at, next - first, written, size);
            }
            net.commit(conn, at);
        }
    }

    /// Consumes `n` received bytes and writes the queued requests in their buffer, if none is long and all fit.
    #[inline]
    pub(in crate::kv) fn write_over(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        n: usize,
        space: &Keyspace,
        pace: &mut Option<Pace>,
        now: Instant,
    ) {
        let len = self.unwritten.bytes;
        if len == 0 || self.unwritten.long > 0 {
            net.consume(conn, n);
        } else if net.respond(conn, n, len, |buffer| _ = self.fill(buffer, space, pace, now)) {
            self.unwritten = Unwritten::default();
        }
    }

    /// Writes queued requests, none of which is long, into `buffer` as far as they fit. Returns the number of bytes,
    /// the index after the last request written, and the bytes of that request written in total.
    #[inline]
    fn fill(
        &mut self,
        buffer: &mut [u8],
        space: &Keyspace,
        pace: &mut Option<Pace>,
        now: Instant,
    ) -> (usize, usize, usize) {
        let (protocol, values) = (space.plan.protocol, &space.values);
        let first = self.outstanding.len() - self.unwritten.requests;
        let (mut at, mut next, mut written) = (0, first, self.unwritten.written);
        while at < buffer.len()
            && let Some(request) = self.outstanding.get_mut(next)
        {
            let from = if next == first { written } else { 0 };
            if from == 0 {
                first_byte_sent(request, pace, now);
            }
            let n = request.fill(protocol, values, from, &mut buffer[at..]);
            (at, next, written) = (at + n, next + 1, from + n);
        }
        (at, next, written)
    }

    /// Writes the first incomplete request, as far as there is contiguous room; returns whether anything was written.
    #[cold]
    fn write_one(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        space: &Keyspace,
        pace: &mut Option<Pace>,
        now: Instant,
    ) -> bool {
        let (protocol, values) = (space.plan.protocol, &space.values);
        let first = self.outstanding.len() - self.unwritten.requests;
        let Some(request) = self.outstanding.get_mut(first) else { return false };
        let (size, is_long) = request.size(protocol, values);
        let from = self.unwritten.written;
        let n = if is_long {
            request.send_long(protocol, values, from, net, conn)
        } else {
            let Ok(buffer) = net.reserve(conn, size - from) else { return false };
            let n = request.fill(protocol, values, from, buffer);
            net.commit(conn, n);
            n
        };
        if from == 0 && n > 0 {
            first_byte_sent(request, pace, now);
        }
        let is_whole = from + n == size;
        self.unwritten.advance(n, 1, from + n, size);
        self.unwritten.long -= usize::from(is_long && is_whole);
        n > 0
    }
}

/// Records that the first byte of `request` was handed to the transport.
#[inline]
pub fn first_byte_sent(request: &mut Request, pace: &mut Option<Pace>, now: Instant) {
    match pace {
        Some(pace) => pace.sent(request.at, now),
        None => request.at = now,
    }
}
