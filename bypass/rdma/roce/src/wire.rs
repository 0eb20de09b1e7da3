//! Packet format: BTH and its extension headers (IBA 9.2, 9.3).

use crate::icrc::{MAX_HEADERS, icrc, icrc_of_received};
use crate::path::Path;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// UDP destination port of RoCEv2 (IANA `roce`).
pub const UDP_PORT: u16 = 4791;
/// Default partition key: full member.
pub(crate) const P_KEY: u16 = 0xffff;
pub(crate) const BTH: usize = 12;
pub(crate) const ICRC: usize = 4;
const UDP: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// Byte of a packet with FECN, BECN and reserved bits, which the ICRC does not cover, and the bit of BECN: this packet
/// notifies of congestion.
pub(crate) const BECN: (usize, u8) = (4, 0x40);
/// Longest sum of the extension headers of a packet: RETH and ImmDt, or AtomicETH.
const MAX_EXTENSION: usize = 28;

/// Operation codes (IBA table 38), without the service type.
pub(crate) mod opcode {
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMMEDIATE: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMMEDIATE: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMMEDIATE: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACKNOWLEDGE: u8 = 0x11;
    pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const SEND_LAST_INVALIDATE: u8 = 0x16;
    pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
    /// Service type of UD in the upper three bits. RC is zero.
    pub const UD: u8 = 0x60;
    /// Congestion notification (annex A17.9.3).
    pub const CNP: u8 = 0x81;
}

/// Packet sequence number: 24 bits.
pub(crate) mod psn {
    pub const MASK: u32 = 0xff_ffff;

    pub fn add(psn: u32, packets: u32) -> u32 {
        psn.wrapping_add(packets) & MASK
    }

    /// Returns `a - b`, from -2²³ to 2²³ - 1.
    pub fn difference(a: u32, b: u32) -> i32 {
        (a.wrapping_sub(b) << 8) as i32 >> 8
    }
}

/// AETH syndromes (IBA 9.3.5.1).
pub(crate) mod syndrome {
    pub const ACK: u8 = 0x00;
    pub const RNR_NAK: u8 = 0x20;
    pub const NAK_SEQUENCE: u8 = 0x60;
    pub const NAK_INVALID_REQUEST: u8 = 0x61;
    pub const NAK_REMOTE_ACCESS: u8 = 0x62;
    pub const NAK_REMOTE_OPERATIONAL: u8 = 0x63;
    /// Credit count of a queue without end-to-end flow control.
    pub const UNLIMITED: u8 = 0x1f;

    /// Returns the credit count for a number of posted buffers, rounded down to 0, 1, 2, 3, 4, 6, 8, 12, … 32768
    /// (IBA table 46).
    pub fn encode_credits(buffers: usize) -> u8 {
        match buffers.min(1 << 15) {
            few @ 0..2 => few as u8,
            buffers => {
                let exponent = buffers.ilog2();
                (2 * exponent) as u8 | (buffers >> (exponent - 1) & 1) as u8
            }
        }
    }

    /// Returns the number of buffers of an acknowledgement's credit count, unless it is unlimited.
    pub fn decode_credits(syndrome: u8) -> Option<u32> {
        match syndrome & 0x1f {
            UNLIMITED => None,
            few @ 0..2 => Some(few.into()),
            code => Some((2 | u32::from(code) & 1) << (code / 2 - 1)),
        }
    }
}

/// Base transport header.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bth {
    pub opcode: u8,
    /// Solicited event.
    pub solicited: bool,
    /// Padding bytes after the payload.
    pub pad: u8,
    /// Destination queue pair.
    pub qp: u32,
    /// Acknowledgement requested.
    pub ack: bool,
    pub psn: u32,
}

impl Bth {
    fn to_bytes(self) -> [u8; BTH] {
        // MigReq is set: paths do not migrate (IBA 17.2.8.1).
        const MIG_REQ: u8 = 0x40;
        let flags = u8::from(self.solicited) << 7 | MIG_REQ | self.pad << 4;
        let [p, q] = P_KEY.to_be_bytes();
        let [_, a, b, c] = self.qp.to_be_bytes();
        let [_, x, y, z] = self.psn.to_be_bytes();
        [self.opcode, flags, p, q, 0, a, b, c, u8::from(self.ack) << 7, x, y, z]
    }
}

/// Received packet with valid headers and ICRC.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received<'a> {
    /// IP header without options.
    pub ip_header: &'a [u8],
    pub bth: Bth,
    /// Extension headers and payload, without padding and ICRC.
    pub rest: &'a [u8],
}

impl Received<'_> {
    /// Returns the destination and the source address.
    pub fn addresses(&self) -> [IpAddr; 2] {
        let header = self.ip_header;
        if header.len() == IPV4 {
            [16, 12]
                .map(|at| header[at..].first_chunk().map_or(Ipv4Addr::UNSPECIFIED, |ip: &[u8; 4]| (*ip).into()).into())
        } else {
            [24, 8]
                .map(|at| header[at..].first_chunk().map_or(Ipv6Addr::UNSPECIFIED, |ip: &[u8; 16]| (*ip).into()).into())
        }
    }

    /// Returns whether a router has marked the packet: congestion experienced (RFC 3168 §5).
    #[inline]
    pub fn is_marked(&self) -> bool {
        const CONGESTION_EXPERIENCED: u8 = 3;
        let byte = self.ip_header[1];
        let ecn = if self.ip_header.len() == IPV4 { byte } else { byte >> 4 };
        ecn & 3 == CONGESTION_EXPERIENCED
    }
}

/// Reason a packet is discarded before its queue pair is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// A header or length is invalid.
    Header,
    /// The invariant CRC differs.
    Icrc,
}

/// Parses a packet from the IP header on. Its IP and UDP headers are valid, and its destination port is [`UDP_PORT`].
#[inline]
pub(crate) fn parse(packet: &[u8]) -> Result<Received<'_>, Malformed> {
    let ip_len = match packet {
        [0x45, ..] => IPV4,
        [a, ..] if a >> 4 == 6 => IPV6,
        _ => return Err(Malformed::Header),
    };
    let udp_len = packet.get(ip_len + 4..).and_then(<[u8]>::first_chunk).ok_or(Malformed::Header)?;
    let end = ip_len + usize::from(u16::from_be_bytes(*udp_len));
    let payload = packet.get(ip_len + UDP..end).ok_or(Malformed::Header)?;
    let (payload, crc) = payload.split_last_chunk::<ICRC>().ok_or(Malformed::Header)?;
    let (bth, rest) = payload.split_first_chunk::<BTH>().ok_or(Malformed::Header)?;
    if icrc_of_received(&packet[..end - ICRC], ip_len + UDP).to_le_bytes() != *crc {
        return Err(Malformed::Icrc);
    }
    let [code, flags, p, q, _, a, b, c, ack, x, y, z] = *bth;
    let pad = flags >> 4 & 3;
    // Transport header version, and P_Key: the lower 15 bits select the partition (IBA 10.9.3).
    let is_valid = flags & 0xf == 0 && u16::from_be_bytes([p, q]) & 0x7fff == P_KEY & 0x7fff;
    let rest = rest.len().checked_sub(pad.into()).filter(|_| is_valid).map(|len| &rest[..len]);
    Ok(Received {
        ip_header: &packet[..ip_len],
        bth: Bth {
            opcode: code,
            solicited: flags & 0x80 != 0,
            pad,
            qp: u32::from_be_bytes([0, a, b, c]),
            ack: ack & 0x80 != 0,
            psn: u32::from_be_bytes([0, x, y, z]),
        },
        rest: rest.ok_or(Malformed::Header)?,
    })
}

/// Returns the length of the UDP payload of a packet with `extension` bytes of extension headers.
pub(crate) fn packet_len(extension: usize, payload: usize) -> usize {
    BTH + extension + payload.next_multiple_of(4) + ICRC
}

/// Writes a packet into `packet`, whose length is that of [`packet_len`]. `write` fills in the payload of `len` bytes.
pub(crate) fn write(
    packet: &mut [u8],
    path: &Path,
    bth: Bth,
    extension: &[u8],
    len: usize,
    write: impl FnOnce(&mut [u8]),
) {
    debug_assert!(extension.len() <= MAX_EXTENSION && packet.len() == packet_len(extension.len(), len));
    let pad = len.next_multiple_of(4) - len;
    let headers = path.headers(packet.len());
    let Some((body, crc)) = packet.split_last_chunk_mut::<ICRC>() else { return };
    let Some((head, rest)) = body.split_first_chunk_mut::<BTH>() else { return };
    *head = Bth { pad: pad as u8, ..bth }.to_bytes();
    let (extensions, payload) = rest.split_at_mut(extension.len());
    if !extension.is_empty() {
        extensions.copy_from_slice(extension);
    }
    write(&mut payload[..len]);
    if pad > 0 {
        payload[len..].fill(0);
    }
    *crc = icrc(headers.bytes(), body).to_le_bytes();
}

/// IP and UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headers {
    bytes: [u8; MAX_HEADERS],
    len: usize,
}

impl Headers {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Path {
    /// Returns whether the IP header of a received packet, which has no options, has the addresses of this path.
    #[inline]
    pub(crate) fn is_of(&self, ip_header: &[u8]) -> bool {
        match (&self.local, &self.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
                ip_header.len() == IPV4
                    && ip_header[12..16] == remote.ip().octets()
                    && ip_header[16..20] == local.ip().octets()
            }
            (SocketAddr::V6(local), SocketAddr::V6(remote)) => {
                ip_header.len() == IPV6
                    && ip_header[8..24] == remote.ip().octets()
                    && ip_header[24..40] == local.ip().octets()
            }
            _ => false,
        }
    }

    /// Returns the headers of a packet with `len` bytes of UDP payload, as the stack sends them: without fragmentation
    /// and identification. Masked fields are unspecified.
    #[inline]
    pub(crate) fn headers(&self, len: usize) -> Headers {
        let mut headers = self.headers;
        let udp_len = (UDP + len) as u16;
        let ip_len = headers.len - UDP;
        let total = if ip_len == IPV4 { (2, IPV4 as u16 + udp_len) } else { (4, udp_len) };
        headers.bytes[total.0..total.0 + 2].copy_from_slice(&total.1.to_be_bytes());
        headers.bytes[ip_len + 4..ip_len + 6].copy_from_slice(&udp_len.to_be_bytes());
        headers
    }
}

impl Headers {
    /// Returns the headers of packets between two addresses, without lengths.
    pub fn between(local: &SocketAddr, remote: &SocketAddr) -> Self {
        const PROTOCOL: u8 = 17;
        let mut bytes = [0; MAX_HEADERS];
        let ip_len = match (local, remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
                const DONT_FRAGMENT: u8 = 0x40;
                bytes[0] = 0x45;
                bytes[6] = DONT_FRAGMENT;
                bytes[9] = PROTOCOL;
                bytes[12..16].copy_from_slice(&local.ip().octets());
                bytes[16..20].copy_from_slice(&remote.ip().octets());
                IPV4
            }
            (local, remote) => {
                let octets = |address: &SocketAddr| match address.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                bytes[0] = 0x60;
                bytes[6] = PROTOCOL;
                bytes[8..24].copy_from_slice(&octets(local));
                bytes[24..40].copy_from_slice(&octets(remote));
                IPV6
            }
        };
        bytes[ip_len..ip_len + 2].copy_from_slice(&local.port().to_be_bytes());
        bytes[ip_len + 2..ip_len + 4].copy_from_slice(&remote.port().to_be_bytes());
        Headers { bytes, len: ip_len + UDP }
    }
}

/// RDMA extended transport header.
pub(crate) struct Reth {
    pub address: u64,
    pub rkey: u32,
    pub len: u32,
}

impl Reth {
    pub const LEN: usize = 16;

    pub fn parse(rest: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, rest) = rest.split_first_chunk::<{ Self::LEN }>()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        let address = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        Some((Reth { address, rkey: u32::from_be_bytes([i, j, k, l]), len: u32::from_be_bytes([m, n, o, p]) }, rest))
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Atomic extended transport header.
pub(crate) struct AtomicEth {
    pub address: u64,
    pub rkey: u32,
    /// Addend, or value to be stored.
    pub swap: u64,
    pub compare: u64,
}

impl AtomicEth {
    pub const LEN: usize = 28;

    pub fn parse(rest: &[u8]) -> Option<Self> {
        let word = |at: usize| rest[at..].first_chunk().map(|bytes: &[u8; 8]| u64::from_be_bytes(*bytes));
        if rest.len() != Self::LEN {
            return None;
        }
        let rkey = u32::from_be_bytes(*rest[8..].first_chunk()?);
        Some(AtomicEth { address: word(0)?, rkey, swap: word(12)?, compare: word(20)? })
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap.to_be_bytes());
        bytes[20..].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }
}

/// Acknowledge extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aeth {
    pub syndrome: u8,
    /// Message sequence number: messages completed by the responder.
    pub msn: u32,
}

impl Aeth {
    pub const LEN: usize = 4;

    pub fn parse(rest: &[u8]) -> Option<(Self, &[u8])> {
        let (&[syndrome, a, b, c], rest) = rest.split_first_chunk()?;
        Some((Aeth { syndrome, msn: u32::from_be_bytes([0, a, b, c]) }, rest))
    }

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [_, a, b, c] = self.msn.to_be_bytes();
        [self.syndrome, a, b, c]
    }
}

/// Datagram extended transport header.
pub(crate) struct Deth {
    pub q_key: u32,
    pub source: u32,
}

impl Deth {
    pub const LEN: usize = 8;

    pub fn parse(rest: &[u8]) -> Option<(Self, &[u8])> {
        let (&[a, b, c, d, _, e, f, g], rest) = rest.split_first_chunk()?;
        Some((Deth { q_key: u32::from_be_bytes([a, b, c, d]), source: u32::from_be_bytes([0, e, f, g]) }, rest))
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let [a, b, c, d] = self.q_key.to_be_bytes();
        let [_, e, f, g] = self.source.to_be_bytes();
        [a, b, c, d, 0, e, f, g]
    }
}

/// Splits four bytes of immediate data, or of an R_Key, from the front.
pub(crate) fn split_word(rest: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = rest.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}
