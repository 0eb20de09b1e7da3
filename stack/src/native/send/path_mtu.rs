//! The largest packet that the path takes: from what routers say (RFC 1191, RFC 8201), and from their silence (RFC 4821).

use crate::congestion::CongestionControl;
use crate::engine::IcmpError;
use crate::native::connection::Connection;
use crate::native::segment::seq::Seq;
use crate::native::tcb::{Flags, State};
use linerate_bypass::Packet;

/// The least MTU that is believed, of IPv4: what all hosts accept is 576 bytes, and common systems stop a little below. The
/// smaller, the more an attacker would gain (RFC 5927 §7).
const MIN_MTU_V4: u16 = 552;
/// The least MTU of IPv6 (RFC 8200 §5).
const MIN_MTU_V6: u16 = 1280;
/// Time-outs in a row after which full segments are taken for what the path swallows.
const BLACK_HOLE_TIMEOUTS: u8 = 2;
/// The payload that is tried then (RFC 4821 §7.2).
const BLACK_HOLE_MSS: u16 = 1024;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// The network has something to say about the segment that began at `seq`.
    pub(crate) fn icmp_error(&mut self, seq: Seq, error: IcmpError) {
        let tcb = &*self.tcb;
        // RFC 5927 §4.1: only what quotes something that is in flight counts.
        if !seq.at_or_after(tcb.una) || !seq.before(tcb.nxt) {
            return;
        }
        match error {
            // RFC 5461: before the connection exists it is believed; later the connection times out by itself.
            IcmpError::Unreachable if tcb.state == State::SynSent => self.end(Flags::UNREACHABLE),
            IcmpError::Unreachable => {}
            IcmpError::TooBig { mtu } if tcb.state.is_synchronized() => self.lower_mtu(mtu),
            IcmpError::TooBig { .. } => {}
        }
    }

    /// Sends no longer packets than of `mtu` bytes from now on.
    pub(crate) fn lower_mtu(&mut self, mtu: u16) {
        let tcb = &*self.tcb;
        let (least, ip) = if tcb.tuple.is_ipv4() { (MIN_MTU_V4, 20) } else { (MIN_MTU_V6, 40) };
        // Everything that makes a packet longer than its payload, TCP's options included.
        let mss = mtu.max(least) - ip - tcb.header_len() as u16;
        if mss < tcb.mss {
            self.reduce_mss(mss);
        }
    }

    /// The retransmission timer has expired so many times in a row: smaller segments may get through (RFC 4821 §7.7).
    pub(crate) fn detect_black_hole(&mut self, time_outs: u8) {
        let least = if self.tcb.tuple.is_ipv4() { MIN_MTU_V4 - 40 } else { MIN_MTU_V6 - 60 };
        let mss = if time_outs < 2 * BLACK_HOLE_TIMEOUTS { BLACK_HOLE_MSS.max(least) } else { least };
        if time_outs >= BLACK_HOLE_TIMEOUTS && mss < self.tcb.mss {
            self.reduce_mss(mss);
        }
    }

    /// Sends segments of at most `mss` bytes from now on, and what is in flight once more. It is no sign of congestion.
    fn reduce_mss(&mut self, mss: u16) {
        self.tcb.mss = mss;
        self.cold.control.set_mss(mss.into());
        self.tcb.cwnd = self.cold.control.window();
        if let Some(buffers) = self.shared.buffers.of_mut(self.tcb) {
            buffers.flight.mss_exceeded(mss);
        }
        self.schedule_tx();
    }
}
