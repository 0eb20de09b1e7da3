//! The four small services that every transport must support, over the stack: the same sources run over kernel sockets.

#[path = "../../../kernel/tests/services/mod.rs"]
mod kinds;

use crate::common::client::Client;
use crate::common::{Net, SERVER, host, server};
use kinds::{Chargen, Deferred, Echo, Proxy, UdpEcho, assert_pattern, pattern};
use linerate_bypass::memory_nic::{Impairments, Link, LinkConfig};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Datagram, Origin, Service, Transport};
use linerate_stack::{Config, Mailboxes, Worker};
use std::net::SocketAddr;

const MINUTE: Duration = Duration::from_secs(60);

/// Client that reads the output of a chargen.
#[derive(Default)]
struct Reader {
    to: Option<SocketAddr>,
    received: u64,
    /// Number of bytes after which it stops reading.
    until: Option<u64>,
    ended: bool,
    closed: Option<CloseReason>,
}

impl Service for Reader {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(self.to.unwrap(), 0);
    }

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        while self.until.is_none_or(|until| self.received < until) {
            let Some(bytes) = net.take(conn, usize::MAX) else { break };
            assert_pattern(&bytes, self.received);
            self.received += bytes.len() as u64;
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.ended = true;
        net.close(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// Service that answers some readable connections in `burst` and the others in `readable`.
#[derive(Default)]
struct BurstService {
    together: usize,
    alone: usize,
}

impl Service for BurstService {
    type Conn = ();
    type Message = ();

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        let some = readable.len().div_ceil(2);
        readable[..some].iter().for_each(|conn| assert_eq!(net.forward(*conn, *conn), 64));
        self.together += some;
        some
    }

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        assert_eq!(net.forward(conn, conn), 64, "served in `burst` before");
        self.alone += 1;
    }
}

/// Client with eight connections, each of which repeats its request when answered.
#[derive(Default)]
struct RepeatingClient {
    answered: usize,
}

impl Service for RepeatingClient {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        (0..8).for_each(|n| net.connect(address("10.0.0.2:7"), n));
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        assert_eq!(net.write(conn, &[1; 64]), 64);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        let received = net.received(conn);
        net.consume(conn, received);
        self.answered += received / 64;
        if self.answered < 1000 {
            assert_eq!(net.write(conn, &[1; 64]), 64);
        }
    }
}

#[test]
fn connections_served_in_burst_get_no_readable() {
    let mut net = Net::new(LinkConfig::default(), RepeatingClient::default, BurstService::default);
    net.expect("1000 answers", MINUTE, |net| net.a.service().answered >= 1000);
    net.expect("remaining answers", MINUTE, |net| {
        let BurstService { together, alone } = net.b.service();
        together + alone == net.a.service().answered
    });
    let BurstService { together, alone } = *net.b.service();
    assert!(together > 500 && alone > 0, "{together} in bursts, {alone} alone");
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn chargen_stream_is_exact() {
    let reader = || Reader { to: Some(address("10.0.0.2:7")), ..Reader::default() };
    let mut net = Net::new(LinkConfig::default(), reader, || Chargen::new(5_000_000));
    net.expect("the connection closed", MINUTE, |net| net.a.service().closed.is_some());
    let Reader { received, ended, closed, .. } = *net.a.service();
    assert_eq!((received, ended, closed), (5_000_000, true, Some(CloseReason::Finished)));
    assert_eq!(net.b.service().sent, 5_000_000);
}

#[test]
fn receive_window_grows_with_path_and_service() {
    // RTT of 20 ms end to end: the initial window would carry 3 MB in a second.
    let far = Impairments { delay: Duration::from_millis(10), ..Impairments::default() };
    let link = LinkConfig { impairments: far, ring: 8192, pool: 16_384, ..LinkConfig::default() };
    let reader = || Reader { to: Some(address("10.0.0.2:7")), ..Reader::default() };
    let buffers = |config| Config { rx_buffer: Some(4 << 20), tx_buffer: Some(4 << 20), ..config };
    let mut net = Net::with(link, 1, &buffers(host(1)), reader, &buffers(server()), || Chargen::new(20_000_000));
    net.expect("all data", Duration::from_secs(1), |net| net.a.service().received == 20_000_000);
}

/// Size of a send or receive buffer in bytes.
const BUFFER: usize = 64 << 10;

#[test]
fn chargen_to_stalled_peer_is_bounded_by_buffers() {
    let reader = || Reader { to: Some(address("10.0.0.2:7")), until: Some(200_000), ..Reader::default() };
    let (a, b) = (Config { rx_buffer: Some(BUFFER), ..host(1) }, Config { tx_buffer: Some(BUFFER), ..server() });
    let mut net = Net::with(LinkConfig::default(), 1, &a, reader, &b, || Chargen::new(u64::MAX));
    net.run_until(MINUTE, |_| false);
    let (sent, received) = (net.b.service().sent, net.a.service().received);
    let buffers = 2 * BUFFER as u64;
    assert!(received >= 200_000 && sent <= received + buffers, "{sent} sent, {received} read");
    assert!(net.b.service().held_back > 0);
}

#[test]
fn proxy_forwards_data_and_close_in_both_directions() {
    // Client and upstream share host 1. The client connects to the proxy on host 2, which connects to the upstream.
    struct Both {
        client: Client,
        echo: Echo,
    }
    impl Service for Both {
        type Conn = bool;
        type Message = ();
        fn start(&mut self, net: &mut impl Transport) {
            self.client.start(net);
        }
        fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> bool {
            let is_client = origin != Origin::Accepted;
            if is_client {
                self.client.opened(net, conn, origin);
            }
            is_client
        }
        fn readable(&mut self, net: &mut impl Transport, conn: ConnId, is_client: &mut bool) {
            if *is_client { self.client.readable(net, conn, &mut ()) } else { self.echo.readable(net, conn, &mut ()) }
        }
        fn writable(&mut self, net: &mut impl Transport, conn: ConnId, is_client: &mut bool) {
            if *is_client { self.client.writable(net, conn, &mut ()) } else { self.echo.writable(net, conn, &mut ()) }
        }
        fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, is_client: &mut bool) {
            if *is_client {
                self.client.peer_closed(net, conn, &mut ())
            } else {
                self.echo.peer_closed(net, conn, &mut ())
            }
        }
        fn closed(&mut self, net: &mut impl Transport, conn: ConnId, is_client: bool, reason: CloseReason) {
            if is_client { self.client.closed(net, conn, (), reason) } else { self.echo.closed(net, conn, (), reason) }
        }
    }
    let a = Config { listen: vec![address("10.0.0.1:9")], ..host(1) };
    let both = || Both { client: Client::new(SERVER, 20, 100_000), echo: Echo::default() };
    let proxy = || Proxy::new(address("10.0.0.1:9"));
    let mut net = Net::with(LinkConfig::default(), 1, &a, both, &server(), proxy);
    net.expect("every connection closed", MINUTE, |net| net.a.service().client.all_finished());
    net.a.service().client.assert_exact();
    net.expect("proxy connections closed", MINUTE, |net| net.b.service().closed.len() == 40);
    assert_eq!(net.b.service().closed, [CloseReason::Finished; 40]);
}

#[test]
fn proxy_with_closed_upstream_resets_client() {
    let proxy = || Proxy::new(address("10.0.0.1:9"));
    let mut net = Net::new(LinkConfig::default(), || Client::new(SERVER, 1, 100), proxy);
    net.expect("the connection closed", MINUTE, |net| net.a.service().all_finished());
    assert_eq!(net.a.service().outcomes[0].closed, Some(CloseReason::Reset));
    assert_eq!(net.b.service().failed, [ConnectError::Refused]);
}

#[test]
fn replies_of_another_thread_are_sent() {
    let (a, b) = Link::pair(LinkConfig::default());
    let link = a.link().clone();
    let (service, orders) = Deferred::new();
    let mailboxes = Mailboxes::for_workers(1).pop().unwrap();
    let app_sender = mailboxes.app_sender();
    let answering = std::thread::spawn(move || Deferred::answer(orders, app_sender));
    let mut target: Worker<_, _> = Worker::new(&server(), mailboxes, b, |_| service, Instant::ZERO);
    let mut source = crate::common::Host::new(&host(1), vec![a], || {
        Client::new(SERVER, 20, 20_000).closing(crate::common::client::Close::WhenBack)
    });
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    // The other thread runs in real time; only the rest is bounded in virtual time.
    while source.service().outcomes.iter().any(|outcome| outcome.received < 20_000) {
        assert!(std::time::Instant::now() < deadline, "{:?}", source.service().outcomes);
        link.clock().advance(Duration::from_micros(10));
        source.workers[0].turn(link.clock().now());
        target.turn(link.clock().now());
    }
    assert!(source.service().outcomes.iter().all(|outcome| !outcome.mismatch));
    drop(target);
    answering.join().unwrap();
}

/// Client that sends datagrams of several sizes, each after the previous echo, and keeps the echoes.
#[derive(Default)]
struct DatagramClient {
    back: Vec<Datagram>,
}

const SIZES: [usize; 6] = [0, 1, 100, 1472, 1473, 9000];

impl DatagramClient {
    fn send_next(&mut self, net: &mut impl Transport) {
        // The stack does not fragment UDP over IPv6.
        let four = SIZES.map(|size| ("10.0.0.1:4000", "10.0.0.2:7", size));
        let six = SIZES[..3].iter().map(|&size| ("[fd00::1]:4000", "[fd00::2]:7", size));
        if let Some((local, remote, size)) = four.into_iter().chain(six).nth(self.back.len()) {
            let payload = Bytes::from((0..size as u64).map(pattern).collect::<Vec<_>>());
            net.send_datagram(Datagram { local: address(local), remote: address(remote), payload }).unwrap();
        }
    }
}

impl Service for DatagramClient {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        self.send_next(net);
    }

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        self.back.push(datagram);
        self.send_next(net);
    }
}

#[test]
fn datagram_echo_has_addressed_source() {
    let listen_udp = vec![address("0.0.0.0:4000"), address("[::]:4000")];
    let a = Config { listen_udp, fragments: true, ..host(1) };
    let b = Config { fragments: true, ..server() };
    let mut net = Net::with(LinkConfig::default(), 1, &a, DatagramClient::default, &b, UdpEcho::default);
    net.run_until(Duration::from_secs(5), |net| net.a.service().back.len() == 9);
    let back: Vec<_> = net.a.service().back.iter().map(|d| (d.local, d.remote, d.payload.len())).collect();
    let expected = |local, remote, sizes: &[usize]| {
        sizes.iter().map(|&size| (address(local), address(remote), size)).collect::<Vec<_>>()
    };
    let four = expected("10.0.0.1:4000", "10.0.0.2:7", &SIZES);
    let six = expected("[fd00::1]:4000", "[fd00::2]:7", &SIZES[..3]);
    assert_eq!(back, [four, six].concat());
    assert!(net.a.service().back.iter().all(|d| d.payload.iter().zip(0..).all(|(&byte, at)| byte == pattern(at))));
    // An unknown local address is refused, and so is a pair of addresses of different families.
    let datagram = Datagram { local: address("10.0.0.1:4001"), remote: address("10.0.0.2:7"), payload: Bytes::new() };
    struct Refused(Option<Datagram>);
    impl Service for Refused {
        type Conn = ();
        type Message = ();
        fn start(&mut self, net: &mut impl Transport) {
            let datagram = self.0.take().unwrap();
            self.0 = Some(net.send_datagram(datagram).unwrap_err());
        }
        fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
    }
    let (nic, _peer) = Link::pair(LinkConfig::default());
    let refused = crate::common::Host::new(&a, vec![nic], || Refused(Some(datagram.clone())));
    assert_eq!(refused.service().0, Some(datagram));
}
