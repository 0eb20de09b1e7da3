//! Load generators: services that connect.
//!
//! A [`Load`] is one worker's part of a load. It goes through three phases. It *opens* its connections; when
//! all workers' connections are open (the [`Board`] knows), it *measures*: its [`Traffic`] keeps every
//! connection busy, and what completes is counted; when the time is over, it *drains*: it closes, and waits for
//! its peers to close.
//!
//! A connection that cannot be opened, breaks, or brings other bytes than it should is an error and counted. One
//! that is lost while measuring is opened again at once; one that cannot be opened is not tried again.

mod board;
mod bulk;
mod echo;
mod pattern;

pub use board::Board;
pub use bulk::{Bulk, Direction};
pub use echo::EchoLoad;

use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::Arc;

/// Connections that one worker asks for at a time, so that no peer's backlog overflows.
const OPENING_AT_ONCE: usize = 256;
/// How often a worker looks at the board while its connections are being opened.
const OPENING_TICK: Duration = Duration::from_millis(1);
/// How often a worker looks at the clock and the board while measuring, if nothing else happens.
const MEASURING_TICK: Duration = Duration::from_millis(20);

/// What a load does on each of its connections.
pub trait Traffic {
    /// What it keeps for each connection.
    type Stream;

    /// A new connection: the `index`th of the whole load.
    fn stream(&self, index: usize) -> Self::Stream;

    /// Sends what may be sent now. Called first when measuring begins, then whenever there is room or something
    /// has been received.
    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Self::Stream);

    /// Takes in what has been received; `measuring` says whether it counts. Before and after measuring there may
    /// be something to receive too.
    fn receive(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Self::Stream,
        measuring: bool,
    ) -> Result<(), Corrupt>;

    /// What has been done so far, in the units that a progress line shows.
    fn progress(&self) -> u64;
}

/// Other bytes arrived than had to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// What went wrong, in numbers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Errors {
    /// Connections that brought other bytes than they had to.
    pub corrupt: u64,
    /// Connections that the peer closed or reset, or whose peer stopped answering.
    pub lost: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that could not be opened for another reason.
    pub unopened: u64,
}

impl Errors {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.corrupt + self.lost + self.refused + self.unopened
    }
}

impl AddAssign for Errors {
    fn add_assign(&mut self, other: Errors) {
        self.corrupt += other.corrupt;
        self.lost += other.lost;
        self.refused += other.refused;
        self.unopened += other.unopened;
    }
}

/// What a load is to do; the same for all workers.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server.
    pub remote: SocketAddr,
    /// Connections of all workers together.
    pub connections: usize,
    /// How long to measure.
    pub duration: Duration,
}

/// What one worker measured.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The traffic, with its counts.
    pub traffic: T,
    /// What went wrong.
    pub errors: Errors,
    /// How long was measured: the plan's duration, unless stopped earlier or all connections were lost.
    pub measured: Duration,
    /// Why the last connection that could not be opened could not.
    pub last_failure: Option<ConnectError>,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Opening,
    Measuring { from: Instant, until: Instant },
    Draining,
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
    done: bool,
    outcome: Outcome<T>,
}

impl<T: Traffic> Load<T> {
    /// The part of worker `worker` of `workers`.
    pub fn new(plan: &Plan, board: Arc<Board>, worker: usize, workers: usize, traffic: T) -> Self {
        let share = (plan.connections + workers - 1 - worker) / workers;
        Load {
            plan: plan.clone(),
            board,
            worker,
            workers,
            phase: Phase::Opening,
            places: (0..share).map(|_| None).collect(),
            unasked: 0,
            opening: 0,
            open: 0,
            clock: None,
            done: false,
            outcome: Outcome { traffic, errors: Errors::default(), measured: Duration::ZERO, last_failure: None },
        }
    }

    /// What was measured.
    pub fn into_outcome(self) -> Outcome<T> {
        self.outcome
    }

    fn ask(&mut self, net: &mut impl Transport, place: usize) {
        self.opening += 1;
        net.connect(self.plan.remote, place as u64);
    }

    fn ask_for_more(&mut self, net: &mut impl Transport) {
        while matches!(self.phase, Phase::Opening) && self.unasked < self.places.len() && self.opening < OPENING_AT_ONCE
        {
            self.unasked += 1;
            self.ask(net, self.unasked - 1);
        }
    }

    /// Whether `conn` is the connection of `place`, and not one that was given up.
    fn is_current(&self, place: usize, conn: ConnId) -> bool {
        self.places[place].as_ref().is_some_and(|(current, _)| *current == conn)
    }

    fn forget(&mut self, net: &mut impl Transport, place: usize) {
        self.places[place] = None;
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
        if matches!(self.phase, Phase::Measuring { until, .. } if net.now() < until) {
            self.ask(net, place);
        }
        self.finish_if_over(net);
    }

    fn wind_clock(&mut self, net: &mut impl Transport) {
        let Some((conn, _)) = self.clock.and_then(|place| self.places[place].as_ref()) else {
            return;
        };
        let delay = match self.phase {
            Phase::Opening => Some(OPENING_TICK),
            Phase::Measuring { until, .. } => Some(until.since(net.now()).min(MEASURING_TICK)),
            Phase::Draining => None,
        };
        net.set_timer(*conn, delay);
    }

    /// Looks at the clock and the board, and changes phase when it is time.
    fn advance(&mut self, net: &mut impl Transport) {
        match self.phase {
            Phase::Opening if self.board.is_stopped() => self.drain(net),
            Phase::Opening if self.board.has_begun() => {
                let from = net.now();
                self.phase = Phase::Measuring { from, until: from + self.plan.duration };
                for (conn, stream) in self.places.iter_mut().flatten() {
                    self.outcome.traffic.send(net, *conn, stream);
                }
            }
            Phase::Measuring { until, .. } if net.now() >= until || self.board.is_stopped() => self.drain(net),
            _ => {}
        }
    }

    fn drain(&mut self, net: &mut impl Transport) {
        self.stop_measuring(net.now());
        for (conn, _) in self.places.iter().flatten() {
            net.close(*conn);
        }
        self.finish_if_over(net);
    }

    fn stop_measuring(&mut self, now: Instant) {
        if let Phase::Measuring { from, until } = self.phase {
            self.outcome.measured = now.min(until).since(from);
        }
        self.phase = Phase::Draining;
    }

    fn finish_if_over(&mut self, net: &mut impl Transport) {
        let more_to_ask = matches!(self.phase, Phase::Opening) && self.unasked < self.places.len();
        if self.open == 0 && self.opening == 0 && !more_to_ask && !self.done {
            self.stop_measuring(net.now());
            self.done = true;
            self.board.worker_done();
        }
    }
}

impl<T: Traffic> Service for Load<T> {
    /// The connection's place.
    type Conn = usize;
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        self.ask_for_more(net);
        self.finish_if_over(net);
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
            Phase::Measuring { .. } => self.outcome.traffic.send(net, conn, &mut stream),
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
        self.advance(net);
        let measuring = matches!(self.phase, Phase::Measuring { .. });
        let Some((_, stream)) = self.places[*place].as_mut().filter(|(current, _)| *current == conn) else {
            return;
        };
        match self.outcome.traffic.receive(net, conn, stream, measuring) {
            Ok(()) if measuring => self.outcome.traffic.send(net, conn, stream),
            Ok(()) => {}
            Err(Corrupt) => {
                self.outcome.errors.corrupt += 1;
                self.lose(net, *place);
            }
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, place: &mut usize) {
        self.advance(net);
        if let (Phase::Measuring { .. }, Some((current, stream))) = (self.phase, &mut self.places[*place]) {
            if *current == conn {
                self.outcome.traffic.send(net, conn, stream);
            }
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
        self.board.progress(self.worker, self.outcome.traffic.progress());
        self.wind_clock(net);
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
mod tests {
    use super::*;
    use crate::services::Echo;
    use crate::testing::Fake;

    const SECOND: Duration = Duration::from_secs(1);

    fn load(connections: usize) -> (Load<EchoLoad>, Arc<Board>, Fake<usize>) {
        let plan = Plan { remote: "10.0.0.2:7".parse().unwrap(), connections, duration: SECOND };
        let board = Arc::new(Board::new(1, connections));
        let mut load = Load::new(&plan, board.clone(), 0, 1, EchoLoad::new(10, 2));
        let mut net = Fake::new(100);
        load.start(&mut net);
        (load, board, net)
    }

    fn measuring(connections: usize) -> (Load<EchoLoad>, Arc<Board>, Fake<usize>) {
        let (mut load, board, mut net) = load(connections);
        for _ in 0..connections {
            net.establish(&mut load);
        }
        board.begin();
        net.pass(&mut load, OPENING_TICK);
        (load, board, net)
    }

    /// Plays an echo server for `conn`.
    fn echo(load: &mut Load<EchoLoad>, net: &mut Fake<usize>, conn: ConnId) {
        let bytes = net.drain(load, conn);
        net.arrive(load, conn, &bytes);
    }

    #[test]
    fn nothing_is_sent_before_all_connections_of_all_workers_are_open() {
        let (mut load, board, mut net) = load(2);
        assert_eq!(net.connects, [0, 1]);
        let (a, b) = (net.establish(&mut load), net.establish(&mut load));
        net.pass(&mut load, SECOND);
        assert!(board.all_decided());
        assert_eq!((net.sent(a).len(), net.sent(b).len()), (0, 0));
        board.begin();
        net.pass(&mut load, OPENING_TICK);
        assert_eq!((net.sent(a).len(), net.sent(b).len()), (20, 20));
        assert_ne!(net.sent(a), net.sent(b), "each connection has bytes of its own");
    }

    #[test]
    fn no_more_connections_are_asked_for_at_a_time_than_a_backlog_holds() {
        let (mut load, _, mut net) = load(1000);
        assert_eq!(net.connects.len(), OPENING_AT_ONCE);
        for _ in 0..1000 {
            net.establish(&mut load);
            assert!(net.connects.len() <= OPENING_AT_ONCE);
        }
        assert_eq!(net.connects.len(), 0);
    }

    #[test]
    fn it_measures_for_its_time_then_closes_and_is_done_when_all_peers_have() {
        let (mut load, board, mut net) = measuring(2);
        let conns = net.alive();
        for _ in 0..5 {
            net.pass(&mut load, SECOND / 10);
            conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
        }
        net.pass(&mut load, SECOND);
        for conn in conns {
            assert!(net.is_closed(conn) && !board.all_done());
            echo(&mut load, &mut net, conn);
            net.end(&mut load, conn);
            net.gone(&mut load, conn, CloseReason::Finished);
        }
        assert!(board.all_done());
        let outcome = load.into_outcome();
        assert_eq!(outcome.measured, SECOND);
        assert_eq!(outcome.errors, Errors::default());
        assert_eq!(outcome.traffic.requests(), 20, "what came back after the end does not count");
    }

    #[test]
    fn being_stopped_ends_the_measurement_early() {
        let (mut load, board, mut net) = measuring(1);
        net.pass(&mut load, SECOND / 4);
        board.stop();
        net.pass(&mut load, SECOND / 4);
        let conn = net.alive()[0];
        net.end(&mut load, conn);
        assert!(board.all_done());
        assert_eq!(load.into_outcome().measured, SECOND / 2);
    }

    #[test]
    fn a_refused_connection_is_counted_and_the_others_go_on_without_it() {
        let (mut load, board, mut net) = load(2);
        net.refuse(&mut load, ConnectError::Refused);
        assert!(!board.all_decided());
        net.establish(&mut load);
        assert!(board.all_decided());
        assert_eq!((board.opened(), net.connects.len()), (1, 0));
        assert_eq!(load.into_outcome().errors, Errors { refused: 1, ..Default::default() });
    }

    #[test]
    fn a_worker_none_of_whose_connections_could_be_opened_is_done() {
        let (mut load, board, mut net) = load(2);
        net.refuse(&mut load, ConnectError::Unreachable);
        assert!(!board.all_done());
        net.refuse(&mut load, ConnectError::TimedOut);
        assert!(board.all_done());
        let outcome = load.into_outcome();
        assert_eq!((outcome.errors.unopened, outcome.last_failure), (2, Some(ConnectError::TimedOut)));
    }

    #[test]
    fn a_lost_connection_is_counted_and_opened_again_with_a_fresh_stream() {
        let (mut load, board, mut net) = measuring(1);
        let first = net.alive()[0];
        let sent = net.sent(first);
        net.gone(&mut load, first, CloseReason::Reset);
        let second = net.establish(&mut load);
        assert_eq!(net.sent(second), sent);
        net.end(&mut load, second);
        assert!(net.is_aborted(second), "a server that closes first has lost the connection");
        net.gone(&mut load, second, CloseReason::Aborted);
        let third = net.establish(&mut load);
        net.pass(&mut load, SECOND);
        assert!(net.is_closed(third), "the clock went over to the new connection");
        net.gone(&mut load, third, CloseReason::Finished);
        assert!(board.all_done());
        assert_eq!(load.into_outcome().errors, Errors { lost: 2, ..Default::default() });
    }

    #[test]
    fn a_connection_that_brings_other_bytes_is_counted_and_given_up() {
        let (mut load, _, mut net) = measuring(1);
        let conn = net.alive()[0];
        let mut bytes = net.drain(&mut load, conn);
        bytes[13] ^= 1;
        net.arrive(&mut load, conn, &bytes);
        assert!(net.is_aborted(conn));
        assert_eq!(net.connects, [0]);
        assert_eq!(load.into_outcome().errors, Errors { corrupt: 1, ..Default::default() });
    }

    #[test]
    fn when_the_server_goes_for_good_the_measurement_ends_with_the_last_connection() {
        let (mut load, board, mut net) = measuring(2);
        net.pass(&mut load, SECOND / 2);
        for conn in net.alive() {
            net.gone(&mut load, conn, CloseReason::Reset);
        }
        net.refuse(&mut load, ConnectError::Refused);
        assert!(!board.all_done());
        net.refuse(&mut load, ConnectError::Refused);
        assert!(board.all_done());
        let outcome = load.into_outcome();
        assert_eq!(outcome.errors, Errors { lost: 2, refused: 2, ..Default::default() });
        assert_eq!(outcome.measured, SECOND / 2);
    }

    #[test]
    fn the_clock_passes_on_when_its_connection_is_lost() {
        let (mut load, _, mut net) = measuring(3);
        let conns = net.alive();
        net.gone(&mut load, conns[0], CloseReason::Reset);
        net.refuse(&mut load, ConnectError::Refused);
        net.pass(&mut load, SECOND);
        assert!(net.is_closed(conns[1]) && net.is_closed(conns[2]));
    }

    #[test]
    fn connections_are_dealt_out_to_all_workers() {
        let plan = Plan { remote: "10.0.0.2:7".parse().unwrap(), connections: 5, duration: SECOND };
        let board = Arc::new(Board::new(3, 5));
        let shares = [0, 1, 2].map(|worker| {
            let mut net = Fake::<usize>::new(100);
            Load::new(&plan, board.clone(), worker, 3, EchoLoad::new(1, 1)).start(&mut net);
            net.connects.len()
        });
        assert_eq!(shares, [2, 2, 1]);
    }

    #[test]
    fn a_worker_without_connections_is_done_at_once() {
        let plan = Plan { remote: "10.0.0.2:7".parse().unwrap(), connections: 1, duration: SECOND };
        let board = Arc::new(Board::new(2, 1));
        Load::new(&plan, board.clone(), 1, 2, EchoLoad::new(1, 1)).start(&mut Fake::<usize>::new(100));
        board.worker_done();
        assert!(board.all_done());
    }

    #[test]
    fn a_load_and_a_service_understand_each_other_byte_by_byte() {
        let (mut load, _, mut net) = measuring(1);
        let conn = net.alive()[0];
        let mut server = Fake::new(7);
        let peer = server.accept(&mut Echo);
        for _ in 0..100 {
            let bytes = net.drain(&mut load, conn);
            server.arrive(&mut Echo, peer, &bytes);
            while server.received(peer) > 0 || !server.sent(peer).is_empty() {
                for byte in server.drain(&mut Echo, peer) {
                    net.arrive(&mut load, conn, &[byte]);
                }
            }
        }
        let outcome = load.into_outcome();
        assert_eq!(outcome.errors, Errors::default());
        assert!(outcome.traffic.requests() >= 200);
    }
}
