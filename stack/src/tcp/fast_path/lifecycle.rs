//! Fast path of connection setup and close: completion of the handshake, FINs and their acknowledgements.
//!
//! As on the [fast path of data](crate::tcp::fast_path::established), a few comparisons recognise the case before
//! any state changes. `receive/process_segment.rs` handles everything else.

use crate::config::fast_paths::FastPath;
use crate::engine::SegmentMeta;
use crate::ip::egress::Egress;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::fast_path::established::{ack_lone_segment, note_lone_sent, update_snd_window};
use crate::tcp::tcb::{Flags, State};
use crate::wire::tcp::field;
use crate::wire::tcp::header::Control;
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;

/// Flags that a plain FIN does not express or has to wait for.
const FIN_SLOW_FLAGS: Flags =
    Flags::FIN_SENT.or(Flags::TLP).or(Flags::WINDOW_PROBE).or(Flags::KEEPALIVE).or(Flags::DSACK).or(Flags::ECN_ECHO);

/// Bytes of a TCP header without options (RFC 9293 §3.1).
const FIXED: usize = 20;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Processes a segment that completes a handshake, or is a plain FIN or its acknowledgement. `hash` is the hash of
    /// the tuple. Returns whether the segment was processed; otherwise nothing has changed.
    #[inline(always)]
    pub(crate) fn lifecycle_fast_path(mut self, meta: &SegmentMeta, hash: u64, packet: &P, now: Instant) -> bool {
        if !self.shared.settings.fast_paths.has(FastPath::Lifecycle) {
            return false;
        }
        let tcb = &mut *self.tcb;
        let data = packet.data();
        let Some((_, tcp)) = data.split_at_checked(meta.tcp_offset) else { return false };
        let Some(fixed) = tcp.first_chunk::<FIXED>() else { return false };
        let [seq, ack] = [4, 8].map(|at| Seq(field(fixed, at)));
        // Header length, control bits without PSH, and window.
        let rest = field(fixed, 12);
        let control = Control((rest >> 16) as u8 & !Control::PSH.0);
        if tcp.len() != tcb.header_len()
            || rest >> 28 != tcp.len() as u32 / 4
            || packet.len() != data.len()
            || seq != tcb.rcv_nxt
            || ack != tcb.nxt
            || tcb.tuple != meta.tuple
            || !tcb.flags.has(Flags::IN_TABLE)
            || tcb.in_rr_mode()
            || tcb.flags.has_any(Flags::ECN | Flags::PERSIST | Flags::ACTIVE_OPEN)
        {
            return false;
        }
        let mut ts_recent = tcb.ts_recent;
        if let Some(options) = tcp[FIXED..].first_chunk() {
            let Some(value) = tcb.paws_ok(options) else { return false };
            // RFC 7323 §4.3.
            if tcb.rcv_acked == seq {
                ts_recent = value;
            }
        }
        match tcb.state {
            State::SynReceived if control == Control::ACK && !self.shared.source_is_full(&meta.tuple) => {
                tcb.ts_recent = ts_recent;
                let window = rest as u16;
                let seg = TcpHeader { seq, ack, control, window, header: 0, len: 0, ce: false };
                self.establish(&seg, now);
                true
            }
            State::Established if control == Control::ACK.with(Control::FIN) => {
                self.fin_fast_path(ack, rest as u16, ts_recent, now)
            }
            // The service has received all other events, and the acknowledgement yields no measurement that is still
            // needed.
            State::LastAck if control == Control::ACK && tcb.flags.has(Flags::FIN_SENT | Flags::FIN_REPORTED) => {
                tcb.flags.clear(Flags::IN_TABLE);
                self.shared.table.remove(hash, self.slot);
                self.shared.finish_close(self.slot, tcb);
                true
            }
            _ => false,
        }
    }

    /// Processes a FIN of the peer on an established connection that acknowledges everything sent. Handles at most one
    /// segment in flight. `window` is the window field.
    #[inline(always)]
    fn fin_fast_path(mut self, ack: Seq, window: u16, ts_recent: u32, now: Instant) -> bool {
        let tcb = &mut *self.tcb;
        let acknowledged = ack - tcb.una;
        let mut ack_report = None;
        if let Some(buffers) = self.shared.buffers.of_mut(tcb) {
            let flight = &buffers.flight;
            let expected = if acknowledged == 0 {
                flight.is_empty()
            } else {
                flight.is_lone_acked_by(ack) && buffers.queue.is_lone() && tcb.unsent == 0
            };
            if !expected || !flight.is_clean() || !buffers.reassembly.is_empty() {
                return false;
            }
            if acknowledged != 0 {
                ack_report = ack_lone_segment(tcb, buffers, &mut self.shared.mbufs_held, ack, now);
            }
        } else if acknowledged != 0 {
            return false;
        }
        tcb.ts_recent = ts_recent;
        tcb.wl1 = tcb.rcv_nxt;
        update_snd_window(tcb, &mut self.cold, window);
        tcb.rcv_nxt += 1;
        tcb.rcv_edge = tcb.rcv_edge.max(tcb.rcv_nxt);
        tcb.state = State::CloseWait;
        let mut flags = Flags::ACK_NOW | Flags::TX_PENDING;
        if tcb.received == 0 && !tcb.flags.has(Flags::WANTS_ROOM) {
            // Except for the event of a new connection, which precedes others in any case, no event is pending.
            self.shared.report_peer_closed(tcb, self.shared.id(self.slot, tcb));
        } else {
            flags |= Flags::NOTIFY;
        }
        if tcb.mark_active(flags) {
            self.shared.active.push(self.slot);
        }
        if let Some(report) = ack_report {
            self.report_ack(ack, acknowledged, report, now);
        }
        true
    }

    /// Sends a FIN if no data or other signal is pending. Returns whether the FIN was sent.
    #[inline(always)]
    pub(crate) fn send_fin_fast_path<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        if !self.shared.settings.fast_paths.has(FastPath::Lifecycle) {
            return false;
        }
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        if tcb.flags & (Flags::FIN_QUEUED | FIN_SLOW_FLAGS) != Flags::FIN_QUEUED
            || !tcb.has_sent_all()
            || tcb.received > 0
            || tcb.state == State::Closed
        {
            return false;
        }
        let buffers = self.shared.buffers.attach(tcb);
        let flight = &buffers.flight;
        if !flight.is_clean() || !flight.is_empty() || buffers.reserved > 0 || !buffers.reassembly.is_empty() {
            return false;
        }
        let Some(window) = tcb.offer_full_window(is_low) else { return false };
        if !self.shared.send_control(tcb, tcb.nxt, Control::ACK.with(Control::FIN), window, &[], egress, now) {
            return false;
        }
        tcb.flags |= Flags::FIN_SENT;
        tcb.note_ack_sent();
        let flight = &mut self.shared.buffers.attach(tcb).flight;
        note_lone_sent(tcb, flight, 1, &self.shared.clock.earliest_rto, now);
        self.shared.arm_for(self.slot, tcb, tcb.retransmit_at);
        true
    }
}
