//! DHCP client of the first worker, by smoltcp's socket. Routers and routes are read from the message that the socket
//! accepted, because the socket reads a router only if there is one, and no routes.

use crate::config::host_network::Route;
use crate::ip::addresses::is_host_v4;
use crate::slow_path::Lease;
use crate::wire::ip_cidr::IpCidr;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::dhcpv4::{Event, Socket};
use smoltcp::wire::{DhcpPacket, EthernetFrame, Ipv4Packet, UdpPacket};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const SUBNET_MASK: u8 = 1;
const ROUTER: u8 = 3;
const LEASE_TIME: u8 = 51;
const CLASSLESS_ROUTES: u8 = 121;

/// Requested options. Classless routes precede the router (RFC 3442).
const REQUESTED: &[u8] = &[SUBNET_MASK, CLASSLESS_ROUTES, ROUTER];

/// Address and routes of a DHCP lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpLease {
    /// Local address and prefix.
    pub address: IpCidr,
    /// Default gateway.
    pub gateway: Option<IpAddr>,
    /// Routes without that of the default gateway.
    pub routes: Vec<Route>,
}

pub(super) struct DhcpClient {
    socket: SocketHandle,
    lease: Lease,
    is_changed: bool,
}

impl DhcpClient {
    pub fn new(sockets: &mut SocketSet<'static>) -> Self {
        let mut socket = Socket::new();
        socket.set_parameter_request_list(REQUESTED);
        // With a buffer, even one that no message fits in, every renewal is an event.
        socket.set_receive_packet_buffer(&mut []);
        DhcpClient { socket: sockets.add(socket), lease: None, is_changed: false }
    }

    /// Takes over the state of the socket after it has processed `frame`, if any.
    pub fn update(&mut self, sockets: &mut SocketSet<'static>, frame: Option<&[u8]>) {
        match sockets.get_mut::<Socket>(self.socket).poll() {
            Some(Event::Configured(config)) => {
                let address = IpCidr::new(config.address.address().into(), config.address.prefix_len());
                let (Ok(address), Some(options)) = (address, frame.and_then(LeaseOptions::of)) else { return };
                let LeaseOptions { gateway, routes, seconds } = options;
                let lease = DhcpLease { address, gateway, routes };
                if self.lease.as_deref() != Some(&lease) {
                    let gateway = gateway.map_or("no gateway".to_owned(), |gateway| format!("gateway {gateway}"));
                    let routes: Vec<_> = lease.routes.iter().map(|route| format!(", route {route}")).collect();
                    let time = seconds.map_or("of unknown time".to_owned(), |seconds| format!("of {seconds} s"));
                    tracing::info!("DHCP: {address}, {gateway}{}, lease {time}", routes.concat());
                    (self.lease, self.is_changed) = (Some(Arc::new(lease)), true);
                }
            }
            Some(Event::Deconfigured) => {
                tracing::warn!("DHCP: no address");
                (self.lease, self.is_changed) = (None, true);
            }
            None => {}
        }
    }

    /// Returns a change of the lease since the last call: `Some(None)` when it has expired.
    pub fn take_change(&mut self) -> Option<Lease> {
        std::mem::take(&mut self.is_changed).then(|| self.lease.clone())
    }
}

/// Options of a DHCP message that the socket does not evaluate.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeaseOptions {
    gateway: Option<IpAddr>,
    routes: Vec<Route>,
    seconds: Option<u32>,
}

impl LeaseOptions {
    /// Reads the options of the DHCP message in an Ethernet frame.
    fn of(frame: &[u8]) -> Option<Self> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
        let udp = UdpPacket::new_checked(ip.payload()).ok()?;
        let message = DhcpPacket::new_checked(udp.payload()).ok()?;
        let own = message.your_ip();
        // The parts of an option longer than 255 bytes are concatenated (RFC 3396).
        let value = |kind| {
            let parts = message.options().filter(|option| option.kind == kind);
            parts.map(|option| option.data).collect::<Vec<_>>().concat()
        };
        let seconds = value(LEASE_TIME).first_chunk().map(|seconds| u32::from_be_bytes(*seconds));
        // RFC 3442: the router option is ignored with classless routes.
        if let Some(mut routes) = classless_routes(&value(CLASSLESS_ROUTES), own) {
            let default = routes.iter().position(|route| route.prefix == 0 && route.gateway.is_some());
            let gateway = default.and_then(|at| routes.remove(at).gateway);
            return Some(LeaseOptions { gateway, routes, seconds });
        }
        // RFC 2132 §3.5: the routers are in order of preference.
        let routers = value(ROUTER);
        let mut routers = routers.as_chunks().0.iter().map(|octets: &[u8; 4]| Ipv4Addr::from(*octets));
        let gateway = routers.find(|router| is_router(*router, own)).map(IpAddr::V4);
        Some(LeaseOptions { gateway, routes: Vec::new(), seconds })
    }
}

/// Returns whether `ip` can be the address of a router of the host `own`.
fn is_router(ip: Ipv4Addr, own: Ipv4Addr) -> bool {
    is_host_v4(ip.to_bits()) && ip != own
}

/// Returns the classless routes of the host `own` (RFC 3442), or `None` if there are none or the option is malformed.
/// Routes through impossible addresses are omitted.
fn classless_routes(mut option: &[u8], own: Ipv4Addr) -> Option<Vec<Route>> {
    let mut routes = Vec::new();
    while let Some((prefix, rest)) = option.split_first() {
        let prefix = Some(*prefix).filter(|prefix| *prefix <= 32)?;
        let (significant, rest) = rest.split_at_checked(prefix.div_ceil(8).into())?;
        let (router, rest) = rest.split_first_chunk::<4>()?;
        let mut destination = [0; 4];
        destination[..significant.len()].copy_from_slice(significant);
        let router = Ipv4Addr::from(*router);
        if router.is_unspecified() || is_router(router, own) {
            // 0.0.0.0: the destination is on the link.
            let gateway = (!router.is_unspecified()).then_some(router.into());
            routes.push(Route { destination: destination.into(), prefix, gateway, source: None });
        }
        option = rest;
    }
    (!routes.is_empty()).then_some(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn classless_routes_are_read() {
        let read = |option: &[u8]| {
            let routes = classless_routes(option, OWN)?;
            Some(routes.iter().map(Route::to_string).collect::<Vec<_>>().join(", "))
        };
        for (option, expected) in [
            // The examples of RFC 3442.
            (&[0, 10, 0, 0, 1][..], Some("0.0.0.0/0 via 10.0.0.1")),
            (&[25, 10, 229, 0, 128, 10, 0, 0, 1], Some("10.229.0.128/25 via 10.0.0.1")),
            (
                &[8, 10, 10, 0, 0, 1, 32, 10, 198, 122, 47, 0, 0, 0, 0],
                Some("10.0.0.0/8 via 10.0.0.1, 10.198.122.47/32"),
            ),
            // Impossible routers.
            (&[0, 10, 0, 0, 2, 0, 224, 0, 0, 1, 0, 127, 0, 0, 1, 0, 10, 0, 0, 3], Some("0.0.0.0/0 via 10.0.0.3")),
            (&[0, 10, 0, 0, 2], None),
            // Malformed.
            (&[], None),
            (&[0, 10, 0, 0], None),
            (&[33, 10, 0, 0, 0, 0, 10, 0, 0, 1], None),
            (&[24, 10, 1], None),
            (&[0, 10, 0, 0, 1, 24], None),
        ] {
            assert_eq!(read(option).as_deref(), expected, "{option:?}");
        }
    }
}
