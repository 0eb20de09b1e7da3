//! A connection of the load: its requests that wait for an answer, and how they are written.

use super::asked::Asked;
use super::one_sided::Lanes;
use super::plan::Keyspace;
use super::reply::Reply;
use super::request::Request;
use crate::Pace;
use linerate_bypass::time::Instant;
use linerate_bypass::{ConnId, Transport};

/// A connection of a [`KvLoad`](super::KvLoad).
pub struct Stream {
    /// Requests without an answer, oldest first.
    pub(super) asked: Asked,
    pub(super) unwritten: Unwritten,
    pub(super) reply: Reply,
    /// GETs that are read and not asked for.
    pub(super) lanes: Lanes,
}

/// What a connection's youngest requests still lack.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// Requests that have not been written whole; of the first of them, `written` bytes have.
    pub(super) requests: usize,
    written: usize,
    /// Bytes that they lack, and how many of them are long.
    bytes: usize,
    long: usize,
}

impl Unwritten {
    /// `bytes` more have been written, of `requests` requests, of the last of which `written` of `size` bytes have.
    #[cold]
    fn advance(&mut self, bytes: usize, requests: usize, written: usize, size: usize) {
        let is_whole = written == size;
        self.bytes -= bytes;
        self.requests -= requests - usize::from(!is_whole);
        self.written = if is_whole { 0 } else { written };
    }
}

impl Stream {
    /// A connection with up to `depth` requests at a time.
    pub(super) fn new(depth: usize) -> Self {
        Stream {
            asked: Asked::new(depth),
            unwritten: Unwritten::default(),
            reply: Reply::new(),
            lanes: Lanes::default(),
        }
    }

    /// Adds `request` to what is to be written.
    #[inline]
    pub(super) fn ask(&mut self, request: Request, space: &Keyspace) {
        let (size, is_long) = request.size(space.plan.protocol, &space.values);
        self.asked.push(request);
        self.unwritten.requests += 1;
        self.unwritten.bytes += size;
        self.unwritten.long += usize::from(is_long);
    }

    /// Writes what has not been written, as far as there is room.
    #[inline]
    pub(super) fn write(
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
            let first = self.asked.len() - self.unwritten.requests;
            let Some(place) = net.reserve(conn, self.unwritten.bytes) else { return };
            let (at, next, written) = self.fill(place, space, pace, now);
            if at == self.unwritten.bytes {
                self.unwritten = Unwritten::default();
            } else if let Some(last) = self.asked.get(next - 1) {
                let size = last.size(space.plan.protocol, &space.values).0;
                self.unwritten.advance(at, next - first, written, size);
            }
            net.commit(conn, at);
        }
    }

    /// Consumes the `n` bytes that have been received, and writes what has not been written in their place, if nothing of it is
    /// long and all of it fits.
    #[inline]
    pub(super) fn write_over(
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
        } else if net.respond(conn, n, len, |place| _ = self.fill(place, space, pace, now)) {
            self.unwritten = Unwritten::default();
        }
    }

    /// Writes what has not been written, of which nothing is long, into `place`, as far as it has room. Returns how many bytes that
    /// were, the number of the request behind the last of them, and how many bytes of that one have been written in all.
    #[inline]
    fn fill(
        &mut self,
        place: &mut [u8],
        space: &Keyspace,
        pace: &mut Option<Pace>,
        now: Instant,
    ) -> (usize, usize, usize) {
        let (protocol, values) = (space.plan.protocol, &space.values);
        let first = self.asked.len() - self.unwritten.requests;
        let (mut at, mut next, mut written) = (0, first, self.unwritten.written);
        while at < place.len()
            && let Some(request) = self.asked.get_mut(next)
        {
            let from = if next == first { written } else { 0 };
            if from == 0 {
                begun(request, pace, now);
            }
            let n = request.fill(protocol, values, from, &mut place[at..]);
            (at, next, written) = (at + n, next + 1, from + n);
        }
        (at, next, written)
    }

    /// Writes the first request that has not been written whole, by itself, as far as there is room in one place. Returns whether there
    /// was any.
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
        let first = self.asked.len() - self.unwritten.requests;
        let Some(request) = self.asked.get_mut(first) else { return false };
        let (size, is_long) = request.size(protocol, values);
        let from = self.unwritten.written;
        let n = if is_long {
            request.send_long(protocol, values, from, net, conn)
        } else {
            let Some(place) = net.reserve(conn, size - from) else { return false };
            let n = request.fill(protocol, values, from, place);
            net.commit(conn, n);
            n
        };
        if from == 0 && n > 0 {
            begun(request, pace, now);
        }
        let is_whole = from + n == size;
        self.unwritten.advance(n, 1, from + n, size);
        self.unwritten.long -= usize::from(is_long && is_whole);
        n > 0
    }
}

/// The first byte of `request` has been handed over.
#[inline]
pub(super) fn begun(request: &mut Request, pace: &mut Option<Pace>, now: Instant) {
    match pace {
        Some(pace) => pace.sent(request.at, now),
        None => request.at = now,
    }
}
