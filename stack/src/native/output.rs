//! What a connection sends, when it is its turn (RFC 9293 §3.8).

use super::block::{Block, Flags, State};
use super::buffers::Buffers;
use super::cold::Cold;
use super::header::{Control, Ecn, Header, OptionBytes};
use super::input::Arrival;
use super::options::{self, MAX_SACK_BLOCKS, MAX_SACK_BLOCKS_WITH_TIMESTAMP, SackBlock, SynOptions, Timestamp};
use super::recovery::Limits;
use super::seq::Seq;
use super::tick::Tick;
use super::{NativeEngine, SEGMENTS_PER_TURN};
use crate::congestion::CongestionControl;
use crate::drops::Cause;
use crate::egress::{ETHERNET, Egress};
use crate::tuple::Tuple;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Nic, Packet};

/// The most payload in a packet that the port cuts into segments: with headers it stays below what IP can express.
const MAX_TSO: usize = 65_535 - 120;

/// The answer to a SYN.
pub(super) struct SynAck {
    pub seq: Seq,
    pub ack: Seq,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamp: Option<Timestamp>,
    pub ecn: bool,
}

/// Payload to be sent, and how.
struct Range {
    seq: Seq,
    len: u32,
    fin: bool,
    /// For the first time.
    new: bool,
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Sends what the connection in `slot` has to send. Returns whether there is more.
    pub(super) fn send_all<N: Nic<Packet = P>>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) -> bool {
        let block = &mut self.blocks[slot as usize];
        if let Some(buffers) = self.buffers.of_mut(block)
            && buffers.reserved > 0
        {
            // What was reserved and not committed is nothing.
            let reserved = std::mem::take(&mut buffers.reserved);
            self.pinned -= buffers.queue.trim(reserved);
        }
        match block.state {
            State::Closed if block.flags.has(Flags::RESET) => {
                block.flags.clear(Flags::RESET);
                self.send_reset(slot, egress, now);
                self.touch(slot);
                return false;
            }
            State::Closed => return false,
            State::SynSent | State::SynReceived => {
                if block.flags.take(Flags::ACK_NOW) && !self.send_syn(slot, egress, now) {
                    self.blocks[slot as usize].flags |= Flags::ACK_NOW;
                    return true;
                }
                return false;
            }
            _ => {}
        }
        let more = self.send_data(slot, egress, now);
        self.send_signals(slot, egress, now);
        self.idle(slot, now);
        more
    }

    /// Sends lost data again and new data, as far as the windows allow. Returns whether more could be sent at once.
    fn send_data<N: Nic<Packet = P>>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) -> bool {
        for _ in 0..SEGMENTS_PER_TURN {
            let Some(range) = self.next_range(slot, now) else { return false };
            if !self.send_range(slot, &range, egress, now) {
                return true;
            }
        }
        true
    }

    /// What is to be sent next.
    #[inline]
    fn next_range(&mut self, slot: u32, now: Instant) -> Option<Range> {
        let block = &mut self.blocks[slot as usize];
        let mss = u32::from(block.mss);
        let fin_waits = block.flags.has(Flags::FIN_QUEUED) && !block.flags.has(Flags::FIN_SENT);
        let outstanding = block.outstanding();
        if outstanding == 0 && block.unsent == 0 && !fin_waits {
            return None;
        }
        let buffers = self.buffers.attach(block, now);
        if outstanding == 0 && buffers.idle {
            // RFC 5681 §4.1.
            buffers.idle = false;
            let cold = &mut self.cold[slot as usize];
            let idle = super::milliseconds(now).wrapping_sub(cold.idle_since);
            cold.control.idle(Duration::from_millis(idle.into()), block.rtt.rto(self.settings.limits.rto_floor));
            block.cwnd = cold.control.window();
        }
        let mut allowance = block.cwnd;
        if outstanding > 0 {
            let probe = block.flags.has(Flags::PROBE);
            if probe && let Some((seq, len)) = buffers.probe {
                return Some(Range::again(block, seq, len));
            }
            allowance = buffers.flight.allowance(block.cwnd);
            if let Some((seq, len)) = buffers.flight.retransmission(allowance.min(mss)) {
                return Some(Range::again(block, seq, len));
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
            if window < mss && window <= allowance && len > 0 && outstanding == 0 {
                len = if block.flags.has(Flags::WINDOW_PROBE) { len } else { 0 };
            } else if len < mss {
                len = 0;
            }
        }
        if len > 0 && len < mss && block.flags.has(Flags::NAGLE) && outstanding > 0 && !fin_waits {
            len = 0;
        }
        let ends = len == block.unsent;
        if len == 0 && !(ends && fin_waits) {
            return None;
        }
        if len > mss {
            len = match self.settings.tso {
                Some(most) => len.min(most.min(MAX_TSO) as u32) / mss * mss,
                None => mss,
            };
            len = buffers.queue.span(block.nxt, len);
        }
        Some(Range { seq: block.nxt, len, fin: fin_waits && len == block.unsent, new: true })
    }

    /// Sends one segment of payload, with FIN or FIN alone. Returns whether it went.
    #[inline]
    fn send_range<N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        range: &Range,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        if egress.room() == 0 {
            return false;
        }
        let window = self.offer(slot);
        let block = &mut self.blocks[slot as usize];
        let tuple = block.tuple;
        let Some(buffers) = self.buffers.of_mut(block) else { return false };
        let Range { seq, len, fin, new } = *range;
        let timestamp = block.flags.has(Flags::TIMESTAMPS).then(|| Timestamp {
            value: super::milliseconds(now).wrapping_add(block.ts_offset),
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
                if block.flags.take(Flags::CWR) {
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
        let offload = self.settings.offload;
        let link = egress.link_header(tuple.remote_v6().to_bits(), now);
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
            if fin {
                block.flags |= Flags::FIN_SENT;
            }
        } else {
            buffers.flight.retransmitted(seq, span, now, timestamp.map_or(0, |timestamp| timestamp.value));
            buffers.probe = None;
        }
        block.flags.clear(Flags::PROBE | Flags::WINDOW_PROBE);
        block.retransmit_at = deadline(buffers, block, &self.cold[slot as usize], &self.settings.limits);
        self.was_acknowledged(slot);
        if link.is_some() {
            egress.send_frame(packet);
        } else {
            egress.send_ip(packet, tuple.remote().ip(), now);
        }
        self.arm(slot);
        true
    }

    /// Sends what is not data: an acknowledgement that nothing has carried, a probe of a closed window or of an idle peer.
    fn send_signals<N: Nic<Packet = P>>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) {
        let block = &mut self.blocks[slot as usize];
        if block.flags.take(Flags::WINDOW_PROBE | Flags::KEEPALIVE) {
            // A number that the peer has had: it answers with what it expects (RFC 9293 §3.8.4, §3.8.6.1).
            let seq = block.una - 1;
            self.send_empty(slot, seq, Control::ACK, egress, now);
        }
        let block = &mut self.blocks[slot as usize];
        if block.unanswered > 1 {
            // RFC 5681 §4.2: every second segment at least.
            block.flags |= Flags::ACK_NOW;
        }
        if block.flags.has(Flags::ACK_NOW) || self.has_window_to_offer(slot) {
            let block = &mut self.blocks[slot as usize];
            let seq = block.nxt;
            if !self.send_empty(slot, seq, Control::ACK, egress, now) {
                self.blocks[slot as usize].flags |= Flags::ACK_NOW;
                self.dirty(slot);
            }
            if self.blocks[slot as usize].state == State::TimeWait {
                self.touch(slot);
            }
            return;
        }
        let block = &mut self.blocks[slot as usize];
        if block.unanswered > 0 && !block.ack_at.is_some() {
            block.ack_at = Tick::at_or_after(now + self.settings.ack_delay);
            self.arm(slot);
        }
    }

    /// Sends a segment without payload. Returns whether it went.
    pub(super) fn send_empty<N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        seq: Seq,
        mut control: Control,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        if egress.room() == 0 {
            return false;
        }
        let window = self.offer(slot);
        let block = &self.blocks[slot as usize];
        let tuple = block.tuple;
        let timestamp = block.flags.has(Flags::TIMESTAMPS).then(|| Timestamp {
            value: super::milliseconds(now).wrapping_add(block.ts_offset),
            echo: block.ts_recent,
        });
        if block.flags.has(Flags::ECN_ECHO) {
            control = control.and(Control::ECE);
        }
        let options = match self.buffers.of(block) {
            Some(buffers) if block.flags.has(Flags::SACK) => sack_option(block, buffers),
            _ => OptionBytes::NONE,
        };
        let header = Header {
            tuple: &tuple,
            seq,
            ack: block.rcv_nxt,
            control,
            window,
            timestamp,
            options: options.as_slice(),
            ecn: Ecn::NotCapable,
            payload: 0,
            tso: None,
        };
        let went = self.send_header(&header, egress, now);
        if went {
            self.was_acknowledged(slot);
        }
        went
    }

    /// A segment that acknowledges everything has been sent.
    #[inline]
    fn was_acknowledged(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        block.flags.clear(Flags::ACK_NOW | Flags::DUPLICATE);
        block.rcv_acked = block.rcv_nxt;
        block.unanswered = 0;
        block.ack_at = Tick::NONE;
    }

    /// Sends a segment that is only headers. Returns whether it went.
    fn send_header<N: Nic<Packet = P>>(&self, header: &Header, egress: &mut Egress<N>, now: Instant) -> bool {
        let Some(mut packet) = egress.allocate() else { return false };
        let link = egress.link_header(header.tuple.remote_v6().to_bits(), now);
        let front = if link.is_some() { ETHERNET } else { 0 };
        let Some(place) = packet.append(front + header.len()) else { return false };
        if let Some(link) = link {
            place[..ETHERNET].copy_from_slice(&link);
        }
        header.write(&mut place[front..], self.settings.offload, 0);
        if let Some(offload) = header.offload(self.settings.offload) {
            packet.set_tx_offload(offload);
        }
        if link.is_some() {
            egress.send_frame(packet);
        } else {
            egress.send_ip(packet, header.tuple.remote().ip(), now);
        }
        true
    }

    /// Sends our SYN, or SYN and ACK once the peer's has come. Returns whether it went.
    fn send_syn<N: Nic<Packet = P>>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) -> bool {
        let block = &self.blocks[slot as usize];
        let tuple = block.tuple;
        let first = block.state == State::SynSent;
        let value = super::milliseconds(now).wrapping_add(block.ts_offset);
        let syn = SynAck {
            seq: block.una,
            ack: block.rcv_nxt,
            window_scale: (first || block.scales != 0).then_some(self.settings.rx_scale),
            sack: first || block.flags.has(Flags::SACK),
            timestamp: (first || block.flags.has(Flags::TIMESTAMPS))
                .then_some(Timestamp { value, echo: if first { 0 } else { block.ts_recent } }),
            // RFC 3168 §6.1.1.1: a SYN that is not answered may have been dropped for asking.
            ecn: if first { self.settings.ecn && block.attempts == 0 } else { block.flags.has(Flags::ECN) },
        };
        let went = if first {
            self.send_first_syn(&tuple, &syn, egress, now)
        } else {
            self.send_syn_ack(&tuple, &syn, egress, now)
        };
        if went {
            self.syn_went(slot, now);
        }
        went
    }

    fn send_first_syn<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        syn: &SynAck,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let asks = if syn.ecn { Control::ECE.and(Control::CWR) } else { Control::default() };
        self.send_with_options(tuple, syn, Seq(0), Control::SYN.and(asks), egress, now)
    }

    pub(super) fn send_syn_ack<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        syn: &SynAck,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let agrees = if syn.ecn { Control::ECE } else { Control::default() };
        self.send_with_options(tuple, syn, syn.ack, Control::SYN.and(Control::ACK).and(agrees), egress, now)
    }

    fn send_with_options<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        syn: &SynAck,
        ack: Seq,
        control: Control,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let options = SynOptions {
            mss: self.settings.mss(tuple.is_ipv4()),
            window_scale: syn.window_scale,
            sack_permitted: syn.sack,
            timestamp: syn.timestamp,
        };
        let options = OptionBytes::written(|place| options.emit(place));
        let header = Header {
            tuple,
            seq: syn.seq,
            ack,
            control,
            window: self.settings.rx_first.min(65_535) as u16,
            timestamp: None,
            options: options.as_slice(),
            ecn: Ecn::NotCapable,
            payload: 0,
            tso: None,
        };
        self.send_header(&header, egress, now)
    }

    /// Resets the connection in `slot` (RFC 9293 §3.10.5).
    fn send_reset<N: Nic<Packet = P>>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) {
        let block = &self.blocks[slot as usize];
        let (tuple, seq, ack) = (block.tuple, block.nxt, block.rcv_nxt);
        self.bare(&tuple, seq, ack, Control::RST.and(Control::ACK), 0, None, egress, now);
    }

    /// Answers a segment that no connection claims (RFC 9293 §3.10.7.1).
    pub(super) fn reset_for<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        arrival: &Arrival,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let control = arrival.control;
        if control.has(Control::RST) {
            return;
        }
        if control.has(Control::ACK) {
            self.bare(tuple, arrival.ack, Seq(0), Control::RST, 0, None, egress, now);
        } else {
            let ack = arrival.seq + arrival.span();
            self.bare(tuple, Seq(0), ack, Control::RST.and(Control::ACK), 0, None, egress, now);
        }
    }

    /// Sends a segment that belongs to no connection's state.
    #[expect(clippy::too_many_arguments, reason = "the fields of a header, and the way out")]
    pub(super) fn bare<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        seq: Seq,
        ack: Seq,
        control: Control,
        window: u16,
        timestamp: Option<Timestamp>,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let header = Header {
            tuple,
            seq,
            ack,
            control,
            window,
            timestamp,
            options: &[],
            ecn: Ecn::NotCapable,
            payload: 0,
            tso: None,
        };
        if !self.send_header(&header, egress, now) {
            egress.drop_for(Cause::NoPacket);
        }
    }

    /// Our timestamp on a segment of `tuple` that belongs to no connection.
    pub(super) fn timestamp(&self, tuple: &Tuple, echo: u32, now: Instant) -> Timestamp {
        let value = super::milliseconds(now).wrapping_add(self.secrets.timestamp_offset(tuple));
        Timestamp { value, echo }
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
pub(super) fn deadline<P, C>(buffers: &Buffers<P>, block: &Block, cold: &Cold<C>, limits: &Limits) -> Tick {
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
