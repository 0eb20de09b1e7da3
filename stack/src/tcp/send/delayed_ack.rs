//! Acknowledgements without data: immediate and delayed (RFC 9293 §3.8.6.3), with window updates and SACK; probes.

use crate::ip::egress::Egress;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::tcb::conn_buffers::ConnBuffers;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::tcp::header::{Control, OptionBytes};
use crate::wire::tcp::options::{self, MAX_SACK_BLOCKS, MAX_SACK_BLOCKS_WITH_TIMESTAMP, SackBlock};
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Sends pending acknowledgements, zero-window probes and keepalive probes.
    pub(super) fn send_acks_and_probes<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let tcb = &mut *self.tcb;
        if tcb.flags.take(Flags::WINDOW_PROBE | Flags::KEEPALIVE) {
            // An old sequence number: the peer's response acknowledges the number it expects (RFC 9293 §3.8.4,
            // §3.8.6.1).
            let seq = tcb.una - 1;
            self.send_ack(seq, Control::ACK, egress, now);
        }
        let tcb = &mut *self.tcb;
        if tcb.segs_unacked > 1 {
            // RFC 5681 §4.2: at least every second segment is acknowledged.
            tcb.flags |= Flags::ACK_NOW;
        }
        if tcb.flags.has(Flags::ACK_NOW) || self.should_update_window() {
            let tcb = &mut *self.tcb;
            let seq = tcb.nxt;
            if !self.send_ack(seq, Control::ACK, egress, now) {
                self.tcb.flags |= Flags::ACK_NOW;
                self.schedule_tx();
            }
            if self.tcb.state == State::TimeWait {
                self.notify();
            }
            return;
        }
        let tcb = &mut *self.tcb;
        if tcb.segs_unacked > 0 && !tcb.ack_at.is_some() {
            tcb.ack_at = Tick::at_or_after(now + self.shared.settings.ack_delay);
            self.arm();
        }
    }

    /// Sends a segment without payload. Returns whether it was sent.
    pub(crate) fn send_ack<N: Nic<Packet = P>>(
        &mut self,
        seq: Seq,
        mut control: Control,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        if egress.room() == 0 {
            return false;
        }
        let window = self.offer();
        let tcb = &*self.tcb;
        if tcb.flags.has(Flags::ECN_ECHO) {
            control = control.with(Control::ECE);
        }
        let mut sack = OptionBytes::NONE;
        if let Some(buffers) = self.shared.buffers.of(tcb)
            && (tcb.flags.has(Flags::DSACK) || !buffers.reassembly.is_empty())
        {
            sack = sack_option(tcb, buffers);
        }
        let went = self.shared.send_control(tcb, seq, control, window, sack.as_slice(), egress, now);
        if went {
            self.tcb.note_ack_sent();
        }
        went
    }
}

/// Returns the SACK option that reports out-of-order data and duplicates (RFC 2018, RFC 2883).
pub(super) fn sack_option<P: Packet>(tcb: &Tcb, buffers: &ConnBuffers<P>) -> OptionBytes {
    if !tcb.flags.has(Flags::SACK) {
        return OptionBytes::NONE;
    }
    let most = if tcb.flags.has(Flags::TIMESTAMPS) { MAX_SACK_BLOCKS_WITH_TIMESTAMP } else { MAX_SACK_BLOCKS };
    let mut sack = [SackBlock::default(); MAX_SACK_BLOCKS];
    let mut n = 0;
    if tcb.flags.has(Flags::DSACK) {
        let (left, right) = buffers.dsack;
        sack[0] = SackBlock { left, right };
        n = 1;
    }
    n += buffers.reassembly.blocks(&mut sack[n..most]);
    if n == 0 {
        return OptionBytes::NONE;
    }
    OptionBytes::written(|out| options::emit_sack(out, &sack[..n]))
}
