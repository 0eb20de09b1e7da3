//! Neighbour table during a flood of ARP and neighbour discovery from made-up addresses (RFC 6583 §4).

use crate::common::services::Echo;
use crate::common::{HOST_MAC, Host, Native, frames, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, Steering};
use linerate_bypass::{L4, Nic, Packet, TxOffload};
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Engine, Tuple, owner, toeplitz};
use smoltcp::wire::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub const FOUR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const SIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const LIMITED: &str = "unsolicited neighbour beyond the rate limit";

/// Message kinds of the flood, which alternate.
const KINDS: u32 = 6;
/// Number of messages: each kind that creates entries exceeds the table.
const FLOOD: u32 = KINDS * 20_000;
/// Time between two messages, so that entries exceed the reachable time (30 s) before the flood ends.
const INTERVAL: Duration = Duration::from_micros(500);

/// Link with the host at one end, and real hosts, which answer for their addresses, and the attacker at the other.
pub struct Bench<E: Engine<MemoryNic>> {
    nics: Vec<MemoryNic>,
    pub host: Host<Echo, E>,
    now: Instant,
    real: Vec<(IpAddr, [u8; 6])>,
    /// Frames that the host has sent.
    pub sent: usize,
    /// TCP segments that the host has sent, as frames.
    segments: Vec<Vec<u8>>,
    /// Real hosts that the host has resolved by broadcast or multicast, because it did not know their location.
    resolved: Vec<IpAddr>,
}

impl<E: Engine<MemoryNic>> Bench<E> {
    fn new(config: &Config) -> Self {
        Self::with(LinkConfig::default(), 1, config)
    }

    pub fn with(link: LinkConfig, queues: usize, config: &Config) -> Self {
        let (nics, others) = Link::with_queues(link, queues);
        let host = Host::start(config, others, Echo::default);
        let (real, segments, resolved) = (Vec::new(), Vec::new(), Vec::new());
        let mut bench = Bench { nics, host, now: Instant::ZERO, real, sent: 0, segments, resolved };
        bench.turn();
        bench
    }

    /// Sends a frame.
    fn put(&mut self, bytes: &[u8]) {
        let mut frame = self.nics[0].allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
        if self.nics[0].capabilities().tx_checksum.tcp {
            offload_tcp(&mut frame);
        }
        assert_eq!(self.nics[0].tx_burst(&mut vec![frame]), 1);
    }

    /// Runs the host until it is idle.
    fn turn(&mut self) {
        let mut quiet = 0;
        while quiet < 2 {
            quiet += 1;
            let now = self.now;
            if self.host.workers.iter_mut().map(|worker| worker.turn(now)).sum::<usize>() > 0 {
                quiet = 0;
            }
            let mut sent = Vec::with_capacity(32);
            for at in 0..self.nics.len() {
                while self.nics[at].rx_burst(&mut sent) > 0 {
                    for frame in sent.split_off(0) {
                        self.take(frame.segments().flatten().copied().collect());
                        quiet = 0;
                    }
                }
            }
        }
    }

    /// Receives a frame of the host: answers a neighbour request for a real host, and keeps a TCP segment.
    fn take(&mut self, bytes: Vec<u8>) {
        self.sent += 1;
        let frame = EthernetFrame::new_checked(&bytes[..]).unwrap();
        let target = match frame.ethertype() {
            EthernetProtocol::Arp => match ArpRepr::parse(&ArpPacket::new_checked(frame.payload()).unwrap()) {
                Ok(ArpRepr::EthernetIpv4 { operation: ArpOperation::Request, target_protocol_addr, .. }) => {
                    IpAddr::V4(target_protocol_addr)
                }
                _ => return,
            },
            EthernetProtocol::Ipv6 => {
                let ip = Ipv6Packet::new_checked(frame.payload()).unwrap();
                if ip.next_header() == IpProtocol::Tcp {
                    return self.segments.push(bytes);
                }
                let Ok(icmp) = Icmpv6Packet::new_checked(ip.payload()) else { return };
                match Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &Default::default()) {
                    Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. })) => IpAddr::V6(target_addr),
                    _ => return,
                }
            }
            _ => {
                if Ipv4Packet::new_checked(frame.payload()).unwrap().next_header() == IpProtocol::Tcp {
                    self.segments.push(bytes);
                }
                return;
            }
        };
        let Some(&(_, mac)) = self.real.iter().find(|(ip, _)| *ip == target) else { return };
        if !frame.dst_addr().is_unicast() {
            self.resolved.push(target);
        }
        let answer = match target {
            IpAddr::V4(ip) => frames::arp(ArpOperation::Reply, (mac, ip), (HOST_MAC, FOUR)),
            IpAddr::V6(ip) => {
                let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
                let lladdr = Some(frames::link_layer(mac));
                frames::ndisc(mac, HOST_MAC, ip, SIX, NdiscRepr::NeighborAdvert { flags, target_addr: ip, lladdr })
            }
        };
        self.put(&answer);
    }

    /// Sends a frame to the host and runs it.
    pub fn send(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.turn();
    }

    /// Sends the messages `numbers` of the flood.
    fn flood(&mut self, numbers: std::ops::Range<u32>) {
        for n in numbers {
            self.now += INTERVAL;
            self.send(&flood_message(n));
        }
    }

    /// Opens a connection from a new host, which first resolves the worker's address if `resolves`.
    pub fn connect(&mut self, ip: IpAddr, resolves: bool) -> Peer {
        let n = self.real.len() as u8;
        let mac = [2, 0xaa, 0, 0, 0, n];
        self.real.push((ip, mac));
        if resolves {
            self.send(&neighbor_request((mac, ip)));
        }
        let mut peer = Peer { end: SocketAddr::new(ip, 5000 + u16::from(n)), mac, seq: 1000, ack: 0 };
        peer.open(self);
        peer
    }
}

/// Requests checksum offload of a TCP segment, so that the receiving port reports it as verified.
fn offload_tcp(frame: &mut impl Packet) {
    let bytes = frame.data();
    let (ipv4, protocol) = match bytes[12..14] {
        [0x08, 0x00] => (true, bytes[23]),
        [0x86, 0xdd] => (false, bytes[20]),
        _ => return,
    };
    if protocol == 6 {
        let (l3_len, l4_checksum) = (if ipv4 { 20 } else { 40 }, Some(L4::Tcp));
        let l4_len = usize::from(bytes[14 + l3_len + 12] >> 4) * 4;
        frame.set_tx_offload(TxOffload {
            l2_len: 14,
            l3_len,
            l4_len,
            ipv4,
            ipv4_checksum: ipv4,
            l4_checksum,
            tso: None,
        });
    }
}

/// Returns the neighbour request of the station `mac` with address `ip` for the worker's address of that family.
pub fn neighbor_request((mac, ip): ([u8; 6], IpAddr)) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => frames::arp(ArpOperation::Request, (mac, ip), ([0xff; 6], FOUR)),
        IpAddr::V6(ip) => {
            let message = NdiscRepr::NeighborSolicit { target_addr: SIX, lladdr: Some(frames::link_layer(mac)) };
            frames::ndisc(mac, [0x33, 0x33, 0xff, 0, 0, 2], ip, "ff02::1:ff00:2".parse().unwrap(), message)
        }
    }
}

/// Returns the `n`th made-up Ethernet, IPv4 and IPv6 address of the attacker.
fn made_up_address(n: u32) -> ([u8; 6], Ipv4Addr, Ipv6Addr) {
    let [a, b, c, d] = n.to_be_bytes();
    (
        [2, 0xee, a, b, c, d],
        Ipv4Addr::from_bits(0x0a10_0000 + n),
        Ipv6Addr::from_bits(0xfd00 << 112 | 1 << 63 | u128::from(n)),
    )
}

/// Returns the `n`th message of the flood.
fn flood_message(n: u32) -> Vec<u8> {
    let (mac, four, six) = made_up_address(n);
    let all = [0x33, 0x33, 0, 0, 0, 1];
    let all_nodes = "ff02::1".parse().unwrap();
    let lladdr = Some(frames::link_layer(mac));
    match n % KINDS {
        0 => neighbor_request((mac, four.into())),
        1 => neighbor_request((mac, six.into())),
        2 => frames::arp(ArpOperation::Request, (mac, four), ([0xff; 6], four)),
        3 => frames::arp(ArpOperation::Reply, (mac, four), (HOST_MAC, FOUR)),
        4 => {
            let flags = NdiscNeighborFlags::OVERRIDE;
            frames::ndisc(mac, all, six, all_nodes, NdiscRepr::NeighborAdvert { flags, target_addr: six, lladdr })
        }
        _ => {
            let router = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(n));
            let message = NdiscRepr::RouterAdvert {
                hop_limit: 64,
                flags: NdiscRouterFlags::empty(),
                router_lifetime: smoltcp::time::Duration::from_secs(1800),
                reachable_time: smoltcp::time::Duration::from_secs(0),
                retrans_time: smoltcp::time::Duration::from_secs(0),
                lladdr,
                mtu: None,
                prefix_info: None,
            };
            frames::ndisc(mac, all, router, all_nodes, message)
        }
    }
}

/// Real host's end of a connection.
pub struct Peer {
    end: SocketAddr,
    mac: [u8; 6],
    seq: u32,
    ack: u32,
}

impl Peer {
    fn send<E: Engine<MemoryNic>>(&self, bench: &mut Bench<E>, segment: TcpRepr) -> Vec<(TcpControl, u32, Vec<u8>)> {
        let local = SocketAddr::new(if self.end.is_ipv4() { FOUR.into() } else { SIX.into() }, 7);
        let segment = TcpRepr {
            seq_number: TcpSeqNumber(self.seq as i32),
            ack_number: (segment.control != TcpControl::Syn).then_some(TcpSeqNumber(self.ack as i32)),
            ..segment
        };
        bench.segments.clear();
        bench.send(&frames::tcp(self.mac, HOST_MAC, self.end, local, segment));
        let to_us = bench.segments.iter().filter(|bytes| bytes[..6] == self.mac);
        let parsed = to_us.map(|bytes| {
            let tcp = TcpPacket::new_checked(&bytes[if self.end.is_ipv4() { 34 } else { 54 }..]).unwrap();
            let (source, to) = (local.ip().into(), self.end.ip().into());
            let repr = TcpRepr::parse(&tcp, &source, &to, &Default::default()).unwrap();
            (repr.control, repr.seq_number.0 as u32, repr.payload.to_vec())
        });
        parsed.collect()
    }

    fn open<E: Engine<MemoryNic>>(&mut self, bench: &mut Bench<E>) {
        let answers = self.send(bench, TcpRepr { control: TcpControl::Syn, ..frames::segment() });
        let [(TcpControl::Syn, isn, _)] = answers[..] else { panic!("{}: {answers:?} in reply to a SYN", self.end) };
        (self.seq, self.ack) = (self.seq + 1, isn.wrapping_add(1));
        self.send(bench, frames::segment());
    }

    /// Sends data and expects its echo.
    pub fn echo<E: Engine<MemoryNic>>(&mut self, bench: &mut Bench<E>) {
        let payload = b"are you there?";
        let answers = self.send(bench, TcpRepr { control: TcpControl::Psh, payload, ..frames::segment() });
        let echoed: Vec<u8> = answers.iter().flat_map(|(_, _, payload)| payload.clone()).collect();
        assert_eq!(echoed, payload, "{}", self.end);
        self.seq += payload.len() as u32;
        self.ack = self.ack.wrapping_add(payload.len() as u32);
        self.send(bench, frames::segment());
    }
}

/// Returns a host with a gateway on a link whose prefix covers all addresses of the flood.
fn config() -> Config {
    Config {
        addresses: vec!["10.0.0.2/8".parse().unwrap(), "fd00::2/64".parse().unwrap()],
        gateways: vec!["10.0.0.254".parse().unwrap()],
        slaac: true,
        ..server()
    }
}

fn idle_connection_survives_neighbor_flood<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&config());
    let mut peers = ["10.0.0.1", "fd00::1"].map(|ip| bench.connect(ip.parse().unwrap(), true));
    bench.flood(0..FLOOD);
    assert!(bench.host.drops(LIMITED) == 0, "the flood is slower than the limit");
    peers.iter_mut().for_each(|peer| peer.echo(&mut bench));
    assert_eq!(bench.resolved, [] as [IpAddr; 0]);
}

fn new_host_is_reachable_during_neighbor_flood<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&config());
    // The table fills up before any entry becomes stale.
    let most = 40_000;
    (0..most).for_each(|n| bench.send(&flood_message(n * KINDS + n % 2)));
    assert!(bench.host.drops(LIMITED) > u64::from(most) / 2);
    for (at, resolves) in [("1", false), ("3", true)] {
        for prefix in ["10.0.0.", "fd00::"] {
            bench.flood(most * KINDS..most * KINDS + 100);
            let mut peer = bench.connect(format!("{prefix}{at}").parse().unwrap(), resolves);
            bench.flood(most * KINDS..most * KINDS + 100);
            peer.echo(&mut bench);
        }
    }
}

/// A flood of one family does not affect the other.
fn new_ipv4_host_is_reachable_during_solicitation_flood<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&config());
    (0..40_000).for_each(|n| bench.send(&flood_message(n * KINDS + 1)));
    bench.connect("10.0.0.1".parse().unwrap(), true).echo(&mut bench);
    assert_eq!(bench.resolved, [] as [IpAddr; 0], "the host's own request was recorded");
}

/// The host answers every made-up address, so all entries are in use for a moment.
fn idle_connection_survives_flood_of_pings<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new(&config());
    let gateway = [2, 0xaa, 0, 0, 0, 99];
    bench.send(&neighbor_request((gateway, "10.0.0.254".parse().unwrap())));
    let mut peers = ["10.0.0.1", "fd00::1"].map(|ip| bench.connect(ip.parse().unwrap(), true));
    for n in 0..20_000 {
        bench.now += 2 * INTERVAL;
        let (mac, four, six) = made_up_address(n);
        for (from, to) in [(IpAddr::V4(four), IpAddr::V4(FOUR)), (six.into(), SIX.into())] {
            bench.send(&neighbor_request((mac, from)));
            bench.send(&ping(mac, from, to));
        }
    }
    assert_eq!(bench.host.drops("neighbour table full"), 0);
    bench.connect("10.0.0.5".parse().unwrap(), false).echo(&mut bench);
    peers.iter_mut().for_each(|peer| peer.echo(&mut bench));
    assert_eq!(bench.resolved, ["10.0.0.5".parse::<IpAddr>().unwrap()]);
    // Traffic through the gateway needs no resolution either.
    bench.real.push(("10.0.0.254".parse().unwrap(), gateway));
    let mut far = Peer { end: "192.0.2.1:5000".parse().unwrap(), mac: gateway, seq: 1, ack: 0 };
    far.open(&mut bench);
    far.echo(&mut bench);
    assert_eq!(bench.resolved.len(), 1);
}

pub fn ping(mac: [u8; 6], from: IpAddr, to: IpAddr) -> Vec<u8> {
    let sums = smoltcp::phy::ChecksumCapabilities::default();
    match (from, to) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let request = Icmpv6Repr::EchoRequest { ident: 1, seq_no: 1, data: b"ping" };
            frames::ip(mac, HOST_MAC, from, to, IpProtocol::Icmpv6, request.buffer_len(), |bytes, _, _| {
                request.emit(&source, &destination, &mut Icmpv6Packet::new_unchecked(bytes), &sums);
            })
        }
        _ => {
            let request = Icmpv4Repr::EchoRequest { ident: 1, seq_no: 1, data: b"ping" };
            frames::ip(mac, HOST_MAC, from, to, IpProtocol::Icmp, request.buffer_len(), |bytes, _, _| {
                request.emit(&mut Icmpv4Packet::new_unchecked(bytes), &sums);
            })
        }
    }
}

with_one_engine!(
    idle_connection_survives_neighbor_flood,
    new_host_is_reachable_during_neighbor_flood,
    new_ipv4_host_is_reachable_during_solicitation_flood,
    idle_connection_survives_flood_of_pings,
);

/// Returns an unsolicited ARP reply from the `n`th made-up address.
fn unsolicited_reply(n: u32) -> Vec<u8> {
    frames::arp(ArpOperation::Reply, (made_up_address(n).0, made_up_address(n).1), (HOST_MAC, FOUR))
}

/// The owner of the connection is busy while ARP arrives at the other worker, and drains its mailbox later.
#[test]
fn neighbor_flood_does_not_fill_mailboxes() {
    // All frames arrive at the first worker.
    let link = LinkConfig { steering: Some(Steering::new(|_| (0, None))), ..LinkConfig::default() };
    let mut bench = Bench::<Native>::with(link, 2, &config());
    let now = bench.now;
    for n in 0..3000 {
        bench.put(&unsolicited_reply(n));
        bench.host.workers[0].turn(now);
    }
    let peer = peer_of_second_worker();
    let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
    bench.put(&frames::tcp(peer.mac, HOST_MAC, peer.end, SocketAddr::new(FOUR.into(), 7), syn));
    bench.host.workers[0].turn(now);
    assert_eq!(bench.host.workers[0].misdirected(), 1);
    assert_eq!(bench.host.drops("mailbox of the owning worker full"), 0);
}

/// Returns a host that has not resolved the worker's address and whose connection the second of two workers owns.
fn peer_of_second_worker() -> Peer {
    let (ip, local) = (IpAddr::from([10, 0, 0, 1]), SocketAddr::new(FOUR.into(), 7));
    let is_of_second = |port: &u16| owner(toeplitz(&Tuple::new(local, SocketAddr::new(ip, *port))), 2) == 1;
    let end = SocketAddr::new(ip, (5000..).find(is_of_second).unwrap());
    Peer { end, mac: [2, 0xaa, 0, 0, 0, 0], seq: 1, ack: 0 }
}

/// ARP arrives at the first worker, TCP at the second. The flood must not keep a reply from the worker that sent the
/// request.
#[test]
fn neighbor_flood_does_not_block_replies_to_other_workers() {
    let steering = Steering::new(|frame| (usize::from(frame[12..14] == [8, 0]), None));
    let link = LinkConfig { steering: Some(steering), ..LinkConfig::default() };
    let mut bench = Bench::<Native>::with(link, 2, &config());
    (0..3000).for_each(|n| bench.send(&unsolicited_reply(n)));
    let mut peer = peer_of_second_worker();
    bench.real.push((peer.end.ip(), peer.mac));
    peer.open(&mut bench);
    peer.echo(&mut bench);
    assert_eq!(bench.resolved, [peer.end.ip()]);
}
