//! Establishment, close and failure of connections, and their isolation from each other.

use crate::common::client::{Client, Close};
use crate::common::services::Echo;
use crate::common::{Host, Net, SERVER, SERVER6, host, server};
use linerate_bypass::memory_nic::{DropIf, End, Impairments, Link, LinkConfig, MemoryNic};
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use linerate_stack::{Config, Engine, Mailboxes, Worker};
use smoltcp::wire::{TcpControl, TcpRepr, TcpSeqNumber};
use std::net::IpAddr;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

with_all_engine_pairs! {
    connection_to_closed_port_is_refused,
    stopped_listener_refuses_and_keeps_connections,
    listener_accepts_only_on_its_address,
    absent_neighbor_and_missing_route_are_unreachable,
    off_link_packets_go_to_gateway,
    connection_to_silent_host_times_out,
    half_closed_connection_is_answered_completely,
    vanished_peer_times_out,
    link_outage_shorter_than_timeouts_loses_nothing,
    stalled_peer_does_not_block_others,
    port_in_time_wait_can_connect_again,
    connection_limit_drops_and_counts_syns,
    syn_flood_does_not_exclude_client,
    all_packets_are_free_after_close,
    segment_without_connection_is_reset,
    restarted_peer_reconnects_from_same_ports,
}

type Both<A, B> = Net<Client, Echo, A, B>;

fn client_with<A: Engine<MemoryNic>, B: Engine<MemoryNic>>(
    to: &str,
    a: &Config,
    b: &Config,
    limit: Duration,
) -> Both<A, B> {
    let mut net = Both::start_with(LinkConfig::default(), 1, a, || Client::new(to, 1, 1000), b, Echo::default);
    net.expect("the connection closed", limit, |net| net.a.service().all_finished());
    net
}

fn failure<A: Engine<MemoryNic>, B: Engine<MemoryNic>>(net: &Both<A, B>) -> Option<ConnectError> {
    net.a.service().outcomes[0].failed
}

fn connection_to_closed_port_is_refused<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for to in [SERVER, SERVER6] {
        let closed = Config { listen: vec!["10.0.0.2:8".parse().unwrap()], ..server() };
        assert_eq!(failure(&client_with::<A, B>(to, &host(1), &closed, SECOND)), Some(ConnectError::Refused));
    }
}

fn stopped_listener_refuses_and_keeps_connections<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let client = || Client::new(SERVER, 3, 300_000).closing(Close::WhenBack);
    let mut net = Both::<A, B>::start(LinkConfig::default(), client, Echo::default);
    net.expect("some bytes back", MINUTE, |net| net.a.service().outcomes.iter().all(|it| it.received > 1000));
    net.b.workers[0].stop_listening();
    net.expect("every connection closed", MINUTE, |net| net.a.service().all_finished());
    net.a.service().assert_exact();
    // A restarted client.
    let nic = net.a.workers.remove(0).into_nic();
    net.a = Host::start(&host(1), vec![nic], || Client::new(SERVER, 1, 1000));
    net.expect("an answer", SECOND, |net| net.a.service().all_finished());
    assert_eq!(failure(&net), Some(ConnectError::Refused));
    assert_eq!(net.b.workers[0].summary().accepted, 3);
}

fn listener_accepts_only_on_its_address<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let one = Config { listen: vec!["10.0.0.2:7".parse().unwrap()], ..server() };
    client_with::<A, B>(SERVER, &host(1), &one, SECOND).a.service().assert_exact();
    assert_eq!(failure(&client_with::<A, B>(SERVER6, &host(1), &one, SECOND)), Some(ConnectError::Refused));
}

fn absent_neighbor_and_missing_route_are_unreachable<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for (to, limit) in [("10.0.0.9", 4 * SECOND), ("fd00::9", 4 * SECOND), ("192.0.2.1", SECOND)] {
        assert_eq!(
            failure(&client_with::<A, B>(to, &host(1), &server(), limit)),
            Some(ConnectError::Unreachable),
            "{to}"
        );
    }
    let four = Config { addresses: vec!["10.0.0.1/24".parse().unwrap()], ..host(1) };
    assert_eq!(failure(&client_with::<A, B>(SERVER6, &four, &server(), SECOND)), Some(ConnectError::Unreachable));
}

fn off_link_packets_go_to_gateway<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    // Host 2 owns an address that host 1 reaches through it.
    let a = Config { gateways: vec!["10.0.0.2".parse().unwrap()], ..host(1) };
    let mut b = server();
    b.addresses.push("192.0.2.1/32".parse().unwrap());
    client_with::<A, B>("192.0.2.1", &a, &b, MINUTE).a.service().assert_exact();
}

fn connection_to_silent_host_times_out<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Both::<A, B>::start(LinkConfig::default(), || Client::new(SERVER, 1, 1), Echo::default);
    // The host answers ARP only.
    let drop_if = Some(DropIf::new(|frame| frame[12..14] == [8, 0]));
    net.link.impair(End::B, Impairments { drop_if, ..Impairments::default() });
    net.expect("the connection closed", MINUTE, |net| net.a.service().all_finished());
    assert_eq!(failure(&net), Some(ConnectError::TimedOut));
}

fn half_closed_connection_is_answered_completely<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    // The client closes before it has received anything.
    let mut net = Both::<A, B>::start(LinkConfig::default(), || Client::new(SERVER, 10, 300_000), Echo::default);
    net.expect("every connection closed", MINUTE, |net| net.a.service().all_finished());
    net.a.service().assert_exact();
    net.expect("server closed", MINUTE, |net| net.b.service().closed.len() == 10);
    assert_eq!(net.b.service().closed, [CloseReason::Finished; 10]);
}

fn vanished_peer_times_out<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Both::<A, B>::start(LinkConfig::default(), || Client::new(SERVER, 1, 10_000_000), Echo::default);
    net.expect("some bytes back", MINUTE, |net| net.a.service().outcomes[0].received > 100_000);
    net.link.set_up(false);
    net.expect("the connection closed", 10 * MINUTE, |net| net.a.service().all_finished());
    assert_eq!(net.a.service().outcomes[0].closed, Some(CloseReason::TimedOut));
    net.expect("server closed", 10 * MINUTE, |net| !net.b.service().closed.is_empty());
    assert_eq!(net.b.service().closed, [CloseReason::TimedOut]);
}

fn link_outage_shorter_than_timeouts_loses_nothing<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Both::<A, B>::start(LinkConfig::default(), || Client::new(SERVER, 3, 1_000_000), Echo::default);
    net.expect("some bytes back", MINUTE, |net| net.a.service().outcomes[0].received > 100_000);
    net.link.set_up(false);
    net.run_until(20 * SECOND, |_| false);
    net.link.set_up(true);
    net.expect("every connection closed", 10 * MINUTE, |net| net.a.service().all_finished());
    net.a.service().assert_exact();
}

fn stalled_peer_does_not_block_others<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    // The server does not read on port 8. Its receive buffer and the client's send buffer bound the data sent there.
    let both = Config {
        listen: vec!["0.0.0.0:7".parse().unwrap(), "0.0.0.0:8".parse().unwrap()],
        rx_buffer: Some(BUFFER),
        ..server()
    };
    /// Size of a send or receive buffer in bytes.
    const BUFFER: usize = 64 << 10;
    struct PartialEcho(Echo);
    impl Service for PartialEcho {
        type Conn = ();
        type Message = std::convert::Infallible;
        fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) {
            self.0.opened(net, conn, origin);
        }
        fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ()) {
            if net.local_addr(conn).is_some_and(|local| local.port() == 7) {
                self.0.readable(net, conn, state);
            }
        }
        fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ()) {
            self.0.writable(net, conn, state);
        }
        fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ()) {
            self.0.peer_closed(net, conn, state);
        }
    }
    let (a, b) = Link::pair(LinkConfig::default());
    let link = a.link().clone();
    let mut target = Host::<_, B>::start(&both, vec![b], || PartialEcho(Echo::default()));
    let mut client = Client::new(SERVER, 2, 1_000_000);
    let stuck = std::net::SocketAddr::new(client.to.ip(), 8);
    client.second = Some(stuck);
    let mut client = Some(client);
    let mut source =
        Host::<_, A>::start(&Config { tx_buffer: Some(BUFFER), ..host(1) }, vec![a], || client.take().unwrap());
    for _ in 0..20_000 {
        link.clock().advance(Duration::from_millis(1));
        source.workers[0].turn(link.clock().now());
        target.workers[0].turn(link.clock().now());
    }
    let [good, stuck] = &source.service().outcomes[..] else { panic!() };
    assert_eq!((good.received, good.closed), (1_000_000, Some(CloseReason::Finished)));
    assert_eq!((stuck.received, stuck.closed), (0, None));
    assert!((BUFFER..=2 * BUFFER).contains(&stuck.sent), "{}", stuck.sent);
}

fn port_in_time_wait_can_connect_again<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Both::<A, B>::start(LinkConfig::default(), || Client::new(SERVER, 300, 10), Echo::default);
    net.expect("every connection closed", MINUTE, |net| net.a.service().all_finished());
    net.a.service().assert_exact();
    net.run_until(2 * SECOND, |_| false);
    let summary = net.b.workers[0].summary();
    assert_eq!((summary.accepted, summary.finished, summary.broken), (300, 300, 0));
}

fn connection_limit_drops_and_counts_syns<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let small = Config { max_connections: 5, ..server() };
    let client = || Client::new(SERVER, 8, 100).closing(Close::Never);
    let mut net = Both::<A, B>::start_with(LinkConfig::default(), 1, &host(1), client, &small, Echo::default);
    net.run_until(30 * SECOND, |_| false);
    assert_eq!(net.b.service().open, 5);
    assert!(net.b.drops("too many connections") >= 3);
    assert_eq!(net.a.service().outcomes.iter().filter(|o| o.failed == Some(ConnectError::TimedOut)).count(), 3);
}

fn syn_flood_does_not_exclude_client<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let flooded = Config { max_half_open: 64, half_open_timeout: 3 * SECOND, ..server() };
    let (mut nic, server_nic) = Link::pair(LinkConfig::default());
    let link = nic.link().clone();
    let mut target = Host::<_, B>::start(&flooded, vec![server_nic], Echo::default);
    let syn = TcpRepr { control: TcpControl::Syn, window_len: 1000, ..crate::common::frames::segment() };
    let mut sent = 0;
    for n in 0..1000u16 {
        let from = std::net::SocketAddr::from(([10, 0, 0, 100], 1000 + n));
        let bytes = crate::common::frames::tcp(
            [2, 0, 0, 0, 0, 9],
            [2, 0, 0, 0, 0, 2],
            from,
            "10.0.0.2:7".parse().unwrap(),
            syn,
        );
        let mut frame = nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(&bytes);
        sent += nic.tx_burst(&mut vec![frame]);
        target.workers[0].turn(link.clock().now());
        while nic.rx_burst(&mut Vec::with_capacity(32)) > 0 {}
    }
    assert_eq!(sent, 1000);
    assert_eq!(target.drops("too many half-open connections"), 1000 - 64);
    assert_eq!(target.workers[0].summary().accepted, 0);
    // After they time out, a new connection is accepted.
    for _ in 0..5 {
        link.clock().advance(SECOND);
        target.workers[0].turn(link.clock().now());
    }
    let mut client = Host::<_, A>::start(&host(1), vec![nic], || Client::new(SERVER, 1, 1000));
    for _ in 0..1000 {
        link.clock().advance(Duration::from_millis(1));
        client.workers[0].turn(link.clock().now());
        target.workers[0].turn(link.clock().now());
    }
    client.service().assert_exact();
}

fn all_packets_are_free_after_close<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let config = LinkConfig { pool: 300, ring: 64, ..LinkConfig::default() };
    let mut net = Both::<A, B>::start(config, || Client::new(SERVER, 40, 50_000), Echo::default);
    net.expect("every connection closed", 10 * MINUTE, |net| net.a.service().all_finished());
    net.a.service().assert_exact();
    net.run_until(SECOND, |_| false);
    // A worker with connections reserves packets for control segments.
    let nics = [net.a.workers.remove(0).into_nic(), net.b.workers.remove(0).into_nic()];
    assert_eq!(nics.map(|nic| nic.pool_available()), [300, 300]);
}

#[expect(clippy::extra_unused_type_parameters, reason = "every test is generic over the engines of both ends")]
fn segment_without_connection_is_reset<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let (mut nic, server_nic) = Link::pair(LinkConfig::default());
    let mut target = Host::<_, B>::start(&server(), vec![server_nic], Echo::default);
    let from = "10.0.0.1:1234".parse().unwrap();
    let to = "10.0.0.2:7".parse().unwrap();
    let base = TcpRepr { seq_number: TcpSeqNumber(100), payload: b"abc", ..crate::common::frames::segment() };
    let with_ack = TcpRepr { ack_number: Some(TcpSeqNumber(777)), ..base };
    let reset = TcpRepr { control: TcpControl::Rst, ..with_ack };
    let mut exchange = |segment| {
        let bytes = crate::common::frames::tcp([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], from, to, segment);
        let mut frame = nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(&bytes);
        nic.tx_burst(&mut vec![frame]);
        target.workers[0].turn(Instant::ZERO);
        target.workers[0].turn(Instant::ZERO);
        let mut frames = Vec::with_capacity(32);
        nic.rx_burst(&mut frames);
        frames.iter().map(|frame| frame.data().to_vec()).collect::<Vec<_>>()
    };
    // The server does not know the client's Ethernet address yet and sends an ARP request first (RFC 826, then RFC 9293
    // §3.10.7.1).
    assert_eq!(exchange(with_ack)[0][12..14], [8, 6]);
    assert!(exchange(reset).is_empty());
}

fn restarted_peer_reconnects_from_same_ports<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let (a, b) = Link::pair(LinkConfig::default());
    let link = a.link().clone();
    let mut target = Host::<_, B>::start(&server(), vec![b], Echo::default);
    let mut client = Host::<_, A>::start(&host(1), vec![a], || Client::new(SERVER, 5, 1000).closing(Close::Never));
    for _ in 0..100 {
        link.clock().advance(Duration::from_millis(1));
        client.workers[0].turn(link.clock().now());
        target.workers[0].turn(link.clock().now());
    }
    assert_eq!(target.service().open, 5);
    // The client disappears and returns with the same addresses and the same first port.
    let nic = client.workers.pop().unwrap().into_nic();
    let mut client = Host::<_, A>::start(&host(1), vec![nic], || Client::new(SERVER, 5, 1000));
    for _ in 0..5000 {
        link.clock().advance(Duration::from_millis(1));
        client.workers[0].turn(link.clock().now());
        target.workers[0].turn(link.clock().now());
    }
    client.service().assert_exact();
}

/// Client that opens a connection, sends a byte, closes when it returns, and opens the next.
#[derive(Default)]
struct Reconnector {
    done: usize,
    failed: Vec<ConnectError>,
}

impl Service for Reconnector {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        net.connect((SERVER.parse::<IpAddr>().unwrap(), 7).into(), 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        assert_eq!(net.write(conn, b"x"), 1);
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        self.failed.push(error);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.consume(conn, 1);
        net.close(conn);
    }

    fn closed(&mut self, net: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        assert_eq!(reason, CloseReason::Finished);
        self.done += 1;
        self.start(net);
    }
}

#[test]
fn ports_in_time_wait_are_reused() {
    // One of 256 workers has 252 ports.
    const WORKERS: usize = 256;
    const PORTS: usize = (65_536 - 1024) / WORKERS;
    let (a, b) = Link::pair(LinkConfig::default());
    let clock = a.link().clock().clone();
    let mut mailboxes = Mailboxes::for_workers(WORKERS);
    let mut client: Worker<_, _> =
        Worker::new(&host(1), mailboxes.remove(0), a, |_| Reconnector::default(), Instant::ZERO);
    let mut target = Host::new(&server(), vec![b], Echo::default);
    let mut turns = 0;
    while client.service().done < 3 * PORTS {
        clock.advance(Duration::from_millis(1));
        client.turn(clock.now());
        target.workers[0].turn(clock.now());
        turns += 1;
        assert!(turns < 100_000 && client.service().failed.is_empty(), "{:?}", client.service().failed);
    }
    let summary = target.workers[0].summary();
    assert!(summary.accepted >= 3 * PORTS as u64 && summary.broken == 0, "{summary:?}");
    // Well before the first TIME-WAIT record would expire.
    assert!(turns < 60_000, "{turns}");
}

/// Client that closes its first connection, and opens two more from a timer of the second, the first of them to an
/// absent host.
#[derive(Default)]
struct Opener {
    failed: Vec<(u64, ConnectError)>,
}

impl Service for Opener {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        for token in 0..2 {
            net.connect((SERVER.parse::<IpAddr>().unwrap(), 7).into(), token);
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) {
        match origin {
            Origin::Connected(0) => net.close(conn),
            _ => net.set_timer(conn, Some(SECOND)),
        }
    }

    fn timer(&mut self, net: &mut impl Transport, _: ConnId, (): &mut ()) {
        net.connect("10.0.0.99:7".parse().unwrap(), 2);
        net.connect((SERVER.parse::<IpAddr>().unwrap(), 7).into(), 3);
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        self.failed.push((token, error));
    }
}

#[test]
fn connection_beyond_the_limit_keeps_time_wait() {
    let limited = Config { max_connections: 2, outgoing_ports: 1024..=1025, ..host(1) };
    let mut net = Net::with(LinkConfig::default(), 1, &limited, Opener::default, &server(), Echo::default);
    net.expect("a failure", 10 * SECOND, |net| !net.a.service().failed.is_empty());
    assert_eq!(net.a.service().failed, [(3, ConnectError::TooMany)]);
    assert_eq!(net.a.workers[0].engine().time_wait(), 1);
}
