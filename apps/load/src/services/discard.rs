//! Discard (RFC 863): received data is discarded.

use linerate_service::{ConnId, Origin, Service, Transport};
use std::convert::Infallible;

/// Discard service for measurements of bulk receiving. It never sends.
#[derive(Debug, Default)]
pub struct Discard {
    bytes: u64,
}

impl Discard {
    /// Returns the number of payload bytes discarded.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Service for Discard {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        let n = net.received(conn);
        net.consume(conn, n);
        self.bytes += n as u64;
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.close(conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeTransport;

    #[test]
    fn input_is_consumed_and_counted_without_output() {
        let mut net = FakeTransport::new(1000);
        let mut discard = Discard::default();
        let conn = net.accept(&mut discard);
        net.arrive(&mut discard, conn, &[1; 300]);
        net.arrive(&mut discard, conn, &[2; 700]);
        assert_eq!((net.received(conn), discard.bytes()), (0, 1000));
        net.end(&mut discard, conn);
        assert!(net.is_closed(conn));
        assert_eq!(net.sent(conn), b"");
    }
}
