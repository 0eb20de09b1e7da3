//! UDP fast path (RFC 768): unfragmented datagrams to bound ports, and to resolved neighbours.
//!
//! A received payload stays in its packet. A sent payload is copied behind its headers if it is short, and otherwise
//! chained to them. The slow path handles fragments, multicast and unresolved neighbours.

use crate::checksum;
use crate::config::Config;
use crate::demux::{UDP, UDP_HEADER, UdpDatagram};
use crate::egress::Egress;
use crate::ethernet::ETHERNET_HEADER;
use linerate_bypass::time::Instant;
use linerate_bypass::{BufferPool, Capabilities, Datagram, L4, Nic, Packet, TxOffload};
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket};
use std::net::{IpAddr, SocketAddr};

const IPV4: usize = 20;
const IPV6: usize = 40;
/// Hop limit (RFC 1700), as for TCP.
const HOP_LIMIT: u8 = 64;

/// Longest payload that is copied instead of chained: a second packet costs both ends more than the copy.
const MAX_COPIED: usize = 256;

/// Datagrams between two checks of the pool level.
const POOL_CHECK_INTERVAL: u32 = 64;

/// Returns a pool for copies of received data that a service keeps: buffers of a segment of an Ethernet link.
pub(crate) fn copy_pool() -> BufferPool {
    BufferPool::new(2048, 256, 1 << 14)
}

/// Bound UDP addresses of one worker, and the state of received packets that its services hold.
pub(crate) struct UdpFastPath {
    /// Bound addresses, sorted by port.
    listen: Vec<SocketAddr>,
    /// Packets in use above which received payload is copied.
    most: usize,
    /// The pool is below that level.
    is_low: bool,
    /// Datagrams until the next check.
    left: u32,
    pub copies: BufferPool,
}

impl UdpFastPath {
    pub fn new(config: &Config, port: &Capabilities) -> Self {
        // As for TCP: received data may hold five sevenths.
        let packets = config.max_packets.unwrap_or(usize::MAX).min(port.pool - port.pool / 8);
        let mut listen: Vec<_> = config.listen_udp.iter().copied().filter(|bound| bound.port() != 0).collect();
        listen.sort_by_key(SocketAddr::port);
        UdpFastPath { listen, most: packets / 7 * 5, is_low: false, left: 0, copies: copy_pool() }
    }

    /// Returns whether a service is bound to the local address `local`.
    #[inline]
    pub fn listens(&self, local: &SocketAddr) -> bool {
        let from = self.listen.partition_point(|bound| bound.port() < local.port());
        let mut of_port = self.listen[from..].iter().take_while(|bound| bound.port() == local.port());
        of_port
            .any(|bound| bound.ip() == local.ip() || bound.ip().is_unspecified() && bound.is_ipv4() == local.is_ipv4())
    }

    /// Extracts the datagram from `frame`, as [`Host::classify`](crate::demux::Host::classify) located it.
    pub fn receive<N: Nic>(&mut self, frame: N::Packet, udp: &UdpDatagram, egress: &mut Egress<N>) -> Datagram {
        if self.left == 0 {
            self.left = POOL_CHECK_INTERVAL;
            let pool = egress.capabilities().pool;
            self.is_low = egress.nic().pool_left().is_some_and(|left| pool.saturating_sub(left) >= self.most);
        }
        self.left -= 1;
        let UdpDatagram { local, remote, start, end } = *udp;
        let payload = if self.is_low {
            egress.count_copied(end - start);
            self.copies.copy(&frame.data()[start..end])
        } else {
            frame.into_bytes(start..end)
        };
        Datagram { local, remote, payload }
    }

    /// Sends `datagram` if the fast path can.
    pub fn send<N: Nic>(&self, datagram: &Datagram, egress: &mut Egress<N>, now: Instant) -> SendResult {
        let Datagram { local, remote, payload } = datagram;
        let (ip_header, to, mtu) = match remote.ip() {
            IpAddr::V4(ip) => (IPV4, ip.to_ipv6_mapped(), egress.mtu()),
            IpAddr::V6(ip) => (IPV6, ip, egress.mtu_v6()),
        };
        let udp_len = UDP_HEADER + payload.len();
        if local.is_ipv4() != remote.is_ipv4()
            || ip_header + udp_len > mtu
            || remote.port() == 0
            || !egress.addresses().is_local(local.ip())
            || !self.listens(local)
        {
            return SendResult::NotHandled;
        }
        let Some(link) = egress.link_header(to.to_bits(), now).copied() else { return SendResult::NotHandled };
        if egress.room() == 0 {
            return SendResult::Full;
        }
        let Some(mut packet) = egress.nic().allocate() else { return SendResult::Full };
        let offload = egress.capabilities().tx_checksum;
        let chained = payload.len() > MAX_COPIED && egress.capabilities().multi_segment_tx;
        let tail = if chained { egress.attach(payload.clone()).ok() } else { None };
        if tail.is_none() {
            let Some(out) = packet.append(payload.len()) else { return SendResult::NotHandled };
            out.copy_from_slice(payload);
            egress.count_copied(payload.len());
        }
        let Some(header) = packet.prepend(ETHERNET_HEADER + ip_header + UDP_HEADER) else {
            return SendResult::NotHandled;
        };
        let (front, rest) = header.split_at_mut(ETHERNET_HEADER);
        front.copy_from_slice(&link);
        let (ip, udp) = rest.split_at_mut(ip_header);
        write_ip(ip, local.ip(), remote.ip(), udp_len, !offload.ipv4);
        let pseudo = checksum::pseudo_header_sum(local.ip(), remote.ip(), UDP, udp_len);
        let mut udp = UdpPacket::new_unchecked(udp);
        udp.set_src_port(local.port());
        udp.set_dst_port(remote.port());
        udp.set_len(udp_len as u16);
        udp.set_checksum(pseudo);
        if !offload.udp {
            let sum = !checksum::sum_of([&*udp.into_inner(), &payload[..]].into_iter());
            // RFC 768: a zero checksum field means no checksum.
            let sum = if sum == 0 { 0xffff } else { sum };
            let at = ETHERNET_HEADER + ip_header + 6;
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let ipv4 = remote.is_ipv4();
        if offload.udp || ipv4 && offload.ipv4 {
            packet.set_tx_offload(TxOffload {
                l2_len: ETHERNET_HEADER,
                l3_len: ip_header,
                l4_len: UDP_HEADER,
                ipv4,
                ipv4_checksum: ipv4 && offload.ipv4,
                l4_checksum: offload.udp.then_some(L4::Udp),
                tso: None,
            });
        }
        if let Some(tail) = tail
            && packet.chain(tail).is_err()
        {
            return SendResult::NotHandled;
        }
        egress.send_frame(packet);
        SendResult::Sent
    }
}

/// Result of sending a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// The datagram is on the transmit queue.
    Sent,
    /// The transmit queue or the pool has no room.
    Full,
    /// The slow path must send it.
    NotHandled,
}

/// Writes the IP header of a packet with `len` bytes of UDP.
fn write_ip(out: &mut [u8], source: IpAddr, destination: IpAddr, len: usize, sum: bool) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = Ipv4Packet::new_unchecked(out);
            ip.set_version(4);
            ip.set_header_len(IPV4 as u8);
            ip.set_dscp(0);
            ip.set_ecn(0);
            ip.set_total_len((IPV4 + len) as u16);
            // RFC 6864 §4.1: an unfragmentable packet needs no identification.
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
            let mut ip = Ipv6Packet::new_unchecked(out);
            ip.set_version(6);
            ip.set_traffic_class(0);
            ip.set_flow_label(0);
            ip.set_payload_len(len as u16);
            ip.set_next_header(IpProtocol::Udp);
            ip.set_hop_limit(HOP_LIMIT);
            ip.set_src_addr(source);
            ip.set_dst_addr(destination);
        }
        _ => debug_assert!(false, "addresses of different families"),
    }
}
