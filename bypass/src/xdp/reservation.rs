//! Reservation of ports in the kernel.
//!
//! The sockets are bound and never used. A server that binds or listens on one of the ports fails at once, instead of
//! serving only the clients on this host.

use super::Endpoints;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

#[derive(Debug)]
pub(super) struct Reservation {
    _sockets: Vec<OwnedFd>,
}

/// Failed reservation of a port.
#[derive(Debug)]
pub(crate) struct NotReserved {
    pub address: SocketAddr,
    pub protocol: &'static str,
    pub error: io::Error,
}

impl Reservation {
    /// Reserves the listening ports of `endpoints`. `interface` is the scope of link-local addresses.
    pub fn new(endpoints: &Endpoints, interface: u32) -> Result<Self, NotReserved> {
        let tcp = distinct(&endpoints.tcp).map(|address| (address, SocketType::STREAM, "TCP"));
        let udp = distinct(&endpoints.udp).map(|address| (address, SocketType::DGRAM, "UDP"));
        let reserve = |(address, kind, protocol)| {
            reserve(scoped(address, interface), kind).map_err(|error| NotReserved { address, protocol, error })
        };
        Ok(Reservation { _sockets: tcp.chain(udp).map(reserve).collect::<Result<_, _>>()? })
    }
}

/// Returns each address once, without addresses that an unspecified address with the same port covers: two sockets
/// cannot reserve one port.
fn distinct(addresses: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> + '_ {
    let covers = |other: &SocketAddr, address: &SocketAddr| {
        let same_port = other.port() == address.port() && other.is_ipv4() == address.is_ipv4();
        same_port && other.ip().is_unspecified() && !address.ip().is_unspecified()
    };
    let is_first = |at: usize| !addresses[..at].contains(&addresses[at]);
    let is_alone = move |address: &SocketAddr| !addresses.iter().any(|other| covers(other, address));
    let first = addresses.iter().enumerate().filter(move |(at, _)| is_first(*at)).map(|(_, address)| *address);
    first.filter(is_alone)
}

/// Adds the scope to a link-local address.
fn scoped(mut address: SocketAddr, interface: u32) -> SocketAddr {
    if let SocketAddr::V6(six) = &mut address
        && six.ip().is_unicast_link_local()
    {
        six.set_scope_id(interface);
    }
    address
}

fn reserve(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address.ip() {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        // With SO_REUSEADDR the bind fails because of a listening socket, but not because of a connection in TIME-WAIT.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        // Without the option on this socket, no other socket can bind the port.
        sockopt::set_socket_reuseaddr(&socket, false)?;
    } else {
        bind(&socket, &address)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, UdpSocket};

    fn endpoints(tcp: &[SocketAddr], udp: &[SocketAddr]) -> Endpoints {
        Endpoints { tcp: tcp.to_vec(), udp: udp.to_vec(), ..Endpoints::default() }
    }

    #[test]
    fn reserved_ports_are_refused_to_others_until_released() {
        for ip in ["127.0.0.1", "::1"] {
            let any = SocketAddr::new(ip.parse().unwrap(), 0);
            let tcp = TcpListener::bind(any).unwrap().local_addr().unwrap();
            let udp = UdpSocket::bind(any).unwrap().local_addr().unwrap();
            let reservation = Reservation::new(&endpoints(&[tcp], &[udp]), 1).unwrap();
            // The standard library sets SO_REUSEADDR.
            assert_eq!(TcpListener::bind(tcp).unwrap_err().kind(), ErrorKind::AddrInUse);
            assert_eq!(UdpSocket::bind(udp).unwrap_err().kind(), ErrorKind::AddrInUse);
            let wildcard = SocketAddr::new(if tcp.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, tcp.port());
            assert_eq!(TcpListener::bind(wildcard).unwrap_err().kind(), ErrorKind::AddrInUse);
            let second = Reservation::new(&endpoints(&[tcp], &[]), 1).unwrap_err();
            assert_eq!((second.address, second.error.kind()), (tcp, ErrorKind::AddrInUse));
            drop(reservation);
            drop(TcpListener::bind(tcp).unwrap());
        }
    }

    #[test]
    fn addresses_with_one_port_are_reserved_together() {
        let parse = |all: &[&str]| all.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let listed = parse(&["0.0.0.0:7", "10.0.0.1:7", "[::1]:7", "10.0.0.1:8", "0.0.0.0:7", "[::1]:7"]);
        let kept: Vec<_> = distinct(&listed).collect();
        assert_eq!(kept, parse(&["0.0.0.0:7", "[::1]:7", "10.0.0.1:8"]));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let both = ["127.0.0.1", "0.0.0.0"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        Reservation::new(&endpoints(&both, &both), 1).unwrap();
    }

    #[test]
    fn listening_port_is_not_reserved_but_port_in_time_wait_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let refused = Reservation::new(&endpoints(&[address], &[]), 1).unwrap_err();
        assert_eq!((refused.protocol, refused.error.kind()), ("TCP", ErrorKind::AddrInUse));
        let client = std::net::TcpStream::connect(address).unwrap();
        // The end that closes first keeps the port in TIME-WAIT.
        drop(listener.accept().unwrap());
        drop((client, listener));
        Reservation::new(&endpoints(&[address], &[]), 1).unwrap();
    }
}
