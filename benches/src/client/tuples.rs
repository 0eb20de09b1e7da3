//! Addresses of both ends, and the client's addresses and ports of the connections.

use linerate_bypass::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

pub const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Address at which the server listens.
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7);
/// Client's first address, number of connections of each address, and their first port.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const PORTS: usize = 50_000;
const FIRST_PORT: u16 = 1024;

/// Returns the client's address and port of connection `flow`.
pub(super) fn client_of(flow: usize) -> (Ipv4Addr, u16) {
    let address = u32::from(CLIENT) + (flow / PORTS) as u32;
    (address.into(), FIRST_PORT + (flow % PORTS) as u16)
}

/// Returns the connection with this client address and port.
pub(super) fn flow_of(address: Ipv4Addr, port: u16) -> Option<usize> {
    let block = u32::from(address).checked_sub(CLIENT.into())? as usize;
    let port = usize::from(port.checked_sub(FIRST_PORT)?);
    (port < PORTS).then_some(block * PORTS + port)
}

/// Returns the client's addresses for `flows` connections.
pub(super) fn addresses(flows: usize) -> impl Iterator<Item = Ipv4Addr> {
    (0..flows.div_ceil(PORTS)).map(|block| client_of(block * PORTS).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_its_own_address_and_port() {
        for flow in [0, 1, 49_999, 50_000, 123_456, 3_999_999] {
            let (address, port) = client_of(flow);
            assert_eq!(flow_of(address, port), Some(flow));
        }
        assert_eq!(client_of(50_000), (Ipv4Addr::new(10, 1, 0, 2), 1024));
        assert_eq!(flow_of(Ipv4Addr::new(10, 1, 0, 1), 51_024), None);
        assert_eq!(flow_of(Ipv4Addr::new(10, 1, 0, 1), 1023), None);
        assert_eq!(flow_of(Ipv4Addr::new(10, 1, 0, 0), 1024), None);
        assert_eq!(addresses(50_001).count(), 2);
    }
}
