//! A [`Load`] is one worker's part of a load and has five phases:
//!
//! - *Opening*: it opens its connections.
//! - *Preparing*: when the [`Barrier`] reports that all workers' connections are open, it prepares the server, if its
//!   [`Traffic`] requires that.
//! - *Warming up* (optional): when all workers have prepared, its traffic keeps every connection busy, without
//!   counting.
//! - *Measuring*: the traffic continues, and completed requests are counted.
//! - *Draining*: it closes its connections and waits for the peers to close.
//!
//! A connection that cannot be opened, breaks, or delivers wrong bytes is counted as an error. A connection lost while
//! warming up or measuring is reopened at once. A connection that cannot be opened, or is lost in an earlier phase, is
//! not retried. Errors count in every phase.

use super::{Barrier, Corrupt, OPENING_AT_ONCE, OPENING_TICK, Plan, Traffic, WorkerLoad, share};
use crate::{Errors, Outcome};
use linerate_service::inspect::ServiceMetrics;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, ConnectError, OneSidedResult, Origin, Service, Transport};
use std::convert::Infallible;
use std::sync::Arc;

/// Interval at which a worker checks the time and the barrier while measuring, without other events.
const MEASURING_TICK: Duration = Duration::from_millis(20);
/// Maximum number of connections examined in one event for room for a due request.
const SEND_ATTEMPTS: usize = 64;
/// Maximum number of connections that close at the same time. The segments of both ends fit in the queues of a port.
const CLOSING_AT_ONCE: usize = 1024;

#[derive(Debug, Clone, Copy)]
enum Phase {
    Opening,
    Preparing,
    WarmingUp { until: Instant },
    Measuring { from: Instant, until: Instant },
    Draining,
}

/// Activity of a phase.
#[derive(Clone, Copy)]
struct PhaseFlags {
    measuring: bool,
    sending: bool,
}

/// One worker's part of a load.
pub struct Load<T: Traffic> {
    plan: Plan,
    barrier: Arc<Barrier>,
    worker: usize,
    workers: usize,
    phase: Phase,
    /// Connections of this worker by slot. A reopened connection reuses its predecessor's slot.
    slots: Vec<Option<(ConnId, T::Stream)>>,
    /// First slot whose connection has not been requested yet.
    next_new: usize,
    opening: usize,
    open: usize,
    /// First slot whose connection has not been closed yet while draining.
    next_close: usize,
    /// Number of connections that were closed while draining and still exist.
    closing: usize,
    /// Slot of the connection whose timer drives this worker.
    timer_slot: Option<usize>,
    /// Slot that sent the most recent due request.
    last_sender: usize,
    /// Set if the barrier has counted this worker as prepared.
    prepared: bool,
    done: bool,
    pub(crate) outcome: Outcome<T>,
}

impl<T: Traffic> Load<T> {
    /// Creates the part of worker `worker` of `workers`.
    pub fn new(plan: &Plan, barrier: Arc<Barrier>, worker: usize, workers: usize, traffic: T) -> Self {
        Load {
            plan: plan.clone(),
            barrier,
            worker,
            workers,
            phase: Phase::Opening,
            slots: (0..share(plan.connections, worker, workers)).map(|_| None).collect(),
            next_new: 0,
            opening: 0,
            open: 0,
            next_close: 0,
            closing: 0,
            timer_slot: None,
            last_sender: 0,
            prepared: false,
            done: false,
            outcome: Outcome { traffic, errors: Errors::default(), measured: Duration::ZERO, last_failure: None },
        }
    }

    fn open(&mut self, net: &mut impl Transport, slot: usize) {
        self.opening += 1;
        net.connect(self.plan.remote_of(slot), slot as u64);
    }

    fn open_more(&mut self, net: &mut impl Transport) {
        while matches!(self.phase, Phase::Opening) && self.next_new < self.slots.len() && self.opening < OPENING_AT_ONCE
        {
            self.next_new += 1;
            self.open(net, self.next_new - 1);
        }
    }

    fn is_sending(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::WarmingUp { .. } | Phase::Measuring { .. })
    }

    /// Returns the end time of the warm-up or the measurement, in these phases.
    fn ends_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::WarmingUp { until } | Phase::Measuring { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Returns whether `conn` is the current connection of `slot`, not a former one.
    fn is_current(&self, slot: usize, conn: ConnId) -> bool {
        self.slots[slot].as_ref().is_some_and(|(current, _)| *current == conn)
    }

    fn remove(&mut self, net: &mut impl Transport, slot: usize) {
        if let Some((_, stream)) = self.slots[slot].take() {
            self.outcome.traffic.lost(stream);
        }
        self.open -= 1;
        if matches!(self.phase, Phase::Draining) && slot < self.next_close {
            self.closing -= 1;
            self.close_more(net);
        }
        if self.timer_slot == Some(slot) {
            let all = self.slots.len();
            // Search from this slot onwards: losing all connections one by one then costs one scan in total.
            self.timer_slot = (1..all).map(|i| (slot + i) % all).find(|i| self.slots[*i].is_some());
            self.arm_timer(net);
        }
    }

    /// Aborts the connection of `slot`. The caller has counted the error.
    fn drop_connection(&mut self, net: &mut impl Transport, slot: usize) {
        if let Some((conn, _)) = self.slots[slot] {
            net.abort(conn);
            self.remove(net, slot);
        }
        if self.ends_at().is_some_and(|until| net.now() < until) {
            self.open(net, slot);
        } else if matches!(self.phase, Phase::Preparing) {
            // The remaining connections take over its preparation work.
            self.send_on_all(net);
        }
        self.finish_if_over(net);
    }

    fn arm_timer(&mut self, net: &mut impl Transport) {
        let Some((conn, _)) = self.timer_slot.and_then(|slot| self.slots[slot].as_ref()) else {
            return;
        };
        let delay = match self.phase {
            Phase::Opening | Phase::Preparing => Some(OPENING_TICK),
            Phase::WarmingUp { until } | Phase::Measuring { until, .. } => {
                let next = until.min(net.now() + MEASURING_TICK);
                Some(self.outcome.traffic.due().map_or(next, |due| due.min(next)).since(net.now()))
            }
            Phase::Draining => None,
        };
        net.set_timer(*conn, delay);
    }

    /// Checks the time and the barrier, and changes phase if due.
    #[inline]
    fn advance(&mut self, net: &mut impl Transport) {
        let goes_on = self.ends_at().is_some_and(|until| net.now() < until);
        if !goes_on || self.barrier.is_stopped() {
            self.change_phase(net);
        }
    }

    #[cold]
    fn change_phase(&mut self, net: &mut impl Transport) {
        match self.phase {
            Phase::Opening | Phase::Preparing if self.barrier.is_stopped() => self.drain(net),
            Phase::Opening | Phase::Preparing if self.barrier.has_begun() => {
                let now = net.now();
                self.outcome.traffic.begin(now, self.open, self.barrier.opened());
                if self.plan.warm_up.is_zero() {
                    self.measure(now);
                } else {
                    self.phase = Phase::WarmingUp { until: now + self.plan.warm_up };
                }
                self.send_on_all(net);
            }
            Phase::Opening if self.barrier.may_prepare() => {
                self.phase = Phase::Preparing;
                self.send_on_all(net);
            }
            Phase::Preparing if self.outcome.traffic.has_given_up() => {
                self.barrier.stop();
                self.drain(net);
            }
            Phase::Preparing if !self.prepared && self.outcome.traffic.is_prepared() => {
                self.prepared = true;
                self.barrier.worker_prepared();
            }
            Phase::WarmingUp { .. } | Phase::Measuring { .. } if self.barrier.is_stopped() => self.drain(net),
            Phase::WarmingUp { until } if net.now() >= until => self.measure(net.now()),
            Phase::Measuring { until, .. } if net.now() >= until => self.drain(net),
            _ => {}
        }
    }

    fn measure(&mut self, now: Instant) {
        self.phase = Phase::Measuring { from: now, until: now + self.plan.duration };
        self.outcome.traffic.measure(now);
    }

    fn send_on_all(&mut self, net: &mut impl Transport) {
        for (conn, stream) in self.slots.iter_mut().flatten() {
            self.outcome.traffic.send(net, *conn, stream);
        }
    }

    /// Sends due requests on successive connections.
    #[inline]
    fn send_due(&mut self, net: &mut impl Transport) {
        if self.outcome.traffic.due().is_none() || self.ends_at().is_none() {
            return;
        }
        for _ in 0..SEND_ATTEMPTS {
            if self.outcome.traffic.due().is_none_or(|due| due > net.now()) {
                return;
            }
            self.last_sender = if self.last_sender + 1 < self.slots.len() { self.last_sender + 1 } else { 0 };
            if let Some((conn, stream)) = &mut self.slots[self.last_sender] {
                self.outcome.traffic.send(net, *conn, stream);
            }
        }
    }

    /// Handles input on a connection: `take` processes the input and, if [`PhaseFlags`] permit, sends. The flags also
    /// state whether the input counts.
    #[inline]
    fn handle_input<N: Transport>(
        &mut self,
        net: &mut N,
        conn: ConnId,
        slot: usize,
        take: impl FnOnce(&mut T, &mut N, &mut T::Stream, PhaseFlags) -> Result<(), Corrupt>,
    ) {
        self.advance(net);
        let now = PhaseFlags { measuring: matches!(self.phase, Phase::Measuring { .. }), sending: self.is_sending() };
        let Some((_, stream)) = self.slots[slot].as_mut().filter(|(current, _)| *current == conn) else {
            return;
        };
        let was_idle = self.outcome.traffic.is_idle(stream);
        match take(&mut self.outcome.traffic, net, stream, now) {
            Ok(()) if now.sending => {
                if self.outcome.traffic.begins_anew(net.now()) {
                    self.send_on_all(net);
                }
            }
            Ok(()) if !was_idle && self.outcome.traffic.is_idle(stream) && slot < self.next_close => net.close(conn),
            Ok(()) => {}
            Err(Corrupt) => {
                self.outcome.errors.corrupt += 1;
                self.drop_connection(net, slot);
            }
        }
    }

    fn drain(&mut self, net: &mut impl Transport) {
        self.stop_measuring(net.now());
        self.close_more(net);
        self.finish_if_over(net);
    }

    /// Closes the next connections while draining. A connection that is not idle is closed when it becomes idle.
    fn close_more(&mut self, net: &mut impl Transport) {
        while self.closing < CLOSING_AT_ONCE && self.next_close < self.slots.len() {
            if let Some((conn, stream)) = &self.slots[self.next_close] {
                self.closing += 1;
                if self.outcome.traffic.is_idle(stream) {
                    net.close(*conn);
                }
            }
            self.next_close += 1;
        }
    }

    fn stop_measuring(&mut self, now: Instant) {
        if let Phase::Measuring { from, until } = self.phase {
            let end = now.min(until);
            self.outcome.measured = end.since(from);
            self.outcome.traffic.end(end);
            for (_, stream) in self.slots.iter().flatten() {
                self.outcome.traffic.record_unanswered(stream, end);
            }
        }
        self.phase = Phase::Draining;
    }

    fn finish_if_over(&mut self, net: &mut impl Transport) {
        let more_to_open = matches!(self.phase, Phase::Opening) && self.next_new < self.slots.len();
        if self.open == 0 && self.opening == 0 && !more_to_open && !self.done {
            self.stop_measuring(net.now());
            self.done = true;
            if !self.prepared {
                // Preparation ends incomplete: no connection remains.
                self.barrier.worker_prepared();
            }
            self.barrier.worker_done();
        }
    }
}

impl<T: Traffic> WorkerLoad for Load<T> {
    type Traffic = T;

    fn into_outcome(self) -> Outcome<T> {
        self.outcome
    }
}

impl<T: Traffic> Service for Load<T> {
    /// The connection's slot.
    type Conn = usize;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        if self.outcome.traffic.is_prepared() {
            self.prepared = true;
            self.barrier.worker_prepared();
        }
        self.open_more(net);
        self.finish_if_over(net);
    }

    /// Sends due requests without waiting for the timer, which may fire later than the next turn.
    #[inline]
    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        let due = self.outcome.traffic.due()?;
        self.ends_at()?;
        if due > net.now() {
            return Some(due.since(net.now()));
        }
        self.advance(net);
        self.send_due(net);
        // Requests that found no connection with room wait for `writable`.
        self.outcome.traffic.due().filter(|due| *due > net.now()).map(|due| due.since(net.now()))
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> usize {
        let slot = match origin {
            Origin::Connected(token) => token as usize,
            // A load has no listeners: abort a connection that the transport accepted anyway.
            Origin::Accepted => {
                net.abort(conn);
                return 0;
            }
        };
        self.opening -= 1;
        let mut stream = self.outcome.traffic.stream(self.worker + slot * self.workers);
        match self.phase {
            Phase::Opening => self.barrier.connection_opened(),
            Phase::Preparing | Phase::WarmingUp { .. } | Phase::Measuring { .. } => {
                self.outcome.traffic.send(net, conn, &mut stream);
            }
            Phase::Draining => {
                net.abort(conn);
                self.finish_if_over(net);
                return slot;
            }
        }
        self.slots[slot] = Some((conn, stream));
        self.open += 1;
        if self.timer_slot.is_none() {
            self.timer_slot = Some(slot);
            self.arm_timer(net);
        }
        self.open_more(net);
        slot
    }

    fn failed(&mut self, net: &mut impl Transport, _: u64, error: ConnectError) {
        self.opening -= 1;
        match error {
            ConnectError::Refused => self.outcome.errors.refused += 1,
            _ => self.outcome.errors.unopened += 1,
        }
        self.outcome.last_failure = Some(error);
        if matches!(self.phase, Phase::Opening) {
            self.barrier.connection_failed();
        }
        self.open_more(net);
        self.finish_if_over(net);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, slot: &mut usize) {
        self.handle_input(net, conn, *slot, |traffic, net, stream, now| match now.sending {
            true => traffic.exchange(net, conn, stream, now.measuring),
            false => traffic.receive(net, conn, stream, now.measuring),
        });
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        slot: &mut usize,
        token: u64,
        outcome: OneSidedResult,
    ) {
        self.handle_input(net, conn, *slot, |traffic, net, stream, now| {
            traffic.one_sided_done(net, conn, stream, (token, outcome), now.measuring)?;
            if now.sending {
                traffic.send(net, conn, stream);
            }
            Ok(())
        });
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, slot: &mut usize) {
        self.advance(net);
        if !self.is_sending() {
            return;
        }
        if let Some((_, stream)) = self.slots[*slot].as_mut().filter(|(current, _)| *current == conn) {
            self.outcome.traffic.send(net, conn, stream);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, slot: &mut usize) {
        if !self.is_current(*slot, conn) {
            return;
        }
        if matches!(self.phase, Phase::Draining) {
            if *slot >= self.next_close {
                net.close(conn);
            }
            self.remove(net, *slot);
            self.finish_if_over(net);
        } else {
            self.outcome.errors.lost += 1;
            self.drop_connection(net, *slot);
        }
    }

    fn timer(&mut self, net: &mut impl Transport, _: ConnId, _: &mut usize) {
        self.advance(net);
        self.send_due(net);
        self.barrier.progress(self.worker, self.outcome.traffic.progress());
        self.arm_timer(net);
    }

    fn metrics(&self) -> ServiceMetrics {
        ServiceMetrics { requests: self.outcome.traffic.answered(), ..ServiceMetrics::default() }
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, slot: usize, _: CloseReason) {
        if self.is_current(slot, conn) {
            if !matches!(self.phase, Phase::Draining) {
                self.outcome.errors.lost += 1;
            }
            self.drop_connection(net, slot);
        }
    }
}

#[cfg(test)]
mod tests;
