//! Packets with an impossible source address (RFC 1122 §3.2.1.3, RFC 6890, RFC 4291), which include the receiver's own
//! (LAND attack). Each is dropped and counted, opens no connection and gets no reply.

use crate::common::client::Client;
use crate::common::{HOST_MAC, Host, frames, host, server};
use crate::host::neighbor_flood::{Bench, FOUR, SIX, neighbor_request, ping};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_service::ConnectError;
use linerate_service::time::Instant;
use linerate_stack::{Config, Engine};
use smoltcp::wire::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const DROPPED: &str = "impossible source address";
const STATION: [u8; 6] = [2, 0xaa, 0, 0, 0, 1];

/// Impossible source addresses; the last two belong to the receiver.
const V4: [&str; 14] = [
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.255.255.255",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "254.1.2.3",
    "255.255.255.255",
    "10.255.255.255",
    "192.0.2.255",
    "0.255.255.255",
    "10.0.0.2",
    "192.0.2.2",
];
const V6: [&str; 8] =
    ["::", "::1", "ff02::1", "ff0e::7", "::ffff:10.0.0.9", "::ffff:127.0.0.1", "fd00::2", "fe80::ff:fe00:2"];

fn config() -> Config {
    let addresses = ["10.0.0.2/8", "192.0.2.2/24", "fd00::2/64"].map(|cidr| cidr.parse().unwrap());
    // Every address is routable, so that a missing reply is not due to a missing route.
    let gateways = ["10.0.0.254", "fd00::fe"].map(|ip| ip.parse().unwrap());
    Config { addresses: addresses.to_vec(), gateways: gateways.to_vec(), ..server() }
}

/// Returns hosts on links with and without checksum verification by the port: both receive paths.
fn benches<E: Engine<MemoryNic>>() -> [Bench<E>; 2] {
    [true, false].map(|checksum_offload| {
        let mut bench = Bench::with(LinkConfig { checksum_offload, ..LinkConfig::default() }, 1, &config());
        // The gateways are known, so that no reply waits for neighbour resolution.
        for gateway in ["10.0.0.254", "fd00::fe"] {
            bench.send(&neighbor_request((STATION, gateway.parse().unwrap())));
        }
        bench
    })
}

fn own_address(source: IpAddr) -> IpAddr {
    if source.is_ipv4() { FOUR.into() } else { SIX.into() }
}

fn sources() -> impl Iterator<Item = IpAddr> {
    V4.iter().chain(&V6).map(|ip| ip.parse().unwrap())
}

fn udp(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    frames::ip(STATION, HOST_MAC, from.ip(), to.ip(), IpProtocol::Udp, 12, |bytes, source, destination| {
        let udp = UdpRepr { src_port: from.port(), dst_port: to.port() };
        let bytes = &mut UdpPacket::new_unchecked(bytes);
        udp.emit(bytes, &source, &destination, 4, |b| b.fill(1), &Default::default());
    })
}

/// Returns a SYN with the options of Linux, in its order.
fn usual_syn(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    const OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
    let len = syn.buffer_len() + OPTIONS.len();
    frames::ip(STATION, HOST_MAC, from.ip(), to.ip(), IpProtocol::Tcp, len, |bytes, source, destination| {
        let sums = smoltcp::phy::ChecksumCapabilities::default();
        let syn = TcpRepr { src_port: from.port(), dst_port: to.port(), ..syn };
        syn.emit(&mut TcpPacket::new_unchecked(&mut bytes[..20]), &source, &destination, &sums);
        bytes[20..].copy_from_slice(&OPTIONS);
        let mut tcp = TcpPacket::new_unchecked(bytes);
        tcp.set_header_len(len as u8);
        tcp.fill_checksum(&source, &destination);
    })
}

/// Sends `frame`, which must be dropped for its source without a reply.
fn expect_dropped<E: Engine<MemoryNic>>(bench: &mut Bench<E>, frame: &[u8], case: &str) {
    let before = (bench.host.drops(DROPPED), bench.sent);
    bench.send(frame);
    assert_eq!((bench.host.drops(DROPPED), bench.sent), (before.0 + 1, before.1), "{case}");
}

fn segments_from_martians_are_dropped<E: Engine<MemoryNic>>() {
    for mut bench in benches::<E>() {
        for source in sources() {
            // Port 7 is open. The source port is 7 too, as in the LAND attack, or another port.
            for (from, to) in [(7, 7), (5000, 7), (5000, 9)] {
                let (from, to) = (SocketAddr::new(source, from), SocketAddr::new(own_address(source), to));
                let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
                let ack = TcpRepr { ack_number: Some(TcpSeqNumber(9)), ..frames::segment() };
                for frame in [
                    frames::tcp(STATION, HOST_MAC, from, to, syn),
                    usual_syn(from, to),
                    frames::tcp(STATION, HOST_MAC, from, to, ack),
                ] {
                    expect_dropped(&mut bench, &frame, &format!("{from} {to} {}", frame.len()));
                }
            }
        }
        assert_eq!(bench.host.workers[0].engine().connections(), 0);
    }
}

fn datagrams_and_pings_from_martians_are_dropped<E: Engine<MemoryNic>>() {
    for mut bench in benches::<E>() {
        for source in sources() {
            for port in [7, 9] {
                let frame = udp(SocketAddr::new(source, 5000), SocketAddr::new(own_address(source), port));
                expect_dropped(&mut bench, &frame, &format!("UDP {source} {port}"));
            }
            expect_dropped(&mut bench, &ping(STATION, source, own_address(source)), &format!("ping {source}"));
        }
    }
}

fn arp_from_martians_is_dropped<E: Engine<MemoryNic>>() {
    let [mut bench, _] = benches::<E>();
    // Handled elsewhere: ARP probes have the sender 0.0.0.0, and an own address as the sender is a conflict (RFC 5227
    // §1.1, §2.4).
    let claimed = ["0.0.0.0", "10.0.0.2", "192.0.2.2"];
    for source in V4.into_iter().filter(|source| !claimed.contains(source)) {
        let source: Ipv4Addr = source.parse().unwrap();
        for target in [FOUR, source, "10.0.0.9".parse().unwrap()] {
            for operation in [ArpOperation::Request, ArpOperation::Reply] {
                let frame = frames::arp(operation, (STATION, source), ([0xff; 6], target));
                expect_dropped(&mut bench, &frame, &format!("{operation:?} {source}"));
            }
        }
    }
    for station in [[0xff; 6], [0; 6], [3, 0, 0, 0, 0, 1]] {
        let frame = frames::arp(ArpOperation::Request, (station, "10.0.0.9".parse().unwrap()), ([0xff; 6], FOUR));
        expect_dropped(&mut bench, &frame, &format!("{station:x?}"));
    }
}

/// Solicitations from an own address are dropped. An advertisement of an own address is a conflict instead.
fn solicitations_from_martians_are_dropped<E: Engine<MemoryNic>>() {
    let [mut bench, _] = benches::<E>();
    for source in V6.into_iter().filter(|source| *source != "::") {
        expect_dropped(&mut bench, &neighbor_request((STATION, source.parse().unwrap())), source);
    }
}

fn peers_are_served_next_to_martians<E: Engine<MemoryNic>>() {
    for mut bench in benches::<E>() {
        for ip in ["10.0.0.1", "126.0.0.1", "128.0.0.1", "1.0.0.1", "223.255.255.1", "fd00::1", "2001:db8::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let before = bench.sent;
            // Replies to sources behind the gateways go to the gateways.
            bench.send(&ping(STATION, ip, own_address(ip)));
            assert_eq!(bench.sent, before + 1, "{ip}");
        }
    }
}

fn connecting_to_own_and_martian_addresses_is_refused<E: Engine<MemoryNic>>() {
    for (to, error) in [
        ("10.0.0.1", ConnectError::InvalidAddress),
        ("fd00::1", ConnectError::InvalidAddress),
        ("fe80::ff:fe00:1", ConnectError::InvalidAddress),
        ("127.0.0.1", ConnectError::InvalidAddress),
        ("::1", ConnectError::InvalidAddress),
        ("240.0.0.1", ConnectError::InvalidAddress),
        ("255.255.255.255", ConnectError::InvalidAddress),
        ("10.0.0.255", ConnectError::InvalidAddress),
        ("224.0.0.1", ConnectError::Unreachable),
        ("0.0.0.0", ConnectError::Unreachable),
        ("::", ConnectError::Unreachable),
    ] {
        let (nic, _peer) = Link::pair(LinkConfig::default());
        let mut client = Host::<_, E>::start(&host(1), vec![nic], || Client::new(to, 1, 1));
        for _ in 0..3 {
            client.workers[0].turn(Instant::ZERO);
        }
        assert_eq!(client.service().outcomes[0].failed, Some(error), "{to}");
        assert_eq!(client.workers[0].engine().connections(), 0);
    }
}

with_one_engine!(
    segments_from_martians_are_dropped,
    datagrams_and_pings_from_martians_are_dropped,
    arp_from_martians_is_dropped,
    solicitations_from_martians_are_dropped,
    peers_are_served_next_to_martians,
    connecting_to_own_and_martian_addresses_is_refused,
);
