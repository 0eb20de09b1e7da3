//! Microbenchmarks of the hot parts: `cargo bench -p linerate-benches --bench parts`. `engine` and `kv service` measure
//! complete operations.
//!
//! Each iteration is a burst that takes at least some hundred nanoseconds; the name of the benchmark states its size.
//! Internals of the stack are measured through a turn of a worker on the memory NIC.
#![forbid(unsafe_code)]

use criterion::{Criterion, criterion_group, criterion_main};
use linerate_benches::client::echo::Acks;
use linerate_benches::engine::{Bench, Echo, PairOptions};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_bypass::{BURST, L4, MacAddr, Nic, Packet, TxOffload};
use linerate_kv::resp::{Limits, Parsed, Parser};
use linerate_kv::store::{Config as StoreConfig, Expiry, LONG_THRESHOLD, Store};
use linerate_load::services;
use linerate_service::mailbox::mailbox;
use linerate_service::time::Instant;
use linerate_stack::{Config, HashKey, Mailboxes, NativeEngine, Tuple, Wheel, Worker};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet,
    Ipv4Repr, TcpPacket, TcpSeqNumber, checksum,
};
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const ETHERNET: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;
/// Virtual time per turn.
const TURN: Duration = Duration::from_micros(2);

/// Server without connections, and a peer that sends segments to it.
struct UnknownPeer {
    server: Box<Worker<MemoryNic, services::Echo, NativeEngine<MemoryPacket>>>,
    nic: MemoryNic,
    now: Instant,
    packets: Vec<MemoryPacket>,
}

impl UnknownPeer {
    fn new() -> Self {
        let (nic, server) = Link::pair(LinkConfig { checksum_offload: true, ..LinkConfig::default() });
        let stack = Config {
            addresses: vec!["10.0.0.2/8".parse().expect("an address with a prefix")],
            mac: Some(SERVER_MAC),
            listen: vec![SocketAddr::from((SERVER, 7))],
            max_connections: 1000,
            seed: 1,
            ..Config::default()
        };
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let server = Box::new(Worker::new(&stack, mailboxes, server, |_| services::Echo, Instant::ZERO));
        let mut stranger = UnknownPeer { server, nic, now: Instant::ZERO, packets: Vec::new() };
        stranger.announce();
        stranger
    }

    /// Announces the peer's Ethernet address to the server.
    fn announce(&mut self) {
        let request = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(CLIENT_MAC.0),
            source_protocol_addr: CLIENT,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: SERVER,
        };
        let mut packet = self.nic.allocate().expect("a packet");
        let bytes = packet.append(ETHERNET + request.buffer_len()).expect("room");
        ethernet(bytes, EthernetProtocol::Arp);
        request.emit(&mut ArpPacket::new_unchecked(&mut bytes[ETHERNET..]));
        self.packets.push(packet);
        self.turn();
    }

    /// Queues a segment that belongs to no connection.
    fn segment(&mut self, port: u16, reset: bool) {
        let mut packet = self.nic.allocate().expect("a packet");
        let bytes = packet.append(ETHERNET + IP + TCP).expect("room");
        ethernet(bytes, EthernetProtocol::Ipv4);
        let ip = Ipv4Repr {
            src_addr: CLIENT,
            dst_addr: SERVER,
            next_header: IpProtocol::Tcp,
            payload_len: TCP,
            hop_limit: 64,
        };
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[ETHERNET..]), &ChecksumCapabilities::default());
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[ETHERNET + IP..]);
        tcp.set_src_port(port);
        tcp.set_dst_port(7);
        tcp.set_seq_number(TcpSeqNumber(1));
        tcp.set_ack_number(TcpSeqNumber(1));
        tcp.clear_flags();
        tcp.set_header_len(TCP as u8);
        tcp.set_window_len(u16::MAX);
        tcp.set_urgent_at(0);
        tcp.set_ack(true);
        tcp.set_rst(reset);
        let sum = checksum::pseudo_header(&CLIENT.into(), &SERVER.into(), IpProtocol::Tcp, TCP as u32);
        tcp.set_checksum(sum);
        packet.set_tx_offload(TxOffload {
            l2_len: ETHERNET,
            l3_len: IP,
            l4_len: TCP,
            ipv4: true,
            ipv4_checksum: true,
            l4_checksum: Some(L4::Tcp),
            tso: None,
        });
        self.packets.push(packet);
    }

    /// Sends the queued segments. Returns the duration of the server's turn and the number of its replies.
    fn turn(&mut self) -> (Duration, usize) {
        self.nic.tx_burst(&mut self.packets);
        assert!(self.packets.is_empty(), "the link accepts a burst");
        self.now += TURN;
        let began = std::time::Instant::now();
        self.server.turn(self.now);
        let spent = began.elapsed();
        let answers = self.nic.rx_burst(&mut self.packets);
        self.packets.clear();
        (spent, answers)
    }

    /// Sends a burst of segments, each of another unknown connection. All are answered unless they are resets.
    fn burst(&mut self, reset: bool) -> Duration {
        (0..BURST).for_each(|i| self.segment(5000 + i as u16, reset));
        let (spent, answers) = self.turn();
        assert_eq!(answers, if reset { 0 } else { BURST });
        spent
    }
}

fn ethernet(bytes: &mut [u8], protocol: EthernetProtocol) {
    let mut ethernet = EthernetFrame::new_unchecked(bytes);
    ethernet.set_src_addr(EthernetAddress(CLIENT_MAC.0));
    ethernet.set_dst_addr(EthernetAddress(SERVER_MAC.0));
    ethernet.set_ethertype(protocol);
}

/// Segments: demultiplexing, table lookup, parsing and writing headers.
fn segments(criterion: &mut Criterion) {
    let mut stranger = UnknownPeer::new();
    let burst = format!("{BURST} segments of no connection");
    criterion.bench_function(&format!("{burst}: headers parsed, connection looked up"), |bencher| {
        bencher.iter_custom(|bursts| (0..bursts).map(|_| stranger.burst(true)).sum());
    });
    criterion.bench_function(&format!("{burst}: the same, and resets written"), |bencher| {
        bencher.iter_custom(|bursts| (0..bursts).map(|_| stranger.burst(false)).sum());
    });
    type Native = Echo<NativeEngine<MemoryPacket>>;
    let mut echo = Native::new(1000, 64, Acks::WithRequest, PairOptions::default()).expect("connections");
    criterion.bench_function(&format!("{BURST} echoes on 1 000 connections"), |bencher| {
        bencher.iter_custom(|bursts| echo.run(bursts as usize * BURST).expect("echoes"));
    });
}

fn tuples(criterion: &mut Criterion) {
    let mut random = fastrand::Rng::with_seed(1);
    let key = HashKey::new(|| random.u64(..));
    let tuples: Vec<Tuple> = (0..64)
        .map(|port| Tuple::new(SocketAddr::from((SERVER, 7)), SocketAddr::from((CLIENT, 5000 + port))))
        .collect();
    criterion.bench_function("64 tuples hashed", |bencher| {
        bencher.iter(|| tuples.iter().fold(0, |sum: u64, tuple| sum ^ black_box(tuple).hash_with(&key)));
    });
}

fn timers(criterion: &mut Criterion) {
    const TIMERS: u32 = 64;
    let after = |millis| Instant::ZERO + Duration::from_millis(millis);
    let mut wheel = Wheel::new(Instant::ZERO);
    let mut at = 0;
    criterion.bench_function("timing wheel: 64 timers moved to later", |bencher| {
        bencher.iter(|| {
            at += 1;
            (0..TIMERS).for_each(|timer| wheel.arm(black_box(timer), after(1000 + at)));
        });
    });
    let mut wheel = Wheel::new(Instant::ZERO);
    let (mut at, mut fired) = (0, Vec::new());
    criterion.bench_function("timing wheel: 64 timers armed and fired", |bencher| {
        bencher.iter(|| {
            (0..TIMERS).for_each(|timer| wheel.arm(black_box(timer), after(at + 1)));
            at += 2;
            fired.clear();
            wheel.expire(after(at), &mut fired);
            assert_eq!(fired.len(), TIMERS as usize);
        });
    });
}

fn mail(criterion: &mut Criterion) {
    let (sender, mut receiver) = mailbox::<u64>(256);
    criterion.bench_function("mailbox: 64 messages sent and received on one core", |bencher| {
        bencher.iter(|| {
            (0..64).for_each(|message| sender.send(black_box(message)).expect("room"));
            std::iter::from_fn(|| receiver.receive()).sum::<u64>()
        });
    });
}

fn keys_and_values(criterion: &mut Criterion) {
    const KEYS: u64 = 100_000;
    let mut store = Store::new(&StoreConfig { key: [7; 16], ..StoreConfig::new(64 << 20) }, 0);
    let names: Vec<String> = (0..KEYS).map(|number| format!("key:{number:012}")).collect();
    let value = [b'x'; 64];
    for name in &names {
        let key = store.key(0, name.as_bytes());
        store.set(&key, &value, Expiry::Never, 0).expect("room");
    }
    let mut random = fastrand::Rng::with_seed(1);
    criterion.bench_function("store: 32 GETs of 100 000 keys", |bencher| {
        bencher.iter(|| {
            for _ in 0..32 {
                let key = store.key(0, names[random.usize(..names.len())].as_bytes());
                assert!(black_box(store.get(&key, 0)).is_ok_and(|found| found.is_some()));
            }
        });
    });
    criterion.bench_function("store: 32 SETs of 100 000 keys", |bencher| {
        bencher.iter(|| {
            for _ in 0..32 {
                let key = store.key(0, names[random.usize(..names.len())].as_bytes());
                store.set(&key, black_box(&value), Expiry::Never, 0).expect("room");
            }
        });
    });
}

fn requests(criterion: &mut Criterion) {
    let limits = Limits { bulk: 512 << 20, long: LONG_THRESHOLD, apart: false, authenticated: true };
    let get = "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n".repeat(32);
    let set = format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$64\r\n{}\r\n", "x".repeat(64)).repeat(32);
    for (name, requests) in [("RESP: 32 GETs read", get), ("RESP: 32 SETs of 64 bytes read", set)] {
        let mut parser = Parser::default();
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut rest = black_box(requests.as_bytes());
                while !rest.is_empty() {
                    let Ok(Parsed::Request(len)) = parser.parse(rest, limits) else { panic!("a whole request") };
                    black_box(parser.args(rest));
                    rest = &rest[len..];
                }
            });
        });
    }
}

criterion_group!(parts, segments, tuples, timers, mail, keys_and_values, requests);
criterion_main!(parts);
