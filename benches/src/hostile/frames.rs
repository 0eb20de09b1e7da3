//! Ethernet frames of the attacks.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
    UdpPacket, UdpRepr,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// Ethernet addresses of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Source.
    pub from: EthernetAddress,
    /// Destination.
    pub to: EthernetAddress,
}

/// TCP segment.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Source.
    pub from: SocketAddrV4,
    /// Destination.
    pub to: SocketAddrV4,
    /// SYN, RST, or neither.
    pub control: TcpControl,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number; `None` clears the ACK flag.
    pub acknowledgement: Option<u32>,
    /// Window.
    pub window: u16,
    /// Payload.
    pub payload: &'a [u8],
}

impl Link {
    fn frame(self, protocol: EthernetProtocol, len: usize) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + len];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_src_addr(self.from);
        ethernet.set_dst_addr(self.to);
        ethernet.set_ethertype(protocol);
        frame
    }

    fn ipv4(self, from: Ipv4Addr, to: Ipv4Addr, protocol: IpProtocol, len: usize) -> Vec<u8> {
        let mut frame = self.frame(EthernetProtocol::Ipv4, IPV4 + len);
        let ip = Ipv4Repr { src_addr: from, dst_addr: to, next_header: protocol, payload_len: len, hop_limit: 64 };
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut frame[ETHERNET..]), &ChecksumCapabilities::default());
        frame
    }

    /// Returns the frame of a segment. A SYN has an MSS option of 1460 bytes.
    pub fn segment(self, segment: &Segment<'_>) -> Vec<u8> {
        let Segment { from, to, control, sequence, acknowledgement, window, payload } = *segment;
        let tcp = TcpRepr {
            src_port: from.port(),
            dst_port: to.port(),
            control,
            seq_number: TcpSeqNumber(sequence as i32),
            ack_number: acknowledgement.map(|number| TcpSeqNumber(number as i32)),
            window_len: window,
            window_scale: None,
            max_seg_size: (control == TcpControl::Syn).then_some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let mut frame = self.ipv4(*from.ip(), *to.ip(), IpProtocol::Tcp, tcp.buffer_len());
        let mut packet = TcpPacket::new_unchecked(&mut frame[ETHERNET + IPV4..]);
        tcp.emit(&mut packet, &(*from.ip()).into(), &(*to.ip()).into(), &ChecksumCapabilities::default());
        frame
    }

    /// Returns the frame of a UDP datagram.
    pub fn datagram(self, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
        let udp = UdpRepr { src_port: from.port(), dst_port: to.port() };
        let mut frame = self.ipv4(*from.ip(), *to.ip(), IpProtocol::Udp, udp.header_len() + payload.len());
        let mut packet = UdpPacket::new_unchecked(&mut frame[ETHERNET + IPV4..]);
        let fill = |room: &mut [u8]| room.copy_from_slice(payload);
        let [source, destination] = [*from.ip(), *to.ip()].map(Into::into);
        udp.emit(&mut packet, &source, &destination, payload.len(), fill, &ChecksumCapabilities::default());
        frame
    }

    /// Returns an ARP request of `from` for `target`.
    pub fn arp_request(self, from: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let arp = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: self.from,
            source_protocol_addr: from,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: target,
        };
        let mut frame = self.frame(EthernetProtocol::Arp, arp.buffer_len());
        arp.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET..]));
        frame
    }

    /// Returns a neighbour solicitation of `from` for `target`, sent to the target itself (RFC 4861 §4.3).
    pub fn neighbor_solicitation(self, from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
        let message =
            Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(self.from.into()) });
        let len = message.buffer_len();
        let mut frame = self.frame(EthernetProtocol::Ipv6, IPV6 + len);
        let ip = Ipv6Repr {
            src_addr: from,
            dst_addr: target,
            next_header: IpProtocol::Icmpv6,
            payload_len: len,
            hop_limit: 255,
        };
        ip.emit(&mut Ipv6Packet::new_unchecked(&mut frame[ETHERNET..]));
        let mut packet = Icmpv6Packet::new_unchecked(&mut frame[ETHERNET + IPV6..]);
        message.emit(&from, &target, &mut packet, &ChecksumCapabilities::default());
        frame
    }
}

/// Returns the TCP segment in an Ethernet frame: source, destination, and the segment.
pub fn parse(frame: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, TcpPacket<&[u8]>)> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    if ethernet.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
    if ip.next_header() != IpProtocol::Tcp {
        return None;
    }
    let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
    let from = SocketAddrV4::new(ip.src_addr(), tcp.src_port());
    let to = SocketAddrV4::new(ip.dst_addr(), tcp.dst_port());
    Some((from, to, tcp))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { from: EthernetAddress([2, 0, 0, 0, 0, 1]), to: EthernetAddress([2, 0, 0, 0, 0, 2]) };

    #[test]
    fn segment_is_parsed_as_it_was_built() {
        let from: SocketAddrV4 = "198.18.0.1:1025".parse().unwrap();
        let to: SocketAddrV4 = "10.99.0.2:7".parse().unwrap();
        let segment = Segment {
            from,
            to,
            control: TcpControl::None,
            sequence: 0xffff_fff0,
            acknowledgement: Some(7),
            window: 0,
            payload: b"one",
        };
        let frame = LINK.segment(&segment);
        let (source, destination, tcp) = parse(&frame).unwrap();
        assert_eq!((source, destination), (from, to));
        assert_eq!((tcp.seq_number().0 as u32, tcp.ack_number().0, tcp.window_len()), (0xffff_fff0, 7, 0));
        assert_eq!(tcp.payload(), b"one");
        assert!(tcp.verify_checksum(&(*from.ip()).into(), &(*to.ip()).into()));
    }

    #[test]
    fn neighbor_solicitation_has_a_valid_checksum() {
        let [from, to]: [Ipv6Addr; 2] = ["fd99::abcd", "fd99::2"].map(|address| address.parse().unwrap());
        let frame = LINK.neighbor_solicitation(from, to);
        let packet = Icmpv6Packet::new_checked(&frame[ETHERNET + IPV6..]).unwrap();
        assert!(packet.verify_checksum(&from, &to));
    }
}
