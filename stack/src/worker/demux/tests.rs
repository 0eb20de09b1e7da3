use super::*;
use linerate_bypass::Nic;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryPacket};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, IpRepr, TcpControl, TcpRepr, TcpSeqNumber, UdpPacket};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn packet(bytes: &[u8]) -> MemoryPacket {
    let (mut nic, _) = Link::pair(LinkConfig { pool: 4, ..LinkConfig::default() });
    let mut packet = nic.allocate().unwrap();
    packet.append(bytes.len()).unwrap().copy_from_slice(bytes);
    packet
}

/// Port whose datagrams need no checksum.
const RAW: u16 = 4791;

fn classify(bytes: &[u8]) -> Result<FrameKind, DropCause> {
    classify_on(bytes, false)
}

fn classify_on(bytes: &[u8], partial_checksums: bool) -> Result<FrameKind, DropCause> {
    let own = ["10.0.0.2/24", "fd00::2/64"].map(|cidr| cidr.parse().unwrap());
    let addresses = Addresses::new(&own, &[], OURS);
    Host { mac: OURS, addresses: &addresses, dhcp: false, fragments: false, raw_udp: Some(RAW), partial_checksums }
        .classify(&packet(bytes))
}

/// Returns a frame with a TCP segment with `len` bytes of payload.
fn tcp(from: &str, to: &str, len: usize) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
    let segment = TcpRepr {
        src_port: from.port(),
        dst_port: to.port(),
        control: TcpControl::None,
        seq_number: TcpSeqNumber(1),
        ack_number: Some(TcpSeqNumber(2)),
        window_len: 1000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &payload,
    };
    frame_of((from, to), IpProtocol::Tcp, segment.buffer_len(), |out, source, destination, all| {
        segment.emit(&mut TcpPacket::new_unchecked(out), source, destination, all);
    })
}

/// Returns a frame with `len` bytes of `protocol`, which `emit` writes.
fn frame_of(
    (from, to): (SocketAddr, SocketAddr),
    protocol: IpProtocol,
    len: usize,
    emit: impl FnOnce(&mut [u8], &IpAddress, &IpAddress, &ChecksumCapabilities),
) -> Vec<u8> {
    let (source, destination) = (from.ip().into(), to.ip().into());
    let ip = IpRepr::new(source, destination, protocol, len, 64);
    let mut frame = vec![0; ETHERNET_HEADER + ip.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
    ethernet.set_dst_addr(smoltcp::wire::EthernetAddress(OURS.0));
    ethernet.set_ethertype(if from.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 });
    let all = ChecksumCapabilities::default();
    ip.emit(ethernet.payload_mut(), &all);
    let rest = &mut frame[ETHERNET_HEADER + ip.header_len()..];
    emit(rest, &source, &destination, &all);
    frame
}

const FOUR: (&str, &str) = ("10.0.0.1:5000", "10.0.0.2:7");
const SIX: (&str, &str) = ("[fd00::1]:5000", "[fd00::2]:7");

#[test]
fn segment_excludes_padding() {
    for ((from, to), header) in [(FOUR, 20), (SIX, 40)] {
        let mut frame = tcp(from, to, 3);
        frame.extend([0xaa; 20]);
        let tuple = Tuple::new(to.parse().unwrap(), from.parse().unwrap());
        assert_eq!(classify(&frame), Ok(FrameKind::Tcp(Tcp { tuple, start: 14 + header, end: 14 + header + 23 })));
    }
}

#[test]
fn truncated_segments_are_dropped() {
    for (from, to) in [FOUR, SIX] {
        let frame = tcp(from, to, 3);
        for len in 1..frame.len() {
            assert_eq!(classify(&frame[..len]), Err(DropCause::Truncated), "{len} bytes");
        }
    }
}

#[test]
fn any_flipped_bit_is_detected() {
    for (from, to) in [FOUR, SIX] {
        let frame = tcp(from, to, 20);
        let right = classify(&frame);
        for bit in ETHERNET_HEADER * 8..frame.len() * 8 {
            let mut wrong = frame.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            // IPv6 has no checksum over traffic class, flow label and hop limit, which have no effect here.
            let unprotected = from.starts_with('[') && matches!(bit / 8, 14..=17 | 21);
            if !(unprotected && classify(&wrong) == right) {
                assert!(!matches!(classify(&wrong), Ok(FrameKind::Tcp(_))), "bit {bit}");
            }
        }
    }
}

#[test]
fn partial_checksum_is_accepted_only_from_a_local_kernel() {
    for (from, to) in [FOUR, SIX] {
        let mut frame = tcp(from, to, 20);
        let header = if from.starts_with('[') { 40 } else { 20 };
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let sum = checksum::pseudo_header_sum(from.ip(), to.ip(), TCP, 40);
        TcpPacket::new_unchecked(&mut frame[ETHERNET_HEADER + header..]).set_checksum(sum);
        assert_eq!(classify_on(&frame, false), Err(DropCause::L4Checksum));
        assert!(matches!(classify_on(&frame, true), Ok(FrameKind::Tcp(_))));
        TcpPacket::new_unchecked(&mut frame[ETHERNET_HEADER + header..]).set_checksum(sum ^ 0x100);
        assert_eq!(classify_on(&frame, true), Err(DropCause::L4Checksum));
    }
}

#[test]
fn frames_for_other_destinations_are_dropped() {
    let elsewhere = [("10.0.0.1:1", "10.0.0.3:7"), ("[fd00::1]:1", "[fd00::3]:7")];
    let groups = [("10.0.0.1:1", "10.0.0.255:7"), ("10.0.0.1:1", "224.0.0.1:7"), ("[fd00::1]:1", "[ff02::1]:7")];
    for (from, to) in elsewhere.into_iter().chain(groups) {
        assert_eq!(classify(&tcp(from, to, 0)), Err(DropCause::NotOurs), "{to}");
    }
    let mut frame = tcp(FOUR.0, FOUR.1, 0);
    frame[5] ^= 1;
    assert_eq!(classify(&frame), Err(DropCause::NotOurs));
    // A broadcast frame with a local IP address is not valid for TCP (RFC 1122 §4.2.3.10).
    frame[..6].fill(0xff);
    assert_eq!(classify(&frame), Err(DropCause::NotOurs));
}

#[test]
fn multicast_and_unspecified_sources_are_dropped() {
    for from in ["224.0.0.1:1", "10.0.0.255:1", "255.255.255.255:1", "0.0.0.0:1"] {
        assert_eq!(classify(&tcp(from, FOUR.1, 0)), Err(DropCause::BadSource), "{from}");
    }
    for from in ["[ff02::1]:1", "[::]:1", "[::1]:1", "[::ffff:10.0.0.1]:1"] {
        assert_eq!(classify(&tcp(from, SIX.1, 0)), Err(DropCause::BadSource), "{from}");
    }
}

/// Returns the IPv4 `frame` as a first, a middle and a last fragment.
fn fragments(frame: &[u8]) -> [Vec<u8>; 3] {
    [(true, 0), (true, 1480), (false, 2960)].map(|(more, offset)| {
        let mut fragment = frame.to_vec();
        let mut ip = Ipv4Packet::new_unchecked(&mut fragment[ETHERNET_HEADER..]);
        ip.set_more_frags(more);
        ip.set_frag_offset(offset);
        ip.fill_checksum();
        fragment
    })
}

/// Returns the IPv6 `frame` with eight-byte extension headers of these types.
fn with_extensions(frame: &[u8], kinds: &[u8]) -> Vec<u8> {
    let mut extended = frame[..54].to_vec();
    let mut next = frame[20];
    let mut headers = Vec::new();
    for &kind in kinds.iter().rev() {
        headers = [&[next, 0, 0, 0, 0, 0, 0, 0][..], &headers].concat();
        next = kind;
    }
    extended[20] = next;
    let len = u16::from_be_bytes([frame[18], frame[19]]) + 8 * kinds.len() as u16;
    extended[18..20].copy_from_slice(&len.to_be_bytes());
    extended.extend(headers);
    extended.extend(&frame[54..]);
    extended
}

#[test]
fn fragments_of_any_protocol_are_dropped() {
    for fragment in fragments(&tcp(FOUR.0, FOUR.1, 0)).iter().chain(&fragments(&udp(FOUR.0, FOUR.1, b"hello"))) {
        assert_eq!(classify(fragment), Err(DropCause::Fragment));
    }
    let mut echo = udp(FOUR.0, FOUR.1, b"hello");
    echo[23] = 1;
    for fragment in fragments(&echo) {
        assert_eq!(classify(&fragment), Err(DropCause::Fragment));
    }
    // Fragments for other hosts are not counted as fragments.
    assert_eq!(classify(&fragments(&tcp(FOUR.0, "10.0.0.3:7", 0))[0]), Err(DropCause::NotOurs));

    for plain in [tcp(SIX.0, SIX.1, 0), udp(SIX.0, SIX.1, b"hello")] {
        for kinds in [&[44][..], &[0, 44], &[60, 43, 44], &[44, 60]] {
            assert_eq!(
                classify(&with_extensions(&plain, kinds)),
                Err(DropCause::Fragment),
                "extension headers {kinds:?}"
            );
        }
    }
}

#[test]
fn udp_fragments_are_accepted_when_enabled() {
    let addresses = Addresses::new(&["10.0.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()], &[], OURS);
    let host =
        Host { mac: OURS, addresses: &addresses, dhcp: true, fragments: true, raw_udp: None, partial_checksums: false };
    for fragment in fragments(&udp(FOUR.0, FOUR.1, b"hello")) {
        assert_eq!(host.classify(&packet(&fragment)), Ok(FrameKind::Ip));
    }
    for fragment in fragments(&tcp(FOUR.0, FOUR.1, 0)) {
        assert_eq!(host.classify(&packet(&fragment)), Err(DropCause::Fragment));
    }
    assert_eq!(host.classify(&packet(&with_extensions(&udp(SIX.0, SIX.1, b"hello"), &[44]))), Err(DropCause::Fragment));
}

/// RFC 6980: fragmented NDP messages must be ignored.
#[test]
fn fragmented_ndp_is_dropped() {
    let mut plain = udp(SIX.0, SIX.1, b"hello");
    plain[20] = 58;
    assert_eq!(classify(&with_extensions(&plain, &[44])), Err(DropCause::Fragment));
}

#[test]
fn fragmented_dhcp_is_dropped() {
    let frame = udp("10.0.0.1:67", "255.255.255.255:68", b"hello");
    let addresses = Addresses::new(&["10.0.0.2/24".parse().unwrap()], &[], OURS);
    let host = Host {
        mac: OURS,
        addresses: &addresses,
        dhcp: true,
        fragments: false,
        raw_udp: None,
        partial_checksums: false,
    };
    assert_eq!(host.classify(&packet(&frame)), Ok(FrameKind::Dhcp));
    for fragment in fragments(&frame) {
        assert_eq!(host.classify(&packet(&fragment)), Err(DropCause::Fragment));
    }
}

#[test]
fn tcp_after_extension_headers_is_dropped() {
    let plain = tcp(SIX.0, SIX.1, 0);
    for kinds in [&[0][..], &[60], &[43], &[51], &[0, 60, 43]] {
        let frame = with_extensions(&plain, kinds);
        assert_eq!(classify(&frame), Err(DropCause::ExtensionHeader), "extension headers {kinds:?}");
    }
    // A malformed chain may hide TCP.
    let mut endless = with_extensions(&plain, &[60, 60]);
    endless[54 + 1] = 200;
    assert_eq!(classify(&endless), Err(DropCause::ExtensionHeader));
    // smoltcp handles UDP after extension headers.
    assert_eq!(classify(&with_extensions(&udp(SIX.0, SIX.1, b"hello"), &[60])), Ok(FrameKind::Ip));
}

/// Returns a frame with a UDP datagram.
fn udp(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let repr = smoltcp::wire::UdpRepr { src_port: from.port(), dst_port: to.port() };
    frame_of((from, to), IpProtocol::Udp, 8 + payload.len(), |out, source, destination, all| {
        let fill = |out: &mut [u8]| out.copy_from_slice(payload);
        repr.emit(&mut UdpPacket::new_unchecked(out), source, destination, payload.len(), fill, all);
    })
}

/// Applies `change` to the UDP header of `frame` and updates the checksum.
fn with_udp(mut frame: Vec<u8>, (from, to): (&str, &str), change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let at = ETHERNET_HEADER + if from.starts_with('[') { 40 } else { 20 };
    change(&mut frame[at..]);
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let mut udp = UdpPacket::new_unchecked(&mut frame[at..]);
    if usize::from(udp.len()) >= 8 && usize::from(udp.len()) <= udp.as_ref().len() {
        udp.fill_checksum(&from.ip().into(), &to.ip().into());
    }
    frame
}

#[test]
fn datagram_excludes_padding() {
    for (ends, header) in [(FOUR, 20), (SIX, 40)] {
        let start = ETHERNET_HEADER + header + 8;
        let found = |len| {
            let (remote, local) = (ends.0.parse().unwrap(), ends.1.parse().unwrap());
            Ok(FrameKind::Udp(UdpDatagram { local, remote, start, end: start + len }))
        };
        let mut frame = udp(ends.0, ends.1, b"hello");
        frame.extend([0xaa; 20]);
        assert_eq!(classify(&frame), found(5));
        assert_eq!(classify(&udp(ends.0, ends.1, b"")), found(0));
        // The UDP length may be shorter than the IP payload; the checksum covers the UDP length.
        let shorter = with_udp(udp(ends.0, ends.1, b"hello"), ends, |udp| udp[4..6].copy_from_slice(&[0, 11]));
        assert_eq!(classify(&shorter), found(3));
    }
}

#[test]
fn datagrams_with_invalid_lengths_are_dropped() {
    for ends in [FOUR, SIX] {
        for len in [0_u16, 1, 7, 14, 1000, 65535] {
            let frame =
                with_udp(udp(ends.0, ends.1, b"hello"), ends, |udp| udp[4..6].copy_from_slice(&len.to_be_bytes()));
            assert_eq!(classify(&frame), Err(DropCause::Truncated), "{len}");
        }
        let frame = udp(ends.0, ends.1, b"hello");
        for len in 1..frame.len() {
            assert_eq!(classify(&frame[..len]), Err(DropCause::Truncated), "{len} bytes");
        }
    }
}

#[test]
fn datagram_without_checksum_is_accepted_over_ipv4_or_by_a_raw_port() {
    let raw = (SIX.0, "[fd00::2]:4791");
    for (ends, taken) in [(FOUR, true), (SIX, false), (raw, true)] {
        let at = ETHERNET_HEADER + if ends == FOUR { 20 } else { 40 } + 6;
        let mut frame = udp(ends.0, ends.1, b"hello");
        frame[at..at + 2].fill(0);
        assert_eq!(matches!(classify(&frame), Ok(FrameKind::Udp(_))), taken);
        assert!(taken || classify(&frame) == Err(DropCause::L4Checksum));
        let mut frame = udp(ends.0, ends.1, b"hello");
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(classify(&frame), Err(DropCause::L4Checksum));
    }
}

#[test]
fn unusual_datagrams_take_the_slow_path() {
    for ends in [FOUR, SIX] {
        for port in [0, 2] {
            let frame = with_udp(udp(ends.0, ends.1, b"hello"), ends, |udp| udp[port..port + 2].fill(0));
            assert_eq!(classify(&frame), Ok(FrameKind::Ip));
        }
    }
    // Broadcast frame with a local IP address, and multicast.
    let mut broadcast = udp(FOUR.0, FOUR.1, b"hello");
    broadcast[..6].fill(0xff);
    assert_eq!(classify(&broadcast), Ok(FrameKind::Ip));
    for to in ["10.0.0.255:7", "224.0.0.1:7"] {
        assert_eq!(classify(&udp(FOUR.0, to, b"hello")), Ok(FrameKind::Ip));
    }
    for from in ["224.0.0.1:1", "10.0.0.255:1", "0.0.0.0:1"] {
        assert_eq!(classify(&udp(from, FOUR.1, b"hello")), Err(DropCause::BadSource), "{from}");
    }
}

#[test]
fn other_protocols_are_classified() {
    let mut arp = tcp(FOUR.0, FOUR.1, 0);
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(classify(&arp), Ok(FrameKind::Arp));
    arp[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(classify(&arp), Err(DropCause::EtherType));
    let mut unknown = tcp(FOUR.0, FOUR.1, 0);
    let mut ip = Ipv4Packet::new_unchecked(&mut unknown[ETHERNET_HEADER..]);
    ip.set_next_header(IpProtocol::Unknown(200));
    ip.fill_checksum();
    assert_eq!(classify(&unknown), Ok(FrameKind::Ip));
}
