//! Echo (RFC 862) over TCP and UDP.

use linerate_service::{ConnId, Datagram, Origin, Service, Transport};
use std::convert::Infallible;

/// Echo service. Back-pressure propagates: the window of a peer that does not read its echo closes.
#[derive(Debug, Default)]
pub struct Echo;

impl Service for Echo {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

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
        // A single forged datagram would make two echo services exchange it forever.
        if datagram.remote.port() != datagram.local.port()
            && let Err(datagram) = net.send_datagram(datagram)
        {
            net.drop_datagram(datagram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeTransport;
    use linerate_service::Bytes;

    #[test]
    fn data_is_echoed_and_then_closed() {
        let mut net = FakeTransport::new(1000);
        let conn = net.accept(&mut Echo);
        net.arrive(&mut Echo, conn, b"hello, ");
        net.arrive(&mut Echo, conn, b"world");
        assert_eq!(net.sent(conn), b"hello, world");
        assert!(!net.is_closed(conn));
        net.end(&mut Echo, conn);
        assert!(net.is_closed(conn));
    }

    #[test]
    fn data_without_room_is_echoed_before_the_close() {
        let mut net = FakeTransport::new(4);
        let conn = net.accept(&mut Echo);
        net.arrive(&mut Echo, conn, b"0123456789");
        net.end(&mut Echo, conn);
        assert_eq!((net.sent(conn), net.is_closed(conn)), (b"0123".to_vec(), false));
        let mut whole = Vec::new();
        while !net.is_closed(conn) {
            whole.extend(net.drain(&mut Echo, conn));
        }
        whole.extend(net.drain(&mut Echo, conn));
        assert_eq!(whole, b"0123456789");
    }

    #[test]
    fn datagram_returns_to_its_source() {
        let mut net = FakeTransport::<()>::new(0);
        let (local, remote) = ("10.0.0.2:7".parse().unwrap(), "10.0.0.1:4000".parse().unwrap());
        let datagram = Datagram { local, remote, payload: Bytes::from_static(b"ping") };
        Echo.datagram(&mut net, datagram.clone());
        assert_eq!(net.datagrams, [datagram]);
    }

    #[test]
    fn datagram_of_another_echo_service_is_not_answered() {
        let mut net = FakeTransport::<()>::new(0);
        let (local, remote) = ("10.0.0.2:7".parse().unwrap(), "10.0.0.1:7".parse().unwrap());
        Echo.datagram(&mut net, Datagram { local, remote, payload: Bytes::from_static(b"ping") });
        assert_eq!(net.datagrams, []);
    }
}
