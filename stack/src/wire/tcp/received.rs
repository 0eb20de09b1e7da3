//! TCP header of a received segment.

use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::header::Control;
use crate::wire::tcp::seq::Seq;
use smoltcp::wire::TcpPacket;

/// TCP header fields of a received segment, and its ECN mark.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcpHeader {
    pub seq: Seq,
    pub ack: Seq,
    pub control: Control,
    pub window: u16,
    /// Offset of the payload in the frame.
    pub header: usize,
    pub len: u32,
    /// True if the packet carries the CE mark (RFC 3168 §5).
    pub ce: bool,
}

impl TcpHeader {
    /// Parses the headers of a frame that the demultiplexer has validated. The TCP header is at `start`, and the frame
    /// has `total` bytes.
    #[inline]
    pub fn parse(data: &[u8], start: usize, total: usize) -> Self {
        let (headers, tcp) = data.split_at(start);
        let ecn = match headers[ETHERNET_HEADER] >> 4 {
            4 => headers[ETHERNET_HEADER + 1] & 3,
            _ => headers[ETHERNET_HEADER + 1] >> 4 & 3,
        };
        let control = Control(tcp[13]);
        let segment = TcpPacket::new_unchecked(tcp);
        let header = start + usize::from(segment.header_len());
        TcpHeader {
            seq: Seq(segment.seq_number().0 as u32),
            ack: Seq(segment.ack_number().0 as u32),
            control,
            window: segment.window_len(),
            header,
            len: total.saturating_sub(header) as u32,
            ce: ecn == 3,
        }
    }

    /// Returns SEG.LEN: the sequence numbers that the segment occupies.
    pub fn seq_len(&self) -> u32 {
        self.len + u32::from(self.control.has(Control::SYN)) + u32::from(self.control.has(Control::FIN))
    }
}
