//! Demultiplexing and validation of received frames.
//!
//! All header fields that later code relies on are checked here.

pub(crate) mod fast;

use crate::ip::addresses::{Addresses, is_valid_source_v6};
use crate::ip::v6::mld;
use crate::wire::checksum::{self, ChecksumStatus};
use crate::wire::drop_stats::DropCause;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::icmp::IcmpError;
use crate::wire::tcp::PROTOCOL as TCP;
use crate::wire::tuple::Tuple;
use crate::wire::udp::{PROTOCOL as UDP, UDP_HEADER, UdpDatagram};
use linerate_bypass::{MacAddr, Packet, RxChecksum};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet,
    Ipv6Packet, TcpPacket,
};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// TCP segment with valid headers and checksum.
    Tcp(Tcp),
    Arp,
    /// NDP and other link-local ICMPv6.
    Ndp,
    /// MLD query (RFC 3810).
    MldQuery,
    /// DHCP reply.
    Dhcp,
    /// ICMP error that quotes a TCP segment, which this host may have sent.
    IcmpError {
        /// Connection of the quoted segment, from this host's perspective.
        tuple: Tuple,
        /// Sequence number of the quoted segment.
        sequence: u32,
        /// Reported error.
        error: IcmpError,
    },
    /// ICMP "port unreachable" that quotes a UDP datagram, which this host may have sent.
    Refused {
        /// Source of the quoted datagram.
        local: SocketAddr,
        /// Destination of the quoted datagram.
        remote: SocketAddr,
    },
    /// Contiguous unicast UDP datagram with a valid checksum.
    Udp(UdpDatagram),
    /// Other IP packet: ICMP, other UDP, unknown protocols.
    Ip,
}

/// Position of a TCP segment in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// Connection, from this host's perspective.
    pub tuple: Tuple,
    /// Offset of the TCP header.
    pub start: usize,
    /// End offset. Ethernet padding may follow.
    pub end: usize,
}

/// Properties of this host that classification depends on.
pub(crate) struct Host<'a> {
    pub mac: MacAddr,
    pub addresses: &'a Addresses,
    pub dhcp: bool,
    /// See [`Config::fragments`](crate::Config::fragments).
    pub fragments: bool,
    /// See [`Config::listen_udp_raw`](crate::Config::listen_udp_raw).
    pub raw_udp: Option<u16>,
    /// See [`Capabilities::rx_partial_checksum`](linerate_bypass::Capabilities).
    pub partial_checksums: bool,
}

impl Host<'_> {
    pub fn classify(&self, frame: &impl Packet) -> Result<FrameKind, DropCause> {
        let data = frame.data();
        let ethernet = EthernetFrame::new_checked(data).map_err(|_| DropCause::Truncated)?;
        let to = MacAddr(ethernet.dst_addr().0);
        if to != self.mac && to.0[0] & 1 == 0 {
            return Err(DropCause::NotOurs);
        }
        match ethernet.ethertype() {
            EthernetProtocol::Arp => Ok(FrameKind::Arp),
            EthernetProtocol::Ipv4 => self.ipv4(frame, &data[ETHERNET_HEADER..], to),
            EthernetProtocol::Ipv6 => self.ipv6(frame, &data[ETHERNET_HEADER..], to),
            _ => Err(DropCause::EtherType),
        }
    }

    fn ipv4(&self, frame: &impl Packet, data: &[u8], to: MacAddr) -> Result<FrameKind, DropCause> {
        // smoltcp's checked constructor sees only the first mbuf of a chain.
        let ip = Ipv4Packet::new_unchecked(data);
        if data.len() < 20 || ip.version() != 4 || ip.header_len() < 20 {
            return Err(DropCause::Truncated);
        }
        let (header, len) = (usize::from(ip.header_len()), usize::from(ip.total_len()));
        if header > data.len() || header > len || len > frame.len() - ETHERNET_HEADER {
            return Err(DropCause::Truncated);
        }
        match frame.rx_info().ipv4_checksum {
            RxChecksum::Good => {}
            RxChecksum::Bad => return Err(DropCause::IpChecksum),
            RxChecksum::Unknown if ip.verify_checksum() => {}
            RxChecksum::Unknown => return Err(DropCause::IpChecksum),
        }
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let protocol = u8::from(ip.next_header());
        let l4 = &data[header..len.min(data.len())];
        // RFC 791 §3.1: the "more fragments" flag, or an offset.
        let fragment = ip.more_frags() || ip.frag_offset() != 0;
        let is_martian = self.addresses.is_martian_v4(source.to_bits());
        if self.dhcp && protocol == UDP && !fragment && l4.get(..4) == Some(&[0, 67, 0, 68]) {
            return if is_martian && !source.is_unspecified() {
                Err(DropCause::BadSource)
            } else {
                Ok(FrameKind::Dhcp)
            };
        }
        if is_martian {
            return Err(DropCause::BadSource);
        }
        let is_local = self.addresses.is_local_v4(destination.to_bits());
        if !is_local && !destination.is_multicast() && !self.addresses.is_broadcast(destination) {
            return Err(DropCause::NotOurs);
        }
        if fragment {
            return if self.fragments && protocol != TCP { Ok(FrameKind::Ip) } else { Err(DropCause::Fragment) };
        }
        let unicast = is_local && to == self.mac;
        let (source, destination) = (source.into(), destination.into());
        let l4_len = len - header;
        match protocol {
            TCP if !unicast => Err(DropCause::NotOurs),
            TCP => self.tcp(frame, source, destination, header, l4, l4_len),
            UDP => {
                let datagram = self.udp(frame, source, destination, header, l4, l4_len)?;
                Ok(if unicast && header == 20 { datagram } else { FrameKind::Ip })
            }
            _ if unicast && ip.next_header() == IpProtocol::Icmp => Ok(self.icmpv4(l4)),
            _ => Ok(FrameKind::Ip),
        }
    }

    fn ipv6(&self, frame: &impl Packet, data: &[u8], to: MacAddr) -> Result<FrameKind, DropCause> {
        const HEADER: usize = 40;
        let ip = Ipv6Packet::new_unchecked(data);
        if data.len() < HEADER || ip.version() != 6 {
            return Err(DropCause::Truncated);
        }
        let len = HEADER + usize::from(ip.payload_len());
        if len > frame.len() - ETHERNET_HEADER {
            return Err(DropCause::Truncated);
        }
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        if !is_valid_source_v6(source) || destination.to_ipv4_mapped().is_some() {
            return Err(DropCause::BadSource);
        }
        let is_local = self.addresses.is_local_v6(destination.to_bits());
        if !is_local && !destination.is_multicast() {
            return Err(DropCause::NotOurs);
        }
        let unicast = is_local && to == self.mac;
        let l4 = &data[HEADER..len.min(data.len())];
        let l4_len = len - HEADER;
        let next = u8::from(ip.next_header());
        // A host without an address sends DAD probes (RFC 4862 §5.4.2), and MLD reports after a hop-by-hop header (RFC
        // 2710 §3).
        if source.is_unspecified() && !matches!(ip.next_header(), IpProtocol::Icmpv6 | IpProtocol::HopByHop) {
            return Err(DropCause::BadSource);
        }
        // A station with a duplicate of a local address advertises it (RFC 4862 §5.4.4), which DAD needs.
        let advertises = ip.next_header() == IpProtocol::Icmpv6 && l4.first() == Some(&NEIGHBOR_ADVERTISEMENT);
        if self.addresses.is_local_v6(source.to_bits()) && !advertises {
            return Err(DropCause::BadSource);
        }
        match next {
            TCP if !unicast => Err(DropCause::NotOurs),
            TCP => self.tcp(frame, source.into(), destination.into(), HEADER, l4, l4_len),
            UDP => {
                let datagram = self.udp(frame, source.into(), destination.into(), HEADER, l4, l4_len)?;
                Ok(if unicast { datagram } else { FrameKind::Ip })
            }
            _ if ip.next_header() == IpProtocol::Icmpv6 => match self.icmpv6(source, destination, l4, unicast) {
                FrameKind::Ndp => Ok(FrameKind::Ndp),
                _ if source.is_unspecified() => Err(DropCause::BadSource),
                kind => Ok(kind),
            },
            _ => match extension_header_drop(next, l4) {
                Some(cause) => Err(cause),
                None if is_mld_query(next, l4) => Ok(FrameKind::MldQuery),
                None => Ok(FrameKind::Ip),
            },
        }
    }

    fn tcp(
        &self,
        frame: &impl Packet,
        source: IpAddr,
        destination: IpAddr,
        ip_header: usize,
        l4: &[u8],
        l4_len: usize,
    ) -> Result<FrameKind, DropCause> {
        let tcp = TcpPacket::new_unchecked(l4);
        if l4.len() < 20 || !(20..=l4.len()).contains(&usize::from(tcp.header_len())) {
            return Err(DropCause::Truncated);
        }
        self.checksum(frame, source, destination, TCP, tcp.checksum(), ip_header, l4_len)?;
        let tuple = Tuple::new(SocketAddr::new(destination, tcp.dst_port()), SocketAddr::new(source, tcp.src_port()));
        let start = ETHERNET_HEADER + ip_header;
        Ok(FrameKind::Tcp(Tcp { tuple, start, end: start + l4_len }))
    }

    fn udp(
        &self,
        frame: &impl Packet,
        source: IpAddr,
        destination: IpAddr,
        ip_header: usize,
        l4: &[u8],
        l4_len: usize,
    ) -> Result<FrameKind, DropCause> {
        let &[a, b, c, d, e, f, g, h, ..] = l4 else { return Err(DropCause::Truncated) };
        let [from, to, len, stored] = [[a, b], [c, d], [e, f], [g, h]].map(u16::from_be_bytes);
        if !(UDP_HEADER..=l4_len).contains(&len.into()) {
            return Err(DropCause::Truncated);
        }
        match stored {
            // No checksum (RFC 768); IPv6 requires one (RFC 8200 §8.1).
            0 if source.is_ipv4() || self.raw_udp == Some(to) => {}
            0 => return Err(DropCause::L4Checksum),
            _ => self.checksum(frame, source, destination, UDP, stored, ip_header, len.into())?,
        }
        let start = ETHERNET_HEADER + ip_header + UDP_HEADER;
        let end = ETHERNET_HEADER + ip_header + usize::from(len);
        // A source port of zero expects no reply, and no service is bound to port 0.
        if from == 0 || to == 0 || end > frame.data().len() {
            return Ok(FrameKind::Ip);
        }
        let (local, remote) = (SocketAddr::new(destination, to), SocketAddr::new(source, from));
        Ok(FrameKind::Udp(UdpDatagram { local, remote, start, end }))
    }

    #[expect(clippy::too_many_arguments, reason = "fields of the pseudo-header and positions")]
    fn checksum(
        &self,
        frame: &impl Packet,
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        stored: u16,
        ip_header: usize,
        l4_len: usize,
    ) -> Result<(), DropCause> {
        let reported = frame.rx_info().l4_checksum;
        if reported == RxChecksum::Good {
            return Ok(());
        }
        // The port reports a partial checksum as bad.
        if reported == RxChecksum::Bad && !self.partial_checksums {
            return Err(DropCause::L4Checksum);
        }
        let skip = ETHERNET_HEADER + ip_header;
        let segments = frame.segments().enumerate().map(|(i, bytes)| if i == 0 { &bytes[skip..] } else { bytes });
        match checksum::verify(source, destination, protocol, l4_len, stored, segments) {
            ChecksumStatus::Valid => Ok(()),
            ChecksumStatus::Partial if self.partial_checksums => Ok(()),
            _ => Err(DropCause::L4Checksum),
        }
    }

    fn icmpv4(&self, l4: &[u8]) -> FrameKind {
        let error = || {
            let icmp = Icmpv4Packet::new_checked(l4).ok()?;
            if icmp.msg_type() != Icmpv4Message::DstUnreachable || !icmp.verify_checksum() {
                return None;
            }
            // RFC 1191 §4: the MTU is in a formerly unused field.
            let error = match icmp.msg_code() {
                FRAGMENTATION_NEEDED => IcmpError::TooBig { mtu: u16::from_be_bytes([l4[6], l4[7]]) },
                _ => IcmpError::Unreachable,
            };
            // The quoted packet is truncated, so its length fields exceed the data.
            let quoted = l4.get(8..)?;
            let ip = Ipv4Packet::new_unchecked(quoted);
            if quoted.len() < 20 || ip.version() != 4 {
                return None;
            }
            let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
            let quoted = quoted.get(usize::from(ip.header_len())..)?;
            match u8::from(ip.next_header()) {
                TCP => quoted_segment(source, destination, quoted, error),
                UDP if icmp.msg_code() == PORT_UNREACHABLE => quoted_datagram(source, destination, quoted),
                _ => None,
            }
        };
        error().unwrap_or(FrameKind::Ip)
    }

    fn icmpv6(&self, source: Ipv6Addr, destination: Ipv6Addr, l4: &[u8], unicast: bool) -> FrameKind {
        let Ok(icmp) = Icmpv6Packet::new_checked(l4) else { return FrameKind::Ip };
        match icmp.msg_type() {
            Icmpv6Message::RouterSolicit
            | Icmpv6Message::RouterAdvert
            | Icmpv6Message::NeighborSolicit
            | Icmpv6Message::NeighborAdvert
            | Icmpv6Message::Redirect
            | Icmpv6Message::MldQuery
            | Icmpv6Message::MldReport => FrameKind::Ndp,
            kind @ (Icmpv6Message::DstUnreachable | Icmpv6Message::PktTooBig)
                if unicast && icmp.verify_checksum(&source, &destination) =>
            {
                let error = || {
                    // RFC 4443 §3.2. A value above 65 535 does not limit IP packets.
                    let error = match kind {
                        Icmpv6Message::PktTooBig => {
                            let mtu = u32::from_be_bytes(*l4.get(4..)?.first_chunk()?);
                            IcmpError::TooBig { mtu: mtu.min(u16::MAX.into()) as u16 }
                        }
                        _ => IcmpError::Unreachable,
                    };
                    let (header, quoted) = l4.get(8..)?.split_at_checked(40)?;
                    let ip = Ipv6Packet::new_unchecked(header);
                    let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
                    match u8::from(ip.next_header()) {
                        TCP => quoted_segment(source, destination, quoted, error),
                        UDP if l4[..2] == PORT_UNREACHABLE_V6 => quoted_datagram(source, destination, quoted),
                        _ => None,
                    }
                };
                error().unwrap_or(FrameKind::Ip)
            }
            _ => FrameKind::Ip,
        }
    }
}

/// ICMPv6 type of a neighbour advertisement (RFC 4861 §4.4).
const NEIGHBOR_ADVERTISEMENT: u8 = 136;

/// ICMP code "fragmentation needed and DF set" (RFC 792).
const FRAGMENTATION_NEEDED: u8 = 4;

/// ICMP code "port unreachable" (RFC 792), and type and code of ICMPv6 (RFC 4443 §3.1).
const PORT_UNREACHABLE: u8 = 3;
const PORT_UNREACHABLE_V6: [u8; 2] = [1, 4];

/// Returns the refusal of the datagram from `source` to `destination` that begins with `udp`.
fn quoted_datagram(source: IpAddr, destination: IpAddr, udp: &[u8]) -> Option<FrameKind> {
    let &[a, b, c, d, ..] = udp else { return None };
    let local = SocketAddr::new(source, u16::from_be_bytes([a, b]));
    Some(FrameKind::Refused { local, remote: SocketAddr::new(destination, u16::from_be_bytes([c, d])) })
}

/// Returns `error` for the segment from `source` to `destination` that begins with `tcp`.
fn quoted_segment(source: IpAddr, destination: IpAddr, tcp: &[u8], error: IcmpError) -> Option<FrameKind> {
    let &[a, b, c, d, e, f, g, h, ..] = tcp else { return None };
    let local = SocketAddr::new(source, u16::from_be_bytes([a, b]));
    let remote = SocketAddr::new(destination, u16::from_be_bytes([c, d]));
    let tuple = Tuple::new(local, remote);
    Some(FrameKind::IcmpError { tuple, sequence: u32::from_be_bytes([e, f, g, h]), error })
}

/// Returns whether hop-by-hop options (header type `next`, at the start of `l4`) precede an MLD query.
fn is_mld_query(next: u8, l4: &[u8]) -> bool {
    const HOP_BY_HOP: u8 = 0;
    let [after, units, ..] = *l4 else { return false };
    let message = l4.get(8 * (usize::from(units) + 1));
    next == HOP_BY_HOP && after == u8::from(IpProtocol::Icmpv6) && message == Some(&mld::QUERY)
}

/// Returns the cause for dropping a packet whose extension headers (RFC 8200 §4) begin at `rest` with the type `next`:
/// a fragment header, TCP after extension headers, or a malformed chain.
fn extension_header_drop(mut next: u8, mut rest: &[u8]) -> Option<DropCause> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    loop {
        let units = match next {
            // Includes atomic fragments (RFC 6946), which hosts must not send (RFC 8021).
            FRAGMENT => return Some(DropCause::Fragment),
            TCP => return Some(DropCause::ExtensionHeader),
            HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION => rest.get(1),
            _ => return None,
        };
        let Some(&units) = units else { return Some(DropCause::ExtensionHeader) };
        let len = if next == AUTHENTICATION { (usize::from(units) + 2) * 4 } else { (usize::from(units) + 1) * 8 };
        next = rest[0];
        rest = rest.get(len..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests;
