//! The load of a key-value server: GETs and SETs of keys of which some are more popular than others.

mod ask;
mod ask_counters;
mod asked;
mod count;
mod filling;
mod keys;
mod numbers;
mod one_sided;
mod plan;
mod reply;
mod request;
mod stream;
mod udp;
mod values;
mod versions;
mod zipf;

pub use ask::Ask;
pub use ask_counters::{AskCounters, NoCounters};
pub use count::{CountLoad, CountPlan, Counted, SWAP_EVERY, name as counter_name};
pub use keys::MOST as MOST_KEYS;
pub use one_sided::{Exported, Reads};
pub use plan::{Keyspace, KvPlan};
pub use request::Protocol;
pub use stream::Stream;
pub use udp::{Astray, LONGEST as LONGEST_IN_DATAGRAM, UdpKvLoad, UdpPlan};
pub use values::HEAD as SHORTEST_VERIFIED;

use super::{Corrupt, Pace, Traffic, histogram_of_nanos};
use fastrand::Rng;
use filling::Filling;
use hdrhistogram::Histogram;
use keys::key;
use linerate_bypass::time::Instant;
use linerate_bypass::{Bytes, ConnId, OneSidedResult, Transport};
use one_sided::{Outcome, Reader};
use reply::{Answer, shown};
use request::{Request, What};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use versions::Issued;

/// GETs, or SETs, that have been answered while measuring.
#[derive(Debug)]
pub struct Side {
    /// How many.
    pub requests: u64,
    /// Bytes of the values that came or were sent.
    pub bytes: u64,
    /// How long each took, in nanoseconds, to three digits.
    pub nanos: Histogram<u64>,
}

impl Side {
    fn new() -> Self {
        Side { requests: 0, bytes: 0, nanos: histogram_of_nanos() }
    }

    #[inline]
    fn count(&mut self, bytes: u32, nanos: u64) {
        self.requests += 1;
        self.bytes += u64::from(bytes);
        self.nanos.saturating_record(nanos);
    }
}

/// One worker's part of a load of a key-value server.
///
/// In a closed loop, a request's time is counted as an echo's is: from the beginning of the event in which its first byte was
/// handed to the transport, to the beginning of the event in which its answer was there. In an open loop it is counted from
/// when the request was due, so that what waited for the load itself or for a connection to be free has waited.
#[derive(Debug)]
pub struct KvLoad {
    space: Arc<Keyspace>,
    rng: Rng,
    filling: Option<Filling>,
    pace: Option<Pace>,
    gets: Side,
    sets: Side,
    reads: Reads,
    misses: u64,
    refused: u64,
    filled: u64,
    first_error: Option<String>,
}

impl KvLoad {
    /// A part of the load of `space`.
    pub fn new(space: Arc<Keyspace>) -> Self {
        let filling = Some(Filling::new(&space));
        KvLoad {
            space,
            rng: Rng::new(),
            filling,
            pace: None,
            gets: Side::new(),
            sets: Side::new(),
            reads: Reads::default(),
            misses: 0,
            refused: 0,
            filled: 0,
            first_error: None,
        }
    }

    /// GETs that were answered while measuring, whether there was a value or not.
    pub fn gets(&self) -> &Side {
        &self.gets
    }

    /// SETs that were done while measuring.
    pub fn sets(&self) -> &Side {
        &self.sets
    }

    /// How the pace of an open loop was kept, if it was begun.
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// GETs of keys that were not there.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// How GETs went that were read and not asked for.
    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// Requests that were answered with an error message, at whatever time.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Keys that were set before measuring.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// What came with the first error.
    pub fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// Puts as many requests as there may be now into the queue of `stream`.
    #[inline]
    fn ask(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream, now: Instant) {
        if self.filling.is_some() {
            return self.ask_to_fill(stream, now);
        }
        let under_way = stream.asked.len() + stream.lanes.len();
        let mut free = self.space.plan.depth - under_way.min(self.space.plan.depth);
        if let Some(pace) = &self.pace {
            // What is due is for all connections alike.
            free = free.min(pace.share(now));
        }
        for _ in 0..free {
            let at = match &mut self.pace {
                None => now,
                Some(pace) if pace.next() <= now => pace.take(),
                Some(_) => break,
            };
            let request = self.draw(at);
            if let (Some(exported), What::Get { .. }) = (&self.space.plan.one_sided, request.what) {
                self.begin_reading(net, conn, stream, request, &exported.clone());
            } else {
                stream.ask(request, &self.space);
            }
        }
    }

    /// A request, which is due `at` that time.
    #[inline]
    fn draw(&mut self, at: Instant) -> Request {
        let number = self.space.scatter.of(self.space.zipf.draw(&mut self.rng));
        let bits = self.rng.u64(..);
        let what = if (bits & u64::from(u32::MAX)) < self.space.gets {
            What::Get { lowest: self.space.versions.as_ref().map_or(0, |versions| versions.lowest(number)) }
        } else {
            What::Set(self.issue(number, (bits >> 32) as u32))
        };
        Request { at, number, what }
    }

    /// Begins to read the value of a GET, or asks for it if that cannot be.
    #[cold]
    fn begin_reading(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        request: Request,
        exported: &Exported,
    ) {
        let mut reader = Reader { net, conn, exported, counts: &mut self.reads };
        if let Err(request) = stream.lanes.begin(&mut reader, request) {
            self.reads.asked += 1;
            stream.ask(request, &self.space);
        }
    }

    /// Something has been read for a GET.
    fn read(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        read: (u64, Bytes),
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let Some(exported) = self.space.plan.one_sided else { return Ok(()) };
        let (now, wall) = (net.now(), wall_millis());
        stream.lanes.done(&mut Reader { net, conn, exported: &exported, counts: &mut self.reads }, read);
        loop {
            let mut reader = Reader { net, conn, exported: &exported, counts: &mut self.reads };
            let Some(outcome) = stream.lanes.next(&mut reader, wall) else { return Ok(()) };
            let (request, record, value) = match outcome {
                Outcome::Ask(request) => {
                    stream.ask(request, &self.space);
                    continue;
                }
                Outcome::Found(request, record, value) => (request, record, value),
            };
            let value = &record[value];
            if let Some(known) = self.space.known()
                && let Err(wrong) = one_sided::verify(value, &request, known)
            {
                self.note(|| format!("{}: it read {wrong}", name(&request)));
                return Err(Corrupt);
            }
            self.count(&request, Answer::Value(value.len() as u32), now, measuring);
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
    fn ask_to_fill(&mut self, stream: &mut Stream, now: Instant) {
        while let Some(filling) = &mut self.filling
            && stream.asked.len() < filling.depth()
            && let Some(number) = filling.next(&self.space)
        {
            let set = self.issue(number, 0);
            stream.ask(Request { at: now, number, what: What::Set(set) }, &self.space);
        }
    }

    /// Takes in `bytes`, of which all belong to answers that are waited for, or something is wrong.
    #[inline]
    fn take(&mut self, stream: &mut Stream, mut bytes: &[u8], now: Instant, measuring: bool) -> Result<(), Corrupt> {
        let Stream { asked, unwritten, reply, .. } = stream;
        while !bytes.is_empty() {
            let Some(request) = asked.get(0).filter(|_| asked.len() > unwritten.requests) else {
                self.note(|| format!("{} came without having been asked for", shown(bytes)));
                return Err(Corrupt);
            };
            match reply.take(bytes, self.space.plan.protocol, request, self.space.known()) {
                Ok((n, answer)) => {
                    bytes = &bytes[n..];
                    if let Some(answer) = answer {
                        self.count(request, answer, now, measuring);
                        asked.pop();
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
    fn count(&mut self, request: &Request, answer: Answer, now: Instant, measuring: bool) {
        let nanos = now.as_nanos().saturating_sub(request.at.as_nanos());
        if let (What::Set(set), Some(versions)) = (request.what, &self.space.versions) {
            versions.answered(request.number, set, answer == Answer::Done);
        }
        if let Some(filling) = &mut self.filling {
            filling.answered();
            self.filled += u64::from(answer == Answer::Done);
        }
        match answer {
            Answer::Refused(message) => {
                self.refused += 1;
                self.note(|| format!("{}: it was answered with {}", name(request), shown(message)));
            }
            _ if !measuring || self.pace.as_ref().is_some_and(|pace| !pace.counts(request.at)) => {}
            Answer::Value(len) => self.gets.count(len, nanos),
            Answer::Miss => {
                self.misses += 1;
                self.gets.count(0, nanos);
            }
            Answer::Done => {
                let What::Set(set) = request.what else { return };
                self.sets.count(self.space.values.of(request.number, set.version).len, nanos);
            }
        }
    }

    #[cold]
    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some(what());
        }
    }
}

/// Milliseconds since 1970.
fn wall_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn name(request: &Request) -> String {
    let what = if let What::Get { .. } = request.what { "GET" } else { "SET" };
    format!("{what} {}", key(request.number).escape_ascii())
}

impl Traffic for KvLoad {
    type Stream = Stream;

    fn stream(&self, _: usize) -> Stream {
        Stream::new(self.filling.as_ref().map_or(self.space.plan.depth, Filling::depth))
    }

    fn is_prepared(&self) -> bool {
        self.filling.as_ref().is_none_or(|filling| filling.is_done(&self.space))
    }

    fn begin(&mut self, now: Instant, connections: usize, all: usize) {
        self.filling = None;
        let open = self.space.plan.open.filter(|_| connections > 0);
        self.pace = open.map(|open| Pace::new(open, now, connections, all, self.rng.fork()));
    }

    fn measure(&mut self, now: Instant) {
        self.reads = Reads::default();
        self.pace.iter_mut().for_each(|pace| pace.measure(now));
    }

    fn end(&mut self, until: Instant) {
        self.pace.iter_mut().for_each(|pace| pace.end(until));
    }

    fn due(&self) -> Option<Instant> {
        self.pace.as_ref().map(Pace::next)
    }

    #[inline]
    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        let now = net.now();
        self.ask(net, conn, stream, now);
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
            if stream.asked.len() == 0 {
                // What follows all the same is found with the next answer.
                return Ok(());
            }
        }
    }

    /// In one step, if all that has come is at hand: the next requests are written where the answers were.
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
        self.ask(net, conn, stream, now);
        stream.write_over(net, conn, n, &self.space, &mut self.pace, now);
        stream.write(net, conn, &self.space, &mut self.pace, now);
        Ok(())
    }

    fn lost(&mut self, stream: Stream) {
        if let Some(filling) = &mut self.filling {
            filling.lost(stream.asked.iter().map(|request| request.number));
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
