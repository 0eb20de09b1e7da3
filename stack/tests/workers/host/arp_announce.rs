//! How our addresses are seen on the link: announced, defended, and answered for to those who have none yet.

use crate::common::client::Client;
use crate::common::services::Echo;
use crate::common::{Host, Net, SERVER6, host, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Nic, Packet};
use linerate_stack::Config;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OTHER: [u8; 6] = [2, 1, 0, 0, 0, 1];
const NOBODY: [u8; 6] = [0; 6];
const FOUR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const CLAIMED: &str = "address of ours claimed by another station";

/// What a station says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    /// It is mine: to all.
    Announced(IpAddr),
    /// It is mine: to this station.
    Told(IpAddr, [u8; 6]),
    /// Has anybody this one? I have none yet.
    Tried(IpAddr),
}

/// The station at one end of a link, and the host at the other.
struct Bench {
    nic: MemoryNic,
    host: Host<Echo>,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Bench::with(0)
    }

    /// With so many probes for each IPv6 address.
    fn with(dad_transmits: u8) -> Self {
        let (nic, other) = Link::pair(LinkConfig::default());
        let config = Config { dad_transmits, ..server() };
        Bench { nic, host: Host::new(&config, vec![other], Echo::default), now: Instant::ZERO }
    }

    /// As [`new`](Self::new), after all announcements.
    fn settled() -> Self {
        let mut bench = Bench::new();
        bench.go_on(Duration::from_secs(10));
        bench
    }

    /// What the host says now.
    fn words(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        for _ in 0..4 {
            self.host.workers[0].turn(self.now);
            let mut frames = Vec::with_capacity(32);
            while self.nic.rx_burst(&mut frames) > 0 {
                words.extend(frames.drain(..).filter_map(|frame| read(frame.data())));
            }
        }
        words.sort();
        words
    }

    /// What it says in the course of `time`, and when.
    fn go_on(&mut self, time: Duration) -> Vec<(Duration, Word)> {
        let (start, step) = (self.now, Duration::from_millis(50));
        let mut said = Vec::new();
        while self.now.since(start) < time {
            self.now += step;
            let now = self.now;
            said.extend(self.words().into_iter().map(|word| (now.since(start), word)));
        }
        said
    }

    fn hears(&mut self, frame: &[u8]) -> Vec<Word> {
        let mut packet = self.nic.allocate().unwrap();
        packet.append(frame.len()).unwrap().copy_from_slice(frame);
        assert_eq!(self.nic.tx_burst(&mut vec![packet]), 1);
        self.words()
    }
}

/// What a frame of the host's says of an address of its own.
fn read(frame: &[u8]) -> Option<Word> {
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
            assert_eq!((ethernet.src_addr().0, source_hardware_addr.0), (OURS, OURS));
            match operation {
                // RFC 5227 §2.3: a request for its own address.
                ArpOperation::Request if source_protocol_addr == target_protocol_addr => {
                    assert!(to.is_broadcast());
                    Some(Word::Announced(source_protocol_addr.into()))
                }
                ArpOperation::Reply => Some(Word::Told(source_protocol_addr.into(), to.0)),
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
                return Some(Word::Tried(target_addr.into()));
            }
            let Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }) = repr else { return None };
            assert_eq!(ip.hop_limit(), 255);
            assert_eq!(lladdr.unwrap().as_bytes(), OURS);
            if flags.contains(NdiscNeighborFlags::SOLICITED) {
                return Some(Word::Told(target_addr.into(), to.0));
            }
            // RFC 4861 §7.2.6: to all nodes, and to be believed over what they knew.
            assert_eq!((ip.dst_addr(), to.0), ("ff02::1".parse().unwrap(), [0x33, 0x33, 0, 0, 0, 1]));
            assert!(flags.contains(NdiscNeighborFlags::OVERRIDE));
            Some(Word::Announced(target_addr.into()))
        }
        _ => None,
    }
}

fn arp(operation: ArpOperation, source: ([u8; 6], Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(source.0),
        source_protocol_addr: source.1,
        target_hardware_addr: EthernetAddress(NOBODY),
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
fn addresses_are_announced_when_the_link_comes_up_and_not_before() {
    let mut bench = Bench::new();
    let link = bench.nic.link().clone();
    link.set_up(false);
    assert_eq!(bench.go_on(Duration::from_secs(3)), []);
    for round in 0..2 {
        link.set_up(true);
        let said = bench.go_on(Duration::from_secs(10));
        let times = |ip: IpAddr| {
            let of = |&(at, word): &(Duration, Word)| (word == Word::Announced(ip)).then_some(at.as_millis());
            said.iter().filter_map(of).collect::<Vec<_>>()
        };
        let (four, six) = (times(FOUR.into()), times(SIX.into()));
        // RFC 5227 §2.3 and RFC 4861 §7.2.6, from when the link was seen to be up: it is looked at ten times a second.
        assert!(four[0] <= 150, "round {round}: {said:?}");
        assert_eq!(four, [four[0], four[0] + 2000], "round {round}");
        assert_eq!(six, [four[0], four[0] + 1000, four[0] + 2000], "round {round}");
        assert_eq!(times("fe80::ff:fe00:2".parse().unwrap()).len(), 3, "round {round}");
        assert_eq!(said.len(), 2 + 3 + 3, "round {round}");
        link.set_up(false);
        bench.go_on(Duration::from_secs(1));
    }
}

#[test]
fn one_worker_announces_for_all() {
    let (mut nics, others) = Link::with_queues(LinkConfig::default(), 3);
    let mut host = Host::new(&server(), others, Echo::default);
    let mut said = 0;
    for step in 0..200 {
        host.workers.iter_mut().for_each(|worker| _ = worker.turn(Instant::ZERO + Duration::from_millis(50) * step));
        for nic in &mut nics {
            let mut frames = Vec::with_capacity(32);
            nic.rx_burst(&mut frames);
            said += frames.iter().filter(|frame| matches!(read(frame.data()), Some(Word::Announced(_)))).count();
        }
    }
    assert_eq!(said, 2 + 3 + 3);
}

#[test]
fn a_host_that_probes_for_an_address_of_ours_is_told() {
    let mut bench = Bench::settled();
    // RFC 5227 §2.1.1.
    let probe = arp(ArpOperation::Request, (OTHER, Ipv4Addr::UNSPECIFIED), FOUR);
    assert_eq!(bench.hears(&probe), [Word::Told(FOUR.into(), OTHER)]);
    assert_eq!(
        bench.hears(&arp(ArpOperation::Request, (OTHER, Ipv4Addr::UNSPECIFIED), Ipv4Addr::new(10, 0, 0, 3))),
        []
    );
    // RFC 4861 §7.2.4: to all nodes, as it has no address to be told at.
    let solicit = |target| {
        let group = "ff02::1:ff00:2".parse().unwrap();
        let solicitation = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None };
        ndisc(OTHER, Ipv6Addr::UNSPECIFIED, group, solicitation)
    };
    assert_eq!(bench.hears(&solicit(SIX)), [Word::Announced(SIX.into())]);
    assert_eq!(bench.hears(&solicit("fd00:1::2".parse().unwrap())), []);
    assert_eq!(bench.host.drops(CLAIMED), 0);
}

/// RFC 5227 §2.4 (c).
#[test]
fn an_address_that_another_claims_is_defended_once_in_ten_seconds_and_kept() {
    let claims = [
        (IpAddr::from(FOUR), arp(ArpOperation::Request, (OTHER, FOUR), FOUR)),
        (FOUR.into(), arp(ArpOperation::Reply, (OTHER, FOUR), Ipv4Addr::new(10, 0, 0, 9))),
        (SIX.into(), advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE)),
        (SIX.into(), advertisement(OTHER, SIX, NdiscNeighborFlags::SOLICITED)),
    ];
    for (ip, claim) in claims {
        let mut bench = Bench::settled();
        assert_eq!(bench.hears(&claim), [Word::Announced(ip)]);
        for _ in 0..9 {
            bench.now += Duration::from_secs(1);
            assert_eq!(bench.hears(&claim), []);
        }
        bench.now += Duration::from_secs(1);
        assert_eq!(bench.hears(&claim), [Word::Announced(ip)]);
        assert_eq!(bench.host.drops(CLAIMED), 11);
        let probe = arp(ArpOperation::Request, (OTHER, Ipv4Addr::new(10, 0, 0, 9)), FOUR);
        assert_eq!(bench.hears(&probe), [Word::Told(FOUR.into(), OTHER)], "it is ours still");
    }
}

#[test]
fn what_comes_back_of_our_own_words_is_no_claim() {
    let mut bench = Bench::settled();
    assert_eq!(bench.hears(&arp(ArpOperation::Request, (OURS, FOUR), FOUR)), []);
    assert_eq!(bench.hears(&advertisement(OURS, SIX, NdiscNeighborFlags::OVERRIDE)), []);
    assert_eq!(bench.host.drops(CLAIMED), 0);
}

/// Who wants to know where `target` is.
fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    let lladdr = Some(HardwareAddress::Ethernet(EthernetAddress(OTHER)).into());
    let [.., a, b, c] = target.octets();
    let group = format!("ff02::1:ff{a:02x}:{b:02x}{c:02x}").parse().unwrap();
    ndisc(OTHER, "fd00::1".parse().unwrap(), group, NdiscRepr::NeighborSolicit { target_addr: target, lladdr })
}

/// Who tries `target`, as RFC 4862 §5.4.2 has it.
fn probe(mac: [u8; 6], target: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = target.octets();
    let group = format!("ff02::1:ff{a:02x}:{b:02x}{c:02x}").parse().unwrap();
    ndisc(mac, Ipv6Addr::UNSPECIFIED, group, NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None })
}

#[test]
fn an_ipv6_address_is_tried_before_it_is_used_and_one_of_ipv4_is_used_meanwhile() {
    let local: Ipv6Addr = "fe80::ff:fe00:2".parse().unwrap();
    for transmits in [1, 3] {
        let mut bench = Bench::with(transmits);
        let said = bench.go_on(Duration::from_millis(950) + Duration::from_secs(u64::from(transmits) - 1));
        for ip in [SIX, local] {
            let tried: Vec<_> =
                said.iter().filter(|(_, word)| *word == Word::Tried(ip.into())).map(|(at, _)| *at).collect();
            assert_eq!(tried.len(), usize::from(transmits), "{said:?}");
            assert!(tried.windows(2).all(|two| two[1] - two[0] == Duration::from_secs(1)), "{tried:?}");
            assert!(said.iter().all(|(_, word)| *word != Word::Announced(ip.into())));
            assert_eq!(bench.hears(&solicitation(ip)), []);
        }
        assert!(!bench.host.workers[0].has_started());
        let question = arp(ArpOperation::Request, (OTHER, Ipv4Addr::new(10, 0, 0, 9)), FOUR);
        assert_eq!(bench.hears(&question), [Word::Told(FOUR.into(), OTHER)]);
        let said = bench.go_on(Duration::from_millis(300));
        assert!(bench.host.workers[0].has_started());
        for ip in [SIX, local] {
            assert!(said.iter().any(|(_, word)| *word == Word::Announced(ip.into())), "{said:?}");
            assert_eq!(bench.hears(&solicitation(ip)), [Word::Told(ip.into(), OTHER)]);
        }
        assert_eq!(bench.host.workers[0].duplicate(), None);
    }
}

#[test]
fn an_address_that_another_has_or_tries_too_is_an_error_that_names_both() {
    let local = "fe80::ff:fe00:2".parse().unwrap();
    let words = [
        (SIX, advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE)),
        (SIX, advertisement(OTHER, SIX, NdiscNeighborFlags::empty())),
        (local, advertisement(OTHER, local, NdiscNeighborFlags::OVERRIDE)),
        (SIX, probe(OTHER, SIX)),
    ];
    for (ip, word) in words {
        let mut bench = Bench::with(1);
        bench.go_on(Duration::from_millis(500));
        bench.hears(&word);
        let error = bench.host.workers[0].duplicate().expect("a duplicate").to_string();
        assert!(error.contains(&ip.to_string()) && error.contains("02:01:00:00:00:01"), "{error}");
    }
    // Ours that comes back, who asks where it is, another address, and what came from off the link.
    let mut from_afar = advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE);
    from_afar[21] = 254;
    let other = "fd00::3".parse().unwrap();
    let harmless = [
        probe(OURS, SIX),
        advertisement(OURS, SIX, NdiscNeighborFlags::OVERRIDE),
        solicitation(SIX),
        advertisement(OTHER, other, NdiscNeighborFlags::OVERRIDE),
        probe(OTHER, other),
        from_afar,
    ];
    let mut bench = Bench::with(1);
    bench.go_on(Duration::from_millis(500));
    for word in harmless {
        bench.hears(&word);
        assert_eq!(bench.host.workers[0].duplicate(), None);
    }
    bench.go_on(Duration::from_millis(800));
    assert_eq!(bench.hears(&solicitation(SIX)), [Word::Told(SIX.into(), OTHER)]);
    // Once it is ours it is defended.
    bench.hears(&advertisement(OTHER, SIX, NdiscNeighborFlags::OVERRIDE));
    assert_eq!((bench.host.workers[0].duplicate(), bench.host.drops(CLAIMED)), (None, 1));
}

/// The other end may wait for us to be ready.
#[test]
fn where_the_link_is_down_the_service_starts_and_addresses_are_tried_when_it_is_up() {
    let mut bench = Bench::with(1);
    let link = bench.nic.link().clone();
    link.set_up(false);
    bench.go_on(Duration::from_millis(200));
    assert!(bench.host.workers[0].has_started());
    bench.go_on(Duration::from_secs(5));
    link.set_up(true);
    let said = bench.go_on(Duration::from_secs(1));
    assert!(said.iter().any(|(_, word)| *word == Word::Tried(SIX.into())), "{said:?}");
    assert_eq!(bench.hears(&solicitation(SIX)), []);
    bench.go_on(Duration::from_millis(300));
    assert_eq!(bench.hears(&solicitation(SIX)), [Word::Told(SIX.into(), OTHER)]);
}

#[test]
fn all_workers_learn_that_addresses_are_ours() {
    let mut net = {
        let (a, b) = (Config { dad_transmits: 1, ..host(1) }, Config { dad_transmits: 1, ..server() });
        Net::with(LinkConfig::default(), 3, &a, || Client::new(SERVER6, 5, 1000), &b, Echo::default)
    };
    // Only time itself brings the link's state to light.
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

    /// Whatever stations say, and however fast: one defence of each address in ten seconds.
    #[test]
    fn no_flood_of_claims_makes_a_flood_of_defences(
        claims in prop::collection::vec((any::<bool>(), any::<[u8; 6]>(), 0u64..400), 1..200)
    ) {
        let mut bench = Bench::settled();
        let start = bench.now;
        let mut defences = 0;
        for (six, mac, wait) in claims {
            bench.now += Duration::from_millis(wait);
            let frame = match six {
                true => advertisement(mac, SIX, NdiscNeighborFlags::OVERRIDE),
                false => arp(ArpOperation::Reply, (mac, FOUR), FOUR),
            };
            defences += bench.hears(&frame).len() as u64;
        }
        prop_assert!(defences <= 2 * (1 + bench.now.since(start).as_millis() as u64 / 10_000), "{}", defences);
    }
}
