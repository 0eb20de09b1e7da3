//! Frames of the client.

use super::options::{self, WINDOW_SCALE};
use super::pattern::Pattern;
use super::tuples::{CLIENT_MAC, SERVER, SERVER_MAC, addresses, client_of};
use super::{BenchError, SyntheticClient};
use linerate_bypass::memory_nic::MemoryPacket;
use linerate_bypass::{L4, Nic, Packet, TxOffload};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpProtocol,
    Ipv4Packet, Ipv4Repr, TcpPacket, TcpSeqNumber, checksum,
};
use std::net::Ipv4Addr;

pub(super) const ETHERNET: usize = 14;
pub(super) const IP: usize = 20;
const TCP: usize = 20;

/// Flags of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    Syn,
    /// ACK, with or without data.
    Ack,
    /// FIN and ACK.
    Fin,
}

/// Segment to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing {
    pub flow: usize,
    pub control: Control,
    /// Payload: message, offset and length. More than one segment's worth makes a TSO frame.
    pub payload: Option<(Pattern, usize, usize)>,
}

impl Outgoing {
    /// Returns a segment without payload.
    pub fn control(flow: usize, control: Control) -> Self {
        Outgoing { flow, control, payload: None }
    }

    /// Returns a segment with `len` bytes of the message from `offset`.
    pub fn data(flow: usize, pattern: Pattern, offset: usize, len: usize) -> Self {
        Outgoing { flow, control: Control::Ack, payload: Some((pattern, offset, len)) }
    }
}

impl SyntheticClient {
    /// Announces the Ethernet address of all the client's IP addresses to the server.
    pub fn announce(&mut self) -> Result<(), BenchError> {
        for address in addresses(self.flows.len()) {
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(CLIENT_MAC.0),
                source_protocol_addr: address,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: *SERVER.ip(),
            };
            let mut packet = self.nic.allocate().ok_or(BenchError::Full)?;
            let bytes = packet.append(ETHERNET + request.buffer_len()).ok_or(BenchError::Full)?;
            self.ethernet(bytes, EthernetProtocol::Arp);
            request.emit(&mut ArpPacket::new_unchecked(&mut bytes[ETHERNET..]));
            self.outgoing.push(packet);
        }
        self.flush()
    }

    /// Writes the Ethernet header of a frame to the server.
    fn ethernet(&self, bytes: &mut [u8], protocol: EthernetProtocol) {
        let mut ethernet = EthernetFrame::new_unchecked(bytes);
        ethernet.set_src_addr(EthernetAddress(CLIENT_MAC.0));
        ethernet.set_dst_addr(EthernetAddress(SERVER_MAC.0));
        ethernet.set_ethertype(protocol);
    }

    /// Writes the Ethernet and IPv4 headers of a packet from `source` to the server, with `len` bytes of `protocol`.
    pub(super) fn ip(&self, bytes: &mut [u8], source: Ipv4Addr, protocol: IpProtocol, len: usize) {
        self.ethernet(bytes, EthernetProtocol::Ipv4);
        let ip = Ipv4Repr {
            src_addr: source,
            dst_addr: *SERVER.ip(),
            next_header: protocol,
            payload_len: len,
            hop_limit: 64,
        };
        let checksums = match self.software_checksum {
            true => ChecksumCapabilities::default(),
            false => ChecksumCapabilities::ignored(),
        };
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[ETHERNET..]), &checksums);
    }

    /// Queues a segment at the flow's sequence number, which the caller advances.
    pub(super) fn segment(&mut self, outgoing: Outgoing) -> Result<(), BenchError> {
        let Outgoing { flow, control, payload } = outgoing;
        let syn = control == Control::Syn;
        let timestamps = if syn { self.timestamps } else { self.agreed.is_some_and(|agreed| agreed.timestamps) };
        let stamp = options::stamp(flow, self.now);
        self.flows[flow].stamp = stamp;
        let header = TCP + options::len(syn, timestamps);
        let length = payload.map_or(0, |(_, _, len)| len);
        let state = self.flows[flow];
        let (client, port) = client_of(flow);

        let mut packet = self.nic.allocate().ok_or(BenchError::Full)?;
        // The payload after the first packet is chained, as a port with LRO delivers it.
        let room = self.nic.capabilities().data_room - ETHERNET - IP - header;
        let first = length.min(room);
        let bytes = packet.append(ETHERNET + IP + header + first).ok_or(BenchError::Full)?;
        self.ip(bytes, client, IpProtocol::Tcp, header + length);
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[ETHERNET + IP..]);
        tcp.set_src_port(port);
        tcp.set_dst_port(SERVER.port());
        tcp.set_seq_number(TcpSeqNumber(state.sequence as i32));
        tcp.set_ack_number(TcpSeqNumber(state.expected as i32));
        tcp.clear_flags();
        tcp.set_header_len(header as u8);
        tcp.set_window_len(u16::MAX);
        tcp.set_urgent_at(0);
        tcp.set_syn(syn);
        tcp.set_ack(!syn);
        tcp.set_fin(control == Control::Fin);
        tcp.set_psh(length > 0);
        match (syn, timestamps) {
            (true, _) => options::write_syn(tcp.options_mut(), timestamps.then_some(stamp)),
            (false, true) => options::write_stamps(tcp.options_mut(), stamp, state.peer_stamp),
            (false, false) => {}
        }
        if let Some((pattern, offset, _)) = payload {
            pattern.fill(offset, tcp.payload_mut());
        }
        let cut = length > self.segment_size();
        self.finish(&mut packet, header, length, cut, client.into())?;
        if let Some((pattern, offset, _)) = payload {
            self.chain_rest(&mut packet, pattern, offset + first, length - first)?;
        }
        self.outgoing.push(packet);
        Ok(())
    }

    /// Computes the TCP checksum or requests offload, with TSO if the payload exceeds one segment.
    fn finish(
        &self,
        packet: &mut MemoryPacket,
        header: usize,
        length: usize,
        cut: bool,
        source: IpAddress,
    ) -> Result<(), BenchError> {
        let destination = (*SERVER.ip()).into();
        let bytes = packet.data_mut().ok_or(BenchError::Full)?;
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[ETHERNET + IP..]);
        if self.software_checksum {
            tcp.fill_checksum(&source, &destination);
            return Ok(());
        }
        let sum_of = if cut { 0 } else { header + length };
        tcp.set_checksum(checksum::pseudo_header(&source, &destination, IpProtocol::Tcp, sum_of as u32));
        packet.set_tx_offload(TxOffload {
            l2_len: ETHERNET,
            l3_len: IP,
            l4_len: header,
            ipv4: true,
            ipv4_checksum: true,
            l4_checksum: Some(L4::Tcp),
            tso: cut.then(|| self.segment_size() as u16),
        });
        Ok(())
    }

    /// Chains packets with `len` further bytes after `packet`.
    fn chain_rest(
        &mut self,
        packet: &mut MemoryPacket,
        pattern: Pattern,
        mut offset: usize,
        len: usize,
    ) -> Result<(), BenchError> {
        let (room, end) = (self.nic.capabilities().data_room, offset + len);
        while offset < end {
            let n = room.min(end - offset);
            let mut next = self.nic.allocate().ok_or(BenchError::Full)?;
            pattern.fill(offset, next.append(n).ok_or(BenchError::Full)?);
            packet.chain(next).map_err(|_| BenchError::Unsendable)?;
            offset += n;
        }
        Ok(())
    }

    /// Returns the window of the server in bytes, from a header's window field.
    pub(super) fn window(&self, window: u16) -> usize {
        let scale = self.agreed.and_then(|agreed| agreed.window_scale).unwrap_or(0);
        usize::from(window) << scale.min(14)
    }
}

const _: () = assert!(WINDOW_SCALE <= 14, "RFC 7323 §2.3");
