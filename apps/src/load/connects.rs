//! Connections that are opened one after another, each closed before the next.

use linerate_bypass::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Opens connections to one server, and notes how long each takes, from when it is asked for until it can be sent on.
#[derive(Debug)]
pub struct Connects {
    remote: SocketAddr,
    /// How many are still to be opened.
    left: usize,
    begun: Instant,
    took: Vec<Duration>,
    failed: Option<ConnectError>,
    is_over: Arc<AtomicBool>,
}

impl Connects {
    /// `count` connections to `remote`; `is_over` becomes true behind the last, or when one could not be made.
    pub fn new(remote: SocketAddr, count: usize, is_over: Arc<AtomicBool>) -> Self {
        let took = Vec::with_capacity(count);
        Connects { remote, left: count, begun: Instant::now(), took, failed: None, is_over }
    }

    /// How long each took; an error, if not all were made.
    pub fn times(&self) -> Result<Vec<Duration>, Option<ConnectError>> {
        if self.left == 0 && self.failed.is_none() { Ok(self.took.clone()) } else { Err(self.failed) }
    }

    fn next(&mut self, net: &mut impl Transport) {
        if self.left == 0 || self.failed.is_some() {
            return self.is_over.store(true, Ordering::Release);
        }
        self.begun = Instant::now();
        net.connect(self.remote, 0);
    }
}

impl Service for Connects {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        self.next(net);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.took.push(self.begun.elapsed());
        self.left -= 1;
        net.close(conn);
    }

    fn failed(&mut self, net: &mut impl Transport, _: u64, error: ConnectError) {
        self.failed = Some(error);
        self.next(net);
    }

    fn closed(&mut self, net: &mut impl Transport, _: ConnId, (): (), _: CloseReason) {
        self.next(net);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;

    fn connects(count: usize) -> (Fake<()>, Connects, Arc<AtomicBool>) {
        let over = Arc::new(AtomicBool::new(false));
        (Fake::new(100), Connects::new("10.0.0.2:7".parse().unwrap(), count, over.clone()), over)
    }

    #[test]
    fn connections_are_opened_one_after_another_and_timed() {
        let (mut net, mut service, over) = connects(2);
        service.start(&mut net);
        for _ in 0..2 {
            assert_eq!(net.connects.len(), 1);
            let conn = net.establish(&mut service);
            assert!(net.is_closed(conn) && net.connects.is_empty() && !over.load(Ordering::Acquire));
            net.gone(&mut service, conn, CloseReason::Finished);
        }
        assert!(over.load(Ordering::Acquire));
        assert_eq!(service.times().unwrap().len(), 2);
    }

    #[test]
    fn the_first_that_cannot_be_made_is_the_last() {
        let (mut net, mut service, over) = connects(2);
        service.start(&mut net);
        net.refuse(&mut service, ConnectError::Refused);
        assert!(over.load(Ordering::Acquire) && net.connects.is_empty());
        assert_eq!(service.times(), Err(Some(ConnectError::Refused)));
    }
}
