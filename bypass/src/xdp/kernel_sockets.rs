//! TCP sockets of the kernel whose segments a port would take (`/proc/net/tcp`, proc(5)).

use super::Endpoints;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// TCP socket of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelSocket {
    pub local: SocketAddr,
    /// True for a listening socket, false for a connection.
    pub is_listening: bool,
}

/// Returns a socket of this network namespace whose segments would be redirected to `endpoints` at `addresses`.
pub(super) fn conflicting(endpoints: &Endpoints, addresses: &[IpAddr]) -> Option<KernelSocket> {
    // The thread may be in another namespace than its process.
    let read = |table| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
    let tables = [read("tcp"), read("tcp6")];
    let mut sockets = tables.iter().flat_map(|table| table.lines()).filter_map(parse);
    sockets.find(|socket| takes(endpoints, addresses, socket.local))
}

/// Returns whether segments to `local` would be redirected.
fn takes(endpoints: &Endpoints, addresses: &[IpAddr], local: SocketAddr) -> bool {
    // A socket at `::` may also receive IPv4.
    let is_at = |ip: IpAddr| local.ip() == ip || local.ip().is_unspecified() && (local.is_ipv6() || ip.is_ipv4());
    let is_outgoing = endpoints.outgoing.as_ref().is_some_and(|ports| ports.contains(&local.port()));
    let listens_at = |ip: IpAddr| {
        let mut bound = endpoints.tcp.iter().filter(|bound| bound.port() == local.port());
        bound.any(|bound| bound.ip() == ip || bound.ip().is_unspecified() && bound.is_ipv4() == ip.is_ipv4())
    };
    addresses.iter().any(|ip| is_at(*ip) && (is_outgoing || listens_at(*ip)))
}

/// Parses a line of the table. Returns `None` for other lines, and for sockets that a process has closed: they need few
/// more segments, and may exist for minutes after the end of a server.
fn parse(line: &str) -> Option<KernelSocket> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    // Each word of the address is printed as a number in the byte order of the machine.
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        _ => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?);
            ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
        }
    };
    let local = SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
    match fields.nth(1)? {
        // ESTABLISHED, SYN_SENT, SYN_RECV, CLOSE_WAIT, NEW_SYN_RECV
        "01" | "02" | "03" | "08" | "0C" => Some(KernelSocket { local, is_listening: false }),
        "0A" => Some(KernelSocket { local, is_listening: true }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn conflicting_sockets_are_listeners_and_open_connections_at_the_addresses() {
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let unspecified = if ip.is_ipv4() { "0.0.0.0" } else { "::" };
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let server = listener.local_addr().unwrap();
            let outgoing = |port| Endpoints { outgoing: Some(port..=port), ..Endpoints::default() };
            let listens = |at: SocketAddr| Endpoints { tcp: vec![at], ..Endpoints::default() };
            let listening = Some(KernelSocket { local: server, is_listening: true });
            assert_eq!(conflicting(&outgoing(server.port()), &[ip]), listening);
            assert_eq!(conflicting(&outgoing(server.port()), &["192.0.2.1".parse().unwrap()]), None);
            assert_eq!(conflicting(&Endpoints::default(), &[ip]), None);
            let client = TcpStream::connect(server).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            drop(listener);
            let connected = |local| Some(KernelSocket { local, is_listening: false });
            let from = client.local_addr().unwrap();
            assert_eq!(conflicting(&outgoing(from.port()), &[ip]), connected(from));
            let wildcard = SocketAddr::new(unspecified.parse().unwrap(), server.port());
            for endpoints in [listens(server), listens(wildcard)] {
                assert_eq!(conflicting(&endpoints, &[ip]), connected(server));
            }
            // The end that closes first is in FIN-WAIT-2, and then in TIME-WAIT.
            drop(accepted);
            assert_eq!(conflicting(&listens(server), &[ip]), None);
        }
    }

    #[test]
    fn wildcard_listener_of_ipv6_conflicts_at_every_address() {
        let listener = TcpListener::bind(("::", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoints = Endpoints { outgoing: Some(port..=port), ..Endpoints::default() };
        for ip in ["192.0.2.1", "2001:db8::1"] {
            assert!(conflicting(&endpoints, &[ip.parse().unwrap()]).is_some_and(|socket| socket.is_listening), "{ip}");
        }
    }
}
