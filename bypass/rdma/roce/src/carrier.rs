//! Service that carries the packets of an engine over UDP of a transport.

use crate::engine::Engine;
use crate::path::{Path, Port};
use crate::wire::UDP_PORT;
use linerate_service::time::{Duration, Instant};
use linerate_service::{ConnId, Datagram, Origin, Service, Transport};
use std::net::SocketAddr;

/// Service that passes datagrams to and from an engine.
///
/// The worker that runs it delivers datagrams of [`UDP_PORT`] from the IP header on.
pub struct Carrier {
    /// The engine.
    pub engine: Engine,
    /// Time of the current turn.
    pub now: Instant,
}

impl Service for Carrier {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.abort(conn);
    }

    #[inline]
    fn datagram(&mut self, _: &mut impl Transport, datagram: Datagram) {
        self.engine.receive(&datagram.payload, self.now);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.engine.transmit(self.now, &mut Egress(net));
        None
    }
}

/// Transmit side of a transport.
struct Egress<'a, T>(&'a mut T);

impl<T: Transport> Port for Egress<'_, T> {
    #[inline]
    fn has_room(&mut self) -> bool {
        self.0.datagram_space() > 0
    }

    #[inline]
    fn send(&mut self, path: &Path, len: usize, write: impl FnOnce(&mut [u8])) {
        let [local, remote] = [path.local, path.remote].map(|ip| SocketAddr::new(ip, UDP_PORT));
        self.0.write_datagram(local, remote, len, write);
    }
}
