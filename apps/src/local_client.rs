//! Detection of a server on a shared interface that clients on its own host cannot reach.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns whether `remote`, to which a TCP connection was refused, is a port of this host's kernel that a process has
/// bound without listening. Servers on shared interfaces reserve their ports in this way.
pub fn is_reserved(remote: SocketAddr) -> bool {
    is_local(remote).unwrap_or(false) && is_bound(remote)
}

/// Returns whether the address belongs to the kernel: the kernel then selects the same address as source.
fn is_local(remote: SocketAddr) -> io::Result<bool> {
    let any = match remote {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip() == remote.ip())
}

fn is_bound(remote: SocketAddr) -> bool {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let attempt = || -> io::Result<()> {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // With SO_REUSEADDR, connections in TIME-WAIT do not block the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        Ok(bind(&socket, &remote)?)
    };
    attempt().is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn bound_port_of_this_host_is_reserved() {
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            // A released port of a listener could be taken by another test.
            let listener = TcpListener::bind((ip, 0)).unwrap();
            assert!(is_reserved(listener.local_addr().unwrap()));
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            bind(&socket, &SocketAddr::new(ip, 0)).unwrap();
            let own: SocketAddr = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
            assert!(is_reserved(own));
            assert!(TcpListener::bind(own).is_err());
        }
    }

    #[test]
    fn port_of_another_host_or_without_a_socket_is_not_reserved() {
        for remote in ["192.0.2.1:7", "127.0.0.1:1", "[2001:db8::1]:7"] {
            assert!(!is_reserved(remote.parse().unwrap()), "{remote}");
        }
    }
}
