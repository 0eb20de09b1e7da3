//! IPv6 stateless address autoconfiguration (RFC 4862): addresses from advertised prefixes, for their lifetime.

use crate::common::services::Echo;
use crate::common::{HOST_MAC, Host, Native, frames, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{Nic, Packet};
use linerate_service::CloseReason;
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Engine};
use smoltcp::wire::*;
use std::net::{Ipv6Addr, SocketAddr};

const STATION: [u8; 6] = [2, 1, 0, 0, 0, 1];
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const HOST_ADDRESS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0xff, 0xfe00, 2);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Address of an off-link host.
const FAR: &str = "[2001:db8:ffff::7]:5000";

/// Neighbour discovery or multicast listener message of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// Multicast listener report from this address.
    ListenerReport(Ipv6Addr),
    /// Duplicate address detection probe.
    Probe(Ipv6Addr),
    /// Router solicitation from this address, with the link-layer address or not.
    RouterSolicitation(Ipv6Addr, bool),
    /// Unsolicited advertisement of an address.
    Advertisement(Ipv6Addr),
}

/// Router on a link with as many queues as the host has workers.
struct Bench<E: Engine<MemoryNic>> {
    nics: Vec<MemoryNic>,
    host: Host<Echo, E>,
    now: Instant,
    messages: Vec<(Instant, Message)>,
    segments: Vec<Vec<u8>>,
}

impl<E: Engine<MemoryNic>> Bench<E> {
    fn new(config: &Config, workers: usize) -> Self {
        let (nics, others) = Link::with_queues(LinkConfig::default(), workers);
        let host = Host::start(config, others, Echo::default);
        Bench { nics, host, now: Instant::ZERO, messages: Vec::new(), segments: Vec::new() }
    }

    /// Creates a host that has received `advertised` and has its addresses.
    fn configured(workers: usize, advertised: &[u8]) -> Self {
        let mut bench = Bench::new(&config(), workers);
        bench.run_for(Duration::from_secs(3));
        bench.send(0, advertised);
        bench.run_for(Duration::from_secs(3));
        assert!(bench.host.workers.iter().all(|worker| worker.has_started()));
        bench
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let next = self.host.workers.iter().filter_map(|worker| worker.next_deadline()).min().unwrap_or(until);
            // The link state is polled by time.
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
                        Some(message) => self.messages.push((self.now, message)),
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

    /// Sends a segment and returns the replies.
    fn reply_to(&mut self, segment: &[u8]) -> Vec<Vec<u8>> {
        self.segments.clear();
        for queue in 0..self.nics.len() {
            self.send(queue, segment);
        }
        std::mem::take(&mut self.segments)
    }

    /// Sends a SYN and returns the reply.
    fn open(&mut self, from: &str, to: Ipv6Addr) -> Option<Vec<u8>> {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), (to, 7).into());
        let max_seg_size = Some(1440);
        let syn =
            TcpRepr { control: TcpControl::Syn, seq_number: TcpSeqNumber(100), max_seg_size, ..frames::segment() };
        let answer = self.reply_to(&frames::tcp(STATION, HOST_MAC, from, to, syn)).into_iter().next()?;
        let number = TcpPacket::new_checked(&answer[54..]).unwrap().seq_number();
        let ack = TcpRepr { seq_number: TcpSeqNumber(101), ack_number: Some(number + 1), ..frames::segment() };
        self.reply_to(&frames::tcp(STATION, HOST_MAC, from, to, ack));
        Some(answer)
    }

    fn times_of(&self, message: Message) -> Vec<Instant> {
        self.messages.iter().filter(|(_, sent)| *sent == message).map(|(at, _)| *at).collect()
    }
}

/// Parses a frame of the host, if it is a multicast listener or neighbour discovery message.
fn read(frame: &[u8]) -> Option<Message> {
    let ip = Ipv6Packet::new_checked(frame.get(14..).filter(|_| frame[12..14] == [0x86, 0xdd])?).ok()?;
    if ip.next_header() == IpProtocol::HopByHop {
        assert_eq!((ip.payload()[0], ip.payload()[8], ip.hop_limit()), (58, 143, 1));
        return Some(Message::ListenerReport(ip.src_addr()));
    }
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok().filter(|_| ip.next_header() == IpProtocol::Icmpv6)?;
    match Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &Default::default()).ok()? {
        Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { lladdr }) => {
            assert_eq!(
                (ip.hop_limit(), ip.dst_addr(), &frame[..6]),
                (255, "ff02::2".parse().unwrap(), &[0x33, 0x33, 0, 0, 0, 2][..])
            );
            Some(Message::RouterSolicitation(ip.src_addr(), lladdr.is_some()))
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. }) if ip.src_addr().is_unspecified() => {
            Some(Message::Probe(target_addr))
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, .. }) => Some(Message::Advertisement(target_addr)),
        _ => None,
    }
}

/// Returns a router advertisement with a lifetime of half an hour and options.
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

/// Returns the option for 2001:db8::/64 with the on-link and autonomous flags and this lifetime in seconds.
fn prefix(valid: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, 0xc0];
    option.extend_from_slice(&valid.to_be_bytes());
    option.extend_from_slice(&valid.to_be_bytes());
    option.extend_from_slice(&[0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    option
}

fn config() -> Config {
    // smoltcp aborts a connection that is silent for this long, even without data in flight.
    let user_timeout = Duration::from_secs(86_400);
    Config { addresses: vec![], slaac: true, dad_transmits: 1, user_timeout, ..server() }
}

/// RFC 4862 §5.4.2: groups are joined before addresses are probed; RFC 4861 §6.3.7: routers are solicited from the
/// link-local address.
#[test]
fn unconfigured_host_gets_address_and_serves() {
    let mut bench = Bench::<Native>::new(&config(), 1);
    bench.run_for(Duration::from_secs(3));
    assert!(!bench.host.workers[0].has_started(), "the link-local address alone does not start the service");
    let order: Vec<_> = bench.messages.iter().map(|(_, message)| *message).collect();
    assert_eq!(order[..2], [Message::ListenerReport(Ipv6Addr::UNSPECIFIED), Message::Probe(LINK_LOCAL)], "{order:?}");
    assert!(
        order.contains(&Message::Advertisement(LINK_LOCAL)) && order.contains(&Message::ListenerReport(LINK_LOCAL))
    );
    assert_eq!(bench.times_of(Message::RouterSolicitation(LINK_LOCAL, true)).len(), 1, "{order:?}");
    bench.messages.clear();
    bench.send(0, &advertised(&[&prefix(3600)]));
    bench.run_for(Duration::from_secs(3));
    assert!(bench.host.workers[0].has_started());
    let (tried, has) =
        (bench.times_of(Message::Probe(HOST_ADDRESS)), bench.times_of(Message::Advertisement(HOST_ADDRESS)));
    assert_eq!(tried.len(), 1);
    assert!(has[0].since(tried[0]) >= Duration::from_secs(1), "{tried:?} {has:?}");
    // A neighbour, and a host behind the router, whose Ethernet address is known from its advertisement.
    for from in ["[2001:db8::99]:5000", FAR] {
        let answer = bench.open(from, HOST_ADDRESS);
        assert_eq!(answer.is_some(), from == FAR, "a neighbour is resolved first");
    }
    assert_eq!(bench.host.service().open, 1);
    bench.run_for(Duration::from_secs(60));
    assert_eq!(bench.times_of(Message::RouterSolicitation(LINK_LOCAL, true)), []);
}

fn expired_address_closes_connections<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::configured(1, &advertised(&[&prefix(60)]));
    assert!(bench.open(FAR, HOST_ADDRESS).is_some());
    bench.run_for(Duration::from_secs(30));
    // RFC 4862 §5.5.3: within two hours no advertisement shortens the lifetime.
    bench.send(0, &advertised(&[&prefix(0)]));
    bench.run_for(Duration::from_secs(20));
    assert_eq!((bench.host.service().open, &bench.host.service().closed[..]), (1, &[][..]));
    bench.segments.clear();
    bench.run_for(Duration::from_secs(20));
    assert_eq!(bench.host.service().closed, [CloseReason::AddressLost]);
    assert_eq!(bench.segments, Vec::<Vec<u8>>::new(), "no reset");
    assert_eq!(bench.open(FAR, HOST_ADDRESS), None);
    // The address may return.
    bench.send(0, &advertised(&[&prefix(60)]));
    bench.run_for(Duration::from_secs(3));
    assert!(bench.open(FAR, HOST_ADDRESS).is_some());
}

#[test]
fn expired_address_closes_connections_native() {
    expired_address_closes_connections::<Native>();
}

#[test]
#[cfg(feature = "smoltcp-engine")]
fn expired_address_closes_connections_smoltcp() {
    expired_address_closes_connections::<linerate_stack::SmoltcpEngine>();
}

#[test]
fn renewed_addresses_are_kept() {
    let mut bench = Bench::<Native>::configured(1, &advertised(&[&prefix(60)]));
    assert!(bench.open(FAR, HOST_ADDRESS).is_some());
    for _ in 0..20 {
        bench.run_for(Duration::from_secs(50));
        bench.send(0, &advertised(&[&prefix(60)]));
    }
    assert_eq!((bench.host.service().open, &bench.host.service().closed[..]), (1, &[][..]));
}

/// A router advertisement arrives at one queue. One worker probes the address, and all workers use it.
#[test]
fn router_advertisement_reaches_all_workers() {
    for queue in 0..3 {
        let mut bench = Bench::<Native>::new(&config(), 3);
        bench.run_for(Duration::from_secs(3));
        assert_eq!(bench.times_of(Message::RouterSolicitation(LINK_LOCAL, true)).len(), 1);
        bench.send(queue, &advertised(&[&prefix(60)]));
        bench.run_for(Duration::from_secs(3));
        assert!(bench.host.workers.iter().all(|worker| worker.has_started()));
        assert_eq!(bench.times_of(Message::Probe(HOST_ADDRESS)).len(), 1);
        assert!(bench.open(FAR, HOST_ADDRESS).is_some());
        bench.run_for(Duration::from_secs(60));
        let closed = bench.host.workers.iter().flat_map(|worker| worker.service().closed.clone());
        assert_eq!(closed.collect::<Vec<_>>(), [CloseReason::AddressLost]);
    }
}

#[test]
fn slaac_conflict_drops_address_and_host_continues() {
    let given = "fd00::2/64".parse().unwrap();
    for queue in 0..2 {
        let mut bench = Bench::<Native>::new(&Config { addresses: vec![given], ..config() }, 2);
        bench.run_for(Duration::from_secs(3));
        bench.send(0, &advertised(&[&prefix(3600)]));
        let flags = NdiscNeighborFlags::OVERRIDE;
        let claim = NdiscRepr::NeighborAdvert { flags, target_addr: HOST_ADDRESS, lladdr: None };
        let claim = Icmpv6Repr::Ndisc(claim);
        let mut bytes = frames::ip(
            STATION,
            [0x33, 0x33, 0, 0, 0, 1],
            HOST_ADDRESS.into(),
            ALL_NODES.into(),
            IpProtocol::Icmpv6,
            claim.buffer_len(),
            |bytes, _, _| {
                claim.emit(&HOST_ADDRESS, &ALL_NODES, &mut Icmpv6Packet::new_unchecked(bytes), &Default::default());
            },
        );
        bytes[21] = 255;
        bench.send(queue, &bytes);
        bench.run_for(Duration::from_secs(5));
        assert_eq!(bench.times_of(Message::Advertisement(HOST_ADDRESS)), []);
        assert_eq!(bench.open(FAR, HOST_ADDRESS), None);
        assert!(bench.host.workers.iter().all(|worker| worker.duplicate().is_none()));
        assert!(bench.open(FAR, "fd00::2".parse().unwrap()).is_some());
    }
}

/// RFC 4861 §6.3.4.
#[test]
fn advertised_mtu_bounds_segments() {
    let mss = |frame: &[u8]| {
        let packet = TcpPacket::new_checked(&frame[54..]).unwrap();
        let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
        let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
        TcpRepr::parse(&packet, &source, &destination, &Default::default()).unwrap().max_seg_size
    };
    for (mtu, expected) in [(1400_u32, 1340), (1279, 1440), (9000, 1440)] {
        let mut option = vec![5, 1, 0, 0];
        option.extend_from_slice(&mtu.to_be_bytes());
        let mut bench = Bench::<Native>::configured(1, &advertised(&[&prefix(3600), &option]));
        assert_eq!(mss(&bench.open(FAR, HOST_ADDRESS).unwrap()), Some(expected), "{mtu}");
    }
}

#[test]
fn invalid_and_forged_advertisements_are_ignored() {
    let mut from_afar = advertised(&[&prefix(3600)]);
    from_afar[21] = 254;
    let mut bench = Bench::<Native>::new(&config(), 1);
    bench.run_for(Duration::from_secs(3));
    bench.send(0, &from_afar);
    bench.run_for(Duration::from_secs(3));
    assert_eq!(
        (bench.times_of(Message::Probe(HOST_ADDRESS)), bench.host.drops("invalid router advertisement")),
        (vec![], 1)
    );
    let mut bench = Bench::<Native>::new(&Config { dad_transmits: 1, ..server() }, 1);
    bench.run_for(Duration::from_secs(3));
    bench.send(0, &advertised(&[&prefix(3600)]));
    bench.run_for(Duration::from_secs(3));
    assert_eq!(bench.times_of(Message::Probe(HOST_ADDRESS)), []);
    assert_eq!(bench.times_of(Message::RouterSolicitation(LINK_LOCAL, true)), []);
}
