//! UDP fast path (RFC 768): unfragmented datagrams to bound ports, and to resolved neighbours.
//!
//! A received payload stays in its packet. A sent payload is copied after its headers if it is short, and otherwise
//! chained to them. The slow path handles fragments, multicast and unresolved neighbours.

use crate::config::Config;
use crate::ip::egress::{Egress, HEADER_LIFETIME};
use crate::wire::checksum;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::udp::{PROTOCOL as UDP, UDP_HEADER, UdpDatagram};
use linerate_bypass::{BufferPool, Capabilities, L4, Nic, Packet, TxOffload};
use linerate_service::Datagram;
use linerate_service::time::Instant;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

const IPV4: usize = 20;
const IPV6: usize = 40;
/// Hop limit (RFC 1700), as for TCP.
const HOP_LIMIT: u8 = 64;

/// Longest payload that is copied instead of chained: a second packet costs both ends more than the copy.
const MAX_COPIED: usize = 256;

/// Entries of the cache of raw routes, a power of two.
const RAW_ROUTES: usize = 16;
/// Headers of a datagram over IPv4.
const HEADERS_V4: usize = ETHERNET_HEADER + IPV4 + UDP_HEADER;

/// Entries of the table of positions, a power of two.
const PORTS: usize = 64;

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
    /// Position in `listen` by the low bits of the port, which finds consecutive ports without a search.
    by_port: [u32; PORTS],
    /// Port of a protocol with its own integrity check.
    raw: Option<u16>,
    /// Traffic class of datagrams from that port that are written in place.
    raw_traffic_class: u8,
    /// Routes of recent datagrams from that port over IPv4, by the low bits of the destination.
    raw_routes: [RawRoute; RAW_ROUTES],
    /// Number of packets in use at which received payload is copied.
    most: usize,
    /// True if at least `most` packets were in use at the last check.
    is_low: bool,
    /// Datagrams until the next check of the pool level.
    left: u32,
    pub copies: BufferPool,
}

impl UdpFastPath {
    pub fn new(config: &Config, port: &Capabilities) -> Self {
        // As for TCP: received data may hold five sevenths.
        let packets = config.max_packets.unwrap_or(usize::MAX).min(port.pool - port.pool / 8);
        let mut listen: Vec<_> = config.listen_udp.iter().copied().filter(|bound| bound.port() != 0).collect();
        listen.sort_by_key(SocketAddr::port);
        let mut udp = UdpFastPath {
            listen,
            by_port: [0; PORTS],
            raw: config.listen_udp_raw,
            raw_traffic_class: config.udp_raw_traffic_class,
            raw_routes: [NO_RAW_ROUTE; RAW_ROUTES],
            most: packets / 7 * 5,
            is_low: false,
            left: 0,
            copies: copy_pool(),
        };
        udp.index();
        udp
    }

    /// Enters the positions of the bound addresses into the table by port.
    fn index(&mut self) {
        for (bound, at) in self.listen.iter().zip(0..) {
            self.by_port[usize::from(bound.port()) % PORTS] = at;
        }
    }

    /// Adds a bound address.
    pub fn listen(&mut self, bound: SocketAddr) {
        let at = self.listen.partition_point(|other| other.port() <= bound.port());
        self.listen.insert(at, bound);
        self.index();
    }

    /// Removes a bound address.
    pub fn unlisten(&mut self, bound: &SocketAddr) {
        self.listen.retain(|other| other != bound);
        self.index();
    }

    /// Returns the port of a protocol with its own integrity check.
    #[inline]
    pub fn raw(&self) -> Option<u16> {
        self.raw
    }

    /// Returns whether a service is bound to the local address `local`.
    #[inline(always)]
    pub fn listens(&self, local: &SocketAddr) -> bool {
        let at = self.by_port[usize::from(local.port()) % PORTS];
        self.listen.get(at as usize) == Some(local) || self.search(local)
    }

    /// Searches for a bound address that is not at the position of its port, or is unspecified.
    #[inline(never)]
    fn search(&self, local: &SocketAddr) -> bool {
        let from = self.listen.partition_point(|bound| bound.port() < local.port());
        let mut of_port = self.listen[from..].iter().take_while(|bound| bound.port() == local.port());
        of_port
            .any(|bound| bound.ip() == local.ip() || bound.ip().is_unspecified() && bound.is_ipv4() == local.is_ipv4())
    }

    /// Extracts the datagram from `frame`, as the demultiplexer located it.
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
    pub fn send<N: Nic>(&mut self, datagram: &Datagram, egress: &mut Egress<N>, now: Instant) -> SendResult {
        let Datagram { local, remote, payload } = datagram;
        if payload.len() > MAX_COPIED
            && egress.capabilities().multi_segment_tx
            && let Ok(tail) = egress.attach(payload.clone())
        {
            let route = match self.route(local, remote, payload.len(), egress, now) {
                Ok(route) => route,
                Err(result) => return result,
            };
            let Some(mut packet) = egress.nic().allocate() else { return SendResult::Full };
            let is_offloaded = egress.capabilities().tx_checksum.udp;
            let checksum = if is_offloaded { Checksum::Offload } else { Checksum::OfPayload(checksum::data(payload)) };
            let written = route.write_headers(&mut packet, payload.len(), checksum, egress);
            if written.is_none() || packet.chain(tail).is_err() {
                return SendResult::NotHandled;
            }
            egress.send_frame(packet);
            return SendResult::Sent;
        }
        let copy = |out: &mut [u8]| out.copy_from_slice(payload);
        let result = self.write(local, remote, payload.len(), copy, egress, now).unwrap_or(SendResult::NotHandled);
        if result == SendResult::Sent {
            egress.count_copied(payload.len());
        }
        result
    }

    /// Sends a datagram of `len` bytes that `write` writes. Returns `write` if the slow path must send it.
    #[inline]
    pub fn write<N: Nic, W: FnOnce(&mut [u8])>(
        &mut self,
        local: &SocketAddr,
        remote: &SocketAddr,
        len: usize,
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<SendResult, W> {
        if self.raw == Some(local.port())
            && let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (local, remote)
        {
            return self.write_raw_v4(*local, *remote, len, write, egress, now);
        }
        let route = match self.route(local, remote, len, egress, now) {
            Ok(route) => route,
            Err(SendResult::NotHandled) => return Err(write),
            Err(result) => return Ok(result),
        };
        let Some(mut packet) = egress.nic().allocate() else { return Ok(SendResult::Full) };
        let Some(out) = packet.append(len) else { return Err(write) };
        write(out);
        // Without offload, the sum of the payload is computed before the headers precede it.
        let checksum = if self.raw == Some(local.port()) {
            Checksum::None { traffic_class: self.raw_traffic_class }
        } else if egress.capabilities().tx_checksum.udp {
            Checksum::Offload
        } else {
            Checksum::OfPayload(checksum::data(packet.data()))
        };
        if route.write_headers(&mut packet, len, checksum, egress).is_none() {
            return Ok(SendResult::Full);
        }
        egress.send_frame(packet);
        Ok(SendResult::Sent)
    }

    /// Sends a datagram without a checksum of UDP, as [`write`](Self::write).
    #[inline]
    fn write_raw_v4<N: Nic, W: FnOnce(&mut [u8])>(
        &mut self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        len: usize,
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<SendResult, W> {
        let at = remote.ip().to_bits() as usize % RAW_ROUTES;
        let cached = &self.raw_routes[at];
        let is_valid = cached.epoch == egress.link_epoch() && now < cached.until;
        if !is_valid || cached.local != local || cached.remote != remote {
            match self.cache_raw_route(local, remote, egress, now) {
                Some(route) => self.raw_routes[at] = route,
                None => return Err(write),
            }
        }
        let udp_len = UDP_HEADER + len;
        let ip_len = IPV4 + udp_len;
        if ip_len > egress.mtu() {
            return Err(write);
        }
        if egress.room() == 0 {
            return Ok(SendResult::Full);
        }
        let Some(mut packet) = egress.nic().allocate() else { return Ok(SendResult::Full) };
        let Some(out) = packet.append(len) else { return Err(write) };
        write(out);
        let RawRoute { headers, sum, .. } = &self.raw_routes[at];
        let Some(start) = packet.prepend(HEADERS_V4).and_then(<[u8]>::first_chunk_mut::<HEADERS_V4>) else {
            return Ok(SendResult::Full);
        };
        *start = *headers;
        let offload = egress.capabilities().tx_checksum.ipv4;
        let check = if offload { 0 } else { !checksum::fold(sum + ip_len as u64) };
        start[ETHERNET_HEADER + 2..ETHERNET_HEADER + 4].copy_from_slice(&(ip_len as u16).to_be_bytes());
        start[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].copy_from_slice(&check.to_be_bytes());
        start[HEADERS_V4 - 4..HEADERS_V4 - 2].copy_from_slice(&(udp_len as u16).to_be_bytes());
        if offload {
            packet.set_tx_offload(TxOffload {
                l2_len: ETHERNET_HEADER,
                l3_len: IPV4,
                l4_len: UDP_HEADER,
                ipv4: true,
                ipv4_checksum: true,
                l4_checksum: None,
                tso: None,
            });
        }
        egress.send_frame(packet);
        Ok(SendResult::Sent)
    }

    /// Finds the route of datagrams without a checksum of UDP, if the fast path can send them.
    #[cold]
    fn cache_raw_route<N: Nic>(
        &self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<RawRoute> {
        let (from, to) = (SocketAddr::V4(local), SocketAddr::V4(remote));
        let Route { link, .. } = self.route(&from, &to, 0, egress, now).ok()?;
        let ip = ip_header_v4(*local.ip(), *remote.ip(), 0, self.raw_traffic_class, false);
        let mut headers = [0; HEADERS_V4];
        let (ethernet, rest) = headers.split_at_mut(ETHERNET_HEADER);
        ethernet.copy_from_slice(&link);
        let (header, udp) = rest.split_at_mut(IPV4);
        header.copy_from_slice(&ip);
        header[2..4].fill(0);
        let sum = header.chunks_exact(2).map(|word| u64::from(word[0]) << 8 | u64::from(word[1])).sum();
        udp[..2].copy_from_slice(&local.port().to_be_bytes());
        udp[2..4].copy_from_slice(&remote.port().to_be_bytes());
        Some(RawRoute { local, remote, epoch: egress.link_epoch(), until: now + HEADER_LIFETIME, headers, sum })
    }

    /// Finds the route of a datagram of `len` bytes, and checks that there is room for it. Returns the reason if the
    /// fast path cannot send it.
    #[inline(always)]
    fn route<'a, N: Nic>(
        &self,
        local: &'a SocketAddr,
        remote: &'a SocketAddr,
        len: usize,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<Route<'a>, SendResult> {
        let addresses = egress.addresses();
        let (is_local, ip_header, to, mtu) = match (local, remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
                let is_local = addresses.is_local_v4(local.ip().to_bits());
                (is_local, IPV4, remote.ip().to_ipv6_mapped(), egress.mtu())
            }
            (SocketAddr::V6(local), SocketAddr::V6(remote)) => {
                (addresses.is_local_v6(local.ip().to_bits()), IPV6, *remote.ip(), egress.mtu_v6())
            }
            _ => return Err(SendResult::NotHandled),
        };
        if !is_local || ip_header + UDP_HEADER + len > mtu || remote.port() == 0 || !self.listens(local) {
            return Err(SendResult::NotHandled);
        }
        let link = *egress.link_header(to.to_bits(), now).ok_or(SendResult::NotHandled)?;
        if egress.room() == 0 {
            return Err(SendResult::Full);
        }
        Ok(Route { local, remote, ip_header, link })
    }
}

/// Route of datagrams without a checksum of UDP, within an epoch of link headers and for their lifetime.
#[derive(Clone, Copy)]
struct RawRoute {
    local: SocketAddrV4,
    remote: SocketAddrV4,
    epoch: u32,
    until: Instant,
    /// Headers without lengths and checksum.
    headers: [u8; HEADERS_V4],
    /// Sum of the words of the IP header.
    sum: u64,
}

/// No epoch has the number 0.
const NO_RAW_ROUTE: RawRoute = {
    let none = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    RawRoute { local: none, remote: none, epoch: 0, until: Instant::ZERO, headers: [0; HEADERS_V4], sum: 0 }
};

/// Content of the checksum field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checksum {
    /// Zero: the payload has its own integrity check (RFC 768, RFC 6935). Such datagrams have a traffic class.
    None { traffic_class: u8 },
    /// Computed by the port.
    Offload,
    /// Computed here, from the sum of the payload.
    OfPayload(u16),
}

/// Addresses of a datagram, and its Ethernet header.
struct Route<'a> {
    local: &'a SocketAddr,
    remote: &'a SocketAddr,
    ip_header: usize,
    link: [u8; ETHERNET_HEADER],
}

impl Route<'_> {
    /// Prepends the headers of a datagram of `len` bytes to `packet` and requests offloads. Returns `None` if `packet`
    /// lacks headroom.
    #[inline(always)]
    fn write_headers<N: Nic>(
        &self,
        packet: &mut N::Packet,
        len: usize,
        checksum: Checksum,
        egress: &Egress<N>,
    ) -> Option<()> {
        let Route { local, remote, ip_header, link } = self;
        let (offload, udp_len) = (egress.capabilities().tx_checksum, UDP_HEADER + len);
        let pseudo = || checksum::pseudo_header_sum(local.ip(), remote.ip(), UDP, udp_len);
        let ports = u64::from(local.port()) << 16 | u64::from(remote.port());
        let (check, traffic_class) = match checksum {
            Checksum::None { traffic_class } => (0, traffic_class),
            Checksum::Offload => (pseudo(), 0),
            // The length is in the pseudo-header and in the header. RFC 768: a zero field means no checksum.
            Checksum::OfPayload(sum) => {
                match !checksum::fold(ports + udp_len as u64 + u64::from(pseudo()) + u64::from(sum)) {
                    0 => (0xffff, 0),
                    check => (check, 0),
                }
            }
        };
        let udp = (ports << 32 | (udp_len as u64) << 16 | u64::from(check)).to_be_bytes();
        match (local, remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
                let ip = ip_header_v4(*local.ip(), *remote.ip(), udp_len, traffic_class, !offload.ipv4);
                write_all(packet, link, &ip, &udp)?;
            }
            (SocketAddr::V6(local), SocketAddr::V6(remote)) => {
                write_all(packet, link, &ip_header_v6(*local.ip(), *remote.ip(), udp_len, traffic_class), &udp)?;
            }
            _ => return None,
        }
        let ipv4 = remote.is_ipv4();
        let by_port = checksum == Checksum::Offload;
        if by_port || ipv4 && offload.ipv4 {
            packet.set_tx_offload(TxOffload {
                l2_len: ETHERNET_HEADER,
                l3_len: *ip_header,
                l4_len: UDP_HEADER,
                ipv4,
                ipv4_checksum: ipv4 && offload.ipv4,
                l4_checksum: by_port.then_some(L4::Udp),
                tso: None,
            });
        }
        Some(())
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

/// Prepends headers to `packet`. Returns `None` if `packet` lacks headroom.
#[inline(always)]
fn write_all<P: Packet, const IP: usize>(
    packet: &mut P,
    link: &[u8; ETHERNET_HEADER],
    ip: &[u8; IP],
    udp: &[u8; UDP_HEADER],
) -> Option<()> {
    let (front, rest) = packet.prepend(ETHERNET_HEADER + IP + UDP_HEADER)?.split_first_chunk_mut()?;
    *front = *link;
    let (front, rest) = rest.split_first_chunk_mut()?;
    *front = *ip;
    *rest.first_chunk_mut()? = *udp;
    Some(())
}

/// Returns the IPv4 header of a packet with `len` bytes of UDP (RFC 791 §3.1), with the checksum if `sum`.
#[inline(always)]
fn ip_header_v4(source: Ipv4Addr, destination: Ipv4Addr, len: usize, class: u8, sum: bool) -> [u8; IPV4] {
    const VERSION_AND_LENGTH: u32 = 0x4500_0000;
    /// "Don't fragment" flag. RFC 6864 §4.1: an unfragmentable packet needs no identification.
    const DONT_FRAGMENT: u32 = 0x4000;
    const HOP_LIMIT_AND_PROTOCOL: u32 = (HOP_LIMIT as u32) << 24 | (UDP as u32) << 16;
    let mut words = [
        VERSION_AND_LENGTH | u32::from(class) << 16 | (IPV4 + len) as u32,
        DONT_FRAGMENT,
        HOP_LIMIT_AND_PROTOCOL,
        source.to_bits(),
        destination.to_bits(),
    ];
    if sum {
        let sum = words.iter().map(|word| u64::from(*word)).sum();
        words[2] |= u32::from(!checksum::fold(sum));
    }
    let mut out = [0; IPV4];
    for (out, word) in out.chunks_exact_mut(4).zip(words) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    out
}

/// Returns the IPv6 header of a packet with `len` bytes of UDP (RFC 8200 §3).
#[inline(always)]
fn ip_header_v6(source: Ipv6Addr, destination: Ipv6Addr, len: usize, class: u8) -> [u8; IPV6] {
    const VERSION: u64 = 6 << 60;
    let fixed = VERSION | u64::from(class) << 52 | (len as u64) << 16 | u64::from(UDP) << 8 | u64::from(HOP_LIMIT);
    let mut out = [0; IPV6];
    out[..8].copy_from_slice(&fixed.to_be_bytes());
    out[8..24].copy_from_slice(&source.octets());
    out[24..].copy_from_slice(&destination.octets());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::addresses::Addresses;
    use linerate_bypass::memory_nic::{Link, LinkConfig};
    use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet};

    #[test]
    fn ip_headers_have_the_fields_of_an_unfragmentable_datagram() {
        let (source, destination) = ([10, 0, 0, 2].into(), [10, 0, 0, 9].into());
        let ip = Ipv4Packet::new_unchecked(ip_header_v4(source, destination, 108, 0x6a, true));
        assert!(ip.verify_checksum());
        assert_eq!((ip.version(), ip.header_len(), ip.total_len(), ip.hop_limit()), (4, 20, 128, HOP_LIMIT));
        assert_eq!((ip.dscp(), ip.ecn(), ip.ident(), ip.frag_offset()), (26, 2, 0, 0));
        assert!(ip.dont_frag() && !ip.more_frags() && ip.next_header() == IpProtocol::Udp);
        assert_eq!((ip.src_addr(), ip.dst_addr()), (source, destination));

        let (source, destination) = ("fd00::2".parse().unwrap(), "fd00::9".parse().unwrap());
        let ip = Ipv6Packet::new_unchecked(ip_header_v6(source, destination, 108, 0x6a));
        assert_eq!((ip.version(), ip.traffic_class(), ip.flow_label()), (6, 0x6a, 0));
        assert_eq!((ip.payload_len(), ip.next_header(), ip.hop_limit()), (108, IpProtocol::Udp, HOP_LIMIT));
        assert_eq!((ip.src_addr(), ip.dst_addr()), (source, destination));
    }

    #[test]
    fn bound_addresses_are_found_by_port_and_address() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        // Ports 7, 71 and 135 have the same low bits.
        let bound = ["10.0.0.2:7", "10.0.0.2:71", "10.0.0.3:71", "0.0.0.0:135", "[::]:9", "10.0.0.2:0"].map(address);
        let config = Config { listen_udp: bound.to_vec(), ..Config::default() };
        let mut udp = UdpFastPath::new(&config, Link::pair(LinkConfig::default()).0.capabilities());
        for local in ["10.0.0.2:7", "10.0.0.2:71", "10.0.0.3:71", "10.0.0.9:135", "[fd00::2]:9"] {
            assert!(udp.listens(&address(local)), "{local}");
        }
        for local in ["10.0.0.3:7", "10.0.0.4:71", "[fd00::2]:135", "10.0.0.2:9", "10.0.0.2:0", "10.0.0.2:8"] {
            assert!(!udp.listens(&address(local)), "{local}");
        }
        udp.listen(address("10.0.0.2:8"));
        udp.unlisten(&address("10.0.0.3:71"));
        for local in ["10.0.0.2:7", "10.0.0.2:8", "10.0.0.2:71", "10.0.0.9:135", "[fd00::2]:9"] {
            assert!(udp.listens(&address(local)), "{local}");
        }
        assert!(!udp.listens(&address("10.0.0.3:71")));
    }

    #[test]
    fn raw_datagrams_have_the_headers_of_their_destination_and_length() {
        use linerate_bypass::MacAddr;
        use smoltcp::wire::{EthernetFrame, UdpPacket};
        let (local, remote): (SocketAddr, SocketAddr) = ("10.0.0.2:7".parse().unwrap(), "10.0.0.9:7".parse().unwrap());
        for checksum_offload in [false, true] {
            let (nic, mut peer) = Link::pair(LinkConfig { checksum_offload, ..LinkConfig::default() });
            let own = |ip: &str| Addresses::new(&[ip.parse().unwrap()], &[], MacAddr([2, 0, 0, 0, 0, 2]));
            let mut egress = Egress::new(nic, own("10.0.0.2/24"), MacAddr([2, 0, 0, 0, 0, 2]), 1500, 0);
            let config = Config {
                listen_udp: vec![local],
                listen_udp_raw: Some(7),
                udp_raw_traffic_class: 0x6a,
                ..Config::default()
            };
            let mut udp = UdpFastPath::new(&config, egress.capabilities());
            let mut write = |egress: &mut Egress<_>, len: usize| {
                udp.write(&local, &remote, len, |out| out.fill(len as u8), egress, Instant::ZERO).ok()
            };
            assert_eq!(write(&mut egress, 10), None, "the neighbour is not resolved");
            egress.learn(remote.ip(), MacAddr([2, 0, 0, 0, 0, 9]), true, Instant::ZERO);
            for len in [64, 0, 1472, 65] {
                assert_eq!(write(&mut egress, len), Some(SendResult::Sent));
                egress.flush();
                let mut received = Vec::with_capacity(32);
                assert_eq!(peer.rx_burst(&mut received), 1);
                let ethernet = EthernetFrame::new_checked(received[0].data()).unwrap();
                assert_eq!((ethernet.dst_addr().0, ethernet.src_addr().0), ([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 2]));
                let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
                assert_eq!(usize::from(ip.total_len()), 28 + len);
                assert!(checksum_offload || ip.verify_checksum());
                assert_eq!((ip.dscp(), ip.ecn(), ip.hop_limit(), ip.dont_frag()), (26, 2, HOP_LIMIT, true));
                assert_eq!((ip.src_addr(), ip.dst_addr()), ([10, 0, 0, 2].into(), [10, 0, 0, 9].into()));
                let udp = UdpPacket::new_checked(ip.payload()).unwrap();
                assert_eq!((udp.src_port(), udp.dst_port(), udp.checksum()), (7, 7, 0));
                assert!(udp.payload().len() == len && udp.payload().iter().all(|byte| *byte == len as u8));
            }
            assert_eq!(write(&mut egress, 1473), None, "above the MTU");
            egress.set_addresses(own("10.0.0.3/24"));
            assert_eq!(write(&mut egress, 64), None, "the local address is gone");
        }
    }
}
