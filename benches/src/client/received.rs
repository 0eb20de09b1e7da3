//! Parses and checks frames of the server, independent of the conversation.

use super::options::{self, Agreed};
use super::pattern::Pattern;
use super::tuples::{CLIENT_MAC, SERVER, SERVER_MAC, flow_of};
use super::{BenchError, SyntheticClient};
use linerate_bypass::memory_nic::MemoryPacket;
use linerate_bypass::{Packet, RxChecksum};
use smoltcp::wire::{
    ArpOperation, ArpPacket, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket, checksum,
};

const ETHERNET: usize = 14;

/// Header of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub flow: usize,
    pub sequence: u32,
    pub acknowledged: u32,
    /// Window field.
    pub window: u16,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    /// TSval, and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// Other options, if this is a SYN.
    pub agreed: Agreed,
    /// Offset of the payload in the frame.
    payload: usize,
    pub payload_len: usize,
}

impl Header {
    /// Returns true if the payload, which may be a chain, is that of the message from `offset`.
    pub fn carries(&self, frame: &MemoryPacket, pattern: Pattern, offset: usize) -> bool {
        let (mut skip, mut at, end) = (self.payload, offset, offset + self.payload_len);
        for bytes in frame.segments() {
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            let bytes = &bytes[skipped..];
            let bytes = &bytes[..bytes.len().min(end - at)];
            if !pattern.matches(at, bytes) {
                return false;
            }
            at += bytes.len();
        }
        at == end
    }
}

impl SyntheticClient {
    /// Parses the header of the segment in `frame`; `None` for ARP, which is answered.
    pub(super) fn header_of(&mut self, frame: &MemoryPacket) -> Result<Option<Header>, BenchError> {
        if !self.is_ip(frame)? {
            return Ok(None);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let header = self.segment_of(frame, &mut scratch);
        self.scratch = scratch;
        header.map(Some)
    }

    /// Returns whether `frame` contains an IP packet. ARP is answered.
    pub(super) fn is_ip(&mut self, frame: &MemoryPacket) -> Result<bool, BenchError> {
        let ethernet = EthernetFrame::new_checked(frame.data()).map_err(|_| BenchError::Frame("truncated"))?;
        if ethernet.ethertype() == EthernetProtocol::Arp {
            let arp = ArpPacket::new_checked(ethernet.payload()).map_err(|_| BenchError::Frame("truncated ARP"))?;
            if arp.operation() == ArpOperation::Request {
                self.announce()?;
            }
            return Ok(false);
        }
        if (ethernet.dst_addr().0, ethernet.src_addr().0) != (CLIENT_MAC.0, SERVER_MAC.0) {
            return Err(BenchError::Frame("from or to another Ethernet address"));
        }
        Ok(true)
    }

    fn segment_of(&self, frame: &MemoryPacket, scratch: &mut Vec<u8>) -> Result<Header, BenchError> {
        let data = &frame.data()[ETHERNET..];
        let ip = Ipv4Packet::new_unchecked(data);
        if data.len() < 20 || ip.version() != 4 || ip.header_len() != 20 || ip.next_header() != IpProtocol::Tcp {
            return Err(BenchError::Frame("not IPv4 and TCP"));
        }
        let (ip_header, len) = (usize::from(ip.header_len()), usize::from(ip.total_len()));
        if len > frame.len() - ETHERNET || len < ip_header {
            return Err(BenchError::Frame("shorter than its IP header states"));
        }
        let tcp = &data[ip_header..len.min(data.len())];
        let l4_len = len - ip_header;
        let tcp = TcpPacket::new_unchecked(tcp);
        let header = usize::from(tcp.as_ref().get(12).copied().unwrap_or_default() >> 4) * 4;
        if header < 20 || header > tcp.as_ref().len() {
            return Err(BenchError::Frame("its TCP header is truncated"));
        }
        self.check_sums(frame, &ip, &tcp, l4_len, scratch)?;
        if ip.src_addr() != *SERVER.ip() || tcp.src_port() != SERVER.port() {
            return Err(BenchError::Frame("from another address"));
        }
        let flow = flow_of(ip.dst_addr(), tcp.dst_port()).filter(|flow| *flow < self.flows.len());
        let flow = flow.ok_or(BenchError::Frame("of no connection"))?;
        if !tcp.ack() {
            return Err(BenchError::Frame("it acknowledges nothing"));
        }
        let (agreed, timestamps) = options::read(&tcp).ok_or(BenchError::Frame("malformed options"))?;
        Ok(Header {
            flow,
            sequence: tcp.seq_number().0 as u32,
            acknowledged: tcp.ack_number().0 as u32,
            window: tcp.window_len(),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            timestamps,
            agreed,
            payload: ETHERNET + ip_header + header,
            payload_len: l4_len - header,
        })
    }

    /// Checks the checksums. With offload the frame carries the pseudo-header sum, with or without the length
    /// (`rte_mbuf_core.h`).
    fn check_sums(
        &self,
        frame: &MemoryPacket,
        ip: &Ipv4Packet<&[u8]>,
        tcp: &TcpPacket<&[u8]>,
        l4_len: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<(), BenchError> {
        if frame.rx_info().ipv4_checksum != RxChecksum::Good && !ip.verify_checksum() {
            return Err(BenchError::Frame("its IP checksum is wrong"));
        }
        let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
        if frame.rx_info().l4_checksum == RxChecksum::Good {
            let partial = |len| checksum::pseudo_header(&source, &destination, IpProtocol::Tcp, len);
            if tcp.checksum() != partial(l4_len as u32) && tcp.checksum() != partial(0) {
                return Err(BenchError::Frame("its TCP checksum is not the pseudo-header sum that the port needs"));
            }
            return Ok(());
        }
        scratch.clear();
        frame.segments().for_each(|bytes| scratch.extend_from_slice(bytes));
        let begin = ETHERNET + usize::from(ip.header_len());
        let whole = TcpPacket::new_unchecked(&scratch[begin..begin + l4_len]);
        if !whole.verify_checksum(&source, &destination) {
            return Err(BenchError::Frame("its TCP checksum is wrong"));
        }
        Ok(())
    }
}
