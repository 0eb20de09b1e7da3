//! Load generators: services that connect.
//!
//! Most are a [`Load`], and keep their connections; [`Connects`] makes one for each request.
//!
//! A [`Load`] is one worker's part of a load. It goes through five phases. It *opens* its connections; when
//! all workers' connections are open (the [`Board`] knows), it *prepares* the server, if its [`Traffic`] has to; when
//! all workers have, it *warms up*, if it is to: its traffic keeps every connection busy, and nothing is counted; it *measures*: the
//! traffic goes on, and what completes is counted; when the time is over, it *drains*: it closes, and waits for its peers to close.
//!
//! A connection that cannot be opened, breaks, or brings other bytes than it should is an error and counted. One
//! that is lost while warming up or measuring is opened again at once; one that cannot be opened, or is lost before, is not tried
//! again. Errors are counted whenever they happen, while warming up too.
#![forbid(unsafe_code)]

mod board;
mod bulk;
mod connects;
mod echo;
mod flight;
mod kv;
mod outcome;
mod pace;
mod pattern;
mod port_wait;
mod probe;
pub mod raw;
pub mod report;
#[cfg(feature = "rdma")]
mod rounds;
pub mod services;
#[cfg(test)]
mod testing;
mod traffic;
mod udp_echo;

pub use board::Board;
pub use bulk::{Bulk, Direction};
pub use connects::{Connected, Connects, Use};
pub use echo::EchoLoad;
pub use flight::{Counts, Flight, FlightPlan, NO_ANSWER};
pub use kv::{
    Ask, AskCounters, Astray, CountLoad, CountPlan, Counted, Exported, Keyspace, KvLoad, KvPlan, LONGEST_IN_DATAGRAM,
    MOST_KEYS, NoCounters, Protocol, Reads, SHORTEST_VERIFIED, SWAP_EVERY, Side, UdpKvLoad, UdpPlan, counter_name,
};
pub(crate) use outcome::histogram_of_nanos;
pub use outcome::{Errors, Outcome};
pub use pace::{Arrivals, OpenLoop, Pace};
pub use port_wait::PortWaits;
#[cfg(feature = "rdma")]
pub use rounds::{Progress, Rounds, Stage};
pub use traffic::{Corrupt, Traffic};

pub use probe::{Arrival, Probe};
pub use udp_echo::UdpEchoLoad;

use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnId, ConnectError, OneSidedResult, Origin, Service, Transport};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

/// Connections that one worker asks for at a time, so that no peer's backlog overflows.
const OPENING_AT_ONCE: usize = 256;
/// How often a worker looks at the board while its connections are being opened, and while it prepares.
const OPENING_TICK: Duration = Duration::from_millis(1);
/// How often a worker looks at the clock and the board while measuring, if nothing else happens.
const MEASURING_TICK: Duration = Duration::from_millis(20);
/// Connections that are looked at in one event for one that can take what is due.
const LOOKED_AT: usize = 64;

/// One worker's part of a load, whatever it does with connections.
pub trait Part: Service<Message = Infallible> + Send + 'static {
    /// What it counts.
    type Traffic: Send;

    /// What was measured.
    fn into_outcome(self) -> Outcome<Self::Traffic>;
}

/// Of so many connections, those of worker `worker` of `workers`.
fn share(connections: usize, worker: usize, workers: usize) -> usize {
    (connections + workers - 1 - worker) / workers
}

/// What a load is to do; the same for all workers.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server.
    pub remote: SocketAddr,
    /// On how many ports it listens, from that of `remote` on, to which connections go in turn.
    pub ports: u16,
    /// Connections of all workers together.
    pub connections: usize,
    /// For how long there is traffic that does not count, before measuring.
    pub warm_up: Duration,
    /// How long to measure.
    pub duration: Duration,
}

impl Plan {
    /// Where the connection in `place` goes to.
    pub fn remote_of(&self, place: usize) -> SocketAddr {
        let port = self.remote.port() + (place % usize::from(self.ports)) as u16;
        SocketAddr::new(self.remote.ip(), port)
    }
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Opening,
    Preparing,
    WarmingUp { until: Instant },
    Measuring { from: Instant, until: Instant },
    Draining,
}

/// What is done in a phase.
#[derive(Clone, Copy)]
struct Now {
    measuring: bool,
    sending: bool,
}

/// One worker's part of a load.
pub struct Load<T: Traffic> {
    plan: Plan,
    board: Arc<Board>,
    worker: usize,
    workers: usize,
    phase: Phase,
    /// The connections of this worker. One that is gone leaves its place to the one opened in its stead.
    places: Vec<Option<(ConnId, T::Stream)>>,
    /// Places that have not been asked to be opened yet begin here.
    unasked: usize,
    opening: usize,
    open: usize,
    /// The place whose connection's timer is this worker's clock.
    clock: Option<usize>,
    /// The place that is the next to send what is due.
    turn: usize,
    /// Whether the board knows that this worker is prepared.
    prepared: bool,
    done: bool,
    outcome: Outcome<T>,
}

impl<T: Traffic> Load<T> {
    /// The part of worker `worker` of `workers`.
    pub fn new(plan: &Plan, board: Arc<Board>, worker: usize, workers: usize, traffic: T) -> Self {
        Load {
            plan: plan.clone(),
            board,
            worker,
            workers,
            phase: Phase::Opening,
            places: (0..share(plan.connections, worker, workers)).map(|_| None).collect(),
            unasked: 0,
            opening: 0,
            open: 0,
            clock: None,
            turn: 0,
            prepared: false,
            done: false,
            outcome: Outcome { traffic, errors: Errors::default(), measured: Duration::ZERO, last_failure: None },
        }
    }

    fn ask(&mut self, net: &mut impl Transport, place: usize) {
        self.opening += 1;
        net.connect(self.plan.remote_of(place), place as u64);
    }

    fn ask_for_more(&mut self, net: &mut impl Transport) {
        while matches!(self.phase, Phase::Opening) && self.unasked < self.places.len() && self.opening < OPENING_AT_ONCE
        {
            self.unasked += 1;
            self.ask(net, self.unasked - 1);
        }
    }

    fn is_sending(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::WarmingUp { .. } | Phase::Measuring { .. })
    }

    /// When this phase is over, if it has the traffic that is measured.
    fn ends_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::WarmingUp { until } | Phase::Measuring { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Whether `conn` is the connection of `place`, and not one that was given up.
    fn is_current(&self, place: usize, conn: ConnId) -> bool {
        self.places[place].as_ref().is_some_and(|(current, _)| *current == conn)
    }

    fn forget(&mut self, net: &mut impl Transport, place: usize) {
        if let Some((_, stream)) = self.places[place].take() {
            self.outcome.traffic.lost(stream);
        }
        self.open -= 1;
        if self.clock == Some(place) {
            let all = self.places.len();
            // From here on and around, so that losing all of them one by one does not scan from the first each time.
            self.clock = (1..all).map(|i| (place + i) % all).find(|i| self.places[*i].is_some());
            self.wind_clock(net);
        }
    }

    /// Gives the connection of `place` up. Whoever calls has counted why.
    fn lose(&mut self, net: &mut impl Transport, place: usize) {
        if let Some((conn, _)) = self.places[place] {
            net.abort(conn);
            self.forget(net, place);
        }
        if self.ends_at().is_some_and(|until| net.now() < until) {
            self.ask(net, place);
        } else if matches!(self.phase, Phase::Preparing) {
            // What it was to do is for the others.
            self.send_on_all(net);
        }
        self.finish_if_over(net);
    }

    fn wind_clock(&mut self, net: &mut impl Transport) {
        let Some((conn, _)) = self.clock.and_then(|place| self.places[place].as_ref()) else {
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

    /// Looks at the clock and the board, and changes phase when it is time.
    #[inline]
    fn advance(&mut self, net: &mut impl Transport) {
        let goes_on = self.ends_at().is_some_and(|until| net.now() < until);
        if !goes_on || self.board.is_stopped() {
            self.change(net);
        }
    }

    #[cold]
    fn change(&mut self, net: &mut impl Transport) {
        match self.phase {
            Phase::Opening | Phase::Preparing if self.board.is_stopped() => self.drain(net),
            Phase::Opening | Phase::Preparing if self.board.has_begun() => {
                let now = net.now();
                self.outcome.traffic.begin(now, self.open, self.board.opened());
                if self.plan.warm_up.is_zero() {
                    self.measure(now);
                } else {
                    self.phase = Phase::WarmingUp { until: now + self.plan.warm_up };
                }
                self.send_on_all(net);
            }
            Phase::Opening if self.board.may_prepare() => {
                self.phase = Phase::Preparing;
                self.send_on_all(net);
            }
            Phase::Preparing if !self.prepared && self.outcome.traffic.is_prepared() => {
                self.prepared = true;
                self.board.worker_prepared();
            }
            Phase::WarmingUp { .. } | Phase::Measuring { .. } if self.board.is_stopped() => self.drain(net),
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
        for (conn, stream) in self.places.iter_mut().flatten() {
            self.outcome.traffic.send(net, *conn, stream);
        }
    }

    /// Sends what is due, on one connection after another.
    #[inline]
    fn send_due(&mut self, net: &mut impl Transport) {
        if self.outcome.traffic.due().is_none() || self.ends_at().is_none() {
            return;
        }
        for _ in 0..LOOKED_AT {
            if self.outcome.traffic.due().is_none_or(|due| due > net.now()) {
                return;
            }
            self.turn = if self.turn + 1 < self.places.len() { self.turn + 1 } else { 0 };
            if let Some((conn, stream)) = &mut self.places[self.turn] {
                self.outcome.traffic.send(net, *conn, stream);
            }
        }
    }

    /// Something has come on a connection: `take` takes it in and, if it is told to, sends what may be sent then. It is told too
    /// whether what has come counts.
    #[inline]
    fn take_in<N: Transport>(
        &mut self,
        net: &mut N,
        conn: ConnId,
        place: usize,
        take: impl FnOnce(&mut T, &mut N, &mut T::Stream, Now) -> Result<(), Corrupt>,
    ) {
        self.advance(net);
        let now = Now { measuring: matches!(self.phase, Phase::Measuring { .. }), sending: self.is_sending() };
        let Some((_, stream)) = self.places[place].as_mut().filter(|(current, _)| *current == conn) else {
            return;
        };
        let was_idle = self.outcome.traffic.is_idle(stream);
        match take(&mut self.outcome.traffic, net, stream, now) {
            Ok(()) if now.sending => {}
            Ok(()) if !was_idle && self.outcome.traffic.is_idle(stream) => net.close(conn),
            Ok(()) => {}
            Err(Corrupt) => {
                self.outcome.errors.corrupt += 1;
                self.lose(net, place);
            }
        }
        self.send_due(net);
    }

    fn drain(&mut self, net: &mut impl Transport) {
        self.stop_measuring(net.now());
        for (conn, stream) in self.places.iter().flatten() {
            if self.outcome.traffic.is_idle(stream) {
                net.close(*conn);
            }
        }
        self.finish_if_over(net);
    }

    fn stop_measuring(&mut self, now: Instant) {
        if let Phase::Measuring { from, until } = self.phase {
            self.outcome.measured = now.min(until).since(from);
            self.outcome.traffic.end(now.min(until));
        }
        self.phase = Phase::Draining;
    }

    fn finish_if_over(&mut self, net: &mut impl Transport) {
        let more_to_ask = matches!(self.phase, Phase::Opening) && self.unasked < self.places.len();
        if self.open == 0 && self.opening == 0 && !more_to_ask && !self.done {
            self.stop_measuring(net.now());
            self.done = true;
            if !self.prepared {
                // As far as it ever will be.
                self.board.worker_prepared();
            }
            self.board.worker_done();
        }
    }
}

impl<T: Traffic> Part for Load<T> {
    type Traffic = T;

    fn into_outcome(self) -> Outcome<T> {
        self.outcome
    }
}

impl<T: Traffic> Service for Load<T> {
    /// The connection's place.
    type Conn = usize;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        if self.outcome.traffic.is_prepared() {
            self.prepared = true;
            self.board.worker_prepared();
        }
        self.ask_for_more(net);
        self.finish_if_over(net);
    }

    /// Sends what is due without waiting for a timer, which may come later than the next turn.
    #[inline]
    fn poll(&mut self, net: &mut impl Transport) -> Option<Duration> {
        let due = self.outcome.traffic.due()?;
        self.ends_at()?;
        if due > net.now() {
            return Some(due.since(net.now()));
        }
        self.advance(net);
        self.send_due(net);
        // What found no connection with room waits for one.
        self.outcome.traffic.due().filter(|due| *due > net.now()).map(|due| due.since(net.now()))
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> usize {
        let place = match origin {
            Origin::Connected(token) => token as usize,
            // A load listens nowhere; a transport that accepts all the same gets its connection back.
            Origin::Accepted => {
                net.abort(conn);
                return 0;
            }
        };
        self.opening -= 1;
        let mut stream = self.outcome.traffic.stream(self.worker + place * self.workers);
        match self.phase {
            Phase::Opening => self.board.connection_opened(),
            Phase::Preparing | Phase::WarmingUp { .. } | Phase::Measuring { .. } => {
                self.outcome.traffic.send(net, conn, &mut stream);
            }
            Phase::Draining => {
                net.abort(conn);
                self.finish_if_over(net);
                return place;
            }
        }
        self.places[place] = Some((conn, stream));
        self.open += 1;
        if self.clock.is_none() {
            self.clock = Some(place);
            self.wind_clock(net);
        }
        self.ask_for_more(net);
        place
    }

    fn failed(&mut self, net: &mut impl Transport, _: u64, error: ConnectError) {
        self.opening -= 1;
        match error {
            ConnectError::Refused => self.outcome.errors.refused += 1,
            _ => self.outcome.errors.unopened += 1,
        }
        self.outcome.last_failure = Some(error);
        if matches!(self.phase, Phase::Opening) {
            self.board.connection_failed();
        }
        self.ask_for_more(net);
        self.finish_if_over(net);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, place: &mut usize) {
        self.take_in(net, conn, *place, |traffic, net, stream, now| match now.sending {
            true => traffic.exchange(net, conn, stream, now.measuring),
            false => traffic.receive(net, conn, stream, now.measuring),
        });
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        place: &mut usize,
        token: u64,
        outcome: OneSidedResult,
    ) {
        self.take_in(net, conn, *place, |traffic, net, stream, now| {
            traffic.one_sided_done(net, conn, stream, (token, outcome), now.measuring)?;
            if now.sending {
                traffic.send(net, conn, stream);
            }
            Ok(())
        });
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, place: &mut usize) {
        self.advance(net);
        if !self.is_sending() {
            return;
        }
        if let Some((_, stream)) = self.places[*place].as_mut().filter(|(current, _)| *current == conn) {
            self.outcome.traffic.send(net, conn, stream);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, place: &mut usize) {
        if !self.is_current(*place, conn) {
            return;
        }
        if matches!(self.phase, Phase::Draining) {
            self.forget(net, *place);
            self.finish_if_over(net);
        } else {
            self.outcome.errors.lost += 1;
            self.lose(net, *place);
        }
    }

    fn timer(&mut self, net: &mut impl Transport, _: ConnId, _: &mut usize) {
        self.advance(net);
        self.send_due(net);
        self.board.progress(self.worker, self.outcome.traffic.progress());
        self.wind_clock(net);
    }

    fn requests(&self) -> Option<u64> {
        self.outcome.traffic.answered()
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, place: usize, _: CloseReason) {
        if self.is_current(place, conn) {
            if !matches!(self.phase, Phase::Draining) {
                self.outcome.errors.lost += 1;
            }
            self.lose(net, place);
        }
    }
}

#[cfg(test)]
mod tests;
