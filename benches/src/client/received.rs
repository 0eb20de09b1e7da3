//! From a frame of the server's to the segment in it, with all that can be checked without knowing what it should say.

use super::options::{self, Agreed};
use super::pattern::Pattern;
use super::{SyntheticClient, Wrong};
use linerate_bypass::memory_nic::MemoryPacket;
use linerate_bypass::{Packet, RxChecksum};
use smoltcp::wire::{
    ArpOperation, ArpPacket, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, TcpPacket, checksum,
};

const ETHERNET: usize = 14;

/// A segment's header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub flow: usize,
    pub sequence: u32,
    pub acknowledged: u32,
    /// The window offered, as it is in the header.
    pub window: u16,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    /// The sender's time stamp, and the one of ours that it echoes.
    pub timestamps: Option<(u32, u32)>,
    /// What the other options say, if this is a SYN.
    pub agreed: Agreed,
    /// Where in the frame the payload begins.
    payload: usize,
    pub payload_len: usize,
}

impl Header {
    /// Whether the payload, which may lie in several pieces, is that of the message from `offset` on.
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
    /// The header of the segment in `frame`; `None` if that was ARP. A question for our address is answered.
    pub(super) fn header_of(&mut self, frame: &MemoryPacket) -> Result<Option<Header>, Wrong> {
        let ethernet = EthernetFrame::new_checked(frame.data()).map_err(|_| Wrong::Frame("truncated"))?;
        if ethernet.ethertype() == EthernetProtocol::Arp {
            let arp = ArpPacket::new_checked(ethernet.payload()).map_err(|_| Wrong::Frame("truncated ARP"))?;
            if arp.operation() == ArpOperation::Request {
                self.announce()?;
            }
            return Ok(None);
        }
        if (ethernet.dst_addr().0, ethernet.src_addr().0) != (self.endpoints.client_mac.0, self.endpoints.server_mac.0)
        {
            return Err(Wrong::Frame("from or to another Ethernet address"));
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let header = self.segment_of(frame, &mut scratch);
        self.scratch = scratch;
        header.map(Some)
    }

    fn segment_of(&self, frame: &MemoryPacket, scratch: &mut Vec<u8>) -> Result<Header, Wrong> {
        let data = &frame.data()[ETHERNET..];
        let ip = Ipv4Packet::new_unchecked(data);
        if data.len() < 20 || ip.version() != 4 || ip.header_len() != 20 || ip.next_header() != IpProtocol::Tcp {
            return Err(Wrong::Frame("not IPv4 and TCP"));
        }
        let (ip_header, len) = (usize::from(ip.header_len()), usize::from(ip.total_len()));
        if len > frame.len() - ETHERNET || len < ip_header {
            return Err(Wrong::Frame("shorter than its IP header says"));
        }
        let tcp = &data[ip_header..len.min(data.len())];
        let l4_len = len - ip_header;
        let tcp = TcpPacket::new_unchecked(tcp);
        let header = usize::from(tcp.as_ref().get(12).copied().unwrap_or_default() >> 4) * 4;
        if header < 20 || header > tcp.as_ref().len() {
            return Err(Wrong::Frame("its TCP header is cut short"));
        }
        self.check_sums(frame, &ip, &tcp, l4_len, scratch)?;
        if ip.src_addr() != *self.endpoints.server.ip() || tcp.src_port() != self.endpoints.server.port() {
            return Err(Wrong::Frame("from another address"));
        }
        let flow = self.endpoints.flow_of(ip.dst_addr(), tcp.dst_port()).filter(|flow| *flow < self.flows.len());
        let flow = flow.ok_or(Wrong::Frame("for no connection"))?;
        if !tcp.ack() {
            return Err(Wrong::Frame("it acknowledges nothing"));
        }
        let (agreed, timestamps) = options::read(&tcp).ok_or(Wrong::Frame("malformed options"))?;
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

    /// Checks the checksums: those that the port was to compute by what it was given to begin with, which is the
    /// pseudo-header's sum, with or without the length (as `rte_mbuf_core.h` wants it), others as they are.
    fn check_sums(
        &self,
        frame: &MemoryPacket,
        ip: &Ipv4Packet<&[u8]>,
        tcp: &TcpPacket<&[u8]>,
        l4_len: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Wrong> {
        if frame.rx_info().ipv4_checksum != RxChecksum::Good && !ip.verify_checksum() {
            return Err(Wrong::Frame("its IP checksum is wrong"));
        }
        let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
        if frame.rx_info().l4_checksum == RxChecksum::Good {
            let partial = |len| checksum::pseudo_header(&source, &destination, IpProtocol::Tcp, len);
            if tcp.checksum() != partial(l4_len as u32) && tcp.checksum() != partial(0) {
                return Err(Wrong::Frame("its TCP checksum is not the pseudo-header's sum, which the port wants"));
            }
            return Ok(());
        }
        scratch.clear();
        frame.segments().for_each(|bytes| scratch.extend_from_slice(bytes));
        let begin = ETHERNET + usize::from(ip.header_len());
        let whole = TcpPacket::new_unchecked(&scratch[begin..begin + l4_len]);
        if !whole.verify_checksum(&source, &destination) {
            return Err(Wrong::Frame("its TCP checksum is wrong"));
        }
        Ok(())
    }
}
