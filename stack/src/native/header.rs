//! The headers of what we send: Ethernet, IP and TCP, written in one go.

use super::options::{self, Timestamp};
use super::seq::Seq;
use crate::checksum;
use crate::egress::ETHERNET;
use crate::tuple::Tuple;
use linerate_bypass::{Capabilities, L4, TxOffload};
use smoltcp::wire::checksum::{combine, data as sum};
use smoltcp::wire::{Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};
use std::net::IpAddr;

/// The hop limit of what we send.
const HOP_LIMIT: u8 = 64;
/// IPv4's "don't fragment" (RFC 791 §3.1): path MTU discovery needs it, and with it the identification may be constant
/// (RFC 6864 §4.1).
const DONT_FRAGMENT: u16 = 0x4000;
const TCP: u8 = 6;
/// The longest TCP options (RFC 9293 §3.1).
pub(super) const MAX_OPTIONS: usize = 40;

/// TCP's flags as they lie in the header (RFC 9293 §3.1, RFC 3168 §6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Control(pub u8);

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
    pub fn and(self, other: Control) -> Control {
        Control(self.0 | other.0)
    }
}

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Ecn {
    #[default]
    NotCapable = 0,
    Capable0 = 2,
}

/// The options of a segment, already written.
#[derive(Debug, Clone, Copy)]
pub(super) struct OptionBytes {
    bytes: [u8; MAX_OPTIONS],
    len: u8,
}

impl OptionBytes {
    pub const NONE: OptionBytes = OptionBytes { bytes: [0; MAX_OPTIONS], len: 0 };

    /// What `write` writes into the 40 bytes that there are; it returns how many it took.
    pub fn written(write: impl FnOnce(&mut [u8; MAX_OPTIONS]) -> usize) -> Self {
        let mut bytes = [0; MAX_OPTIONS];
        let len = write(&mut bytes) as u8;
        OptionBytes { bytes, len }
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What port and host make of every header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offload {
    /// The port computes the IPv4 header's checksum.
    pub ipv4: bool,
    /// The port computes the TCP checksum.
    pub tcp: bool,
}

impl Offload {
    pub fn of(capabilities: &Capabilities) -> Self {
        Offload { ipv4: capabilities.tx_checksum.ipv4, tcp: capabilities.tx_checksum.tcp }
    }
}

/// A segment's headers before they are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header<'a> {
    pub tuple: &'a Tuple,
    pub seq: Seq,
    /// Meaningful with ACK.
    pub ack: Seq,
    pub control: Control,
    /// As it goes on the wire: scaled.
    pub window: u16,
    pub timestamp: Option<Timestamp>,
    /// Behind the timestamp.
    pub options: &'a [u8],
    pub ecn: Ecn,
    /// Bytes of payload.
    pub payload: usize,
    /// The payload is to be cut into segments of so many bytes by the port.
    pub tso: Option<u16>,
}

impl Header<'_> {
    /// Bytes of the TCP header.
    #[inline]
    pub fn tcp_len(&self) -> usize {
        20 + if self.timestamp.is_some() { options::TIMESTAMP_LEN } else { 0 } + self.options.len()
    }

    /// Bytes of the IP header.
    #[inline]
    pub fn ip_len(&self) -> usize {
        if self.tuple.is_ipv4() { 20 } else { 40 }
    }

    /// Bytes of both.
    #[inline]
    pub fn len(&self) -> usize {
        self.ip_len() + self.tcp_len()
    }

    /// What the port is to be asked for.
    #[inline]
    pub fn offload(&self, offload: Offload) -> Option<TxOffload> {
        let ipv4 = self.tuple.is_ipv4();
        if !offload.tcp && !(offload.ipv4 && ipv4) {
            return None;
        }
        Some(TxOffload {
            l2_len: ETHERNET,
            l3_len: self.ip_len(),
            l4_len: self.tcp_len(),
            ipv4,
            ipv4_checksum: ipv4 && offload.ipv4,
            l4_checksum: offload.tcp.then_some(L4::Tcp),
            tso: self.tso,
        })
    }

    /// Writes IP and TCP headers, [`len`](Self::len) bytes, into `place`. `payload` is the payload's sum
    /// for the checksum, where the port does not compute it.
    #[inline]
    pub fn write(&self, place: &mut [u8], offload: Offload, payload: u16) {
        let tcp_len = self.tcp_len();
        let (ip, tcp) = place.split_at_mut(self.ip_len());
        let tcp = &mut tcp[..tcp_len];
        // With TSO the port adds each segment's own length (`rte_mbuf_core.h`).
        let length = if self.tso.is_some() { 0 } else { tcp_len + self.payload };
        let pseudo = if let (Some(source), Some(destination)) = (self.tuple.local_v4(), self.tuple.remote_v4()) {
            let mut ip = Ipv4Packet::new_unchecked(ip);
            ip.set_version(4);
            ip.set_header_len(20);
            ip.set_dscp(0);
            ip.set_ecn(self.ecn as u8);
            ip.set_total_len((20 + tcp_len + self.payload) as u16);
            ip.set_ident(0);
            ip.clear_flags();
            ip.set_frag_offset(0);
            ip.set_dont_frag(true);
            ip.set_hop_limit(HOP_LIMIT);
            ip.set_next_header(TCP.into());
            ip.set_src_addr(source);
            ip.set_dst_addr(destination);
            if offload.ipv4 {
                ip.set_checksum(0);
            } else {
                ip.set_checksum(ipv4_checksum(source.to_bits(), destination.to_bits(), ip.total_len(), self.ecn));
            }
            fold(halves(source.to_bits()) + halves(destination.to_bits()) + u32::from(TCP) + length as u32)
        } else {
            let (source, destination) = (self.tuple.local_v6(), self.tuple.remote_v6());
            let mut ip = Ipv6Packet::new_unchecked(ip);
            ip.set_version(6);
            ip.set_traffic_class(self.ecn as u8);
            ip.set_flow_label(0);
            ip.set_payload_len((tcp_len + self.payload) as u16);
            ip.set_next_header(TCP.into());
            ip.set_hop_limit(HOP_LIMIT);
            ip.set_src_addr(source);
            ip.set_dst_addr(destination);
            checksum::partial(IpAddr::V6(source), IpAddr::V6(destination), TCP, length)
        };
        let (fixed, options) = tcp.split_at_mut(20);
        let mut segment = TcpPacket::new_unchecked(&mut *fixed);
        segment.set_src_port(self.tuple.local_port());
        segment.set_dst_port(self.tuple.remote_port());
        segment.set_seq_number(TcpSeqNumber(self.seq.0 as i32));
        segment.set_ack_number(TcpSeqNumber(self.ack.0 as i32));
        segment.set_window_len(self.window);
        segment.set_checksum(pseudo);
        segment.set_urgent_at(0);
        // The accessors set flags one by one, each reading the field anew.
        fixed[12] = (tcp_len as u8 / 4) << 4;
        fixed[13] = self.control.0;
        let rest = match self.timestamp {
            Some(timestamp) => {
                let Some((place, rest)) = options.split_first_chunk_mut() else { return };
                options::emit_timestamp(place, timestamp);
                rest
            }
            None => options,
        };
        if !self.options.is_empty() {
            rest.copy_from_slice(self.options);
        }
        if !offload.tcp {
            // The field holds the pseudo-header's sum, and so is part of the sum.
            let sum = combine(&[sum(tcp), payload]);
            TcpPacket::new_unchecked(tcp).set_checksum(!sum);
        }
    }
}

/// The sum of the two halves of `word`.
#[inline]
fn halves(word: u32) -> u32 {
    (word >> 16) + (word & 0xffff)
}

/// The one's complement sum in 16 bits (RFC 1071).
#[inline]
fn fold(sum: u32) -> u16 {
    let sum = halves(sum);
    halves(sum) as u16
}

/// The checksum of the IPv4 header that [`Header::write`] writes (RFC 791 §3.1).
#[inline]
fn ipv4_checksum(source: u32, destination: u32, total_len: u16, ecn: Ecn) -> u16 {
    let first = 0x4500 | u32::from(ecn as u8);
    let ttl_protocol = u32::from(HOP_LIMIT) << 8 | u32::from(TCP);
    let sum = first + u32::from(total_len) + u32::from(DONT_FRAGMENT) + ttl_protocol;
    !fold(sum + halves(source) + halves(destination))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::IpProtocol;
    use std::net::SocketAddr;

    fn tuple(six: bool) -> Tuple {
        let (local, remote): (SocketAddr, SocketAddr) = if six {
            ("[fd00::2]:7".parse().unwrap(), "[2001:db8::ffff]:50000".parse().unwrap())
        } else {
            ("10.0.0.2:7".parse().unwrap(), "192.0.255.254:50000".parse().unwrap())
        };
        Tuple::new(local, remote)
    }

    #[test]
    fn headers_read_back_with_right_checksums_whatever_the_port_computes() {
        for six in [false, true] {
            for (ipv4, tcp) in [(false, false), (true, true), (false, true)] {
                let tuple = tuple(six);
                let payload = b"odd";
                let header = Header {
                    tuple: &tuple,
                    seq: Seq(0x8000_0001),
                    ack: Seq(5),
                    control: Control::ACK.and(Control::PSH),
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
