//! Client that sends a known stream on each connection and checks the echo.

use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;

/// Result of one connection.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub sent: usize,
    pub received: usize,
    pub peer_closed: bool,
    /// True if the echo differs from the sent data.
    pub mismatch: bool,
    pub closed: Option<CloseReason>,
    pub failed: Option<ConnectError>,
}

/// Condition on which a client closes its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// All data is sent, even if echoes are outstanding.
    WhenSent,
    /// All echoes are received.
    WhenBack,
    Never,
}

/// Client that opens `connections` connections to `to`, sends `bytes` on each, closes, and checks the echo.
pub struct Client {
    pub to: SocketAddr,
    /// Address of the second connection; `None` is `to`.
    pub second: Option<SocketAddr>,
    pub connections: usize,
    pub bytes: usize,
    pub close: Close,
    pub outcomes: Vec<Outcome>,
    ids: HashMap<ConnId, usize>,
}

impl Client {
    pub fn new(to: &str, connections: usize, bytes: usize) -> Self {
        let to = format!("{}:7", if to.contains(':') { format!("[{to}]") } else { to.to_owned() });
        Client {
            to: to.parse().unwrap(),
            second: None,
            connections,
            bytes,
            close: Close::WhenSent,
            outcomes: vec![Outcome::default(); connections],
            ids: HashMap::new(),
        }
    }

    /// Returns byte `at` of the stream of connection `n`.
    fn byte(n: usize, at: usize) -> u8 {
        (at.wrapping_mul(0x9e37_79b9).wrapping_add(n.wrapping_mul(0x85eb_ca6b)) >> 7) as u8
    }

    fn pump(&mut self, net: &mut impl Transport, conn: ConnId) {
        let n = self.ids[&conn];
        let outcome = &mut self.outcomes[n];
        while outcome.sent < self.bytes {
            let Ok(space) = net.reserve(conn, self.bytes - outcome.sent) else { return };
            let len = space.len();
            for (i, byte) in space.iter_mut().enumerate() {
                *byte = Self::byte(n, outcome.sent + i);
            }
            net.commit(conn, len);
            outcome.sent += len;
        }
        if self.close == Close::WhenSent {
            net.close(conn);
        }
    }

    /// Sets the close condition.
    pub fn closing(self, close: Close) -> Self {
        Client { close, ..self }
    }

    /// Returns true if every connection has closed or failed.
    pub fn all_finished(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.closed.is_some() || outcome.failed.is_some())
    }

    /// Asserts that every stream returned completely and that both ends closed.
    pub fn assert_exact(&self) {
        let whole = Outcome {
            sent: self.bytes,
            received: self.bytes,
            peer_closed: true,
            mismatch: false,
            closed: Some(CloseReason::Finished),
            failed: None,
        };
        for (n, outcome) in self.outcomes.iter().enumerate() {
            assert_eq!(*outcome, whole, "connection {n}");
        }
    }
}

impl Service for Client {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        for n in 0..self.connections {
            let to = self.second.filter(|_| n == 1).unwrap_or(self.to);
            net.connect(to, n as u64);
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) {
        let Origin::Connected(n) = origin else { panic!("a client accepts no connections") };
        self.ids.insert(conn, n as usize);
        self.pump(net, conn);
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        self.outcomes[token as usize].failed = Some(error);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        let n = self.ids[&conn];
        let outcome = &mut self.outcomes[n];
        loop {
            let slice = net.peek(conn);
            if slice.is_empty() {
                break;
            }
            for (i, byte) in slice.iter().enumerate() {
                outcome.mismatch |= *byte != Self::byte(n, outcome.received + i);
            }
            let len = slice.len();
            outcome.received += len;
            net.consume(conn, len);
        }
        if self.close == Close::WhenBack && outcome.received == self.bytes {
            net.close(conn);
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.pump(net, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.outcomes[self.ids[&conn]].peer_closed = true;
        net.close(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, conn: ConnId, (): (), reason: CloseReason) {
        self.outcomes[self.ids[&conn]].closed = Some(reason);
    }
}
