//! Service that refuses every request with a lingering close, and clients for it.

use linerate_service::{CloseReason, ConnId, Origin, Service, Transport};
use std::net::SocketAddr;

/// Reply to every request.
pub const REFUSAL: &[u8] = b"-ERR unknown command\r\n";

/// Service that replies to the first message of a connection with [`REFUSAL`], and closes with a lingering close.
#[derive(Debug, Default)]
pub struct Refuser {
    pub refused: usize,
    pub closed: Vec<CloseReason>,
}

impl Service for Refuser {
    /// True if the connection was refused.
    type Conn = bool;
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) -> bool {
        false
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, was_refused: &mut bool) {
        assert!(!std::mem::replace(was_refused, true), "readable after a lingering close");
        self.refused += 1;
        assert_eq!(net.write(conn, REFUSAL), REFUSAL.len());
        net.lingering_close(conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, was_refused: &mut bool) {
        assert!(!*was_refused, "peer_closed after a lingering close");
        net.close(conn);
    }

    fn timer(&mut self, _: &mut impl Transport, _: ConnId, _: &mut bool) {
        panic!("timer that the service has not set");
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: bool, reason: CloseReason) {
        self.closed.push(reason);
    }
}

/// Client's behaviour after its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Closes after the server.
    Closes,
    /// Sends without end, and does not close.
    SendsOn,
    /// Neither sends nor closes.
    Waits,
}

/// Client of a [`Refuser`], with one connection.
#[derive(Debug)]
pub struct Refused {
    pub remote: Option<SocketAddr>,
    pub manner: Manner,
    pub sent: usize,
    pub received: Vec<u8>,
    pub closed: Option<CloseReason>,
}

impl Refused {
    pub fn new(remote: Option<SocketAddr>, manner: Manner) -> Self {
        Refused { remote, manner, sent: 0, received: Vec::new(), closed: None }
    }

    fn send_on(&mut self, net: &mut impl Transport, conn: ConnId) {
        while self.manner == Manner::SendsOn {
            match net.write(conn, &[b'x'; 4096]) {
                0 => return,
                n => self.sent += n,
            }
        }
    }
}

impl Service for Refused {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        if let Some(remote) = self.remote {
            net.connect(remote, 0);
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        assert_eq!(net.write(conn, b"nonsense\r\n"), 10);
        self.send_on(net, conn);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        while let Some(bytes) = net.take(conn, usize::MAX) {
            self.received.extend_from_slice(&bytes);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.send_on(net, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        if self.manner == Manner::Closes {
            net.close(conn);
        }
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}
