//! Which address and port each connection has.

use linerate_bypass::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Where each client address's ports begin, and how many of each address are used.
const FIRST_PORT: u16 = 1024;
const PORTS: usize = 50_000;

/// The addresses of both ends.
#[derive(Debug, Clone, Copy)]
pub struct Endpoints {
    /// The client's Ethernet address.
    pub client_mac: MacAddr,
    /// Its first IP address; 50 000 connections later, the next one is used.
    pub client: Ipv4Addr,
    /// The server's Ethernet address.
    pub server_mac: MacAddr,
    /// Where the server listens.
    pub server: SocketAddrV4,
}

impl Endpoints {
    /// The client's address and port of connection `flow`.
    pub(super) fn client_of(&self, flow: usize) -> (Ipv4Addr, u16) {
        let address = u32::from(self.client) + (flow / PORTS) as u32;
        (address.into(), FIRST_PORT + (flow % PORTS) as u16)
    }

    /// The connection with this address and port of the client's.
    pub(super) fn flow_of(&self, address: Ipv4Addr, port: u16) -> Option<usize> {
        let block = u32::from(address).checked_sub(self.client.into())? as usize;
        let port = usize::from(port.checked_sub(FIRST_PORT)?);
        (port < PORTS).then_some(block * PORTS + port)
    }

    /// The client's addresses, when it has `flows` connections.
    pub(super) fn addresses(&self, flows: usize) -> impl Iterator<Item = Ipv4Addr> {
        let endpoints = *self;
        (0..flows.div_ceil(PORTS)).map(move |block| endpoints.client_of(block * PORTS).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_an_address_and_port_of_its_own() {
        let endpoints = Endpoints {
            client_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            client: Ipv4Addr::new(10, 1, 0, 1),
            server_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            server: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7),
        };
        for flow in [0, 1, 49_999, 50_000, 123_456, 3_999_999] {
            let (address, port) = endpoints.client_of(flow);
            assert_eq!(endpoints.flow_of(address, port), Some(flow));
        }
        assert_eq!(endpoints.client_of(50_000), (Ipv4Addr::new(10, 1, 0, 2), 1024));
        assert_eq!(endpoints.flow_of(Ipv4Addr::new(10, 1, 0, 1), 51_024), None);
        assert_eq!(endpoints.flow_of(Ipv4Addr::new(10, 1, 0, 1), 1023), None);
        assert_eq!(endpoints.flow_of(Ipv4Addr::new(10, 1, 0, 0), 1024), None);
        assert_eq!(endpoints.addresses(50_001).count(), 2);
    }
}
