//! Echo load: requests that the server must return unchanged, in a closed or an open loop.

use crate::pattern::{LONG, Position};
use crate::{Corrupt, OpenLoop, Pace, Times, Traffic};
use fastrand::Rng;
use linerate_service::time::Instant;
use linerate_service::{ConnId, Transport};
use std::collections::VecDeque;

/// Requests of `size` bytes, with up to `depth` outstanding on each connection. Every returned byte is checked.
///
/// In a closed loop `depth` requests are always outstanding, and the next is sent when one is answered. An RTT is the
/// time from the beginning of the event in which the request's first byte was handed to the transport to the beginning
/// of the event in which its last byte returned ([`Transport::now`] of both, the time at which the transport began the
/// burst of the event). It includes the rest of the worker's sending burst, the transport, the network, the server, and
/// the time until the worker received the answer. It excludes the worker's work in the receiving burst before this
/// connection's turn.
///
/// In an open loop requests are sent when due, on successive connections, and times count from then. A request's wait
/// for the load, or for a connection with room, is part of its time.
#[derive(Debug)]
pub struct EchoLoad {
    size: usize,
    depth: usize,
    open: Option<OpenLoop>,
    pace: Option<Pace>,
    requests: u64,
    times: Times,
}

/// Connection of an [`EchoLoad`].
pub struct Stream {
    to_send: Position,
    to_receive: Position,
    /// Begin or due time of each outstanding request, oldest first.
    begun: VecDeque<Instant>,
    /// Unsent bytes of the youngest outstanding request.
    unsent: usize,
    /// Received bytes of the oldest outstanding request.
    received: usize,
}

impl EchoLoad {
    /// Creates a load of requests of `size` bytes with `depth` outstanding on each connection, or up to `depth` in an
    /// `open` loop.
    ///
    /// # Panics
    /// If `size` or `depth` is 0.
    pub fn new(size: usize, depth: usize, open: Option<OpenLoop>) -> Self {
        assert!(size > 0 && depth > 0);
        EchoLoad { size, depth, open, pace: None, requests: 0, times: Times::default() }
    }

    /// Returns the pace of an open loop that has begun.
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// Sends due requests, up to this connection's share and room.
    fn send_due(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        let room = self.depth - stream.begun.len();
        // While requests are overdue, each turn of the worker tries connections that have no room.
        if room == 0 && stream.unsent == 0 {
            return;
        }
        stream.unsent -= stream.to_send.send(net, conn, stream.unsent);
        let Some(pace) = &mut self.pace else { return };
        let now = net.now();
        for _ in 0..pace.share(now).min(room) {
            if stream.unsent > 0 || pace.next() > now {
                return;
            }
            let sent = stream.to_send.send(net, conn, self.size);
            if sent == 0 {
                return;
            }
            let due = pace.take();
            pace.sent(due, now);
            stream.begun.push_back(due);
            stream.unsent = self.size - sent;
        }
    }

    /// Returns the begin or due time of the request that follows the only outstanding one of a connection at `now`, if
    /// there is one.
    #[inline]
    fn begin_of_next(&self, now: Instant) -> Option<Instant> {
        match &self.pace {
            None => (self.depth == 1 && self.open.is_none()).then_some(now),
            Some(pace) => Some(pace.next()).filter(|due| *due <= now),
        }
    }

    /// Counts the answer of the oldest request, which was received at `now`.
    #[inline]
    fn answer(&mut self, stream: &mut Stream, now: Instant, measuring: bool) {
        let counts = |begun: &Instant| measuring && self.pace.as_ref().is_none_or(|pace| pace.counts(*begun));
        if let Some(begun) = stream.begun.pop_front().filter(counts) {
            self.requests += 1;
            self.times.record(now.since(begun).as_nanos() as u64);
        }
    }

    /// Returns the requests answered while measuring; in an open loop, those also due while measuring.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the round-trip times.
    pub fn times(&self) -> &Times {
        &self.times
    }
}

impl Traffic for EchoLoad {
    type Stream = Stream;

    fn stream(&self, index: usize) -> Stream {
        let start = Position::of_connection(index);
        Stream { to_send: start, to_receive: start, begun: VecDeque::with_capacity(self.depth), unsent: 0, received: 0 }
    }

    fn begin(&mut self, now: Instant, connections: usize, all: usize) {
        self.pace =
            self.open.filter(|_| connections > 0).map(|open| Pace::new(open, now, connections, all, Rng::new()));
    }

    fn measure(&mut self, now: Instant) {
        self.pace.iter_mut().for_each(|pace| pace.measure(now));
    }

    fn end(&mut self, until: Instant) {
        let times = &mut self.times;
        self.pace.iter_mut().for_each(|pace| pace.end(until, |age, count| times.record_unanswered(age, count)));
    }

    fn record_unanswered(&mut self, stream: &Stream, until: Instant) {
        let counted = stream.begun.iter().filter(|begun| self.pace.as_ref().is_none_or(|pace| pace.counts(**begun)));
        counted.for_each(|begun| self.times.record_unanswered(until.since(*begun), 1));
    }

    #[inline]
    fn due(&self) -> Option<Instant> {
        self.pace.as_ref().map(Pace::next)
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        if self.open.is_some() {
            return self.send_due(net, conn, stream);
        }
        let wanted = stream.unsent.saturating_add((self.depth - stream.begun.len()).saturating_mul(self.size));
        let sent = stream.to_send.send(net, conn, wanted);
        match sent.checked_sub(stream.unsent) {
            None => stream.unsent -= sent,
            Some(mut of_new_requests) => {
                stream.unsent = 0;
                while of_new_requests > 0 {
                    let of_this = of_new_requests.min(self.size);
                    of_new_requests -= of_this;
                    stream.unsent = self.size - of_this;
                    stream.begun.push_back(net.now());
                }
            }
        }
    }

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
            if bytes.is_empty() {
                return Ok(());
            }
            let n = bytes.len();
            let in_flight = stream.begun.len() * self.size - stream.unsent - stream.received;
            if n > in_flight || !stream.to_receive.matches(bytes) {
                return Err(Corrupt);
            }
            net.consume(conn, n);
            stream.received += n;
            while stream.received >= self.size {
                stream.received -= self.size;
                self.answer(stream, now, measuring);
            }
        }
    }

    /// Sends the next request in place of an answer that was received whole, if no other request is outstanding on the
    /// connection, and the next is due. Long requests are not copied, and follow the general path.
    fn exchange(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Stream,
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let size = self.size;
        if size < LONG
            && stream.unsent == 0
            && stream.received == 0
            && stream.begun.len() == 1
            && let Some(begin) = self.begin_of_next(net.now())
        {
            let answer = net.peek(conn);
            if answer.len() == size {
                if !stream.to_receive.matches(answer) {
                    return Err(Corrupt);
                }
                let now = net.now();
                self.answer(stream, now, measuring);
                if net.respond(conn, size, size, |request| stream.to_send.fill(request)) {
                    if let Some(pace) = &mut self.pace {
                        let due = pace.take();
                        pace.sent(due, now);
                    }
                    stream.begun.push_back(begin);
                    return Ok(());
                }
            }
        }
        self.receive(net, conn, stream, measuring)?;
        self.send(net, conn, stream);
        Ok(())
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
    use crate::Arrivals;
    use crate::services::Discard;
    use crate::testing::FakeTransport;
    use linerate_service::time::Duration;

    struct Bench {
        load: EchoLoad,
        stream: Stream,
        net: FakeTransport<()>,
        conn: ConnId,
    }

    impl Bench {
        fn new(size: usize, depth: usize, room: usize) -> Self {
            let load = EchoLoad::new(size, depth, None);
            let mut net = FakeTransport::new(room);
            let conn = net.accept(&mut Discard::default());
            Bench { stream: load.stream(0), load, net, conn }
        }

        fn send(&mut self) -> Vec<u8> {
            self.load.send(&mut self.net, self.conn, &mut self.stream);
            self.net.drain(&mut Discard::default(), self.conn)
        }

        /// Delivers `bytes`, and returns the bytes sent thereupon.
        fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Corrupt> {
            self.arrive(bytes);
            self.load.exchange(&mut self.net, self.conn, &mut self.stream, true)?;
            Ok(self.net.drain(&mut Discard::default(), self.conn))
        }

        fn receive(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
            self.arrive(bytes);
            self.load.receive(&mut self.net, self.conn, &mut self.stream, true)
        }

        fn arrive(&mut self, bytes: &[u8]) {
            struct Put;
            impl linerate_service::Service for Put {
                type Conn = ();
                type Message = std::convert::Infallible;
                fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: linerate_service::Origin) {}
            }
            self.net.arrive(&mut Put, self.conn, bytes);
        }
    }

    #[test]
    fn depth_limits_outstanding_requests() {
        let mut bench = Bench::new(10, 3, 1000);
        let first = bench.send();
        assert_eq!((first.len(), bench.send().len()), (30, 0));
        bench.receive(&first[..9]).unwrap();
        assert_eq!((bench.send().len(), bench.load.requests()), (0, 0));
        bench.receive(&first[9..20]).unwrap();
        assert_eq!((bench.send().len(), bench.load.requests()), (20, 2));
    }

    #[test]
    fn next_request_continues_the_stream_of_the_answered_one() {
        let (mut whole, mut parts) = (Bench::new(10, 1, 1000), Bench::new(10, 1, 1000));
        let mut request = whole.send();
        assert_eq!(request, parts.send());
        for answered in 1..=3 {
            assert!(parts.exchange(&request[..4]).unwrap().is_empty());
            let next = parts.exchange(&request[4..]).unwrap();
            whole.net.now += Duration::from_micros(5);
            request = whole.exchange(&request).unwrap();
            assert_eq!((&request, request.len()), (&next, 10));
            assert_eq!((whole.load.requests(), parts.load.requests()), (answered, answered));
        }
        assert!(whole.load.times.answered().equivalent(whole.load.times.answered().min(), 5000));
        request[9] ^= 1;
        assert_eq!(whole.exchange(&request), Err(Corrupt));
    }

    #[test]
    fn next_request_waits_for_room() {
        let mut bench = Bench::new(10, 1, 10);
        let request = bench.send();
        bench.net.write(bench.conn, &[0; 7]);
        bench.arrive(&request);
        bench.load.exchange(&mut bench.net, bench.conn, &mut bench.stream, true).unwrap();
        let sent = bench.net.drain(&mut Discard::default(), bench.conn);
        assert_eq!((bench.load.requests(), sent.len()), (1, 10));
        let rest = bench.send();
        assert_eq!(rest.len(), 7);
        assert_eq!(bench.exchange(&[&sent[7..], &rest].concat()).unwrap().len(), 10);
    }

    #[test]
    fn large_request_is_sent_and_echoed_in_parts() {
        let mut bench = Bench::new(1_000_003, 2, 1000);
        let mut parts = 0;
        while bench.load.requests() < 3 {
            let part = bench.send();
            assert_eq!(part.len(), 1000);
            bench.receive(&part[..1]).unwrap();
            bench.receive(&part[1..]).unwrap();
            parts += 1;
        }
        assert_eq!(parts, 3_000_009_usize.div_ceil(1000));
    }

    #[test]
    fn rtt_is_from_first_byte_sent_to_last_byte_received() {
        let mut bench = Bench::new(10, 2, 15);
        let first = bench.send();
        bench.net.now += Duration::from_micros(100);
        let rest = bench.send();
        assert_eq!((first.len(), rest.len()), (15, 5));
        bench.net.now += Duration::from_micros(200);
        bench.receive(&first).unwrap();
        bench.net.now += Duration::from_micros(400);
        bench.receive(&rest).unwrap();
        let rtt = bench.load.times.answered();
        let near = |nanos: u64, micros: u64| rtt.equivalent(nanos, micros * 1000);
        assert!(near(rtt.min(), 300) && near(rtt.max(), 700), "{} {}", rtt.min(), rtt.max());
    }

    #[test]
    fn answer_is_followed_by_a_request_that_is_due() {
        for depth in [1, 2] {
            let mut bench = Bench::new(10, depth, 1000);
            let open = Some(OpenLoop { rate: 10_000.0, arrivals: Arrivals::Even });
            bench.load = EchoLoad::new(10, depth, open);
            let from = bench.net.now;
            bench.load.begin(from, 1, 1);
            bench.load.measure(from);
            let first = bench.send();
            assert_eq!(first.len(), 10);
            bench.net.now = from + Duration::from_micros(60);
            assert!(bench.exchange(&first).unwrap().is_empty(), "no request is due");
            bench.net.now = from + Duration::from_micros(100);
            let second = bench.send();
            // One request was due at 200 µs when the answer arrives.
            bench.net.now = from + Duration::from_micros(250);
            let third = bench.exchange(&second).unwrap();
            assert_eq!((second.len(), third.len()), (10, 10));
            bench.net.now = from + Duration::from_micros(290);
            assert!(bench.exchange(&third).unwrap().is_empty());
            // The round trips are 60, 150 and 90 µs, each from the due time.
            let rtt = bench.load.times.answered();
            assert_eq!(bench.load.requests(), 3);
            for (nanos, micros) in [(rtt.min(), 60), (rtt.value_at_quantile(0.5), 90), (rtt.max(), 150)] {
                assert!(rtt.equivalent(nanos, micros * 1000), "{nanos} {micros}");
            }
            bench.load.end(from + Duration::from_micros(300));
            let late = bench.load.pace().unwrap().late_nanos();
            assert!(late.equivalent(late.max(), 50_000), "{}", late.max());
        }
    }

    #[test]
    fn wrong_byte_is_detected_at_every_position() {
        for at in 0..30 {
            let mut bench = Bench::new(10, 3, 1000);
            let mut bytes = bench.send();
            bytes[at] ^= 1;
            let (front, back) = bytes.split_at(17);
            assert_eq!(bench.receive(front).and_then(|()| bench.receive(back)), Err(Corrupt), "{at}");
        }
    }

    #[test]
    fn surplus_bytes_are_wrong_even_if_they_continue_the_stream() {
        let mut bench = Bench::new(10, 1, 4);
        let mut first = bench.send();
        let continued = [&first[..], &bench.send()].concat();
        first.truncate(4);
        let mut bench = Bench::new(10, 1, 4);
        assert_eq!(bench.send(), first);
        assert_eq!(bench.receive(&continued), Err(Corrupt));
    }
}
