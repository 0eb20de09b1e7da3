//! Load of a key-value server: GETs and SETs of keys with a skewed popularity.

mod count;
mod filling;
mod keyspace;
mod one_sided;
mod plan;
mod protocol;
mod stream;
mod udp;

pub use count::{
    CountLoad, CountPlan, CountStats, CounterLookup, CounterLookupError, SWAP_EVERY, name as counter_name,
};
pub use keyspace::MOST_KEYS;
pub use one_sided::{Exported, OneSidedStats};
pub use plan::{Keyspace, KvPlan};
pub use protocol::{Protocol, Query};
pub use stream::Stream;
pub use udp::{DatagramErrors, LONGEST as LONGEST_IN_DATAGRAM, UdpKvLoad, UdpPlan};

use crate::{Corrupt, Pace, Times, Traffic};
use fastrand::Rng;
use filling::Filling;
use keyspace::{Issued, key};
use linerate_service::time::{Clock, Instant};
use linerate_service::{Bytes, ConnId, OneSidedResult, Transport};
use one_sided::{GetOutcome, KnownPlaces, Reader};
use protocol::{Op, Request, RequestResult, shown};
use std::sync::{Arc, LazyLock};

/// Refused SETs after which a worker stops filling.
const MOST_REFUSED: u64 = 1000;

/// Counters of answered GETs or SETs while measuring.
#[derive(Debug, Default)]
pub struct OpStats {
    pub requests: u64,
    /// Bytes of received or sent values.
    pub bytes: u64,
    /// Times of the requests.
    pub times: Times,
}

impl OpStats {
    #[inline]
    fn count(&mut self, bytes: u32, nanos: u64) {
        self.requests += 1;
        self.bytes += u64::from(bytes);
        self.times.record(nanos);
    }
}

/// One worker's part of a load of a key-value server.
///
/// In a closed loop a request's time is measured as that of an echo: from the beginning of the event that handed its
/// first byte to the transport to the beginning of the event that completed its answer. In an open loop it counts from
/// the due time, so that waiting for the load, or for a free connection, is part of it.
#[derive(Debug)]
pub struct KvLoad {
    space: Arc<Keyspace>,
    rng: Rng,
    filling: Option<Filling>,
    pace: Option<Pace>,
    gets: OpStats,
    sets: OpStats,
    reads: OneSidedStats,
    places: KnownPlaces,
    misses: u64,
    refused: u64,
    filled: u64,
    first_error: Option<String>,
}

impl KvLoad {
    /// Creates a worker's part of the load of `space`.
    pub fn new(space: Arc<Keyspace>) -> Self {
        let filling = Some(Filling::new(&space));
        let places = space.plan.one_sided.map(|_| KnownPlaces::new(space.plan.keys)).unwrap_or_default();
        KvLoad {
            space,
            rng: Rng::new(),
            filling,
            pace: None,
            gets: OpStats::default(),
            sets: OpStats::default(),
            reads: OneSidedStats::default(),
            places,
            misses: 0,
            refused: 0,
            filled: 0,
            first_error: None,
        }
    }

    /// Returns the GETs answered while measuring, with or without a value.
    pub fn gets(&self) -> &OpStats {
        &self.gets
    }

    /// Returns the SETs completed while measuring.
    pub fn sets(&self) -> &OpStats {
        &self.sets
    }

    /// Returns the pace of an open loop that has begun.
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// Returns the number of GETs of missing keys.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// Returns the counters of one-sided GETs.
    pub fn reads(&self) -> OneSidedStats {
        self.reads
    }

    /// Returns the requests answered with an error, in all phases.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns whether filling stopped because the server refused too many keys: as many as exist, or a thousand.
    pub fn has_given_up(&self) -> bool {
        self.filling.is_some() && self.refused >= MOST_REFUSED.min(self.space.plan.keys)
    }

    /// Returns the number of keys set before measuring.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// Returns the message of the first error.
    pub fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// Queues as many requests on `stream` as may be outstanding now.
    #[inline]
    fn enqueue(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream, now: Instant) {
        if self.filling.is_some() {
            return self.enqueue_fill(stream, now);
        }
        let pending = stream.outstanding.len() + stream.gets_pending.len();
        let mut free = self.space.plan.depth - pending.min(self.space.plan.depth);
        if let Some(pace) = &self.pace {
            // Due requests are shared by all connections.
            free = free.min(pace.share(now));
        }
        for _ in 0..free {
            let at = match &mut self.pace {
                None => now,
                Some(pace) if pace.next() <= now => pace.take(),
                Some(_) => break,
            };
            let request = self.draw(at);
            if let (Some(exported), Op::Get { .. }) = (&self.space.plan.one_sided, request.op) {
                self.begin_reading(net, conn, stream, request, &exported.clone());
            } else {
                stream.enqueue(request, &self.space);
            }
        }
    }

    /// Draws a request that is due `at` the given time.
    #[inline]
    fn draw(&mut self, at: Instant) -> Request {
        let number = self.space.scatter.place(self.space.zipf.draw(&mut self.rng));
        let bits = self.rng.u64(..);
        let op = if (bits & u64::from(u32::MAX)) < self.space.gets {
            Op::Get { lowest: self.space.versions.as_ref().map_or(0, |versions| versions.lowest(number)) }
        } else {
            Op::Set(self.issue(number, (bits >> 32) as u32))
        };
        Request { at, number, op }
    }

    /// Starts a one-sided GET, or queues the request for the server if that is impossible.
    #[cold]
    fn begin_reading(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        request: Request,
        exported: &Exported,
    ) {
        if stream.gets_pending.touches(&mut self.places, request.number, net.now()) {
            self.reads.touches += 1;
            return stream.enqueue(request, &self.space);
        }
        let mut reader = Reader { net, conn, exported, counts: &mut self.reads, places: &mut self.places };
        if let Err(request) = stream.gets_pending.begin(&mut reader, request) {
            self.reads.fallbacks += 1;
            stream.enqueue(request, &self.space);
        }
    }

    /// Processes a completed READ of a GET.
    fn read(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        read: (u64, Bytes),
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let Some(exported) = self.space.plan.one_sided else { return Ok(()) };
        let (now, clock) = (net.now(), exported.clock(local_millis()));
        let (counts, places) = (&mut self.reads, &mut self.places);
        stream.gets_pending.done(&mut Reader { net, conn, exported: &exported, counts, places }, read);
        loop {
            let (counts, places) = (&mut self.reads, &mut self.places);
            let mut reader = Reader { net, conn, exported: &exported, counts, places };
            let Some(outcome) = stream.gets_pending.next(&mut reader, clock) else { return Ok(()) };
            let (request, record, value) = match outcome {
                GetOutcome::Fallback(request) => {
                    stream.enqueue(request, &self.space);
                    continue;
                }
                GetOutcome::Found(request, record, value) => (request, record, value),
            };
            let value = &record[value];
            if let Some(expected) = self.space.expected()
                && let Err(wrong) = one_sided::verify(value, &request, expected)
            {
                self.note(|| format!("{}: the READ returned {wrong}", name(&request)));
                return Err(Corrupt);
            }
            self.count(&request, RequestResult::Value(value.len() as u32), now, measuring);
        }
    }

    #[inline]
    fn issue(&self, number: u64, otherwise: u32) -> Issued {
        match &self.space.versions {
            Some(versions) => versions.issue(number),
            None => Issued { version: otherwise, settled: 0 },
        }
    }

    #[cold]
    fn enqueue_fill(&mut self, stream: &mut Stream, now: Instant) {
        let goes_on = !self.has_given_up();
        while let Some(filling) = self.filling.as_mut().filter(|_| goes_on)
            && stream.outstanding.len() < filling.depth()
            && let Some(number) = filling.next(&self.space)
        {
            let set = self.issue(number, 0);
            stream.enqueue(Request { at: now, number, op: Op::Set(set) }, &self.space);
        }
    }

    /// Processes `bytes`, which must belong entirely to answers of outstanding requests.
    #[inline]
    fn take(&mut self, stream: &mut Stream, mut bytes: &[u8], now: Instant, measuring: bool) -> Result<(), Corrupt> {
        let Stream { outstanding, unwritten, reply, .. } = stream;
        while !bytes.is_empty() {
            let Some(request) = outstanding.get(0).filter(|_| outstanding.len() > unwritten.requests) else {
                self.note(|| format!("{} arrived without a request", shown(bytes)));
                return Err(Corrupt);
            };
            match reply.take(bytes, self.space.plan.protocol, request, self.space.expected()) {
                Ok((n, answer)) => {
                    bytes = &bytes[n..];
                    if let Some(answer) = answer {
                        self.count(request, answer, now, measuring);
                        outstanding.pop();
                    }
                }
                Err(wrong) => {
                    self.note(|| format!("{}: {wrong}", name(request)));
                    return Err(Corrupt);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn count(&mut self, request: &Request, answer: RequestResult, now: Instant, measuring: bool) {
        let nanos = now.as_nanos().saturating_sub(request.at.as_nanos());
        if let (Op::Set(set), Some(versions)) = (request.op, &self.space.versions) {
            versions.answered(request.number, set, answer == RequestResult::Done);
        }
        if let Some(filling) = &mut self.filling {
            filling.answered();
            self.filled += u64::from(answer == RequestResult::Done);
        }
        match answer {
            RequestResult::Refused(message) => {
                self.refused += 1;
                self.note(|| format!("{}: the reply is {}", name(request), shown(message)));
            }
            _ if !measuring || self.pace.as_ref().is_some_and(|pace| !pace.counts(request.at)) => {}
            RequestResult::Value(len) => self.gets.count(len, nanos),
            RequestResult::Miss => {
                self.misses += 1;
                self.gets.count(0, nanos);
            }
            RequestResult::Done => {
                let Op::Set(set) = request.op else { return };
                self.sets.count(self.space.values.value(request.number, set.version).len, nanos);
            }
        }
    }

    /// Records the age of a request without an answer.
    fn request_unanswered(&mut self, Request { at, op, .. }: Request, until: Instant) {
        if self.pace.as_ref().is_none_or(|pace| pace.counts(at)) {
            let stats = if let Op::Get { .. } = op { &mut self.gets } else { &mut self.sets };
            stats.times.record_unanswered(until.since(at), 1);
        }
    }

    #[cold]
    fn note(&mut self, describe: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some(describe());
        }
    }
}

/// Returns the local time in milliseconds since the first call, which no step of the wall clock changes.
pub fn local_millis() -> u64 {
    static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);
    CLOCK.now().as_nanos() / 1_000_000
}

fn name(request: &Request) -> String {
    let op = if let Op::Get { .. } = request.op { "GET" } else { "SET" };
    format!("{op} {}", key(request.number).escape_ascii())
}

impl Traffic for KvLoad {
    type Stream = Stream;

    fn stream(&self, _: usize) -> Stream {
        Stream::new(self.filling.as_ref().map_or(self.space.plan.depth, Filling::depth))
    }

    fn is_prepared(&self) -> bool {
        self.filling.as_ref().is_none_or(|filling| filling.is_done(&self.space))
    }

    fn has_given_up(&self) -> bool {
        KvLoad::has_given_up(self)
    }

    fn begin(&mut self, now: Instant, connections: usize, all: usize) {
        self.filling = None;
        let open = self.space.plan.open.filter(|_| connections > 0);
        self.pace = open.map(|open| Pace::new(open, now, connections, all, self.rng.fork()));
    }

    fn measure(&mut self, now: Instant) {
        self.reads = OneSidedStats::default();
        self.pace.iter_mut().for_each(|pace| pace.measure(now));
    }

    fn end(&mut self, until: Instant) {
        let KvLoad { pace: Some(pace), rng, space, gets, sets, .. } = self else { return };
        pace.end(until, |age, count| {
            // These requests have not been drawn.
            let stats = if u64::from(rng.u32(..)) < space.gets { &mut *gets } else { &mut *sets };
            stats.times.record_unanswered(age, count);
        });
    }

    fn record_unanswered(&mut self, stream: &Stream, until: Instant) {
        let one_sided = stream.gets_pending.requests().copied();
        stream.outstanding.iter().copied().chain(one_sided).for_each(|request| self.request_unanswered(request, until));
    }

    fn due(&self) -> Option<Instant> {
        self.pace.as_ref().map(Pace::next)
    }

    #[inline]
    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        let now = net.now();
        self.enqueue(net, conn, stream, now);
        stream.write(net, conn, &self.space, &mut self.pace, now);
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        (token, outcome): (u64, OneSidedResult),
        measuring: bool,
    ) -> Result<(), Corrupt> {
        match outcome {
            OneSidedResult::Read(bytes) => self.read(net, conn, stream, (token, bytes), measuring),
            OneSidedResult::Previous(_) => Ok(()),
        }
    }

    #[inline]
    fn receive(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let now = net.now();
        loop {
            let bytes = net.peek(conn);
            let n = bytes.len();
            if n == 0 {
                return Ok(());
            }
            self.take(stream, bytes, now, measuring)?;
            net.consume(conn, n);
            if stream.outstanding.len() == 0 {
                // Surplus bytes are detected with the next answer.
                return Ok(());
            }
        }
    }

    /// Processes input and writes the next requests into the same buffer, if all input is contiguous.
    #[inline]
    fn exchange(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let now = net.now();
        let all = net.received(conn);
        let bytes = net.peek(conn);
        let n = bytes.len();
        if n == 0 || n < all {
            self.receive(net, conn, stream, measuring)?;
            self.send(net, conn, stream);
            return Ok(());
        }
        self.take(stream, bytes, now, measuring)?;
        self.enqueue(net, conn, stream, now);
        stream.write_over(net, conn, n, &self.space, &mut self.pace, now);
        stream.write(net, conn, &self.space, &mut self.pace, now);
        Ok(())
    }

    fn lost(&mut self, stream: Stream) {
        if let Some(filling) = &mut self.filling {
            filling.lost(stream.outstanding.iter().map(|request| request.number));
        }
    }

    fn answered(&self) -> Option<u64> {
        Some(self.gets.requests + self.sets.requests)
    }

    fn progress(&self) -> u64 {
        if self.filling.is_some() { self.filled + self.refused } else { self.gets.requests + self.sets.requests }
    }
}

#[cfg(test)]
mod tests;
