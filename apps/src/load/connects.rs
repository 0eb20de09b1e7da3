//! Connections that are opened, used once and closed, each followed by another.

use super::pattern::Position;
use super::{Board, Errors, OPENING_AT_ONCE, OPENING_TICK, Outcome, Part, Plan, histogram_of_nanos, share};
use hdrhistogram::Histogram;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::convert::Infallible;
use std::sync::Arc;

/// What is done with each connection, and with how many.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Bytes of the request that is sent on each, and has to come back before it is closed. With 0 it is closed as soon as it can be
    /// sent on.
    pub request: usize,
    /// Connections of each worker at most.
    pub most: u64,
}

/// One worker's part of a load that makes a connection for each request: it is opened, the request is sent, the answer comes, the
/// connection is closed, and when both ends have closed it the next is asked for. The plan's connections are how many there are
/// at a time.
///
/// A time is that from the beginning of the event in which the connection was asked for, to the beginning of the event in which
/// the last byte of the answer came ([`Transport::now`] of both); closing comes after it, and before the next. What was answered
/// while measuring counts.
///
/// This end closes first, by a FIN and not by a reset, so that TIME-WAIT is here (RFC 9293 §3.3.2), and the ports of connections
/// that were closed are taken for as long as that lasts. A connection that cannot be made, for want of a port too, is an error and
/// not tried again: then there is one less at a time. One that is lost, or brings other bytes than it should, is an error and
/// followed by another.
#[derive(Debug)]
pub struct Connects {
    plan: Plan,
    board: Arc<Board>,
    worker: usize,
    workers: usize,
    request: usize,
    phase: Phase,
    /// When the connection of each place was asked for.
    asked: Vec<Instant>,
    /// Places that the board knows to be opened, or not.
    told: Vec<bool>,
    /// Places without a connection.
    idle: Vec<usize>,
    opening: usize,
    open: usize,
    /// Connections that have been asked for, and may still be.
    begun: usize,
    left: u64,
    done: bool,
    outcome: Outcome<Connected>,
}

/// What came of connections.
#[derive(Debug)]
pub struct Connected {
    /// Those that were used while measuring.
    pub connections: u64,
    /// How long that took, in nanoseconds, to three digits.
    pub nanos: Histogram<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    WarmingUp { until: Instant },
    Measuring { from: Instant, until: Instant },
    Draining,
}

/// A connection, and how far it is.
pub struct Used {
    /// None of a connection that a peer has opened.
    place: Option<usize>,
    to_send: Position,
    to_receive: Position,
    unsent: usize,
    awaited: usize,
    /// It has been told what came of it.
    is_over: bool,
}

impl Connects {
    /// The part of worker `worker` of `workers`.
    pub fn new(plan: &Plan, board: Arc<Board>, worker: usize, workers: usize, each: Use) -> Self {
        let places = share(plan.connections, worker, workers);
        let traffic = Connected { connections: 0, nanos: histogram_of_nanos() };
        Connects {
            plan: plan.clone(),
            board,
            worker,
            workers,
            request: each.request,
            phase: Phase::Waiting,
            asked: vec![Instant::ZERO; places],
            told: vec![false; places],
            idle: (0..places).rev().collect(),
            opening: 0,
            open: 0,
            begun: 0,
            left: each.most,
            done: false,
            outcome: Outcome { traffic, errors: Errors::default(), measured: Duration::ZERO, last_failure: None },
        }
    }

    /// What has come of connections so far; an error, if one was not made or went wrong.
    pub fn connected(&self) -> Result<&Connected, Option<ConnectError>> {
        if self.outcome.errors.total() == 0 { Ok(&self.outcome.traffic) } else { Err(self.outcome.last_failure) }
    }

    fn advance(&mut self, now: Instant) {
        self.phase = match self.phase {
            Phase::Draining => return,
            _ if self.board.is_stopped() => return self.drain(now),
            Phase::Waiting if !self.board.has_begun() => return,
            Phase::Waiting if !self.plan.warm_up.is_zero() => Phase::WarmingUp { until: now + self.plan.warm_up },
            Phase::WarmingUp { until } if now < until => return,
            Phase::Waiting | Phase::WarmingUp { .. } => Phase::Measuring { from: now, until: now + self.plan.duration },
            Phase::Measuring { until, .. } if now < until => return,
            Phase::Measuring { .. } => return self.drain(now),
        };
    }

    fn drain(&mut self, now: Instant) {
        if let Phase::Measuring { from, until } = self.phase {
            self.outcome.measured = now.min(until).since(from);
        }
        self.phase = Phase::Draining;
    }

    /// Asks for connections in the places that have none.
    fn ask(&mut self, net: &mut impl Transport) {
        self.advance(net.now());
        while self.phase != Phase::Draining
            && self.left > 0
            && self.opening < OPENING_AT_ONCE
            && let Some(place) = self.idle.pop()
        {
            self.left -= 1;
            self.begun += 1;
            self.opening += 1;
            self.asked[place] = net.now();
            net.connect(self.plan.remote_of(place), place as u64);
        }
        if self.open == 0 && self.opening == 0 && !self.done {
            self.done = true;
            self.drain(net.now());
            self.board.worker_done();
        }
    }

    /// The connection has served its purpose.
    fn used(&mut self, net: &mut impl Transport, conn: ConnId, used: &mut Used) {
        used.is_over = true;
        self.advance(net.now());
        if let (Phase::Measuring { .. }, Some(place)) = (self.phase, used.place) {
            let took = net.now().since(self.asked[place]);
            self.outcome.traffic.connections += 1;
            self.outcome.traffic.nanos.saturating_record(took.as_nanos() as u64);
        }
        net.close(conn);
    }

    /// Takes in what has come; `false` if it is not what should have.
    fn take_in(&mut self, net: &mut impl Transport, conn: ConnId, used: &mut Used) -> bool {
        loop {
            let bytes = net.peek(conn);
            let n = bytes.len();
            if n == 0 {
                return true;
            }
            if n > used.awaited - used.unsent || !used.to_receive.matches(bytes) {
                return false;
            }
            used.awaited -= n;
            net.consume(conn, n);
        }
    }

    fn send(net: &mut impl Transport, conn: ConnId, used: &mut Used) {
        used.unsent -= used.to_send.send(net, conn, used.unsent);
    }
}

impl Part for Connects {
    type Traffic = Connected;

    fn into_outcome(self) -> Outcome<Connected> {
        self.outcome
    }
}

impl Service for Connects {
    type Conn = Used;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        // Nothing has to be prepared.
        self.board.worker_prepared();
        self.ask(net);
    }

    fn tend(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.advance(net.now());
        self.board.progress(self.worker, self.outcome.traffic.connections);
        match self.phase {
            Phase::Draining => None,
            _ => Some(OPENING_TICK),
        }
    }

    fn requests(&self) -> Option<u64> {
        Some(self.outcome.traffic.connections)
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> Used {
        let stream = Position::of_connection(self.worker + self.begun * self.workers);
        let (unsent, awaited) = (self.request, self.request);
        let mut used = Used { place: None, to_send: stream, to_receive: stream, unsent, awaited, is_over: false };
        let Origin::Connected(token) = origin else {
            // A load listens nowhere; a transport that accepts all the same gets its connection back.
            used.is_over = true;
            self.open += 1;
            net.abort(conn);
            return used;
        };
        used.place = Some(token as usize);
        self.opening -= 1;
        self.open += 1;
        if !std::mem::replace(&mut self.told[token as usize], true) {
            self.board.connection_opened();
        }
        match self.request {
            0 => self.used(net, conn, &mut used),
            _ => Self::send(net, conn, &mut used),
        }
        self.ask(net);
        used
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.opening -= 1;
        match error {
            ConnectError::Refused => self.outcome.errors.refused += 1,
            _ => self.outcome.errors.unopened += 1,
        }
        self.outcome.last_failure = Some(error);
        if !std::mem::replace(&mut self.told[token as usize], true) {
            self.board.connection_failed();
        }
        self.ask(net);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, used: &mut Used) {
        if !self.take_in(net, conn, used) {
            if !std::mem::replace(&mut used.is_over, true) {
                self.outcome.errors.corrupt += 1;
            }
            net.abort(conn);
        } else if used.awaited == 0 && !used.is_over {
            self.used(net, conn, used);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, used: &mut Used) {
        Self::send(net, conn, used);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, used: &mut Used) {
        if !std::mem::replace(&mut used.is_over, true) {
            self.outcome.errors.lost += 1;
            net.abort(conn);
        }
    }

    fn closed(&mut self, net: &mut impl Transport, _: ConnId, used: Used, _: CloseReason) {
        self.open -= 1;
        if !used.is_over && self.phase != Phase::Draining {
            self.outcome.errors.lost += 1;
        }
        self.idle.extend(used.place);
        self.ask(net);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fake, a_second};

    const SECOND: Duration = Duration::from_secs(1);

    fn connects(connections: usize, request: usize, most: u64) -> (Fake<Used>, Connects, Arc<Board>) {
        let plan = Plan { warm_up: SECOND, ..a_second(connections) };
        let board = Arc::new(Board::new(1, connections));
        let mut service = Connects::new(&plan, board.clone(), 0, 1, Use { request, most });
        let mut net = Fake::new(100);
        service.start(&mut net);
        (net, service, board)
    }

    /// Time passes, and the worker has a turn.
    fn pass(net: &mut Fake<Used>, service: &mut Connects, time: Duration) {
        net.now += time;
        service.tend(net);
    }

    fn echo(net: &mut Fake<Used>, service: &mut Connects, conn: ConnId) {
        let bytes = net.drain(service, conn);
        net.arrive(service, conn, &bytes);
    }

    fn gone(net: &mut Fake<Used>, service: &mut Connects, conn: ConnId) {
        net.end(service, conn);
        net.gone(service, conn, CloseReason::Finished);
    }

    #[test]
    fn each_connection_has_one_request_and_is_closed_before_the_next_is_opened() {
        let (mut net, mut service, board) = connects(1, 64, u64::MAX);
        let mut before = Vec::new();
        for _ in 0..3 {
            assert_eq!(net.connects.len(), 1);
            let conn = net.establish(&mut service);
            assert_eq!((net.sent(conn).len(), net.is_closed(conn)), (64, false));
            assert!(!before.contains(&net.sent(conn)), "what came from an earlier one would show");
            before.push(net.sent(conn));
            echo(&mut net, &mut service, conn);
            assert!(net.is_closed(conn) && net.connects.is_empty());
            gone(&mut net, &mut service, conn);
        }
        assert!(board.all_decided() && board.opened() == 1 && !board.all_done());
        assert!(service.connected().is_ok());
    }

    #[test]
    fn there_are_as_many_at_a_time_as_the_plan_has_connections() {
        let (mut net, mut service, _) = connects(1000, 10, u64::MAX);
        assert_eq!(net.connects.len(), OPENING_AT_ONCE);
        for _ in 0..1000 {
            net.establish(&mut service);
        }
        assert!(net.connects.is_empty());
        let conn = net.alive()[500];
        echo(&mut net, &mut service, conn);
        gone(&mut net, &mut service, conn);
        assert_eq!((net.connects.len(), net.alive().len()), (1, 999));
    }

    #[test]
    fn what_is_answered_while_measuring_counts_from_when_its_connection_was_asked_for() {
        let (mut net, mut service, board) = connects(1, 10, u64::MAX);
        let mut go_on = |service: &mut Connects, took: Duration| {
            pass(&mut net, service, took / 4);
            let conn = net.establish(service);
            pass(&mut net, service, took / 4);
            echo(&mut net, service, conn);
            pass(&mut net, service, took / 2);
            gone(&mut net, service, conn);
        };
        go_on(&mut service, SECOND);
        board.begin();
        // The first tick begins to warm up.
        for _ in 0..5 {
            go_on(&mut service, SECOND / 5);
        }
        assert_eq!(service.connected().unwrap().connections, 0);
        for _ in 0..5 {
            go_on(&mut service, SECOND / 5);
        }
        assert!(!board.all_done());
        go_on(&mut service, SECOND / 5);
        assert!(board.all_done());
        let outcome = service.into_outcome();
        let Connected { connections, nanos } = outcome.traffic;
        assert_eq!((outcome.measured, outcome.errors, connections), (SECOND, Errors::default(), 5));
        assert!(nanos.equivalent(nanos.max(), 100_000_000), "{}", nanos.max());
    }

    #[test]
    fn so_many_connections_without_a_request_are_opened_and_timed() {
        let (mut net, mut service, board) = connects(1, 0, 2);
        service.plan.warm_up = Duration::ZERO;
        board.begin();
        service.tend(&mut net);
        for _ in 0..2 {
            assert!(!board.all_done());
            net.now += SECOND / 4;
            let conn = net.establish(&mut service);
            assert!(net.is_closed(conn) && net.connects.is_empty());
            net.gone(&mut service, conn, CloseReason::Finished);
        }
        assert!(board.all_done() && net.connects.is_empty());
        assert_eq!(service.connected().unwrap().nanos.len(), 2);
    }

    #[test]
    fn one_that_cannot_be_made_is_not_tried_again() {
        let (mut net, mut service, board) = connects(2, 10, u64::MAX);
        net.refuse(&mut service, ConnectError::Refused);
        net.establish(&mut service);
        assert!(board.all_decided() && net.connects.is_empty() && !board.all_done());
        let conn = net.alive()[0];
        echo(&mut net, &mut service, conn);
        gone(&mut net, &mut service, conn);
        net.refuse(&mut service, ConnectError::NoLocalAddress);
        assert!(board.all_done());
        assert_eq!(service.connected().err(), Some(Some(ConnectError::NoLocalAddress)));
        assert_eq!(service.into_outcome().errors, Errors { refused: 1, unopened: 1, ..Errors::default() });
    }

    #[test]
    fn one_that_is_lost_or_brings_other_bytes_is_an_error_and_followed_by_another() {
        let (mut net, mut service, _) = connects(1, 10, u64::MAX);
        let conn = net.establish(&mut service);
        net.gone(&mut service, conn, CloseReason::Reset);
        let conn = net.establish(&mut service);
        net.end(&mut service, conn);
        assert!(net.is_aborted(conn));
        net.gone(&mut service, conn, CloseReason::Aborted);
        let conn = net.establish(&mut service);
        net.arrive(&mut service, conn, &[b'x'; 10]);
        assert!(net.is_aborted(conn));
        net.gone(&mut service, conn, CloseReason::Aborted);
        let conn = net.establish(&mut service);
        let bytes = net.drain(&mut service, conn);
        net.arrive(&mut service, conn, &[&bytes[..], b"x"].concat());
        net.gone(&mut service, conn, CloseReason::Aborted);
        assert_eq!(net.connects.len(), 1);
        assert_eq!(service.into_outcome().errors, Errors { lost: 2, corrupt: 2, ..Errors::default() });
    }
}
