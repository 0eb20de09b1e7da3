//! Frames on the wire: builds the peer's frames and parses the worker's.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet, IpAddress, IpProtocol, IpRepr,
    Ipv4Packet, Ipv6Packet, TcpPacket,
};
use std::net::{IpAddr, SocketAddr};

/// Flags of a TCP header (RFC 9293 §3.1; RFC 3168 §6.1).
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;
pub const ECE: u8 = 64;
pub const CWR: u8 = 128;

/// ECN bits of an IP header (RFC 3168 §5).
pub const NOT_ECT: u8 = 0;
pub const ECT1: u8 = 1;
pub const ECT0: u8 = 2;
pub const CE: u8 = 3;

/// Ethernet address of the worker.
pub const WORKER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Ethernet address of the peer.
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

const ETHERNET: usize = 14;
const TCP_HEADER: usize = 20;

/// TCP segment with absolute numbers.
#[derive(Debug, Clone, Default)]
pub struct RawSegment {
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub urgent: u16,
    /// Raw options, a multiple of four bytes long.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
    pub ecn: u8,
    pub bad_checksum: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamp: Option<(u32, u32)>,
    /// SACK blocks with absolute edges.
    pub sack: Vec<(u32, u32)>,
}

impl Options {
    /// Returns the options in wire format after `raw`, padded to a multiple of four bytes.
    pub fn emit(&self, raw: &[u8]) -> Vec<u8> {
        let mut bytes = raw.to_vec();
        if let Some(mss) = self.mss {
            bytes.extend([2, 4]);
            bytes.extend(mss.to_be_bytes());
        }
        if self.sack_permitted && self.timestamp.is_none() {
            bytes.extend([1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.timestamp {
            // Padding as most implementations send it.
            bytes.extend(if self.sack_permitted { [4, 2] } else { [1, 1] });
            bytes.extend([8, 10]);
            bytes.extend(value.to_be_bytes());
            bytes.extend(echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            bytes.extend([1, 3, 3, shift]);
        }
        if !self.sack.is_empty() {
            bytes.extend([1, 1, 5, 2 + 8 * self.sack.len() as u8]);
            for (left, right) in &self.sack {
                bytes.extend(left.to_be_bytes());
                bytes.extend(right.to_be_bytes());
            }
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        assert!(bytes.len() <= 40, "TCP options take {} bytes, more than 40", bytes.len());
        bytes
    }

    /// Parses options strictly: the worker must send well-formed options.
    pub fn parse(mut bytes: &[u8]) -> Result<Options, String> {
        let mut options = Options::default();
        loop {
            match *bytes {
                [] => return Ok(options),
                [0, ref rest @ ..] => {
                    let padding = rest.iter().all(|byte| *byte == 0);
                    return if padding { Ok(options) } else { Err("options after the end of options".into()) };
                }
                [1, ref rest @ ..] => bytes = rest,
                [kind, len, ..] if usize::from(len) >= 2 && usize::from(len) <= bytes.len() => {
                    let (option, rest) = bytes.split_at(len.into());
                    options.read(kind, &option[2..])?;
                    bytes = rest;
                }
                _ => return Err(format!("a truncated option: {bytes:02x?}")),
            }
        }
    }

    fn read(&mut self, kind: u8, value: &[u8]) -> Result<(), String> {
        let number = |at: usize| u32::from_be_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
        let again = match (kind, value.len()) {
            (2, 2) => self.mss.replace(u16::from_be_bytes([value[0], value[1]])).is_some(),
            (3, 1) => self.window_scale.replace(value[0]).is_some(),
            (4, 0) => std::mem::replace(&mut self.sack_permitted, true),
            (5, 8 | 16 | 24 | 32) => {
                let again = !self.sack.is_empty();
                self.sack = (0..value.len()).step_by(8).map(|at| (number(at), number(at + 4))).collect();
                again
            }
            (8, 8) => self.timestamp.replace((number(0), number(4))).is_some(),
            (kind, len) => return Err(format!("an option of kind {kind} with {len} bytes")),
        };
        if again { Err(format!("a repeated option of kind {kind}")) } else { Ok(()) }
    }
}

/// Returns an Ethernet frame to the worker with an IP packet that carries `payload`.
pub fn ip_frame(from: IpAddr, to: IpAddr, protocol: IpProtocol, ecn: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let ip = IpRepr::new(from.into(), to.into(), protocol, payload.len(), hop_limit);
    let mut frame = vec![0; ETHERNET + ip.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
    ethernet.set_src_addr(EthernetAddress(PEER_MAC));
    ethernet.set_dst_addr(EthernetAddress(WORKER_MAC));
    ethernet.set_ethertype(if from.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 });
    ip.emit(ethernet.payload_mut(), &ChecksumCapabilities::default());
    if from.is_ipv4() {
        let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        packet.set_ecn(ecn);
        packet.fill_checksum();
    } else {
        // The traffic class spans the first two bytes; its last two bits are the ECN bits.
        ethernet.payload_mut()[1] |= ecn << 4;
    }
    frame[ETHERNET + ip.header_len()..].copy_from_slice(payload);
    frame
}

/// Returns an Ethernet frame to the worker with a TCP segment.
pub fn tcp_frame(from: SocketAddr, to: SocketAddr, segment: &RawSegment) -> Vec<u8> {
    let header = TCP_HEADER + segment.options.len();
    let mut bytes = Vec::with_capacity(header + segment.payload.len());
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(segment.seq.to_be_bytes());
    bytes.extend(segment.ack.to_be_bytes());
    bytes.extend([(header as u8 / 4) << 4, segment.flags]);
    bytes.extend(segment.window.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(segment.urgent.to_be_bytes());
    bytes.extend(&segment.options);
    bytes.extend(&segment.payload);
    let (source, destination): (IpAddress, IpAddress) = (from.ip().into(), to.ip().into());
    TcpPacket::new_unchecked(&mut bytes).fill_checksum(&source, &destination);
    if segment.bad_checksum {
        bytes[16] ^= 0x55;
    }
    ip_frame(from.ip(), to.ip(), IpProtocol::Tcp, segment.ecn, 64, &bytes)
}

/// TCP segment of the worker with verified headers and checksums.
#[derive(Debug, Clone)]
pub struct Captured {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub options: Options,
    /// Length of the options, padding included.
    pub options_len: usize,
    pub payload: Vec<u8>,
    pub ecn: u8,
    /// True if fragmentation is forbidden: by the DF bit in IPv4, always in IPv6.
    pub dont_fragment: bool,
    /// True if the port segments the payload (TSO).
    pub tso: bool,
    pub ip_len: usize,
    /// IP packet, for ICMP errors to quote.
    pub packet: Vec<u8>,
}

/// Parses a frame of the worker to the Ethernet address `to`. Returns `None` if it does not carry TCP. With `offload`
/// the port computes the checksums, so the frame must carry the pseudo-header checksum.
pub fn read_tcp(frame: &[u8], to: [u8; 6], offload: bool) -> Result<Option<Captured>, String> {
    let ethernet = EthernetFrame::new_checked(frame).map_err(|_| "a frame shorter than its header")?;
    let packet = ethernet.payload();
    let (source, destination, ecn, dont_fragment, header, len): (IpAddr, IpAddr, _, _, _, _) =
        match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => {
                let ip = Ipv4Packet::new_checked(packet).map_err(|_| "a bad IPv4 header")?;
                if ip.next_header() != IpProtocol::Tcp {
                    return Ok(None);
                }
                if offload && ip.checksum() != 0 || !offload && !ip.verify_checksum() {
                    return Err("a wrong IPv4 checksum".into());
                }
                if ip.more_frags() || ip.frag_offset() != 0 {
                    return Err("a fragment".into());
                }
                let addresses = (ip.src_addr().into(), ip.dst_addr().into());
                (addresses.0, addresses.1, ip.ecn(), ip.dont_frag(), ip.header_len().into(), ip.total_len().into())
            }
            EthernetProtocol::Ipv6 => {
                let ip = Ipv6Packet::new_checked(packet).map_err(|_| "a bad IPv6 header")?;
                if ip.next_header() != IpProtocol::Tcp {
                    return Ok(None);
                }
                (ip.src_addr().into(), ip.dst_addr().into(), ip.traffic_class() & 3, true, 40, ip.total_len())
            }
            _ => return Ok(None),
        };
    if ethernet.dst_addr().0 != to || ethernet.src_addr().0 != WORKER_MAC {
        return Err("a frame from or to a wrong Ethernet address".into());
    }
    let packet = &packet[..len];
    let bytes = &packet[header..];
    let tcp = TcpPacket::new_checked(bytes).map_err(|_| "a bad TCP header")?;
    // `rte_mbuf_core.h`: the pseudo-header of a TSO packet has length 0.
    let tso = offload && tcp.checksum() == pseudo_sum(source, destination, 0);
    let is_right = if offload {
        tso || tcp.checksum() == pseudo_sum(source, destination, bytes.len())
    } else {
        tcp.verify_checksum(&source.into(), &destination.into())
    };
    if !is_right {
        return Err("a wrong TCP checksum".into());
    }
    if bytes[12] & 0xf != 0 {
        return Err("reserved bits that are set".into());
    }
    let header_len = usize::from(tcp.header_len());
    Ok(Some(Captured {
        from: SocketAddr::new(source, tcp.src_port()),
        to: SocketAddr::new(destination, tcp.dst_port()),
        flags: bytes[13],
        seq: tcp.seq_number().0 as u32,
        ack: tcp.ack_number().0 as u32,
        window: tcp.window_len(),
        options: Options::parse(&bytes[TCP_HEADER..header_len])?,
        options_len: header_len - TCP_HEADER,
        payload: bytes[header_len..].to_vec(),
        ecn,
        dont_fragment,
        tso,
        ip_len: len,
        packet: packet.to_vec(),
    }))
}

/// Returns true if `frame` carries a TCP segment with a correct checksum.
pub fn has_right_tcp_checksum(frame: &[u8]) -> bool {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return false };
    let (source, destination, bytes): (IpAddress, IpAddress, _) = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => match Ipv4Packet::new_checked(ethernet.payload()) {
            Ok(ip) if ip.next_header() == IpProtocol::Tcp => (ip.src_addr().into(), ip.dst_addr().into(), ip.payload()),
            _ => return false,
        },
        EthernetProtocol::Ipv6 => match Ipv6Packet::new_checked(ethernet.payload()) {
            Ok(ip) if ip.next_header() == IpProtocol::Tcp => (ip.src_addr().into(), ip.dst_addr().into(), ip.payload()),
            _ => return false,
        },
        _ => return false,
    };
    TcpPacket::new_checked(bytes).is_ok_and(|tcp| tcp.verify_checksum(&source, &destination))
}

/// Returns the TCP/IP packet `packet` with zeros in place of the checksums, which a port may compute.
pub fn without_checksums(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let ipv4 = packet[0] >> 4 == 4;
    if ipv4 {
        packet[10..12].fill(0);
    }
    let tcp = if ipv4 { 20 } else { 40 };
    packet[tcp + 16..tcp + 18].fill(0);
    packet
}

/// Returns the pseudo-header sum for `len` bytes of TCP (RFC 9293 §3.1, RFC 8200 §8.1), not complemented.
fn pseudo_sum(from: IpAddr, to: IpAddr, len: usize) -> u16 {
    let octets = |ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let bytes = [octets(from), octets(to)].concat();
    let words = bytes.chunks_exact(2).map(|word| u64::from(word[0]) << 8 | u64::from(word[1]));
    let mut sum = words.sum::<u64>() + 6 + len as u64;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Returns an announcement of the Ethernet address `mac`: an ARP reply or a neighbour advertisement (RFC 4861 §7.2.6).
pub fn announcement(from: IpAddr, to: IpAddr, mac: [u8; 6]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut frame = [WORKER_MAC, mac].concat();
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
            frame.extend([&mac[..], &from.octets(), &WORKER_MAC, &to.octets()].concat());
            frame
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => advertise(from, to, 0x20, mac),
        _ => panic!("an announcement between address families"),
    }
}

/// Returns a neighbour advertisement (RFC 4861 §4.4) with these flags.
fn advertise(target: std::net::Ipv6Addr, to: std::net::Ipv6Addr, flags: u8, mac: [u8; 6]) -> Vec<u8> {
    let mut advertisement = vec![136, 0, 0, 0, flags, 0, 0, 0];
    advertisement.extend(target.octets());
    advertisement.extend([2, 1]);
    advertisement.extend(mac);
    Icmpv6Packet::new_unchecked(&mut advertisement).fill_checksum(&target, &to);
    ip_frame(target.into(), to.into(), IpProtocol::Icmpv6, 0, 255, &advertisement)
}

/// Returns the reply to an ARP request or neighbour solicitation, from a host with the Ethernet address `mac` and every
/// address except the worker's.
pub fn neighbor_answer(frame: &[u8], mac: [u8; 6]) -> Option<Vec<u8>> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let payload = ethernet.payload();
    match ethernet.ethertype() {
        // RFC 826: opcode 1 is a request.
        EthernetProtocol::Arp if payload.get(6..8)? == [0, 1] => {
            let mut answer = frame.to_vec();
            answer[..6].copy_from_slice(&WORKER_MAC);
            answer[6..12].copy_from_slice(&mac);
            answer[21] = 2;
            answer[22..28].copy_from_slice(&mac);
            answer[28..32].copy_from_slice(&payload[24..28]);
            answer[32..38].copy_from_slice(&WORKER_MAC);
            answer[38..42].copy_from_slice(&payload[14..18]);
            Some(answer)
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(payload).ok()?;
            let icmp = ip.payload();
            // RFC 4861 §4.3: type 135, the target after four reserved bytes.
            if ip.next_header() != IpProtocol::Icmpv6 || icmp.first() != Some(&135) || ip.src_addr().is_unspecified() {
                return None;
            }
            let target: [u8; 16] = icmp.get(8..24)?.try_into().ok()?;
            // Solicited and override flags, with the link-layer address.
            Some(advertise(target.into(), ip.src_addr(), 0x60, mac))
        }
        _ => None,
    }
}

/// Returns an ICMP error from `router` to the worker that quotes `packet`. `word` is the second half of the ICMP
/// header: an MTU, or unused.
pub fn icmp_error(router: IpAddr, to: IpAddr, kind: u8, code: u8, word: u32, packet: &[u8]) -> Vec<u8> {
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(word.to_be_bytes());
    match (router, to) {
        (IpAddr::V4(_), IpAddr::V4(_)) => {
            // RFC 792: the IP header and the first 64 bits of its payload.
            icmp.extend(&packet[..packet.len().min(28)]);
            Icmpv4Packet::new_unchecked(&mut icmp).fill_checksum();
            ip_frame(router, to, IpProtocol::Icmp, 0, 64, &icmp)
        }
        (IpAddr::V6(router6), IpAddr::V6(to6)) => {
            // RFC 4443 §3.2: as much of the packet as fits into the minimum MTU.
            icmp.extend(&packet[..packet.len().min(1280 - 48)]);
            Icmpv6Packet::new_unchecked(&mut icmp).fill_checksum(&router6, &to6);
            ip_frame(router, to, IpProtocol::Icmpv6, 0, 64, &icmp)
        }
        _ => panic!("an ICMP error between address families"),
    }
}
