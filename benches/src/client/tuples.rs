//! Addresses and ports of the connections.

use linerate_bypass::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// First port of each client address, and number of ports per address.
const FIRST_PORT: u16 = 1024;
const PORTS: usize = 50_000;

/// Addresses of both ends.
#[derive(Debug, Clone, Copy)]
pub struct Endpoints {
    /// Client's Ethernet address.
    pub client_mac: MacAddr,
    /// Client's first IP address; each address serves 50 000 connections.
    pub client: Ipv4Addr,
    /// Server's Ethernet address.
    pub server_mac: MacAddr,
    /// Server's listening address.
    pub server: SocketAddrV4,
}

impl Endpoints {
    /// Returns the client's address and port of connection `flow`.
    pub(super) fn client_of(&self, flow: usize) -> (Ipv4Addr, u16) {
        let address = u32::from(self.client) + (flow / PORTS) as u32;
        (address.into(), FIRST_PORT + (flow % PORTS) as u16)
    }

    /// Returns the connection with this client address and port.
    pub(super) fn flow_of(&self, address: Ipv4Addr, port: u16) -> Option<usize> {
        let block = u32::from(address).checked_sub(self.client.into())? as usize;
        let port = usize::from(port.checked_sub(FIRST_PORT)?);
        (port < PORTS).then_some(block * PORTS + port)
    }

    /// Returns the client's addresses for `flows` connections.
    pub(super) fn addresses(&self, flows: usize) -> impl Iterator<Item = Ipv4Addr> {
        let endpoints = *self;
        (0..flows.div_ceil(PORTS)).map(move |block| endpoints.client_of(block * PORTS).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_its_own_address_and_port() {
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
