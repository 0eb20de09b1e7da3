//! Connections that are opened, used once and closed, each followed by another.

use super::pattern::Position;
use super::port_wait::{PortWait, PortWaits, Step};
use super::{Board, Errors, OPENING_AT_ONCE, OPENING_TICK, Outcome, Part, Plan, histogram_of_nanos, share};
use hdrhistogram::Histogram;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::collections::VecDeque;
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
    /// Places whose connections wait for a port, in the order in which they were asked for.
    waiting: VecDeque<usize>,
    port_wait: Option<PortWait>,
    /// A wait for a port has begun at some time.
    has_waited: bool,
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
    /// Waits for a port of ours while measuring.
    pub port_waits: PortWaits,
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
        let port_waits = PortWaits::default();
        let traffic = Connected { connections: 0, nanos: histogram_of_nanos(), port_waits };
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
            waiting: VecDeque::new(),
            port_wait: None,
            has_waited: false,
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
        self.end_port_wait(now);
        self.waiting.clear();
        if let Phase::Measuring { from, until } = self.phase {
            self.outcome.measured = now.min(until).since(from);
        }
        self.phase = Phase::Draining;
    }

    /// Asks for connections in the places that have none, as far as there are ports for them.
    fn ask(&mut self, net: &mut impl Transport) {
        let now = net.now();
        self.advance(now);
        if self.port_wait.is_some() {
            self.wait_for_port(net, now);
        }
        while self.phase != Phase::Draining
            && self.port_wait.is_none()
            && self.opening < OPENING_AT_ONCE
            && let Some(place) = self.waiting.pop_front().or_else(|| self.next_place(now))
        {
            self.connect(net, place);
        }
        if self.open == 0 && self.opening == 0 && self.waiting.is_empty() && !self.done {
            self.done = true;
            self.drain(now);
            self.board.worker_done();
        }
    }

    /// Takes a place without a connection, if there may be another connection, which counts as asked for from now on.
    fn next_place(&mut self, now: Instant) -> Option<usize> {
        let place = if self.left > 0 { self.idle.pop() } else { None }?;
        self.left -= 1;
        self.asked[place] = now;
        Some(place)
    }

    fn connect(&mut self, net: &mut impl Transport, place: usize) {
        self.begun += 1;
        self.opening += 1;
        net.connect(self.plan.remote_of(place), place as u64);
    }

    /// Goes on waiting for a port: connections are held back, but for an attempt now and then.
    fn wait_for_port(&mut self, net: &mut impl Transport, now: Instant) {
        while self.opening + self.waiting.len() < OPENING_AT_ONCE
            && let Some(place) = self.next_place(now)
        {
            self.hold_back(place);
        }
        let Some(wait) = &mut self.port_wait else { return };
        match wait.step(now) {
            Step::Rest => {}
            Step::Attempt => match self.waiting.pop_front() {
                Some(place) => {
                    wait.attempted(place, now);
                    self.connect(net, place);
                }
                None => self.end_port_wait(now),
            },
            Step::End => self.end_port_wait(now),
            Step::GiveUp => {
                self.end_port_wait(now);
                while let Some(place) = self.waiting.pop_front() {
                    self.give_up(place, ConnectError::NoLocalAddress);
                }
            }
        }
    }

    /// Has the connection of `place` wait for a port.
    fn hold_back(&mut self, place: usize) {
        self.waiting.push_back(place);
        if let Phase::Measuring { .. } = self.phase {
            self.outcome.traffic.port_waits.connections += 1;
        }
    }

    /// Found no port for the connection of `place`.
    fn no_port(&mut self, place: usize, now: Instant) {
        if let Some(wait) = &mut self.port_wait {
            if wait.refused(place, now) {
                // It was held back before.
                return self.waiting.push_front(place);
            }
        } else {
            if !std::mem::replace(&mut self.has_waited, true) {
                tracing::info!("no local port is free: connections wait until one may be reused");
            }
            self.port_wait = Some(PortWait::begin(now));
        }
        self.hold_back(place);
    }

    /// Ends the wait if the connection of `place` was the attempt to end it: there was a port for it.
    fn port_found(&mut self, place: usize, now: Instant) {
        if self.port_wait.as_ref().is_some_and(|wait| wait.is_attempt(place)) {
            self.end_port_wait(now);
        }
    }

    /// Ends the wait for a port, of which the part while measuring counts.
    fn end_port_wait(&mut self, now: Instant) {
        let Some(wait) = self.port_wait.take() else { return };
        if let Phase::Measuring { from, until } = self.phase {
            self.outcome.traffic.port_waits.time += now.min(until).since(wait.since().max(from));
        }
    }

    /// Counts a connection that could not be made.
    fn give_up(&mut self, place: usize, error: ConnectError) {
        match error {
            ConnectError::Refused => self.outcome.errors.refused += 1,
            _ => self.outcome.errors.unopened += 1,
        }
        self.outcome.last_failure = Some(error);
        if !std::mem::replace(&mut self.told[place], true) {
            self.board.connection_failed();
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

    fn into_outcome(mut self) -> Outcome<Connected> {
        if self.has_waited && self.told.contains(&false) {
            // Connections that were never made had no port.
            self.outcome.last_failure.get_or_insert(ConnectError::NoLocalAddress);
        }
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

    fn poll(&mut self, net: &mut impl Transport) -> Option<Duration> {
        match self.port_wait {
            // Nothing else may happen meanwhile.
            Some(_) => self.ask(net),
            None => self.advance(net.now()),
        }
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
        self.port_found(token as usize, net.now());
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
        let (now, place) = (net.now(), token as usize);
        self.opening -= 1;
        self.advance(now);
        match error {
            ConnectError::NoLocalAddress if self.phase == Phase::Draining => {}
            ConnectError::NoLocalAddress => self.no_port(place, now),
            _ => {
                self.port_found(place, now);
                self.give_up(place, error);
            }
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
mod over_stack;
#[cfg(test)]
mod tests;
