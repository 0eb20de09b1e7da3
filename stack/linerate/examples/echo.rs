//! Echo service: sends back the bytes of each connection.
//!
//! `cargo run --example echo`, and from another shell `nc 127.0.0.1 7007`.

use linerate::{ConnId, Network, Origin, Service, Transport};
use std::convert::Infallible;
use std::error::Error;

/// Service that sends back the bytes of each connection.
pub struct Echo;

impl Service for Echo {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        // Bytes for which there is no space stay in the receive queue until `writable`. The peer's window closes.
        net.forward(conn, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.forward(conn, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.close(conn);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    Network::builder().listen("127.0.0.1:7007".parse()?).build()?.run(|_| Echo)?;
    Ok(())
}
