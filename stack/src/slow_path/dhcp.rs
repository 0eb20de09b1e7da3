//! DHCP client of the first worker, by smoltcp's socket.

use crate::ip_cidr::IpCidr;
use smoltcp::socket::dhcpv4::{Event, Socket};
use std::net::IpAddr;

/// Address and router of a DHCP lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DhcpLease {
    /// Local address and prefix.
    pub address: IpCidr,
    /// Default gateway.
    pub gateway: Option<IpAddr>,
}

/// Returns a change of the lease since the last call: `Some(None)` when it has expired.
pub(super) fn poll(socket: &mut Socket<'_>) -> Option<Option<DhcpLease>> {
    match socket.poll()? {
        Event::Configured(lease) => {
            let address = IpCidr::new(lease.address.address().into(), lease.address.prefix_len());
            let gateway = lease.router.map(IpAddr::from);
            address.ok().map(|address| Some(DhcpLease { address, gateway }))
        }
        Event::Deconfigured => Some(None),
    }
}
