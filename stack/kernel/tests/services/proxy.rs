//! Proxy that opens a connection for each incoming one, and splices the two without a copy.

use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Proxy that forwards the close of each direction separately, and a broken connection as a reset.
pub struct Proxy {
    pub upstream: SocketAddr,
    pub failed: Vec<ConnectError>,
    pub closed: Vec<CloseReason>,
    /// The partner of each connection, in both directions.
    pairs: HashMap<ConnId, ConnId>,
}

impl Proxy {
    pub fn new(upstream: SocketAddr) -> Self {
        Proxy { upstream, failed: Vec::new(), closed: Vec::new(), pairs: HashMap::new() }
    }

    /// Moves received data of `from`, and its close, to its partner. The partner's `writable` moves the rest.
    fn splice(&self, net: &mut impl Transport, from: ConnId) {
        if let Some(&to) = self.pairs.get(&from) {
            net.forward(from, to);
        }
    }
}

impl Service for Proxy {
    /// True if the peer has closed.
    type Conn = bool;
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> bool {
        match origin {
            Origin::Accepted => net.connect(self.upstream, conn.to_bits()),
            Origin::Connected(token) => {
                let client = ConnId::from_bits(token);
                if net.peer_addr(client).is_none() {
                    net.abort(conn);
                    return false;
                }
                self.pairs.insert(conn, client);
                self.pairs.insert(client, conn);
                self.splice(net, client);
                // If the client closed before there was a partner, its timer forwards the close now.
                net.set_timer(client, Some(std::time::Duration::ZERO));
            }
        }
        false
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.failed.push(error);
        net.abort(ConnId::from_bits(token));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut bool) {
        self.splice(net, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut bool) {
        if let Some(&source) = self.pairs.get(&conn) {
            self.splice(net, source);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, ended: &mut bool) {
        *ended = true;
        self.timer(net, conn, ended);
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, ended: &mut bool) {
        if *ended && let Some(&other) = self.pairs.get(&conn) {
            net.close(other);
        }
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, _: bool, reason: CloseReason) {
        self.closed.push(reason);
        if let Some(other) = self.pairs.remove(&conn)
            && reason != CloseReason::Finished
        {
            net.abort(other);
        }
    }
}
