//! Datagram sockets.

use super::{CLIENT, Hosts, SERVER, address};
use crate::epoll::bits::*;
use crate::*;
use linerate_service::Datagram;
use rustix::io::Errno;
use std::net::SocketAddr;

/// Limit of a queue that no test reaches.
const ROOM: usize = 1 << 20;

const SHARED: Reuse = Reuse { address: true, port: false };

impl Hosts {
    /// Returns a datagram socket bound to `bound`.
    fn bound(&mut self, host: usize, bound: SocketAddr, reuse: Reuse) -> Result<SocketId, Errno> {
        let (sockets, _) = self.workers[host].parts();
        let id = sockets.datagram_socket(ROOM, bound.is_ipv6());
        for added in sockets.bind_datagrams(id, bound, reuse)? {
            self.workers[host].listen_udp(added);
        }
        Ok(id)
    }

    /// Returns a datagram socket of the client, bound to `port` of all its addresses.
    fn client(&mut self, port: u16) -> SocketId {
        self.bound(CLIENT, SocketAddr::new([0, 0, 0, 0].into(), port), Reuse::default()).unwrap()
    }

    fn server(&mut self, port: u16, reuse: Reuse) -> SocketId {
        self.bound(SERVER, address(port), reuse).unwrap()
    }

    fn send_to(&mut self, host: usize, id: SocketId, to: Option<SocketAddr>, payload: &[u8]) -> Result<(), Errno> {
        let (sockets, net) = self.workers[host].parts();
        let write = |out: &mut [u8]| out.copy_from_slice(payload);
        let result = sockets.send_datagram(net, id, (to, None), payload.len(), write);
        self.run();
        result
    }

    fn receive(&mut self, host: usize, id: SocketId) -> Result<Datagram, Errno> {
        self.on(host, |sockets| sockets.recv_datagram(id, false)).map(|received| received.unwrap())
    }

    fn connect_to(&mut self, host: usize, id: SocketId, remote: Option<SocketAddr>) -> Result<(), Errno> {
        let (sockets, net) = self.workers[host].parts();
        sockets.connect_datagrams(net, id, remote)
    }
}

#[test]
fn datagrams_carry_their_addresses_both_ways() {
    let mut hosts = Hosts::new();
    let (server, client) = (hosts.server(7, Reuse::default()), hosts.client(1024));
    assert_eq!(hosts.receive(SERVER, server), Err(Errno::AGAIN));
    assert_eq!(hosts.send_to(CLIENT, client, None, b"a"), Err(Errno::DESTADDRREQ));
    hosts.send_to(CLIENT, client, Some(address(7)), b"question").unwrap();
    assert_eq!(hosts.readiness(SERVER, server), IN | RDNORM | OUT | WRNORM);
    let peek = hosts.on(SERVER, |sockets| sockets.recv_datagram(server, true));
    let received = hosts.receive(SERVER, server).unwrap();
    assert_eq!(
        (peek, &received.payload[..], received.local),
        (Ok(Some(received.clone())), &b"question"[..], address(7))
    );
    assert_eq!(received.remote, "10.0.0.1:1024".parse().unwrap());
    hosts.send_to(SERVER, server, Some(received.remote), b"").unwrap();
    assert_eq!(hosts.receive(CLIENT, client).unwrap().payload.len(), 0);
    assert_eq!(hosts.send_to(CLIENT, client, Some(address(7)), &[0; 65_508]), Err(Errno::MSGSIZE));
    hosts.close(SERVER, server);
    assert!(hosts.bound(SERVER, address(7), Reuse::default()).is_ok(), "the address is free again");
}

#[test]
fn refused_datagram_is_an_error_of_the_connected_socket() {
    let mut hosts = Hosts::new();
    let (connected, other) = (hosts.client(1024), hosts.client(1025));
    hosts.connect_to(CLIENT, connected, Some(address(7))).unwrap();
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.local_addr(connected)), Some("10.0.0.1:1024".parse().unwrap()));
    hosts.send_to(CLIENT, connected, None, b"a").unwrap();
    hosts.send_to(CLIENT, other, Some(address(7)), b"a").unwrap();
    assert_eq!(hosts.readiness(CLIENT, connected), ERR | OUT | WRNORM);
    assert_eq!(hosts.receive(CLIENT, connected), Err(Errno::CONNREFUSED));
    assert_eq!(hosts.receive(CLIENT, connected), Err(Errno::AGAIN), "the error is reported once");
    assert_eq!(hosts.receive(CLIENT, other), Err(Errno::AGAIN));
    hosts.connect_to(CLIENT, connected, None).unwrap();
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.peer_addr(connected)), Err(Errno::NOTCONN));
}

#[test]
fn connected_socket_receives_from_its_peer_only() {
    let mut hosts = Hosts::new();
    let first = hosts.server(7, SHARED);
    let (a, b) = (hosts.client(1024), hosts.client(1025));
    hosts.connect_to(SERVER, first, Some("10.0.0.1:1024".parse().unwrap())).unwrap();
    let second = hosts.server(7, SHARED);
    for client in [a, b] {
        hosts.send_to(CLIENT, client, Some(address(7)), b"x").unwrap();
    }
    assert_eq!(hosts.receive(SERVER, first).unwrap().remote.port(), 1024);
    assert_eq!(hosts.receive(SERVER, second).unwrap().remote.port(), 1025);
    hosts.close(SERVER, second);
    hosts.send_to(CLIENT, a, Some(address(7)), b"y").unwrap();
    assert_eq!(&hosts.receive(SERVER, first).unwrap().payload[..], b"y", "the address is still received at");
    hosts.send_to(CLIENT, b, Some(address(7)), b"y").unwrap();
    assert_eq!(hosts.receive(SERVER, first), Err(Errno::AGAIN));
}

#[test]
fn addresses_are_shared_only_by_permission() {
    let mut hosts = Hosts::new();
    let any: SocketAddr = "[::]:7".parse().unwrap();
    let ports = Reuse { address: false, port: true };
    let first = hosts.server(7, SHARED);
    for (bound, reuse) in [(address(7), Reuse::default()), (address(7), ports), (any, Reuse::default())] {
        assert_eq!(hosts.bound(SERVER, bound, reuse), Err(Errno::ADDRINUSE), "{bound} {reuse:?}");
    }
    let wildcard = hosts.bound(SERVER, any, SHARED).unwrap();
    let client = hosts.client(1024);
    hosts.send_to(CLIENT, client, Some(address(7)), b"x").unwrap();
    assert!(hosts.receive(SERVER, first).is_ok(), "a specific address precedes all");
    hosts.close(SERVER, first);
    hosts.send_to(CLIENT, client, Some(address(7)), b"x").unwrap();
    assert!(hosts.receive(SERVER, wildcard).is_ok(), "all addresses include those of IPv4");
}

#[test]
fn peers_are_distributed_among_sockets_of_one_port() {
    let mut hosts = Hosts::new();
    let ports = Reuse { address: false, port: true };
    let servers = [(); 2].map(|()| hosts.server(7, ports));
    let mut counts = [0; 2];
    for port in 1024..1056 {
        let client = hosts.client(port);
        for _ in 0..2 {
            hosts.send_to(CLIENT, client, Some(address(7)), b"x").unwrap();
        }
        for (count, server) in counts.iter_mut().zip(servers) {
            let got = std::iter::from_fn(|| hosts.receive(SERVER, server).ok()).count();
            assert!(got == 0 || got == 2, "a peer stays with one socket");
            *count += got;
        }
    }
    assert!(counts[0] > 0 && counts[1] > 0 && counts[0] + counts[1] == 64, "{counts:?}");
}

#[test]
fn full_queue_drops_datagrams() {
    let mut hosts = Hosts::new();
    let (server, client) = (hosts.server(7, Reuse::default()), hosts.client(1024));
    hosts.on(SERVER, |sockets| sockets.set_receive_limit(server, 4000));
    for _ in 0..10 {
        hosts.send_to(CLIENT, client, Some(address(7)), &[0; 1000]).unwrap();
    }
    let got = std::iter::from_fn(|| hosts.receive(SERVER, server).ok()).count();
    assert_eq!(got, 3, "as many as the limit, and one");
    hosts.send_to(CLIENT, client, Some(address(7)), b"x").unwrap();
    assert!(hosts.receive(SERVER, server).is_ok());
}

#[test]
fn shutdown_ends_each_direction_of_a_connected_socket() {
    let mut hosts = Hosts::new();
    let client = hosts.client(1024);
    assert_eq!(hosts.shutdown(CLIENT, client, Shutdown::Both), Err(Errno::NOTCONN));
    hosts.connect_to(CLIENT, client, Some(address(7))).unwrap();
    hosts.shutdown(CLIENT, client, Shutdown::Write).unwrap();
    assert_eq!(hosts.send_to(CLIENT, client, None, b"x"), Err(Errno::PIPE));
    hosts.shutdown(CLIENT, client, Shutdown::Read).unwrap();
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.recv_datagram(client, false)), Ok(None));
    assert_eq!(hosts.readiness(CLIENT, client) & (HUP | RDHUP), HUP | RDHUP);
}
