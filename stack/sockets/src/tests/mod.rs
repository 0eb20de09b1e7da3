mod datagrams;

use crate::epoll::bits::*;
use crate::service::MAX_QUEUE;
use crate::*;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_service::time::Duration;
use linerate_stack::{Config, Keepalive, Mailboxes, Worker};
use rustix::io::Errno;
use std::net::SocketAddr;

const EDGE_IN: u32 = IN | EDGE;

/// Two hosts with sockets on a link in virtual time.
struct Hosts {
    workers: Vec<Worker<MemoryNic, Sockets>>,
    link: Link,
}

/// Hosts by their index.
const CLIENT: usize = 0;
const SERVER: usize = 1;

fn address(port: u16) -> SocketAddr {
    SocketAddr::new("10.0.0.2".parse().unwrap(), port)
}

impl Hosts {
    fn new() -> Self {
        let (a, b) = Link::pair(LinkConfig::default());
        let link = a.link().clone();
        let now = link.clock().now();
        let worker = |(nic, last): (MemoryNic, u8)| {
            let config = Config {
                addresses: vec![format!("10.0.0.{last}/24").parse().unwrap()],
                seed: last.into(),
                ..Config::default()
            };
            Worker::new(&config, Mailboxes::for_workers(1).remove(0), nic, |_| Sockets::default(), now)
        };
        let workers = [(a, 1), (b, 2)].into_iter().map(worker).collect();
        Hosts { workers, link }
    }

    /// Runs both hosts for a round trip.
    fn run(&mut self) {
        for _ in 0..200 {
            let now = self.link.clock().now();
            self.workers.iter_mut().for_each(|worker| _ = worker.turn(now));
            self.link.clock().advance(Duration::from_micros(10));
        }
    }

    fn on<R>(&mut self, host: usize, operate: impl FnOnce(&mut Sockets) -> R) -> R {
        operate(self.workers[host].parts().0)
    }

    fn recv(&mut self, host: usize, id: SocketId, most: usize, peek: bool) -> Result<Vec<u8>, Errno> {
        let (sockets, net) = self.workers[host].parts();
        let mut out = vec![0; most];
        let n = sockets.recv(net, id, &mut out, peek)?;
        out.truncate(n);
        Ok(out)
    }

    fn send(&mut self, host: usize, id: SocketId, bytes: &[u8]) -> Result<usize, Errno> {
        self.send_part(host, id, bytes, false)
    }

    /// Sends bytes, which more may follow (MSG_MORE).
    fn send_part(&mut self, host: usize, id: SocketId, bytes: &[u8], more: bool) -> Result<usize, Errno> {
        let (sockets, net) = self.workers[host].parts();
        let sent = sockets.send(net, id, bytes, more);
        self.run();
        sent
    }

    fn close(&mut self, host: usize, id: SocketId) {
        let (sockets, net) = self.workers[host].parts();
        let ended = sockets.close(net, id);
        self.stop_receiving(host, ended);
    }

    fn stop_receiving(&mut self, host: usize, ended: Vec<Endpoint>) {
        for endpoint in ended {
            match endpoint {
                Endpoint::Tcp(address) => self.workers[host].unlisten(address),
                Endpoint::Udp(address) => self.workers[host].unlisten_udp(address),
            }
        }
        self.run();
    }

    fn shutdown(&mut self, host: usize, id: SocketId, how: Shutdown) -> Result<(), Errno> {
        let (sockets, net) = self.workers[host].parts();
        let ended = sockets.shutdown(net, id, how)?;
        self.stop_receiving(host, ended);
        Ok(())
    }

    fn readiness(&mut self, host: usize, id: SocketId) -> u32 {
        let (sockets, net) = self.workers[host].parts();
        sockets.readiness(net, id)
    }

    fn collect(&mut self, host: usize, set: EpollId) -> Vec<(u32, u64)> {
        let (sockets, net) = self.workers[host].parts();
        let mut events = Vec::new();
        sockets.epoll_collect(net, set, 16, |_, event| events.push(event));
        events.iter().map(|event| (event.events, event.data)).collect()
    }

    fn listen(&mut self, port: u16, backlog: usize) -> SocketId {
        self.listen_on(address(port), backlog)
    }

    fn listen_on(&mut self, bound: SocketAddr, backlog: usize) -> SocketId {
        let (sockets, _) = self.workers[SERVER].parts();
        let id = sockets.socket();
        sockets.bind(id, bound).unwrap();
        for bound in sockets.listen(id, backlog, true).unwrap() {
            self.workers[SERVER].listen(bound);
        }
        id
    }

    fn connect(&mut self, port: u16) -> SocketId {
        let (sockets, net) = self.workers[CLIENT].parts();
        let id = sockets.socket();
        assert_eq!(sockets.connect(net, id, address(port)), Err(Errno::INPROGRESS));
        self.run();
        id
    }

    /// Returns both ends of a connection.
    fn pair(&mut self) -> (SocketId, SocketId) {
        let listener = self.listen(7, 1);
        let client = self.connect(7);
        let (server, _) = self.on(SERVER, |sockets| sockets.accept(listener)).unwrap();
        (client, server)
    }
}

#[test]
fn accepted_connection_carries_bytes_both_ways() {
    let mut hosts = Hosts::new();
    let listener = hosts.listen(7, 8);
    assert_eq!(hosts.on(SERVER, |sockets| sockets.accept(listener)), Err(Errno::AGAIN));
    let client = hosts.connect(7);
    assert_eq!(hosts.readiness(SERVER, listener), IN | RDNORM);
    let (server, peer) = hosts.on(SERVER, |sockets| sockets.accept(listener)).unwrap();
    assert_eq!(Some(peer), hosts.on(CLIENT, |sockets| sockets.local_addr(client)));
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.peer_addr(client)), Ok(address(7)));
    assert_eq!(hosts.on(SERVER, |sockets| sockets.local_addr(server)), Some(address(7)));
    assert_eq!(hosts.recv(SERVER, server, 9, false), Err(Errno::AGAIN));
    assert_eq!(hosts.send(CLIENT, client, b"request"), Ok(7));
    assert_eq!(hosts.recv(SERVER, server, 9, false).unwrap(), b"request");
    assert_eq!(hosts.send(SERVER, server, b"response"), Ok(8));
    assert_eq!(hosts.recv(CLIENT, client, 4, false).unwrap(), b"resp");
    assert_eq!(hosts.recv(CLIENT, client, 9, false).unwrap(), b"onse");
}

#[test]
fn peeked_bytes_are_read_again() {
    let mut hosts = Hosts::new();
    let (client, server) = hosts.pair();
    for part in [&b"one "[..], b"two ", b"three"] {
        assert_eq!(hosts.send(CLIENT, client, part), Ok(part.len()));
    }
    assert_eq!(hosts.recv(SERVER, server, 8, true).unwrap(), b"one two ");
    assert_eq!(hosts.recv(SERVER, server, 64, true).unwrap(), b"one two three");
    assert_eq!(hosts.send(CLIENT, client, b" four"), Ok(5));
    assert_eq!(hosts.readiness(SERVER, server) & IN, IN);
    assert_eq!(hosts.recv(SERVER, server, 64, false).unwrap(), b"one two three four");
    assert_eq!(hosts.recv(SERVER, server, 64, false), Err(Errno::AGAIN));
}

#[test]
fn half_close_ends_the_stream_of_the_peer_only() {
    let mut hosts = Hosts::new();
    let (client, server) = hosts.pair();
    hosts.shutdown(CLIENT, client, Shutdown::Write).unwrap();
    assert_eq!(hosts.send(CLIENT, client, b"late"), Err(Errno::PIPE));
    assert_eq!(hosts.readiness(SERVER, server), IN | RDNORM | RDHUP | OUT | WRNORM);
    assert_eq!(hosts.recv(SERVER, server, 9, false).unwrap(), b"");
    assert_eq!(hosts.send(SERVER, server, b"answer"), Ok(6));
    assert_eq!(hosts.recv(CLIENT, client, 9, false).unwrap(), b"answer");
    hosts.shutdown(SERVER, server, Shutdown::Both).unwrap();
    assert_eq!(hosts.recv(CLIENT, client, 9, false).unwrap(), b"");
    assert_eq!(hosts.readiness(CLIENT, client) & (HUP | ERR), HUP);
}

#[test]
fn close_with_unread_bytes_resets_the_peer() {
    let mut hosts = Hosts::new();
    let (client, server) = hosts.pair();
    assert_eq!(hosts.send(CLIENT, client, b"unread"), Ok(6));
    hosts.close(SERVER, server);
    assert_eq!(hosts.readiness(CLIENT, client) & (ERR | HUP | IN), ERR | HUP | IN);
    assert_eq!(hosts.recv(CLIENT, client, 9, false), Err(Errno::CONNRESET));
    assert_eq!(hosts.recv(CLIENT, client, 9, false).unwrap(), b"", "the error is reported once");
    assert_eq!(hosts.send(CLIENT, client, b"x"), Err(Errno::PIPE));
}

#[test]
fn data_for_a_closed_socket_is_answered_by_a_reset() {
    let mut hosts = Hosts::new();
    let (client, server) = hosts.pair();
    hosts.close(SERVER, server);
    assert_eq!(hosts.recv(CLIENT, client, 9, false).unwrap(), b"");
    assert_eq!(hosts.send(CLIENT, client, b"late"), Ok(4));
    assert_eq!(hosts.send(CLIENT, client, b"later"), Err(Errno::PIPE), "the peer had closed before it reset");
    hosts.close(CLIENT, client);
    for host in [CLIENT, SERVER] {
        let left = hosts.on(host, |sockets| sockets.len());
        assert_eq!(left, usize::from(host == SERVER), "only the listening socket is left");
    }
}

#[test]
fn refused_connection_is_an_error_of_the_socket() {
    let mut hosts = Hosts::new();
    let client = hosts.connect(8);
    assert_eq!(hosts.readiness(CLIENT, client) & (ERR | HUP | OUT), ERR | HUP | OUT);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(client)), Some(Errno::CONNREFUSED));
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(client)), None);
}

#[test]
fn connections_that_are_not_accepted_are_bounded_independently_of_the_backlog() {
    let mut hosts = Hosts::new();
    for backlog in [2, 1000] {
        let listener = hosts.listen(7, backlog);
        let clients: Vec<_> = (0..=MAX_QUEUE).map(|_| hosts.connect(7)).collect();
        let accepted = std::iter::from_fn(|| hosts.on(SERVER, |sockets| sockets.accept(listener)).ok()).count();
        assert_eq!(accepted, MAX_QUEUE);
        assert_eq!(hosts.recv(CLIENT, clients[MAX_QUEUE], 1, false), Err(Errno::CONNRESET));
        hosts.close(SERVER, listener);
    }
}

#[test]
fn closed_listener_resets_waiting_connections_and_frees_its_address() {
    let mut hosts = Hosts::new();
    let listener = hosts.listen(7, 2);
    let waiting = hosts.connect(7);
    let second = hosts.on(SERVER, |sockets| sockets.socket());
    assert_eq!(hosts.on(SERVER, |sockets| sockets.bind(second, address(7))), Err(Errno::ADDRINUSE));
    hosts.close(SERVER, listener);
    assert_eq!(hosts.recv(CLIENT, waiting, 1, false), Err(Errno::CONNRESET));
    let refused = hosts.connect(7);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(refused)), Some(Errno::CONNREFUSED));
    assert_eq!(hosts.on(SERVER, |sockets| sockets.bind(second, address(7))), Ok(()));
}

#[test]
fn listener_that_is_shut_down_resets_waiting_connections_and_listens_again() {
    let mut hosts = Hosts::new();
    let listener = hosts.listen(7, 2);
    let waiting = hosts.connect(7);
    assert_eq!(hosts.shutdown(SERVER, listener, Shutdown::Write), Ok(()));
    assert_eq!(hosts.readiness(SERVER, listener), IN | RDNORM);
    assert_eq!(hosts.shutdown(SERVER, listener, Shutdown::Read), Ok(()));
    assert_eq!(hosts.readiness(SERVER, listener), OUT | WRNORM | HUP);
    assert_eq!(hosts.on(SERVER, |sockets| sockets.accept(listener)), Err(Errno::INVAL));
    assert_eq!(hosts.recv(CLIENT, waiting, 1, false), Err(Errno::CONNRESET));
    let refused = hosts.connect(7);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(refused)), Some(Errno::CONNREFUSED));
    assert_eq!(hosts.on(SERVER, |sockets| sockets.listen(listener, 1, false)), Ok(vec![address(7)]));
}

#[test]
fn unspecified_address_of_ipv6_accepts_ipv4() {
    let mut hosts = Hosts::new();
    let listener = hosts.listen_on("[::]:7".parse().unwrap(), 2);
    let client = hosts.connect(7);
    let (_, peer) = hosts.on(SERVER, |sockets| sockets.accept(listener)).unwrap();
    assert_eq!(Some(peer), hosts.on(CLIENT, |sockets| sockets.local_addr(client)));
    hosts.close(SERVER, listener);
    let refused = hosts.connect(7);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(refused)), Some(Errno::CONNREFUSED));
}

/// Adds the server's end of a connection to a set. Returns the set and both ends.
fn watched(hosts: &mut Hosts, events: u32) -> (EpollId, SocketId, SocketId) {
    let (client, server) = hosts.pair();
    let set = hosts.on(SERVER, |sockets| {
        let set = sockets.epoll_create();
        sockets.epoll_add(set, Target::Socket(server), 5, Interest { events, data: 77 }).unwrap();
        set
    });
    (set, client, server)
}

#[test]
fn level_triggered_item_is_reported_until_it_is_read() {
    let mut hosts = Hosts::new();
    let (set, client, server) = watched(&mut hosts, IN);
    assert_eq!(hosts.collect(SERVER, set), []);
    hosts.send(CLIENT, client, b"ab").unwrap();
    for _ in 0..2 {
        assert_eq!(hosts.collect(SERVER, set), [(IN, 77)]);
        hosts.recv(SERVER, server, 1, false).unwrap();
    }
    assert_eq!(hosts.collect(SERVER, set), []);
}

#[test]
fn edge_triggered_item_is_reported_once_for_each_arrival() {
    let mut hosts = Hosts::new();
    let (set, client, _) = watched(&mut hosts, EDGE_IN);
    for _ in 0..2 {
        hosts.send(CLIENT, client, b"ab").unwrap();
        assert_eq!(hosts.collect(SERVER, set), [(IN, 77)]);
        assert_eq!(hosts.collect(SERVER, set), []);
    }
}

#[test]
fn one_shot_item_is_disarmed_until_it_is_modified() {
    let mut hosts = Hosts::new();
    let (set, client, server) = watched(&mut hosts, IN | ONESHOT);
    hosts.send(CLIENT, client, b"ab").unwrap();
    assert_eq!(hosts.collect(SERVER, set), [(IN, 77)]);
    hosts.send(CLIENT, client, b"cd").unwrap();
    assert_eq!(hosts.collect(SERVER, set), []);
    let again = Interest { events: IN | ONESHOT, data: 78 };
    hosts.on(SERVER, |sockets| sockets.epoll_modify(set, Target::Socket(server), 5, again)).unwrap();
    assert_eq!(hosts.collect(SERVER, set), [(IN, 78)]);
}

#[test]
fn writable_item_is_reported_when_space_returns() {
    let mut hosts = Hosts::new();
    let (set, client, server) = watched(&mut hosts, OUT);
    assert_eq!(hosts.collect(SERVER, set), [(OUT, 77)]);
    let chunk = [0; 1 << 16];
    while hosts.send(SERVER, server, &chunk).is_ok() {}
    assert_eq!(hosts.collect(SERVER, set), []);
    while hosts.recv(CLIENT, client, chunk.len(), false).is_ok_and(|bytes| !bytes.is_empty()) {
        hosts.run();
    }
    assert_eq!(hosts.collect(SERVER, set), [(OUT, 77)]);
}

#[test]
fn set_reports_hangup_without_interest_and_nothing_after_removal() {
    let mut hosts = Hosts::new();
    let (set, client, server) = watched(&mut hosts, 0);
    hosts.on(CLIENT, |sockets| sockets.reset_on_close(client, true));
    hosts.close(CLIENT, client);
    assert_eq!(hosts.collect(SERVER, set), [(ERR | HUP, 77)]);
    let changed = Interest { events: IN, data: 1 };
    let add = |sockets: &mut Sockets| sockets.epoll_add(set, Target::Socket(server), 5, changed);
    assert_eq!(hosts.on(SERVER, add), Err(Errno::EXIST));
    assert_eq!(hosts.on(SERVER, |sockets| sockets.epoll_delete(set, Target::Socket(server), 5)), Ok(()));
    assert_eq!(hosts.on(SERVER, |sockets| sockets.epoll_delete(set, Target::Socket(server), 5)), Err(Errno::NOENT));
    assert_eq!(hosts.collect(SERVER, set), []);
    assert_eq!(hosts.on(SERVER, |sockets| sockets.epoll_len(set)), 0);
}

#[test]
fn set_in_a_set_is_readable_while_it_has_events() {
    let mut hosts = Hosts::new();
    let (inner, client, server) = watched(&mut hosts, IN);
    let interest = Interest { events: IN, data: 9 };
    let outer = hosts.on(SERVER, |sockets| {
        let outer = sockets.epoll_create();
        sockets.epoll_add(outer, Target::Set(inner), 6, interest).unwrap();
        outer
    });
    assert_eq!(hosts.collect(SERVER, outer), []);
    hosts.send(CLIENT, client, b"ab").unwrap();
    assert_eq!(hosts.collect(SERVER, outer), [(IN, 9)]);
    assert_eq!(hosts.collect(SERVER, inner), [(IN, 77)]);
    hosts.recv(SERVER, server, 2, false).unwrap();
    assert_eq!(hosts.collect(SERVER, outer), []);
    hosts.send(CLIENT, client, b"c").unwrap();
    assert_eq!(hosts.collect(SERVER, outer), [(IN, 9)], "the set is listed again");
    hosts.on(SERVER, |sockets| sockets.epoll_close(inner));
    assert_eq!(hosts.on(SERVER, |sockets| sockets.epoll_len(outer)), 0);
}

#[test]
fn sets_contain_each_other_to_a_limited_depth() {
    let mut sockets = Sockets::default();
    let interest = Interest { events: IN, data: 0 };
    let sets = [(); 6].map(|()| sockets.epoll_create());
    for (outer, inner) in sets.iter().zip(&sets[1..5]) {
        assert_eq!(sockets.epoll_add(*outer, Target::Set(*inner), 5, interest), Ok(()));
    }
    for (outer, inner) in [(4, 5), (5, 0), (4, 0), (0, 0)] {
        let result = sockets.epoll_add(sets[outer], Target::Set(sets[inner]), 7, interest);
        assert_eq!(result, Err(Errno::LOOP), "{inner} in {outer}");
    }
}

#[test]
fn listening_sockets_share_an_address_by_permission() {
    let mut hosts = Hosts::new();
    let other = hosts.on(SERVER, |sockets| sockets.socket());
    let first = hosts.on(SERVER, |sockets| {
        let first = sockets.socket();
        sockets.reuse_port(first, true);
        sockets.bind(first, address(7)).unwrap();
        first
    });
    let added = hosts.on(SERVER, |sockets| sockets.listen(first, 64, false)).unwrap();
    assert_eq!(added, [address(7)]);
    hosts.workers[SERVER].listen(address(7));
    assert_eq!(hosts.on(SERVER, |sockets| sockets.bind(other, address(7))), Err(Errno::ADDRINUSE));
    let second = hosts.on(SERVER, |sockets| {
        sockets.reuse_port(other, true);
        sockets.bind(other, address(7)).unwrap();
        assert_eq!(sockets.listen(other, 64, false), Ok(Vec::new()), "the worker accepts there already");
        other
    });
    (0..32).for_each(|_| _ = hosts.connect(7));
    let [a, b] = [first, second]
        .map(|listener| std::iter::from_fn(|| hosts.on(SERVER, |sockets| sockets.accept(listener)).ok()).count());
    assert!(a > 0 && b > 0 && a + b == 32, "{a} {b}");
    hosts.close(SERVER, first);
    hosts.connect(7);
    assert!(hosts.on(SERVER, |sockets| sockets.accept(second)).is_ok());
}

/// Runs the client alone: the server's host does not answer.
fn without_server(hosts: &mut Hosts, seconds: u64) {
    for _ in 0..seconds * 1000 {
        let now = hosts.link.clock().now();
        hosts.workers[CLIENT].turn(now);
        hosts.link.clock().advance(Duration::from_millis(1));
    }
}

#[test]
fn keepalive_of_a_socket_ends_an_idle_connection_whose_peer_is_gone() {
    let mut hosts = Hosts::new();
    let (client, _) = hosts.pair();
    let other = hosts.connect(7);
    let times = Keepalive { idle: Duration::from_secs(2), interval: Duration::from_secs(1), probes: 2 };
    let (sockets, net) = hosts.workers[CLIENT].parts();
    sockets.set_keepalive(client, Some(times));
    sockets.apply_limits(net, client);
    without_server(&mut hosts, 3);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(client)), None);
    without_server(&mut hosts, 2);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(client)), Some(Errno::TIMEDOUT));
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(other)), None, "the other one has none");
}

#[test]
fn user_timeout_of_a_socket_ends_a_connection_that_is_not_acknowledged() {
    let mut hosts = Hosts::new();
    let (client, _) = hosts.pair();
    let other = hosts.connect(7);
    let (sockets, net) = hosts.workers[CLIENT].parts();
    sockets.set_user_timeout(client, Some(Duration::from_secs(2)));
    sockets.apply_limits(net, client);
    for id in [client, other] {
        assert_eq!(sockets.send(net, id, b"x", false), Ok(1));
    }
    assert_eq!(
        sockets.info(net, client).unwrap().unsent + sockets.info(net, client).unwrap().tcp.in_flight.unwrap(),
        1
    );
    without_server(&mut hosts, 1);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(client)), None);
    without_server(&mut hosts, 9);
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(client)), Some(Errno::TIMEDOUT));
    assert_eq!(hosts.on(CLIENT, |sockets| sockets.take_error(other)), None, "the other one waits longer");
}

#[test]
fn closed_socket_delivers_until_its_bytes_are_acknowledged() {
    let mut hosts = Hosts::new();
    let (client, _) = hosts.pair();
    let is_delivering = |hosts: &mut Hosts| {
        let (sockets, net) = hosts.workers[CLIENT].parts();
        sockets.is_delivering(net, client)
    };
    let (sockets, net) = hosts.workers[CLIENT].parts();
    sockets.send(net, client, b"x", false).unwrap();
    sockets.close(net, client);
    assert!(is_delivering(&mut hosts));
    without_server(&mut hosts, 1);
    assert!(is_delivering(&mut hosts));
    hosts.run();
    without_server(&mut hosts, 1);
    hosts.run();
    assert!(!is_delivering(&mut hosts));
}

#[test]
fn corked_bytes_wait_for_a_full_segment_the_end_of_the_cork_or_200_ms() {
    let mut hosts = Hosts::new();
    let (client, server) = hosts.pair();
    let received = |hosts: &mut Hosts| hosts.recv(SERVER, server, 10_000, false).map_or(0, |bytes| bytes.len());
    let cork = |hosts: &mut Hosts, corked| {
        let (sockets, net) = hosts.workers[CLIENT].parts();
        sockets.set_corked(client, corked);
        sockets.apply_limits(net, client);
        hosts.run();
    };
    hosts.send_part(CLIENT, client, b"ab", true).unwrap();
    assert_eq!(received(&mut hosts), 0);
    hosts.send(CLIENT, client, b"c").unwrap();
    assert_eq!(received(&mut hosts), 3);
    cork(&mut hosts, true);
    hosts.send(CLIENT, client, &[0; 3000]).unwrap();
    let full = received(&mut hosts);
    assert!((2500..3000).contains(&full), "{full}");
    cork(&mut hosts, false);
    assert_eq!(received(&mut hosts), 3000 - full);
    cork(&mut hosts, true);
    for _ in 0..2 {
        hosts.send(CLIENT, client, b"x").unwrap();
        (0..75).for_each(|_| hosts.run());
        assert_eq!(received(&mut hosts), 0, "after 150 ms");
        (0..50).for_each(|_| hosts.run());
        assert_eq!(received(&mut hosts), 1, "after 250 ms");
    }
    hosts.send(CLIENT, client, b"x").unwrap();
    hosts.close(CLIENT, client);
    assert_eq!(received(&mut hosts), 1);
}
