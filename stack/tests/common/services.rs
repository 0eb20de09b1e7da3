//! Services for tests.

use linerate_bypass::{Bytes, CloseReason, ConnId, Datagram, Origin, Service, Transport};
use std::convert::Infallible;

/// Sends back what arrives.
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

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), why: CloseReason) {
        self.open -= 1;
        self.closed.push(why);
    }
}

/// Never reads.
#[derive(Default)]
pub struct Deaf;

impl Service for Deaf {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
}

/// Sends `0, 1, 2 …` as long as there is room.
#[derive(Default)]
pub struct Source;

impl Service for Source {
    type Conn = u64;
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> u64 {
        let mut at = 0;
        self.writable(net, conn, &mut at);
        at
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, at: &mut u64) {
        while net.room(conn) >= 8 && net.send(conn, Bytes::from(at.to_be_bytes().to_vec())).is_ok() {
            *at += 1;
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut u64) {
        net.close(conn);
    }
}
