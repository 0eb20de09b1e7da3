//! Received ARP and NDP messages.

use crate::ip::addresses::Addresses;
use crate::wire::drop_stats::DropCause;
use crate::wire::ethernet::ETHERNET_HEADER;
use linerate_bypass::MacAddr;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv6Packet, Icmpv6Repr, Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
    RawHardwareAddress,
};
use std::net::IpAddr;

/// Neighbour address learnt from a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighborInfo {
    /// IP address of the neighbour.
    pub ip: IpAddr,
    /// Ethernet address of the neighbour.
    pub mac: MacAddr,
    /// True if the message solicits a local address, and so may create an entry although no packet waits for it.
    pub may_create: bool,
}

/// Meaning of a received ARP or NDP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArpNdpEvent {
    /// Copy of a message that this host sent. No reply.
    OwnMessage,
    /// A message without information for the neighbour table.
    Nothing,
    /// Invalid message, dropped and counted. No reply.
    Dropped,
    Neighbor(NeighborInfo),
    /// Claim of a local address by another station.
    Claim(IpAddr, MacAddr),
    /// Probe of another station for a local address.
    Probe(IpAddr, MacAddr),
}

/// Parses an ARP packet (RFC 826, RFC 5227) received by the station `mac`.
pub(crate) fn parse_arp(frame: &[u8], addresses: &Addresses, mac: MacAddr) -> Result<ArpNdpEvent, DropCause> {
    let packet = ArpPacket::new_checked(&frame[ETHERNET_HEADER..]).map_err(|_| DropCause::Truncated)?;
    let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, target_protocol_addr, .. } =
        ArpRepr::parse(&packet).map_err(|_| DropCause::EtherType)?
    else {
        return Err(DropCause::EtherType);
    };
    let sender = MacAddr(source_hardware_addr.0);
    let solicits_local = operation == ArpOperation::Request && addresses.is_local(target_protocol_addr.into());
    if sender == mac {
        return Ok(ArpNdpEvent::OwnMessage);
    }
    let (source, is_local) = (source_protocol_addr.to_bits(), addresses.is_local(source_protocol_addr.into()));
    if !sender.is_unicast() || source != 0 && !is_local && addresses.is_martian_v4(source) {
        return Err(DropCause::BadSource);
    }
    Ok(if source_protocol_addr.is_unspecified() {
        if solicits_local { ArpNdpEvent::Probe(target_protocol_addr.into(), sender) } else { ArpNdpEvent::Nothing }
    } else if is_local {
        ArpNdpEvent::Claim(source_protocol_addr.into(), sender)
    } else {
        ArpNdpEvent::Neighbor(NeighborInfo { ip: source_protocol_addr.into(), mac: sender, may_create: solicits_local })
    })
}

/// Parses a neighbour solicitation or advertisement (RFC 4861 §7.2.3, §7.2.5) received by the station `mac`. `is_local`
/// returns whether an address is local.
pub(crate) fn parse_ndp(frame: &[u8], is_local: impl Fn(IpAddr) -> bool, mac: MacAddr) -> ArpNdpEvent {
    try_parse_ndp(frame, is_local, mac).unwrap_or(ArpNdpEvent::Nothing)
}

fn try_parse_ndp(frame: &[u8], is_local: impl Fn(IpAddr) -> bool, mac: MacAddr) -> Option<ArpNdpEvent> {
    let ip = Ipv6Packet::new_checked(&frame[ETHERNET_HEADER..]).ok()?;
    // RFC 4861 §7.1: a lower hop limit shows a sender beyond the link.
    if ip.hop_limit() != 255 {
        return None;
    }
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let Icmpv6Repr::Ndisc(ndisc) = Icmpv6Repr::parse(&source, &destination, &icmp, &Default::default()).ok()? else {
        return None;
    };
    let station = |address: RawHardwareAddress| address.as_bytes().try_into().ok().map(MacAddr);
    match ndisc {
        NdiscRepr::NeighborSolicit { target_addr, lladdr } if source.is_unspecified() => {
            // RFC 4862 §5.4.3: a probe identifies its sender by the frame's source only.
            let sender = MacAddr(*frame[6..].first_chunk()?);
            let is_probe = lladdr.is_none() && sender != mac && is_local(target_addr.into());
            is_probe.then_some(ArpNdpEvent::Probe(target_addr.into(), sender))
        }
        NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
            let (mac, new) = (station(lladdr?)?, is_local(target_addr.into()));
            Some(ArpNdpEvent::Neighbor(NeighborInfo { ip: source.into(), mac, may_create: new }))
        }
        NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } if is_local(target_addr.into()) => {
            let sender = lladdr.and_then(station).unwrap_or(MacAddr(*frame[6..].first_chunk()?));
            (sender != mac).then_some(ArpNdpEvent::Claim(target_addr.into(), sender))
        }
        NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }
            if flags.intersects(NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE) =>
        {
            Some(ArpNdpEvent::Neighbor(NeighborInfo {
                ip: target_addr.into(),
                mac: station(lladdr?)?,
                may_create: false,
            }))
        }
        _ => None,
    }
}
