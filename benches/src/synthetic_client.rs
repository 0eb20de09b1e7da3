//! A client that costs little: it knows no TCP, only how a flow that loses nothing goes on.
//!
//! It opens flows with a three-way handshake, then sends one request at a time on each and expects exactly its echo,
//! as one segment that acknowledges it. Every byte is checked. Anything else ends the bench: over a link in memory
//! nothing is lost, late or out of order unless the server is wrong.

use linerate_bypass::memory::MemoryNic;
use linerate_bypass::memory::MemoryPacket;
use linerate_bypass::{BURST, L4, MacAddr, Nic, Packet, TxOffload};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpProtocol,
    Ipv4Packet, Ipv4Repr, TcpOption, TcpPacket, TcpSeqNumber, checksum,
};
use std::net::{Ipv4Addr, SocketAddrV4};

/// A flow's number, and a segment of it.
type FlowSegment<'a> = (usize, TcpPacket<&'a [u8]>);

const ETHERNET: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;
/// Where the first client address's ports begin, and how many of each address are used.
const FIRST_PORT: u16 = 1024;
const PORTS: usize = 50_000;

/// The longest request: what one segment carries at an MTU of 1500 bytes.
pub const MAX_REQUEST: usize = 1460;
/// The server may send as much in one segment. Without the option it would send 536 bytes at most (RFC 9293 §3.7.1).
const MSS_OPTION: TcpOption = TcpOption::MaxSegmentSize(MAX_REQUEST as u16);

/// The segments that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Begins a connection.
    Syn,
    /// Completes it.
    Ack,
    /// Carries a request, and acknowledges the echo before it.
    Request,
}

/// What the server did that it should not have.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It sent something that is not the expected segment of any flow.
    #[error("the server sent a frame that is not the answer expected of any connection: {0}")]
    Frame(&'static str),
    /// Fewer answers came than requests were sent.
    #[error("the server left {0} requests without an answer")]
    Missing(usize),
    /// The link or its packet pool was full, which a bench never fills by itself.
    #[error("the link took no more frames: the server does not give packets back")]
    Full,
}

/// One connection: both sequence numbers, and how many requests were sent.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// The next byte that we send.
    sequence: u32,
    /// The next byte that we expect.
    expected: u32,
    requests: u32,
}

/// The addresses of both ends.
#[derive(Debug, Clone, Copy)]
pub struct Endpoints {
    /// The client's Ethernet address.
    pub client_mac: MacAddr,
    /// Its first IP address; 50 000 connections later, the next one is used.
    pub client: Ipv4Addr,
    /// The server's Ethernet address.
    pub server_mac: MacAddr,
    /// Where the server listens.
    pub server: SocketAddrV4,
}

/// The client's end of the link.
pub struct SyntheticClient {
    nic: MemoryNic,
    endpoints: Endpoints,
    flows: Vec<Flow>,
    /// The flows in the order in which they are used: mixed, so that neither end profits from their lying in a row.
    order: Vec<u32>,
    next: usize,
    size: usize,
    software_checksum: bool,
    outgoing: Vec<MemoryPacket>,
    received: Vec<MemoryPacket>,
}

impl SyntheticClient {
    /// A client for `flows` connections with requests of `size` bytes. Without `software_checksum` neither end
    /// computes any: the link claims to.
    ///
    /// # Panics
    /// If `flows` is 0 or `size` is not within 1 and [`MAX_REQUEST`].
    pub fn new(nic: MemoryNic, endpoints: Endpoints, flows: usize, size: usize, software_checksum: bool) -> Self {
        assert!(flows > 0 && (1..=MAX_REQUEST).contains(&size));
        let mut order: Vec<u32> = (0..flows as u32).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        SyntheticClient {
            nic,
            endpoints,
            flows: vec![Flow::default(); flows],
            order,
            next: 0,
            size,
            software_checksum,
            outgoing: Vec::with_capacity(BURST),
            received: Vec::with_capacity(BURST),
        }
    }

    /// How many connections it has.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Tells the server the Ethernet address of all our IP addresses.
    pub fn announce(&mut self) -> Result<(), Wrong> {
        for n in 0..self.flows.len().div_ceil(PORTS) {
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(self.endpoints.client_mac.0),
                source_protocol_addr: self.address(n * PORTS).0,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: *self.endpoints.server.ip(),
            };
            let mut packet = self.nic.allocate().ok_or(Wrong::Full)?;
            let bytes = packet.append(ETHERNET + request.buffer_len()).ok_or(Wrong::Full)?;
            self.ethernet(bytes, EthernetProtocol::Arp);
            request.emit(&mut ArpPacket::new_unchecked(&mut bytes[ETHERNET..]));
            self.outgoing.push(packet);
        }
        self.flush()
    }

    /// Sends a SYN on each of `flows`, at most a burst of them.
    pub fn begin(&mut self, flows: std::ops::Range<usize>) -> Result<(), Wrong> {
        for flow in flows {
            let sequence = (flow as u32).wrapping_mul(0x9e37_79b9);
            self.flows[flow] = Flow { sequence, ..Flow::default() };
            self.segment(flow, Kind::Syn)?;
            self.flows[flow].sequence = sequence.wrapping_add(1);
        }
        self.flush()
    }

    /// Takes the SYN-ACKs in and completes those connections. Returns how many there were.
    pub fn complete(&mut self) -> Result<usize, Wrong> {
        self.nic.rx_burst(&mut self.received);
        let mut received = std::mem::take(&mut self.received);
        let mut completed = 0;
        for frame in received.drain(..) {
            let Some((flow, tcp)) = self.tcp_of(frame.data())? else { continue };
            if !tcp.syn() || !tcp.ack() || tcp.ack_number().0 as u32 != self.flows[flow].sequence {
                return Err(Wrong::Frame("not a SYN-ACK"));
            }
            self.flows[flow].expected = (tcp.seq_number().0 as u32).wrapping_add(1);
            self.segment(flow, Kind::Ack)?;
            completed += 1;
        }
        self.received = received;
        self.flush()?;
        Ok(completed)
    }

    /// Sends the next `n` requests, at most a burst, on as many connections in turn.
    pub fn request(&mut self, n: usize) -> Result<(), Wrong> {
        for _ in 0..n {
            let flow = self.order[self.next] as usize;
            self.next = (self.next + 1) % self.order.len();
            self.flows[flow].requests += 1;
            self.segment(flow, Kind::Request)?;
            self.flows[flow].sequence = self.flows[flow].sequence.wrapping_add(self.size as u32);
        }
        self.flush()
    }

    /// Takes a burst of answers in, checks them, and returns how many there were.
    pub fn check(&mut self) -> Result<usize, Wrong> {
        self.nic.rx_burst(&mut self.received);
        let mut received = std::mem::take(&mut self.received);
        let mut answers = 0;
        for frame in received.drain(..) {
            let Some((flow, tcp)) = self.tcp_of(frame.data())? else { continue };
            let state = &mut self.flows[flow];
            if tcp.syn() || tcp.fin() || tcp.rst() || !tcp.ack() || tcp.ack_number().0 as u32 != state.sequence {
                return Err(Wrong::Frame("it does not acknowledge the request"));
            }
            if tcp.seq_number().0 as u32 != state.expected || tcp.payload().len() != self.size {
                return Err(Wrong::Frame("it is not where or not as long as the echo should be"));
            }
            let word = word(flow, state.requests);
            if !tcp.payload().chunks(8).all(|part| *part == word[..part.len()]) {
                return Err(Wrong::Frame("other bytes came back than were sent"));
            }
            state.expected = state.expected.wrapping_add(self.size as u32);
            answers += 1;
        }
        self.received = received;
        Ok(answers)
    }

    /// The flow that `frame` is of, and its segment; `None` when it was ARP. A question for our address is answered.
    fn tcp_of<'a>(&mut self, frame: &'a [u8]) -> Result<Option<FlowSegment<'a>>, Wrong> {
        let ethernet = EthernetFrame::new_checked(frame).map_err(|_| Wrong::Frame("truncated"))?;
        if ethernet.ethertype() == EthernetProtocol::Arp {
            let arp = ArpPacket::new_checked(ethernet.payload()).map_err(|_| Wrong::Frame("truncated ARP"))?;
            if arp.operation() == ArpOperation::Request {
                self.announce()?;
            }
            return Ok(None);
        }
        let ip = Ipv4Packet::new_checked(ethernet.payload()).map_err(|_| Wrong::Frame("not IPv4"))?;
        let tcp = TcpPacket::new_checked(ip.payload()).map_err(|_| Wrong::Frame("not TCP"))?;
        if self.software_checksum && !tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()) {
            return Err(Wrong::Frame("its TCP checksum is wrong"));
        }
        let address = u32::from(ip.dst_addr()).wrapping_sub(self.endpoints.client.into()) as usize;
        let port = usize::from(tcp.dst_port().wrapping_sub(FIRST_PORT));
        let flow = address.saturating_mul(PORTS).saturating_add(port);
        if port >= PORTS || flow >= self.flows.len() {
            return Err(Wrong::Frame("for no connection"));
        }
        Ok(Some((flow, TcpPacket::new_unchecked(ip_payload(frame)))))
    }

    /// Our address and port of `flow`.
    fn address(&self, flow: usize) -> (Ipv4Addr, u16) {
        let ip = u32::from(self.endpoints.client) + (flow / PORTS) as u32;
        (ip.into(), FIRST_PORT + (flow % PORTS) as u16)
    }

    fn ethernet(&self, bytes: &mut [u8], protocol: EthernetProtocol) {
        let mut ethernet = EthernetFrame::new_unchecked(bytes);
        ethernet.set_src_addr(EthernetAddress(self.endpoints.client_mac.0));
        ethernet.set_dst_addr(EthernetAddress(self.endpoints.server_mac.0));
        ethernet.set_ethertype(protocol);
    }

    /// Puts a segment of `flow` in line.
    fn segment(&mut self, flow: usize, kind: Kind) -> Result<(), Wrong> {
        let (header, payload) = match kind {
            Kind::Syn => (TCP + MSS_OPTION.buffer_len(), 0),
            Kind::Ack => (TCP, 0),
            Kind::Request => (TCP, self.size),
        };
        let Flow { sequence, expected, requests } = self.flows[flow];
        let (client, port) = self.address(flow);
        let (server, server_port) = (*self.endpoints.server.ip(), self.endpoints.server.port());
        let mut packet = self.nic.allocate().ok_or(Wrong::Full)?;
        let bytes = packet.append(ETHERNET + IP + header + payload).ok_or(Wrong::Full)?;
        self.ethernet(bytes, EthernetProtocol::Ipv4);
        let ip = Ipv4Repr {
            src_addr: client,
            dst_addr: server,
            next_header: IpProtocol::Tcp,
            payload_len: header + payload,
            hop_limit: 64,
        };
        let mut checksums = ChecksumCapabilities::ignored();
        if self.software_checksum {
            checksums = ChecksumCapabilities::default();
        }
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[ETHERNET..]), &checksums);
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[ETHERNET + IP..]);
        tcp.set_src_port(port);
        tcp.set_dst_port(server_port);
        tcp.set_seq_number(TcpSeqNumber(sequence as i32));
        tcp.set_ack_number(TcpSeqNumber(expected as i32));
        tcp.clear_flags();
        tcp.set_header_len(header as u8);
        tcp.set_window_len(u16::MAX);
        tcp.set_urgent_at(0);
        match kind {
            Kind::Syn => {
                tcp.set_syn(true);
                MSS_OPTION.emit(tcp.options_mut());
            }
            Kind::Ack | Kind::Request => tcp.set_ack(true),
        }
        let word = word(flow, requests);
        tcp.payload_mut().chunks_mut(8).for_each(|part| part.copy_from_slice(&word[..part.len()]));
        let (source, destination) = (IpAddress::from(client), IpAddress::from(server));
        if self.software_checksum {
            tcp.fill_checksum(&source, &destination);
        } else {
            let length = (header + payload) as u32;
            tcp.set_checksum(checksum::pseudo_header(&source, &destination, IpProtocol::Tcp, length));
            packet.set_tx_offload(TxOffload {
                l2_len: ETHERNET,
                l3_len: IP,
                l4_len: header,
                ipv4: true,
                ipv4_checksum: true,
                l4_checksum: Some(L4::Tcp),
                tso: None,
            });
        }
        self.outgoing.push(packet);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Wrong> {
        while !self.outgoing.is_empty() {
            if self.nic.tx_burst(&mut self.outgoing) == 0 {
                return Err(Wrong::Full);
            }
        }
        Ok(())
    }
}

/// What the `n`th request of `flow` is made of, over and over: no other request within reach is the same.
fn word(flow: usize, n: u32) -> [u8; 8] {
    (((flow as u64) << 32) | u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// The TCP segment of an Ethernet frame that has been found to hold one.
fn ip_payload(frame: &[u8]) -> &[u8] {
    let ip = &frame[ETHERNET..];
    let packet = Ipv4Packet::new_unchecked(ip);
    &ip[usize::from(packet.header_len())..usize::from(packet.total_len())]
}
