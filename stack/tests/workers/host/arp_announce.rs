//! Own addresses on the link: announcement, defence, and duplicate address detection.

use crate::common::client::Client;
use crate::common::services::Echo;
use crate::common::{HOST_MAC, Host, Net, SERVER6, host, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};
use linerate_stack::Config;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const OTHER: [u8; 6] = [2, 1, 0, 0, 0, 1];
const UNSPECIFIED: [u8; 6] = [0; 6];
const FOUR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const CLAIMED: &str = "address of ours claimed by another station";

/// ARP or neighbour discovery message about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    /// Announcement to all stations.
    Announcement(IpAddr),
    /// Reply to one station.
    Reply(IpAddr, [u8; 6]),
    /// Probe of an address before use.
    Probe(IpAddr),
}

/// Link with a station at one end and the host at the other.
struct Bench {
    nic: MemoryNic,
    host: Host<Echo>,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Bench::with_dad(0)
    }

    /// Creates a host that sends `dad_transmits` probes per IPv6 address.
    fn with_dad(dad_transmits: u8) -> Self {
        let (nic, other) = Link::pair(LinkConfig::default());
        let config = Config { dad_transmits, ..server() };
        Bench { nic, host: Host::new(&config, vec![other], Echo::default), now: Instant::ZERO }
    }

    /// As [`new`](Self::new), after all announcements.
    fn announced() -> Self {
        let mut bench = Bench::new();
        bench.run_for(Duration::from_secs(10));
        bench
    }

    /// Runs the host and returns its messages.
    fn messages(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        for _ in 0..4 {
            self.host.workers[0].turn(self.now);
            let mut frames = Vec::with_capacity(32);
            while self.nic.rx_burst(&mut frames) > 0 {
                messages.extend(frames.drain(..).filter_map(|frame| read(frame.data())));
            }
        }
        messages.sort();
        messages
    }

    /// Runs the host for `time` and returns its messages with their times.
    fn run_for(&mut self, time: Duration) -> Vec<(Duration, Message)> {
        let (start, step) = (self.now, Duration::from_millis(50));
        let mut seen = Vec::new();
        while self.now.since(start) < time {
            self.now += step;
            let now = self.now;
            seen.extend(self.messages().into_iter().map(|message| (now.since(start), message)));
        }
        seen
    }

    fn send_and_receive(&mut self, frame: &[u8]) -> Vec<Message> {
        let mut packet = self.nic.allocate().unwrap();
        packet.append(frame.len()).unwrap().copy_from_slice(frame);
        assert_eq!(self.nic.tx_burst(&mut vec![packet]), 1);
        self.messages()
    }
}

/// Parses a message of the host about one of its addresses.
fn read(frame: &[u8]) -> Option<Message> {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let to = ethernet.dst_addr();
    match ethernet.ethertype() {
        EthernetProtocol::Arp => {
            let arp = ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).unwrap()).unwrap();
            let ArpRepr::EthernetIpv4 {
                operation,
                source_hardware_addr,
                source_protocol_addr,
                target_protocol_addr,
                ..
            } = arp
            else {
                panic!("{arp:?}")
            };
            assert_eq!((ethernet.src_addr().0, source_hardware_addr.0), (HOST_MAC, HOST_MAC));
            match operation {
                // RFC 5227 §2.3: an ARP announcement is a request for the own address.
                ArpOperation::Request if source_protocol_addr == target_protocol_addr => {
                    assert!(to.is_broadcast());
                    Some(Message::Announcement(source_protocol_addr.into()))
                }
                ArpOperation::Reply => Some(Message::Reply(source_protocol_addr.into(), to.0)),
                _ => None,
            }
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
            let checked = ChecksumCapabilities::default();
            let repr = Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &checked).ok()?;
            if let Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }) = repr {
                let [.., a, b, c] = target_addr.octets();
                // RFC 4862 §5.4.2, RFC 4861 §4.3.
                assert_eq!((ip.src_addr(), lladdr, ip.hop_limit()), (Ipv6Addr::UNSPECIFIED, None, 255));
                assert_eq!(to.0, [0x33, 0x33, 0xff, a, b, c]);
                return Some(Message::Probe(target_addr.into()));
            }
            let Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }) = repr else { return None };
            assert_eq!(ip.hop_limit(), 255);
            assert_eq!(lladdr.unwrap().as_bytes(), HOST_MAC);
            if flags.contains(NdiscNeighborFlags::SOLICITED) {
                return Some(Message::Reply(target_addr.into(), to.0));
            }
            // RFC 4861 §7.2.6: to all nodes, with the override flag.
            assert_eq!((ip.dst_addr(), to.0), ("ff02::1".parse().unwrap(), [0x33, 0x33, 0, 0, 0, 1]));
            assert!(flags.contains(NdiscNeighborFlags::OVERRIDE));
            Some(Message::Announcement(target_addr.into()))
        }
        _ => None,
    }
}

fn arp(operation: ArpOperation, source: ([u8; 6], Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(source.0),
        source_protocol_addr: source.1,
        target_hardware_addr: EthernetAddress(UNSPECIFIED),
        target_protocol_addr: target,
    };
    let mut bytes = vec![0; 14 + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress(source.0));
    frame.set_dst_addr(EthernetAddress::BROADCAST);
    frame.set_ethertype(EthernetProtocol::Arp);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

fn ndisc(mac: [u8; 6], source: Ipv6Addr, to: Ipv6Addr, message: NdiscRepr) -> Vec<u8> {
    let message = Icmpv6Repr::Ndisc(message);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: to,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: 255,
    };
    let mut bytes = vec![0; 14 + ip.buffer_len() + ip.payload_len];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress(mac));
    let [.., a, b, c, d] = to.octets();
    frame.set_dst_addr(EthernetAddress([0x33, 0x33, a, b, c, d]));
    frame.set_ethertype(EthernetProtocol::Ipv6);
    ip.emit(&mut Ipv6Packet::new_unchecked(frame.payload_mut()));
    message.emit(&source, &to, &mut Icmpv6Packet::new_unchecked(&mut bytes[54..]), &ChecksumCapabilities::default());
    bytes
}

fn advertisement(mac: [u8; 6], target: Ipv6Addr, flags: NdiscNeighborFlags) -> Vec<u8> {
    let lladdr = Some(HardwareAddress::Ethernet(EthernetAddress(mac)).into());
    let advertisement = NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr };
    ndisc(mac, target, "ff02::1".parse().unwrap(), advertisement)
}

#[test]
fn addresses_are_announced_on_link_up() {
    let mut bench = Bench::new();
    let link = bench.nic.link().clone();
    link.set_up(false);
    assert_eq!(bench.run_for(Duration::from_secs(3)), []);
    for round in 0..2 {
        link.set_up(true);
        let seen = bench.run_for(Duration::from_secs(10));
        let times = |ip: IpAddr| {
            let of =
                |&(at, message): &(Duration, Message)| (message == Message::Announcement(ip)).then_some(at.as_millis());
            seen.iter().filter_map(of).collect::<Vec<_>>()
        };
        let (four, six) = (times(FOUR.into()), times(SIX.into()));
        // RFC 5227 §2.3 and RFC 4861 §7.2.6, counted from the detection of link up. The link is polled ten times a
        // second.
        assert!(four[0] <= 150, "round {round}: {seen:?}");
        assert_eq!(four, [four[0], four[0] + 2000], "round {round}");
        assert_eq!(six, [four[0], four[0] + 1000, four[0] + 2000], "round {round}");
        assert_eq!(times("fe80::ff:fe00:2".parse().unwrap()).len(), 3, "round {round}");
        assert_eq!(seen.len(), 2 + 3 + 3, "round {round}");
        link.set_up(false);
        bench.run_for(Duration::from_secs(1));
    }
}

#[test]
fn one_worker_announces_for_all_workers() {
    let (mut nics, others) = Link::with_queues(LinkConfig::default(), 3);
    let mut host = Host::new(&server(), others, Echo::default);
    let mut seen = 0;
    for step in 0..200 {
        host.workers.iter_mut().for_each(|worker| _ = worker.turn(Instant::ZERO + Duration::from_millis(50) * step));
        for nic in &mut nics {
            let mut frames = Vec::with_capacity(32);
            nic.rx_burst(&mut frames);
            seen += frames.iter().filter(|frame| matches!(read(frame.data()), Some(Message::Announcement(_)))).count();
        }
    }
    assert_eq!(seen, 2 + 3 + 3);
}

#[test]
fn probe_of_own_address_is_answered() {
    let mut bench = Bench::announced();
    // RFC 5227 §2.1.1.
    let probe = arp(ArpOperation::Request, (OTHER, Ipv4Addr::UNSPECIFIED), FOUR);
    assert_eq!(bench.send_and_receive(&probe), [Message::Reply(FOUR.into(), OTHER)]);
    assert_eq!(
        bench.send_and_receive(&arp(ArpOperation::Request, (OTHER, Ipv4Addr::UNSPECIFIED), Ipv4Addr::new(10, 0, 0, 3))),
        []
    );
    // RFC 4861 §7.2.4: to all nodes, as the sender has no address.
    let solicit = |target| {
        let group = "ff02::1:ff00:2".parse().unwrap();
        let solicitation = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None };
        ndisc(OTHER, Ipv6Addr::UNSPECIFIED, group, solicitation)
    };
    assert_eq!(bench.send_and_receive(&solicit(SIX)), [Message::Announcement(SIX.into())]);
    assert_eq!(bench.send_and_receive(&solicit("fd00:1::2".parse().unwrap())), []);
    assert_eq!(bench.host.drops(CLAIMED), 0);
}

/// RFC 5227 §2.4 (c).
#[test]
fn claimed_address_is_defended_every_ten_seconds() {
    let claims = [
        (IpAddr::from(FOUR), arp(ArpOperation::Request, (OTHER, FOUR), FOUR)),
        (FOUR.into(), arp(ArpOperation::Reply, (OTHER, FOUR), Ipv4Addr::new(10, 0, 0, 9))),
        (SIX.into(), advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE)),
        (SIX.into(), advertisement(OTHER, SIX, NdiscNeighborFlags::SOLICITED)),
    ];
    for (ip, claim) in claims {
        let mut bench = Bench::announced();
        assert_eq!(bench.send_and_receive(&claim), [Message::Announcement(ip)]);
        for _ in 0..9 {
            bench.now += Duration::from_secs(1);
            assert_eq!(bench.send_and_receive(&claim), []);
        }
        bench.now += Duration::from_secs(1);
        assert_eq!(bench.send_and_receive(&claim), [Message::Announcement(ip)]);
        assert_eq!(bench.host.drops(CLAIMED), 11);
        let probe = arp(ArpOperation::Request, (OTHER, Ipv4Addr::new(10, 0, 0, 9)), FOUR);
        assert_eq!(bench.send_and_receive(&probe), [Message::Reply(FOUR.into(), OTHER)], "the address is still ours");
    }
}

#[test]
fn looped_back_messages_are_no_conflict() {
    let mut bench = Bench::announced();
    assert_eq!(bench.send_and_receive(&arp(ArpOperation::Request, (HOST_MAC, FOUR), FOUR)), []);
    assert_eq!(bench.send_and_receive(&advertisement(HOST_MAC, SIX, NdiscNeighborFlags::OVERRIDE)), []);
    assert_eq!(bench.host.drops(CLAIMED), 0);
}

/// Returns a neighbour solicitation for `target`.
fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    let lladdr = Some(HardwareAddress::Ethernet(EthernetAddress(OTHER)).into());
    let [.., a, b, c] = target.octets();
    let group = format!("ff02::1:ff{a:02x}:{b:02x}{c:02x}").parse().unwrap();
    ndisc(OTHER, "fd00::1".parse().unwrap(), group, NdiscRepr::NeighborSolicit { target_addr: target, lladdr })
}

/// Returns a duplicate address detection probe for `target` (RFC 4862 §5.4.2).
fn probe(mac: [u8; 6], target: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = target.octets();
    let group = format!("ff02::1:ff{a:02x}:{b:02x}{c:02x}").parse().unwrap();
    ndisc(mac, Ipv6Addr::UNSPECIFIED, group, NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None })
}

#[test]
fn ipv6_address_waits_for_dad_and_ipv4_does_not() {
    let local: Ipv6Addr = "fe80::ff:fe00:2".parse().unwrap();
    for transmits in [1, 3] {
        let mut bench = Bench::with_dad(transmits);
        let seen = bench.run_for(Duration::from_millis(950) + Duration::from_secs(u64::from(transmits) - 1));
        for ip in [SIX, local] {
            let tried: Vec<_> =
                seen.iter().filter(|(_, message)| *message == Message::Probe(ip.into())).map(|(at, _)| *at).collect();
            assert_eq!(tried.len(), usize::from(transmits), "{seen:?}");
            assert!(tried.windows(2).all(|two| two[1] - two[0] == Duration::from_secs(1)), "{tried:?}");
            assert!(seen.iter().all(|(_, message)| *message != Message::Announcement(ip.into())));
            assert_eq!(bench.send_and_receive(&solicitation(ip)), []);
        }
        assert!(!bench.host.workers[0].has_started());
        let question = arp(ArpOperation::Request, (OTHER, Ipv4Addr::new(10, 0, 0, 9)), FOUR);
        assert_eq!(bench.send_and_receive(&question), [Message::Reply(FOUR.into(), OTHER)]);
        let seen = bench.run_for(Duration::from_millis(300));
        assert!(bench.host.workers[0].has_started());
        for ip in [SIX, local] {
            assert!(seen.iter().any(|(_, message)| *message == Message::Announcement(ip.into())), "{seen:?}");
            assert_eq!(bench.send_and_receive(&solicitation(ip)), [Message::Reply(ip.into(), OTHER)]);
        }
        assert_eq!(bench.host.workers[0].duplicate(), None);
    }
}

#[test]
fn dad_conflict_is_reported_with_both_stations() {
    let local = "fe80::ff:fe00:2".parse().unwrap();
    let messages = [
        (SIX, advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE)),
        (SIX, advertisement(OTHER, SIX, NdiscNeighborFlags::empty())),
        (local, advertisement(OTHER, local, NdiscNeighborFlags::OVERRIDE)),
        (SIX, probe(OTHER, SIX)),
    ];
    for (ip, message) in messages {
        let mut bench = Bench::with_dad(1);
        bench.run_for(Duration::from_millis(500));
        bench.send_and_receive(&message);
        let error = bench.host.workers[0].duplicate().expect("a duplicate").to_string();
        assert!(error.contains(&ip.to_string()) && error.contains("02:01:00:00:00:01"), "{error}");
    }
    // No conflict: the worker's own message looped back, a solicitation, another address, and an off-link message.
    let mut from_afar = advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE);
    from_afar[21] = 254;
    let other = "fd00::3".parse().unwrap();
    let harmless = [
        probe(HOST_MAC, SIX),
        advertisement(HOST_MAC, SIX, NdiscNeighborFlags::OVERRIDE),
        solicitation(SIX),
        advertisement(OTHER, other, NdiscNeighborFlags::OVERRIDE),
        probe(OTHER, other),
        from_afar,
    ];
    let mut bench = Bench::with_dad(1);
    bench.run_for(Duration::from_millis(500));
    for message in harmless {
        bench.send_and_receive(&message);
        assert_eq!(bench.host.workers[0].duplicate(), None);
    }
    bench.run_for(Duration::from_millis(800));
    assert_eq!(bench.send_and_receive(&solicitation(SIX)), [Message::Reply(SIX.into(), OTHER)]);
    // After duplicate address detection the address is defended.
    bench.send_and_receive(&advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE));
    assert_eq!((bench.host.workers[0].duplicate(), bench.host.drops(CLAIMED)), (None, 1));
}

/// Some peers bring up the link only after this host is ready.
#[test]
fn service_starts_with_link_down_and_dad_runs_on_link_up() {
    let mut bench = Bench::with_dad(1);
    let link = bench.nic.link().clone();
    link.set_up(false);
    bench.run_for(Duration::from_millis(200));
    assert!(bench.host.workers[0].has_started());
    bench.run_for(Duration::from_secs(5));
    link.set_up(true);
    let seen = bench.run_for(Duration::from_secs(1));
    assert!(seen.iter().any(|(_, message)| *message == Message::Probe(SIX.into())), "{seen:?}");
    assert_eq!(bench.send_and_receive(&solicitation(SIX)), []);
    bench.run_for(Duration::from_millis(300));
    assert_eq!(bench.send_and_receive(&solicitation(SIX)), [Message::Reply(SIX.into(), OTHER)]);
}

#[test]
fn dad_result_reaches_all_workers() {
    let mut net = {
        let (a, b) = (Config { dad_transmits: 1, ..host(1) }, Config { dad_transmits: 1, ..server() });
        Net::with(LinkConfig::default(), 3, &a, || Client::new(SERVER6, 5, 1000), &b, Echo::default)
    };
    // The link state is polled by time.
    let over = |net: &Net<Client, Echo>| net.a.workers.iter().all(|worker| worker.service().all_finished());
    for _ in 0..500 {
        net.link.clock().advance(Duration::from_millis(10));
        net.turn();
        let started = net.a.workers.iter().all(|worker| worker.has_started());
        if started && over(&net) {
            break;
        }
    }
    net.a.workers.iter().for_each(|worker| worker.service().assert_exact());
    assert!(net.b.workers.iter_mut().all(|worker| worker.summary().accepted == 5));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// One defence per address and ten seconds, for any messages at any rate.
    #[test]
    fn defences_are_rate_limited(
        claims in prop::collection::vec((any::<bool>(), any::<[u8; 6]>(), 0u64..400), 1..200)
    ) {
        let mut bench = Bench::announced();
        let start = bench.now;
        let mut defences = 0;
        for (six, mac, wait) in claims {
            bench.now += Duration::from_millis(wait);
            let frame = match six {
                true => advertisement(mac, SIX, NdiscNeighborFlags::OVERRIDE),
                false => arp(ArpOperation::Reply, (mac, FOUR), FOUR),
            };
            defences += bench.send_and_receive(&frame).len() as u64;
        }
        prop_assert!(defences <= 2 * (1 + bench.now.since(start).as_millis() as u64 / 10_000), "{}", defences);
    }
}
