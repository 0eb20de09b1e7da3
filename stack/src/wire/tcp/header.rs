//! Ethernet, IP and TCP headers of outgoing segments.

use crate::wire::checksum::{data as sum, fold};
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::options::{self, MAX_LEN, Timestamp};
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::Tuple;
use linerate_bypass::{Capabilities, L4, TxOffload};
use smoltcp::wire::TcpPacket;
use smoltcp::wire::checksum::combine;

/// Hop limit of outgoing packets.
const HOP_LIMIT: u8 = 64;
/// IPv4 "don't fragment" flag (RFC 791 §3.1). Path MTU discovery requires it, and it permits a constant identification
/// (RFC 6864 §4.1).
const DONT_FRAGMENT: u16 = 0x4000;
const TCP: u8 = 6;
/// Hop limit and protocol as adjacent bytes of an IPv4 header.
const HOP_LIMIT_AND_TCP: u64 = (HOP_LIMIT as u64) << 8 | TCP as u64;
/// Header lengths without options.
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP_FIXED: usize = 20;
const IPV4_AND_TCP: usize = IPV4 + TCP_FIXED;
const IPV6_AND_TCP: usize = IPV6 + TCP_FIXED;

/// Control bits of the TCP header (RFC 9293 §3.1, RFC 3168 §6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Control(pub u8);

impl Control {
    pub const FIN: Control = Control(1);
    pub const SYN: Control = Control(2);
    pub const RST: Control = Control(4);
    pub const PSH: Control = Control(8);
    pub const ACK: Control = Control(16);
    pub const ECE: Control = Control(64);
    pub const CWR: Control = Control(128);

    #[inline]
    pub fn has(self, other: Control) -> bool {
        self.0 & other.0 == other.0
    }

    #[inline]
    pub fn with(self, other: Control) -> Control {
        Control(self.0 | other.0)
    }
}

/// ECN field of an IP header (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ecn {
    #[default]
    NotCapable = 0,
    Capable0 = 2,
}

/// Encoded TCP options of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OptionBytes {
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl OptionBytes {
    pub const NONE: OptionBytes = OptionBytes { bytes: [0; MAX_LEN], len: 0 };

    /// Creates the options from `write`, which fills up to 40 bytes and returns the length.
    pub fn written(write: impl FnOnce(&mut [u8; MAX_LEN]) -> usize) -> Self {
        let mut bytes = [0; MAX_LEN];
        let len = write(&mut bytes) as u8;
        OptionBytes { bytes, len }
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Checksum offloads in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offload {
    /// True if the port computes the IPv4 header checksum.
    pub ipv4: bool,
    /// True if the port computes the TCP checksum.
    pub tcp: bool,
}

impl Offload {
    pub fn of(capabilities: &Capabilities) -> Self {
        Offload { ipv4: capabilities.tx_checksum.ipv4, tcp: capabilities.tx_checksum.tcp }
    }
}

/// Header fields of an outgoing segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxHeader<'a> {
    pub tuple: &'a Tuple,
    pub seq: Seq,
    /// Acknowledgement number; valid with ACK.
    pub ack: Seq,
    pub control: Control,
    /// Window field, scaled.
    pub window: u16,
    pub timestamp: Option<Timestamp>,
    /// Options that follow the timestamp.
    pub options: &'a [u8],
    pub ecn: Ecn,
    pub payload: usize,
    /// Segment size if the port has to segment the payload (TSO).
    pub tso: Option<u16>,
}

impl TxHeader<'_> {
    #[inline]
    pub fn tcp_len(&self) -> usize {
        TCP_FIXED + if self.timestamp.is_some() { options::TIMESTAMP_LEN } else { 0 } + self.options.len()
    }

    #[inline]
    pub fn ip_len(&self) -> usize {
        if self.tuple.is_ipv4() { IPV4 } else { IPV6 }
    }

    /// Returns the length of the IP and TCP headers.
    #[inline]
    pub fn len(&self) -> usize {
        self.ip_len() + self.tcp_len()
    }

    /// Returns the offload request for the port.
    #[inline]
    pub fn offload(&self, offload: Offload) -> Option<TxOffload> {
        self.offload_for(self.tuple.is_ipv4(), offload)
    }

    /// Returns [`offload`](Self::offload) with the address family as a constant.
    #[inline(always)]
    pub fn offload_for(&self, ipv4: bool, offload: Offload) -> Option<TxOffload> {
        if !(offload.tcp || offload.ipv4 && ipv4) {
            return None;
        }
        Some(TxOffload {
            l2_len: ETHERNET_HEADER,
            l3_len: if ipv4 { IPV4 } else { IPV6 },
            l4_len: self.tcp_len(),
            ipv4,
            ipv4_checksum: ipv4 && offload.ipv4,
            l4_checksum: offload.tcp.then_some(L4::Tcp),
            tso: self.tso,
        })
    }

    /// Writes the Ethernet header `link` and the headers of a segment with a timestamp, with other options, or without
    /// options: `N` bytes, which has to be their length. The TCP checksum is left to the port or to
    /// [`complete_checksum`]. Constant arguments at the call site make this faster.
    #[inline(always)]
    pub fn write_frame<const V4: bool, const N: usize>(
        &self,
        out: &mut [u8; N],
        link: &[u8; ETHERNET_HEADER],
        offload: Offload,
    ) {
        let Some((front, rest)) = out.split_first_chunk_mut() else { return };
        *front = *link;
        let fixed = if V4 { IPV4_AND_TCP } else { IPV6_AND_TCP };
        if V4 {
            let Some(fixed) = rest.first_chunk_mut::<IPV4_AND_TCP>() else { return };
            self.write_v4(fixed, offload);
        } else {
            let Some(fixed) = rest.first_chunk_mut::<IPV6_AND_TCP>() else { return };
            self.write_v6(fixed);
        }
        match self.timestamp {
            Some(timestamp) => put_timestamp(out, timestamp),
            None => rest[fixed..].copy_from_slice(self.options),
        }
    }

    /// Writes the IP and TCP headers, [`len`](Self::len) bytes, into `out`. `payload` is the checksum of the payload,
    /// for a port without checksum offload.
    pub fn write(&self, out: &mut [u8], offload: Offload, payload: u16) {
        let out = &mut out[..self.len()];
        let (fixed, ip_len) = if self.tuple.is_ipv4() {
            (out.first_chunk_mut().map(|out| self.write_v4(out, offload)), IPV4)
        } else {
            (out.first_chunk_mut().map(|out| self.write_v6(out)), IPV6)
        };
        debug_assert!(fixed.is_some());
        let tcp = &mut out[ip_len..];
        let mut options = &mut tcp[TCP_FIXED..];
        if let Some(timestamp) = self.timestamp {
            let Some((out, rest)) = options.split_first_chunk_mut::<{ options::TIMESTAMP_LEN }>() else { return };
            put_timestamp(out, timestamp);
            options = rest;
        }
        options.copy_from_slice(self.options);
        if !offload.tcp {
            // The checksum field holds the pseudo-header checksum, and so is part of the sum.
            let sum = combine(&[sum(tcp), payload]);
            TcpPacket::new_unchecked(tcp).set_checksum(!sum);
        }
    }

    /// Writes the fixed parts of the IPv4 header (RFC 791 §3.1) and of the TCP header, with the pseudo-header checksum.
    #[inline(always)]
    fn write_v4(&self, out: &mut [u8; IPV4_AND_TCP], offload: Offload) {
        let total_len = (IPV4 + self.tcp_len() + self.payload) as u16;
        let addresses = u64::from_be_bytes(self.tuple.sent_v4());
        let sum = (addresses >> 32) + (addresses & 0xffff_ffff);
        let checksum = if offload.ipv4 { 0 } else { ipv4_checksum(sum, total_len, self.ecn) };
        // Version, header length and ECN; total length; identification; flags and offset.
        let first = 0x4500 | u64::from(self.ecn as u8);
        put(out, 0, first << 48 | u64::from(total_len) << 32 | u64::from(DONT_FRAGMENT));
        // Hop limit and protocol; checksum; source.
        put(out, 8, HOP_LIMIT_AND_TCP << 48 | u64::from(checksum) << 32 | addresses >> 32);
        // Destination; the first four bytes of the TCP header.
        put(out, 16, addresses << 32 | u64::from(u32::from_be_bytes(self.tuple.sent_ports())));
        let [third, fourth] = self.tcp_words(fold(sum + u64::from(TCP) + self.pseudo_len()));
        put(out, 24, third);
        put(out, 32, fourth);
    }

    /// Writes the IPv6 header (RFC 8200 §3) and the fixed part of the TCP header, with the pseudo-header checksum.
    #[inline]
    fn write_v6(&self, out: &mut [u8; IPV6_AND_TCP]) {
        let len = (self.tcp_len() + self.payload) as u64;
        // Version and traffic class; flow label; payload length; next header; hop limit.
        let class = u64::from(self.ecn as u8);
        let last = u64::from(TCP) << 8 | u64::from(HOP_LIMIT);
        put(out, 0, 6 << 60 | class << 52 | (len & 0xffff) << 16 | last);
        let addresses = self.tuple.sent_v6();
        out[8..40].copy_from_slice(&addresses);
        out[40..44].copy_from_slice(&self.tuple.sent_ports());
        let (words, _) = addresses.as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
        let [third, fourth] = self.tcp_words(fold(sum + u64::from(TCP) + self.pseudo_len()));
        put(out, 44, third);
        put(out, 52, fourth);
    }

    /// Returns the length in the pseudo-header (RFC 9293 §3.1).
    #[inline]
    fn pseudo_len(&self) -> u64 {
        // With TSO the port adds the length of each segment (`rte_mbuf_core.h`).
        if self.tso.is_some() { 0 } else { (self.tcp_len() + self.payload) as u64 }
    }

    /// Returns the fixed part of the TCP header after the ports (RFC 9293 §3.1).
    #[inline]
    fn tcp_words(&self, checksum: u16) -> [u64; 2] {
        // The data offset counts 32-bit words, in the upper four bits.
        let offset_and_flags = (self.tcp_len() as u64 / 4) << 12 | u64::from(self.control.0);
        [
            u64::from(self.seq.0) << 32 | u64::from(self.ack.0),
            offset_and_flags << 48 | u64::from(self.window) << 32 | u64::from(checksum) << 16,
        ]
    }
}

/// Replaces the pseudo-header sum in the TCP checksum field of `frame`, whose TCP header begins at `tcp`, by the
/// checksum. Returns false, without effect, if there is no such frame.
#[inline(never)]
pub(crate) fn complete_checksum(frame: Option<&mut [u8]>, tcp: usize) -> bool {
    let Some(segment) = frame.and_then(|frame| frame.get_mut(tcp..)) else { return false };
    let checksum = !sum(segment);
    TcpPacket::new_unchecked(segment).set_checksum(checksum);
    true
}

/// Writes the timestamps option into the last bytes of `out`.
#[inline]
fn put_timestamp<const N: usize>(out: &mut [u8; N], timestamp: Timestamp) {
    if let Some(out) = out.last_chunk_mut() {
        options::emit_timestamp(out, timestamp);
    }
}

/// Writes `word` at `at`, a constant within `out`, as a single store.
#[inline(always)]
fn put<const N: usize>(out: &mut [u8; N], at: usize, word: u64) {
    if let Some(out) = out[at..].first_chunk_mut() {
        *out = word.to_be_bytes();
    }
}

/// Returns the checksum of the IPv4 header that [`TxHeader::write`] writes (RFC 791 §3.1). `addresses` is the sum of
/// both addresses.
#[inline]
fn ipv4_checksum(addresses: u64, total_len: u16, ecn: Ecn) -> u16 {
    let first = 0x4500 | u64::from(ecn as u8);
    !fold(addresses + first + u64::from(total_len) + u64::from(DONT_FRAGMENT) + HOP_LIMIT_AND_TCP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet};
    use std::net::SocketAddr;

    fn tuple(six: bool) -> Tuple {
        let (local, remote): (SocketAddr, SocketAddr) = if six {
            ("[fd00::2]:7".parse().unwrap(), "[2001:db8::ffff]:50000".parse().unwrap())
        } else {
            ("10.0.0.2:7".parse().unwrap(), "192.0.255.254:50000".parse().unwrap())
        };
        Tuple::new(local, remote)
    }

    /// Asserts that [`TxHeader::write_frame`] writes the link header and the output of [`TxHeader::write`].
    fn frame_is_as_any<const V4: bool, const N: usize>(header: &TxHeader) {
        let link = std::array::from_fn(|i| 0x80 | i as u8);
        for ipv4 in [false, true] {
            let offload = Offload { ipv4, tcp: true };
            let (mut frame, mut any) = ([0xaa; N], [0xaa; N]);
            header.write_frame::<V4, N>(&mut frame, &link, offload);
            any[..ETHERNET_HEADER].copy_from_slice(&link);
            header.write(&mut any[ETHERNET_HEADER..], offload, 0);
            assert_eq!(frame, any);
            assert_eq!(header.offload_for(V4, offload), header.offload(offload));
        }
    }

    #[test]
    fn frame_of_constant_length_equals_general_encoding() {
        let (four, six) = (tuple(false), tuple(true));
        let data = |tuple, timestamp| TxHeader {
            tuple,
            seq: Seq(0x8000_0001),
            ack: Seq(5),
            control: Control::ACK.with(Control::PSH),
            window: 1234,
            timestamp,
            options: &[],
            ecn: Ecn::NotCapable,
            payload: 64,
            tso: None,
        };
        let timestamp = Some(Timestamp { value: 77, echo: 88 });
        frame_is_as_any::<true, { ETHERNET_HEADER + 52 }>(&data(&four, timestamp));
        frame_is_as_any::<true, { ETHERNET_HEADER + 40 }>(&data(&four, None));
        frame_is_as_any::<false, { ETHERNET_HEADER + 72 }>(&data(&six, timestamp));
        frame_is_as_any::<false, { ETHERNET_HEADER + 60 }>(&data(&six, None));
        let options: [u8; 20] = std::array::from_fn(|i| i as u8);
        let syn = TxHeader { control: Control::SYN, options: &options, payload: 0, ..data(&four, None) };
        frame_is_as_any::<true, { ETHERNET_HEADER + 60 }>(&syn);
    }

    #[test]
    fn headers_have_valid_checksums_with_any_offload() {
        for six in [false, true] {
            for (ipv4, tcp) in [(false, false), (true, true), (false, true)] {
                let tuple = tuple(six);
                let payload = b"odd";
                let header = TxHeader {
                    tuple: &tuple,
                    seq: Seq(0x8000_0001),
                    ack: Seq(5),
                    control: Control::ACK.with(Control::PSH),
                    window: 1234,
                    timestamp: Some(Timestamp { value: 77, echo: 88 }),
                    options: &[1, 1, 1, 1],
                    ecn: Ecn::Capable0,
                    payload: payload.len(),
                    tso: None,
                };
                let mut bytes = vec![0xaa; header.len() + payload.len()];
                bytes[header.len()..].copy_from_slice(payload);
                let offload = Offload { ipv4, tcp };
                header.write(&mut bytes[..header.len()], offload, sum(payload));
                let (source, destination) = (tuple.local().ip(), tuple.remote().ip());
                if six {
                    let ip = Ipv6Packet::new_checked(&bytes).unwrap();
                    assert_eq!((ip.src_addr(), ip.traffic_class(), ip.hop_limit()), (tuple.local_v6(), 2, 64));
                } else {
                    let ip = Ipv4Packet::new_checked(&bytes).unwrap();
                    assert_eq!((ip.ecn(), ip.dont_frag(), ip.hop_limit()), (2, true, 64));
                    assert_eq!(ip.verify_checksum(), !ipv4);
                }
                let segment = TcpPacket::new_checked(&bytes[header.ip_len()..]).unwrap();
                assert_eq!((segment.src_port(), segment.dst_port()), (7, 50000));
                assert_eq!((segment.seq_number().0 as u32, segment.ack_number().0), (0x8000_0001, 5));
                assert_eq!((segment.window_len(), segment.payload()), (1234, &payload[..]));
                assert!(segment.ack() && segment.psh() && !segment.syn() && !segment.fin() && !segment.rst());
                if tcp {
                    let partial = smoltcp::wire::checksum::pseudo_header(
                        &source.into(),
                        &destination.into(),
                        IpProtocol::Tcp,
                        (bytes.len() - header.ip_len()) as u32,
                    );
                    assert_eq!(segment.checksum(), partial);
                } else {
                    assert!(segment.verify_checksum(&source.into(), &destination.into()));
                }
            }
        }
    }
}
