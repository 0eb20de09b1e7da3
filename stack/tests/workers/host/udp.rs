//! UDP fast path: payload is not copied, sent datagrams are exact, and services cannot exhaust the port's packets.

use crate::common::{HOST_MAC, Host, frames, host};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, Datagram, Origin, Service, Transport};
use linerate_stack::Config;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::convert::Infallible;
use std::net::SocketAddr;

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const HOST_ADDRESS: &str = "10.0.0.2:7";
const PEER_ADDRESS: &str = "10.0.0.9:5000";

/// Service that keeps received datagrams, sends the datagrams in `to_send`, and writes the datagrams in `to_write`.
#[derive(Default)]
struct DatagramLog {
    kept: Vec<Bytes>,
    to_send: Vec<Datagram>,
    to_write: Vec<Datagram>,
    refused: usize,
}

impl Service for DatagramLog {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        for datagram in self.to_send.drain(..) {
            self.refused += usize::from(net.send_datagram(datagram).is_err());
        }
        for Datagram { local, remote, payload } in self.to_write.drain(..) {
            let written = net.write_datagram(local, remote, payload.len(), |out| out.copy_from_slice(&payload));
            self.refused += usize::from(!written);
        }
        None
    }

    fn datagram(&mut self, _: &mut impl Transport, datagram: Datagram) {
        self.kept.push(datagram.payload);
    }
}

/// Service that echoes datagrams and counts failures.
#[derive(Default)]
struct DatagramEcho {
    refused: usize,
}

impl Service for DatagramEcho {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        if let Err(datagram) = net.send_datagram(datagram) {
            self.refused += 1;
            net.drop_datagram(datagram);
        }
    }
}

struct Bench<S: Service = DatagramLog> {
    nic: MemoryNic,
    host: Host<S>,
}

impl Bench {
    fn new(link: LinkConfig) -> Self {
        Bench::serving(link)
    }
}

impl<S: Service<Message = Infallible> + Default> Bench<S> {
    fn serving(link: LinkConfig) -> Self {
        let (nic, other) = Link::pair(link);
        let listen_udp = vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()];
        let config = Config { listen_udp, ..host(2) };
        let mut bench = Bench { nic, host: Host::new(&config, vec![other], S::default) };
        bench.turn();
        // An ARP request for the worker's address makes the sender known.
        let target = ([0xff; 6], [10, 0, 0, 2].into());
        bench.send(&frames::arp(ArpOperation::Request, (PEER_MAC, [10, 0, 0, 9].into()), target));
        bench.turn();
        bench
    }

    /// Runs one turn of the host and returns its frames.
    fn turn(&mut self) -> Vec<Vec<u8>> {
        self.host.workers[0].turn(Instant::ZERO);
        self.read()
    }

    /// Returns the frames that the host has sent.
    fn read(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::with_capacity(32);
        let mut all = Vec::new();
        while self.nic.rx_burst(&mut frames) > 0 {
            all.extend(frames.drain(..).map(|frame| frame.segments().flatten().copied().collect()));
        }
        all
    }

    /// Sends a frame and returns the address of its bytes.
    fn send(&mut self, bytes: &[u8]) -> usize {
        let mut frame = self.nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
        let at = frame.data().as_ptr() as usize;
        assert_eq!(self.nic.tx_burst(&mut vec![frame]), 1);
        at
    }

    fn service(&mut self) -> &mut S {
        self.host.workers[0].service_mut()
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns a frame with a datagram to the worker.
fn frame(payload: &[u8]) -> Vec<u8> {
    let (from, to) = (address(PEER_ADDRESS), address(HOST_ADDRESS));
    let (source, destination) = (from.ip().into(), to.ip().into());
    let ip = IpRepr::new(source, destination, IpProtocol::Udp, 8 + payload.len(), 64);
    let mut frame = vec![0; 14 + ip.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
    ethernet.set_dst_addr(EthernetAddress(HOST_MAC));
    ethernet.set_src_addr(EthernetAddress(PEER_MAC));
    ethernet.set_ethertype(EthernetProtocol::Ipv4);
    let all = ChecksumCapabilities::default();
    ip.emit(ethernet.payload_mut(), &all);
    let udp = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let segment = &mut frame[34..];
    let fill = |bytes: &mut [u8]| bytes.copy_from_slice(payload);
    udp.emit(&mut UdpPacket::new_unchecked(segment), &source, &destination, payload.len(), fill, &all);
    frame
}

fn datagram(payload: Vec<u8>) -> Datagram {
    Datagram { local: address(HOST_ADDRESS), remote: address(PEER_ADDRESS), payload: payload.into() }
}

/// Sends numbered datagrams to the host without receiving, then returns the numbers of its echoes.
fn answers_of_full_link(bench: &mut Bench<DatagramEcho>, datagrams: u32) -> Vec<u32> {
    for numbers in (0..datagrams).collect::<Vec<_>>().chunks(32) {
        numbers.iter().for_each(|number| _ = bench.send(&frame(&number.to_be_bytes())));
        bench.host.workers[0].turn(Instant::ZERO);
    }
    let mut answers = Vec::new();
    loop {
        let frames = bench.turn();
        if frames.is_empty() {
            return answers;
        }
        answers.extend(frames.iter().map(|frame| u32::from_be_bytes(frame[42..46].try_into().unwrap())));
    }
}

#[test]
fn datagrams_wait_for_full_port_without_loss() {
    // The port accepts 64 frames and the transmit queue 512.
    let link = LinkConfig { ring: 64, pool: 8192, ..LinkConfig::default() };
    let mut bench = Bench::<DatagramEcho>::serving(link);
    assert_eq!(answers_of_full_link(&mut bench, 4000), (0..4000).collect::<Vec<_>>());
    assert_eq!(bench.service().refused, 0);
    assert_eq!(bench.host.workers[0].summary().drops, Default::default());
}

#[test]
fn datagrams_beyond_queue_are_dropped_and_counted() {
    let link = LinkConfig { ring: 64, pool: 32_768, ..LinkConfig::default() };
    let mut bench = Bench::<DatagramEcho>::serving(link);
    let sent = 20_000;
    let answers = answers_of_full_link(&mut bench, sent);
    assert!(answers.len() >= 16_384 && answers.is_sorted_by(|a, b| a < b), "{}", answers.len());
    let summary = bench.host.workers[0].summary();
    let dropped = summary.drops["datagram queue full"];
    assert_eq!((answers.len() as u64 + dropped, bench.service().refused), (sent.into(), 0));
}

#[test]
fn received_payload_is_not_copied() {
    let mut bench = Bench::new(LinkConfig::default());
    let at = bench.send(&frame(b"some payload"));
    bench.turn();
    let kept = &bench.service().kept;
    assert_eq!((&kept[0][..], kept[0].as_ptr() as usize), (&b"some payload"[..], at + 42));
    assert_eq!(bench.host.workers[0].summary().copied_bytes, 0);
}

#[test]
fn sent_datagrams_are_exact_with_and_without_offload() {
    for (offload, multi_segment) in [(false, true), (true, true), (false, false), (true, false)] {
        let config = LinkConfig { checksum_offload: offload, multi_segment, ..LinkConfig::default() };
        let mut bench = Bench::new(config);
        for size in [0_usize, 1, 63, 256, 257, 999, 1472] {
            let payload: Vec<u8> = (0..size).map(|n| n as u8).collect();
            bench.service().to_send.push(datagram(payload.clone()));
            let sent = bench.turn();
            assert_eq!(sent.len(), 1, "{size}: sent within the turn");
            let ethernet = EthernetFrame::new_checked(&sent[0][..]).unwrap();
            assert_eq!((ethernet.dst_addr().0, ethernet.src_addr().0), (PEER_MAC, HOST_MAC));
            let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(offload || ip.verify_checksum());
            assert_eq!((usize::from(ip.total_len()), ip.dont_frag(), ip.hop_limit()), (28 + size, true, 64));
            let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
            let udp = UdpPacket::new_checked(ip.payload()).unwrap();
            // With checksum offload the memory NIC leaves the pseudo-header sum.
            assert!(offload || udp.verify_checksum(&source, &destination), "{size}");
            assert!(offload || udp.checksum() != 0);
            assert_eq!((udp.src_port(), udp.dst_port(), udp.payload()), (7, 5000, &payload[..]));
            let copied = bench.host.workers[0].summary().copied_bytes;
            bench.service().to_write.push(datagram(payload));
            assert_eq!(bench.turn(), sent, "{size}: a written datagram is the same frame");
            assert_eq!(bench.host.workers[0].summary().copied_bytes, copied);
        }
        assert_eq!(bench.service().refused, 0);
    }
}

#[test]
fn long_payload_is_sent_without_copy() {
    let mut bench = Bench::new(LinkConfig::default());
    let payload = vec![7; 1000];
    let at = payload.as_ptr() as usize;
    bench.service().to_send.push(datagram(payload));
    bench.host.workers[0].turn(Instant::ZERO);
    let mut frames = Vec::with_capacity(32);
    assert_eq!(bench.nic.rx_burst(&mut frames), 1);
    let segments: Vec<(usize, usize)> = frames[0].segments().map(|part| (part.as_ptr() as usize, part.len())).collect();
    assert_eq!((segments.len(), segments[1]), (2, (at, 1000)));
}

#[test]
fn full_transmit_queue_returns_datagrams_without_packet_loss() {
    let mut bench = Bench::new(LinkConfig { ring: 8, ..LinkConfig::default() });
    bench.service().to_send = (0..2000).map(|_| datagram(vec![1; 64])).collect();
    let mut sent = bench.turn().len();
    loop {
        match bench.turn().len() {
            0 => break,
            more => sent += more,
        }
    }
    let refused = bench.service().refused;
    assert!(refused > 1000 && sent > 0 && sent + refused == 2000, "{sent} sent, {refused} refused");
    let nic = bench.host.workers[0].nic();
    assert_eq!(nic.pool_available(), nic.pool_capacity());
}

#[test]
fn unknown_neighbor_is_resolved_first() {
    let mut bench = Bench::new(LinkConfig::default());
    let to = |remote: &str| Datagram { remote: address(remote), ..datagram(vec![1; 64]) };
    bench.service().to_send.push(to("10.0.0.44:5000"));
    bench.service().to_write.push(to("10.0.0.45:5000"));
    let mut sent = bench.turn();
    sent.extend(bench.turn());
    let requests = |last: u8| sent.iter().filter(|frame| frame[12..14] == [8, 6] && frame[41] == last).count();
    assert!(requests(44) > 0 && requests(45) > 0, "ARP requests");
    assert!(!sent.iter().any(|frame| frame[12..14] == [8, 0]), "no datagram");
    assert_eq!(bench.service().refused, 0);
}
