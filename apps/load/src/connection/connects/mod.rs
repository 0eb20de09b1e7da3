//! Connection load: each connection carries one request and is followed by another.

mod port_wait;

pub use port_wait::PortWaits;

use super::{Barrier, OPENING_AT_ONCE, OPENING_TICK, Plan, WorkerLoad, share};
use crate::pattern::Position;
use crate::{Errors, Outcome, Times};
use linerate_service::inspect::ServiceMetrics;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use port_wait::{PortWait, Step};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

/// Parameters of a load that opens a connection for each request.
#[derive(Debug, Clone, Copy)]
pub struct ConnectPlan {
    /// Size of the request in bytes, which the server must echo before the connection is closed. With 0 the connection
    /// is closed as soon as it is established.
    pub request: usize,
    /// Maximum number of connections that each worker opens in total.
    pub most: u64,
}

/// One worker's part of a load that opens a connection for each request: connect, send the request, receive the answer,
/// close, and connect again when both ends have closed. The plan's `connections` is the number of concurrent
/// connections.
///
/// A request's time is measured from the beginning of the event that requested the connection to the beginning of the
/// event that received the last byte of the answer ([`Transport::now`] of both). It excludes closing. Requests answered
/// while measuring count.
///
/// This end closes first, with a FIN, so that it enters TIME-WAIT (RFC 9293 §3.3.2) and the ports of closed connections
/// stay in use for its duration. A connection that cannot be established is an error and not retried: the number of
/// concurrent connections decreases by one. A connection that is lost or delivers wrong bytes is an error and is
/// replaced.
#[derive(Debug)]
pub struct Connects {
    plan: Plan,
    barrier: Arc<Barrier>,
    worker: usize,
    workers: usize,
    request: usize,
    phase: Phase,
    /// Time of the request of each slot's connection, until it is answered or fails.
    requested: Vec<Option<Instant>>,
    /// Slots whose first connection the barrier has counted as opened or failed.
    reported: Vec<bool>,
    /// Slots without a connection.
    idle: Vec<usize>,
    /// Slots whose connections wait for a local port, in order of request.
    waiting: VecDeque<usize>,
    port_wait: Option<PortWait>,
    /// Set if a wait for a port has ever begun.
    has_waited: bool,
    opening: usize,
    open: usize,
    /// Number of connection attempts so far.
    begun: usize,
    left: u64,
    done: bool,
    outcome: Outcome<ConnectStats>,
}

/// Results of a connection load.
#[derive(Debug)]
pub struct ConnectStats {
    /// Connections whose request was answered while measuring.
    pub connections: u64,
    /// Request times.
    pub times: Times,
    /// Waits for a local port while measuring.
    pub port_waits: PortWaits,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    WarmingUp { until: Instant },
    Measuring { from: Instant, until: Instant },
    Draining,
}

/// State of a connection.
pub struct ConnState {
    /// `None` for a connection that a peer opened.
    slot: Option<usize>,
    to_send: Position,
    to_receive: Position,
    unsent: usize,
    awaited: usize,
    /// Set if the connection's result has been counted.
    is_over: bool,
}

impl Connects {
    /// Creates the part of worker `worker` of `workers`.
    pub fn new(plan: &Plan, barrier: Arc<Barrier>, worker: usize, workers: usize, each: ConnectPlan) -> Self {
        let slots = share(plan.connections, worker, workers);
        let port_waits = PortWaits::default();
        let traffic = ConnectStats { connections: 0, times: Times::default(), port_waits };
        Connects {
            plan: plan.clone(),
            barrier,
            worker,
            workers,
            request: each.request,
            phase: Phase::Waiting,
            requested: vec![None; slots],
            reported: vec![false; slots],
            idle: (0..slots).rev().collect(),
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

    /// Returns the results so far, or an error if a connection failed.
    pub fn connected(&self) -> Result<&ConnectStats, Option<ConnectError>> {
        if self.outcome.errors.total() == 0 { Ok(&self.outcome.traffic) } else { Err(self.outcome.last_failure) }
    }

    /// Returns the duration of the measurement after its end.
    pub fn measured(&self) -> Duration {
        self.outcome.measured
    }

    fn advance(&mut self, now: Instant) {
        self.phase = match self.phase {
            Phase::Draining => return,
            _ if self.barrier.is_stopped() => return self.drain(now),
            Phase::Waiting if !self.barrier.has_begun() => return,
            Phase::Waiting if !self.plan.warm_up.is_zero() => Phase::WarmingUp { until: now + self.plan.warm_up },
            Phase::WarmingUp { until } if now < until => return,
            Phase::Waiting | Phase::WarmingUp { .. } => Phase::Measuring { from: now, until: now + self.plan.duration },
            Phase::Measuring { until, .. } if now < until => return,
            Phase::Measuring { .. } => return self.drain(now),
        };
    }

    fn drain(&mut self, now: Instant) {
        self.end_port_wait(now);
        // A wait for a local port is no stall of the server.
        self.waiting.drain(..).for_each(|slot| self.requested[slot] = None);
        if let Phase::Measuring { from, until } = self.phase {
            let end = now.min(until);
            self.outcome.measured = end.since(from);
            for requested in self.requested.iter().flatten() {
                self.outcome.traffic.times.record_unanswered(end.since(*requested), 1);
            }
        }
        self.phase = Phase::Draining;
    }

    /// Opens connections in idle slots, as far as local ports are available.
    fn open_more(&mut self, net: &mut impl Transport) {
        let now = net.now();
        self.advance(now);
        if self.port_wait.is_some() {
            self.wait_for_port(net, now);
        }
        while self.phase != Phase::Draining
            && self.port_wait.is_none()
            && self.opening < OPENING_AT_ONCE
            && let Some(slot) = self.waiting.pop_front().or_else(|| self.next_slot(now))
        {
            self.connect(net, slot);
        }
        if self.open == 0 && self.opening == 0 && self.waiting.is_empty() && !self.done {
            self.done = true;
            self.drain(now);
            self.barrier.worker_done();
        }
    }

    /// Takes an idle slot for another connection, unless the maximum is reached, and starts its time.
    fn next_slot(&mut self, now: Instant) -> Option<usize> {
        let slot = if self.left > 0 { self.idle.pop() } else { None }?;
        self.left -= 1;
        self.requested[slot] = Some(now);
        Some(slot)
    }

    fn connect(&mut self, net: &mut impl Transport, slot: usize) {
        self.begun += 1;
        self.opening += 1;
        net.connect(self.plan.remote_of(slot), slot as u64);
    }

    /// Continues a wait for a local port: connections wait, except for occasional attempts.
    fn wait_for_port(&mut self, net: &mut impl Transport, now: Instant) {
        while self.opening + self.waiting.len() < OPENING_AT_ONCE
            && let Some(slot) = self.next_slot(now)
        {
            self.hold_back(slot);
        }
        let Some(wait) = &mut self.port_wait else { return };
        match wait.step(now) {
            Step::Rest => {}
            Step::Attempt => match self.waiting.pop_front() {
                Some(slot) => {
                    wait.attempted(slot, now);
                    self.connect(net, slot);
                }
                None => self.end_port_wait(now),
            },
            Step::End => self.end_port_wait(now),
            Step::GiveUp => {
                self.end_port_wait(now);
                while let Some(slot) = self.waiting.pop_front() {
                    self.give_up(slot, ConnectError::NoLocalAddress);
                }
            }
        }
    }

    /// Makes the connection of `slot` wait for a local port.
    fn hold_back(&mut self, slot: usize) {
        self.waiting.push_back(slot);
        if let Phase::Measuring { .. } = self.phase {
            self.outcome.traffic.port_waits.connections += 1;
        }
    }

    /// Handles a lack of local ports for the connection of `slot`.
    fn no_port(&mut self, slot: usize, now: Instant) {
        if let Some(wait) = &mut self.port_wait {
            if wait.refused(slot, now) {
                // The connection was already waiting.
                return self.waiting.push_front(slot);
            }
        } else {
            if !std::mem::replace(&mut self.has_waited, true) {
                tracing::info!("no local port is free: connections wait until one may be reused");
            }
            self.port_wait = Some(PortWait::begin(now));
        }
        self.hold_back(slot);
    }

    /// Ends the wait if the connection of `slot` was the attempt: a port is available.
    fn port_found(&mut self, slot: usize, now: Instant) {
        if self.port_wait.as_ref().is_some_and(|wait| wait.is_attempt(slot)) {
            self.end_port_wait(now);
        }
    }

    /// Ends the wait for a local port and counts the part within the measurement.
    fn end_port_wait(&mut self, now: Instant) {
        let Some(wait) = self.port_wait.take() else { return };
        if let Phase::Measuring { from, until } = self.phase {
            self.outcome.traffic.port_waits.time += now.min(until).since(wait.since().max(from));
        }
    }

    /// Counts a connection that could not be established.
    fn give_up(&mut self, slot: usize, error: ConnectError) {
        match error {
            ConnectError::Refused => self.outcome.errors.refused += 1,
            _ => self.outcome.errors.unopened += 1,
        }
        self.outcome.last_failure = Some(error);
        self.requested[slot] = None;
        if !std::mem::replace(&mut self.reported[slot], true) {
            self.barrier.connection_failed();
        }
    }

    /// Completes a connection's request.
    fn complete(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ConnState) {
        state.is_over = true;
        self.advance(net.now());
        let requested = state.slot.and_then(|slot| self.requested[slot].take());
        if let (Phase::Measuring { .. }, Some(requested)) = (self.phase, requested) {
            self.outcome.traffic.connections += 1;
            self.outcome.traffic.times.record(net.now().since(requested).as_nanos() as u64);
        }
        net.close(conn);
    }

    /// Processes received bytes; returns `false` if they are wrong.
    fn handle_input(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ConnState) -> bool {
        loop {
            let bytes = net.peek(conn);
            let n = bytes.len();
            if n == 0 {
                return true;
            }
            if n > state.awaited - state.unsent || !state.to_receive.matches(bytes) {
                return false;
            }
            state.awaited -= n;
            net.consume(conn, n);
        }
    }

    fn send(net: &mut impl Transport, conn: ConnId, state: &mut ConnState) {
        state.unsent -= state.to_send.send(net, conn, state.unsent);
    }
}

impl WorkerLoad for Connects {
    type Traffic = ConnectStats;

    fn into_outcome(mut self) -> Outcome<ConnectStats> {
        if self.has_waited && self.reported.contains(&false) {
            // Connections that were never established lacked a port.
            self.outcome.last_failure.get_or_insert(ConnectError::NoLocalAddress);
        }
        self.outcome
    }
}

impl Service for Connects {
    type Conn = ConnState;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        // This load needs no preparation.
        self.barrier.worker_prepared();
        self.open_more(net);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        match self.port_wait {
            // While connections wait for a port, no other event may occur that retries them.
            Some(_) => self.open_more(net),
            None => self.advance(net.now()),
        }
        self.barrier.progress(self.worker, self.outcome.traffic.connections);
        match self.phase {
            Phase::Draining => None,
            _ => Some(OPENING_TICK),
        }
    }

    fn metrics(&self) -> ServiceMetrics {
        ServiceMetrics { requests: Some(self.outcome.traffic.connections), ..ServiceMetrics::default() }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> ConnState {
        let stream = Position::of_connection(self.worker + self.begun * self.workers);
        let (unsent, awaited) = (self.request, self.request);
        let mut state = ConnState { slot: None, to_send: stream, to_receive: stream, unsent, awaited, is_over: false };
        let Origin::Connected(token) = origin else {
            // A load has no listeners: abort a connection that the transport accepted anyway.
            state.is_over = true;
            self.open += 1;
            net.abort(conn);
            return state;
        };
        state.slot = Some(token as usize);
        self.opening -= 1;
        self.open += 1;
        self.port_found(token as usize, net.now());
        if !std::mem::replace(&mut self.reported[token as usize], true) {
            self.barrier.connection_opened();
        }
        match self.request {
            0 => self.complete(net, conn, &mut state),
            _ => Self::send(net, conn, &mut state),
        }
        self.open_more(net);
        state
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        let (now, slot) = (net.now(), token as usize);
        self.opening -= 1;
        self.advance(now);
        match error {
            ConnectError::NoLocalAddress if self.phase == Phase::Draining => {}
            ConnectError::NoLocalAddress => self.no_port(slot, now),
            _ => {
                self.port_found(slot, now);
                self.give_up(slot, error);
            }
        }
        self.open_more(net);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ConnState) {
        if !self.handle_input(net, conn, state) {
            if !std::mem::replace(&mut state.is_over, true) {
                self.outcome.errors.corrupt += 1;
            }
            net.abort(conn);
        } else if state.awaited == 0 && !state.is_over {
            self.complete(net, conn, state);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ConnState) {
        Self::send(net, conn, state);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ConnState) {
        if !std::mem::replace(&mut state.is_over, true) {
            self.outcome.errors.lost += 1;
            net.abort(conn);
        }
    }

    fn closed(&mut self, net: &mut impl Transport, _: ConnId, state: ConnState, _: CloseReason) {
        self.open -= 1;
        if !state.is_over && self.phase != Phase::Draining {
            self.outcome.errors.lost += 1;
        }
        if let Some(slot) = state.slot {
            self.requested[slot] = None;
            self.idle.push(slot);
        }
        self.open_more(net);
    }
}

#[cfg(test)]
mod over_stack;
#[cfg(test)]
mod tests;
