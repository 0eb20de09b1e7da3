//! Bulk loads: data in one direction at full speed.

use crate::pattern::Position;
use crate::{Corrupt, Traffic};
use linerate_service::time::Instant;
use linerate_service::{ConnId, Transport};

/// Direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To a discard server.
    Up,
    /// From a chargen server.
    Down,
}

/// Bulk traffic to a discard server or from a chargen server. Received data is counted and discarded unread.
///
/// Bytes count as sent when the transport has accepted them, so up to its send buffers' contents may still be in flight
/// at the end.
#[derive(Debug)]
pub struct Bulk {
    direction: Direction,
    up: u64,
    down: u64,
}

impl Bulk {
    /// Creates traffic in `direction`.
    pub fn new(direction: Direction) -> Self {
        Bulk { direction, up: 0, down: 0 }
    }

    /// Returns the payload bytes sent while measuring.
    pub fn up(&self) -> u64 {
        self.up
    }

    /// Returns the payload bytes received while measuring.
    pub fn down(&self) -> u64 {
        self.down
    }
}

impl Traffic for Bulk {
    type Stream = Position;

    fn stream(&self, index: usize) -> Position {
        Position::of_connection(index)
    }

    fn measure(&mut self, _: Instant) {
        self.up = 0;
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId, position: &mut Position) {
        if self.direction == Direction::Up {
            self.up += position.send(net, conn, usize::MAX) as u64;
        }
    }

    fn receive(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        _: &mut Position,
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let n = net.received(conn);
        net.consume(conn, n);
        if measuring {
            self.down += n as u64;
        }
        Ok(())
    }

    fn progress(&self) -> u64 {
        self.up + self.down
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeTransport, a_second};
    use crate::{Barrier, Load, Plan, WorkerLoad};
    use linerate_service::Service;
    use linerate_service::time::Duration;
    use std::sync::Arc;

    fn load(direction: Direction, warm_up: Duration) -> (Load<Bulk>, Arc<Barrier>, FakeTransport<usize>, ConnId) {
        let plan = Plan { warm_up, ..a_second(1) };
        let barrier = Arc::new(Barrier::new(1, 1));
        let mut load = Load::new(&plan, barrier.clone(), 0, 1, Bulk::new(direction));
        let mut net = FakeTransport::new(1000);
        load.start(&mut net);
        let conn = net.establish(&mut load);
        (load, barrier, net, conn)
    }

    #[test]
    fn up_sends_while_measuring_whenever_there_is_room() {
        let (mut load, barrier, mut net, conn) = load(Direction::Up, Duration::ZERO);
        assert_eq!(net.sent(conn).len(), 0);
        barrier.begin();
        net.pass(&mut load, Duration::from_millis(1));
        assert_eq!(net.drain(&mut load, conn).len(), 1000);
        net.pass(&mut load, Duration::from_secs(1));
        net.drain(&mut load, conn);
        assert_eq!(net.sent(conn).len(), 0);
        assert_eq!(load.into_outcome().traffic.up(), 2000);
    }

    #[test]
    fn bytes_sent_while_warming_up_do_not_count() {
        let (mut load, barrier, mut net, conn) = load(Direction::Up, Duration::from_secs(2));
        barrier.begin();
        net.pass(&mut load, Duration::from_millis(1));
        for _ in 0..3 {
            assert_eq!(net.drain(&mut load, conn).len(), 1000);
        }
        net.pass(&mut load, Duration::from_secs(2));
        assert_eq!(net.drain(&mut load, conn).len(), 1000);
        assert_eq!(load.into_outcome().traffic.up(), 1000);
    }

    #[test]
    fn down_counts_bytes_while_measuring_and_sends_nothing() {
        let (mut load, barrier, mut net, conn) = load(Direction::Down, Duration::ZERO);
        net.arrive(&mut load, conn, &[0; 100]);
        barrier.begin();
        net.pass(&mut load, Duration::from_millis(1));
        net.arrive(&mut load, conn, &[0; 10]);
        net.pass(&mut load, Duration::from_secs(1));
        net.arrive(&mut load, conn, &[0; 1]);
        assert_eq!((net.received(conn), net.sent(conn).len()), (0, 0));
        let traffic = load.into_outcome().traffic;
        assert_eq!((traffic.up(), traffic.down()), (0, 10));
    }
}
