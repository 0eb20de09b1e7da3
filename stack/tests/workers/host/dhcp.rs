//! An address from a DHCP server (RFC 2131): for as long as its lease is renewed, and no longer.

use crate::common::services::Echo;
use crate::common::{Host, Native, frames, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, Nic, Packet};
use linerate_stack::{Config, Engine, SmoltcpEngine};
use smoltcp::wire::*;
use std::net::Ipv4Addr;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const LEASE: u32 = 1000;

/// What a client has asked a server for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Any address.
    Discover,
    /// The address that was offered.
    Request,
    /// The address that it has: the server that gave it.
    Renew,
    /// The address that it has: all servers.
    Rebind,
}

/// A DHCP server on the bare end of a link, with a host at the other.
struct Bench<E: Engine<MemoryNic>> {
    nic: MemoryNic,
    host: Host<Echo, E>,
    now: Instant,
    /// What the server gives; nothing, and it does not answer, if `None`.
    gives: Option<Ipv4Addr>,
    asked: Vec<(Duration, Asked)>,
    /// Since when times are counted.
    since: Instant,
    /// Other frames of the host's.
    others: Vec<Vec<u8>>,
}

impl<E: Engine<MemoryNic>> Bench<E> {
    fn new(config: &Config) -> Self {
        let (nic, other) = Link::pair(LinkConfig::default());
        let host = Host::start(config, vec![other], Echo::default);
        let (now, asked, others) = (Instant::ZERO, Vec::new(), Vec::new());
        Bench { nic, host, now, gives: Some(OURS), asked, since: now, others }
    }

    /// Goes on for `time`.
    fn go_on(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let next = self.host.workers[0].next_deadline().unwrap_or(until);
            self.now = next.max(self.now + Duration::from_millis(10)).min(until);
            self.turn();
        }
    }

    fn turn(&mut self) {
        for _ in 0..8 {
            self.host.workers[0].turn(self.now);
            let mut frames = Vec::with_capacity(32);
            self.nic.rx_burst(&mut frames);
            let frames: Vec<Vec<u8>> =
                frames.iter().map(|frame| frame.segments().flatten().copied().collect()).collect();
            for frame in frames {
                if let Some(answer) = self.answer(&frame) {
                    answer.iter().for_each(|answer| self.send(answer));
                } else {
                    self.others.push(frame);
                }
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut frame = self.nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
        assert_eq!(self.nic.tx_burst(&mut vec![frame]), 1);
    }

    /// What the host says to a frame, DHCP's left out.
    fn hears(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.others.clear();
        self.send(bytes);
        self.turn();
        std::mem::take(&mut self.others)
    }

    /// What the server answers, if the frame is for it.
    fn answer(&mut self, frame: &[u8]) -> Option<Option<Vec<u8>>> {
        if frame[12..14] == [8, 6] {
            let arp = ArpRepr::parse(&ArpPacket::new_checked(&frame[14..]).unwrap()).unwrap();
            let ArpRepr::EthernetIpv4 { operation, source_protocol_addr, target_protocol_addr, .. } = arp else {
                panic!()
            };
            let asks = operation == ArpOperation::Request && target_protocol_addr == SERVER;
            return asks.then(|| Some(arp_frame(ArpOperation::Reply, source_protocol_addr)));
        }
        let ip = Ipv4Packet::new_checked(frame.get(14..).filter(|_| frame[12..14] == [8, 0])?).ok()?;
        let udp = UdpPacket::new_checked(ip.payload()).ok().filter(|udp| udp.dst_port() == 67)?;
        let packet = DhcpPacket::new_checked(udp.payload()).unwrap();
        let request = DhcpRepr::parse(&packet).unwrap();
        let asked = match (request.message_type, request.client_ip.is_unspecified(), ip.dst_addr() == SERVER) {
            (DhcpMessageType::Discover, ..) => Asked::Discover,
            (DhcpMessageType::Request, true, _) => Asked::Request,
            (DhcpMessageType::Request, false, true) => Asked::Renew,
            (DhcpMessageType::Request, false, false) => Asked::Rebind,
            _ => panic!("{request:?}"),
        };
        self.asked.push((self.now.since(self.since), asked));
        Some(self.gives.map(|address| reply(&request, asked, address)))
    }

    /// What was asked since this was asked last, and when, from then on.
    fn asked(&mut self) -> Vec<(Duration, Asked)> {
        self.since = self.now;
        std::mem::take(&mut self.asked)
    }

    fn is_answered_for(&mut self, ip: Ipv4Addr) -> bool {
        let replies = self.hears(&arp_frame(ArpOperation::Request, ip));
        replies.iter().any(|frame| frame[12..14] == [8, 6] && frame[20..22] == [0, 2] && frame[28..32] == ip.octets())
    }
}

/// The server's station.
const STATION: [u8; 6] = [2, 1, 0, 0, 0, 1];

fn arp_frame(operation: ArpOperation, target: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(STATION),
        source_protocol_addr: SERVER,
        target_hardware_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
        target_protocol_addr: target,
    };
    let mut bytes = vec![0; 14 + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress(STATION));
    frame.set_dst_addr(EthernetAddress::BROADCAST);
    frame.set_ethertype(EthernetProtocol::Arp);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

fn reply(request: &DhcpRepr, asked: Asked, address: Ipv4Addr) -> Vec<u8> {
    let reply = DhcpRepr {
        message_type: if asked == Asked::Discover { DhcpMessageType::Offer } else { DhcpMessageType::Ack },
        your_ip: address,
        server_ip: SERVER,
        server_identifier: Some(SERVER),
        subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        router: Some(Ipv4Addr::new(10, 0, 0, 9)),
        lease_duration: Some(LEASE),
        requested_ip: None,
        client_identifier: None,
        parameter_request_list: None,
        max_size: None,
        dns_servers: None,
        additional_options: &[],
        ..*request
    };
    let len = 8 + reply.buffer_len();
    frames::ip(STATION, [0xff; 6], SERVER.into(), [255; 4].into(), IpProtocol::Udp, len, |bytes, source, to| {
        let udp = UdpRepr { src_port: 67, dst_port: 68 };
        let body = |b: &mut [u8]| reply.emit(&mut DhcpPacket::new_unchecked(b)).unwrap();
        udp.emit(&mut UdpPacket::new_unchecked(bytes), &source, &to, reply.buffer_len(), body, &Default::default());
    })
}

fn asking() -> Config {
    // smoltcp gives a peer up that is silent for so long, whether something was sent to it or not.
    Config { addresses: vec![], dhcp: true, user_timeout: Duration::from_secs(86_400), ..server() }
}

fn open<E: Engine<MemoryNic>>(bench: &mut Bench<E>) {
    let (from, to) = ("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
    let ours = [2, 0, 0, 0, 0, 2];
    let syn = TcpRepr { control: TcpControl::Syn, seq_number: TcpSeqNumber(100), ..frames::segment() };
    let replies = bench.hears(&frames::tcp(STATION, ours, from, to, syn));
    let answer = replies.iter().find(|frame| frame[12..14] == [8, 0]).expect("an answer");
    let number = TcpPacket::new_checked(&answer[34..]).unwrap().seq_number();
    let ack = TcpRepr { seq_number: TcpSeqNumber(101), ack_number: Some(number + 1), ..frames::segment() };
    bench.hears(&frames::tcp(STATION, ours, from, to, ack));
    assert_eq!(bench.host.service().open, 1);
}

fn a_lease_is_renewed_at_half_its_time_and_connections_go_on<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&asking());
    bench.go_on(Duration::from_secs(20));
    assert!(bench.host.workers[0].has_started());
    let asked: Vec<_> = bench.asked().into_iter().map(|(_, asked)| asked).collect();
    assert_eq!(asked, [Asked::Discover, Asked::Request]);
    open(&mut bench);
    for _ in 0..5 {
        bench.go_on(Duration::from_secs(u64::from(LEASE) / 2));
        let asked = bench.asked();
        assert!(matches!(asked[..], [(_, Asked::Renew)]), "{asked:?}");
    }
    assert!(bench.is_answered_for(OURS));
    assert_eq!((bench.host.service().open, &bench.host.service().closed[..]), (1, &[][..]));
}

fn a_lease_that_nobody_renews_runs_out_and_its_connections_end<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&asking());
    bench.go_on(Duration::from_secs(20));
    bench.asked();
    open(&mut bench);
    bench.gives = None;
    let lease = Duration::from_secs(LEASE.into());
    bench.go_on(lease - Duration::from_secs(25));
    let asked = bench.asked();
    // RFC 2131 §4.4.5: the server from T1 on, all servers from T2 on.
    let renewals = asked.iter().take_while(|(_, asked)| *asked == Asked::Renew).count();
    assert!(renewals > 0 && renewals < asked.len(), "{asked:?}");
    assert!(asked[renewals..].iter().all(|(_, asked)| *asked == Asked::Rebind), "{asked:?}");
    let near = |at: Duration, part: f64| (at.as_secs_f64() / lease.as_secs_f64() - part).abs() < 0.03;
    assert!(near(asked[0].0, 0.5) && near(asked[renewals].0, 0.875), "{asked:?}");
    assert!(bench.is_answered_for(OURS));
    assert_eq!(bench.host.service().open, 1);
    // And then it is over.
    bench.others.clear();
    bench.go_on(Duration::from_secs(30));
    assert_eq!(bench.host.service().closed, [CloseReason::AddressLost]);
    assert!(!bench.is_answered_for(OURS));
    let from_it = |frame: &&Vec<u8>| frame[12..14] == [8, 0] && frame[26..30] == OURS.octets();
    assert_eq!(bench.others.iter().find(from_it), None, "not even a reset");
    assert!(bench.asked().iter().any(|(_, asked)| *asked == Asked::Discover), "a server is looked for anew");
    // A server that is there again may give another.
    bench.gives = Some(Ipv4Addr::new(10, 0, 0, 7));
    bench.go_on(Duration::from_secs(20));
    assert!(bench.is_answered_for(Ipv4Addr::new(10, 0, 0, 7)) && !bench.is_answered_for(OURS));
}

fn an_address_that_is_given_in_place_of_another_ends_its_connections<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&asking());
    bench.go_on(Duration::from_secs(20));
    open(&mut bench);
    bench.gives = Some(Ipv4Addr::new(10, 0, 0, 7));
    bench.others.clear();
    bench.go_on(Duration::from_secs(u64::from(LEASE) / 2));
    assert_eq!(bench.host.service().closed, [CloseReason::AddressLost]);
    // RFC 5227 §2.3: the new one is announced.
    let announced = bench.others.iter().filter(|frame| frame[12..14] == [8, 6] && frame[28..32] == [10, 0, 0, 7]);
    assert!(announced.count() >= 2);
    assert!(bench.is_answered_for(Ipv4Addr::new(10, 0, 0, 7)) && !bench.is_answered_for(OURS));
}

macro_rules! of_each_engine {
    ($($test:ident),* $(,)?) => {
        mod native {
            $(#[test] fn $test() { super::$test::<super::Native>(); })*
        }
        mod smoltcp_s {
            $(#[test] fn $test() { super::$test::<super::SmoltcpEngine>(); })*
        }
    };
}

of_each_engine! {
    a_lease_is_renewed_at_half_its_time_and_connections_go_on,
    a_lease_that_nobody_renews_runs_out_and_its_connections_end,
    an_address_that_is_given_in_place_of_another_ends_its_connections,
}

/// Addresses that were given by hand are there from the start, and stay.
#[test]
fn other_addresses_are_not_touched_by_a_lease() {
    let mut bench = Bench::<Native>::new(&Config { addresses: vec!["10.0.0.3/24".parse().unwrap()], ..asking() });
    bench.go_on(Duration::from_secs(20));
    assert!(bench.is_answered_for(OURS) && bench.is_answered_for(Ipv4Addr::new(10, 0, 0, 3)));
    bench.gives = None;
    bench.go_on(Duration::from_secs(u64::from(LEASE) + 10));
    assert!(!bench.is_answered_for(OURS) && bench.is_answered_for(Ipv4Addr::new(10, 0, 0, 3)));
}
