//! Turns are taken, and connections begin and cease to take them.

use super::{LocalTurn, RrState, Turn};
use crate::congestion::CongestionControl;
use crate::demux::demux_fast::field;
use crate::egress::Egress;
use crate::engine::SegmentMeta;
use crate::fast_paths::FastPath;
use crate::native::NativeEngine;
use crate::native::fast_path::established::update_snd_window;
use crate::native::tcb::{Flags, Tcb};
use crate::native::timers::tick::Tick;
use linerate_bypass::time::Instant;
use linerate_bypass::{Nic, Packet};

/// Of how many round trips one is reported to what is known of the path.
const PATH_SAMPLE_INTERVAL: u32 = 16;

/// A segment that is the peer's turn.
struct PeerSegment {
    /// The length of its headers and of its payload.
    header: usize,
    len: u32,
    /// The window field.
    window: u16,
    /// TSval; without timestamps what it was.
    timestamp: u32,
}

impl<P> LocalTurn<P> {
    /// `packet` has been received.
    #[inline(always)]
    fn new(packet: P) -> Self {
        LocalTurn { request: Some(packet), response: None, reserved: 0 }
    }
}

impl<P: Packet> RrState<P> {
    /// What `packet` is, of the connection of `tcb` and with a TCP header of `N` bytes, if it is the peer's turn: the next
    /// data in order, which acknowledge all that was sent, and nothing else.
    #[inline(always)]
    fn match_segment<const N: usize>(&self, tcb: &Tcb, head: &SegmentMeta, packet: &P) -> Option<PeerSegment> {
        // First, so that the tuple, of which much is in registers, is done with.
        if tcb.tuple != head.tuple {
            return None;
        }
        let data = packet.data();
        let (header, payload) = data.get(head.tcp_offset..)?.split_first_chunk::<N>()?;
        let len = payload.len() as u32;
        let fixed = header.first_chunk::<20>()?;
        let flags_and_window = field(fixed, 12);
        // The length of the header, and the flags: an acknowledgement, and perhaps PSH (RFC 9293 §3.1).
        if flags_and_window >> 16 & !0x0008 != (N as u32) << 10 | 0x0010
            || field(fixed, 4) != tcb.rcv_nxt.0
            || field(fixed, 8) != tcb.nxt.0
            || len.wrapping_sub(1) >= tcb.rcv_window()
            || packet.len() != data.len()
            || matches!(self.turn, Turn::Local(_))
        {
            return None;
        }
        let mut timestamp = tcb.ts_recent;
        if N == 32 {
            timestamp = tcb.paws_ok(header.last_chunk()?)?;
        }
        Some(PeerSegment { header: head.tcp_offset + N, len, window: flags_and_window as u16, timestamp })
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Takes in a segment of the connection in `slot` if it is the peer's turn in an exchange: the next data in order, which
    /// acknowledge all that was sent. Otherwise gives it back; if the connection has an exchange, it has none any more.
    #[inline(always)]
    pub(crate) fn rr_receive(&mut self, slot: u32, head: &SegmentMeta, packet: P, now: Instant) -> Option<P> {
        let Some(tcb) = self.tcbs.get(slot as usize) else { return Some(packet) };
        if !tcb.in_rr_mode() {
            return Some(packet);
        }
        if tcb.flags.has(Flags::TIMESTAMPS) {
            self.rr_receive_as::<32>(slot, head, packet, now)
        } else {
            self.rr_receive_without_timestamps(slot, head, packet, now)
        }
    }

    /// [`rr_receive`](Self::rr_receive) without timestamps.
    #[inline(never)]
    fn rr_receive_without_timestamps(&mut self, slot: u32, head: &SegmentMeta, packet: P, now: Instant) -> Option<P> {
        self.rr_receive_as::<20>(slot, head, packet, now)
    }

    /// [`rr_receive`](Self::rr_receive) on a connection that has an exchange, with a TCP header of `N` bytes.
    #[inline(always)]
    fn rr_receive_as<const N: usize>(
        &mut self,
        slot: u32,
        head: &SegmentMeta,
        mut packet: P,
        now: Instant,
    ) -> Option<P> {
        let Some(tcb) = self.tcbs.get_mut(slot as usize) else { return Some(packet) };
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return Some(packet) };
        let segment = rr.match_segment::<N>(tcb, head, &packet);
        let Some(segment) = segment.filter(|segment| packet.adjust(segment.header)) else {
            self.demote(slot);
            return Some(packet);
        };
        let PeerSegment { len, window, timestamp, .. } = segment;
        // All before it has been acknowledged, so that it continues the last acknowledgement sent (RFC 7323 §4.3).
        tcb.ts_recent = timestamp;
        if window != rr.window {
            rr.window = window;
            update_snd_window(slot, tcb, &mut self.cold, window);
        }
        tcb.una = tcb.nxt;
        tcb.retransmit_at = Tick::NONE;
        tcb.rcv_nxt += len;
        tcb.received = len;
        rr.peer_turns = rr.peer_turns.wrapping_add(1);
        let is_path_sample = rr.peer_turns % PATH_SAMPLE_INTERVAL == 0;
        let sample = now.as_nanos().saturating_sub(rr.sent_at.as_nanos());
        tcb.rtt.sample_nanos(sample, 0);
        // What was sent is let go of, and what has come is held instead.
        if let Turn::Peer(sent) = std::mem::replace(&mut rr.turn, Turn::Local(LocalTurn::new(packet))) {
            drop(sent);
        }
        self.shared.rr.local_turns += 1;
        self.shared.rr.readable.push(self.shared.id(slot, tcb));
        if is_path_sample {
            self.report_rtt(slot, sample, now);
        }
        None
    }

    /// Takes in what a round trip of the connection in `slot` says of the path.
    #[inline(never)]
    fn report_rtt(&mut self, slot: u32, sample: u64, now: Instant) {
        let (Some(tcb), Some(cold)) = (self.tcbs.get_mut(slot as usize), self.cold.get_mut(slot as usize)) else {
            return;
        };
        cold.path.measured_nanos(sample, now);
        cold.path.advise(&mut tcb.rtt, &self.shared.settings.limits);
    }

    /// What the connection in `slot` has just sent is all that is on its way, and nothing else is the matter: from now on its
    /// ends take turns.
    #[inline(never)]
    pub(crate) fn promote(&mut self, slot: u32, now: Instant) {
        let (Some(tcb), Some(cold)) = (self.tcbs.get_mut(slot as usize), self.cold.get(slot as usize)) else {
            return;
        };
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        if tcb.received > 0
            || tcb.unsent > 0
            || tcb.flags & (Flags::OPEN | Flags::WANTS_ROOM) != Flags::OPEN
            || !self.shared.settings.fast_paths.has(FastPath::RequestResponse)
            || self.shared.settings.pacing
            || !tcb.rtt.has_sample()
            || cold.path.backoff() > 0
        {
            return;
        }
        let Some(sent) = buffers.queue.take_lone() else { return };
        self.shared.buffers.detach(tcb);
        tcb.flags.clear(Flags::CONSUMED);
        self.shared.rr.attach(tcb, sent, now);
        self.shared.mbufs_held.queued -= 1;
    }

    /// The wheel's entry of the connection in `slot` has come up. Returns whether that was all: the connection has an exchange in
    /// which nothing is due, and the wheel another entry for it.
    #[inline]
    pub(crate) fn rr_timer_is_early(&mut self, slot: u32, now: Instant) -> bool {
        let Some(tcb) = self.tcbs.get_mut(slot as usize) else { return false };
        // Services' timers and lingering are not looked at here.
        let others = !self.shared.service_timers.is_empty() || !self.shared.linger_deadlines.is_empty();
        if !tcb.in_rr_mode() || others || tcb.retransmit_at.is_due(Tick::of(now)) {
            return false;
        }
        tcb.wheel_at = Tick::NONE;
        self.shared.arm_for(slot, tcb, tcb.retransmit_at);
        if let Some(timeout) = self.shared.settings.idle_timeout {
            // A connection that comes to rest before leaves its exchange, and notes when.
            self.shared.arm_for(slot, tcb, Tick::at_or_after(now + timeout));
        }
        true
    }

    /// Answers those whose turn it was and whose service has written an answer, and sees to those whose service has not
    /// answered.
    #[inline]
    pub(crate) fn rr_flush<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if self.shared.rr.local_turns > 0 {
            self.rr_respond_or_demote(egress, now);
        }
        self.shared.rr.readable.clear();
        self.shared.rr.readable_reported = false;
    }

    #[inline(never)]
    fn rr_respond_or_demote<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let mut readable = std::mem::take(&mut self.shared.rr.readable);
        for conn in readable.drain(..) {
            let slot = conn.slot() as u32;
            if self.rr_respond::<true, N>(slot, egress, now).is_none() && self.is_local_turn(slot) {
                self.demote(slot);
            }
        }
        self.shared.rr.readable = readable;
    }

    /// Whether the connection in `slot` has an exchange in which it is our turn.
    #[inline(always)]
    fn is_local_turn(&self, slot: u32) -> bool {
        let tcb = self.tcbs.get(slot as usize);
        let rr = tcb.and_then(|tcb| self.shared.rr.of(tcb));
        rr.is_some_and(|rr| matches!(rr.turn, Turn::Local(_)))
    }

    /// Makes the connection in `slot`, which has an exchange, an ordinary one.
    #[cold]
    #[inline(never)]
    pub(crate) fn demote(&mut self, slot: u32) {
        let Some(tcb) = self.tcbs.get_mut(slot as usize) else { return };
        let Some((turn, sent_at)) = self.shared.rr.detach(tcb) else { return };
        let buffers = self.shared.buffers.attach(tcb);
        // It was not idle.
        buffers.idle = false;
        match turn {
            Turn::Local(LocalTurn { request, response, reserved }) => {
                // It is all that has not been acknowledged.
                tcb.wl1 = tcb.rcv_acked;
                let len = tcb.rcv_nxt - tcb.rcv_acked;
                // One that the port has put together of several wants an answer as they do.
                tcb.segs_unacked = 1 + u8::from(len > u32::from(tcb.mss));
                let mut flags = Flags::TX_PENDING;
                if let Some(packet) = request {
                    buffers.received.push_back(packet);
                }
                match response {
                    Some(packet) if tcb.unsent + reserved > 0 => {
                        buffers.queue.push_packet(tcb.nxt, packet);
                        buffers.reserved = reserved;
                    }
                    Some(_) => self.shared.mbufs_held.unqueue(1),
                    None => {}
                }
                // Its service is to be told of it, if it has not been.
                if self.shared.rr.cancel_readable(slot) {
                    flags |= Flags::READABLE | Flags::NOTIFY;
                }
                if tcb.mark_active(flags) {
                    self.shared.active.push(slot);
                }
            }
            Turn::Peer(sent) => {
                tcb.wl1 = tcb.rcv_nxt;
                buffers.flight.resume_lone(sent.len() as u32, sent_at, tcb.cwnd);
                buffers.queue.push_lone(tcb.una, sent);
                self.shared.mbufs_held.queued += 1;
            }
        }
    }
}
