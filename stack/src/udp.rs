//! UDP (RFC 768) by the short way: a datagram in one frame, to a port that is listened on, or to a neighbour that is known.
//!
//! What is received is handed on where the port put it. What is sent is written behind its headers if it is short, and else chained to them
//! from where it lies. Whatever is out of the ordinary (fragments, groups, neighbours to be asked for) goes by the slow path.

use crate::checksum;
use crate::config::Config;
use crate::demux::{UDP, Udp};
use crate::egress::{ETHERNET, Egress};
use crate::slow_path::copy_pool::Copies;
use linerate_bypass::time::Instant;
use linerate_bypass::{Capabilities, Datagram, L4, Nic, Packet, TxOffload};
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket};
use std::net::{IpAddr, SocketAddr};

/// Bytes of headers.
pub(crate) const HEADER: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// RFC 1700; as TCP's.
const HOP_LIMIT: u8 = 64;

/// Payload that is copied rather than chained: a further packet costs the port and its other end more.
const SHORT: usize = 256;

/// Datagrams between two looks at what the port's pool has left.
const LOOK_EVERY: u32 = 64;

/// The listened ports of one worker, and what their services keep of the pool.
pub(crate) struct Direct {
    /// In the order of their ports.
    listen: Vec<SocketAddr>,
    /// Packets that may be out of the pool before what arrives is copied.
    most: usize,
    /// There are as many out.
    is_low: bool,
    /// Until the next look.
    left: u32,
    copies: Copies,
}

impl Direct {
    pub fn new(config: &Config, port: &Capabilities) -> Self {
        // As for TCP: what was received may hold five sevenths.
        let packets = config.max_packets.unwrap_or(usize::MAX).min(port.pool - port.pool / 8);
        let mut listen: Vec<_> = config.listen_udp.iter().copied().filter(|bound| bound.port() != 0).collect();
        listen.sort_by_key(SocketAddr::port);
        Direct { listen, most: packets / 7 * 5, is_low: false, left: 0, copies: Copies::new() }
    }

    /// Whether datagrams from or to this address of ours are a service's.
    #[inline]
    pub fn listens(&self, local: &SocketAddr) -> bool {
        let from = self.listen.partition_point(|bound| bound.port() < local.port());
        let mut of_port = self.listen[from..].iter().take_while(|bound| bound.port() == local.port());
        of_port
            .any(|bound| bound.ip() == local.ip() || bound.ip().is_unspecified() && bound.is_ipv4() == local.is_ipv4())
    }

    /// The datagram in `frame`, which [`Host::classify`](crate::demux::Host::classify) found to be one.
    pub fn receive<N: Nic>(&mut self, frame: N::Packet, udp: &Udp, egress: &mut Egress<N>) -> Datagram {
        if self.left == 0 {
            self.left = LOOK_EVERY;
            let pool = egress.capabilities().pool;
            self.is_low = egress.nic().pool_left().is_some_and(|left| pool.saturating_sub(left) >= self.most);
        }
        self.left -= 1;
        let Udp { local, remote, start, end } = *udp;
        let payload = if self.is_low {
            egress.count_copied(end - start);
            self.copies.copy(&frame.data()[start..end])
        } else {
            frame.into_bytes(start..end)
        };
        Datagram { local, remote, payload }
    }

    /// Sends `datagram` at once, if that can be done.
    pub fn send<N: Nic>(&self, datagram: &Datagram, egress: &mut Egress<N>, now: Instant) -> Outcome {
        let Datagram { local, remote, payload } = datagram;
        let (ip_header, to, mtu) = match remote.ip() {
            IpAddr::V4(ip) => (IPV4, ip.to_ipv6_mapped(), egress.mtu()),
            IpAddr::V6(ip) => (IPV6, ip, egress.mtu_v6()),
        };
        let udp_len = HEADER + payload.len();
        if local.is_ipv4() != remote.is_ipv4()
            || ip_header + udp_len > mtu
            || remote.port() == 0
            || !egress.addresses().is_ours(local.ip())
            || !self.listens(local)
        {
            return Outcome::Other;
        }
        let Some(link) = egress.link_header(to.to_bits(), now).copied() else { return Outcome::Other };
        if egress.room() == 0 {
            return Outcome::Full;
        }
        let Some(mut packet) = egress.nic().allocate() else { return Outcome::Full };
        let offload = egress.capabilities().tx_checksum;
        let chained = payload.len() > SHORT && egress.capabilities().multi_segment_tx;
        let tail = if chained { egress.attach(payload.clone()).ok() } else { None };
        if tail.is_none() {
            let Some(place) = packet.append(payload.len()) else { return Outcome::Other };
            place.copy_from_slice(payload);
            egress.count_copied(payload.len());
        }
        let Some(header) = packet.prepend(ETHERNET + ip_header + HEADER) else { return Outcome::Other };
        let (front, rest) = header.split_at_mut(ETHERNET);
        front.copy_from_slice(&link);
        let (ip, udp) = rest.split_at_mut(ip_header);
        write_ip(ip, local.ip(), remote.ip(), udp_len, !offload.ipv4);
        let pseudo = checksum::partial(local.ip(), remote.ip(), UDP, udp_len);
        let mut udp = UdpPacket::new_unchecked(udp);
        udp.set_src_port(local.port());
        udp.set_dst_port(remote.port());
        udp.set_len(udp_len as u16);
        udp.set_checksum(pseudo);
        if !offload.udp {
            let sum = !checksum::sum_of([&*udp.into_inner(), &payload[..]].into_iter());
            // Zero would say that there is none.
            let sum = if sum == 0 { 0xffff } else { sum };
            let at = ETHERNET + ip_header + 6;
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let ipv4 = remote.is_ipv4();
        if offload.udp || ipv4 && offload.ipv4 {
            packet.set_tx_offload(TxOffload {
                l2_len: ETHERNET,
                l3_len: ip_header,
                l4_len: HEADER,
                ipv4,
                ipv4_checksum: ipv4 && offload.ipv4,
                l4_checksum: offload.udp.then_some(L4::Udp),
                tso: None,
            });
        }
        if let Some(tail) = tail
            && packet.chain(tail).is_err()
        {
            return Outcome::Other;
        }
        egress.send_frame(packet);
        Outcome::Sent
    }
}

/// What became of a datagram that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is on the transmit queue.
    Sent,
    /// There is no room for it now.
    Full,
    /// It has to go another way.
    Other,
}

/// Writes the header of an IP packet whose payload are `len` bytes of UDP.
fn write_ip(place: &mut [u8], source: IpAddr, destination: IpAddr, len: usize, sum: bool) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = Ipv4Packet::new_unchecked(place);
            ip.set_version(4);
            ip.set_header_len(IPV4 as u8);
            ip.set_dscp(0);
            ip.set_ecn(0);
            ip.set_total_len((IPV4 + len) as u16);
            // RFC 6864 §4.1: what is not to be fragmented needs no identification.
            ip.set_ident(0);
            ip.clear_flags();
            ip.set_dont_frag(true);
            ip.set_frag_offset(0);
            ip.set_hop_limit(HOP_LIMIT);
            ip.set_next_header(IpProtocol::Udp);
            ip.set_checksum(0);
            ip.set_src_addr(source);
            ip.set_dst_addr(destination);
            if sum {
                ip.fill_checksum();
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut ip = Ipv6Packet::new_unchecked(place);
            ip.set_version(6);
            ip.set_traffic_class(0);
            ip.set_flow_label(0);
            ip.set_payload_len(len as u16);
            ip.set_next_header(IpProtocol::Udp);
            ip.set_hop_limit(HOP_LIMIT);
            ip.set_src_addr(source);
            ip.set_dst_addr(destination);
        }
        _ => debug_assert!(false, "both are of one family"),
    }
}
