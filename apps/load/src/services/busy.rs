//! Simulated processing time of a service.

use super::ServiceTime;
use fastrand::Rng;
use linerate_service::inspect::ServiceMetrics;
use linerate_service::{CloseReason, ConnId, ConnectError, Datagram, OneSidedResult, Origin, Service, Transport};
use std::time::{Duration, Instant};

/// Wrapper that keeps the processor busy for a time before each readable event of a service: a computation per request,
/// if requests arrive one at a time. The worker is blocked meanwhile.
#[derive(Debug)]
pub struct Busy<S> {
    service: S,
    time: ServiceTime,
    rng: Rng,
}

impl<S> Busy<S> {
    /// Wraps `service` with work before each readable event, whose times are drawn from `time` with `seed`.
    pub fn new(service: S, time: ServiceTime, seed: u64) -> Self {
        Busy { service, time, rng: Rng::with_seed(seed) }
    }

    /// Busy-waits by the clock: a calibrated loop would take longer on a slower core.
    fn work(&mut self) {
        let begun = Instant::now();
        let time = self.time.draw(&mut self.rng);
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

impl<S: Service> Service for Busy<S> {
    type Conn = S::Conn;
    type Message = S::Message;

    fn start(&mut self, net: &mut impl Transport) {
        self.service.start(net);
    }

    /// Serves none of `readable`: work precedes each request, so [`readable`](Service::readable) forwards each
    /// connection as a burst of one.
    fn burst(&mut self, _: &mut impl Transport, _: &[ConnId]) -> usize {
        0
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> S::Conn {
        self.service.opened(net, conn, origin)
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.service.failed(net, token, error);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut S::Conn) {
        self.work();
        if self.service.burst(net, &[conn]) == 0 {
            self.service.readable(net, conn, state);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut S::Conn) {
        self.service.writable(net, conn, state);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut S::Conn) {
        self.service.peer_closed(net, conn, state);
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut S::Conn) {
        self.service.timer(net, conn, state);
    }

    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut S::Conn, message: S::Message) {
        self.service.conn_message(net, conn, state, message);
    }

    fn message(&mut self, net: &mut impl Transport, message: S::Message) {
        self.service.message(net, message);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.service.turn(net)
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        self.work();
        self.service.datagram(net, datagram);
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        state: &mut S::Conn,
        token: u64,
        outcome: OneSidedResult,
    ) {
        self.service.one_sided_done(net, conn, state, token, outcome);
    }

    fn metrics(&self) -> ServiceMetrics {
        self.service.metrics()
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, state: S::Conn, reason: CloseReason) {
        self.service.closed(net, conn, state, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{Chargen, Discard, Echo};
    use crate::testing::FakeTransport;

    const TIME: Duration = Duration::from_millis(2);

    #[test]
    fn only_readable_events_take_time() {
        let mut service = Busy::new(Echo, ServiceTime::Fixed(TIME), 0);
        let mut net = FakeTransport::new(4);
        let begun = Instant::now();
        let conn = net.accept(&mut service);
        net.arrive(&mut service, conn, b"hello");
        assert!(begun.elapsed() >= TIME);
        net.arrive(&mut service, conn, b", world");
        assert!(begun.elapsed() >= 2 * TIME);
        net.end(&mut service, conn);
        // The other events take no time. The minimum of many tries excludes interruptions by the machine.
        let quickest = (0..20).map(|_| {
            let begun = Instant::now();
            net.drain(&mut service, conn);
            begun.elapsed()
        });
        assert!(quickest.min().unwrap() < TIME);
    }

    /// Counts its events, and serves every other burst.
    #[derive(Default)]
    struct Counter {
        bursts: usize,
        readable: usize,
    }

    impl Service for Counter {
        type Conn = ();
        type Message = ();

        fn burst(&mut self, _: &mut impl Transport, readable: &[ConnId]) -> usize {
            self.bursts += 1;
            readable.len() * (self.bursts % 2)
        }

        fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

        fn readable(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {
            self.readable += 1;
        }
    }

    #[test]
    fn connection_served_in_its_burst_gets_no_readable_event() {
        let mut net = FakeTransport::new(4);
        let mut busy = Busy::new(Counter::default(), ServiceTime::NONE, 0);
        let conn = net.accept(&mut busy);
        for n in 1..=4 {
            assert_eq!(busy.burst(&mut net, &[conn]), 0);
            net.arrive(&mut busy, conn, b"x");
            assert_eq!((busy.service.bursts, busy.service.readable), (n, n / 2));
        }
    }

    #[test]
    fn wrapped_service_behaves_as_before() {
        let mut net = FakeTransport::new(4);
        let mut busy = Busy::new(Echo, ServiceTime::NONE, 0);
        let conn = net.accept(&mut busy);
        net.arrive(&mut busy, conn, b"hello, world");
        net.end(&mut busy, conn);
        let mut back = Vec::new();
        while !net.is_closed(conn) {
            back.extend(net.drain(&mut busy, conn));
        }
        back.extend(net.drain(&mut busy, conn));
        assert_eq!(back, b"hello, world");

        let mut busy = Busy::new(Chargen, ServiceTime::NONE, 0);
        let mut net = FakeTransport::new(100);
        let conn = net.accept(&mut busy);
        assert_eq!(net.sent(conn).len(), 100, "`opened` is forwarded");
        let mut busy = Busy::new(Discard::default(), ServiceTime::NONE, 0);
        let mut net = FakeTransport::new(100);
        let conn = net.accept(&mut busy);
        net.arrive(&mut busy, conn, b"hello");
        assert_eq!(busy.service.bytes(), 5);
    }
}
