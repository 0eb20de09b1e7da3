//! Echo (RFC 862): what arrives goes back, over TCP and over UDP.

use linerate_bypass::{ConnId, Datagram, Origin, Service, Transport};
use std::convert::Infallible;

/// The echo service. Back-pressure passes through it: a peer that does not read what it is sent back finds its
/// own window closed.
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
        // One forged datagram would keep two echo services busy with each other for ever.
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
    use crate::testing::Fake;
    use linerate_bypass::Bytes;

    #[test]
    fn what_arrives_goes_back_and_the_end_of_the_stream_follows_it() {
        let mut net = Fake::new(1000);
        let conn = net.accept(&mut Echo);
        net.arrive(&mut Echo, conn, b"hello, ");
        net.arrive(&mut Echo, conn, b"world");
        assert_eq!(net.sent(conn), b"hello, world");
        assert!(!net.is_closed(conn));
        net.end(&mut Echo, conn);
        assert!(net.is_closed(conn));
    }

    #[test]
    fn what_does_not_fit_waits_and_is_answered_before_the_close() {
        let mut net = Fake::new(4);
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
    fn a_datagram_goes_back_to_where_it_came_from() {
        let mut net = Fake::<()>::new(0);
        let (local, remote) = ("10.0.0.2:7".parse().unwrap(), "10.0.0.1:4000".parse().unwrap());
        let datagram = Datagram { local, remote, payload: Bytes::from_static(b"ping") };
        Echo.datagram(&mut net, datagram.clone());
        assert_eq!(net.datagrams, [datagram]);
    }

    #[test]
    fn a_datagram_of_another_echo_service_is_not_answered() {
        let mut net = Fake::<()>::new(0);
        let (local, remote) = ("10.0.0.2:7".parse().unwrap(), "10.0.0.1:7".parse().unwrap());
        Echo.datagram(&mut net, Datagram { local, remote, payload: Bytes::from_static(b"ping") });
        assert_eq!(net.datagrams, []);
    }
}
