//! Address from a DHCP server (RFC 2131), for the duration of its lease.

use crate::common::services::Echo;
use crate::common::{Host, Native, frames, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{Nic, Packet};
use linerate_service::CloseReason;
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Engine};
use smoltcp::wire::*;
use std::net::Ipv4Addr;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const LEASE: u32 = 1000;

/// Kind of DHCP message from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientMessage {
    /// DHCPDISCOVER.
    Discover,
    /// DHCPREQUEST for the offered address.
    Request,
    /// DHCPREQUEST for the current address, to the server that assigned it.
    Renew,
    /// DHCPREQUEST for the current address, to all servers.
    Rebind,
}

/// DHCP server on the test end of a link, with a host at the other end.
struct Bench<E: Engine<MemoryNic>> {
    nic: MemoryNic,
    host: Host<Echo, E>,
    now: Instant,
    /// Address that the server assigns; `None` if it does not answer.
    assigns: Option<Ipv4Addr>,
    /// Options of its replies for routers and routes.
    routers: &'static [DhcpOption<'static>],
    messages: Vec<(Duration, ClientMessage)>,
    /// Origin of recorded times.
    since: Instant,
    /// Frames of the host without DHCP.
    others: Vec<Vec<u8>>,
}

impl<E: Engine<MemoryNic>> Bench<E> {
    fn new(config: &Config) -> Self {
        let (nic, other) = Link::pair(LinkConfig::default());
        let host = Host::start(config, vec![other], Echo::default);
        let (now, messages, others) = (Instant::ZERO, Vec::new(), Vec::new());
        Bench { nic, host, now, assigns: Some(HOST_ADDRESS), routers: &[ONE_ROUTER], messages, since: now, others }
    }

    fn run_for(&mut self, time: Duration) {
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

    /// Sends a frame to the host and returns its replies without DHCP.
    fn send_and_receive(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.others.clear();
        self.send(bytes);
        self.turn();
        std::mem::take(&mut self.others)
    }

    /// Returns the reply of the server, if the frame is a DHCP message.
    fn answer(&mut self, frame: &[u8]) -> Option<Option<Vec<u8>>> {
        if frame[12..14] == [8, 6] {
            let arp = ArpRepr::parse(&ArpPacket::new_checked(&frame[14..]).unwrap()).unwrap();
            let ArpRepr::EthernetIpv4 { operation, source_protocol_addr, target_protocol_addr, .. } = arp else {
                panic!()
            };
            let is_request = operation == ArpOperation::Request && target_protocol_addr == SERVER;
            return is_request.then(|| Some(arp_frame(ArpOperation::Reply, source_protocol_addr)));
        }
        let ip = Ipv4Packet::new_checked(frame.get(14..).filter(|_| frame[12..14] == [8, 0])?).ok()?;
        let udp = UdpPacket::new_checked(ip.payload()).ok().filter(|udp| udp.dst_port() == 67)?;
        let packet = DhcpPacket::new_checked(udp.payload()).unwrap();
        let request = DhcpRepr::parse(&packet).unwrap();
        let message = match (request.message_type, request.client_ip.is_unspecified(), ip.dst_addr() == SERVER) {
            (DhcpMessageType::Discover, ..) => ClientMessage::Discover,
            (DhcpMessageType::Request, true, _) => ClientMessage::Request,
            (DhcpMessageType::Request, false, true) => ClientMessage::Renew,
            (DhcpMessageType::Request, false, false) => ClientMessage::Rebind,
            _ => panic!("{request:?}"),
        };
        self.messages.push((self.now.since(self.since), message));
        let requested = request.parameter_request_list.unwrap_or_default();
        assert_eq!(requested, [1, 121, 3], "RFC 3442: classless routes before the router");
        Some(self.assigns.map(|address| reply(&request, message, address, self.routers)))
    }

    /// Returns the client's messages since the last call with their times, which count from then on.
    fn client_messages(&mut self) -> Vec<(Duration, ClientMessage)> {
        self.since = self.now;
        std::mem::take(&mut self.messages)
    }

    /// Returns the host that receives a packet to `destination`: the target of the ARP request for it.
    fn next_hop(&mut self, destination: Ipv4Addr) -> Option<Ipv4Addr> {
        let to = (HOST_ADDRESS, 9).into();
        let segment = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
        let frame = frames::tcp(STATION, [2, 0, 0, 0, 0, 2], (destination, 5000).into(), to, segment);
        let replies = self.send_and_receive(&frame);
        replies
            .iter()
            .find(|frame| frame[12..14] == [8, 6])
            .and_then(|frame| frame[38..42].first_chunk::<4>())
            .map(|ip| Ipv4Addr::from(*ip))
    }

    fn answers_arp_for(&mut self, ip: Ipv4Addr) -> bool {
        let replies = self.send_and_receive(&arp_frame(ArpOperation::Request, ip));
        replies.iter().any(|frame| frame[12..14] == [8, 6] && frame[20..22] == [0, 2] && frame[28..32] == ip.octets())
    }
}

/// Ethernet address of the server.
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

const ONE_ROUTER: DhcpOption<'static> = DhcpOption { kind: 3, data: &[10, 0, 0, 9] };

fn reply(request: &DhcpRepr, message: ClientMessage, address: Ipv4Addr, options: &[DhcpOption]) -> Vec<u8> {
    let reply = DhcpRepr {
        message_type: if message == ClientMessage::Discover { DhcpMessageType::Offer } else { DhcpMessageType::Ack },
        your_ip: address,
        server_ip: SERVER,
        server_identifier: Some(SERVER),
        subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        router: None,
        lease_duration: Some(LEASE),
        requested_ip: None,
        client_identifier: None,
        parameter_request_list: None,
        max_size: None,
        dns_servers: None,
        additional_options: options,
        ..*request
    };
    let len = 8 + reply.buffer_len();
    frames::ip(STATION, [0xff; 6], SERVER.into(), [255; 4].into(), IpProtocol::Udp, len, |bytes, source, to| {
        let udp = UdpRepr { src_port: 67, dst_port: 68 };
        let body = |b: &mut [u8]| reply.emit(&mut DhcpPacket::new_unchecked(b)).unwrap();
        udp.emit(&mut UdpPacket::new_unchecked(bytes), &source, &to, reply.buffer_len(), body, &Default::default());
    })
}

fn dhcp_config() -> Config {
    // smoltcp aborts a connection that is silent for this long, even without data in flight.
    Config { addresses: vec![], dhcp: true, user_timeout: Duration::from_secs(86_400), ..server() }
}

fn open<E: Engine<MemoryNic>>(bench: &mut Bench<E>) {
    let (from, to) = ("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
    let host_mac = [2, 0, 0, 0, 0, 2];
    let syn = TcpRepr { control: TcpControl::Syn, seq_number: TcpSeqNumber(100), ..frames::segment() };
    let replies = bench.send_and_receive(&frames::tcp(STATION, host_mac, from, to, syn));
    let answer = replies.iter().find(|frame| frame[12..14] == [8, 0]).expect("an answer");
    let number = TcpPacket::new_checked(&answer[34..]).unwrap().seq_number();
    let ack = TcpRepr { seq_number: TcpSeqNumber(101), ack_number: Some(number + 1), ..frames::segment() };
    bench.send_and_receive(&frames::tcp(STATION, host_mac, from, to, ack));
    assert_eq!(bench.host.service().open, 1);
}

fn lease_is_renewed_at_half_time_and_keeps_connections<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&dhcp_config());
    bench.run_for(Duration::from_secs(20));
    assert!(bench.host.workers[0].has_started());
    let messages: Vec<_> = bench.client_messages().into_iter().map(|(_, message)| message).collect();
    assert_eq!(messages, [ClientMessage::Discover, ClientMessage::Request]);
    open(&mut bench);
    for _ in 0..5 {
        bench.run_for(Duration::from_secs(u64::from(LEASE) / 2));
        let messages = bench.client_messages();
        assert!(matches!(messages[..], [(_, ClientMessage::Renew)]), "{messages:?}");
    }
    assert!(bench.answers_arp_for(HOST_ADDRESS));
    assert_eq!((bench.host.service().open, &bench.host.service().closed[..]), (1, &[][..]));
}

fn unrenewed_lease_expires_and_closes_connections<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&dhcp_config());
    bench.run_for(Duration::from_secs(20));
    bench.client_messages();
    open(&mut bench);
    bench.assigns = None;
    let lease = Duration::from_secs(LEASE.into());
    bench.run_for(lease - Duration::from_secs(25));
    let messages = bench.client_messages();
    // RFC 2131 §4.4.5: to the server from T1, to all servers from T2.
    let renewals = messages.iter().take_while(|(_, message)| *message == ClientMessage::Renew).count();
    assert!(renewals > 0 && renewals < messages.len(), "{messages:?}");
    assert!(messages[renewals..].iter().all(|(_, message)| *message == ClientMessage::Rebind), "{messages:?}");
    let near = |at: Duration, part: f64| (at.as_secs_f64() / lease.as_secs_f64() - part).abs() < 0.03;
    assert!(near(messages[0].0, 0.5) && near(messages[renewals].0, 0.875), "{messages:?}");
    assert!(bench.answers_arp_for(HOST_ADDRESS));
    assert_eq!(bench.host.service().open, 1);
    // The lease has expired.
    bench.others.clear();
    bench.run_for(Duration::from_secs(30));
    assert_eq!(bench.host.service().closed, [CloseReason::AddressLost]);
    assert!(!bench.answers_arp_for(HOST_ADDRESS));
    let from_it = |frame: &&Vec<u8>| frame[12..14] == [8, 0] && frame[26..30] == HOST_ADDRESS.octets();
    assert_eq!(bench.others.iter().find(from_it), None, "no reset");
    assert!(
        bench.client_messages().iter().any(|(_, message)| *message == ClientMessage::Discover),
        "discovery restarts"
    );
    // A server that returns may assign another address.
    bench.assigns = Some(Ipv4Addr::new(10, 0, 0, 7));
    bench.run_for(Duration::from_secs(20));
    assert!(bench.answers_arp_for(Ipv4Addr::new(10, 0, 0, 7)) && !bench.answers_arp_for(HOST_ADDRESS));
}

fn changed_address_closes_connections<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&dhcp_config());
    bench.run_for(Duration::from_secs(20));
    open(&mut bench);
    bench.assigns = Some(Ipv4Addr::new(10, 0, 0, 7));
    bench.others.clear();
    bench.run_for(Duration::from_secs(u64::from(LEASE) / 2));
    assert_eq!(bench.host.service().closed, [CloseReason::AddressLost]);
    // RFC 5227 §2.3: the new address is announced.
    let announced = bench.others.iter().filter(|frame| frame[12..14] == [8, 6] && frame[28..32] == [10, 0, 0, 7]);
    assert!(announced.count() >= 2);
    assert!(bench.answers_arp_for(Ipv4Addr::new(10, 0, 0, 7)) && !bench.answers_arp_for(HOST_ADDRESS));
}

/// RFC 2132 §3.5: routers are in order of preference. RFC 3442: classless routes replace them.
#[test]
fn lease_sets_gateway_and_routes() {
    const TWO: DhcpOption = DhcpOption { kind: 3, data: &[10, 0, 0, 7, 10, 0, 0, 8] };
    const IMPOSSIBLE: DhcpOption = DhcpOption { kind: 3, data: &[0, 0, 0, 0, 10, 0, 0, 2, 10, 0, 0, 6] };
    const ROUTES: DhcpOption = DhcpOption {
        kind: 121,
        data: &[
            24, 192, 0, 2, 10, 0, 0, 4, 0, 10, 0, 0, 3, 32, 10, 0, 0, 77, 10, 0, 0, 5, 32, 192, 0, 2, 9, 0, 0, 0, 0,
        ],
    };
    const PART: DhcpOption = DhcpOption { kind: 121, data: &[24, 192, 0, 2, 10, 0, 0, 4] };
    const MALFORMED: DhcpOption = DhcpOption { kind: 121, data: &[24, 192, 0, 2, 10, 0, 0] };
    let far = "198.51.100.1";
    for (options, expected) in [
        (&[ONE_ROUTER][..], &[(far, Some("10.0.0.9"))][..]),
        (&[TWO], &[(far, Some("10.0.0.7"))]),
        (&[IMPOSSIBLE], &[(far, Some("10.0.0.6"))]),
        (&[], &[(far, None)]),
        (
            &[TWO, ROUTES],
            &[
                (far, Some("10.0.0.3")),
                ("192.0.2.1", Some("10.0.0.4")),
                ("192.0.2.9", Some("192.0.2.9")),
                ("10.0.0.77", Some("10.0.0.5")),
                ("10.0.0.78", Some("10.0.0.78")),
            ],
        ),
        (&[TWO, PART], &[(far, None), ("192.0.2.1", Some("10.0.0.4"))]),
        (&[TWO, MALFORMED], &[(far, Some("10.0.0.7"))]),
    ] {
        let mut bench = Bench::<Native>::new(&dhcp_config());
        bench.routers = options;
        bench.run_for(Duration::from_secs(20));
        for (destination, gateway) in expected {
            let next = bench.next_hop(destination.parse().unwrap());
            assert_eq!(next.map(|ip| ip.to_string()).as_deref(), *gateway, "{options:?}: {destination}");
        }
    }
}

#[test]
fn renewal_changes_only_routes() {
    let mut bench = Bench::<Native>::new(&dhcp_config());
    bench.run_for(Duration::from_secs(20));
    open(&mut bench);
    bench.routers = &[DhcpOption { kind: 3, data: &[10, 0, 0, 7, 10, 0, 0, 9] }];
    bench.run_for(Duration::from_secs(u64::from(LEASE) / 2));
    assert_eq!(bench.next_hop("198.51.100.1".parse().unwrap()), Some(Ipv4Addr::new(10, 0, 0, 7)));
    bench.routers = &[DhcpOption { kind: 3, data: &[10, 0, 0, 5, 10, 0, 0, 7] }];
    bench.run_for(Duration::from_secs(u64::from(LEASE) / 2));
    assert_eq!(bench.next_hop("198.51.100.2".parse().unwrap()), Some(Ipv4Addr::new(10, 0, 0, 5)));
    assert_eq!((bench.host.service().open, &bench.host.service().closed[..]), (1, &[][..]));
}

macro_rules! with_each_engine_of_dhcp {
    ($($test:ident),* $(,)?) => {
        mod native {
            $(#[test] fn $test() { super::$test::<super::Native>(); })*
        }
        #[cfg(feature = "smoltcp-engine")]
        mod smoltcp_s {
            $(#[test] fn $test() { super::$test::<linerate_stack::SmoltcpEngine>(); })*
        }
    };
}

with_each_engine_of_dhcp! {
    lease_is_renewed_at_half_time_and_keeps_connections,
    unrenewed_lease_expires_and_closes_connections,
    changed_address_closes_connections,
}

/// Static addresses exist from the start and stay.
#[test]
fn lease_does_not_affect_static_addresses() {
    let mut bench = Bench::<Native>::new(&Config { addresses: vec!["10.0.0.3/24".parse().unwrap()], ..dhcp_config() });
    bench.run_for(Duration::from_secs(20));
    assert!(bench.answers_arp_for(HOST_ADDRESS) && bench.answers_arp_for(Ipv4Addr::new(10, 0, 0, 3)));
    bench.assigns = None;
    bench.run_for(Duration::from_secs(u64::from(LEASE) + 10));
    assert!(!bench.answers_arp_for(HOST_ADDRESS) && bench.answers_arp_for(Ipv4Addr::new(10, 0, 0, 3)));
}
