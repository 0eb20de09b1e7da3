//! Messages of ARP (RFC 826, RFC 5227) and NDP (RFC 4861) that are sent.

use linerate_bypass::{MacAddr, Packet};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol, HardwareAddress, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All-nodes and all-routers multicast addresses (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// ARP or NDP message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// ARP request or neighbour solicitation for `target`, from a local address of its family.
    Solicit { source: IpAddr, target: IpAddr, to: Option<MacAddr> },
    /// ARP announcement (RFC 5227 §2.3) or unsolicited neighbour advertisement (RFC 4861 §7.2.6) of a local address.
    Announce(IpAddr),
    /// DAD probe for a tentative address (RFC 4862 §5.4.2).
    Probe(Ipv6Addr),
    /// Router solicitation (RFC 4861 §4.1), from the link-local address if there is one.
    SolicitRouters { source: Option<Ipv6Addr> },
    /// ARP reply to `to`, which probes for the local address `own` (RFC 5227 §2.1.1).
    ProbeReply { own: Ipv4Addr, to: MacAddr },
}

impl Message {
    /// Writes the message into the empty `packet`, without the Ethernet header. Returns the destination and the
    /// EtherType, or `None` if `packet` is too small or the address families differ.
    pub fn write(self, packet: &mut impl Packet, mac: MacAddr) -> Option<(MacAddr, EthernetProtocol)> {
        let unspecified = Ipv4Addr::UNSPECIFIED;
        match self {
            Message::Solicit { source: IpAddr::V4(source), target: IpAddr::V4(target), to } => {
                arp(packet, ArpOperation::Request, (mac, source), (MacAddr([0; 6]), target))?;
                Some((to.unwrap_or(MacAddr::BROADCAST), EthernetProtocol::Arp))
            }
            Message::Solicit { source: IpAddr::V6(source), target: IpAddr::V6(target), to } => {
                let solicitation = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(link_layer(mac)) };
                let group = solicited_node(target);
                ndisc(packet, source, group, solicitation)?;
                Some((to.unwrap_or_else(|| group_address(group.into())), EthernetProtocol::Ipv6))
            }
            Message::Solicit { .. } => None,
            Message::Announce(IpAddr::V4(own)) => {
                arp(packet, ArpOperation::Request, (mac, own), (MacAddr([0; 6]), own))?;
                Some((MacAddr::BROADCAST, EthernetProtocol::Arp))
            }
            Message::Announce(IpAddr::V6(own)) => {
                let flags = NdiscNeighborFlags::OVERRIDE;
                let lladdr = Some(link_layer(mac));
                ndisc(packet, own, ALL_NODES, NdiscRepr::NeighborAdvert { flags, target_addr: own, lladdr })?;
                Some((group_address(ALL_NODES.into()), EthernetProtocol::Ipv6))
            }
            Message::Probe(target) => {
                // RFC 4861 §4.3: no link-layer address option with an unspecified source.
                let solicitation = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None };
                let group = solicited_node(target);
                ndisc(packet, Ipv6Addr::UNSPECIFIED, group, solicitation)?;
                Some((group_address(group.into()), EthernetProtocol::Ipv6))
            }
            Message::SolicitRouters { source } => {
                let lladdr = source.map(|_| link_layer(mac));
                ndisc(
                    packet,
                    source.unwrap_or(Ipv6Addr::UNSPECIFIED),
                    ALL_ROUTERS,
                    NdiscRepr::RouterSolicit { lladdr },
                )?;
                Some((group_address(ALL_ROUTERS.into()), EthernetProtocol::Ipv6))
            }
            Message::ProbeReply { own, to } => {
                arp(packet, ArpOperation::Reply, (mac, own), (to, unspecified))?;
                Some((to, EthernetProtocol::Arp))
            }
        }
    }
}

/// Returns the Ethernet group address of a multicast (RFC 1112 §6.4, RFC 2464 §7) or broadcast address.
pub(crate) fn group_address(ip: IpAddr) -> MacAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(_) => MacAddr::BROADCAST,
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            MacAddr([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
        }
    }
}

/// Returns the solicited-node multicast address of `ip` (RFC 4291 §2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | ip.to_bits() & 0xff_ffff)
}

fn link_layer(mac: MacAddr) -> smoltcp::wire::RawHardwareAddress {
    HardwareAddress::Ethernet(EthernetAddress(mac.0)).into()
}

fn arp(
    packet: &mut impl Packet,
    operation: ArpOperation,
    source: (MacAddr, Ipv4Addr),
    target: (MacAddr, Ipv4Addr),
) -> Option<()> {
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(source.0.0),
        source_protocol_addr: source.1,
        target_hardware_addr: EthernetAddress(target.0.0),
        target_protocol_addr: target.1,
    };
    arp.emit(&mut ArpPacket::new_unchecked(packet.append(arp.buffer_len())?));
    Some(())
}

/// Writes an NDP message (RFC 4861 §4).
fn ndisc(packet: &mut impl Packet, source: Ipv6Addr, destination: Ipv6Addr, message: NdiscRepr) -> Option<()> {
    let message = Icmpv6Repr::Ndisc(message);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: 255,
    };
    let (header, body) = packet.append(ip.buffer_len() + ip.payload_len)?.split_at_mut(ip.buffer_len());
    ip.emit(&mut Ipv6Packet::new_unchecked(header));
    let sums = smoltcp::phy::ChecksumCapabilities::default();
    message.emit(&ip.src_addr, &ip.dst_addr, &mut Icmpv6Packet::new_unchecked(body), &sums);
    Some(())
}
