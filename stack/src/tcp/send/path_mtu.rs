//! Path MTU discovery: by ICMP errors (RFC 1191, RFC 8201) and by black hole detection (RFC 4821).

use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::tcb::State;
use crate::tcp::tcb::cold::EndReason;
use crate::wire::icmp::IcmpError;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::Packet;

/// Minimum accepted MTU of IPv4. All hosts accept 576 bytes, and common systems use a slightly lower limit. A lower
/// limit helps attackers (RFC 5927 §7).
const MIN_MTU_V4: u16 = 552;
/// Minimum MTU of IPv6 (RFC 8200 §5).
const MIN_MTU_V6: u16 = 1280;
/// Consecutive timeouts after which full segments are assumed to be dropped by the path.
const BLACK_HOLE_TIMEOUTS: u8 = 2;
/// Payload of segments after a black hole was detected (RFC 4821 §7.2).
const BLACK_HOLE_MSS: u16 = 1024;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Processes an ICMP error that quotes the segment at `seq`.
    pub(crate) fn icmp_error(&mut self, seq: Seq, error: IcmpError) {
        let tcb = &*self.tcb;
        // RFC 5927 §4.1: the quoted segment has to be in flight.
        if !seq.at_or_after(tcb.una) || !seq.before(tcb.nxt) {
            return;
        }
        match error {
            // RFC 5461: a hard error aborts a connection attempt. An established connection ends by its own timeout.
            IcmpError::Unreachable if tcb.state == State::SynSent => self.end(EndReason::Unreachable),
            IcmpError::Unreachable => {}
            IcmpError::TooBig { mtu } if tcb.state.is_synchronized() => self.lower_mtu(mtu),
            IcmpError::TooBig { .. } => {}
        }
    }

    /// Limits packets to `mtu` bytes.
    pub(crate) fn lower_mtu(&mut self, mtu: u16) {
        let tcb = &*self.tcb;
        let (least, ip) = if tcb.tuple.is_ipv4() { (MIN_MTU_V4, 20) } else { (MIN_MTU_V6, 40) };
        // Deducts everything in front of the payload, including TCP options.
        let mss = mtu.max(least) - ip - tcb.header_len() as u16;
        if mss < tcb.mss {
            self.reduce_mss(mss);
        }
    }

    /// Reduces the segment size after `timeouts` consecutive timeouts (RFC 4821 §7.7).
    pub(crate) fn detect_black_hole(&mut self, timeouts: u8) {
        let least = if self.tcb.tuple.is_ipv4() { MIN_MTU_V4 - 40 } else { MIN_MTU_V6 - 60 };
        let mss = if timeouts < 2 * BLACK_HOLE_TIMEOUTS { BLACK_HOLE_MSS.max(least) } else { least };
        if timeouts >= BLACK_HOLE_TIMEOUTS && mss < self.tcb.mss {
            self.reduce_mss(mss);
        }
    }

    /// Limits segments to `mss` bytes and retransmits the data in flight. This is not a congestion signal.
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
