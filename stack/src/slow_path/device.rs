//! Worker's port as a smoltcp device: at most one received packet, and transmission through [`Egress`].

use crate::ip::egress::Egress;
use crate::wire::checksum;
use crate::wire::drop_stats::DropCause;
use crate::wire::ethernet::ETHERNET_HEADER;
use linerate_bypass::{L4, Nic, Packet, TxOffload};
use linerate_service::time::Instant;
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};
use std::net::IpAddr;

/// Converts to smoltcp's time.
pub(crate) fn to_smoltcp_time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// Converts from smoltcp's time.
pub(crate) fn from_smoltcp_time(at: smoltcp::time::Instant) -> Instant {
    Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1_000))
}

/// Furthest values that a flow has sent.
#[cfg_attr(not(feature = "smoltcp-engine"), expect(dead_code, reason = "only that engine reads it"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub next_sequence: u32,
    /// Acknowledgement number of the last segment.
    pub acknowledged: u32,
    /// Window of the last segment, unscaled.
    pub window: u16,
}

/// Device for one smoltcp call.
pub(crate) struct Device<'a, N: Nic> {
    /// Packet that `receive` returns, once.
    pub received: Option<&'a [u8]>,
    pub egress: &'a mut Egress<N>,
    pub medium: Medium,
    pub now: Instant,
    /// True if transmission lacked room.
    pub exhausted: bool,
    /// State of the flow's transmission, which the caller presets for an existing flow.
    pub sent: Option<Sent>,
}

impl<'a, N: Nic> Device<'a, N> {
    pub fn new(medium: Medium, egress: &'a mut Egress<N>, now: Instant) -> Self {
        Device { received: None, egress, medium, now, exhausted: false, sent: None }
    }

    /// Continues from the values that a flow has sent before.
    #[cfg(feature = "smoltcp-engine")]
    pub fn after(mut self, sent: Option<Sent>) -> Self {
        self.sent = sent;
        self
    }

    pub fn receiving(mut self, packet: &'a [u8]) -> Self {
        self.received = Some(packet);
        self
    }
}

impl<N: Nic> phy::Device for Device<'_, N> {
    type RxToken<'b>
        = Received<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Transmit<'b, N>
    where
        Self: 'b;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let bytes = self.received.take()?;
        let transmit =
            Transmit { egress: self.egress, medium: self.medium, now: self.now, sent: &mut self.sent, packet: None };
        Some((Received { bytes }, transmit))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Self::TxToken<'_>> {
        let packet = self.egress.allocate();
        self.exhausted = packet.is_none();
        let sent = &mut self.sent;
        packet.is_some().then_some(Transmit { egress: self.egress, medium: self.medium, now: self.now, sent, packet })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let offload = self.egress.capabilities().tx_checksum;
        // Demultiplexing has verified everything except ICMP.
        let mut checksum = ChecksumCapabilities::default();
        checksum.ipv4 = Checksum::Tx;
        checksum.udp = Checksum::Tx;
        checksum.tcp = if offload.tcp { Checksum::None } else { Checksum::Tx };
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        capabilities.max_transmission_unit =
            self.egress.mtu() + if self.medium == Medium::Ethernet { ETHERNET_HEADER } else { 0 };
        capabilities.checksum = checksum;
        capabilities
    }
}

pub(crate) struct Received<'a> {
    bytes: &'a [u8],
}

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.bytes)
    }
}

pub(crate) struct Transmit<'a, N: Nic> {
    egress: &'a mut Egress<N>,
    medium: Medium,
    now: Instant,
    sent: &'a mut Option<Sent>,
    packet: Option<N::Packet>,
}

impl<N: Nic> phy::TxToken for Transmit<'_, N> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = self.packet.or_else(|| self.egress.allocate());
        let Some(space) = packet.as_mut().and_then(|packet| packet.append(len)) else {
            // A reply without a packet is written to scratch memory and dropped.
            self.egress.count_drop(DropCause::NoPacket);
            return f(&mut vec![0; len]);
        };
        let result = f(space);
        let Some(mut packet) = packet else { return result };
        if self.medium == Medium::Ethernet {
            self.egress.send_frame(packet);
        } else if packet.len() > self.egress.mtu_v6() && is_non_tcp_v6(packet.data()) {
            // smoltcp uses the port's MTU.
            self.egress.count_drop(DropCause::TooLong);
        } else if let Some(destination) = finish(&mut packet, self.egress, self.sent) {
            self.egress.send_ip(packet, destination, self.now);
        }
        result
    }
}

/// Returns whether an IP packet is IPv6 but not TCP. TCP peers know the MTU through the MSS.
fn is_non_tcp_v6(data: &[u8]) -> bool {
    data.first().is_some_and(|byte| byte >> 4 == 6) && data.get(6) != Some(&IpProtocol::Tcp.into())
}

/// Inspects an IP packet that smoltcp wrote. Returns its destination, and requests checksum offload from the port for
/// TCP.
fn finish<N: Nic>(packet: &mut N::Packet, egress: &mut Egress<N>, sent: &mut Option<Sent>) -> Option<IpAddr> {
    let data = packet.data_mut()?;
    let ipv4 = data.first()? >> 4 == 4;
    let (source, destination, protocol, header) = if ipv4 {
        let ip = Ipv4Packet::new_unchecked(&data[..]);
        let header = usize::from(ip.header_len());
        (IpAddress::from(ip.src_addr()), IpAddress::from(ip.dst_addr()), ip.next_header(), header)
    } else {
        let ip = Ipv6Packet::new_unchecked(&data[..]);
        (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header(), 40)
    };
    let (source, destination) = (IpAddr::from(source), IpAddr::from(destination));
    if protocol != IpProtocol::Tcp {
        return Some(destination);
    }
    let l4_len = data.len() - header;
    let mut tcp = TcpPacket::new_unchecked(&mut data[header..]);
    let l4_header = usize::from(tcp.header_len());
    let offload = egress.capabilities().tx_checksum.tcp;
    let mut next_sequence = (tcp.seq_number() + tcp.segment_len()).0 as u32;
    if let Some(Sent { next_sequence: furthest, .. }) = *sent
        && (furthest.wrapping_sub(next_sequence) as i32) > 0
    {
        next_sequence = furthest;
        if tcp.segment_len() == 0 && !tcp.rst() {
            // After an RTO smoltcp's acknowledgements use an old sequence number, together with its data, and the peer
            // ignores them. Two such ends would deadlock. RFC 9293 §3.10.7.4 requires SND.NXT.
            tcp.set_seq_number(TcpSeqNumber(furthest as i32));
            if !offload {
                tcp.fill_checksum(&source.into(), &destination.into());
            }
        }
    }
    *sent = Some(Sent { next_sequence, acknowledged: tcp.ack_number().0 as u32, window: tcp.window_len() });
    egress.count_copied(l4_len - l4_header);
    if offload {
        tcp.set_checksum(checksum::pseudo_header_sum(source, destination, IpProtocol::Tcp.into(), l4_len));
        packet.set_tx_offload(TxOffload {
            l2_len: ETHERNET_HEADER,
            l3_len: header,
            l4_len: l4_header,
            ipv4,
            ipv4_checksum: false,
            l4_checksum: Some(L4::Tcp),
            tso: None,
        });
    }
    Some(destination)
}
