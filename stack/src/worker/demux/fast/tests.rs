use super::*;
use crate::worker::demux::{FrameKind, Host};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_bypass::{L4, Nic, TxOffload};
use proptest::prelude::*;
use smoltcp::wire::checksum;
use std::net::Ipv4Addr;

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn addresses(own: &[&str]) -> Addresses {
    let own: Vec<_> = own.iter().map(|cidr| cidr.parse().unwrap()).collect();
    Addresses::new(&own, &[], OURS)
}

/// Returns a link whose ports compute and verify checksums.
fn link() -> (MemoryNic, MemoryNic) {
    Link::pair(LinkConfig { pool: 8, checksum_offload: true, ..LinkConfig::default() })
}

/// Returns `bytes` as a received packet, chained if `cut`. `vouched` states whether the port reports good IPv4 and TCP
/// checksums.
fn received(bytes: &[u8], cut: Option<usize>, vouched: (bool, bool)) -> MemoryPacket {
    let (mut sender, mut receiver) = link();
    let mut part = |bytes: &[u8]| {
        let mut packet = sender.allocate().unwrap();
        packet.append(bytes.len()).unwrap().copy_from_slice(bytes);
        packet
    };
    let (front, back) = bytes.split_at(cut.unwrap_or(bytes.len()));
    let mut frame = part(front);
    if !back.is_empty() {
        frame.chain(part(back)).unwrap();
    }
    frame.set_tx_offload(TxOffload {
        l2_len: 0,
        l3_len: 0,
        l4_len: 0,
        ipv4: true,
        ipv4_checksum: vouched.0,
        l4_checksum: vouched.1.then_some(L4::Tcp),
        tso: None,
    });
    sender.tx_burst(&mut vec![frame]);
    let mut into = Vec::with_capacity(1);
    receiver.rx_burst(&mut into);
    into.remove(0)
}

fn fast_demux(frame: &MemoryPacket, addresses: &Addresses) -> Option<Tcp> {
    let fast_demux = FastDemux::new(OURS, addresses, None);
    let found = [fast_demux.v4(frame, addresses), fast_demux.v6(frame, addresses)];
    assert!(found[0].is_none() || found[1].is_none());
    found[0].or(found[1])
}

fn classify(frame: &MemoryPacket, addresses: &Addresses) -> Option<FrameKind> {
    let host = Host { mac: OURS, addresses, dhcp: true, fragments: true, raw_udp: None, partial_checksums: false };
    host.classify(frame).ok()
}

fn general_path(frame: &MemoryPacket, addresses: &Addresses) -> Option<Tcp> {
    match classify(frame, addresses) {
        Some(FrameKind::Tcp(tcp)) => Some(tcp),
        _ => None,
    }
}

/// Returns a segment with timestamps, `payload` bytes of payload and `padding` bytes of padding. Its TCP checksum is
/// wrong.
fn segment(six: bool, payload: usize, padding: usize) -> Vec<u8> {
    let tcp_len = 32 + payload;
    let mut frame = [&OURS.0[..], &[2, 0, 0, 0, 0, 1]].concat();
    if six {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((tcp_len as u16).to_be_bytes());
        frame.extend([TCP, 64]);
        for ip in ["fd00::1", "fd00::2"] {
            frame.extend(ip.parse::<std::net::Ipv6Addr>().unwrap().octets());
        }
    } else {
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((20 + tcp_len as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        set_ipv4_checksum(&mut frame);
    }
    // Ports 5000 and 7.
    frame.extend([0x13, 0x88, 0, 7, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x10, 4, 0, 0x12, 0x34, 0, 0]);
    frame.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    frame.extend((0..payload + padding).map(|n| n as u8));
    frame
}

fn set_ipv4_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = !checksum::data(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the checksum of a segment or datagram over IPv4 that ends at `end`.
fn set_l4_checksum(frame: &mut [u8], protocol: u8, end: usize) {
    let at = if protocol == TCP { 50 } else { 40 };
    frame[at..at + 2].fill(0);
    let pseudo = [&frame[26..34], &[0, protocol], &(end as u16 - 34).to_be_bytes()].concat();
    let sum = !checksum::combine(&[checksum::data(&pseudo), checksum::data(&frame[34..end])]);
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

const OWN: [&str; 2] = ["10.0.0.2/24", "fd00::2/64"];
const MORE: [&str; 4] = ["192.0.2.1/31", "10.0.0.2/24", "fd01::2/64", "fd00::2/64"];

#[test]
fn ordinary_segments_take_the_fast_path() {
    for own in [&OWN[..], &MORE] {
        let addresses = addresses(own);
        for six in [false, true] {
            let header = if six { 40 } else { 20 };
            for (payload, padding) in [(0, 0), (0, 6), (64, 0), (1000, 3)] {
                // The engine verifies the cheap IPv4 header checksum, which many ports leave to software.
                for ipv4 in [false, true] {
                    let frame = received(&segment(six, payload, padding), None, (ipv4, true));
                    let tcp = fast_demux(&frame, &addresses).unwrap();
                    assert_eq!((tcp.start, tcp.end), (14 + header, 14 + header + 32 + payload));
                    assert_eq!((tcp.tuple.local_port(), tcp.tuple.remote_port()), (7, 5000));
                    assert_eq!(Some(tcp), general_path(&frame, &addresses));
                }
            }
        }
    }
}

#[test]
fn chain_takes_the_fast_path_if_its_first_mbuf_has_the_headers() {
    let addresses = addresses(&OWN);
    for (six, headers) in [(false, 66), (true, 86)] {
        for cut in headers - 20..headers + 20 {
            let frame = received(&segment(six, 100, 0), Some(cut), (true, true));
            assert_eq!(fast_demux(&frame, &addresses).is_some(), cut >= headers, "{cut}");
            assert_eq!(fast_demux(&frame, &addresses), general_path(&frame, &addresses), "{cut}");
        }
    }
}

#[test]
fn checksum_that_the_port_leaves_to_software_is_verified() {
    let addresses = addresses(&OWN);
    for (payload, padding) in [(0, 0), (1, 0), (63, 2), (64, 0), (1001, 3)] {
        let mut bytes = segment(false, payload, padding);
        let end = bytes.len() - padding;
        set_l4_checksum(&mut bytes, TCP, end);
        for vouched in [(false, false), (true, false)] {
            let frame = received(&bytes, None, vouched);
            assert!(fast_demux(&frame, &addresses).is_some(), "{payload} {padding}");
            assert_eq!(fast_demux(&frame, &addresses), general_path(&frame, &addresses));
        }
        for at in (26..34).chain(34..end) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            set_ipv4_checksum(&mut damaged);
            assert_eq!(fast_demux(&received(&damaged, None, (false, false)), &addresses), None, "byte {at}");
        }
    }
}

#[test]
fn wrong_checksums_take_the_general_path() {
    let addresses = addresses(&OWN);
    for six in [false, true] {
        assert_eq!(fast_demux(&received(&segment(six, 10, 0), None, (true, false)), &addresses), None);
    }
    let mut frame = segment(false, 10, 0);
    frame[24] ^= 1;
    assert_eq!(fast_demux(&received(&frame, None, (false, true)), &addresses), None);
    assert!(fast_demux(&received(&frame, None, (true, true)), &addresses).is_some());
}

/// Generates boundary values of header bytes.
fn edge() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), prop::sample::select(&[0, 1, 2, 6, 0x40, 0x45, 0x4f, 0x50, 0x60, 0xdf, 0xe0, 0xff][..])]
}

/// Replaces bytes of `frame`, then shortens it by `shorter` bytes.
fn damage_frame(frame: &mut Vec<u8>, damage: Vec<(usize, u8)>, shorter: Option<usize>) {
    for (at, value) in damage {
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
    }
    frame.truncate(frame.len().saturating_sub(shorter.unwrap_or(0)).max(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// For any damage, a frame that the fast path accepts has the same result on the general path.
    #[test]
    fn fast_path_agrees_with_general_path(
        six: bool, payload in 0usize..40, padding in 0usize..4, cut in prop::option::of(1usize..120),
        damage in prop::collection::vec((0usize..100, edge()), 0..3), shorter in prop::option::of(0usize..100),
        right_checksum: bool, right_tcp_checksum: bool, vouched: (bool, bool), several: bool,
    ) {
        let mut bytes = segment(six, payload, padding);
        damage_frame(&mut bytes, damage, shorter);
        if right_checksum && bytes.len() >= 34 {
            set_ipv4_checksum(&mut bytes);
        }
        if right_tcp_checksum && bytes.len() >= 54 {
            let end = bytes.len() - padding.min(bytes.len() - 54);
            set_l4_checksum(&mut bytes, TCP, end);
        }
        let cut = cut.filter(|cut| *cut < bytes.len());
        let frame = received(&bytes, cut, vouched);
        let addresses = addresses(if several { &MORE } else { &OWN });
        if let Some(tcp) = fast_demux(&frame, &addresses).filter(|tcp| !addresses.is_martian_peer(&tcp.tuple)) {
            prop_assert_eq!(general_path(&frame, &addresses), Some(tcp));
        }
    }

    /// For any IPv4 and IPv6 addresses.
    #[test]
    fn fast_path_accepts_no_address_that_the_general_path_drops(
        source in prop::sample::select(&[
            0u32, 1, 0x00ff_ffff, 0x0100_0000, 0x0a00_0001, 0x0a00_0002, 0x0a00_00ff, 0x0aff_ffff, 0x7f00_0001, 0x7fff_ffff, 0xc000_0200, 0xc000_0201, 0xdfff_ffff, 0xe000_0000,
            0xe000_0001, 0xf000_0000, 0xffff_ffff,
        ][..]),
        destination in prop::sample::select(&[
            0u32, 0x0a00_0002, 0x0a00_0003, 0x0a00_00ff, 0xc000_0201, 0xc000_0200, 0xe000_0001, 0xffff_ffff,
        ][..]),
        ends6 in prop::sample::select(&[
            ("::", "fd00::2"), ("::1", "fd00::2"), ("::ffff:10.0.0.1", "fd00::2"), ("ff02::1", "fd00::2"),
            ("feff:ffff:ffff:ffff::", "fd00::2"), ("ff00::", "fd00::2"), ("0:0:0:1::", "fd00::2"), ("fd00::1", "ff02::1"),
            ("fd00::1", "fd01::2"), ("fd00::1", "fd00::3"), ("fd00::1", "::"), ("fd00::1", "fe80::ff:fe00:2"),
            ("fd00::1", "::ffff:10.0.0.2"), ("fd00::2", "fd00::2"),
        ][..]),
        six: bool, several: bool,
    ) {
        let mut bytes = segment(six, 10, 0);
        if six {
            for (offset, ip) in [(22, ends6.0), (38, ends6.1)] {
                bytes[offset..offset + 16].copy_from_slice(&ip.parse::<std::net::Ipv6Addr>().unwrap().octets());
            }
        } else {
            bytes[26..30].copy_from_slice(&Ipv4Addr::from_bits(source).octets());
            bytes[30..34].copy_from_slice(&Ipv4Addr::from_bits(destination).octets());
        }
        let frame = received(&bytes, None, (true, true));
        let addresses = addresses(if several { &MORE } else { &OWN });
        let found = fast_demux(&frame, &addresses);
        if let Some(tcp) = found.filter(|tcp| addresses.is_martian_peer(&tcp.tuple)) {
            // The engine drops it.
            prop_assert_eq!(general_path(&frame, &addresses), None);
            prop_assert!(tcp.tuple.remote_v4().is_none_or(|ip| ip.is_loopback() || addresses.is_local(ip.into())));
        } else if found.is_some() {
            prop_assert_eq!(general_path(&frame, &addresses), found);
        } else if let Some(tcp) = general_path(&frame, &addresses) {
            // Unassigned addresses: below ::1:0:0:0:0.
            prop_assert!(!tcp.tuple.is_ipv4() && tcp.tuple.remote_v6().to_bits() >> 64 == 0);
        }
    }
}

/// Returns a datagram over IPv4 with `payload` bytes of payload, `padding` bytes of padding, and correct checksums.
fn datagram(payload: usize, padding: usize) -> Vec<u8> {
    let udp_len = 8 + payload;
    let mut frame = [&OURS.0[..], &[2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 0]].concat();
    frame.extend((20 + udp_len as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    // Ports 5000 and 7.
    frame.extend([0x13, 0x88, 0, 7]);
    frame.extend((udp_len as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..payload + padding).map(|n| n as u8));
    set_ipv4_checksum(&mut frame);
    set_l4_checksum(&mut frame, UDP, 34 + udp_len);
    frame
}

fn fast_datagram(frame: &MemoryPacket, addresses: &Addresses) -> Option<UdpDatagram> {
    FastDemux::new(OURS, addresses, None).udp_v4(frame, addresses)
}

fn general_datagram(frame: &MemoryPacket, addresses: &Addresses) -> Option<UdpDatagram> {
    match classify(frame, addresses) {
        Some(FrameKind::Udp(udp)) => Some(udp),
        _ => None,
    }
}

#[test]
fn ordinary_datagrams_take_the_fast_path() {
    for own in [&OWN[..], &MORE] {
        let addresses = addresses(own);
        for (payload, padding) in [(0, 0), (0, 18), (1, 0), (64, 0), (1000, 3)] {
            for vouched in [(false, false), (false, true), (true, false), (true, true)] {
                let frame = received(&datagram(payload, padding), None, vouched);
                let udp = fast_datagram(&frame, &addresses).unwrap();
                assert_eq!((udp.start, udp.end), (42, 42 + payload));
                assert_eq!((udp.local, udp.remote), ("10.0.0.2:7".parse().unwrap(), "10.0.0.1:5000".parse().unwrap()));
                assert_eq!(general_datagram(&frame, &addresses), Some(udp));
            }
        }
    }
}

#[test]
fn only_datagrams_to_the_raw_port_need_no_checksum() {
    let (addresses, mut bytes) = (addresses(&OWN), datagram(64, 0));
    bytes[40..42].fill(0);
    for (raw_udp, is_fast) in [(None, false), (Some(8), false), (Some(7), true)] {
        for vouched in [(false, false), (true, true)] {
            let frame = received(&bytes, None, vouched);
            let found = FastDemux::new(OURS, &addresses, raw_udp).udp_v4(&frame, &addresses);
            assert_eq!(found.is_some(), is_fast, "{raw_udp:?} {vouched:?}");
            assert_eq!(raw(&addresses, raw_udp).raw_v4(&frame), is_fast.then_some(42 + 64), "{raw_udp:?} {vouched:?}");
        }
    }
    // The checksum of the IP header is verified nevertheless.
    bytes[24] ^= 1;
    let frame = received(&bytes, None, (false, false));
    assert_eq!(FastDemux::new(OURS, &addresses, Some(7)).udp_v4(&frame, &addresses), None);
    assert_eq!(raw(&addresses, Some(7)).raw_v4(&frame), None);
}

/// Returns a demultiplexer with a service at 10.0.0.2:7.
fn raw(addresses: &Addresses, port: Option<u16>) -> FastDemux {
    FastDemux::new(OURS, addresses, port).with_raw(|local| *local == "10.0.0.2:7".parse().unwrap())
}

#[test]
fn raw_datagrams_satisfy_the_checks_of_others() {
    let (addresses, mut bytes) = (addresses(&OWN), datagram(33, 2));
    bytes[40..42].fill(0);
    let other = FastDemux::new(OURS, &addresses, Some(7)).with_raw(|_| false);
    assert_eq!(other.raw_v4(&received(&bytes, None, (true, true))), None, "no service listens");
    let mut accepted = 0;
    for vouched in [(false, false), (true, true)] {
        for (at, bit) in (0..42).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let frame = received(&changed, None, vouched);
            let demux = raw(&addresses, Some(7));
            if let Some(end) = demux.raw_v4(&frame) {
                assert_eq!(demux.udp_v4(&frame, &addresses).map(|udp| udp.end), Some(end), "byte {at} bit {bit}");
                accepted += 1;
            }
        }
        // Source addresses that no other host has.
        for source in [[0, 0, 0, 1], [127, 0, 0, 1], [10, 0, 0, 2], [224, 0, 0, 1]] {
            let mut changed = bytes.clone();
            changed[26..30].copy_from_slice(&source);
            set_ipv4_checksum(&mut changed);
            assert_eq!(raw(&addresses, Some(7)).raw_v4(&received(&changed, None, vouched)), None, "{source:?}");
        }
    }
    assert!(accepted > 100, "the Ethernet source and the source port are free: {accepted}");
}

#[test]
fn damaged_datagrams_take_the_general_path() {
    let (addresses, bytes) = (addresses(&OWN), datagram(33, 2));
    // All bytes but the source address of Ethernet and the padding.
    for at in (0..6).chain(12..75) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        assert_eq!(fast_datagram(&received(&damaged, None, (false, false)), &addresses), None, "byte {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// For any damage, a datagram that the fast path accepts has the same result on the general path.
    #[test]
    fn fast_path_agrees_with_general_path_on_datagrams(
        payload in 0usize..40, padding in 0usize..4, cut in prop::option::of(1usize..100),
        damage in prop::collection::vec((0usize..60, edge()), 0..3), shorter in prop::option::of(0usize..80),
        right_checksum: bool, right_udp_checksum: bool, vouched: (bool, bool), several: bool,
    ) {
        let mut bytes = datagram(payload, padding);
        damage_frame(&mut bytes, damage, shorter);
        if right_checksum && bytes.len() >= 34 {
            set_ipv4_checksum(&mut bytes);
        }
        if right_udp_checksum && bytes.len() >= 42 {
            let end = (34 + usize::from(u16::from_be_bytes([bytes[38], bytes[39]]))).clamp(42, bytes.len());
            set_l4_checksum(&mut bytes, UDP, end);
        }
        let cut = cut.filter(|cut| *cut < bytes.len());
        let frame = received(&bytes, cut, vouched);
        let addresses = addresses(if several { &MORE } else { &OWN });
        if let Some(udp) = fast_datagram(&frame, &addresses) {
            prop_assert_eq!(general_datagram(&frame, &addresses), Some(udp));
        }
    }

    /// For any addresses and ports, including those of DHCP.
    #[test]
    fn fast_path_accepts_no_datagram_that_the_general_path_drops(
        source in prop::sample::select(&[
            0u32, 0x00ff_ffff, 0x0a00_0001, 0x0a00_0002, 0x0a00_00ff, 0x7f00_0001, 0xc000_0200, 0xdfff_ffff,
            0xe000_0001, 0xffff_ffff,
        ][..]),
        destination in prop::sample::select(&[
            0x0a00_0002u32, 0x0a00_0003, 0x0a00_00ff, 0xc000_0201, 0xe000_0001, 0xffff_ffff,
        ][..]),
        from in prop::sample::select(&[0u16, 67, 68, 5000][..]), to in prop::sample::select(&[0u16, 7, 67, 68][..]),
        several: bool,
    ) {
        let mut bytes = datagram(10, 0);
        bytes[26..30].copy_from_slice(&source.to_be_bytes());
        bytes[30..34].copy_from_slice(&destination.to_be_bytes());
        bytes[34..36].copy_from_slice(&from.to_be_bytes());
        bytes[36..38].copy_from_slice(&to.to_be_bytes());
        let frame = received(&bytes, None, (true, true));
        let addresses = addresses(if several { &MORE } else { &OWN });
        let (fast, general) = (fast_datagram(&frame, &addresses), general_datagram(&frame, &addresses));
        prop_assert!(fast == general || fast.is_none() && to == 68, "{fast:?} {general:?}");
    }
}
