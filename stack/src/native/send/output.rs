//! What a connection sends, when it is its turn (RFC 9293 §3.8).

use crate::congestion::CongestionControl;
use crate::egress::{ETHERNET, Egress};
use crate::native::SEGMENTS_PER_TURN;
use crate::native::connection::Connection;
use crate::native::recovery::Limits;
use crate::native::segment::control_segments::Syn;
use crate::native::segment::header::{Control, Ecn, Header, OptionBytes};
use crate::native::segment::options::{self, MAX_SACK_BLOCKS, MAX_SACK_BLOCKS_WITH_TIMESTAMP, SackBlock, Timestamp};
use crate::native::segment::seq::Seq;
use crate::native::tcb::cold::Cold;
use crate::native::tcb::conn_buffers::Buffers;
use crate::native::tcb::{Block, Flags, State};
use crate::native::timers::tick::Tick;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Nic, Packet};

/// The most payload in a packet that the port cuts into segments: with headers it stays below what IP can express.
const MAX_TSO: usize = 65_535 - 120;

/// Payload to be sent, and how.
struct Range {
    seq: Seq,
    len: u32,
    fin: bool,
    /// For the first time.
    new: bool,
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Sends what the connection in `slot` has to send. Returns whether there is more.
    pub(crate) fn send_all<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        self.discard_reserved();
        let block = &mut *self.block;
        match block.state {
            State::Closed if block.flags.has(Flags::RESET) => {
                block.flags.clear(Flags::RESET);
                self.send_reset(egress, now);
                self.touch();
                return false;
            }
            State::Closed => return false,
            State::SynSent | State::SynReceived => {
                if block.flags.take(Flags::ACK_NOW) {
                    let went = self.send_syn(egress, now);
                    if !went {
                        self.block.flags |= Flags::ACK_NOW;
                    }
                    return !went;
                }
                return false;
            }
            _ => {}
        }
        let more = self.send_data(egress, now);
        self.send_signals(egress, now);
        if !more {
            // A probe that found nothing to send must not widen the window later.
            self.block.flags.clear(Flags::PROBE);
            self.idle(now);
        }
        more
    }

    /// Sends lost data again and new data, as far as the windows allow. Returns whether more could be sent at once.
    fn send_data<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        let pacing = self.shared.settings.pacing;
        for n in 0..SEGMENTS_PER_TURN {
            let most = if pacing { self.due(n == 0, now) } else { u32::MAX };
            if most == 0 {
                return false;
            }
            let Some(range) = self.next_range(most, now) else { return false };
            if !self.send_range(&range, egress, now) && !self.send_piece(&range, egress, now) {
                return true;
            }
            if pacing {
                self.went(range.len);
            }
        }
        true
    }

    /// Sends what of `range` lies in its first piece, when the port has no packets to send all of it with: that takes two.
    #[cold]
    #[inline(never)]
    fn send_piece<N: Nic<Packet = P>>(&mut self, range: &Range, egress: &mut Egress<N>, now: Instant) -> bool {
        let Some(buffers) = self.shared.buffers.of(self.block) else { return false };
        let len = buffers.queue.piece_left(range.seq);
        (1..range.len).contains(&len) && self.send_range(&Range { len, fin: false, ..*range }, egress, now)
    }

    /// Something is to be sent after the connection was idle (RFC 5681 §4.1).
    #[inline(never)]
    pub(crate) fn restart(&mut self, now: Instant) {
        let block = &mut *self.block;
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return };
        buffers.idle = false;
        if block.outstanding() > 0 {
            return;
        }
        let cold = &mut *self.cold;
        let idle = crate::native::milliseconds(now).wrapping_sub(cold.idle_since);
        cold.control.idle(Duration::from_millis(idle.into()), block.rtt.rto(self.shared.settings.rto_floor));
        block.cwnd = cold.control.window();
    }

    /// What is to be sent next, new data of at most `most` bytes.
    #[inline]
    fn next_range(&mut self, most: u32, now: Instant) -> Option<Range> {
        let block = &mut *self.block;
        let mss = u32::from(block.mss);
        let fin_waits = block.flags.has(Flags::FIN_QUEUED) && !block.flags.has(Flags::FIN_SENT);
        let outstanding = block.outstanding();
        if outstanding == 0 && block.unsent == 0 && !fin_waits {
            return None;
        }
        if outstanding == 0 && self.shared.buffers.attach(block).idle {
            self.restart(now);
        }
        let block = &mut *self.block;
        let buffers = self.shared.buffers.attach(block);
        let mut allowance = block.cwnd;
        let probe = outstanding > 0 && block.flags.has(Flags::PROBE);
        if outstanding > 0 {
            // Unless it has been acknowledged while the port took nothing.
            if probe
                && let Some((seq, len)) = buffers.probe
                && seq.at_or_after(block.una)
            {
                // The path may have turned out to be narrower than when it was sent.
                return Some(Range::again(block, seq, buffers.queue.span(seq, len.min(mss))));
            }
            allowance = buffers.flight.allowance(block.cwnd);
            if let Some((seq, len)) = buffers.flight.retransmission(allowance.min(mss)) {
                return Some(Range::again(block, seq, buffers.queue.span(seq, len)));
            }
            if probe {
                allowance = allowance.max(mss);
            }
        }
        let window = block.window_left();
        let mut len = block.unsent.min(allowance).min(window);
        if len < mss && len < block.unsent {
            // RFC 9293 §3.8.6.2.1: less than a full segment is not worth sending while more is to come, unless it is half
            // of the largest window that the peer has; the timer sees to it that it goes in the end.
            if window < mss && window <= allowance && len > 0 {
                let worth = 2 * len >= self.cold.largest_window(block.snd_scale())
                    || block.flags.has(Flags::WINDOW_PROBE) && outstanding == 0;
                len = if worth { len } else { 0 };
            } else {
                len = 0;
            }
        }
        if len > 0 && len < mss && self.shared.settings.nagle && outstanding > 0 && !fin_waits && !probe {
            len = 0;
        }
        let ends = len == block.unsent;
        if len == 0 && !(ends && fin_waits) {
            return None;
        }
        if len > mss {
            len = match self.shared.settings.tso.map(|tso| most.min(tso.min(MAX_TSO) as u32)) {
                // The end of what there is goes along, unless it may have to wait.
                Some(most) if ends && len <= most && !self.shared.settings.nagle => len,
                Some(most) => len.min(most) / mss * mss,
                None => mss,
            };
        }
        len = buffers.queue.span(block.nxt, len);
        Some(Range { seq: block.nxt, len, fin: fin_waits && len == block.unsent, new: true })
    }

    /// Sends one segment of payload, with FIN or FIN alone. Returns whether it went.
    #[inline]
    fn send_range<N: Nic<Packet = P>>(&mut self, range: &Range, egress: &mut Egress<N>, now: Instant) -> bool {
        if egress.room() == 0 {
            return false;
        }
        let window = self.offer();
        let block = &mut *self.block;
        let tuple = block.tuple;
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return false };
        let Range { seq, len, fin, new } = *range;
        let timestamp = block.flags.has(Flags::TIMESTAMPS).then(|| Timestamp {
            value: crate::native::milliseconds(now).wrapping_add(block.ts_offset),
            echo: block.ts_recent,
        });
        let mut control = Control::ACK;
        if len > 0 && len == block.unsent || !new {
            control = control.and(Control::PSH);
        }
        if fin {
            control = control.and(Control::FIN);
        }
        let mut ecn = Ecn::NotCapable;
        if block.flags.has(Flags::ECN) {
            if block.flags.has(Flags::ECN_ECHO) {
                control = control.and(Control::ECE);
            }
            if new && len > 0 {
                // RFC 3168 §6.1.5: not on what is sent again.
                ecn = Ecn::Capable0;
                if block.flags.has(Flags::CWR) {
                    control = control.and(Control::CWR);
                }
            }
        }
        let mut sack = OptionBytes::NONE;
        if block.flags.has(Flags::DUPLICATE) || !buffers.reassembly.is_empty() && block.flags.has(Flags::SACK) {
            // Only as many as leave the segment as long as it is.
            sack = sack_option(block, buffers);
            if len as usize + sack.as_slice().len() > usize::from(block.mss) {
                sack = OptionBytes::NONE;
            }
        }
        let header = Header {
            tuple: &tuple,
            seq,
            ack: block.rcv_nxt,
            control,
            window,
            timestamp,
            options: sack.as_slice(),
            ecn,
            payload: len as usize,
            tso: (len > u32::from(block.mss)).then_some(block.mss),
        };
        let offload = self.shared.settings.offload;
        let link = egress.link_header(tuple.remote_v6().to_bits(), now).copied();
        let front = if link.is_some() { ETHERNET } else { 0 };
        // What the port does not sum is summed before the payload is handed over.
        let sum = if offload.tcp { 0 } else { crate::checksum::sum_of(buffers.queue.slices(seq, len)) };
        let write = |place: &mut [u8]| {
            if let Some(link) = link {
                place[..ETHERNET].copy_from_slice(&link);
            }
            header.write(&mut place[front..], offload, sum);
        };
        let Some(mut packet) = buffers.queue.compose(seq, len, front + header.len(), link.is_some(), egress, write)
        else {
            return false;
        };
        if let Some(offload) = header.offload(offload) {
            packet.set_tx_offload(offload);
        }
        let span = len + u32::from(fin);
        if new {
            buffers.flight.sent(span, now, block.cwnd);
            block.nxt += span;
            block.unsent -= len;
            if control.has(Control::CWR) {
                block.flags.clear(Flags::CWR);
            }
            if fin {
                block.flags |= Flags::FIN_SENT;
            }
        } else {
            buffers.flight.retransmitted(seq, span, now, timestamp.map_or(0, |timestamp| timestamp.value));
            buffers.probe = None;
            let segments = len.div_ceil(block.mss.max(1).into()).max(1);
            self.shared.counts.retransmitted += u64::from(segments);
            self.cold.retransmitted = self.cold.retransmitted.saturating_add(segments);
        }
        block.flags.clear(Flags::PROBE | Flags::WINDOW_PROBE);
        block.retransmit_at = deadline(buffers, block, self.cold, &self.shared.settings.limits);
        self.block.was_acknowledged();
        if link.is_some() {
            egress.send_frame(packet);
        } else {
            egress.send_ip(packet, tuple.remote().ip(), now);
        }
        self.arm();
        true
    }

    /// Sends what is not data: an acknowledgement that nothing has carried, a probe of a closed window or of an idle peer.
    fn send_signals<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let block = &mut *self.block;
        if block.flags.take(Flags::WINDOW_PROBE | Flags::KEEPALIVE) {
            // A number that the peer has had: it answers with what it expects (RFC 9293 §3.8.4, §3.8.6.1).
            let seq = block.una - 1;
            self.send_empty(seq, Control::ACK, egress, now);
        }
        let block = &mut *self.block;
        if block.unanswered > 1 {
            // RFC 5681 §4.2: every second segment at least.
            block.flags |= Flags::ACK_NOW;
        }
        if block.flags.has(Flags::ACK_NOW) || self.has_window_to_offer() {
            let block = &mut *self.block;
            let seq = block.nxt;
            if !self.send_empty(seq, Control::ACK, egress, now) {
                self.block.flags |= Flags::ACK_NOW;
                self.dirty();
            }
            if self.block.state == State::TimeWait {
                self.touch();
            }
            return;
        }
        let block = &mut *self.block;
        if block.unanswered > 0 && !block.ack_at.is_some() {
            block.ack_at = Tick::at_or_after(now + self.shared.settings.ack_delay);
            self.arm();
        }
    }

    /// Sends a segment without payload. Returns whether it went.
    pub(crate) fn send_empty<N: Nic<Packet = P>>(
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
        let block = &*self.block;
        if block.flags.has(Flags::ECN_ECHO) {
            control = control.and(Control::ECE);
        }
        let mut sack = OptionBytes::NONE;
        if let Some(buffers) = self.shared.buffers.of(block)
            && (block.flags.has(Flags::DUPLICATE) || !buffers.reassembly.is_empty())
        {
            sack = sack_option(block, buffers);
        }
        let went = self.shared.send_bare(block, seq, control, window, sack.as_slice(), egress, now);
        if went {
            self.block.was_acknowledged();
        }
        went
    }

    /// Sends our SYN, or SYN and ACK once the peer's has come. Returns whether it went.
    pub(crate) fn send_syn<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        let syn = Syn::of(self.block, &self.shared.settings, now);
        if self.block.attempts == 0 {
            // Before its TSval no other was sent.
            self.cold.idle_since = crate::native::milliseconds(now);
        }
        let went = self.shared.send_syn(&self.block.tuple, &syn, None, egress, now);
        if went {
            self.block.syn_went(&self.shared.settings, now);
            self.arm();
        }
        went
    }

    /// Resets the connection in `slot` (RFC 9293 §3.10.5).
    fn send_reset<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let block = &*self.block;
        let (tuple, seq, ack) = (block.tuple, block.nxt, block.rcv_nxt);
        self.shared.bare(&tuple, seq, ack, Control::RST.and(Control::ACK), 0, None, egress, now);
    }
}

impl Range {
    /// `len` numbers from `seq` on, sent before, of which the last may be the FIN.
    fn again(block: &Block, seq: Seq, len: u32) -> Range {
        let fin = block.flags.has(Flags::FIN_SENT) && seq + len == block.nxt;
        Range { seq, len: len - u32::from(fin), fin, new: false }
    }
}

/// When loss detection wants to be asked, at the latest.
#[inline]
pub(crate) fn deadline<P, C>(buffers: &Buffers<P>, block: &Block, cold: &Cold<C>, limits: &Limits) -> Tick {
    let at = buffers.flight.deadline(&block.rtt, &cold.path, limits);
    at.map_or(Tick::NONE, Tick::at_or_after)
}

/// What is to be reported of what has arrived out of order and of duplicates (RFC 2018, RFC 2883).
fn sack_option<P: Packet>(block: &Block, buffers: &Buffers<P>) -> OptionBytes {
    if !block.flags.has(Flags::SACK) {
        return OptionBytes::NONE;
    }
    let most = if block.flags.has(Flags::TIMESTAMPS) { MAX_SACK_BLOCKS_WITH_TIMESTAMP } else { MAX_SACK_BLOCKS };
    let mut blocks = [SackBlock::default(); MAX_SACK_BLOCKS];
    let mut n = 0;
    if block.flags.has(Flags::DUPLICATE) {
        let (left, right) = buffers.duplicate;
        blocks[0] = SackBlock { left, right };
        n = 1;
    }
    n += buffers.reassembly.blocks(&mut blocks[n..most]);
    if n == 0 {
        return OptionBytes::NONE;
    }
    OptionBytes::written(|place| options::emit_sack(place, &blocks[..n]))
}
