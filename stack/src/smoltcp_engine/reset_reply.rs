//! Segments without a connection: resets, and acknowledgements in TIME-WAIT.

use crate::ip::egress::Egress;
use crate::wire::drop_stats::DropCause;
use crate::wire::tuple::Tuple;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr};

/// Hop limit of sent segments.
const HOP_LIMIT: u8 = 64;

/// Header fields of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub sequence: u32,
    pub acknowledge: Option<u32>,
    pub window: u16,
    pub control: Control,
}

/// Flag of a reply in addition to ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    None,
    Fin,
    Reset,
}

impl Reply {
    /// Returns the reset for a segment without a connection (RFC 9293 §3.10.7.1); `None` for a reset.
    pub fn reset_for(segment: &TcpPacket<&[u8]>) -> Option<Reply> {
        if segment.rst() {
            return None;
        }
        let reset = Reply { sequence: 0, acknowledge: None, window: 0, control: Control::Reset };
        Some(if segment.ack() {
            Reply { sequence: segment.ack_number().0 as u32, ..reset }
        } else {
            let after = (segment.seq_number().0 as u32).wrapping_add(segment.segment_len() as u32);
            Reply { acknowledge: Some(after), ..reset }
        })
    }

    /// Sends the reply on `tuple`.
    pub fn send<N: Nic>(self, tuple: &Tuple, egress: &mut Egress<N>, now: Instant) {
        let (local, remote) = (tuple.local(), tuple.remote());
        let number = |n: u32| TcpSeqNumber(n as i32);
        let tcp = TcpRepr {
            src_port: local.port(),
            dst_port: remote.port(),
            control: match self.control {
                Control::None => TcpControl::None,
                Control::Fin => TcpControl::Fin,
                Control::Reset => TcpControl::Rst,
            },
            seq_number: number(self.sequence),
            ack_number: self.acknowledge.map(number),
            window_len: self.window,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None::<TcpTimestampRepr>,
            payload: &[],
        };
        let (source, destination) = (local.ip().into(), remote.ip().into());
        let ip = IpRepr::new(source, destination, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
        let mut packet = egress.allocate();
        let space = packet.as_mut().and_then(|packet| packet.append(ip.buffer_len()));
        let Some(space) = space else { return egress.count_drop(DropCause::NoPacket) };
        let checksums = ChecksumCapabilities::default();
        ip.emit(&mut *space, &checksums);
        let mut segment = TcpPacket::new_unchecked(&mut space[ip.header_len()..]);
        tcp.emit(&mut segment, &source, &destination, &checksums);
        if let Some(packet) = packet {
            egress.send_ip(packet, remote.ip(), now);
        }
    }
}
