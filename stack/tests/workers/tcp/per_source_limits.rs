//! Per-source connection limits.

use crate::common::client::{Client, Close, Outcome};
use crate::common::services::Echo;
use crate::common::{HOST_MAC, Host, Net, SERVER, SERVER6, frames, host, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Engine};
use proptest::prelude::*;
use smoltcp::wire::{ArpOperation, Ipv4Packet, Ipv6Packet, NdiscRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};
use std::net::SocketAddr;

const MINUTE: Duration = Duration::from_secs(60);
const ROUTER: [u8; 6] = [2, 1, 0, 0, 0, 1];
const HALF_OPEN: &str = "too many half-open connections of one source";
const TOO_MANY: &str = "too many connections of one source";

with_each_engine! {
    source_limit_allows_new_connections_after_close,
}

fn source_limit_allows_new_connections_after_close<A, B>()
where
    A: Engine<MemoryNic>,
    B: Engine<MemoryNic>,
{
    for to in [SERVER, SERVER6] {
        let config = Config { max_connections_per_source: Some(3), ..server() };
        let client = || Client::new(to, 5, 1000).closing(Close::Never);
        let link = LinkConfig::default();
        let mut net: Net<_, _, A, B> = Net::start_with(link.clone(), 1, &host(1), client, &config, Echo::default);
        // A client that acknowledges a SYN cookie considers the connection open until it is reset.
        let failed = |net: &Net<Client, Echo, A, B>| {
            let is_over = |outcome: &&Outcome| outcome.failed.is_some() || outcome.closed.is_some();
            net.a.service().outcomes.iter().filter(is_over).count()
        };
        net.expect("two failures", MINUTE, |net| failed(net) == 2);
        assert_eq!((net.b.service().open, net.b.workers[0].summary().accepted), (3, 3));
        assert!(net.a.service().outcomes.iter().filter(|outcome| outcome.received == 1000).count() == 3);
        assert!(net.b.drops(TOO_MANY) + net.b.drops(HALF_OPEN) >= 2);

        // Two at a time, as earlier connections close.
        let config = Config { max_connections_per_source: Some(2), ..server() };
        let client = || Client::new(to, 20, 1000).closing(Close::WhenBack);
        let mut net: Net<_, _, A, B> = Net::start_with(link, 1, &host(1), client, &config, Echo::default);
        let patient = |net: &mut Net<Client, Echo, A, B>| net.a.service().all_finished();
        net.expect("every connection closed", MINUTE, patient);
        let accepted = net.b.workers[0].summary().accepted;
        assert!(accepted >= 2 && net.b.service().open == 0, "{accepted}");
        let nic = net.a.workers.pop().unwrap().into_nic();
        net.a = Host::start(&host(1), vec![nic], || Client::new(to, 2, 1000).closing(Close::WhenBack));
        net.expect("two more connections", MINUTE, |net| net.a.service().all_finished());
        net.a.service().assert_exact();
        assert_eq!(net.b.workers[0].summary().accepted, accepted + 2);
    }
}

/// Link with a router at one end, behind which the sources are, and a server at the other.
struct Bench {
    nic: MemoryNic,
    host: Host<Echo>,
    now: Instant,
}

impl Bench {
    fn new(config: &Config) -> Self {
        let (nic, other) = Link::pair(LinkConfig::default());
        let config =
            Config { gateways: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()], ..config.clone() };
        let mut bench = Bench { nic, host: Host::new(&config, vec![other], Echo::default), now: Instant::ZERO };
        let target = ([0xff; 6], [10, 0, 0, 2].into());
        bench.send_and_receive(&frames::arp(ArpOperation::Request, (ROUTER, [10, 0, 0, 1].into()), target));
        // RFC 4861 §4.3: a solicitation with the router's link-layer address.
        let (from, to) = ("fd00::1".parse().unwrap(), SERVER6.parse().unwrap());
        let lladdr = Some(frames::link_layer(ROUTER));
        let solicitation = NdiscRepr::NeighborSolicit { target_addr: to, lladdr };
        bench.send_and_receive(&frames::ndisc(ROUTER, HOST_MAC, from, to, solicitation));
        bench
    }

    /// Sends a frame to the server and returns the TCP segments of its replies.
    fn send_and_receive(&mut self, bytes: &[u8]) -> Vec<TcpRepr<'static>> {
        let mut frame = self.nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
        assert_eq!(self.nic.tx_burst(&mut vec![frame]), 1);
        self.host.workers[0].turn(self.now);
        self.host.workers[0].engine().assert_consistent();
        let mut frames = Vec::with_capacity(32);
        self.nic.rx_burst(&mut frames);
        frames.iter().filter_map(|frame| read(frame.data())).collect()
    }

    /// Sends a SYN from `from` and returns the reply.
    fn syn(&mut self, from: &str) -> Option<TcpRepr<'static>> {
        let syn = TcpRepr { control: TcpControl::Syn, seq_number: TcpSeqNumber(100), ..frames::segment() };
        self.segment(from, syn)
    }

    /// Sends the final ACK of the handshake from `from` for the SYN-ACK `answer`.
    fn complete_handshake(&mut self, from: &str, answer: &TcpRepr) -> Option<TcpRepr<'static>> {
        let ack =
            TcpRepr { seq_number: TcpSeqNumber(101), ack_number: Some(answer.seq_number + 1), ..frames::segment() };
        self.segment(from, ack)
    }

    fn segment(&mut self, from: &str, segment: TcpRepr) -> Option<TcpRepr<'static>> {
        let from: SocketAddr = from.parse().unwrap();
        let to = if from.is_ipv4() { "10.0.0.2:7" } else { "[fd00::2]:7" }.parse().unwrap();
        self.send_and_receive(&frames::tcp(ROUTER, HOST_MAC, from, to, segment)).pop()
    }

    fn opens(&mut self, from: &str) -> bool {
        let Some(answer) = self.syn(from) else { return false };
        assert_eq!(answer.control, TcpControl::Syn);
        self.complete_handshake(from, &answer).is_none_or(|reply| reply.control != TcpControl::Rst)
    }

    fn half_open(&self) -> usize {
        self.host.workers[0].engine().half_open()
    }
}

/// Parses the TCP segment of a frame, without options.
fn read(frame: &[u8]) -> Option<TcpRepr<'static>> {
    let bytes = match frame[12..14] {
        [8, 0] if frame[23] == 6 => Ipv4Packet::new_checked(&frame[14..]).unwrap().payload().to_vec(),
        [0x86, 0xdd] if frame[20] == 6 => Ipv6Packet::new_checked(&frame[14..]).unwrap().payload().to_vec(),
        _ => return None,
    };
    let tcp = TcpPacket::new_checked(&bytes[..]).unwrap();
    let control = match (tcp.syn(), tcp.rst()) {
        (true, _) => TcpControl::Syn,
        (_, true) => TcpControl::Rst,
        _ => TcpControl::None,
    };
    Some(TcpRepr { control, seq_number: tcp.seq_number(), ack_number: Some(tcp.ack_number()), ..frames::segment() })
}

#[test]
fn half_open_limit_of_source_sends_cookies_to_that_source_only() {
    for (prefix, other) in [("192.0.2.1", "192.0.2.2:1"), ("[2001:db8::1]", "[2001:db8:0:1::1]:1")] {
        let mut bench = Bench::new(&Config { max_half_open_per_source: Some(2), ..server() });
        let answers: Vec<_> = (1..=5).map(|port| bench.syn(&format!("{prefix}:{port}")).expect("a SYN-ACK")).collect();
        assert_eq!((bench.half_open(), bench.host.drops(HALF_OPEN)), (2, 3));
        bench.syn(other).expect("a SYN-ACK");
        assert_eq!((bench.half_open(), bench.host.drops(HALF_OPEN)), (3, 3));
        // Every handshake completes, with a cookie or with half-open state.
        for (port, answer) in (1..=5).zip(&answers) {
            assert_eq!(bench.complete_handshake(&format!("{prefix}:{port}"), answer), None);
        }
        assert_eq!((bench.half_open(), bench.host.workers[0].summary().accepted), (1, 5));
        // Half-open slots are free again.
        bench.syn(&format!("{prefix}:6")).expect("a SYN-ACK");
        assert_eq!((bench.half_open(), bench.host.drops(HALF_OPEN)), (2, 3));
    }
}

#[test]
fn source_at_connection_limit_gets_no_reply() {
    // Addresses of one IPv6 /64 are one source; IPv4 addresses are separate sources.
    for (own, same, other) in [
        ("192.0.2.1:1", "192.0.2.1:9", "192.0.2.2:1"),
        ("[2001:db8::1]:1", "[2001:db8::ff:1]:1", "[2001:db8:0:1::1]:1"),
    ] {
        let mut bench = Bench::new(&Config { max_connections_per_source: Some(1), ..server() });
        assert!(bench.opens(own));
        assert_eq!(bench.syn(same), None);
        assert_eq!(bench.host.drops(TOO_MANY), 1);
        assert!(bench.opens(other));
        // A closed connection frees a slot.
        let reset = TcpRepr { control: TcpControl::Rst, seq_number: TcpSeqNumber(101), ..frames::segment() };
        bench.segment(own, TcpRepr { ack_number: Some(TcpSeqNumber(0)), ..reset });
        bench.segment(own, reset);
        assert_eq!(bench.host.service().open, 1);
        assert!(bench.opens(same));
        assert_eq!(bench.host.drops(TOO_MANY), 1);
    }
}

/// SYNs with a spoofed source do not exclude that source.
#[test]
fn spoofed_half_open_connections_do_not_exclude_source() {
    let mut bench = Bench::new(&Config { max_connections_per_source: Some(3), ..server() });
    for port in 1000..1100 {
        bench.syn(&format!("192.0.2.1:{port}"));
    }
    assert_eq!((bench.half_open(), bench.host.drops(TOO_MANY)), (3, 0));
    assert!((1..=3).all(|port| bench.opens(&format!("192.0.2.1:{port}"))));
    assert_eq!(bench.syn("192.0.2.1:4"), None);
}

/// A source that completes handshakes of half-open connections and of cookies stays within the limit.
#[test]
fn cookies_and_half_open_connections_share_limit() {
    for data in [&b""[..], b"hello"] {
        let limit = Config { max_connections_per_source: Some(2), ..server() };
        let mut bench = Bench::new(&limit);
        let answers: Vec<_> = (1..=4).map(|port| bench.syn(&format!("192.0.2.1:{port}")).unwrap()).collect();
        assert_eq!(bench.half_open(), 2);
        let mut established = 0;
        for (port, answer) in (1..5).zip(&answers).rev() {
            let ack = Some(answer.seq_number + 1);
            let segment =
                TcpRepr { seq_number: TcpSeqNumber(101), ack_number: ack, payload: data, ..frames::segment() };
            let reply = bench.segment(&format!("192.0.2.1:{port}"), segment);
            established += usize::from(reply.is_none_or(|reply| reply.control != TcpControl::Rst));
        }
        assert_eq!((established, bench.host.workers[0].summary().accepted), (2, 2));
        assert_eq!((bench.half_open(), bench.host.drops(TOO_MANY)), (0, 2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// For random opens and closes of several sources, no source exceeds its limits, and the counters match.
    #[test]
    fn source_limits_hold_for_random_traffic(
        steps in prop::collection::vec((0u8..4, 1u16..12, 0u8..4, 0u64..3000), 1..150)
    ) {
        let limits = Config {
            max_half_open_per_source: Some(2),
            max_connections_per_source: Some(3),
            max_half_open: 6,
            max_connections: 9,
            ..server()
        };
        let mut bench = Bench::new(&limits);
        let mut answers = std::collections::HashMap::new();
        for (source, port, step, wait) in steps {
            let from = format!("192.0.2.{source}:{port}");
            bench.now += Duration::from_millis(wait);
            match (step, answers.get(&from).copied()) {
                (0 | 1, _) => {
                    if let Some(answer) = bench.syn(&from).filter(|answer: &TcpRepr| answer.control == TcpControl::Syn) {
                        answers.insert(from, answer);
                    }
                }
                (2, Some(answer)) => _ = bench.complete_handshake(&from, &answer),
                (3, Some(answer)) => {
                    let ack = Some(answer.seq_number + 1);
                    let reset = TcpRepr { control: TcpControl::Rst, seq_number: TcpSeqNumber(101), ..frames::segment() };
                    bench.segment(&from, TcpRepr { ack_number: ack, ..reset });
                }
                _ => {}
            }
            prop_assert!(bench.half_open() <= 6);
            prop_assert!(bench.host.service().open <= 9);
        }
    }
}
