//! Service that sends a known stream on each new connection as fast as the peer reads it, and then closes.

use linerate_service::{CloseReason, ConnId, Origin, Service, Transport};

/// Returns byte `n` of the stream.
pub fn pattern(n: u64) -> u8 {
    (n % 251) as u8
}

/// Checks that `bytes` equal the stream from byte `from` on.
pub fn assert_pattern(bytes: &[u8], from: u64) {
    assert!(bytes.iter().zip(from..).all(|(&byte, at)| byte == pattern(at)));
}

/// Service that sends `length` bytes on each connection.
pub struct Chargen {
    pub length: u64,
    /// Bytes passed to the transport, on all connections.
    pub sent: u64,
    /// Number of times without send space.
    pub held_back: u64,
    pub closed: Vec<CloseReason>,
}

impl Chargen {
    pub fn new(length: u64) -> Self {
        Chargen { length, sent: 0, held_back: 0, closed: Vec::new() }
    }

    fn fill(&mut self, net: &mut impl Transport, conn: ConnId, sent: &mut u64) {
        while *sent < self.length {
            let left = usize::try_from(self.length - *sent).unwrap_or(usize::MAX);
            let Ok(space) = net.reserve(conn, left) else {
                self.held_back += 1;
                return;
            };
            let n = space.len();
            space.iter_mut().zip(*sent..).for_each(|(byte, n)| *byte = pattern(n));
            net.commit(conn, n);
            *sent += n as u64;
            self.sent += n as u64;
        }
        net.close(conn);
    }
}

impl Service for Chargen {
    /// Bytes sent.
    type Conn = u64;
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> u64 {
        let mut sent = 0;
        self.fill(net, conn, &mut sent);
        sent
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut u64) {
        net.consume(conn, usize::MAX);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, sent: &mut u64) {
        self.fill(net, conn, sent);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: u64, reason: CloseReason) {
        self.closed.push(reason);
    }
}
