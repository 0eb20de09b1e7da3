//! Frames made by hand.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::net::{IpAddr, SocketAddr};

/// An Ethernet frame that carries a TCP segment.
pub fn tcp(source_mac: [u8; 6], to_mac: [u8; 6], from: SocketAddr, to: SocketAddr, segment: TcpRepr) -> Vec<u8> {
    let segment = TcpRepr { src_port: from.port(), dst_port: to.port(), ..segment };
    ip(source_mac, to_mac, from.ip(), to.ip(), IpProtocol::Tcp, segment.buffer_len(), |bytes, source, destination| {
        segment.emit(&mut TcpPacket::new_unchecked(bytes), &source, &destination, &ChecksumCapabilities::default());
    })
}

/// An Ethernet frame that carries an IP packet whose payload `write` writes.
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

/// A segment with nothing in it, to be completed.
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
