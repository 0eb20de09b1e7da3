//! Transmission on the general path (RFC 9293 §3.8).

use crate::ip::egress::Egress;
use crate::tcp::SEGMENTS_PER_TURN;
use crate::tcp::clock::tick::Tick;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::recovery::Limits;
use crate::tcp::send::control_segments::Syn;
use crate::tcp::send::delayed_ack::sack_option;
use crate::tcp::tcb::cold::TcbCold;
use crate::tcp::tcb::conn_buffers::ConnBuffers;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::header::{Control, Ecn, OptionBytes, TxHeader};
use crate::wire::tcp::options::Timestamp;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};

/// Maximum payload of a TSO packet: with headers it stays below the limit of the IP length field.
const MAX_TSO: usize = 65_535 - 120;

/// Payload range to send.
struct TxRange {
    seq: Seq,
    len: u32,
    fin: bool,
    /// True if this is the first transmission.
    new: bool,
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Sends everything pending on the connection. Returns whether there is more.
    pub(crate) fn output<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        self.discard_reserved();
        let tcb = &mut *self.tcb;
        match tcb.state {
            State::Closed if tcb.flags.has(Flags::RESET) => {
                tcb.flags.clear(Flags::RESET);
                self.send_reset(egress, now);
                self.notify();
                return false;
            }
            State::Closed => return false,
            State::SynSent | State::SynReceived => {
                if tcb.flags.take(Flags::ACK_NOW) {
                    let went = self.send_syn(egress, now);
                    if !went {
                        self.tcb.flags |= Flags::ACK_NOW;
                    }
                    return !went;
                }
                return false;
            }
            _ => {}
        }
        let more = self.send_data(egress, now);
        self.send_acks_and_probes(egress, now);
        if !more {
            // A probe without data to send must not extend the window later.
            self.tcb.flags.clear(Flags::TLP);
            self.after_output(now);
        }
        more
    }

    /// Sends retransmissions and new data as far as the windows allow. Returns whether more could be sent at once.
    fn send_data<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        let pacing = self.shared.settings.pacing;
        for n in 0..SEGMENTS_PER_TURN {
            let most = if pacing { self.paced_burst(n == 0, now) } else { u32::MAX };
            if most == 0 {
                return false;
            }
            let Some(range) = self.next_range(most, now) else { return false };
            if !self.send_range(&range, egress, now) && !self.send_first_chunk(&range, egress, now) {
                return true;
            }
            if pacing {
                self.note_paced(range.len);
            }
        }
        true
    }

    /// Sends the part of `range` in its first chunk. Used when the port has no packets for the whole range, which takes
    /// two.
    #[cold]
    #[inline(never)]
    fn send_first_chunk<N: Nic<Packet = P>>(&mut self, range: &TxRange, egress: &mut Egress<N>, now: Instant) -> bool {
        let Some(buffers) = self.shared.buffers.of(self.tcb) else { return false };
        let len = buffers.queue.chunk_left(range.seq);
        (1..range.len).contains(&len) && self.send_range(&TxRange { len, fin: false, ..*range }, egress, now)
    }

    /// Restarts the congestion window before data is sent after idleness (RFC 5681 §4.1).
    #[inline(never)]
    pub(crate) fn restart_after_idle(&mut self, now: Instant) {
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        buffers.needs_restart = false;
        if tcb.outstanding() > 0 {
            return;
        }
        let cold = &mut *self.cold;
        let idle = timestamp_clock(now).wrapping_sub(cold.idle_since);
        cold.control.idle(Duration::from_millis(idle.into()), tcb.rtt.rto(self.shared.settings.rto_floor));
        tcb.cwnd = cold.control.window();
    }

    /// Returns the next range to send, with at most `most` bytes of new data.
    #[inline]
    fn next_range(&mut self, most: u32, now: Instant) -> Option<TxRange> {
        let tcb = &mut *self.tcb;
        let mss = u32::from(tcb.mss);
        let fin_waits = tcb.flags.has(Flags::FIN_QUEUED) && !tcb.flags.has(Flags::FIN_SENT);
        let outstanding = tcb.outstanding();
        if outstanding == 0 && tcb.unsent == 0 && !fin_waits {
            return None;
        }
        if outstanding == 0 && self.shared.buffers.attach(tcb).needs_restart {
            self.restart_after_idle(now);
        }
        let tcb = &mut *self.tcb;
        let buffers = self.shared.buffers.attach(tcb);
        let mut allowance = tcb.cwnd;
        let probe = outstanding > 0 && tcb.flags.has(Flags::TLP);
        if outstanding > 0 {
            // The range may have been acknowledged while the port accepted no packets.
            if probe
                && let Some((seq, len)) = buffers.probe
                && seq.at_or_after(tcb.una)
            {
                // The MSS may have been reduced since the first transmission.
                return Some(TxRange::sent_before(tcb, seq, buffers.queue.span(seq, len.min(mss))));
            }
            allowance = buffers.flight.allowance(tcb.cwnd);
            if let Some((seq, len)) = buffers.flight.retransmission(allowance.min(mss)) {
                return Some(TxRange::sent_before(tcb, seq, buffers.queue.span(seq, len)));
            }
            if probe {
                allowance = allowance.max(mss);
            }
        }
        let window = tcb.window_left();
        let mut len = tcb.unsent.min(allowance).min(window);
        if len < mss && len < tcb.unsent {
            // RFC 9293 §3.8.6.2.1: less than a full segment is sent only if no more data is queued, or if it is half of
            // the largest window of the peer. Otherwise the timer sends it.
            if window < mss && window <= allowance && len > 0 {
                let worth = 2 * len >= self.cold.largest_window(tcb.snd_scale())
                    || tcb.flags.has(Flags::WINDOW_PROBE) && outstanding == 0;
                len = if worth { len } else { 0 };
            } else {
                len = 0;
            }
        }
        let is_corked = tcb.flags.has(Flags::CORKED) && !tcb.flags.has(Flags::WINDOW_PROBE);
        let waits = is_corked || self.shared.settings.nagle && outstanding > 0;
        if len > 0 && len < mss && waits && !fin_waits && !probe {
            len = 0;
        }
        let ends = len == tcb.unsent;
        if len == 0 && !(ends && fin_waits) {
            return None;
        }
        if len > mss {
            len = match self.shared.settings.tso.map(|tso| most.min(tso.min(MAX_TSO) as u32)) {
                // The final short segment is included, unless Nagle's algorithm or TCP_CORK may delay it.
                Some(most) if ends && len <= most && !self.shared.settings.nagle && !is_corked => len,
                Some(most) => len.min(most) / mss * mss,
                None => mss,
            };
        }
        len = buffers.queue.span(tcb.nxt, len);
        Some(TxRange { seq: tcb.nxt, len, fin: fin_waits && len == tcb.unsent, new: true })
    }

    /// Sends one segment with payload, FIN or both. Returns whether it was sent.
    #[inline]
    fn send_range<N: Nic<Packet = P>>(&mut self, range: &TxRange, egress: &mut Egress<N>, now: Instant) -> bool {
        if !egress.has_data_room() {
            return false;
        }
        let window = self.offer();
        let tcb = &mut *self.tcb;
        let tuple = tcb.tuple;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return false };
        let TxRange { seq, len, fin, new } = *range;
        let timestamp = tcb
            .flags
            .has(Flags::TIMESTAMPS)
            .then(|| Timestamp { value: timestamp_clock(now).wrapping_add(tcb.ts_offset), echo: tcb.ts_recent });
        let mut control = Control::ACK;
        if len > 0 && len == tcb.unsent || !new {
            control = control.with(Control::PSH);
        }
        if fin {
            control = control.with(Control::FIN);
        }
        let mut ecn = Ecn::NotCapable;
        if tcb.flags.has(Flags::ECN) {
            if tcb.flags.has(Flags::ECN_ECHO) {
                control = control.with(Control::ECE);
            }
            if new && len > 0 {
                // RFC 3168 §6.1.5: retransmissions are not ECN-capable.
                ecn = Ecn::Capable0;
                if tcb.flags.has(Flags::CWR) {
                    control = control.with(Control::CWR);
                }
            }
        }
        let mut sack = OptionBytes::NONE;
        if tcb.flags.has(Flags::DSACK) || !buffers.reassembly.is_empty() && tcb.flags.has(Flags::SACK) {
            // SACK blocks must not make the segment longer than the MSS.
            sack = sack_option(tcb, buffers);
            if len as usize + sack.as_slice().len() > usize::from(tcb.mss) {
                sack = OptionBytes::NONE;
            }
        }
        let header = TxHeader {
            tuple: &tuple,
            seq,
            ack: tcb.rcv_nxt,
            control,
            window,
            timestamp,
            options: sack.as_slice(),
            ecn,
            payload: len as usize,
            tso: (len > u32::from(tcb.mss)).then_some(tcb.mss),
        };
        let offload = self.shared.settings.offload;
        let link = egress.link_header(tuple.remote_v6().to_bits(), now).copied();
        let front = if link.is_some() { ETHERNET_HEADER } else { 0 };
        // The checksum is computed before the payload is handed over, unless the port computes it.
        let sum = if offload.tcp { 0 } else { crate::wire::checksum::sum_of(buffers.queue.slices(seq, len)) };
        let write = |out: &mut [u8]| {
            if let Some(link) = link {
                out[..ETHERNET_HEADER].copy_from_slice(&link);
            }
            header.write(&mut out[front..], offload, sum);
        };
        let Some(mut packet) = buffers.queue.build_frame(seq, len, front + header.len(), link.is_some(), egress, write)
        else {
            return false;
        };
        if let Some(offload) = header.offload(offload) {
            packet.set_tx_offload(offload);
        }
        let span = len + u32::from(fin);
        if new {
            buffers.flight.sent(span, now, tcb.cwnd);
            tcb.nxt += span;
            tcb.unsent -= len;
            if control.has(Control::CWR) {
                tcb.flags.clear(Flags::CWR);
            }
            if fin {
                tcb.flags |= Flags::FIN_SENT;
            }
        } else {
            buffers.flight.retransmitted(seq, span, now, timestamp.map_or(0, |timestamp| timestamp.value));
            buffers.probe = None;
            let segments = len.div_ceil(tcb.mss.max(1).into()).max(1);
            self.shared.counters.retransmitted += u64::from(segments);
            self.cold.retransmitted = self.cold.retransmitted.saturating_add(segments);
        }
        tcb.flags.clear(Flags::TLP | Flags::WINDOW_PROBE);
        if tcb.flags.has(Flags::CORKED) {
            // The timer may have sent withheld data: the window is not zero.
            tcb.flags.clear(Flags::PERSIST);
        }
        tcb.retransmit_at = deadline(buffers, tcb, &self.cold, &self.shared.settings.limits);
        self.tcb.note_ack_sent();
        if link.is_some() {
            egress.send_frame(packet);
        } else {
            egress.send_ip(packet, tuple.remote().ip(), now);
        }
        self.arm();
        true
    }

    /// Sends a SYN, or a SYN-ACK once the peer's SYN has arrived. Returns whether it was sent.
    pub(crate) fn send_syn<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        let syn = Syn::of(self.tcb, &self.shared.settings, now);
        if self.tcb.attempts == 0 {
            // This is the first TSval: echoes of earlier values are not valid.
            self.cold.idle_since = timestamp_clock(now);
        }
        let went = self.shared.send_syn(&self.tcb.tuple, &syn, None, egress, now);
        if went {
            self.tcb.note_syn_sent(&self.shared.settings, now);
            self.arm();
        }
        went
    }

    /// Sends a RST (RFC 9293 §3.10.5).
    fn send_reset<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let tcb = &*self.tcb;
        let (tuple, seq, ack) = (tcb.tuple, tcb.nxt, tcb.rcv_nxt);
        self.shared.send_stateless(&tuple, seq, ack, Control::RST.with(Control::ACK), 0, None, egress, now);
    }
}

impl TxRange {
    /// Returns the range of `len` sequence numbers at `seq`, sent before. The last one may be the FIN.
    fn sent_before(tcb: &Tcb, seq: Seq, len: u32) -> TxRange {
        let fin = tcb.flags.has(Flags::FIN_SENT) && seq + len == tcb.nxt;
        TxRange { seq, len: len - u32::from(fin), fin, new: false }
    }
}

/// Returns the deadline of the retransmission timer.
#[inline]
pub(crate) fn deadline<P, C>(buffers: &ConnBuffers<P>, tcb: &Tcb, cold: &TcbCold<C>, limits: &Limits) -> Tick {
    let at = buffers.flight.deadline(&tcb.rtt, &cold.path, limits);
    at.map_or(Tick::NONE, Tick::at_or_after)
}
