//! A worker's port as smoltcp sees one: at most one received packet, and packets sent through [`Egress`].

use crate::checksum;
use crate::drop_stats::DropCause;
use crate::egress::{ETHERNET, Egress};
use linerate_bypass::time::Instant;
use linerate_bypass::{L4, Nic, Packet, TxOffload};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};
use std::net::IpAddr;

/// What to tell smoltcp of the time.
pub(crate) fn smoltcp_time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// And back.
pub(crate) fn our_time(at: smoltcp::time::Instant) -> Instant {
    Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1_000))
}

/// What a flow has sent through its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// The sequence number after all of it.
    pub next_sequence: u32,
    /// What the last segment acknowledged.
    pub acknowledged: u32,
    /// The window it offered, unscaled.
    pub window: u16,
}

/// A device for one call of smoltcp.
pub(crate) struct Device<'a, N: Nic> {
    /// What `receive` gives, once.
    pub received: Option<&'a [u8]>,
    pub egress: &'a mut Egress<N>,
    pub medium: Medium,
    pub now: Instant,
    /// Set when there was no room to send.
    pub exhausted: bool,
    /// What the flow has sent; its past to be put in for a flow that has one.
    pub sent: Option<Sent>,
}

impl<'a, N: Nic> Device<'a, N> {
    pub fn new(medium: Medium, egress: &'a mut Egress<N>, now: Instant) -> Self {
        Device { received: None, egress, medium, now, exhausted: false, sent: None }
    }

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
        // Everything but ICMP has been verified when it gets here.
        let mut checksum = ChecksumCapabilities::default();
        checksum.ipv4 = Checksum::Tx;
        checksum.udp = Checksum::Tx;
        checksum.tcp = if offload.tcp { Checksum::None } else { Checksum::Tx };
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        capabilities.max_transmission_unit =
            self.egress.mtu() + if self.medium == Medium::Ethernet { ETHERNET } else { 0 };
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
        let Some(place) = packet.as_mut().and_then(|packet| packet.append(len)) else {
            // A reply that cannot go out: it is written somewhere all the same.
            self.egress.count_drop(DropCause::NoPacket);
            return f(&mut vec![0; len]);
        };
        let result = f(place);
        let Some(mut packet) = packet else { return result };
        if self.medium == Medium::Ethernet {
            self.egress.send_frame(packet);
        } else if packet.len() > self.egress.mtu_v6() && is_untold_v6(packet.data()) {
            // smoltcp goes by the port's MTU.
            self.egress.count_drop(DropCause::TooLong);
        } else if let Some(destination) = finish(&mut packet, self.egress, self.sent) {
            self.egress.send_ip(packet, destination, self.now);
        }
        result
    }
}

/// Whether an IP packet is of IPv6, and not of TCP, whose peers have been told how much they may send.
fn is_untold_v6(data: &[u8]) -> bool {
    data.first().is_some_and(|byte| byte >> 4 == 6) && data.get(6) != Some(&IpProtocol::Tcp.into())
}

/// Looks at an IP packet that smoltcp wrote: where it goes, and whether the port is to compute its TCP checksum.
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
            // After a time-out smoltcp's acknowledgements go back with its data to an old sequence number, at which
            // the peer must ignore them; two such ends would never hear each other again. RFC 9293 §3.10.7.4 wants
            // them at SND.NXT.
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
            l2_len: ETHERNET,
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
