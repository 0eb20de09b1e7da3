//! Host protocols as seen on the link: ARP, NDP, ping, UDP, DHCP.

use crate::common::client::Client;
use crate::common::frames;
use crate::common::services::Echo;
use crate::common::{HOST_MAC, Host, Net, SERVER, SERVER6, host, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, Steering};
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};
use linerate_service::{ConnectError, Summary};
use linerate_stack::{Config, Tuple, owner, toeplitz};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

const MINUTE: Duration = Duration::from_secs(60);

/// Link with the test at one end and a host at the other.
pub struct Bench {
    pub nic: MemoryNic,
    pub host: Host<Echo>,
    pub now: Instant,
}

impl Bench {
    pub fn new(config: &Config) -> Self {
        let (nic, other) = Link::pair(LinkConfig::default());
        let mut bench = Bench { nic, host: Host::new(config, vec![other], Echo::default), now: Instant::ZERO };
        bench.replies();
        bench
    }

    /// Runs the host and returns its frames.
    fn replies(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for _ in 0..4 {
            self.host.workers[0].turn(self.now);
            let mut frames = Vec::with_capacity(32);
            while self.nic.rx_burst(&mut frames) > 0 {
                all.extend(frames.drain(..).map(|frame| frame.segments().flatten().copied().collect()));
            }
        }
        all
    }

    /// Sends a frame to the host and returns its frames.
    pub fn send(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut frame = self.nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
        assert_eq!(self.nic.tx_burst(&mut vec![frame]), 1);
        self.replies()
    }

    /// Introduces `ip` with `mac`, as a host that resolves the worker's address does.
    pub fn introduce(&mut self, ip: Ipv4Addr, mac: [u8; 6]) -> Vec<Vec<u8>> {
        self.send(&frames::arp(ArpOperation::Request, (mac, ip), ([0xff; 6], Ipv4Addr::new(10, 0, 0, 2))))
    }
}

/// Returns the Ethernet address of the `n`th other host.
pub fn mac_of(n: u32) -> [u8; 6] {
    let [_, b, c, d] = n.to_be_bytes();
    [2, 1, 0, b, c, d]
}

#[test]
fn arp_request_is_answered() {
    let mut bench = Bench::new(&server());
    let replies = bench.introduce(Ipv4Addr::new(10, 0, 0, 1), mac_of(1));
    let frame = EthernetFrame::new_checked(&replies[0]).unwrap();
    assert_eq!((frame.src_addr().0, frame.dst_addr().0), (HOST_MAC, mac_of(1)));
    let reply = ArpRepr::parse(&ArpPacket::new_checked(frame.payload()).unwrap()).unwrap();
    let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, .. } = reply else { panic!() };
    assert_eq!(operation, ArpOperation::Reply);
    assert_eq!((source_hardware_addr.0, source_protocol_addr), (HOST_MAC, Ipv4Addr::new(10, 0, 0, 2)));
}

#[test]
fn ping_is_answered_exactly() {
    let mut bench = Bench::new(&server());
    bench.introduce(Ipv4Addr::new(10, 0, 0, 1), mac_of(1));
    let payload: Vec<u8> = (0..1400).map(|n| n as u8).collect();
    let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data: &payload };
    let from = IpAddr::from([10, 0, 0, 1]);
    let bytes = frames::ip(
        mac_of(1),
        HOST_MAC,
        from,
        SERVER.parse().unwrap(),
        IpProtocol::Icmp,
        request.buffer_len(),
        |b, _, _| {
            request.emit(&mut Icmpv4Packet::new_unchecked(b), &ChecksumCapabilities::default());
        },
    );
    let replies = bench.send(&bytes);
    let ip = Ipv4Packet::new_checked(&replies[0][14..]).unwrap();
    let reply = Icmpv4Repr::parse(&Icmpv4Packet::new_checked(ip.payload()).unwrap(), &Default::default()).unwrap();
    assert_eq!(reply, Icmpv4Repr::EchoReply { ident: 7, seq_no: 9, data: &payload });
}

#[test]
fn solicitation_and_ping_over_ipv6_are_answered() {
    let mut bench = Bench::new(&server());
    let (us, from) = ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
    let solicit = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
        target_addr: us,
        lladdr: Some(HardwareAddress::Ethernet(EthernetAddress(mac_of(1))).into()),
    });
    let ip = Ipv6Repr {
        src_addr: from,
        dst_addr: "ff02::1:ff00:2".parse().unwrap(),
        next_header: IpProtocol::Icmpv6,
        payload_len: solicit.buffer_len(),
        hop_limit: 255,
    };
    let mut bytes = vec![0; 14 + ip.buffer_len() + ip.payload_len];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress(mac_of(1)));
    frame.set_dst_addr(EthernetAddress([0x33, 0x33, 0xff, 0, 0, 2]));
    frame.set_ethertype(EthernetProtocol::Ipv6);
    ip.emit(&mut Ipv6Packet::new_unchecked(frame.payload_mut()));
    let checksums = ChecksumCapabilities::default();
    solicit.emit(&ip.src_addr, &ip.dst_addr, &mut Icmpv6Packet::new_unchecked(&mut bytes[54..]), &checksums);
    let replies = bench.send(&bytes);
    assert_eq!(Icmpv6Packet::new_checked(&replies[0][54..]).unwrap().msg_type(), Icmpv6Message::NeighborAdvert);

    let request = Icmpv6Repr::EchoRequest { ident: 1, seq_no: 2, data: b"hello" };
    let bytes =
        frames::ip(mac_of(1), HOST_MAC, from.into(), us.into(), IpProtocol::Icmpv6, request.buffer_len(), |b, _, _| {
            request.emit(&from, &us, &mut Icmpv6Packet::new_unchecked(b), &checksums);
        });
    let replies = bench.send(&bytes);
    assert_eq!(replies[0][..6], mac_of(1), "the address of the solicitation is used");
    let reply = Icmpv6Repr::parse(&us, &from, &Icmpv6Packet::new_checked(&replies[0][54..]).unwrap(), &checksums);
    assert_eq!(reply, Ok(Icmpv6Repr::EchoReply { ident: 1, seq_no: 2, data: b"hello" }));
}

#[test]
fn datagram_to_closed_port_is_unreachable() {
    let mut bench = Bench::new(&server());
    bench.introduce(Ipv4Addr::new(10, 0, 0, 1), mac_of(1));
    let from = IpAddr::from([10, 0, 0, 1]);
    let bytes =
        frames::ip(mac_of(1), HOST_MAC, from, SERVER.parse().unwrap(), IpProtocol::Udp, 12, |bytes, source, to| {
            let udp = UdpRepr { src_port: 1000, dst_port: 1001 };
            udp.emit(&mut UdpPacket::new_unchecked(bytes), &source, &to, 4, |b| b.fill(1), &Default::default());
        });
    let replies = bench.send(&bytes);
    let ip = Ipv4Packet::new_checked(&replies[0][14..]).unwrap();
    assert_eq!(Icmpv4Packet::new_checked(ip.payload()).unwrap().msg_type(), Icmpv4Message::DstUnreachable);
}

/// Fragments are neither reassembled (contrary to RFC 8200 §4.5) nor answered.
#[test]
fn fragments_are_counted_and_not_answered() {
    let mut bench = Bench::new(&server());
    bench.introduce(Ipv4Addr::new(10, 0, 0, 1), mac_of(1));
    for port in [7, 1001] {
        let (from, to) = (IpAddr::from([10, 0, 0, 1]), SERVER.parse().unwrap());
        let mut bytes = frames::ip(mac_of(1), HOST_MAC, from, to, IpProtocol::Udp, 16, |bytes, source, to| {
            let udp = UdpRepr { src_port: 1000, dst_port: port };
            udp.emit(&mut UdpPacket::new_unchecked(bytes), &source, &to, 8, |b| b.fill(1), &Default::default());
        });
        let mut ip = Ipv4Packet::new_unchecked(&mut bytes[14..]);
        ip.set_more_frags(true);
        ip.fill_checksum();
        assert_eq!(bench.send(&bytes), Vec::<Vec<u8>>::new());
    }
    let bytes = frames::ip(
        mac_of(1),
        HOST_MAC,
        "fd00::1".parse().unwrap(),
        SERVER6.parse().unwrap(),
        IpProtocol::Ipv6Frag,
        16,
        |b, _, _| {
            b.fill(0);
            b[0] = 17;
        },
    );
    assert_eq!(bench.send(&bytes), Vec::<Vec<u8>>::new());
    assert_eq!(bench.host.drops("IP fragment"), 3);
    assert_eq!(bench.host.workers[0].summary().drops.values().sum::<u64>(), 3);
}

#[test]
fn neighbor_is_confirmed_after_link_up_and_used_meanwhile() {
    // RFC 4861 §7.3.3: an unconfirmed address is used until it is known to be wrong.
    let mut bench = Bench::new(&server());
    let ip = Ipv4Addr::new(10, 0, 0, 1);
    bench.introduce(ip, mac_of(1));
    for up in [false, true] {
        bench.nic.link().set_up(up);
        bench.now += Duration::from_millis(200);
        bench.replies();
    }
    let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
    let mut connect = |mac: [u8; 6], port| {
        let frame = frames::tcp(mac, HOST_MAC, (ip, port).into(), "10.0.0.2:7".parse().unwrap(), syn);
        let replies = bench.send(&frame);
        let mut replies: Vec<_> = replies.iter().map(|frame| (frame[..6].to_vec(), frame[12..14] == [8, 0])).collect();
        replies.sort();
        if port == 1000 {
            bench.introduce(ip, mac_of(2));
        }
        replies
    };
    assert_eq!(connect(mac_of(1), 1000), [(mac_of(1).to_vec(), true), (vec![0xff; 6], false)]);
    assert_eq!(connect(mac_of(2), 1001), [(mac_of(2).to_vec(), true)]);
}

#[test]
fn thousand_neighbors_are_answered_at_own_address() {
    let config = Config { addresses: vec!["10.0.0.2/16".parse().unwrap()], ..server() };
    let mut bench = Bench::new(&config);
    let ip = |n: u32| Ipv4Addr::from_bits(0x0a00_0100 + n);
    for n in 0..1000 {
        bench.introduce(ip(n), mac_of(n));
    }
    let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
    for round in 0..3 {
        for n in 0..1000 {
            let from = SocketAddr::from((ip(n), 5000 + round));
            let replies = bench.send(&frames::tcp(mac_of(n), HOST_MAC, from, "10.0.0.2:7".parse().unwrap(), syn));
            let [reply] = &replies[..] else { panic!("{} frames for one SYN", replies.len()) };
            assert_eq!((&reply[..6], &reply[12..14]), (&mac_of(n)[..], &[8, 0][..]));
        }
    }
}

#[test]
fn unreachable_error_fails_connection_and_forged_one_does_not() {
    let (mut router, nic) = Link::pair(LinkConfig::default());
    let config = Config { gateways: vec!["10.0.0.9".parse().unwrap()], ..host(1) };
    let mut client = Host::new(&config, vec![nic], || Client::new("192.0.2.1", 1, 1));
    let mut turn = |reply: Option<Vec<u8>>| {
        if let Some(bytes) = reply {
            let mut frame = router.allocate().unwrap();
            frame.append(bytes.len()).unwrap().copy_from_slice(&bytes);
            router.tx_burst(&mut vec![frame]);
        }
        for _ in 0..3 {
            client.workers[0].turn(Instant::ZERO);
        }
        let mut frames = Vec::with_capacity(32);
        router.rx_burst(&mut frames);
        let sent: Vec<Vec<u8>> = frames.iter().map(|frame| frame.data().to_vec()).collect();
        (sent, client.service().outcomes[0].failed)
    };
    let arp = |bytes: &Vec<u8>| bytes[12..14] == [8, 6];
    let request = turn(None).0.into_iter().find(arp).expect("an ARP request for the gateway");
    let mut answer = request.clone();
    answer[..6].copy_from_slice(&request[6..12]);
    answer[6..12].copy_from_slice(&mac_of(9));
    answer[21] = 2;
    answer[22..28].copy_from_slice(&mac_of(9));
    answer[28..32].copy_from_slice(&[10, 0, 0, 9]);
    answer[32..42].copy_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
    let syn = turn(Some(answer)).0.pop().expect("a SYN");
    assert_eq!((&syn[..6], syn[23]), (&mac_of(9)[..], 6));
    let error = |syn: &[u8]| {
        let quoted = Ipv4Packet::new_unchecked(&syn[14..]);
        let header = Ipv4Repr::parse(&quoted, &Default::default()).unwrap();
        let error =
            Icmpv4Repr::DstUnreachable { reason: Icmpv4DstUnreachable::HostUnreachable, header, data: &syn[34..42] };
        let (from, to) = (IpAddr::from([10, 0, 0, 9]), IpAddr::from([10, 0, 0, 1]));
        frames::ip(mac_of(9), [2, 0, 0, 0, 0, 1], from, to, IpProtocol::Icmp, error.buffer_len(), |bytes, _, _| {
            error.emit(&mut Icmpv4Packet::new_unchecked(bytes), &Default::default());
        })
    };
    let mut forged = syn.clone();
    forged[38] ^= 1;
    assert_eq!(turn(Some(error(&forged))).1, None);
    assert_eq!(turn(Some(error(&syn))).1, Some(ConnectError::Unreachable));
}

#[test]
fn misdirected_frames_reach_their_worker() {
    // The port distributes frames by source port, unlike the ownership of flows.
    let by_port = Steering::new(|frame| {
        let port = if frame[12..14] == [8, 0] && frame[23] == 6 { usize::from(frame[35]) } else { 0 };
        (port % 3, None)
    });
    let link = LinkConfig { steering: Some(by_port), ..LinkConfig::default() };
    let mut net = Net::with(link, 3, &host(1), || Client::new(SERVER, 20, 50_000), &server(), Echo::default);
    let over = |net: &mut Net<Client, Echo>| net.a.workers.iter().all(|worker| worker.service().all_finished());
    net.expect("every connection closed", MINUTE, over);
    for worker in &net.a.workers {
        worker.service().assert_exact();
    }
    assert!(net.b.workers.iter().map(|worker| worker.misdirected()).sum::<u64>() > 0);
    let accepted: Vec<_> = net.b.workers.iter_mut().map(|worker| worker.summary().accepted).collect();
    assert_eq!(accepted, [20, 20, 20], "each client worker connects from ports that hash to its own number");
}

#[test]
fn connections_to_the_port_of_a_worker_are_its_own() {
    // Port 7, to which the clients connect, belongs to the third worker.
    let by_worker = "0.0.0.0:5".parse().unwrap();
    let server = Config { listen_by_worker: vec![by_worker], ..server() };
    // Frames are distributed by the hash, which the port reports.
    let by_hash = Steering::new(move |frame| match tuple_of(frame) {
        Some(tuple) => (owner(toeplitz(&tuple), 3), Some(toeplitz(&tuple))),
        None => (0, None),
    });
    let link = LinkConfig { steering: Some(by_hash), ..LinkConfig::default() };
    let mut net = Net::with(link, 3, &host(1), || Client::new(SERVER, 30, 50_000), &server, Echo::default);
    let over = |net: &mut Net<Client, Echo>| net.a.workers.iter().all(|worker| worker.service().all_finished());
    net.expect("every connection closed", MINUTE, over);
    for worker in &net.a.workers {
        worker.service().assert_exact();
    }
    let accepted: Vec<_> = net.b.workers.iter_mut().map(|worker| worker.summary().accepted).collect();
    assert_eq!(accepted, [0, 0, 90]);
    assert!(net.a.workers.iter().all(|worker| worker.misdirected() == 0));
}

#[test]
fn equal_worker_counts_cause_no_misdirection() {
    let mut net =
        Net::with(LinkConfig::default(), 4, &host(1), || Client::new(SERVER6, 10, 50_000), &server(), Echo::default);
    let over = |net: &mut Net<Client, Echo>| net.a.workers.iter().all(|worker| worker.service().all_finished());
    net.expect("every connection closed", MINUTE, over);
    for worker in net.a.workers.iter() {
        worker.service().assert_exact();
        assert_eq!(worker.misdirected(), 0);
    }
    assert!(net.b.workers.iter().all(|worker| worker.misdirected() == 0));
}

/// Returns the connection of a frame with TCP over IPv4.
fn tuple_of(frame: &[u8]) -> Option<Tuple> {
    if frame[12..14] != [8, 0] || frame[23] != 6 {
        return None;
    }
    let end = |ip: usize, port: usize| {
        let ip: [u8; 4] = frame[ip..ip + 4].try_into().unwrap();
        SocketAddr::from((ip, u16::from_be_bytes([frame[port], frame[port + 1]])))
    };
    Some(Tuple::new(end(30, 36), end(26, 34)))
}

#[test]
fn rss_hash_of_port_is_used_only_if_correct() {
    // Frames are distributed by the worker's hash in both cases. The port reports this hash in one case, and another
    // hash in the other.
    for wrong in [0, 1] {
        let by_hash = Steering::new(move |frame| match tuple_of(frame) {
            Some(tuple) => (owner(toeplitz(&tuple), 2), Some(toeplitz(&tuple) ^ wrong)),
            None => (0, None),
        });
        let link = LinkConfig { steering: Some(by_hash), ..LinkConfig::default() };
        let mut net = Net::with(link, 2, &host(1), || Client::new(SERVER, 20, 50_000), &server(), Echo::default);
        let over = |net: &mut Net<Client, Echo>| net.a.workers.iter().all(|worker| worker.service().all_finished());
        net.expect("every connection closed", MINUTE, over);
        for worker in &net.a.workers {
            worker.service().assert_exact();
        }
        assert!(net.b.workers.iter().all(|worker| worker.misdirected() == 0), "a different hash is ignored");
        assert!(net.b.workers.iter_mut().all(|worker| worker.summary().accepted == 20));
    }
}

/// RFC 6191 §3, behind an address translator: all workers use one timestamp clock per pair of addresses.
#[test]
fn timestamp_clock_of_address_pair_is_shared_by_workers() {
    let seen: Arc<Mutex<Vec<(usize, u32)>>> = Arc::default();
    let notes = seen.clone();
    let watched = Steering::new(move |frame| {
        let Some(tuple) = tuple_of(frame) else { return (0, None) };
        let owner = owner(toeplitz(&tuple), 2);
        let tcp = TcpPacket::new_checked(&frame[34..]).unwrap();
        if tcp.syn() && tcp.ack() {
            let repr =
                TcpRepr::parse(&tcp, &tuple.remote().ip().into(), &tuple.local().ip().into(), &Default::default());
            notes.lock().unwrap().push((owner, repr.unwrap().timestamp.expect("negotiated timestamps").tsval));
        }
        (owner, None)
    });
    let link = LinkConfig { steering: Some(watched), ..LinkConfig::default() };
    let mut net = Net::with(link, 2, &host(1), || Client::new(SERVER, 5, 10), &server(), Echo::default);
    net.expect("every connection closed", MINUTE, |net| net.a.workers.iter().all(|w| w.service().all_finished()));
    let seen = seen.lock().unwrap();
    let first = seen[0].1;
    assert!([0, 1].iter().all(|worker| seen.iter().filter(|(owner, _)| owner == worker).count() >= 5), "{seen:?}");
    assert!(seen.iter().all(|(_, value)| value.wrapping_sub(first) < 100), "{seen:?}");
}

/// Returns the reply of a DHCP server to a client's frame.
fn dhcp_reply(request: &[u8]) -> Option<Vec<u8>> {
    let ip = Ipv4Packet::new_checked(request.get(14..)?).ok()?;
    let udp = UdpPacket::new_checked(ip.payload()).ok()?;
    if request[12..14] != [8, 0] || udp.dst_port() != 67 {
        return None;
    }
    let packet = DhcpPacket::new_checked(udp.payload()).ok()?;
    let request = DhcpRepr::parse(&packet).ok()?;
    let (router, given) = (Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 2));
    let reply = DhcpRepr {
        message_type: match request.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            _ => DhcpMessageType::Ack,
        },
        your_ip: given,
        server_ip: router,
        server_identifier: Some(router),
        subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        router: Some(router),
        lease_duration: Some(3600),
        requested_ip: None,
        client_identifier: None,
        parameter_request_list: None,
        max_size: None,
        dns_servers: None,
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
        ..request
    };
    let to = IpAddr::from([255; 4]);
    let len = 8 + reply.buffer_len();
    Some(frames::ip(mac_of(9), [0xff; 6], router.into(), to, IpProtocol::Udp, len, |bytes, source, to| {
        let udp = UdpRepr { src_port: 67, dst_port: 68 };
        let body = |b: &mut [u8]| reply.emit(&mut DhcpPacket::new_unchecked(b)).unwrap();
        udp.emit(&mut UdpPacket::new_unchecked(bytes), &source, &to, reply.buffer_len(), body, &Default::default());
    }))
}

#[test]
fn dhcp_address_is_served() {
    let config = Config { addresses: vec![], dhcp: true, ..server() };
    let mut bench = Bench::new(&config);
    let mut sent = Vec::new();
    for _ in 0..100 {
        bench.now += Duration::from_millis(100);
        sent.extend(bench.replies());
        while let Some(reply) = sent.iter().find_map(|frame| dhcp_reply(frame)) {
            sent = bench.send(&reply);
        }
        sent.clear();
    }
    let replies = bench.introduce(Ipv4Addr::new(10, 0, 0, 1), mac_of(1));
    assert_eq!(replies[0][28..32], [10, 0, 0, 2], "ARP for the leased address is answered");
    let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
    let from = "10.0.0.1:5000".parse().unwrap();
    let replies = bench.send(&frames::tcp(mac_of(1), HOST_MAC, from, "10.0.0.2:7".parse().unwrap(), syn));
    let tcp = TcpPacket::new_checked(&replies[0][34..]).unwrap();
    assert!(tcp.syn() && tcp.ack());
}

#[test]
fn turns_and_busy_turns_are_counted() {
    let mut bench = Bench::new(&server());
    let before = bench.host.workers[0].summary();
    let mut frames: Vec<_> = (0..3).map(|_| bench.nic.allocate().unwrap()).collect();
    frames.iter_mut().for_each(|frame| frame.append(60).unwrap().fill(0));
    assert_eq!(bench.nic.tx_burst(&mut frames), 3);
    bench.replies();
    let after = bench.host.workers[0].summary();
    let counts = |summary: &Summary| [summary.rx_frames, summary.bursts, summary.busy_turns, summary.turns];
    let grown: Vec<u64> = counts(&after).iter().zip(counts(&before)).map(|(after, before)| after - before).collect();
    assert_eq!(grown, [3, 1, 1, 4]);
}
