//! Fast path of the demultiplexer for ordinary TCP segments, and datagrams over IPv4.
//!
//! It makes the checks of [`Host::classify`](crate::worker::demux::Host::classify) with the same result. A frame that
//! it does not recognise takes the general path.
//!
//! One check of segments is left to the engine: a loopback or local source address. No connection has such a peer, so
//! only segments without a connection need the check ([`Addresses::is_martian_peer`]).

use crate::ip::addresses::{Addresses, OwnV4, is_host_v4};
use crate::wire::checksum;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::{PROTOCOL as TCP, field};
use crate::wire::tuple::Tuple;
use crate::wire::udp::{PROTOCOL as UDP, UDP_HEADER, UdpDatagram};
use crate::worker::demux::Tcp;
use linerate_bypass::{MacAddr, Packet, RxChecksum, RxInfo};
use std::net::{Ipv4Addr, SocketAddr};

/// Lengths of headers without options or extension headers, in bytes.
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP_HEADER: usize = 20;
/// Offset of the UDP header after an IPv4 header.
const UDP_START: usize = ETHERNET_HEADER + IPV4;
/// Offset of the data offset field in the TCP header (RFC 9293 §3.1).
const DATA_OFFSET: usize = 12;
/// Port of DHCP clients (RFC 2131 §4.1).
const DHCP_CLIENT: u16 = 68;

/// First IPv4 address above 0.0.0.0/8 (RFC 1122 §3.2.1.3), and the number of addresses from it to the multicast range
/// (RFC 1112 §4).
const FIRST_V4: u32 = 0x0100_0000;
const COUNT_V4: u32 = 0xe000_0000 - FIRST_V4;
/// Last upper half of an IPv6 address below the multicast range (RFC 4291 §2.7).
const LAST_V6: u64 = 0xfeff_ffff_ffff_ffff;

/// Fast demultiplexer for the current addresses.
pub(crate) struct FastDemux {
    /// Local Ethernet address in the low 48 bits, last byte highest.
    station: u64,
    /// Local IPv4 address if there is exactly one.
    own_v4: OwnV4,
    /// See [`Config::listen_udp_raw`](crate::Config::listen_udp_raw).
    raw_udp: Option<u16>,
    /// True if a service listens at this port of that IPv4 address.
    listens_raw: bool,
}

impl FastDemux {
    /// Creates a demultiplexer for frames to `mac` with packets to `addresses`. Datagrams to the port `raw_udp` need no
    /// checksum.
    #[inline]
    pub fn new(mac: MacAddr, addresses: &Addresses, raw_udp: Option<u16>) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        let station = u64::from_le_bytes([0, 0, a, b, c, d, e, f]);
        FastDemux { station, own_v4: addresses.only_v4(), raw_udp, listens_raw: false }
    }

    /// Enables [`raw_v4`](Self::raw_v4) if a service listens at the address of its datagrams.
    #[inline]
    pub fn with_raw(self, listens: impl FnOnce(&SocketAddr) -> bool) -> Self {
        let listens_raw = match (self.raw_udp, self.own_v4.address()) {
            (Some(port), Some(own)) => listens(&SocketAddr::from((own, port))),
            _ => false,
        };
        FastDemux { listens_raw, ..self }
    }

    /// Returns whether a frame that starts with `start` is addressed to this host.
    #[inline(always)]
    fn is_to_us(&self, start: &[u8; 8]) -> bool {
        u64::from_le_bytes(*start) << 16 == self.station
    }

    /// Returns whether a frame that starts with `start` is addressed to this host and contains IPv4 without options and
    /// fragments, with the protocol `protocol`.
    #[inline(always)]
    fn is_plain_v4<const N: usize>(&self, start: &[u8; N], protocol: u8) -> bool {
        let Some(first) = start.first_chunk() else { return false };
        self.is_to_us(first)
            // EtherType, version and header length.
            && field(start, 12) & 0xffff_ff00 == 0x0800_4500
            // "More fragments" flag, offset and protocol (RFC 791 §3.1).
            && field(start, ETHERNET_HEADER + 6) & 0x3fff_00ff == u32::from(protocol)
    }

    /// Returns the position of the TCP segment in an ordinary IPv4 `frame`: unicast, without IP options, not a
    /// fragment, and with checksums that the port or this function has verified.
    #[inline(always)]
    pub fn v4(&self, frame: &impl Packet, addresses: &Addresses) -> Option<Tcp> {
        let start: &[u8; ETHERNET_HEADER + IPV4 + TCP_HEADER] = frame.data().first_chunk()?;
        if !self.is_plain_v4(start, TCP) {
            return None;
        }
        if !is_verified(frame) {
            let end = ETHERNET_HEADER + (field(start, ETHERNET_HEADER) & 0xffff) as usize;
            if !is_intact(start.first_chunk()?, frame, TCP, Some(end)) {
                return None;
            }
        }
        let (source, destination) = (field(start, ETHERNET_HEADER + 12), field(start, ETHERNET_HEADER + 16));
        // An address below the first wraps.
        if source.wrapping_sub(FIRST_V4) >= COUNT_V4
            || !self.own_v4.accepts(source, destination) && !addresses.accepts_v4(source, destination)
        {
            return None;
        }
        let tuple = Tuple::received_v4(source, destination, field(start, ETHERNET_HEADER + IPV4));
        let end = ETHERNET_HEADER + (field(start, ETHERNET_HEADER) & 0xffff) as usize;
        let tcp = Tcp { tuple, start: ETHERNET_HEADER + IPV4, end };
        has_segment(frame, start[ETHERNET_HEADER + IPV4 + DATA_OFFSET], &tcp).then_some(tcp)
    }

    /// Returns the position of the datagram in an ordinary IPv4 `frame`: unicast, without IP options, not a fragment,
    /// with a checksum, and with checksums that the port or this function has verified.
    #[inline]
    pub fn udp_v4(&self, frame: &impl Packet, addresses: &Addresses) -> Option<UdpDatagram> {
        let start: &[u8; UDP_START + UDP_HEADER] = frame.data().first_chunk()?;
        if !self.is_plain_v4(start, UDP) {
            return None;
        }
        let (source, destination) = (field(start, ETHERNET_HEADER + 12), field(start, ETHERNET_HEADER + 16));
        let ports = field(start, UDP_START);
        let (from, to) = ((ports >> 16) as u16, ports as u16);
        if addresses.is_martian_v4(source)
            || !addresses.is_local_v4(destination)
            || from == 0
            || to == 0
            || to == DHCP_CLIENT
        {
            return None;
        }
        let end = udp_end(start, frame)?;
        // Without a checksum (RFC 768), the general path decides, unless the protocol has its own.
        let stored = field(start, UDP_START + 4) as u16;
        if stored == 0 && self.raw_udp != Some(to) {
            return None;
        }
        let summed = (stored != 0).then_some(end);
        if !is_verified(frame) && !is_intact(start.first_chunk()?, frame, UDP, summed) {
            return None;
        }
        let address = |ip, port| SocketAddr::from((Ipv4Addr::from_bits(ip), port));
        Some(UdpDatagram {
            local: address(destination, to),
            remote: address(source, from),
            start: UDP_START + UDP_HEADER,
            end,
        })
    }

    /// Returns the end of the datagram in an ordinary IPv4 `frame` to the port of a protocol with its own integrity
    /// check: as [`udp_v4`](Self::udp_v4), to the only local IPv4 address, and without a checksum of UDP.
    #[inline(always)]
    pub fn raw_v4(&self, frame: &impl Packet) -> Option<usize> {
        let port = self.raw_udp.filter(|_| self.listens_raw)?;
        let start: &[u8; UDP_START + UDP_HEADER] = frame.data().first_chunk()?;
        let (source, destination) = (field(start, ETHERNET_HEADER + 12), field(start, ETHERNET_HEADER + 16));
        let (ports, lengths) = (field(start, UDP_START), field(start, UDP_START + 4));
        if ports as u16 != port
            || ports >> 16 == 0
            || lengths as u16 != 0
            || !self.is_plain_v4(start, UDP)
            || !self.own_v4.accepts(source, destination)
            || source == destination
            || !is_host_v4(source)
        {
            return None;
        }
        let is_intact = match frame.rx_info().ipv4_checksum {
            RxChecksum::Good => true,
            RxChecksum::Unknown => has_valid_sum(start.first_chunk()?),
            RxChecksum::Bad => false,
        };
        if is_intact { udp_end(start, frame) } else { None }
    }

    /// Returns the position of the TCP segment in an ordinary IPv6 `frame`: unicast, without extension headers, and
    /// with a checksum that the port has verified.
    #[inline]
    pub fn v6(&self, frame: &impl Packet, addresses: &Addresses) -> Option<Tcp> {
        let start: &[u8; ETHERNET_HEADER + IPV6 + TCP_HEADER] = frame.data().first_chunk()?;
        // EtherType and version.
        if !self.is_to_us(start.first_chunk()?) || field(start, 12) & 0xffff_f000 != 0x86dd_6000 {
            return None;
        }
        let ends: &[u8; 32] = start[ETHERNET_HEADER + 8..].first_chunk()?;
        let (source, destination) =
            (u64::from_be_bytes(*ends.first_chunk()?), u128::from_be_bytes(*ends.last_chunk()?));
        // An upper half of zero wraps: unspecified, loopback, IPv4-mapped, or unassigned.
        if start[ETHERNET_HEADER + 6] != TCP
            || source.wrapping_sub(1) >= LAST_V6
            || destination >> 64 == 0
            || !addresses.is_local_v6(destination)
            || frame.rx_info().l4_checksum != RxChecksum::Good
        {
            return None;
        }
        let tuple = Tuple::received_v6(ends, *start[ETHERNET_HEADER + IPV6..].first_chunk()?);
        let end = ETHERNET_HEADER + IPV6 + (field(start, ETHERNET_HEADER + 4) >> 16) as usize;
        let tcp = Tcp { tuple, start: ETHERNET_HEADER + IPV6, end };
        has_segment(frame, start[ETHERNET_HEADER + IPV6 + DATA_OFFSET], &tcp).then_some(tcp)
    }
}

/// Returns whether `tcp` is within `frame`, is long enough for a TCP header with the byte `data_offset`, and has all of
/// that header in the first mbuf.
#[inline(always)]
fn has_segment(frame: &impl Packet, data_offset: u8, tcp: &Tcp) -> bool {
    // 32-bit words, in the upper half of the byte.
    let payload = tcp.start + usize::from(data_offset >> 4) * 4;
    payload >= tcp.start + TCP_HEADER && payload <= tcp.end && payload <= frame.data().len() && tcp.end <= frame.len()
}

/// Returns whether the port reports that the checksums of `frame` are correct.
#[inline(always)]
fn is_verified(frame: &impl Packet) -> bool {
    // A single comparison if the port reports both in one word.
    let RxInfo { ipv4_checksum, l4_checksum, .. } = frame.rx_info();
    (ipv4_checksum == RxChecksum::Good) & (l4_checksum == RxChecksum::Good)
}

/// Returns the end of the datagram in an IPv4 `frame` without options that begins with `start`, if its lengths are
/// valid.
#[inline(always)]
fn udp_end(start: &[u8; UDP_START + UDP_HEADER], frame: &impl Packet) -> Option<usize> {
    let len = (field(start, UDP_START + 4) >> 16) as usize;
    let end = UDP_START + len;
    let packet_end = ETHERNET_HEADER + (field(start, ETHERNET_HEADER) & 0xffff) as usize;
    let is_whole = len >= UDP_HEADER && end <= packet_end && packet_end <= frame.len() && end <= frame.data().len();
    is_whole.then_some(end)
}

/// Returns whether the checksum of the IPv4 header after the Ethernet header is correct (RFC 791 §3.1).
#[inline]
fn has_valid_sum(start: &[u8; ETHERNET_HEADER + IPV4]) -> bool {
    // Two 16-bit words per addition: a carry between them counts as one, as a sum modulo 2¹⁶ − 1 requires.
    let sum: u64 = [0, 4, 8, 12, 16].map(|at| u64::from(field(start, ETHERNET_HEADER + at))).iter().sum();
    sum.is_multiple_of(0xffff)
}

/// Returns whether the checksums of `frame`, which begins with `start`, are correct, as reported by the port or, if the
/// port reports nothing, as computed here. The segment or datagram of the protocol `protocol` extends to `end`, which
/// is `None` for a datagram without checksum. The checksum of a chain is left to the general path.
#[inline(never)]
fn is_intact(start: &[u8; ETHERNET_HEADER + IPV4], frame: &impl Packet, protocol: u8, end: Option<usize>) -> bool {
    let RxInfo { ipv4_checksum, l4_checksum, .. } = frame.rx_info();
    let header = || has_valid_sum(start);
    let payload = |end| {
        // RFC 768 and RFC 9293 §3.1: the pseudo-header consists of the addresses, the protocol and the length.
        let Some(bytes) = frame.data().get(ETHERNET_HEADER + IPV4..end) else { return false };
        let addresses = [12, 16].map(|at| u64::from(field(start, ETHERNET_HEADER + at)));
        let pseudo = addresses[0] + addresses[1] + u64::from(protocol) + bytes.len() as u64;
        checksum::fold(pseudo + u64::from(checksum::data(bytes))) == 0xffff
    };
    let is_correct = |reported, computed: &dyn Fn() -> bool| match reported {
        RxChecksum::Good => true,
        RxChecksum::Unknown => computed(),
        RxChecksum::Bad => false,
    };
    is_correct(ipv4_checksum, &header) && end.is_none_or(|end| is_correct(l4_checksum, &|| payload(end)))
}

#[cfg(test)]
mod tests;
