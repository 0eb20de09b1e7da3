//! TCP proxy: opens a connection to another server for each incoming one, and joins the two.
//!
//! `cargo run --example proxy` forwards 127.0.0.1:7008 to 127.0.0.1:7007.

use linerate::{CloseReason, ConnId, ConnectError, Network, Origin, Service, Transport};
use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

/// Service that joins each client connection to a new connection to `upstream`.
pub struct Proxy {
    upstream: SocketAddr,
    sides: HashMap<ConnId, Side>,
}

/// One of two joined connections.
#[derive(Default)]
struct Side {
    /// The other connection, once it is open.
    other: Option<ConnId>,
    /// Set when the peer of this side has finished sending.
    finished: bool,
}

impl Proxy {
    pub fn new(upstream: SocketAddr) -> Self {
        Proxy { upstream, sides: HashMap::new() }
    }

    /// Moves received bytes of `from` to the other side, without a copy, and then the end of the stream.
    fn forward(&self, net: &mut impl Transport, from: ConnId) {
        if let Some(&Side { other: Some(to), finished }) = self.sides.get(&from) {
            net.forward(from, to);
            if finished {
                net.close(to);
            }
        }
    }
}

impl Service for Proxy {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) {
        match origin {
            Origin::Accepted => {
                self.sides.insert(conn, Side::default());
                net.connect(self.upstream, conn.to_bits());
            }
            Origin::Connected(token) => {
                let client = ConnId::from_bits(token);
                let Some(side) = self.sides.get_mut(&client) else {
                    return net.abort(conn); // The client has gone.
                };
                side.other = Some(conn);
                self.sides.insert(conn, Side { other: Some(client), finished: false });
                self.forward(net, client);
            }
        }
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, _: ConnectError) {
        net.abort(ConnId::from_bits(token));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.forward(net, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        // This side has send space again for bytes of the other side.
        if let Some(other) = self.sides.get(&conn).and_then(|side| side.other) {
            self.forward(net, other);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        if let Some(side) = self.sides.get_mut(&conn) {
            side.finished = true;
        }
        self.forward(net, conn);
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, (): (), reason: CloseReason) {
        // A reset of one side is forwarded, too.
        if let Some(Side { other: Some(other), .. }) = self.sides.remove(&conn)
            && reason != CloseReason::Finished
        {
            net.abort(other);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let upstream = "127.0.0.1:7007".parse()?;
    Network::builder().listen("127.0.0.1:7008".parse()?).build()?.run(move |_| Proxy::new(upstream))?;
    Ok(())
}
