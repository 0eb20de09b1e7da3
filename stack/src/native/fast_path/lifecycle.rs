//! The steps that nearly every connection takes beside its data: the handshake is completed, the peer finishes, our FIN is
//! sent and acknowledged.
//!
//! As on the [fast path](crate::native::fast_path::established), a few comparisons find out that a segment is just that, and nothing is done until it
//! is certain. Everything else is looked at step by step in [`input`](crate::native::receive::input).

use crate::congestion::CongestionControl;
use crate::demux::demux_fast::field;
use crate::egress::Egress;
use crate::engine::Head;
use crate::fast_paths::FastPath;
use crate::native::NativeEngine;
use crate::native::fast_path::established::{acknowledge_lone, set_out, take_window};
use crate::native::receive::input::Arrival;
use crate::native::segment::header::Control;
use crate::native::segment::seq::Seq;
use crate::native::tcb::{Flags, State};
use linerate_bypass::time::Instant;
use linerate_bypass::{Nic, Packet};

/// What a FIN by itself does not say, or waits for.
const UNUSUAL_TO_END: Flags = Flags::FIN_SENT
    .or(Flags::PROBE)
    .or(Flags::WINDOW_PROBE)
    .or(Flags::KEEPALIVE)
    .or(Flags::DUPLICATE)
    .or(Flags::ECN_ECHO);

/// Bytes of a TCP header without options (RFC 9293 §3.1).
const FIXED: usize = 20;

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Takes in a segment of the connection in `slot`, whose tuple has the hash `hash`, if it is the connection's next step and
    /// nothing else. Returns whether it was; otherwise nothing has changed.
    #[inline(always)]
    pub(crate) fn take_step(&mut self, slot: u32, head: &Head, hash: u64, packet: &P, now: Instant) -> bool {
        if !self.shared.settings.fast_paths.has(FastPath::Lifecycle) {
            return false;
        }
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        let data = packet.data();
        let Some((_, tcp)) = data.split_at_checked(head.tcp) else { return false };
        let Some(fixed) = tcp.first_chunk::<FIXED>() else { return false };
        let [seq, ack] = [4, 8].map(|at| Seq(field(fixed, at)));
        // Whatever is said in the header's length, in the flags but for PSH, and in the window.
        let rest = field(fixed, 12);
        let control = Control((rest >> 16) as u8 & !Control::PSH.0);
        if tcp.len() != block.header_len()
            || rest >> 28 != tcp.len() as u32 / 4
            || packet.len() != data.len()
            || seq != block.rcv_nxt
            || ack != block.nxt
            || block.tuple != head.tuple
            || !block.flags.has(Flags::IN_TABLE)
            || block.is_exchanging()
            || block.flags.has_any(Flags::ECN | Flags::PERSIST | Flags::ACTIVE)
        {
            return false;
        }
        let mut ts_recent = block.ts_recent;
        if let Some(options) = tcp[FIXED..].first_chunk() {
            let Some(value) = block.newer(options) else { return false };
            // RFC 7323 §4.3.
            if block.rcv_acked == seq {
                ts_recent = value;
            }
        }
        match block.state {
            State::SynReceived if control == Control::ACK && !self.shared.has_all(&head.tuple) => {
                block.ts_recent = ts_recent;
                let window = rest as u16;
                let arrival = Arrival { seq, ack, control, window, header: 0, len: 0, marked: false };
                self.connection(slot).establish(&arrival, now);
                true
            }
            State::Established if control == Control::ACK.and(Control::FIN) => {
                self.take_fin(slot, ack, rest as u16, ts_recent, now)
            }
            // The service knows of everything, and nothing is left to be learnt from what is acknowledged.
            State::LastAck if control == Control::ACK && block.flags.has(Flags::FIN_SENT | Flags::END_TOLD) => {
                block.flags.clear(Flags::IN_TABLE);
                self.shared.table.remove(hash, slot);
                self.shared.conclude(slot, block);
                true
            }
            _ => false,
        }
    }

    /// The peer of the established connection in `slot` finishes, and acknowledges all that we have sent: no more than one
    /// segment is taken in here. `window` is the field.
    #[inline(always)]
    fn take_fin(&mut self, slot: u32, ack: Seq, window: u16, ts_recent: u32, now: Instant) -> bool {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        let acknowledged = ack - block.una;
        let mut notable = None;
        if let Some(buffers) = self.shared.buffers.of_mut(block) {
            let flight = &buffers.flight;
            let expected = if acknowledged == 0 {
                flight.is_empty()
            } else {
                flight.is_answered_by(ack) && buffers.queue.is_lone() && block.unsent == 0
            };
            if !expected || !flight.is_clean() || !buffers.reassembly.is_empty() {
                return false;
            }
            if acknowledged != 0 {
                notable = acknowledge_lone(block, buffers, &mut self.shared.pinned, ack, now);
            }
        } else if acknowledged != 0 {
            return false;
        }
        block.ts_recent = ts_recent;
        block.wl1 = block.rcv_nxt;
        take_window(slot, block, &mut self.cold, window);
        block.rcv_nxt += 1;
        block.rcv_edge = block.rcv_edge.max(block.rcv_nxt);
        block.state = State::CloseWait;
        let mut news = Flags::ACK_NOW | Flags::DIRTY;
        if block.received == 0 && !block.flags.has(Flags::WANTS_ROOM) {
            // Nothing is to be told first, or only that it is open, which comes first anyhow.
            self.shared.tell_peer_closed(block, self.shared.id(slot, block));
        } else {
            news |= Flags::TOUCHED;
        }
        if block.list(news) {
            self.shared.active.push(slot);
        }
        if let Some(answer) = notable {
            self.report(slot, ack, acknowledged, answer, now);
        }
        true
    }

    /// Sends our FIN on the connection in `slot` if nothing is left to be sent before it, or to be said beside it. Returns
    /// whether it went.
    #[inline(always)]
    pub(crate) fn send_fin<N: Nic<Packet = P>>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) -> bool {
        if !self.shared.settings.fast_paths.has(FastPath::Lifecycle) {
            return false;
        }
        let is_low = self.shared.is_low();
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        if block.flags & (Flags::FIN_QUEUED | UNUSUAL_TO_END) != Flags::FIN_QUEUED
            || !block.has_sent_all()
            || block.received > 0
            || block.state == State::Closed
        {
            return false;
        }
        let buffers = self.shared.buffers.attach(block);
        let flight = &buffers.flight;
        if !flight.is_clean() || !flight.is_empty() || buffers.reserved > 0 || !buffers.reassembly.is_empty() {
            return false;
        }
        let Some(window) = block.offer_all(is_low) else { return false };
        if !self.shared.send_bare(block, block.nxt, Control::ACK.and(Control::FIN), window, &[], egress, now) {
            return false;
        }
        block.flags |= Flags::FIN_SENT;
        block.was_acknowledged();
        let flight = &mut self.shared.buffers.attach(block).flight;
        set_out(block, flight, 1, &self.shared.soonest, now);
        self.shared.arm_for(slot, block, block.retransmit_at);
        true
    }
}
