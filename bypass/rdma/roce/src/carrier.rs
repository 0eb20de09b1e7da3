//! Service that carries the packets of an engine over UDP of a transport.

use crate::engine::Engine;
use crate::path::{Path, Port};
use crate::streams::StreamTable;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};

/// Service that passes datagrams to and from an engine.
///
/// The worker that runs it delivers datagrams of [`UDP_PORT`](crate::UDP_PORT) from the IP header on.
pub struct Carrier {
    /// The engine.
    pub engine: Engine,
    /// Time of the current turn.
    pub now: Instant,
    /// TCP of the device, if the transport carries it.
    pub streams: Option<Box<StreamTable>>,
}

impl Service for Carrier {
    /// Number of the stream.
    type Conn = u64;
    type Message = ();

    fn start(&mut self, _: &mut impl Transport) {
        if let Some(streams) = &mut self.streams {
            streams.start();
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> u64 {
        match &mut self.streams {
            Some(streams) => streams.opened(net, conn, origin),
            None => {
                net.abort(conn);
                0
            }
        }
    }

    fn failed(&mut self, _: &mut impl Transport, number: u64, error: ConnectError) {
        if let Some(streams) = &mut self.streams {
            streams.failed(number, error);
        }
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, number: &mut u64) {
        if let Some(streams) = &mut self.streams {
            streams.readable(net, conn, *number);
        }
    }

    fn peer_closed(&mut self, _: &mut impl Transport, _: ConnId, number: &mut u64) {
        if let Some(streams) = &mut self.streams {
            streams.peer_closed(*number);
        }
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, number: u64, reason: CloseReason) {
        if let Some(streams) = &mut self.streams {
            streams.closed(number, reason);
        }
    }

    #[inline]
    fn raw_datagram(&mut self, _: &mut impl Transport, packet: &[u8]) {
        self.engine.receive(packet, self.now);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        if let Some(streams) = &mut self.streams {
            streams.turn(net);
        }
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
        self.0.write_datagram(path.local, path.remote, len, write);
    }
}
