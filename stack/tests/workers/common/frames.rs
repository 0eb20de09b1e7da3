//! Frames built by the tests.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns an Ethernet frame with a TCP segment.
pub fn tcp(source_mac: [u8; 6], to_mac: [u8; 6], from: SocketAddr, to: SocketAddr, segment: TcpRepr) -> Vec<u8> {
    let segment = TcpRepr { src_port: from.port(), dst_port: to.port(), ..segment };
    ip(source_mac, to_mac, from.ip(), to.ip(), IpProtocol::Tcp, segment.buffer_len(), |bytes, source, destination| {
        segment.emit(&mut TcpPacket::new_unchecked(bytes), &source, &destination, &ChecksumCapabilities::default());
    })
}

/// Returns an Ethernet frame with an IP packet whose payload `write` fills.
pub fn ip(
    source_mac: [u8; 6],
    to_mac: [u8; 6],
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    payload: usize,
    write: impl FnOnce(&mut [u8], IpAddress, IpAddress),
) -> Vec<u8> {
    let (source, destination) = (from.into(), to.into());
    let ip = IpRepr::new(source, destination, protocol, payload, 64);
    let mut frame = vec![0; 14 + ip.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
    ethernet.set_src_addr(EthernetAddress(source_mac));
    ethernet.set_dst_addr(EthernetAddress(to_mac));
    ethernet.set_ethertype(if from.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 });
    ip.emit(ethernet.payload_mut(), &ChecksumCapabilities::default());
    write(&mut frame[14 + ip.header_len()..], source, destination);
    frame
}

/// Returns an empty segment, as a base for others.
pub fn segment() -> TcpRepr<'static> {
    TcpRepr {
        src_port: 0,
        dst_port: 0,
        control: TcpControl::None,
        seq_number: TcpSeqNumber(0),
        ack_number: None,
        window_len: 65535,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    }
}

/// Returns an Ethernet frame with an ARP packet. The Ethernet addresses equal those of the packet.
pub fn arp(operation: ArpOperation, (mac, ip): ([u8; 6], Ipv4Addr), (to_mac, target): ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let target_mac = if operation == ArpOperation::Request { [0; 6] } else { to_mac };
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: ip,
        target_hardware_addr: EthernetAddress(target_mac),
        target_protocol_addr: target,
    };
    let mut bytes = vec![0; 14 + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(EthernetAddress(mac));
    frame.set_dst_addr(EthernetAddress(to_mac));
    frame.set_ethertype(EthernetProtocol::Arp);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

/// Returns an Ethernet frame with a neighbour discovery message.
pub fn ndisc(mac: [u8; 6], to_mac: [u8; 6], from: Ipv6Addr, to: Ipv6Addr, message: NdiscRepr) -> Vec<u8> {
    let message = Icmpv6Repr::Ndisc(message);
    let mut bytes = ip(mac, to_mac, from.into(), to.into(), IpProtocol::Icmpv6, message.buffer_len(), |bytes, _, _| {
        message.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(bytes), &ChecksumCapabilities::default());
    });
    // RFC 4861 §7.1: a hop limit of 255 proves that the message is from the link.
    Ipv6Packet::new_unchecked(&mut bytes[14..]).set_hop_limit(255);
    bytes
}

/// Returns the link-layer address option for `mac`.
pub fn link_layer(mac: [u8; 6]) -> RawHardwareAddress {
    HardwareAddress::Ethernet(EthernetAddress(mac)).into()
}
