//! Addresses, routes and neighbours in netlink messages.

use super::message::{Message, attributes, half, word};
use crate::MacAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;

/// Address families.
pub(super) const IPV4: u8 = 2;
pub(super) const IPV6: u8 = 10;

/// Attribute of a neighbour with its IP address.
pub(super) const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFLA_ADDRESS: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;

/// Flags of addresses (`IFA_F_*`).
const TEMPORARY: u32 = 0x01;
const OPTIMISTIC: u32 = 0x04;
const DAD_FAILED: u32 = 0x08;
const DEPRECATED: u32 = 0x20;
const TENTATIVE: u32 = 0x40;

/// Main routing table, type of ordinary routes, and flags of unusable ones (`RTNH_F_DEAD`, `RTNH_F_LINKDOWN`,
/// `RTM_F_CLONED`).
const MAIN_TABLE: u32 = 254;
const UNICAST: u8 = 1;
const UNUSABLE: u32 = 0x1 | 0x10 | 0x200;
/// Lengths of headers.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
const NEIGHBOR_HEADER: usize = 12;
const NEXT_HOP_HEADER: usize = 8;

/// States of neighbours (`NUD_*`).
const REACHABLE: u16 = 0x02;
const STALE: u16 = 0x04;
const DELAY: u16 = 0x08;
const PROBE: u16 = 0x10;
const FAILED: u16 = 0x20;
const NO_ARP: u16 = 0x40;
const PERMANENT: u16 = 0x80;
const INCOMPLETE: u16 = 0x01;

/// Ethernet address, IP addresses and routes of an interface.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct InterfaceNetwork {
    /// Ethernet address.
    pub mac: Option<MacAddr>,
    /// Usable addresses, in the order of the kernel.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes of the main table, by descending prefix length, then by ascending metric.
    pub routes: Vec<InterfaceRoute>,
}

/// Address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Length of its prefix in bits.
    pub prefix_len: u8,
    /// True for an address that new connections should not use (RFC 4862 §5.5.4).
    pub is_deprecated: bool,
    /// True for a temporary IPv6 address (RFC 8981).
    pub is_temporary: bool,
}

/// Route through an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceRoute {
    /// Destination prefix.
    pub destination: IpAddr,
    /// Length of the prefix in bits.
    pub prefix_len: u8,
    /// Next hop; `None` for destinations on the link.
    pub gateway: Option<IpAddr>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Metric.
    pub metric: u32,
}

/// Address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbor {
    /// The address.
    pub ip: IpAddr,
    /// Ethernet address; `None` if the neighbour does not answer.
    pub mac: Option<MacAddr>,
}

/// Verification of a neighbour entry by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reachability {
    /// Verified, being verified, or permanent.
    Current,
    /// Not verified recently.
    Unverified,
}

/// Entry of the kernel's neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NeighborEntry {
    pub ip: IpAddr,
    pub mac: Option<MacAddr>,
    pub reachability: Reachability,
    has_failed: bool,
}

impl NeighborEntry {
    /// Returns the neighbour, unless its resolution has no result yet.
    pub fn report(&self) -> Option<Neighbor> {
        (self.mac.is_some() || self.has_failed).then_some(Neighbor { ip: self.ip, mac: self.mac })
    }
}

/// Returns whether a message reports a change of the interface `index`, of its addresses, or of any route of the main
/// table.
pub(super) fn concerns_network(message: &Message, index: u32) -> bool {
    match message.kind {
        RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR => word(message.body, 4) == Some(index),
        // A route can have several next hops, and lose one of them.
        RTM_NEWROUTE | RTM_DELROUTE => table_of(message.body) == Some(MAIN_TABLE),
        _ => false,
    }
}

/// Returns the header of a message about an interface.
pub(super) fn link_header(index: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

/// Returns the Ethernet address of the interface `index` in a message.
pub(super) fn link(message: &Message, index: u32) -> Option<MacAddr> {
    if message.kind != RTM_NEWLINK || word(message.body, 4)? != index {
        return None;
    }
    let (_, value) = attributes(message.body.get(LINK_HEADER..)?).find(|(kind, _)| *kind == IFLA_ADDRESS)?;
    value.try_into().ok().map(MacAddr)
}

/// Returns the address of the interface `index` in a message, if it is usable.
pub(super) fn address(message: &Message, index: u32) -> Option<InterfaceAddress> {
    let body = message.body;
    if message.kind != RTM_NEWADDR || word(body, 4)? != index {
        return None;
    }
    let (family, prefix_len, mut flags) = (*body.first()?, *body.get(1)?, u32::from(*body.get(2)?));
    let (mut local, mut peer) = (None, None);
    for (kind, value) in attributes(body.get(ADDRESS_HEADER..)?) {
        match kind {
            IFA_ADDRESS => peer = ip(family, value),
            IFA_LOCAL => local = ip(family, value),
            IFA_FLAGS => flags = word(value, 0)?,
            _ => {}
        }
    }
    let is_tentative = flags & TENTATIVE != 0 && flags & OPTIMISTIC == 0;
    if is_tentative || flags & DAD_FAILED != 0 {
        return None;
    }
    Some(InterfaceAddress {
        ip: local.or(peer)?,
        prefix_len,
        is_deprecated: flags & DEPRECATED != 0,
        is_temporary: family == IPV6 && flags & TEMPORARY != 0,
    })
}

/// Returns the routing table of a route.
fn table_of(body: &[u8]) -> Option<u32> {
    let table = attributes(body.get(ROUTE_HEADER..)?).find(|(kind, _)| *kind == RTA_TABLE);
    table.and_then(|(_, value)| word(value, 0)).or(body.get(4).map(|table| u32::from(*table)))
}

/// Returns the route of the main table through the interface `index` in a message.
pub(super) fn route(message: &Message, index: u32) -> Option<InterfaceRoute> {
    let body = message.body;
    let is_usable = *body.get(7)? == UNICAST && word(body, 8)? & UNUSABLE == 0;
    if message.kind != RTM_NEWROUTE || !is_usable || table_of(body)? != MAIN_TABLE {
        return None;
    }
    let (family, prefix_len) = (*body.first()?, *body.get(1)?);
    let mut route =
        InterfaceRoute { destination: unspecified(family)?, prefix_len, gateway: None, source: None, metric: 0 };
    let mut interface = None;
    for (kind, value) in attributes(body.get(ROUTE_HEADER..)?) {
        match kind {
            RTA_DST => route.destination = ip(family, value)?,
            RTA_OIF => interface = word(value, 0),
            RTA_GATEWAY | RTA_VIA => route.gateway = gateway(family, kind, value),
            RTA_PRIORITY => route.metric = word(value, 0)?,
            RTA_PREFSRC => route.source = ip(family, value),
            RTA_MULTIPATH => {
                route.gateway = next_hop(family, value, index)?;
                interface = Some(index);
            }
            _ => {}
        }
    }
    (interface? == index).then_some(route)
}

/// Returns the gateway of the first usable next hop through the interface `index`, or `Some(None)` if the destination
/// is on the link. Returns `None` without such a next hop.
fn next_hop(family: u8, mut hops: &[u8], index: u32) -> Option<Option<IpAddr>> {
    loop {
        let length = usize::from(half(hops, 0)?);
        let hop = hops.get(..length).filter(|hop| hop.len() >= NEXT_HOP_HEADER)?;
        if word(hop, 4)? == index && u32::from(hop[2]) & UNUSABLE == 0 {
            let found = attributes(&hop[NEXT_HOP_HEADER..]).find(|(kind, _)| matches!(*kind, RTA_GATEWAY | RTA_VIA));
            return Some(found.and_then(|(kind, value)| gateway(family, kind, value)));
        }
        hops = hops.get(length.next_multiple_of(4)..)?;
    }
}

/// Returns the gateway in an attribute. `RTA_VIA` contains an address family, which may differ from `family`, the
/// family of the route.
fn gateway(family: u8, kind: u16, value: &[u8]) -> Option<IpAddr> {
    match kind {
        RTA_VIA => ip(u8::try_from(half(value, 0)?).ok()?, value.get(2..)?),
        _ => ip(family, value),
    }
}

pub(super) fn neighbor_header(family: u8, index: u32, flags: u8) -> [u8; NEIGHBOR_HEADER] {
    let mut header = [0; NEIGHBOR_HEADER];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[10] = flags;
    header
}

/// Returns the entry of a neighbour on the interface `index` in a message. A removal is ignored: the last known address
/// of the neighbour stays valid until the kernel reports another.
pub(super) fn neighbor(message: &Message, index: u32) -> Option<NeighborEntry> {
    let body = message.body;
    if message.kind != RTM_NEWNEIGH || word(body, 4)? != index {
        return None;
    }
    let (family, state) = (*body.first()?, half(body, 8)?);
    let (mut address, mut station) = (None, None);
    for (kind, value) in attributes(body.get(NEIGHBOR_HEADER..)?) {
        match kind {
            NDA_DST => address = ip(family, value),
            NDA_LLADDR => station = value.try_into().ok().map(MacAddr),
            _ => {}
        }
    }
    let is_valid = state & (REACHABLE | STALE | DELAY | PROBE | NO_ARP | PERMANENT) != 0;
    let is_current = state & (REACHABLE | DELAY | PROBE | NO_ARP | PERMANENT | INCOMPLETE) != 0;
    Some(NeighborEntry {
        ip: address?,
        mac: station.filter(|_| is_valid),
        reachability: if is_current { Reachability::Current } else { Reachability::Unverified },
        has_failed: state & FAILED != 0,
    })
}

fn unspecified(family: u8) -> Option<IpAddr> {
    match family {
        IPV4 => Some(Ipv4Addr::UNSPECIFIED.into()),
        IPV6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        IPV4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        IPV6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}
