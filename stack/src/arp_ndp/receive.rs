//! Received ARP and NDP messages, as their receiver understands them.

use crate::addresses::Addresses;
use crate::drop_stats::DropCause;
use crate::egress::ETHERNET;
use linerate_bypass::MacAddr;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv6Packet, Icmpv6Repr, Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
    RawHardwareAddress,
};
use std::net::IpAddr;

/// What a frame taught about a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighborInfo {
    /// The neighbour.
    pub ip: IpAddr,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// It asked for us: worth noting even if nobody here asked for it.
    pub new: bool,
}

/// What a message of ARP or neighbour discovery says about its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A word of our own that came back: it is nobody's question.
    Ourselves,
    /// Nothing.
    Nothing,
    /// The message was dropped, and counted: nobody answers it.
    Dropped,
    /// Where a neighbour is.
    Neighbor(NeighborInfo),
    /// It says that it has this address of ours.
    Claim(IpAddr, MacAddr),
    /// It wants this address of ours for itself, unless somebody has it.
    Probe(IpAddr, MacAddr),
}

/// What an ARP packet (RFC 826, RFC 5227) says to the station `mac`.
pub(crate) fn hear_arp(frame: &[u8], addresses: &Addresses, mac: MacAddr) -> Result<Heard, DropCause> {
    let packet = ArpPacket::new_checked(&frame[ETHERNET..]).map_err(|_| DropCause::Truncated)?;
    let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, target_protocol_addr, .. } =
        ArpRepr::parse(&packet).map_err(|_| DropCause::EtherType)?
    else {
        return Err(DropCause::EtherType);
    };
    let sender = MacAddr(source_hardware_addr.0);
    let asks_for_us = operation == ArpOperation::Request && addresses.is_ours(target_protocol_addr.into());
    if sender == mac {
        return Ok(Heard::Ourselves);
    }
    let (source, is_ours) = (source_protocol_addr.to_bits(), addresses.is_ours(source_protocol_addr.into()));
    if !sender.is_unicast() || source != 0 && !is_ours && addresses.is_martian_v4(source) {
        return Err(DropCause::BadSource);
    }
    Ok(if source_protocol_addr.is_unspecified() {
        if asks_for_us { Heard::Probe(target_protocol_addr.into(), sender) } else { Heard::Nothing }
    } else if is_ours {
        Heard::Claim(source_protocol_addr.into(), sender)
    } else {
        Heard::Neighbor(NeighborInfo { ip: source_protocol_addr.into(), mac: sender, new: asks_for_us })
    })
}

/// What a neighbour solicitation or advertisement (RFC 4861 §7.2.3, §7.2.5) says to the station `mac`, which has the addresses that
/// `is_ours` tells.
pub(crate) fn hear_ndp(frame: &[u8], is_ours: impl Fn(IpAddr) -> bool, mac: MacAddr) -> Heard {
    heard_ndp(frame, is_ours, mac).unwrap_or(Heard::Nothing)
}

fn heard_ndp(frame: &[u8], is_ours: impl Fn(IpAddr) -> bool, mac: MacAddr) -> Option<Heard> {
    let ip = Ipv6Packet::new_checked(&frame[ETHERNET..]).ok()?;
    // §7.1: a lower hop limit means that it came from off the link.
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
            // RFC 4862 §5.4.3: it says nothing else of its sender than what the frame does.
            let sender = MacAddr(*frame[6..].first_chunk()?);
            let wants_ours = lladdr.is_none() && sender != mac && is_ours(target_addr.into());
            wants_ours.then_some(Heard::Probe(target_addr.into(), sender))
        }
        NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
            let (mac, new) = (station(lladdr?)?, is_ours(target_addr.into()));
            Some(Heard::Neighbor(NeighborInfo { ip: source.into(), mac, new }))
        }
        NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } if is_ours(target_addr.into()) => {
            let sender = lladdr.and_then(station).unwrap_or(MacAddr(*frame[6..].first_chunk()?));
            (sender != mac).then_some(Heard::Claim(target_addr.into(), sender))
        }
        NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }
            if flags.intersects(NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE) =>
        {
            Some(Heard::Neighbor(NeighborInfo { ip: target_addr.into(), mac: station(lladdr?)?, new: false }))
        }
        _ => None,
    }
}
