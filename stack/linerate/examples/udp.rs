//! UDP service: replies to each datagram with its text in upper case.
//!
//! `cargo run --example udp`, and from another shell `nc -u 127.0.0.1 7007`.

use linerate::{ConnId, Datagram, Network, Origin, Service, Transport};
use std::convert::Infallible;
use std::error::Error;

/// Service that replies to each datagram with its text in upper case.
pub struct Upper;

impl Service for Upper {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.abort(conn); // Nothing listens on TCP.
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        let Datagram { local, remote, payload } = datagram;
        let reply = Datagram { local, remote, payload: payload.to_ascii_uppercase().into() };
        // Without send space, the reply is dropped and counted.
        if let Err(reply) = net.send_datagram(reply) {
            net.drop_datagram(reply);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    Network::builder().listen_udp("127.0.0.1:7007".parse()?).build()?.run(|_| Upper)?;
    Ok(())
}
