//! Addresses, routes and neighbours from the host's kernel, for a shared interface.

use crate::common::services::Echo;
use crate::common::{HOST_MAC, Native, frames, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{MacAddr, Nic, Packet};
use linerate_service::CloseReason;
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Engine, HostControl, HostNetwork, Mailboxes, Route, Worker};
use smoltcp::wire::*;
use std::net::IpAddr;
use std::sync::Arc;

const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 10]);

fn of(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(destination: &str, prefix: u8, gateway: Option<&str>) -> Route {
    Route { destination: of(destination), prefix, gateway: gateway.map(of), source: None }
}

/// Returns the network of the host 10.0.0.2, with routes through `gateway`.
fn network(gateway: &str) -> HostNetwork {
    HostNetwork {
        mac: None,
        addresses: ["10.0.0.2/24", "fd00::2/64"].map(|cidr| cidr.parse().unwrap()).into(),
        deprecated: Vec::new(),
        routes: vec![
            route("198.51.100.0", 25, Some("10.0.0.99")),
            route("10.0.0.0", 24, None),
            route("fd00::", 64, None),
            route("0.0.0.0", 0, Some(gateway)),
        ],
    }
}

type Packets = <MemoryNic as Nic>::Packet;

/// Worker with a control plane, and the other end of its link.
struct Bench<E: Engine<MemoryNic>> {
    nic: MemoryNic,
    worker: Worker<MemoryNic, Echo, E>,
    control: HostControl<Packets>,
    now: Instant,
    /// Ethernet address of the worker.
    station: MacAddr,
}

impl<E: Engine<MemoryNic>> Bench<E> {
    fn new() -> Self {
        let config =
            Config { addresses: Vec::new(), dad_transmits: 1, host: Some(Arc::new(network("10.0.0.1"))), ..server() };
        let (nic, other) = Link::pair(LinkConfig::default());
        let mut mailboxes = Mailboxes::for_workers(1);
        let control = HostControl::connect(&mut mailboxes, Box::new(|| {}));
        let worker = Worker::new(&config, mailboxes.remove(0), other, |_| Echo::default(), Instant::ZERO);
        let mut bench = Bench { nic, worker, control, now: Instant::ZERO, station: MacAddr(HOST_MAC) };
        let sent = bench.run_for(Duration::from_secs(5));
        assert!(sent.is_empty(), "no ARP, NDP, DAD or MLD: {sent:x?}");
        assert!(bench.worker.has_started());
        bench
    }

    /// Runs for `time` and returns the frames that the worker sent.
    fn run_for(&mut self, time: Duration) -> Vec<Vec<u8>> {
        let until = self.now + time;
        let mut sent = Vec::new();
        while self.now < until {
            self.now = (self.now + Duration::from_millis(10)).min(until);
            self.worker.turn(self.now);
            let mut frames = Vec::with_capacity(32);
            self.nic.rx_burst(&mut frames);
            sent.extend(frames.iter().map(|frame| frame.data().to_vec()));
        }
        sent
    }

    /// Sends a segment from `from` to port 7 of `to` and returns the frames that the worker sent.
    fn send(&mut self, from: &str, to: &str, segment: TcpRepr) -> Vec<Vec<u8>> {
        let bytes = frames::tcp(STATION.0, self.station.0, (of(from), 5000).into(), (of(to), 7).into(), segment);
        let mut frame = self.nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(&bytes);
        self.nic.tx_burst(&mut vec![frame]);
        self.run_for(Duration::from_millis(20))
    }

    fn send_syn(&mut self, from: &str, to: &str) -> Vec<Vec<u8>> {
        let syn = TcpRepr { control: TcpControl::Syn, seq_number: TcpSeqNumber(100), ..frames::segment() };
        self.send(from, to, syn)
    }

    /// Opens a connection from `from`, a resolved neighbour.
    fn open(&mut self, from: &str) {
        let replies = self.send_syn(from, "10.0.0.2");
        let number = TcpPacket::new_checked(&replies[0][34..]).unwrap().seq_number();
        let ack = TcpRepr { seq_number: TcpSeqNumber(101), ack_number: Some(number + 1), ..frames::segment() };
        self.send(from, "10.0.0.2", ack);
        assert_eq!(self.worker.service().open, 1);
    }

    fn requested(&mut self) -> Vec<IpAddr> {
        std::iter::from_fn(|| self.control.requested()).collect()
    }
}

/// Returns the destinations of frames.
fn stations(frames: &[Vec<u8>]) -> Vec<MacAddr> {
    frames.iter().map(|frame| MacAddr(*frame.first_chunk().unwrap())).collect()
}

fn neighbors_are_resolved_by_the_host<E: Engine<MemoryNic>>() {
    for (from, to) in [("10.0.0.9", "10.0.0.2"), ("fd00::9", "fd00::2")] {
        let mut bench = Bench::<E>::new();
        assert!(bench.send_syn(from, to).is_empty(), "the reply waits, and no solicitation is sent");
        assert_eq!(bench.requested(), [of(from)]);
        bench.control.report(of(from), Some(STATION));
        assert_eq!(stations(&bench.run_for(Duration::from_millis(20))), [STATION]);
        // A neighbour that moved.
        bench.control.report(of(from), Some(OTHER));
        bench.run_for(Duration::from_millis(20));
        assert_eq!(stations(&bench.run_for(Duration::from_secs(2))), [OTHER], "a retransmission");
        assert!(bench.requested().is_empty());
    }
}

#[test]
fn neighbor_that_the_host_cannot_resolve_is_requested_again_for_the_next_packet() {
    let mut bench = Bench::<Native>::new();
    bench.send_syn("10.0.0.9", "10.0.0.2");
    assert_eq!(bench.requested(), [of("10.0.0.9")]);
    bench.control.report(of("10.0.0.9"), None);
    bench.run_for(Duration::from_millis(20));
    assert_eq!(
        bench.worker.summary().drops.get("no route or no neighbour").copied(),
        Some(1),
        "{:?}",
        bench.worker.summary().drops
    );
    assert!(bench.send_syn("10.0.0.9", "10.0.0.2").is_empty());
    assert_eq!(bench.requested(), [of("10.0.0.9")]);
}

fn first_route_that_contains_the_destination_applies<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new();
    for (from, hop) in [("198.51.100.9", "10.0.0.99"), ("198.51.100.200", "10.0.0.1")] {
        bench.send_syn(from, "10.0.0.2");
        assert_eq!(bench.requested(), [of(hop)]);
    }
}

#[test]
fn changed_route_applies_to_open_connections() {
    let mut bench = Bench::<Native>::new();
    bench.control.report(of("10.0.0.1"), Some(STATION));
    bench.control.report(of("10.0.0.254"), Some(OTHER));
    bench.open("192.0.2.9");
    assert!(bench.control.set_network(&Arc::new(network("10.0.0.254"))));
    bench.run_for(Duration::from_millis(20));
    let data = TcpRepr {
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(101),
        ack_number: Some(TcpSeqNumber(0)),
        payload: b"hello",
        ..frames::segment()
    };
    // A segment with an acknowledgement number far away is answered by an acknowledgement (RFC 5961 §5).
    let sent = bench.send("192.0.2.9", "10.0.0.2", data);
    assert_eq!(stations(&sent), [OTHER]);
    assert_eq!(bench.worker.service().closed, []);
}

/// Returns the Ethernet source addresses of frames.
fn sources(frames: &[Vec<u8>]) -> Vec<MacAddr> {
    frames.iter().map(|frame| MacAddr(*frame[6..].first_chunk().unwrap())).collect()
}

#[test]
fn changed_ethernet_address_applies_to_open_connections() {
    let mut bench = Bench::<Native>::new();
    bench.control.report(of("10.0.0.9"), Some(STATION));
    bench.open("10.0.0.9");
    assert!(bench.control.set_network(&Arc::new(HostNetwork { mac: Some(OTHER), ..network("10.0.0.1") })));
    assert!(bench.run_for(Duration::from_millis(20)).is_empty());
    let segment = TcpRepr {
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(101),
        ack_number: Some(TcpSeqNumber(0)),
        payload: b"hello",
        ..frames::segment()
    };
    assert!(bench.send("10.0.0.9", "10.0.0.2", segment).is_empty(), "a frame to the former address");
    bench.station = OTHER;
    assert_eq!(sources(&bench.send("10.0.0.9", "10.0.0.2", segment)), [OTHER]);
    assert_eq!(bench.worker.service().closed, []);
}

fn removed_address_closes_connections<E: Engine<MemoryNic>>() {
    let mut bench = Bench::<E>::new();
    bench.control.report(of("10.0.0.9"), Some(STATION));
    bench.open("10.0.0.9");
    let mut changed = network("10.0.0.1");
    changed.addresses[0] = "10.0.0.3/24".parse().unwrap();
    assert!(bench.control.set_network(&Arc::new(changed)));
    assert!(bench.run_for(Duration::from_millis(20)).is_empty(), "neither a reset nor an announcement");
    assert_eq!(bench.worker.service().closed, [CloseReason::AddressLost]);
    assert!(bench.send_syn("10.0.0.9", "10.0.0.2").is_empty());
    assert_eq!(stations(&bench.send_syn("10.0.0.9", "10.0.0.3")), [STATION]);
}

with_one_engine!(
    neighbors_are_resolved_by_the_host,
    first_route_that_contains_the_destination_applies,
    removed_address_closes_connections,
);
