//! The short-cut of the demultiplexer: TCP segments as they nearly always are, told by a few comparisons.
//!
//! It makes the checks that [`Host::classify`](crate::demux::Host::classify) makes, and finds what that finds. What it does not recognise is not
//! wrong, only not ordinary, and goes the long way.
//!
//! One check is left to the engine: a source that is a loopback address or ours. No connection has such a peer, so only segments
//! that belong to no connection need the check ([`Addresses::is_martian_peer`]).

use crate::addresses::{Addresses, OwnV4};
use crate::demux::{TCP, Tcp};
use crate::egress::ETHERNET;
use crate::tcp::tuple::Tuple;
use linerate_bypass::{MacAddr, Packet, RxChecksum, RxInfo};

/// Lengths of headers without options or extension headers, in bytes.
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP_HEADER: usize = 20;
/// Where in the TCP header its length is (RFC 9293 §3.1).
const DATA_OFFSET: usize = 12;

/// The first IPv4 address above 0.0.0.0/8 (RFC 1122 §3.2.1.3), and the number of those from there up to the groups (RFC 1112
/// §4).
const FIRST_V4: u32 = 0x0100_0000;
const COUNT_V4: u32 = 0xe000_0000 - FIRST_V4;
/// The last upper half of an IPv6 address below the groups (RFC 4291 §2.7).
const LAST_V6: u64 = 0xfeff_ffff_ffff_ffff;

/// What the short-cut looks for.
pub(crate) struct FastDemux {
    /// Our Ethernet address behind two bytes of zero, the last byte the highest.
    station: u64,
    /// Our only IPv4 address, if we have just one.
    own_v4: OwnV4,
}

impl FastDemux {
    /// For frames to `mac` with packets to `addresses`.
    #[inline]
    pub fn new(mac: MacAddr, addresses: &Addresses) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        FastDemux { station: u64::from_le_bytes([0, 0, a, b, c, d, e, f]), own_v4: addresses.only_v4() }
    }

    /// Whether the first bytes of a frame are our address.
    #[inline(always)]
    fn is_to_us(&self, start: &[u8; 8]) -> bool {
        u64::from_le_bytes(*start) << 16 == self.station
    }

    /// Where the IPv4 TCP segment in `frame` lies, if it is an ordinary one: unicast to us, without IP options, not a
    /// fragment, and with checksums that the port has verified.
    #[inline(always)]
    pub fn v4(&self, frame: &impl Packet, addresses: &Addresses) -> Option<Tcp> {
        let start: &[u8; ETHERNET + IPV4 + TCP_HEADER] = frame.data().first_chunk()?;
        // EtherType, version and header length.
        if !self.is_to_us(start.first_chunk()?) || field(start, 12) & 0xffff_ff00 != 0x0800_4500 {
            return None;
        }
        // The "more fragments" flag, the offset and the protocol (RFC 791 §3.1).
        if field(start, ETHERNET + 6) & 0x3fff_00ff != u32::from(TCP) {
            return None;
        }
        // Both at once: one comparison where the port says it in one word.
        let RxInfo { ipv4_checksum, l4_checksum, .. } = frame.rx_info();
        let verified = (ipv4_checksum == RxChecksum::Good) & (l4_checksum == RxChecksum::Good);
        if !verified && !is_intact(start, frame) {
            return None;
        }
        let (source, destination) = (field(start, ETHERNET + 12), field(start, ETHERNET + 16));
        // Below the first, it wraps.
        if source.wrapping_sub(FIRST_V4) >= COUNT_V4
            || !self.own_v4.accepts(source, destination) && !addresses.accepts_v4(source, destination)
        {
            return None;
        }
        let tuple = Tuple::received_v4(source, destination, field(start, ETHERNET + IPV4));
        let end = ETHERNET + (field(start, ETHERNET) & 0xffff) as usize;
        let tcp = Tcp { tuple, start: ETHERNET + IPV4, end };
        has_segment(frame, start[ETHERNET + IPV4 + DATA_OFFSET], &tcp).then_some(tcp)
    }

    /// Where the IPv6 TCP segment in `frame` lies, if it is an ordinary one: unicast to us, without extension headers, and
    /// with a checksum that the port has verified.
    #[inline]
    pub fn v6(&self, frame: &impl Packet, addresses: &Addresses) -> Option<Tcp> {
        let start: &[u8; ETHERNET + IPV6 + TCP_HEADER] = frame.data().first_chunk()?;
        // EtherType and version.
        if !self.is_to_us(start.first_chunk()?) || field(start, 12) & 0xffff_f000 != 0x86dd_6000 {
            return None;
        }
        let ends: &[u8; 32] = start[ETHERNET + 8..].first_chunk()?;
        let (source, destination) =
            (u64::from_be_bytes(*ends.first_chunk()?), u128::from_be_bytes(*ends.last_chunk()?));
        // An upper half of zero: unspecified, loopback, IPv4-mapped, or nothing that is in use. Less one, it wraps.
        if start[ETHERNET + 6] != TCP
            || source.wrapping_sub(1) >= LAST_V6
            || destination >> 64 == 0
            || !addresses.is_local_v6(destination)
            || frame.rx_info().l4_checksum != RxChecksum::Good
        {
            return None;
        }
        let tuple = Tuple::received_v6(ends, *start[ETHERNET + IPV6..].first_chunk()?);
        let end = ETHERNET + IPV6 + (field(start, ETHERNET + 4) >> 16) as usize;
        let tcp = Tcp { tuple, start: ETHERNET + IPV6, end };
        has_segment(frame, start[ETHERNET + IPV6 + DATA_OFFSET], &tcp).then_some(tcp)
    }
}

/// The four bytes at `at`, a constant within `bytes`: one load.
#[inline(always)]
pub(crate) fn field<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |field| u32::from_be_bytes(*field))
}

/// Whether `tcp` lies in `frame` and has room for a TCP header whose thirteenth byte is `data_offset`, and whether the first
/// segment of `frame` holds all of that header.
#[inline(always)]
fn has_segment(frame: &impl Packet, data_offset: u8, tcp: &Tcp) -> bool {
    // In 32-bit words, in the upper half of the byte.
    let payload = tcp.start + usize::from(data_offset >> 4) * 4;
    payload >= tcp.start + TCP_HEADER && payload <= tcp.end && payload <= frame.data().len() && tcp.end <= frame.len()
}

/// Whether the port has verified the TCP checksum of `frame`, which begins with `start`, and the checksum of the IPv4 header is
/// right (RFC 791 §3.1), which the port leaves to us.
#[inline(never)]
fn is_intact(start: &[u8; ETHERNET + IPV4 + TCP_HEADER], frame: &impl Packet) -> bool {
    // Two words at once: what is carried from one to the other counts as one there, which is what it counts for in a sum
    // modulo 2¹⁶ − 1.
    let sum: u64 = [0, 4, 8, 12, 16].map(|at| u64::from(field(start, ETHERNET + at))).iter().sum();
    let RxInfo { ipv4_checksum, l4_checksum, .. } = frame.rx_info();
    l4_checksum == RxChecksum::Good && ipv4_checksum == RxChecksum::Unknown && sum.is_multiple_of(0xffff)
}

#[cfg(test)]
mod tests;
