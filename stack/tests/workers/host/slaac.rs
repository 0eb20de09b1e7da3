//! IPv6 as routers on the link have it: addresses of the prefixes that they advertise (RFC 4862), for as long as they say.

use crate::common::services::Echo;
use crate::common::{Host, Native, frames, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, Nic, Packet};
use linerate_stack::{Config, Engine, SmoltcpEngine};
use smoltcp::wire::*;
use std::net::{Ipv6Addr, SocketAddr};

const STATION: [u8; 6] = [2, 1, 0, 0, 0, 1];
const OURS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const OURS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0xff, 0xfe00, 2);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// A host that is not on the link.
const FAR: &str = "[2001:db8:ffff::7]:5000";

/// What a host says on the link, in the order in which it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// It listens to the groups in which it is asked for, and says so from this address.
    Listens(Ipv6Addr),
    /// Has anybody this address?
    Tries(Ipv6Addr),
    /// Which routers are there? It says where it is, or not.
    WantsRouters(Ipv6Addr, bool),
    /// It has this address.
    Has(Ipv6Addr),
}

/// A router at the bare end of a link of as many queues as the host has workers.
struct Bench<E: Engine<MemoryNic>> {
    nics: Vec<MemoryNic>,
    host: Host<Echo, E>,
    now: Instant,
    words: Vec<(Instant, Word)>,
    segments: Vec<Vec<u8>>,
}

impl<E: Engine<MemoryNic>> Bench<E> {
    fn new(config: &Config, workers: usize) -> Self {
        let (nics, others) = Link::with_queues(LinkConfig::default(), workers);
        let host = Host::start(config, others, Echo::default);
        Bench { nics, host, now: Instant::ZERO, words: Vec::new(), segments: Vec::new() }
    }

    /// One that has an address.
    fn settled(workers: usize, advertised: &[u8]) -> Self {
        let mut bench = Bench::new(&config(), workers);
        bench.go_on(Duration::from_secs(3));
        bench.send(0, advertised);
        bench.go_on(Duration::from_secs(3));
        assert!(bench.host.workers.iter().all(|worker| worker.has_started()));
        bench
    }

    fn go_on(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let next = self.host.workers.iter().filter_map(|worker| worker.next_deadline()).min().unwrap_or(until);
            // Only time itself brings the link's state to light.
            let (least, most) = (self.now + Duration::from_millis(10), self.now + Duration::from_millis(100));
            self.now = next.clamp(least, most).min(until);
            self.turn();
        }
    }

    fn turn(&mut self) {
        for _ in 0..4 {
            self.host.workers.iter_mut().for_each(|worker| _ = worker.turn(self.now));
            for nic in &mut self.nics {
                let mut frames = Vec::with_capacity(32);
                nic.rx_burst(&mut frames);
                for frame in frames {
                    let bytes: Vec<u8> = frame.segments().flatten().copied().collect();
                    match read(&bytes) {
                        Some(word) => self.words.push((self.now, word)),
                        None if bytes[12..14] == [0x86, 0xdd] && bytes[20] == 6 => self.segments.push(bytes),
                        None => {}
                    }
                }
            }
        }
    }

    fn send(&mut self, queue: usize, bytes: &[u8]) {
        let mut frame = self.nics[queue].allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
        assert_eq!(self.nics[queue].tx_burst(&mut vec![frame]), 1);
        self.turn();
    }

    /// What is answered to a segment.
    fn asks(&mut self, segment: &[u8]) -> Vec<Vec<u8>> {
        self.segments.clear();
        for queue in 0..self.nics.len() {
            self.send(queue, segment);
        }
        std::mem::take(&mut self.segments)
    }

    /// Begins a connection; the answer to its SYN.
    fn opens(&mut self, from: &str, to: Ipv6Addr) -> Option<Vec<u8>> {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), (to, 7).into());
        let max_seg_size = Some(1440);
        let syn =
            TcpRepr { control: TcpControl::Syn, seq_number: TcpSeqNumber(100), max_seg_size, ..frames::segment() };
        let answer = self.asks(&frames::tcp(STATION, OURS_MAC, from, to, syn)).into_iter().next()?;
        let number = TcpPacket::new_checked(&answer[54..]).unwrap().seq_number();
        let ack = TcpRepr { seq_number: TcpSeqNumber(101), ack_number: Some(number + 1), ..frames::segment() };
        self.asks(&frames::tcp(STATION, OURS_MAC, from, to, ack));
        Some(answer)
    }

    fn said(&self, word: Word) -> Vec<Instant> {
        self.words.iter().filter(|(_, said)| *said == word).map(|(at, _)| *at).collect()
    }
}

/// What a frame of the host's says, if it is one of multicast or neighbour discovery.
fn read(frame: &[u8]) -> Option<Word> {
    let ip = Ipv6Packet::new_checked(frame.get(14..).filter(|_| frame[12..14] == [0x86, 0xdd])?).ok()?;
    if ip.next_header() == IpProtocol::HopByHop {
        assert_eq!((ip.payload()[0], ip.payload()[8], ip.hop_limit()), (58, 143, 1));
        return Some(Word::Listens(ip.src_addr()));
    }
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok().filter(|_| ip.next_header() == IpProtocol::Icmpv6)?;
    match Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &Default::default()).ok()? {
        Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { lladdr }) => {
            assert_eq!(
                (ip.hop_limit(), ip.dst_addr(), &frame[..6]),
                (255, "ff02::2".parse().unwrap(), &[0x33, 0x33, 0, 0, 0, 2][..])
            );
            Some(Word::WantsRouters(ip.src_addr(), lladdr.is_some()))
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. }) if ip.src_addr().is_unspecified() => {
            Some(Word::Tries(target_addr))
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, .. }) => Some(Word::Has(target_addr)),
        _ => None,
    }
}

/// What the router advertises: itself for half an hour, and options.
fn advertised(options: &[&[u8]]) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    message.extend_from_slice(&STATION);
    options.iter().for_each(|option| message.extend_from_slice(option));
    let mut bytes = vec![0; 54];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress(STATION));
    frame.set_dst_addr(EthernetAddress([0x33, 0x33, 0, 0, 0, 1]));
    frame.set_ethertype(EthernetProtocol::Ipv6);
    let payload_len = message.len();
    let next_header = IpProtocol::Icmpv6;
    Ipv6Repr { src_addr: ROUTER, dst_addr: ALL_NODES, next_header, payload_len, hop_limit: 255 }
        .emit(&mut Ipv6Packet::new_unchecked(&mut bytes[14..]));
    bytes.extend_from_slice(&message);
    Icmpv6Packet::new_unchecked(&mut bytes[54..]).fill_checksum(&ROUTER, &ALL_NODES);
    bytes
}

/// 2001:db8::/64, on the link, and addresses are formed of it, for so many seconds.
fn prefix(valid: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, 0xc0];
    option.extend_from_slice(&valid.to_be_bytes());
    option.extend_from_slice(&valid.to_be_bytes());
    option.extend_from_slice(&[0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    option
}

fn config() -> Config {
    // smoltcp gives a peer up that is silent for so long, whether something was sent to it or not.
    let user_timeout = Duration::from_secs(86_400);
    Config { addresses: vec![], slaac: true, dad_transmits: 1, user_timeout, ..server() }
}

/// RFC 4862 §5.4.2: groups are told before addresses are tried; RFC 4861 §6.3.7: routers are asked by who has an address.
#[test]
fn a_host_that_knows_nothing_gets_an_address_and_serves_on_it() {
    let mut bench = Bench::<Native>::new(&config(), 1);
    bench.go_on(Duration::from_secs(3));
    assert!(!bench.host.workers[0].has_started(), "there is nobody to serve with the link-local address alone");
    let order: Vec<_> = bench.words.iter().map(|(_, word)| *word).collect();
    assert_eq!(order[..2], [Word::Listens(Ipv6Addr::UNSPECIFIED), Word::Tries(LINK_LOCAL)], "{order:?}");
    assert!(order.contains(&Word::Has(LINK_LOCAL)) && order.contains(&Word::Listens(LINK_LOCAL)));
    assert_eq!(bench.said(Word::WantsRouters(LINK_LOCAL, true)).len(), 1, "{order:?}");
    bench.words.clear();
    bench.send(0, &advertised(&[&prefix(3600)]));
    bench.go_on(Duration::from_secs(3));
    assert!(bench.host.workers[0].has_started());
    let (tried, has) = (bench.said(Word::Tries(OURS)), bench.said(Word::Has(OURS)));
    assert_eq!(tried.len(), 1);
    assert!(has[0].since(tried[0]) >= Duration::from_secs(1), "{tried:?} {has:?}");
    // A neighbour, and who is behind the router, whose station is known from what it said.
    for from in ["[2001:db8::99]:5000", FAR] {
        let answer = bench.opens(from, OURS);
        assert_eq!(answer.is_some(), from == FAR, "a neighbour is asked where it is");
    }
    assert_eq!(bench.host.service().open, 1);
    bench.go_on(Duration::from_secs(60));
    assert_eq!(bench.said(Word::WantsRouters(LINK_LOCAL, true)), []);
}

fn an_address_that_is_over_takes_its_connections_along<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::settled(1, &advertised(&[&prefix(60)]));
    assert!(bench.opens(FAR, OURS).is_some());
    bench.go_on(Duration::from_secs(30));
    // Within two hours nothing brings the end nearer.
    bench.send(0, &advertised(&[&prefix(0)]));
    bench.go_on(Duration::from_secs(20));
    assert_eq!((bench.host.service().open, &bench.host.service().closed[..]), (1, &[][..]));
    bench.segments.clear();
    bench.go_on(Duration::from_secs(20));
    assert_eq!(bench.host.service().closed, [CloseReason::AddressLost]);
    assert_eq!(bench.segments, Vec::<Vec<u8>>::new(), "not even a reset");
    assert_eq!(bench.opens(FAR, OURS), None);
    // It may come back.
    bench.send(0, &advertised(&[&prefix(60)]));
    bench.go_on(Duration::from_secs(3));
    assert!(bench.opens(FAR, OURS).is_some());
}

#[test]
fn an_address_that_is_over_takes_its_connections_along_native() {
    an_address_that_is_over_takes_its_connections_along::<Native>();
}

#[test]
fn an_address_that_is_over_takes_its_connections_along_smoltcp() {
    an_address_that_is_over_takes_its_connections_along::<SmoltcpEngine>();
}

#[test]
fn renewed_addresses_go_on() {
    let mut bench = Bench::<Native>::settled(1, &advertised(&[&prefix(60)]));
    assert!(bench.opens(FAR, OURS).is_some());
    for _ in 0..20 {
        bench.go_on(Duration::from_secs(50));
        bench.send(0, &advertised(&[&prefix(60)]));
    }
    assert_eq!((bench.host.service().open, &bench.host.service().closed[..]), (1, &[][..]));
}

/// What routers say comes to one queue, whichever that is; one worker asks, and all know.
#[test]
fn all_workers_have_what_one_of_them_was_told() {
    for queue in 0..3 {
        let mut bench = Bench::<Native>::new(&config(), 3);
        bench.go_on(Duration::from_secs(3));
        assert_eq!(bench.said(Word::WantsRouters(LINK_LOCAL, true)).len(), 1);
        bench.send(queue, &advertised(&[&prefix(60)]));
        bench.go_on(Duration::from_secs(3));
        assert!(bench.host.workers.iter().all(|worker| worker.has_started()));
        assert_eq!(bench.said(Word::Tries(OURS)).len(), 1);
        assert!(bench.opens(FAR, OURS).is_some());
        bench.go_on(Duration::from_secs(60));
        let closed = bench.host.workers.iter().flat_map(|worker| worker.service().closed.clone());
        assert_eq!(closed.collect::<Vec<_>>(), [CloseReason::AddressLost]);
    }
}

#[test]
fn another_station_that_has_the_address_keeps_it_and_the_host_goes_on() {
    let given = "fd00::2/64".parse().unwrap();
    for queue in 0..2 {
        let mut bench = Bench::<Native>::new(&Config { addresses: vec![given], ..config() }, 2);
        bench.go_on(Duration::from_secs(3));
        bench.send(0, &advertised(&[&prefix(3600)]));
        let flags = NdiscNeighborFlags::OVERRIDE;
        let claim = NdiscRepr::NeighborAdvert { flags, target_addr: OURS, lladdr: None };
        let claim = Icmpv6Repr::Ndisc(claim);
        let mut bytes = frames::ip(
            STATION,
            [0x33, 0x33, 0, 0, 0, 1],
            OURS.into(),
            ALL_NODES.into(),
            IpProtocol::Icmpv6,
            claim.buffer_len(),
            |bytes, _, _| {
                claim.emit(&OURS, &ALL_NODES, &mut Icmpv6Packet::new_unchecked(bytes), &Default::default());
            },
        );
        bytes[21] = 255;
        bench.send(queue, &bytes);
        bench.go_on(Duration::from_secs(5));
        assert_eq!(bench.said(Word::Has(OURS)), []);
        assert_eq!(bench.opens(FAR, OURS), None);
        assert!(bench.host.workers.iter().all(|worker| worker.duplicate().is_none()));
        assert!(bench.opens(FAR, "fd00::2".parse().unwrap()).is_some());
    }
}

/// RFC 4861 §6.3.4.
#[test]
fn the_mtu_that_routers_say_bounds_segments() {
    let mss = |frame: &[u8]| {
        let packet = TcpPacket::new_checked(&frame[54..]).unwrap();
        let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
        let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
        TcpRepr::parse(&packet, &source, &destination, &Default::default()).unwrap().max_seg_size
    };
    for (said, expected) in [(1400_u32, 1340), (1279, 1440), (9000, 1440)] {
        let mut option = vec![5, 1, 0, 0];
        option.extend_from_slice(&said.to_be_bytes());
        let mut bench = Bench::<Native>::settled(1, &advertised(&[&prefix(3600), &option]));
        assert_eq!(mss(&bench.opens(FAR, OURS).unwrap()), Some(expected), "{said}");
    }
}

#[test]
fn advertisements_that_are_not_valid_or_not_asked_for_are_not_gone_by() {
    let mut from_afar = advertised(&[&prefix(3600)]);
    from_afar[21] = 254;
    let mut bench = Bench::<Native>::new(&config(), 1);
    bench.go_on(Duration::from_secs(3));
    bench.send(0, &from_afar);
    bench.go_on(Duration::from_secs(3));
    assert_eq!((bench.said(Word::Tries(OURS)), bench.host.drops("invalid router advertisement")), (vec![], 1));
    let mut bench = Bench::<Native>::new(&Config { dad_transmits: 1, ..server() }, 1);
    bench.go_on(Duration::from_secs(3));
    bench.send(0, &advertised(&[&prefix(3600)]));
    bench.go_on(Duration::from_secs(3));
    assert_eq!(bench.said(Word::Tries(OURS)), []);
    assert_eq!(bench.said(Word::WantsRouters(LINK_LOCAL, true)), []);
}
