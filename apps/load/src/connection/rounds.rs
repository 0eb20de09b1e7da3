//! Rounds: messages on many connections at once, with a barrier between rounds.

use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Message size in bytes.
const MESSAGE: usize = 64;
/// Polling interval while waiting for the start.
const LOOK: Duration = Duration::from_millis(2);

/// Stage of [`Rounds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Connections are being opened.
    Opening,
    /// All connections are open; waiting for [`Progress::go`].
    Open,
    /// Messages are being exchanged.
    Running,
    /// Complete or failed.
    Over,
}

/// State shared between [`Rounds`] and their observer.
#[derive(Debug, Default)]
pub struct Progress {
    stage: AtomicU8,
    failed: OnceLock<Option<ConnectError>>,
}

impl Progress {
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Opening,
            1 => Stage::Open,
            2 => Stage::Running,
            _ => Stage::Over,
        }
    }

    /// Starts the rounds, if all connections are open.
    pub fn go(&self) {
        let (open, running) = (Stage::Open as u8, Stage::Running as u8);
        let _ = self.stage.compare_exchange(open, running, Ordering::AcqRel, Ordering::Acquire);
    }

    fn set(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    fn fail(&self, error: Option<ConnectError>) {
        // Connections that end after completion are no failures.
        if self.stage() != Stage::Over {
            let _ = self.failed.set(error);
            self.set(Stage::Over);
        }
    }
}

/// Opens `count` connections to an echo server, one after another. Each round then sends a message on every connection
/// and waits for all answers.
#[derive(Debug)]
pub struct Rounds {
    remote: SocketAddr,
    count: usize,
    rounds: usize,
    conns: Vec<ConnId>,
    /// Bytes of this round that have not been received.
    awaited: usize,
    begun: Instant,
    opened_in: Duration,
    took: Duration,
    progress: Arc<Progress>,
}

impl Rounds {
    /// Creates the rounds; `progress` follows their stage.
    pub fn new(remote: SocketAddr, count: usize, rounds: usize, progress: Arc<Progress>) -> Self {
        let (conns, begun) = (Vec::with_capacity(count), Instant::now());
        let (opened_in, took) = (Duration::ZERO, Duration::ZERO);
        Rounds { remote, count, rounds, conns, awaited: 0, begun, opened_in, took, progress }
    }

    /// Returns the time to open all connections and the time of all rounds, or an error if a connection failed or was
    /// lost.
    pub fn times(&self) -> Result<(Duration, Duration), Option<ConnectError>> {
        match self.progress.failed.get() {
            None if self.rounds == 0 => Ok((self.opened_in, self.took)),
            None => Err(None),
            Some(error) => Err(*error),
        }
    }

    fn send_all(&mut self, net: &mut impl Transport) {
        self.awaited = self.count * MESSAGE;
        for conn in &self.conns {
            let Some(buffer) = net.reserve(*conn, MESSAGE).ok().filter(|buffer| buffer.len() == MESSAGE) else {
                return self.progress.fail(None);
            };
            buffer.fill(b'x');
            net.commit(*conn, MESSAGE);
        }
    }
}

impl Service for Rounds {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        self.begun = Instant::now();
        net.connect(self.remote, 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.conns.push(conn);
        if self.conns.len() < self.count {
            return net.connect(self.remote, 0);
        }
        self.opened_in = self.begun.elapsed();
        self.progress.set(Stage::Open);
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        self.progress.fail(Some(error));
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        match self.progress.stage() {
            Stage::Opening | Stage::Open => return Some(LOOK),
            Stage::Running if self.awaited == 0 && self.rounds > 0 => {
                self.begun = Instant::now();
                self.send_all(net);
            }
            Stage::Running | Stage::Over => {}
        }
        None
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        let came = net.received(conn);
        net.consume(conn, came);
        // More bytes than sent are no echo.
        let Some(awaited) = self.awaited.checked_sub(came) else { return self.progress.fail(None) };
        self.awaited = awaited;
        if awaited > 0 || self.rounds == 0 {
            return;
        }
        self.rounds -= 1;
        if self.rounds > 0 {
            return self.send_all(net);
        }
        self.took = self.begun.elapsed();
        self.progress.set(Stage::Over);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        if reason != CloseReason::Aborted {
            self.progress.fail(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeTransport;

    fn rounds(count: usize, rounds: usize) -> (FakeTransport<()>, Rounds, Arc<Progress>) {
        let progress = Arc::<Progress>::default();
        (
            FakeTransport::new(4096),
            Rounds::new("10.0.0.2:7".parse().unwrap(), count, rounds, progress.clone()),
            progress,
        )
    }

    #[test]
    fn rounds_start_on_request_and_wait_for_every_answer() {
        let (mut net, mut service, progress) = rounds(2, 2);
        service.start(&mut net);
        let conns = [0, 1].map(|_| net.establish(&mut service));
        assert_eq!((progress.stage(), net.connects.len()), (Stage::Open, 0));
        assert!(service.turn(&mut net).is_some());
        assert!(conns.iter().all(|conn| net.sent(*conn).is_empty()));
        progress.go();
        service.turn(&mut net);
        for round in 1..=2 {
            assert!(conns.iter().all(|conn| net.sent(*conn).len() == round * MESSAGE));
            net.arrive(&mut service, conns[0], &[b'x'; MESSAGE]);
            assert!(conns.iter().all(|conn| net.sent(*conn).len() == round * MESSAGE));
            net.arrive(&mut service, conns[1], &[b'x'; MESSAGE]);
        }
        assert_eq!(progress.stage(), Stage::Over);
        assert!(service.times().is_ok());
    }

    #[test]
    fn failed_lost_or_wrong_connection_ends_the_rounds() {
        let (mut net, mut service, progress) = rounds(2, 2);
        service.start(&mut net);
        net.refuse(&mut service, ConnectError::Refused);
        assert_eq!((progress.stage(), service.times()), (Stage::Over, Err(Some(ConnectError::Refused))));

        let (mut net, mut service, progress) = rounds(1, 2);
        service.start(&mut net);
        let conn = net.establish(&mut service);
        net.arrive(&mut service, conn, b"x");
        assert_eq!((progress.stage(), service.times()), (Stage::Over, Err(None)));

        let (mut net, mut service, progress) = rounds(1, 2);
        service.start(&mut net);
        let conn = net.establish(&mut service);
        net.gone(&mut service, conn, CloseReason::Reset);
        assert_eq!((progress.stage(), service.times()), (Stage::Over, Err(None)));
    }
}
