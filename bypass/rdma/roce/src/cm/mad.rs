//! Messages of the connection manager (IBA 12.6), and the private data header of the RDMA IP CM service (annex A11).
//!
//! Offsets are those of tables 106 to 113. They count from the end of the MAD header, which is 24 bytes long
//! (IBA 13.4.3).

use linerate_rdma_provider::{Mtu, PrivateData};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Size of a MAD in bytes.
pub(super) const MAD_LEN: usize = 256;
const HEADER_LEN: usize = 24;

/// Base version, management class, class version and method of the messages (IBA 16.7.1).
const MAD_HEADER: [u8; 4] = [1, 0x07, 2, 0x03];

/// Attribute IDs of the messages (IBA table 104).
pub(super) mod attribute {
    pub const REQ: u16 = 0x10;
    pub const MRA: u16 = 0x11;
    pub const REJ: u16 = 0x12;
    pub const REP: u16 = 0x13;
    pub const RTU: u16 = 0x14;
    pub const DREQ: u16 = 0x15;
    pub const DREP: u16 = 0x16;
}

/// Service ID of `RDMA_PS_TCP` for port 0 (annex A11).
const SERVICE: u64 = 0x0106 << 16;
/// Length of the private data header of the RDMA IP CM service.
const IP_HEADER_LEN: usize = 36;
/// Partition that every port belongs to.
const DEFAULT_P_KEY: u16 = 0xffff;
/// LID of a peer in another subnet. Linux writes it if the hop limit exceeds 1.
const PERMISSIVE_LID: u16 = 0xffff;
const HOP_LIMIT: u8 = 64;
/// Local ACK timeout that requests suggest to the peer: 268 ms. Linux derives the packet lifetime from it.
const LOCAL_ACK_TIMEOUT: u8 = 16;
/// Target ACK delay, 134 ms, as rxe.
const TARGET_ACK_DELAY: u8 = 15;
/// CM response timeouts of requests: 4.3 s, as Linux.
const RESPONSE_TIMEOUT: u8 = 20;
/// Retransmissions of a message, in requests and of this connection manager.
pub(super) const MAX_CM_RETRIES: u8 = 15;

/// Message that a REJ or MRA refers to (IBA tables 107 and 108).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    Req = 0,
    Rep = 1,
    Other = 2,
}

/// Reject reasons (IBA 12.6.7.2).
pub(super) mod reason {
    pub const NO_QP: u16 = 1;
    pub const TIMEOUT: u16 = 4;
    pub const UNSUPPORTED: u16 = 5;
    pub const INVALID_COMM_ID: u16 = 6;
    pub const INVALID_SERVICE_ID: u16 = 8;
    pub const INVALID_TRANSPORT: u16 = 9;
    pub const STALE_CONNECTION: u16 = 10;
    pub const INVALID_MTU: u16 = 26;
    pub const CONSUMER: u16 = 28;
}

/// Message of the connection manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mad(pub(super) [u8; MAD_LEN]);

impl Mad {
    /// Creates a message with its transaction ID, and the communication IDs of sender and receiver.
    pub fn new(attribute: u16, transaction: u64, local: u32, remote: u32) -> Self {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&MAD_HEADER);
        bytes[8..16].copy_from_slice(&transaction.to_be_bytes());
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        let mut mad = Mad(bytes);
        mad.put_u32(0, local);
        mad.put_u32(4, remote);
        mad
    }

    /// Returns the received message, if it has the size and the header of one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; MAD_LEN] = bytes.try_into().ok()?;
        (bytes[..4] == MAD_HEADER).then_some(Mad(bytes))
    }

    pub fn attribute(&self) -> u16 {
        u16::from_be_bytes([self.0[16], self.0[17]])
    }

    pub fn transaction(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0.first_chunk::<16>().copied().unwrap_or_default();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns the communication ID of the sender.
    pub fn sender(&self) -> u32 {
        self.u32(0)
    }

    /// Returns the communication ID of the receiver, or 0 in a REQ.
    pub fn receiver(&self) -> u32 {
        self.u32(4)
    }

    fn at<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[HEADER_LEN + offset..][..N]);
        bytes
    }

    fn u8(&self, offset: usize) -> u8 {
        self.0[HEADER_LEN + offset]
    }

    fn u32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.at(offset))
    }

    /// Returns a field of 24 bits.
    fn u24(&self, offset: usize) -> u32 {
        self.u32(offset) >> 8
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.at(offset))
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.0[HEADER_LEN + offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn put_u32(&mut self, offset: usize, value: u32) {
        self.put(offset, &value.to_be_bytes());
    }

    /// Writes 24 bits, and the 8 bits after them.
    fn put_u24(&mut self, offset: usize, value: u32, low: u8) {
        self.put_u32(offset, value << 8 | u32::from(low));
    }

    /// Writes private data, which extends to the end of the message.
    fn put_private(&mut self, offset: usize, bytes: &[u8]) {
        let space = MAD_LEN - HEADER_LEN - offset;
        self.put(offset, &bytes[..bytes.len().min(space)]);
    }

    fn private(&self, offset: usize) -> PrivateData {
        PrivateData::new(&self.0[HEADER_LEN + offset..])
    }

    /// Creates a MRA, which defers the retransmissions of a message by 4.096 µs times two to the power `timeout`.
    pub fn mra(transaction: u64, local: u32, remote: u32, about: About, timeout: u8) -> Self {
        let mut mad = Mad::new(attribute::MRA, transaction, local, remote);
        mad.put(8, &[(about as u8) << 6, timeout << 3]);
        mad
    }

    /// Returns the message that a MRA or REJ refers to.
    pub fn about(&self) -> About {
        match self.u8(8) >> 6 {
            0 => About::Req,
            1 => About::Rep,
            _ => About::Other,
        }
    }

    /// Returns the service timeout of a MRA.
    pub fn service_timeout(&self) -> u8 {
        self.u8(9) >> 3
    }

    /// Returns the queue pair number of the receiver in a DREQ.
    pub fn dreq_qp(&self) -> u32 {
        self.u24(8)
    }

    /// Creates a DREQ. `qp` is the queue pair number of the receiver.
    pub fn dreq(transaction: u64, local: u32, remote: u32, qp: u32) -> Self {
        let mut mad = Mad::new(attribute::DREQ, transaction, local, remote);
        mad.put_u24(8, qp, 0);
        mad
    }

    /// Creates a REJ.
    pub fn rej(transaction: u64, local: u32, remote: u32, rej: &Rej<'_>) -> Self {
        let mut mad = Mad::new(attribute::REJ, transaction, local, remote);
        mad.put(8, &[(rej.about as u8) << 6, 0]);
        mad.put(10, &rej.reason.to_be_bytes());
        if rej.reason == reason::TIMEOUT {
            // The receiver may not know the sender's communication ID otherwise.
            mad.put(9, &[8 << 1]);
            mad.put(12, &rej.guid.to_be_bytes());
        }
        mad.put_private(84, rej.private_data);
        mad
    }

    /// Returns reason, GUID of the sender if the reason is a timeout, and private data of a REJ.
    pub fn rej_fields(&self) -> (u16, u64, PrivateData) {
        (u16::from_be_bytes(self.at(10)), self.u64(12), self.private(84))
    }
}

/// Fields of a REJ (IBA table 108).
pub(super) struct Rej<'a> {
    pub about: About,
    pub reason: u16,
    /// GUID of the sender.
    pub guid: u64,
    pub private_data: &'a [u8],
}

/// Parameters of one end of a connection, which its REQ or REP contains.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// Communication ID.
    pub comm: u32,
    /// GUID of the channel adapter.
    pub guid: u64,
    /// Queue pair number.
    pub qp: u32,
    /// PSN of the first packet that this end receives: the other end starts with it (IBA 12.7.31).
    pub psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

/// Fields of a REQ (IBA table 106).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Req {
    pub transaction: u64,
    pub sender: Endpoint,
    /// Service ID.
    pub service: u64,
    /// Transport service type. 0 is reliable connection.
    pub transport: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    /// Path MTU, by its code: 1 to 5.
    pub mtu: u8,
    pub is_shared: bool,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// Source port, if the private data has a header of this version.
    pub port: Option<u16>,
    pub private_data: PrivateData,
}

impl Req {
    /// Returns the service ID of a port.
    pub fn service_of(port: u16) -> u64 {
        SERVICE | u64::from(port)
    }

    /// Returns the port of the service ID, if the service is `RDMA_PS_TCP`.
    pub fn service_port(&self) -> Option<u16> {
        u16::try_from(self.service ^ SERVICE).ok()
    }

    pub fn write(&self) -> Mad {
        let mut mad = Mad::new(attribute::REQ, self.transaction, self.sender.comm, 0);
        mad.put(8, &self.service.to_be_bytes());
        mad.put(16, &self.sender.guid.to_be_bytes());
        mad.put_u24(32, self.sender.qp, self.sender.responder_resources);
        mad.put_u24(36, 0, self.sender.initiator_depth);
        mad.put_u24(40, 0, RESPONSE_TIMEOUT << 3 | (self.transport & 3) << 1 | u8::from(!self.is_shared));
        mad.put_u24(44, self.sender.psn, RESPONSE_TIMEOUT << 3 | self.retries.min(7));
        mad.put(48, &DEFAULT_P_KEY.to_be_bytes());
        mad.put(50, &[self.mtu << 4 | self.rnr_retries.min(7), MAX_CM_RETRIES << 4 | u8::from(self.is_shared) << 3]);
        mad.put(52, &PERMISSIVE_LID.to_be_bytes());
        mad.put(54, &PERMISSIVE_LID.to_be_bytes());
        mad.put(56, &gid_of(self.local));
        mad.put(72, &gid_of(self.remote));
        // No flow label; the packet rate is that of the port. The subnet local bit is clear, by the hop limit.
        mad.put(93, &[HOP_LIMIT]);
        mad.put(95, &[LOCAL_ACK_TIMEOUT << 3]);
        let version = if self.local.is_ipv4() { 4 } else { 6 };
        mad.put(140, &[0, version << 4]);
        mad.put(142, &self.port.unwrap_or_default().to_be_bytes());
        mad.put(144, &header_address(self.local));
        mad.put(160, &header_address(self.remote));
        mad.put_private(140 + IP_HEADER_LEN, self.private_data.bytes());
        mad
    }

    pub fn read(mad: &Mad) -> Self {
        let address = |offset| match mad.u8(141) >> 4 {
            4 => {
                let [.., a, b, c, d] = mad.at::<16>(offset);
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            _ => IpAddr::V6(Ipv6Addr::from(mad.at::<16>(offset))),
        };
        let is_known_version = mad.u8(140) >> 4 == 0 && matches!(mad.u8(141) >> 4, 4 | 6);
        Req {
            transaction: mad.transaction(),
            sender: Endpoint {
                comm: mad.sender(),
                guid: mad.u64(16),
                qp: mad.u24(32),
                psn: mad.u24(44),
                responder_resources: mad.u8(35),
                initiator_depth: mad.u8(39),
            },
            service: mad.u64(8),
            transport: mad.u8(43) >> 1 & 3,
            retries: mad.u8(47) & 7,
            rnr_retries: mad.u8(50) & 7,
            mtu: mad.u8(50) >> 4,
            is_shared: mad.u8(51) & 8 != 0,
            local: address(144),
            remote: address(160),
            port: is_known_version.then(|| u16::from_be_bytes(mad.at(142))),
            private_data: mad.private(140 + IP_HEADER_LEN),
        }
    }
}

/// Fields of a REP (IBA table 110).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rep {
    pub transaction: u64,
    pub sender: Endpoint,
    /// Communication ID of the receiver.
    pub receiver: u32,
    pub rnr_retries: u8,
    pub is_shared: bool,
    pub private_data: PrivateData,
}

impl Rep {
    pub fn write(&self) -> Mad {
        let mut mad = Mad::new(attribute::REP, self.transaction, self.sender.comm, self.receiver);
        mad.put_u24(12, self.sender.qp, 0);
        mad.put_u24(20, self.sender.psn, 0);
        let flow_control = u8::from(!self.is_shared);
        let shared = u8::from(self.is_shared) << 4;
        mad.put(24, &[self.sender.responder_resources, self.sender.initiator_depth]);
        mad.put(26, &[TARGET_ACK_DELAY << 3 | flow_control, self.rnr_retries.min(7) << 5 | shared]);
        mad.put(28, &self.sender.guid.to_be_bytes());
        mad.put_private(36, self.private_data.bytes());
        mad
    }

    pub fn read(mad: &Mad) -> Self {
        Rep {
            transaction: mad.transaction(),
            sender: Endpoint {
                comm: mad.sender(),
                guid: mad.u64(28),
                qp: mad.u24(12),
                psn: mad.u24(20),
                responder_resources: mad.u8(24),
                initiator_depth: mad.u8(25),
            },
            receiver: mad.receiver(),
            rnr_retries: mad.u8(27) >> 5,
            is_shared: mad.u8(27) & 0x10 != 0,
            private_data: mad.private(36),
        }
    }
}

/// Returns the GID of a RoCE version 2 port: its address, IPv4 mapped into IPv6 (annex A17).
pub(crate) fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns an address in the private data header: IPv4 after 12 bytes of zero.
fn header_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)).to_be_bytes(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the code of a path MTU (IBA 9.6.1.1).
pub(super) fn mtu_code(mtu: Mtu) -> u8 {
    mtu as u8 + 1
}

/// Returns the path MTU of a code.
pub(super) fn mtu_of(code: u8) -> Option<Mtu> {
    Some(match code {
        1 => Mtu::Mtu256,
        2 => Mtu::Mtu512,
        3 => Mtu::Mtu1024,
        4 => Mtu::Mtu2048,
        5 => Mtu::Mtu4096,
        _ => return None,
    })
}
