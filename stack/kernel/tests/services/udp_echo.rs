//! Service that sends every datagram back to its source.

use linerate_service::{ConnId, Datagram, Origin, Service, Transport};

#[derive(Default)]
pub struct UdpEcho {
    pub echoed: usize,
}

impl Service for UdpEcho {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        self.echoed += usize::from(net.send_datagram(datagram).is_ok());
    }
}
