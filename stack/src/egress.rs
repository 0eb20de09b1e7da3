//! The way out of a worker: IP packets in, Ethernet frames on the port's transmit queue.

use crate::addresses::Addresses;
use crate::arp_ndp::neighbors::{Lookup, Neighbors, Question, Update};
use crate::arp_ndp::{Message, group_address};
use crate::demux::vlan::VlanId;
use crate::drop_stats::{DropCause, DropStats};
use crate::ipv6::Network;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{BURST, Bytes, Capabilities, MacAddr, Nic, Packet};
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};
use std::net::{IpAddr, Ipv6Addr};

/// Frames that wait for the port at most. Beyond, nothing more is produced: connections hold back, replies are
/// dropped and counted.
const QUEUE: usize = 512;
/// An Ethernet header in bytes.
pub(crate) const ETHERNET: usize = 14;

/// Packets set aside for what is not payload: acknowledgements let go of packets at both ends, so there must be one for
/// them when payload has taken all others. Of small pools, an eighth.
const SET_ASIDE: usize = 32;

/// Destinations whose Ethernet headers are kept ready, a power of two.
const READY_HEADERS: usize = 256;
/// How long one is used before the neighbour table is asked again, which lets it confirm the neighbour in time.
const READY_FOR: Duration = Duration::from_secs(1);

/// The Ethernet header for a destination, while it is known to be right.
#[derive(Clone, Copy)]
struct Ready {
    destination: u128,
    until: Instant,
    header: [u8; ETHERNET],
}

const NOT_READY: Ready = Ready { destination: 0, until: Instant::ZERO, header: [0; ETHERNET] };

/// A port's queue pair with what it takes to address frames on it. Everything that a worker sends passes through
/// here.
pub struct Egress<N: Nic> {
    nic: N,
    queue: Vec<N::Packet>,
    set_aside: Vec<N::Packet>,
    neighbors: Neighbors<N::Packet>,
    /// Neighbours being asked for, until other workers have been told.
    resolving: Vec<IpAddr>,
    /// There are other workers.
    tells_resolving: bool,
    ready: Box<[Ready; READY_HEADERS]>,
    link_epoch: u32,
    addresses: Addresses,
    mac: MacAddr,
    mtu: usize,
    mtu_v6: usize,
    drops: DropStats,
    /// Neighbours that did not answer, until the engine has been told.
    lost: Vec<IpAddr>,
    copied_bytes: u64,
    /// The VLAN that we are in, and how many of the first frames of the queue have its tag.
    vlan: Option<VlanId>,
    tagged: usize,
    /// The port has taken frames since [`is_stuck`](Self::is_stuck) was asked.
    took_some: bool,
}

impl<N: Nic> Egress<N> {
    pub(crate) fn new(nic: N, addresses: Addresses, mac: MacAddr, mtu: usize, seed: u64) -> Self {
        let mut neighbors = Neighbors::new(seed);
        neighbors.set_gateways(addresses.gateways());
        Egress {
            nic,
            queue: Vec::with_capacity(QUEUE),
            set_aside: Vec::with_capacity(SET_ASIDE),
            neighbors,
            resolving: Vec::new(),
            tells_resolving: false,
            ready: Box::new([NOT_READY; READY_HEADERS]),
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
        }
    }

    /// Puts the tag of `vlan` into all frames from now on.
    pub(crate) fn set_vlan(&mut self, vlan: Option<VlanId>) {
        self.vlan = vlan;
    }

    /// The VLAN that we are in.
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

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(crate) fn set_addresses(&mut self, addresses: Addresses) {
        self.neighbors.set_gateways(addresses.gateways());
        self.addresses = addresses;
        self.renew_links();
    }

    pub(crate) fn drops(&mut self) -> &mut DropStats {
        &mut self.drops
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// What the port can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.nic.capabilities()
    }

    /// The largest IP packet in bytes to be sent or received.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// The largest IPv6 packet in bytes to be sent: that of the link, by what routers say, if it is less.
    pub fn mtu_v6(&self) -> usize {
        self.mtu_v6
    }

    /// Goes by what routers say of the link.
    pub(crate) fn set_link(&mut self, network: &Network) {
        self.mtu_v6 = network.mtu.map_or(self.mtu, |mtu| self.mtu.min(mtu.into()));
        self.neighbors.set_times(network.reachable, network.retransmit);
    }

    /// Counts one drop.
    pub fn count_drop(&mut self, cause: DropCause) {
        self.drops.count(cause);
    }

    /// Counts payload bytes that were copied on their way.
    pub fn count_copied(&mut self, bytes: usize) {
        self.copied_bytes += bytes as u64;
    }

    /// An empty packet with room for headers in front; `None` while the transmit queue is full or the pool empty.
    pub fn allocate(&mut self) -> Option<N::Packet> {
        if self.room() == 0 {
            return None;
        }
        self.nic.allocate().or_else(|| self.set_aside.pop())
    }

    /// Gives the packets set aside back.
    pub(crate) fn set_nothing_aside(&mut self) {
        self.set_aside.clear();
    }

    /// An empty packet for payload, with room for headers in front; `None` when no more than those set aside are left.
    pub(crate) fn allocate_for_payload(&mut self) -> Option<N::Packet> {
        let aside = SET_ASIDE.min(self.nic.capabilities().pool / 8);
        while self.set_aside.len() < aside {
            self.set_aside.push(self.nic.allocate()?);
        }
        self.nic.allocate()
    }

    /// Frames that can be queued before the transmit queue is full.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        QUEUE.saturating_sub(self.queue.len())
    }

    /// Frames that wait for the port.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// A packet whose data are `bytes`; see [`Nic::attach`].
    pub(crate) fn attach(&mut self, bytes: Bytes) -> Result<N::Packet, Bytes> {
        self.nic.attach(bytes)
    }

    /// Which headers that [`link_header`](Self::link_header) has returned can still be used: those of the same epoch.
    #[inline(always)]
    pub(crate) fn link_epoch(&self) -> u32 {
        self.link_epoch
    }

    /// Begins another epoch. To be called now and then, so that neighbours of those that keep their headers are confirmed in
    /// time.
    pub(crate) fn next_link_epoch(&mut self) {
        self.link_epoch = self.link_epoch.wrapping_add(1).max(1);
    }

    /// Forgets the headers that were ready: each is to be made anew.
    fn renew_links(&mut self) {
        self.ready.fill(NOT_READY);
        self.next_link_epoch();
    }

    /// The Ethernet header of what goes to the unicast address `destination` (IPv4 in mapped form), if the next hop's
    /// address is known. Otherwise [`send_ip`](Self::send_ip) asks for it.
    #[inline(always)]
    pub(crate) fn link_header(&mut self, destination: u128, now: Instant) -> Option<&[u8; ETHERNET]> {
        let at = (destination as u32 as usize ^ (destination >> 16) as usize) % READY_HEADERS;
        let ready = &self.ready[at];
        if ready.destination != destination || now >= ready.until {
            self.make_ready(at, destination, now)?;
        }
        Some(&self.ready[at].header)
    }

    #[inline(never)]
    fn make_ready(&mut self, at: usize, destination: u128, now: Instant) -> Option<()> {
        let ip = Ipv6Addr::from_bits(destination);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        let hop = self.addresses.next_hop(ip)?;
        let mac = self.neighbors.known(hop)?;
        if let Lookup::Confirm(_, question) = self.neighbors.look_up(hop, now) {
            self.ask(question);
        }
        let protocol = if ip.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
        let mut header = [0; ETHERNET];
        write_ethernet(&mut header, mac, self.mac, protocol);
        self.ready[at] = Ready { destination, until: now + READY_FOR, header };
        Some(())
    }

    /// Sends an IP packet to `destination`: finds the next hop's address, asking for it if need be, and puts the
    /// Ethernet header in front.
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
                    Lookup::Confirm(mac, question) => {
                        self.ask(question);
                        mac
                    }
                    Lookup::Refused => return self.drops.count(DropCause::NeighborTableFull),
                    lookup => {
                        if self.neighbors.park(hop, packet).is_some() {
                            self.drops.count(DropCause::Unreachable);
                        }
                        if lookup == Lookup::Ask {
                            self.ask(Question { ip: hop, to: None });
                        }
                        return;
                    }
                }
            }
        };
        self.send_to(packet, mac);
    }

    /// Sends a complete Ethernet frame. Those that wait are handed to the port when they are a whole burst, so that the other end may
    /// begin on them while the turn goes on.
    #[inline]
    pub(crate) fn send_frame(&mut self, frame: N::Packet) {
        // Never more than there is memory for, so that none is asked for here.
        if self.queue.len() == self.queue.capacity() {
            return self.refuse(frame);
        }
        self.queue.push(frame);
        // What the port does not take then waits for the end of the turn.
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
        match packet.prepend(ETHERNET) {
            Some(header) => {
                write_ethernet(header, to, self.mac, protocol);
                self.send_frame(packet);
            }
            None => self.drops.count(DropCause::NoPacket),
        }
    }

    /// Hands what is queued to the port. What it does not take stays queued. Returns how many frames it took.
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

    /// Puts the tag of `vlan` into the frames of the queue that have none yet, or has the port do it.
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

    /// Whether the port has taken none of the frames that wait for it since this was asked last.
    pub(crate) fn is_stuck(&mut self) -> bool {
        !std::mem::take(&mut self.took_some) && !self.queue.is_empty()
    }

    /// Notes a neighbour's address and sends what waited for it. `new`: see [`Neighbors::learn`].
    pub(crate) fn learn(&mut self, ip: IpAddr, mac: MacAddr, new: bool, now: Instant) {
        if !self.can_be_neighbor(ip, mac) {
            return;
        }
        match self.neighbors.learn(ip, mac, new, now) {
            Update::Known { parked, changed } => {
                if changed {
                    self.renew_links();
                }
                for packet in parked {
                    self.send_to(packet, mac);
                }
            }
            Update::Limited => self.drops.count(DropCause::UnsolicitedNeighbor),
            Update::Created | Update::Ignored => {}
        }
    }

    /// Returns true if `ip` is an address on the link that is not ours, and `mac` can be that of a station.
    pub(crate) fn can_be_neighbor(&self, ip: IpAddr, mac: MacAddr) -> bool {
        mac.is_unicast() && !self.addresses.is_ours(ip) && self.addresses.next_hop(ip) == Some(ip)
    }

    /// Asks anew for every neighbour that is sent to from now on, while what was known is used.
    pub(crate) fn doubt_neighbors(&mut self) {
        self.neighbors.doubt();
        self.renew_links();
    }

    /// Repeats unanswered questions.
    pub(crate) fn tend(&mut self, now: Instant) {
        let mut questions = Vec::new();
        let lost_before = self.lost.len();
        let (drops, lost) = (&mut self.drops, &mut self.lost);
        self.neighbors.tend(
            now,
            |question| questions.push(question),
            |ip, parked| {
                parked.iter().for_each(|_| drops.count(DropCause::Unreachable));
                lost.push(ip);
            },
        );
        if self.lost.len() > lost_before {
            self.renew_links();
        }
        questions.into_iter().for_each(|question| self.ask(question));
    }

    /// When [`tend`](Self::tend), a scan of the connections or telling other workers is due next.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.neighbors.next_deadline()
    }

    /// Number of connection slots that the running scan for unneeded neighbours has looked at; `None` if none runs.
    pub(crate) fn neighbor_scan(&self) -> Option<usize> {
        self.neighbors.scan()
    }

    /// Notes that a connection to `remote` needs its next hop's entry, for the running scan.
    pub(crate) fn mark_in_use(&mut self, remote: IpAddr) {
        if let Some(hop) = self.addresses.next_hop(remote) {
            self.neighbors.mark_in_use(hop);
        }
    }

    /// See [`Neighbors::scanned`].
    pub(crate) fn scanned(&mut self, slots: usize, all: bool) {
        self.neighbors.scanned(slots, all);
    }

    /// Keeps the neighbours being asked for from now on, for [`take_resolving`](Self::take_resolving).
    pub(crate) fn tell_resolving(&mut self) {
        self.tells_resolving = true;
    }

    /// Takes the neighbours being asked for since the last call.
    pub(crate) fn take_resolving(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.resolving)
    }

    /// Neighbours that did not answer since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.lost)
    }

    /// Puts a question for a neighbour's address on the link.
    fn ask(&mut self, question: Question) {
        let Question { ip: target, to } = question;
        if self.tells_resolving {
            self.resolving.push(target);
            self.neighbors.is_due_by(Instant::ZERO);
        }
        if let Some(source) = self.addresses.source_for(target) {
            self.say(Message::Ask { source, target, to });
        }
    }

    /// Puts a message of ARP or neighbour discovery on the link; without a packet for it, not.
    pub(crate) fn say(&mut self, message: Message) {
        self.put(|packet, mac| message.write(packet, mac));
    }

    /// Puts on the link what `write` writes into an empty packet, without the Ethernet header, for which it returns where that goes and its
    /// EtherType.
    pub(crate) fn put(&mut self, write: impl FnOnce(&mut N::Packet, MacAddr) -> Option<(MacAddr, EthernetProtocol)>) {
        let Some(mut packet) = self.allocate() else { return };
        let written = write(&mut packet, self.mac);
        let (Some((to, protocol)), Some(header)) = (written, packet.prepend(ETHERNET)) else {
            return self.drops.count(DropCause::NoPacket);
        };
        write_ethernet(header, to, self.mac, protocol);
        self.send_frame(packet);
    }
}

fn write_ethernet(header: &mut [u8], to: MacAddr, from: MacAddr, protocol: EthernetProtocol) {
    let mut header = EthernetFrame::new_unchecked(header);
    header.set_dst_addr(EthernetAddress(to.0));
    header.set_src_addr(EthernetAddress(from.0));
    header.set_ethertype(protocol);
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
    fn a_port_that_takes_nothing_is_waited_for_by_a_bounded_number_of_frames() {
        let (mut egress, mut peer) = egress(LinkConfig { ring: 4, pool: 10_000, ..LinkConfig::default() });
        let mut queued = 0;
        while let Some(mut frame) = egress.allocate() {
            frame.append(60).unwrap().fill(0);
            egress.send_frame(frame);
            queued += 1;
            egress.flush();
        }
        assert_eq!(queued, QUEUE + 4);
        // What is sent all the same is dropped and counted.
        let mut frame = egress.nic().allocate().unwrap();
        frame.append(60).unwrap().fill(0);
        egress.send_frame(frame);
        assert_eq!(egress.drops().get(DropCause::NoPacket), 1);
        // And every frame that was queued goes out, in the end.
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
    fn a_whole_burst_does_not_wait_for_the_end_of_the_turn() {
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
    fn packets_for_a_neighbour_that_does_not_answer_are_given_back() {
        let (mut egress, mut peer) = egress(LinkConfig::default());
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut packet = egress.allocate().unwrap();
        packet.append(20).unwrap().fill(0x45);
        egress.send_ip(packet, [10, 0, 0, 9].into(), at(0));
        for second in 1..=3 {
            egress.flush();
            assert_eq!(peer.rx_burst(&mut Vec::with_capacity(32)), 1, "a question a second");
            egress.tend(at(second));
        }
        assert_eq!(egress.take_lost(), [IpAddr::from([10, 0, 0, 9])]);
        assert_eq!(egress.drops().get(DropCause::Unreachable), 1);
        assert_eq!(egress.nic().pool_available(), egress.nic().pool_capacity());
    }
}
