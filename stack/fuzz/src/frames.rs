//! Ethernet frames: built for the endpoint, repaired, and parsed from it.

use linerate_bypass::MacAddr;
use smoltcp::wire::{
    ArpOperation, ArpPacket, EthernetFrame, EthernetProtocol, Icmpv6Message, Icmpv6Packet, IpAddress, Ipv4Packet,
    Ipv6Packet, TcpPacket, checksum,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

pub const ENDPOINT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const ENDPOINT_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const ENDPOINT_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
pub const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const ECE: u8 = 64;
pub const CWR: u8 = 128;

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Connection from the endpoint's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Tuple {
    /// Returns connection number `n` of the peer to the endpoint's port 7.
    pub fn accepted(n: u8, six: bool) -> Tuple {
        let (local, remote) = addresses(six);
        Tuple { local: (local, 7).into(), remote: (remote, 50_000 + u16::from(n)).into() }
    }
}

/// Returns the addresses of the endpoint and the peer.
pub fn addresses(six: bool) -> (IpAddr, IpAddr) {
    if six { (ENDPOINT_V6.into(), PEER_V6.into()) } else { (ENDPOINT_V4.into(), PEER_V4.into()) }
}

/// Fields of a TCP segment to the endpoint, except its payload.
#[derive(Debug, Clone, Default)]
pub struct Segment {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    /// Options, padded to four bytes, at most 40 bytes long.
    pub options: Vec<u8>,
    /// Length of the payload, which [`fill`] writes.
    pub len: usize,
    /// ECN field of the IP header.
    pub ecn: u8,
}

/// Returns a frame to the endpoint with `segment` of the connection `tuple`, correct checksums, and a payload of zeros.
pub fn tcp(tuple: &Tuple, segment: &Segment) -> Vec<u8> {
    let options = segment.options.len().min(40).next_multiple_of(4);
    let mut body = vec![0; 20 + options + segment.len];
    body[..2].copy_from_slice(&tuple.remote.port().to_be_bytes());
    body[2..4].copy_from_slice(&tuple.local.port().to_be_bytes());
    body[4..8].copy_from_slice(&segment.seq.to_be_bytes());
    body[8..12].copy_from_slice(&segment.ack.to_be_bytes());
    body[12] = (5 + options as u8 / 4) << 4;
    body[13] = segment.flags;
    body[14..16].copy_from_slice(&segment.window.to_be_bytes());
    body[18..20].copy_from_slice(&segment.urgent.to_be_bytes());
    let given = segment.options.len().min(40);
    body[20..20 + given].copy_from_slice(&segment.options[..given]);
    let mut frame = ip(tuple.remote.ip(), tuple.local.ip(), TCP, segment.ecn, &body);
    fix_checksums(&mut frame);
    frame
}

/// Returns an ICMP message from the peer, of `kind` and `code` with `word` in its header, about a segment that the
/// endpoint sent on `tuple` with number `seq`.
pub fn icmp(tuple: &Tuple, kind: u8, code: u8, word: u32, seq: u32) -> Vec<u8> {
    let mut quoted = [0; 20];
    quoted[..2].copy_from_slice(&tuple.local.port().to_be_bytes());
    quoted[2..4].copy_from_slice(&tuple.remote.port().to_be_bytes());
    quoted[4..8].copy_from_slice(&seq.to_be_bytes());
    quoted[12] = 5 << 4;
    let mut quoted = ip(tuple.local.ip(), tuple.remote.ip(), TCP, 0, &quoted);
    fix_checksums(&mut quoted);
    let mut body = vec![kind, code, 0, 0];
    body.extend_from_slice(&word.to_be_bytes());
    body.extend_from_slice(&quoted[ETHERNET..]);
    let protocol = if tuple.local.is_ipv4() { ICMP } else { ICMPV6 };
    let mut frame = ip(tuple.remote.ip(), tuple.local.ip(), protocol, 0, &body);
    fix_checksums(&mut frame);
    frame
}

fn ip(from: IpAddr, to: IpAddr, protocol: u8, ecn: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(ENDPOINT_MAC, from.is_ipv4());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = (20 + body.len()) as u16;
            frame.extend_from_slice(&[0x45, ecn & 3]);
            frame.extend_from_slice(&len.to_be_bytes());
            frame.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
            frame.extend_from_slice(&from.octets());
            frame.extend_from_slice(&to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend_from_slice(&[0x60, (ecn & 3) << 4, 0, 0]);
            frame.extend_from_slice(&(body.len() as u16).to_be_bytes());
            frame.extend_from_slice(&[protocol, 64]);
            frame.extend_from_slice(&from.octets());
            frame.extend_from_slice(&to.octets());
        }
        _ => unreachable!("both ends are of one family"),
    }
    frame.extend_from_slice(body);
    frame
}

fn ethernet(to: MacAddr, ipv4: bool) -> Vec<u8> {
    let mut frame = [to.0, PEER_MAC.0].concat();
    frame.extend_from_slice(if ipv4 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
    frame
}

/// Offsets in a complete TCP frame to the endpoint.
#[derive(Debug)]
pub struct Located {
    pub tuple: Tuple,
    /// Offset of the TCP header.
    pub tcp: usize,
    pub payload: Range<usize>,
}

impl Located {
    /// Locates the parts of `frame`. Checksums and addresses are not checked.
    pub fn find(frame: &[u8]) -> Option<Located> {
        let data = frame.get(ETHERNET..)?;
        let (header, len, protocol, from, to): (_, _, _, IpAddr, IpAddr) = match frame[12..ETHERNET] {
            [0x08, 0x00] => {
                let ip = Ipv4Packet::new_unchecked(data);
                if data.len() < 20 || ip.version() != 4 || ip.header_len() < 20 {
                    return None;
                }
                let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
                (ip.header_len().into(), ip.total_len().into(), u8::from(ip.next_header()), from, to)
            }
            [0x86, 0xdd] => {
                let ip = Ipv6Packet::new_unchecked(data);
                if data.len() < 40 || ip.version() != 6 {
                    return None;
                }
                let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
                (40, 40 + usize::from(ip.payload_len()), u8::from(ip.next_header()), from, to)
            }
            _ => return None,
        };
        let segment = data.get(header..len)?;
        if protocol != TCP || segment.len() < 20 {
            return None;
        }
        let tcp = TcpPacket::new_unchecked(segment);
        let offset = usize::from(tcp.header_len());
        if offset < 20 || offset > segment.len() {
            return None;
        }
        let tuple = Tuple { local: (to, tcp.dst_port()).into(), remote: (from, tcp.src_port()).into() };
        let at = ETHERNET + header;
        Some(Located { tuple, tcp: at, payload: at + offset..ETHERNET + len })
    }

    pub fn seq(&self, frame: &[u8]) -> u32 {
        word(frame, self.tcp + 4)
    }

    pub fn ack(&self, frame: &[u8]) -> u32 {
        word(frame, self.tcp + 8)
    }

    pub fn flags(&self, frame: &[u8]) -> u8 {
        frame[self.tcp + 13]
    }

    pub fn window(&self, frame: &[u8]) -> u16 {
        u16::from_be_bytes([frame[self.tcp + 14], frame[self.tcp + 15]])
    }

    /// Returns the sequence number of the first payload byte, after a SYN.
    pub fn first(&self, frame: &[u8]) -> u32 {
        self.seq(frame).wrapping_add(u32::from(self.flags(frame) & SYN != 0))
    }

    /// Writes the payload: `byte` maps each sequence number to a byte.
    pub fn fill(&self, frame: &mut [u8], byte: impl Fn(u32) -> u8) {
        let first = self.first(frame);
        for (i, sent) in frame[self.payload.clone()].iter_mut().enumerate() {
            *sent = byte(first.wrapping_add(i as u32));
        }
    }

    /// Adds to the sequence and acknowledgement numbers.
    pub fn shift(&self, frame: &mut [u8], seq: u32, ack: u32) {
        for (at, n) in [(self.tcp + 4, seq), (self.tcp + 8, ack)] {
            let sum = word(frame, at).wrapping_add(n);
            frame[at..at + 4].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

fn word(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

/// Readdresses `frame` to the endpoint with `tuple`, as far as it has the headers.
pub fn readdress(frame: &mut [u8], tuple: &Tuple) {
    if frame.len() < ETHERNET {
        return;
    }
    frame[..6].copy_from_slice(&ENDPOINT_MAC.0);
    frame[6..12].copy_from_slice(&PEER_MAC.0);
    let ports = [tuple.remote.port().to_be_bytes(), tuple.local.port().to_be_bytes()].concat();
    match (tuple.remote.ip(), tuple.local.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) if frame.len() >= ETHERNET + 20 => {
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            frame[26..30].copy_from_slice(&from.octets());
            frame[30..34].copy_from_slice(&to.octets());
            let at = ETHERNET + usize::from(frame[14] & 15) * 4;
            if let Some(field) = frame.get_mut(at..at + 4) {
                field.copy_from_slice(&ports);
            }
        }
        (IpAddr::V6(from), IpAddr::V6(to)) if frame.len() >= ETHERNET + 40 => {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[22..38].copy_from_slice(&from.octets());
            frame[38..54].copy_from_slice(&to.octets());
            if let Some(field) = frame.get_mut(54..58) {
                field.copy_from_slice(&ports);
            }
        }
        _ => {}
    }
}

/// Corrects the checksums of IPv4, TCP, UDP, ICMP and ICMPv6, as far as `frame` has the headers.
pub fn fix_checksums(frame: &mut [u8]) {
    let Some((ethernet, data)) = frame.split_at_mut_checked(ETHERNET) else { return };
    let (header, len, protocol, from, to): (_, _, _, IpAddress, IpAddress) = match ethernet[12..] {
        [0x08, 0x00] if data.len() >= 20 => {
            let room = data.len();
            let mut ip = Ipv4Packet::new_unchecked(&mut *data);
            let (header, len) = (usize::from(ip.header_len()), usize::from(ip.total_len()));
            if header < 20 || header > len {
                return;
            }
            if header <= room {
                ip.fill_checksum();
            }
            let ip = Ipv4Packet::new_unchecked(&*data);
            (header, len, u8::from(ip.next_header()), ip.src_addr().into(), ip.dst_addr().into())
        }
        [0x86, 0xdd] if data.len() >= 40 => {
            let ip = Ipv6Packet::new_unchecked(&*data);
            let len = 40 + usize::from(ip.payload_len());
            (40, len, u8::from(ip.next_header()), ip.src_addr().into(), ip.dst_addr().into())
        }
        _ => return,
    };
    let Some(body) = data.get_mut(header..len) else { return };
    let (at, pseudo) = match protocol {
        TCP => (16, true),
        17 => (6, true),
        ICMP => (2, false),
        ICMPV6 => (2, true),
        _ => return,
    };
    let Some(field) = body.get_mut(at..at + 2) else { return };
    field.fill(0);
    let sum = if pseudo {
        checksum::combine(&[
            checksum::pseudo_header(&from, &to, protocol.into(), body.len() as u32),
            checksum::data(body),
        ])
    } else {
        checksum::data(body)
    };
    let sum = if protocol == 17 && !sum == 0 { 0xffff } else { !sum };
    body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// TCP segment from the endpoint.
#[derive(Debug)]
pub struct Sent {
    pub tuple: Tuple,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Frame from the endpoint.
#[derive(Debug)]
pub enum Output {
    Tcp(Sent),
    /// Request for the Ethernet address of `target`.
    Question {
        target: IpAddr,
    },
    Other,
}

/// Parses a frame from the endpoint, which must be valid. `summed` means that a port has verified its checksums.
pub fn read(frame: &[u8], summed: bool) -> Output {
    let ethernet = EthernetFrame::new_checked(frame).expect("an Ethernet frame");
    assert_eq!(ethernet.src_addr().0, ENDPOINT_MAC.0, "the endpoint's address");
    let data = ethernet.payload();
    match ethernet.ethertype() {
        EthernetProtocol::Arp => {
            let arp = ArpPacket::new_checked(data).expect("an ARP packet");
            match arp.operation() {
                ArpOperation::Request => {
                    let octets: [u8; 4] = arp.target_protocol_addr().try_into().expect("an IPv4 address");
                    Output::Question { target: IpAddr::from(octets) }
                }
                _ => Output::Other,
            }
        }
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(data).expect("an IPv4 packet");
            assert!(summed || ip.verify_checksum(), "the checksum of an IPv4 header");
            assert_eq!(usize::from(ip.total_len()), data.len(), "the length of an IPv4 packet");
            if u8::from(ip.next_header()) != TCP {
                return Output::Other;
            }
            assert_eq!((ip.src_addr(), ip.dont_frag(), ip.more_frags()), (ENDPOINT_V4, true, false));
            read_tcp(ip.payload(), ip.src_addr().into(), ip.dst_addr().into(), summed)
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(data).expect("an IPv6 packet");
            assert_eq!(ip.total_len(), data.len(), "the length of an IPv6 packet");
            match u8::from(ip.next_header()) {
                TCP => {
                    assert_eq!(ip.src_addr(), ENDPOINT_V6);
                    read_tcp(ip.payload(), ip.src_addr().into(), ip.dst_addr().into(), summed)
                }
                ICMPV6 => {
                    let icmp = Icmpv6Packet::new_checked(ip.payload()).expect("an ICMPv6 packet");
                    match icmp.msg_type() {
                        Icmpv6Message::NeighborSolicit => Output::Question { target: icmp.target_addr().into() },
                        _ => Output::Other,
                    }
                }
                _ => Output::Other,
            }
        }
        other => panic!("a frame of {other}"),
    }
}

fn read_tcp(data: &[u8], from: IpAddr, to: IpAddr, summed: bool) -> Output {
    let tcp = TcpPacket::new_checked(data).expect("a TCP segment");
    assert!(summed || tcp.verify_checksum(&from.into(), &to.into()), "the checksum of a TCP segment");
    let flags = data[13];
    assert!(flags & (SYN | RST) != SYN | RST && flags & (SYN | FIN) != SYN | FIN, "flags {flags:#x}");
    assert!(flags & (RST | SYN | ACK) != 0, "a segment without ACK: {flags:#x}");
    Output::Tcp(Sent {
        tuple: Tuple { local: (from, tcp.src_port()).into(), remote: (to, tcp.dst_port()).into() },
        seq: tcp.seq_number().0 as u32,
        ack: tcp.ack_number().0 as u32,
        flags,
        window: tcp.window_len(),
        options: tcp.options().to_vec(),
        payload: tcp.payload().to_vec(),
    })
}

/// Returns the reply to a request for the peer's Ethernet address; `None` for another address.
pub fn answer(target: IpAddr) -> Option<Vec<u8>> {
    match target {
        IpAddr::V4(PEER_V4) => Some(arp(2)),
        IpAddr::V6(PEER_V6) => Some(neighbor(136)),
        _ => None,
    }
}

/// Returns requests of the peer for the endpoint's Ethernet address, which also announce its own.
pub fn introductions() -> [Vec<u8>; 2] {
    [arp(1), neighbor(135)]
}

fn arp(operation: u8) -> Vec<u8> {
    let mut frame = [ENDPOINT_MAC.0, PEER_MAC.0].concat();
    frame.extend_from_slice(&[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend_from_slice(&PEER_MAC.0);
    frame.extend_from_slice(&PEER_V4.octets());
    frame.extend_from_slice(&ENDPOINT_MAC.0);
    frame.extend_from_slice(&ENDPOINT_V4.octets());
    frame
}

/// Returns a neighbour solicitation (135) or advertisement (136), RFC 4861 §4.3 and §4.4.
fn neighbor(kind: u8) -> Vec<u8> {
    let (flags, target, option) = if kind == 135 { (0, ENDPOINT_V6, 1) } else { (0x60, PEER_V6, 2) };
    let mut body = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    body.extend_from_slice(&target.octets());
    body.extend_from_slice(&[option, 1]);
    body.extend_from_slice(&PEER_MAC.0);
    let mut frame = ip(PEER_V6.into(), ENDPOINT_V6.into(), ICMPV6, 0, &body);
    frame[ETHERNET + 7] = 255;
    fix_checksums(&mut frame);
    frame
}
