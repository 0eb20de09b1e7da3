//! Service that echoes all data, and closes once the peer has closed and all data are sent.

use linerate_service::{CloseReason, ConnId, Origin, Service, Transport};

/// Echo service with statistics.
#[derive(Default)]
pub struct Echo {
    pub closed: Vec<CloseReason>,
    /// Connections of the last burst, and the total.
    pub burst: usize,
    pub bursts: usize,
    pub readable: usize,
    /// Maximum of unconsumed data.
    pub most_received: usize,
}

impl Service for Echo {
    type Conn = ();
    type Message = ();

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        assert!(readable.iter().all(|&conn| net.received(conn) > 0));
        self.burst = readable.len();
        self.bursts += readable.len();
        0
    }

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.readable += 1;
        self.most_received = self.most_received.max(net.received(conn));
        net.forward(conn, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.forward(conn, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        assert_eq!(net.received(conn), 0, "peer_closed before all data were consumed");
        net.close(conn);
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, _: (), reason: CloseReason) {
        assert_eq!((net.received(conn), net.send_space(conn), net.peer_addr(conn)), (0, 0, None));
        self.closed.push(reason);
    }
}
