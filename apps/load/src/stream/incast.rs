//! Incast: requests on all connections at once, and the time until the last answer.

use crate::pattern::Position;
use crate::{Corrupt, Times, Traffic};
use linerate_service::time::Instant;
use linerate_service::{ConnId, Transport};

/// Requests of `size` bytes to an echo server, in rounds: a round sends one request on each connection of the worker at
/// once, and the next round begins when all are answered. Every returned byte is checked.
///
/// The time of a round is that from the beginning of the event that sent its requests to the beginning of the event in
/// which the last byte of the last answer arrived ([`Transport::now`] of both).
#[derive(Debug)]
pub struct Incast {
    size: usize,
    /// Number of the current round, from 1; 0 before the traffic begins.
    round: u64,
    begun: Instant,
    /// Connections without their answer of this round.
    awaited: usize,
    /// Rounds begun from this time on count.
    counts_from: Option<Instant>,
    requests: u64,
    times: Times,
}

/// Connection of an [`Incast`].
pub struct Stream {
    to_send: Position,
    to_receive: Position,
    /// Round of the last request.
    round: u64,
    /// Unsent bytes of the request, and bytes of the answer that have not been received.
    unsent: usize,
    awaited: usize,
}

impl Incast {
    /// Creates a load of requests of `size` bytes.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn new(size: usize) -> Self {
        assert!(size > 0);
        let (begun, times) = (Instant::ZERO, Times::default());
        Incast { size, round: 0, begun, awaited: 0, counts_from: None, requests: 0, times }
    }

    /// Returns the requests answered while measuring.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the times of the rounds.
    pub fn times(&self) -> &Times {
        &self.times
    }

    fn counts(&self) -> bool {
        self.counts_from.is_some_and(|from| self.begun >= from)
    }
}

impl Traffic for Incast {
    type Stream = Stream;

    fn stream(&self, index: usize) -> Stream {
        let start = Position::of_connection(index);
        Stream { to_send: start, to_receive: start, round: 0, unsent: 0, awaited: 0 }
    }

    fn begin(&mut self, now: Instant, _: usize, _: usize) {
        (self.round, self.begun) = (1, now);
    }

    fn measure(&mut self, now: Instant) {
        self.counts_from = Some(now);
    }

    fn record_unanswered(&mut self, _: &Stream, until: Instant) {
        // The round is unanswered, not each of its requests.
        if self.awaited > 0 && self.counts() {
            self.times.record_unanswered(until.since(self.begun), 1);
            self.counts_from = None;
        }
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        // A reopened connection takes part in the current round.
        if stream.round < self.round {
            (stream.round, stream.unsent, stream.awaited) = (self.round, self.size, self.size);
            self.awaited += 1;
        }
        if stream.unsent > 0 {
            stream.unsent -= stream.to_send.send(net, conn, stream.unsent);
        }
    }

    fn receive(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        measuring: bool,
    ) -> Result<(), Corrupt> {
        loop {
            let bytes = net.peek(conn);
            if bytes.is_empty() {
                return Ok(());
            }
            let n = bytes.len();
            if n > stream.awaited - stream.unsent || !stream.to_receive.matches(bytes) {
                return Err(Corrupt);
            }
            net.consume(conn, n);
            stream.awaited -= n;
            if stream.awaited == 0 {
                self.awaited -= 1;
                self.requests += u64::from(measuring && self.counts());
            }
        }
    }

    fn begins_anew(&mut self, now: Instant) -> bool {
        if self.awaited > 0 || self.round == 0 {
            return false;
        }
        if self.counts() {
            self.times.record(now.since(self.begun).as_nanos() as u64);
        }
        (self.round, self.begun) = (self.round + 1, now);
        true
    }

    fn lost(&mut self, stream: Stream) {
        self.awaited -= usize::from(stream.awaited > 0);
    }

    fn answered(&self) -> Option<u64> {
        Some(self.requests)
    }

    fn progress(&self) -> u64 {
        self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeTransport, a_second};
    use crate::{Barrier, Load, Plan, WorkerLoad};
    use linerate_service::time::Duration;
    use linerate_service::{CloseReason, Service};
    use std::sync::Arc;

    struct Bench {
        load: Load<Incast>,
        net: FakeTransport<usize>,
        conns: Vec<ConnId>,
    }

    impl Bench {
        /// Creates a load on two connections whose first round has begun.
        fn new(warm_up: Duration) -> Self {
            let barrier = Arc::new(Barrier::new(1, 2));
            let plan = Plan { warm_up, ..a_second(2) };
            let mut load = Load::new(&plan, barrier.clone(), 0, 1, Incast::new(10));
            let mut net = FakeTransport::new(1000);
            load.start(&mut net);
            let conns = (0..2).map(|_| net.establish(&mut load)).collect();
            barrier.begin();
            net.pass(&mut load, Duration::from_millis(1));
            Bench { load, net, conns }
        }

        fn requests(&mut self) -> [Vec<u8>; 2] {
            [0, 1].map(|at| self.net.drain(&mut self.load, self.conns[at]))
        }

        fn answer(&mut self, at: usize, bytes: &[u8], after: Duration) {
            self.net.now += after;
            self.net.arrive(&mut self.load, self.conns[at], bytes);
        }
    }

    const MICROS: Duration = Duration::from_micros(1);

    #[test]
    fn round_begins_when_all_answers_of_the_last_have_arrived() {
        let mut bench = Bench::new(Duration::ZERO);
        for _ in 0..3 {
            let [one, other] = bench.requests();
            assert_eq!((one.len(), other.len()), (10, 10));
            bench.answer(1, &other, 20 * MICROS);
            bench.answer(0, &one[..9], 20 * MICROS);
            assert!(bench.requests().concat().is_empty());
            bench.answer(0, &one[9..], 20 * MICROS);
        }
        let [one, other] = bench.requests();
        bench.net.pass(&mut bench.load, Duration::from_secs(1));
        bench.answer(0, &one, MICROS);
        bench.answer(1, &other, MICROS);
        let incast = bench.load.into_outcome().traffic;
        assert_eq!((incast.requests(), incast.times().answered().len()), (6, 3));
        assert!(incast.times().answered().equivalent(incast.times().answered().min(), 60_000));
        assert_eq!(incast.times().stalled(), 1, "the last round had no answer for a second");
    }

    #[test]
    fn rounds_of_the_warm_up_do_not_count() {
        let mut bench = Bench::new(Duration::from_millis(1));
        let [one, other] = bench.requests();
        bench.answer(0, &one, Duration::from_millis(2));
        bench.answer(1, &other, MICROS);
        let [one, other] = bench.requests();
        bench.answer(0, &one, MICROS);
        bench.answer(1, &other, MICROS);
        let incast = bench.load.into_outcome().traffic;
        assert_eq!((incast.requests(), incast.times().answered().len()), (2, 1));
    }

    #[test]
    fn reopened_connection_takes_part_in_the_round() {
        let mut bench = Bench::new(Duration::ZERO);
        let [one, _] = bench.requests();
        bench.net.gone(&mut bench.load, bench.conns[1], CloseReason::Reset);
        bench.conns[1] = bench.net.establish(&mut bench.load);
        let request = bench.net.drain(&mut bench.load, bench.conns[1]);
        bench.answer(0, &one, MICROS);
        assert!(bench.requests().concat().is_empty());
        bench.answer(1, &request, MICROS);
        assert_eq!(bench.requests().map(|request| request.len()), [10, 10]);
    }

    #[test]
    fn wrong_or_surplus_bytes_are_corrupt() {
        for change in [|bytes: &mut Vec<u8>| bytes[3] ^= 1, |bytes: &mut Vec<u8>| bytes.push(0)] {
            let mut bench = Bench::new(Duration::ZERO);
            let [mut one, _] = bench.requests();
            change(&mut one);
            bench.answer(0, &one, MICROS);
            assert_eq!(bench.load.into_outcome().errors.corrupt, 1);
        }
    }
}
