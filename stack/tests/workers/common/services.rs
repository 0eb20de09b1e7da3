//! Echo service.

use linerate_service::{CloseReason, ConnId, Datagram, Origin, Service, Transport};
use std::convert::Infallible;

/// Service that echoes streams and datagrams.
#[derive(Default)]
pub struct Echo {
    pub open: usize,
    pub closed: Vec<CloseReason>,
}

impl Service for Echo {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {
        self.open += 1;
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.forward(conn, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.forward(conn, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.close(conn);
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        net.send_datagram(datagram).unwrap();
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.open -= 1;
        self.closed.push(reason);
    }
}
