//! Segment arrival on the general path (RFC 9293 §3.10.7.4).

use crate::ip::egress::Egress;
use crate::tcp::clock::tick::Tick;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::recovery::Acknowledgement;
use crate::tcp::send::output::deadline;
use crate::tcp::tcb::cold::EndReason;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::drop_stats::DropCause;
use crate::wire::tcp::header::Control;
use crate::wire::tcp::options::{MAX_SACK_BLOCKS, Options, SackBlock, Timestamp};
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;

/// Age in milliseconds beyond which TS.Recent is not used by PAWS (RFC 7323 §5.5): 24 days.
const TS_RECENT_AGE: u32 = 24 * 86_400 * 1000;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Processes a segment of the connection in the order of RFC 9293 §3.10.7.
    pub(crate) fn process_segment<N: Nic<Packet = P>>(
        &mut self,
        mut seg: TcpHeader,
        packet: P,
        tcp: usize,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        if self.shared.settings.may_keep_alive && seg.len == 0 && seg.ack == self.tcb.una {
            self.restart_keepalive(now);
        }
        let options = Options::parse(&packet.data()[tcp + 20..seg.header]);
        let tcb = &mut *self.tcb;
        let control = seg.control;
        match tcb.state {
            State::SynSent => return self.syn_sent(&seg, &options, packet, egress, now),
            State::Closed => return,
            _ if control.has(Control::RST) => return self.process_rst(&seg, egress, now),
            State::SynReceived if control.has(Control::SYN) && seg.seq + 1 == tcb.rcv_nxt => {
                if !control.has(Control::ACK) {
                    // Retransmission of the SYN: the SYN-ACK was lost.
                    tcb.flags |= Flags::ACK_NOW;
                    return self.schedule_tx();
                }
                // Simultaneous open (RFC 9293 §3.5, figure 8): the SYN is a duplicate, the rest is new.
                seg.seq += 1;
                seg.control.0 &= !Control::SYN.0;
            }
            _ => {}
        }
        let tcb = &mut *self.tcb;
        let control = seg.control;
        let timestamp = if tcb.flags.has(Flags::TIMESTAMPS) {
            match options.timestamp {
                Some(timestamp) => {
                    let old = (timestamp.value.wrapping_sub(tcb.ts_recent) as i32) < 0;
                    if old && self.ts_recent_is_outdated(now) {
                        self.tcb.ts_recent = timestamp.value;
                    } else if old {
                        // RFC 7323 §5.3 R1.
                        return self.ack_unacceptable(&seg, egress, now);
                    }
                    Some(timestamp)
                }
                // RFC 7323 §3.2.
                None => return egress.count_drop(DropCause::NoTimestamp),
            }
        } else {
            None
        };
        let tcb = &mut *self.tcb;
        if !is_acceptable(tcb, &seg) {
            let probes = tcb.rcv_window() == 0 && seg.seq == tcb.rcv_nxt && !control.has(Control::SYN);
            self.ack_unacceptable(&seg, egress, now);
            if !probes {
                return;
            }
            // With a zero window the data is rejected, but the acknowledgement is processed (RFC 9293 §3.4).
            seg.len = 0;
            seg.control.0 &= !Control::FIN.0;
        }
        let tcb = &mut *self.tcb;
        let control = seg.control;
        if control.has(Control::SYN) {
            // RFC 5961 §4.2.
            return self.challenge_ack(egress, now);
        }
        if !control.has(Control::ACK) {
            return;
        }
        if tcb.state == State::SynReceived {
            if seg.ack != tcb.nxt {
                // RFC 9293 §3.10.7.4, fifth.
                let tuple = tcb.tuple;
                return self.shared.reset_for(&tuple, &seg, egress, now);
            }
            if !tcb.flags.has(Flags::ACTIVE_OPEN) && self.shared.source_is_full(&tcb.tuple) {
                // Connections created from SYN cookies have reached the limit of the source.
                egress.count_drop(DropCause::TooManyPerSource);
                let tuple = tcb.tuple;
                self.shared.reset_for(&tuple, &seg, egress, now);
                return self.end(EndReason::Reset);
            }
            self.establish(&seg, now);
        }
        let tcb = &mut *self.tcb;
        // RFC 5961 §5.2. An acknowledgement older than the largest window the peer has advertised is not of this
        // connection.
        if seg.ack.after(tcb.nxt)
            || i64::from(tcb.una.distance(seg.ack)) > i64::from(self.cold.largest_window(tcb.snd_scale()))
        {
            return self.challenge_ack(egress, now);
        }
        if let Some(timestamp) = timestamp
            && !seg.seq.after(tcb.rcv_acked)
            && timestamp.value.wrapping_sub(tcb.ts_recent) as i32 >= 0
        {
            tcb.ts_recent = timestamp.value;
        }
        if tcb.flags.has(Flags::ECN) {
            self.process_ecn(&seg, egress, now);
        }
        let sack = if self.tcb.flags.has(Flags::SACK) { &options.sack[..] } else { &[] };
        self.process_ack(&seg, sack, timestamp, now);
        self.process_payload_and_fin(&seg, packet, now);
    }

    /// Processes the payload and the FIN of an acceptable segment after its acknowledgement.
    #[inline(always)]
    pub(crate) fn process_payload_and_fin(&mut self, seg: &TcpHeader, packet: P, now: Instant) {
        if seg.len > 0 && self.tcb.state.may_receive() {
            self.receive_payload(seg, packet, now);
        }
        if seg.control.has(Control::FIN) {
            self.process_fin(seg.seq + seg.len, now);
        }
    }

    /// Processes an acceptable ACK that is not beyond SND.NXT.
    #[inline]
    pub(crate) fn process_ack(
        &mut self,
        seg: &TcpHeader,
        sack: &[SackBlock],
        timestamp: Option<Timestamp>,
        now: Instant,
    ) {
        let tcb = &mut *self.tcb;
        let window = u32::from(seg.window) << tcb.snd_scale();
        let window_changed = window != tcb.snd_wnd;
        let forward = seg.ack.after(tcb.una);
        // RFC 9293 §3.10.7.4: the newest segment updates the window. A segment that acknowledges new data is always
        // newer.
        let newest = forward || seg.ack == tcb.una && seg.seq.at_or_after(tcb.wl1);
        if newest {
            tcb.wl1 = seg.seq;
            if window_changed {
                tcb.snd_wnd = window;
                self.window_changed();
            }
        }
        let tcb = &mut *self.tcb;
        if tcb.flags.has(Flags::PERSIST)
            && let Some(buffers) = self.shared.buffers.of_mut(tcb)
        {
            // The peer responds to zero-window probes.
            buffers.stalled = Instant::ZERO;
        }
        if tcb.outstanding() == 0 && self.shared.buffers.of(tcb).is_none_or(|buffers| buffers.flight.is_settled()) {
            return;
        }
        let ece = tcb.flags.has(Flags::ECN) && seg.control.has(Control::ECE);
        let mut edges = [(Seq(0), Seq(0)); MAX_SACK_BLOCKS];
        for (edge, sack_range) in edges.iter_mut().zip(sack) {
            *edge = (sack_range.left, sack_range.right);
        }
        let acknowledgement = Acknowledgement {
            ack: seg.ack,
            sack: &edges[..sack.len().min(MAX_SACK_BLOCKS)],
            echoed_timestamp: timestamp.map(|timestamp| timestamp.echo),
            ece,
            duplicate_candidate: seg.seq_len() == 0 && !window_changed,
            pure: seg.seq_len() == 0,
            unsent: tcb.unsent > 0 && tcb.window_left() > 0,
            now,
        };
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let cold = &mut *self.cold;
        let outcome = buffers.flight.acknowledge(
            &acknowledgement,
            &mut tcb.rtt,
            &mut cold.path,
            &mut cold.control,
            &self.shared.settings.limits,
        );
        if outcome.window_changed {
            tcb.cwnd = cold.control.window();
        }
        if outcome.reduced && tcb.flags.has(Flags::ECN) {
            tcb.flags |= Flags::CWR;
        }
        let mut send = tcb.unsent > 0 || outcome.window_changed || tcb.flags.has(Flags::FIN_QUEUED);
        if forward {
            // An unsent tail loss probe is no longer needed (RFC 8985 §7.2).
            tcb.flags.clear(Flags::TLP);
            tcb.una = seg.ack;
            let released = buffers.queue.acknowledge(seg.ack);
            self.shared.mbufs_held.release(released);
            // Flush even when idle: the flush path releases empty buffers.
            send |= buffers.queue.is_empty();
            tcb.retransmit_at = if buffers.flight.is_settled() {
                Tick::NONE
            } else {
                deadline(buffers, tcb, cold, &self.shared.settings.limits)
            };
            if tcb.flags.has(Flags::WANTS_ROOM) {
                self.notify();
            }
            let tcb = &mut *self.tcb;
            if tcb.flags.has(Flags::FIN_SENT) && tcb.una == tcb.nxt {
                self.fin_acknowledged(now);
            }
        } else {
            tcb.retransmit_at = deadline(buffers, tcb, cold, &self.shared.settings.limits);
        }
        if send {
            // If the flush sends nothing, no other call arms the timer.
            self.schedule_tx();
        }
        self.arm();
    }

    /// Applies a change of the peer's window.
    fn window_changed(&mut self) {
        let tcb = &mut *self.tcb;
        self.cold.offered(tcb.snd_wnd, tcb.snd_scale());
        if tcb.flags.has(Flags::PERSIST) && tcb.snd_wnd > 0 {
            tcb.flags.clear(Flags::PERSIST);
            tcb.retransmit_at = Tick::NONE;
            tcb.attempts = 0;
        }
        if tcb.unsent > 0 {
            self.schedule_tx();
        }
    }

    /// Acknowledges a segment that is not acceptable or old (RFC 9293 §3.10.7.4, first; RFC 7323 §5.3), and reports
    /// duplicate data (RFC 2883 §4).
    fn ack_unacceptable<N: Nic<Packet = P>>(&mut self, seg: &TcpHeader, egress: &mut Egress<N>, now: Instant) {
        let tcb = &mut *self.tcb;
        if seg.len == 0 && seg.seq_len() == 0 {
            return self.challenge_ack(egress, now);
        }
        let known = seg.seq.before(tcb.rcv_nxt) || tcb.has_buffers();
        if seg.len > 0 && known && tcb.state.is_synchronized() {
            self.shared.buffers.attach(tcb).note_dsack(tcb, seg);
        }
        tcb.flags |= Flags::ACK_NOW;
        self.schedule_tx();
    }

    /// Sends a challenge ACK, subject to the rate limit (RFC 5961 §3.2, §7). A peer without the connection answers it
    /// with an acceptable RST.
    fn challenge_ack<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if !self.cold.may_challenge(now) {
            return;
        }
        if self.tcb.state == State::SynReceived {
            // `ACK_NOW` would retransmit the SYN-ACK.
            let seq = self.tcb.nxt;
            self.send_ack(seq, Control::ACK, egress, now);
            return;
        }
        self.tcb.flags |= Flags::ACK_NOW;
        self.schedule_tx();
    }

    /// Processes a RST (RFC 5961 §3.2). Only its sequence number is checked: neither payload nor an old timestamp (RFC
    /// 7323 §5.2) affects its acceptability.
    fn process_rst<N: Nic<Packet = P>>(&mut self, seg: &TcpHeader, egress: &mut Egress<N>, now: Instant) {
        let tcb = &*self.tcb;
        if seg.seq == tcb.rcv_nxt {
            self.end(EndReason::Reset);
        } else if seg.seq.after(tcb.rcv_nxt) && seg.seq.before(tcb.rcv_edge) {
            self.challenge_ack(egress, now);
        }
    }

    /// Returns whether the connection was idle for so long that the peer's timestamps may have wrapped (RFC 7323 §5.5).
    fn ts_recent_is_outdated(&self, now: Instant) -> bool {
        let tcb = &*self.tcb;
        let idle_since = self.cold.idle_since;
        !tcb.has_buffers() && timestamp_clock(now).wrapping_sub(idle_since) > TS_RECENT_AGE
    }

    /// Processes the ECN fields of a received segment (RFC 3168 §6.1.3; RFC 8257 §3.2).
    fn process_ecn<N: Nic<Packet = P>>(&mut self, seg: &TcpHeader, egress: &mut Egress<N>, now: Instant) {
        let exact = self.shared.settings.exact_ecn_echo;
        let tcb = &mut *self.tcb;
        if exact {
            if seg.len == 0 {
                return;
            }
            if seg.ce != tcb.flags.has(Flags::LAST_CE) && tcb.segs_unacked > 0 {
                // The previous segments are acknowledged separately, with their CE state.
                let seq = tcb.nxt;
                self.send_ack(seq, Control::ACK, egress, now);
            }
            let tcb = &mut *self.tcb;
            tcb.flags.clear(Flags::LAST_CE | Flags::ECN_ECHO);
            if seg.ce {
                tcb.flags |= Flags::LAST_CE | Flags::ECN_ECHO;
            }
            return;
        }
        if seg.control.has(Control::CWR) {
            tcb.flags.clear(Flags::ECN_ECHO);
        }
        if seg.ce {
            tcb.flags |= Flags::ECN_ECHO | Flags::ACK_NOW;
        }
    }
}

/// Returns whether a segment is acceptable (RFC 9293 §3.4, §3.10.7.4). A segment of length zero at the right edge is
/// acceptable: a peer that has filled the window sends it.
fn is_acceptable(tcb: &Tcb, seg: &TcpHeader) -> bool {
    let seq_len = seg.seq_len();
    if seq_len == 0 {
        return seg.seq.at_or_after(tcb.rcv_nxt) && !seg.seq.after(tcb.rcv_edge);
    }
    (seg.seq + seq_len).after(tcb.rcv_nxt) && seg.seq.before(tcb.rcv_edge)
        // A FIN needs no window.
        || seg.len == 0 && seg.control.has(Control::FIN) && seg.seq == tcb.rcv_nxt
}
