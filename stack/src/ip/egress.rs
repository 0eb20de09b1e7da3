//! Transmit path of a worker: from IP packets to Ethernet frames on the port's transmit queue.

use crate::ip::addresses::Addresses;
use crate::ip::neighbors::{Lookup, Neighbors, Solicitation, Update};
use crate::ip::router_info::RouterInfo;
use crate::wire::arp_ndp::{Message, group_address};
use crate::wire::drop_stats::{DropCause, DropStats};
use crate::wire::ethernet::{self, ETHERNET_HEADER};
use crate::wire::vlan::VlanId;
use linerate_bypass::{BURST, Capabilities, MacAddr, Nic, Packet};
use linerate_service::Bytes;
use linerate_service::mailbox::Sender;
use linerate_service::time::{Duration, Instant};
use smoltcp::wire::EthernetProtocol;
use std::net::{IpAddr, Ipv6Addr};

/// Maximum frames that wait for the port. When it is reached, connections hold data back, and replies are dropped and
/// counted.
const QUEUE: usize = 512;

/// Packets reserved for control segments, at most an eighth of the pool: both ends need acknowledgements to release
/// packets, so payload must not take the last ones.
const RESERVED: usize = 32;

/// Entries of the header cache, a power of two.
const HEADER_CACHE_SIZE: usize = 256;
/// Lifetime of a cached header. The lookup after it lets the neighbour table confirm the neighbour.
pub(crate) const HEADER_LIFETIME: Duration = Duration::from_secs(1);

/// Cached Ethernet header for a destination.
#[derive(Clone, Copy)]
struct CachedHeader {
    destination: u128,
    until: Instant,
    header: [u8; ETHERNET_HEADER],
}

const NO_HEADER: CachedHeader = CachedHeader { destination: 0, until: Instant::ZERO, header: [0; ETHERNET_HEADER] };

/// Queue pair of a port with its neighbour table, addresses and transmit queue. All frames of a worker pass through it.
pub struct Egress<N: Nic> {
    nic: N,
    queue: Vec<N::Packet>,
    reserved: Vec<N::Packet>,
    neighbors: Neighbors<N::Packet>,
    /// Neighbours being resolved, for announcement to other workers.
    resolving: Vec<IpAddr>,
    /// True if there are other workers.
    tracks_resolving: bool,
    /// Requests to the host's kernel, if it resolves the neighbours.
    host_requests: Option<Sender<IpAddr>>,
    headers: Box<[CachedHeader; HEADER_CACHE_SIZE]>,
    link_epoch: u32,
    addresses: Addresses,
    mac: MacAddr,
    mtu: usize,
    mtu_v6: usize,
    drops: DropStats,
    /// Neighbours that did not reply, for the engine.
    lost: Vec<IpAddr>,
    copied_bytes: u64,
    /// VLAN of the worker, and the number of frames at the front of the queue that carry its tag.
    vlan: Option<VlanId>,
    tagged: usize,
    /// True if the port has taken frames since the last call of [`is_stuck`](Self::is_stuck).
    took_some: bool,
    /// Length of the queue up to which connections add data: zero while the data of all connections is held back.
    data_limit: usize,
}

impl<N: Nic> Egress<N> {
    pub(crate) fn new(nic: N, addresses: Addresses, mac: MacAddr, mtu: usize, seed: u64) -> Self {
        let mut neighbors = Neighbors::new(seed);
        neighbors.set_gateways(addresses.next_hops());
        Egress {
            nic,
            queue: Vec::with_capacity(QUEUE),
            reserved: Vec::with_capacity(RESERVED),
            neighbors,
            resolving: Vec::new(),
            tracks_resolving: false,
            host_requests: None,
            headers: Box::new([NO_HEADER; HEADER_CACHE_SIZE]),
            link_epoch: 1,
            addresses,
            mac,
            mtu,
            mtu_v6: mtu,
            drops: DropStats::default(),
            lost: Vec::new(),
            copied_bytes: 0,
            vlan: None,
            tagged: 0,
            took_some: false,
            data_limit: QUEUE,
        }
    }

    /// Makes the host's kernel resolve neighbours, if `requests`, the mailbox of the control plane, is given.
    pub(crate) fn resolve_by_host(&mut self, requests: Option<Sender<IpAddr>>) {
        self.host_requests = requests;
    }

    /// Sets the VLAN whose tag all further frames carry.
    pub(crate) fn set_vlan(&mut self, vlan: Option<VlanId>) {
        self.vlan = vlan;
    }

    #[inline]
    pub(crate) fn vlan(&self) -> Option<VlanId> {
        self.vlan
    }

    pub(crate) fn nic(&mut self) -> &mut N {
        &mut self.nic
    }

    pub(crate) fn into_nic(self) -> N {
        self.nic
    }

    pub(crate) fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Sets the Ethernet address. [`set_addresses`](Self::set_addresses) must follow, which applies it to all frames.
    pub(crate) fn set_mac(&mut self, mac: MacAddr) {
        self.mac = mac;
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(crate) fn set_addresses(&mut self, addresses: Addresses) {
        self.neighbors.set_gateways(addresses.next_hops());
        self.addresses = addresses;
        self.invalidate_headers();
    }

    pub(crate) fn drops(&mut self) -> &mut DropStats {
        &mut self.drops
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Returns the capabilities of the port.
    pub fn capabilities(&self) -> &Capabilities {
        self.nic.capabilities()
    }

    /// Returns the largest IP packet in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the largest IPv6 packet to be sent in bytes: the MTU of the link or that in router advertisements, if it
    /// is smaller.
    pub fn mtu_v6(&self) -> usize {
        self.mtu_v6
    }

    /// Applies the MTU and timers in router advertisements.
    pub(crate) fn apply_router_info(&mut self, network: &RouterInfo) {
        self.mtu_v6 = network.mtu.map_or(self.mtu, |mtu| self.mtu.min(mtu.into()));
        self.neighbors.set_times(network.reachable, network.retransmit);
    }

    /// Counts one drop for `cause`.
    pub fn count_drop(&mut self, cause: DropCause) {
        self.drops.count(cause);
    }

    /// Counts copied payload bytes.
    pub fn count_copied(&mut self, bytes: usize) {
        self.copied_bytes += bytes as u64;
    }

    /// Allocates an empty packet with headroom. Returns `None` if the transmit queue is full or the pool is empty.
    pub fn allocate(&mut self) -> Option<N::Packet> {
        if self.room() == 0 {
            return None;
        }
        self.nic.allocate().or_else(|| self.reserved.pop())
    }

    pub(crate) fn release_reserved(&mut self) {
        self.reserved.clear();
    }

    /// Allocates an empty packet for payload, with headroom. Returns `None` if only reserved packets remain.
    pub(crate) fn allocate_for_payload(&mut self) -> Option<N::Packet> {
        let aside = RESERVED.min(self.nic.capabilities().pool / 8);
        while self.reserved.len() < aside {
            self.reserved.push(self.nic.allocate()?);
        }
        self.nic.allocate()
    }

    /// Returns the number of frames that fit in the transmit queue.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        QUEUE.saturating_sub(self.queue.len())
    }

    /// Returns whether a connection may queue a frame with data. While connections wait for room, only they may, in
    /// their order of arrival; see [`hold_data`](Self::hold_data).
    #[inline(always)]
    pub(crate) fn has_data_room(&self) -> bool {
        self.queue.len() < self.data_limit
    }

    /// Holds back the data of all connections if the queue is full and connections are `waiting` for room. Otherwise
    /// admits data again.
    #[inline]
    pub(crate) fn hold_data(&mut self, waiting: bool) {
        self.data_limit = if waiting && self.room() == 0 { 0 } else { QUEUE };
    }

    /// Returns the number of frames in the transmit queue.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Creates a packet whose data are `bytes`; see [`Nic::attach`].
    pub(crate) fn attach(&mut self, bytes: Bytes) -> Result<N::Packet, Bytes> {
        self.nic.attach(bytes)
    }

    /// Returns the current epoch of link headers. Headers from [`link_header`](Self::link_header) are valid within one
    /// epoch.
    #[inline(always)]
    pub(crate) fn link_epoch(&self) -> u32 {
        self.link_epoch
    }

    /// Begins an epoch. Regular calls make connections look up their headers again, which confirms their neighbours.
    pub(crate) fn next_link_epoch(&mut self) {
        self.link_epoch = self.link_epoch.wrapping_add(1).max(1);
    }

    /// Clears the header cache and begins an epoch.
    fn invalidate_headers(&mut self) {
        self.headers.fill(NO_HEADER);
        self.next_link_epoch();
    }

    /// Returns the Ethernet header for the unicast address `destination` (IPv4 in mapped form), if its next hop is
    /// resolved. Otherwise [`send_ip`](Self::send_ip) resolves it.
    #[inline(always)]
    pub(crate) fn link_header(&mut self, destination: u128, now: Instant) -> Option<&[u8; ETHERNET_HEADER]> {
        let at = (destination as u32 as usize ^ (destination >> 16) as usize) % HEADER_CACHE_SIZE;
        let ready = &self.headers[at];
        if ready.destination != destination || now >= ready.until {
            self.cache_header(at, destination, now)?;
        }
        Some(&self.headers[at].header)
    }

    #[inline(never)]
    fn cache_header(&mut self, at: usize, destination: u128, now: Instant) -> Option<()> {
        let ip = Ipv6Addr::from_bits(destination);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        let hop = self.addresses.next_hop(ip)?;
        let mac = self.neighbors.known(hop)?;
        if let Lookup::Confirm(_, solicitation) = self.neighbors.look_up(hop, now) {
            self.solicit(solicitation);
        }
        let protocol = if ip.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
        let mut header = [0; ETHERNET_HEADER];
        ethernet::write_header(&mut header, mac, self.mac, protocol);
        self.headers[at] = CachedHeader { destination, until: now + HEADER_LIFETIME, header };
        Some(())
    }

    /// Prepends an Ethernet header to an IP packet and sends it to `destination`. The packet waits if the next hop is
    /// not resolved.
    pub fn send_ip(&mut self, packet: N::Packet, destination: IpAddr, now: Instant) {
        let mac = match destination {
            IpAddr::V4(ip) if ip.is_multicast() || self.addresses.is_broadcast(ip) => group_address(destination),
            IpAddr::V6(ip) if ip.is_multicast() => group_address(destination),
            _ => {
                let Some(hop) = self.addresses.next_hop(destination) else {
                    return self.drops.count(DropCause::Unreachable);
                };
                match self.neighbors.look_up(hop, now) {
                    Lookup::Known(mac) => mac,
                    Lookup::Confirm(mac, solicitation) => {
                        self.solicit(solicitation);
                        mac
                    }
                    Lookup::Refused => return self.drops.count(DropCause::NeighborTableFull),
                    lookup => {
                        if self.neighbors.park(hop, packet).is_some() {
                            self.drops.count(DropCause::Unreachable);
                        }
                        if lookup == Lookup::Solicit {
                            self.solicit(Solicitation { ip: hop, to: None });
                        }
                        return;
                    }
                }
            }
        };
        self.send_to(packet, mac);
    }

    /// Queues a complete Ethernet frame. A full burst goes to the port at once, so that the receiver can start on it
    /// during this turn.
    #[inline]
    pub(crate) fn send_frame(&mut self, frame: N::Packet) {
        // The queue never grows, so sending does not allocate.
        if self.queue.len() == self.queue.capacity() {
            return self.refuse(frame);
        }
        self.queue.push(frame);
        // Frames that the port does not take now wait for the end of the turn.
        if self.queue.len() == BURST {
            self.flush();
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&mut self, frame: N::Packet) {
        drop(frame);
        self.drops.count(DropCause::NoPacket);
    }

    fn send_to(&mut self, mut packet: N::Packet, to: MacAddr) {
        let protocol = match packet.data().first().map(|byte| byte >> 4) {
            Some(4) => EthernetProtocol::Ipv4,
            _ => EthernetProtocol::Ipv6,
        };
        match packet.prepend(ETHERNET_HEADER) {
            Some(header) => {
                ethernet::write_header(header, to, self.mac, protocol);
                self.send_frame(packet);
            }
            None => self.drops.count(DropCause::NoPacket),
        }
    }

    /// Passes queued frames to the port and returns how many it took. The others stay queued.
    #[inline(never)]
    pub(crate) fn flush(&mut self) -> usize {
        if let Some(vlan) = self.vlan {
            self.tag(vlan);
        }
        let mut sent = 0;
        while !self.queue.is_empty() {
            match self.nic.tx_burst(&mut self.queue) {
                0 => break,
                n => sent += n,
            }
        }
        self.took_some |= sent > 0;
        self.tagged = self.queue.len();
        sent
    }

    /// Inserts the tag of `vlan` into queued frames without one, or requests it from the port.
    #[inline(never)]
    fn tag(&mut self, vlan: VlanId) {
        let Egress { nic, queue, drops, tagged, .. } = self;
        let by_port = nic.capabilities().vlan;
        let mut at = 0;
        queue.retain_mut(|frame| {
            at += 1;
            if at <= *tagged {
                return true;
            }
            if by_port {
                frame.set_tx_vlan(vlan.get());
                return true;
            }
            let is_tagged = frame.tag(vlan.get(), || nic.allocate());
            if !is_tagged {
                drops.count(DropCause::NoPacket);
            }
            is_tagged
        });
    }

    /// Returns whether frames wait and the port has taken none since the last call.
    pub(crate) fn is_stuck(&mut self) -> bool {
        !std::mem::take(&mut self.took_some) && !self.queue.is_empty()
    }

    /// Records a neighbour's address and sends the packets that waited for it. For `new`, see [`Neighbors::learn`].
    pub(crate) fn learn(&mut self, ip: IpAddr, mac: MacAddr, new: bool, now: Instant) {
        if !self.can_be_neighbor(ip, mac) {
            return;
        }
        match self.neighbors.learn(ip, mac, new, now) {
            Update::Known { parked, changed } => {
                if changed {
                    self.invalidate_headers();
                }
                for packet in parked {
                    self.send_to(packet, mac);
                }
            }
            Update::Limited => self.drops.count(DropCause::UnsolicitedNeighbor),
            Update::Created | Update::Ignored => {}
        }
    }

    /// Gives up the neighbour `ip`, which the host's kernel could not resolve, in the next poll.
    pub(crate) fn give_up(&mut self, ip: IpAddr) {
        self.neighbors.give_up(ip);
    }

    /// Returns whether `ip` is an on-link address of another host and `mac` is a station's address.
    pub(crate) fn can_be_neighbor(&self, ip: IpAddr, mac: MacAddr) -> bool {
        mac.is_unicast() && !self.addresses.is_local(ip) && self.addresses.next_hop(ip) == Some(ip)
    }

    /// Marks all neighbours for confirmation on next use. Their addresses stay in use meanwhile.
    pub(crate) fn reconfirm_neighbors(&mut self) {
        self.neighbors.require_confirmation();
        self.invalidate_headers();
    }

    /// Retransmits unanswered solicitations and gives up unreachable neighbours.
    pub(crate) fn poll_neighbors(&mut self, now: Instant) {
        let mut solicitations = Vec::new();
        let lost_before = self.lost.len();
        let (drops, lost) = (&mut self.drops, &mut self.lost);
        self.neighbors.poll(
            now,
            |solicitation| solicitations.push(solicitation),
            |ip, parked| {
                parked.iter().for_each(|_| drops.count(DropCause::Unreachable));
                lost.push(ip);
            },
        );
        if self.lost.len() > lost_before {
            self.invalidate_headers();
        }
        solicitations.into_iter().for_each(|solicitation| self.solicit(solicitation));
    }

    /// Returns the time of the next [`poll_neighbors`](Self::poll_neighbors), connection scan or announcement to other
    /// workers.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.neighbors.next_deadline()
    }

    /// Returns the number of connection slots that the running scan for unused neighbours has covered; `None` without a
    /// scan.
    pub(crate) fn neighbor_scan(&self) -> Option<usize> {
        self.neighbors.scan()
    }

    /// Marks the next hop of a connection to `remote` as in use, for the running scan.
    pub(crate) fn mark_in_use(&mut self, remote: IpAddr) {
        if let Some(hop) = self.addresses.next_hop(remote) {
            self.neighbors.mark_in_use(hop);
        }
    }

    /// Records the progress of the scan: see [`Neighbors::scanned`].
    pub(crate) fn scanned(&mut self, slots: usize, all: bool) {
        self.neighbors.scanned(slots, all);
    }

    /// Enables the list of [`take_resolving`](Self::take_resolving).
    pub(crate) fn track_resolving(&mut self) {
        self.tracks_resolving = true;
    }

    /// Takes the neighbours whose resolution has begun since the last call.
    pub(crate) fn take_resolving(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.resolving)
    }

    /// Takes the neighbours that became unreachable since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.lost)
    }

    /// Sends an ARP request or a neighbour solicitation, or makes the host's kernel do so.
    fn solicit(&mut self, solicitation: Solicitation) {
        let Solicitation { ip: target, to } = solicitation;
        if let Some(host) = &self.host_requests {
            // If the mailbox is full, the neighbour table repeats the request.
            let _ = host.send(target);
            return;
        }
        if self.tracks_resolving {
            self.resolving.push(target);
            self.neighbors.is_due_by(Instant::ZERO);
        }
        if let Some(source) = self.addresses.source_for(target) {
            self.send_message(Message::Solicit { source, target, to });
        }
    }

    /// Sends an ARP or NDP message. Without a free packet it is not sent.
    pub(crate) fn send_message(&mut self, message: Message) {
        self.send_with(|packet, mac| message.write(packet, mac));
    }

    /// Sends a frame. `write` fills in everything after the Ethernet header, and returns the destination and the
    /// EtherType.
    pub(crate) fn send_with(
        &mut self,
        write: impl FnOnce(&mut N::Packet, MacAddr) -> Option<(MacAddr, EthernetProtocol)>,
    ) {
        let Some(mut packet) = self.allocate() else { return };
        let written = write(&mut packet, self.mac);
        let (Some((to, protocol)), Some(header)) = (written, packet.prepend(ETHERNET_HEADER)) else {
            return self.drops.count(DropCause::NoPacket);
        };
        ethernet::write_header(header, to, self.mac, protocol);
        self.send_frame(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};

    fn egress(link: LinkConfig) -> (Egress<MemoryNic>, MemoryNic) {
        let (nic, peer) = Link::pair(link);
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let addresses = Addresses::new(&["10.0.0.1/24".parse().unwrap()], &[], mac);
        (Egress::new(nic, addresses, mac, 1500, 0), peer)
    }

    #[test]
    fn transmit_queue_is_bounded_while_the_port_takes_nothing() {
        let (mut egress, mut peer) = egress(LinkConfig { ring: 4, pool: 10_000, ..LinkConfig::default() });
        let mut queued = 0;
        while let Some(mut frame) = egress.allocate() {
            frame.append(60).unwrap().fill(0);
            egress.send_frame(frame);
            queued += 1;
            egress.flush();
        }
        assert_eq!(queued, QUEUE + 4);
        // A frame beyond the bound is dropped and counted.
        let mut frame = egress.nic().allocate().unwrap();
        frame.append(60).unwrap().fill(0);
        egress.send_frame(frame);
        assert_eq!(egress.drops().get(DropCause::NoPacket), 1);
        // Every queued frame is sent eventually.
        let mut received = Vec::with_capacity(32);
        let mut total = 0;
        while {
            egress.flush();
            peer.rx_burst(&mut received) > 0
        } {
            total += received.drain(..).count();
        }
        assert_eq!(total, queued);
        assert_eq!(egress.nic().pool_available(), 10_000);
    }

    #[test]
    fn full_burst_is_sent_before_the_end_of_the_turn() {
        let (mut egress, mut peer) = egress(LinkConfig::default());
        let mut send = |frames: usize| {
            (0..frames).for_each(|_| {
                let mut frame = egress.allocate().unwrap();
                frame.append(60).unwrap().fill(0);
                egress.send_frame(frame);
            });
            let mut received = Vec::with_capacity(2 * BURST);
            peer.rx_burst(&mut received)
        };
        assert_eq!(send(BURST - 1), 0);
        assert_eq!(send(1), BURST);
        assert_eq!(send(BURST + 1), BURST);
        assert_eq!(egress.flush(), 1);
    }

    #[test]
    fn packets_for_an_unreachable_neighbour_are_released() {
        let (mut egress, mut peer) = egress(LinkConfig::default());
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut packet = egress.allocate().unwrap();
        packet.append(20).unwrap().fill(0x45);
        egress.send_ip(packet, [10, 0, 0, 9].into(), at(0));
        for second in 1..=3 {
            egress.flush();
            assert_eq!(peer.rx_burst(&mut Vec::with_capacity(32)), 1, "one solicitation per second");
            egress.poll_neighbors(at(second));
        }
        assert_eq!(egress.take_lost(), [IpAddr::from([10, 0, 0, 9])]);
        assert_eq!(egress.drops().get(DropCause::Unreachable), 1);
        assert_eq!(egress.nic().pool_available(), egress.nic().pool_capacity());
    }
}
