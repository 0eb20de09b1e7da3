//! A segment arrives (RFC 9293 §3.10.7.4).

use crate::congestion::CongestionControl;
use crate::drop_stats::Cause;
use crate::egress::{ETHERNET, Egress};
use crate::engine::{Head, Segments};
use crate::native::NativeEngine;
use crate::native::connection::Connection;
use crate::native::recovery::Acknowledgement;
use crate::native::segment::header::Control;
use crate::native::segment::options::{MAX_SACK_BLOCKS, Options, SackBlock, Timestamp};
use crate::native::segment::seq::Seq;
use crate::native::send::output::deadline;
use crate::native::tcb::{Block, Flags, State};
use crate::native::timers::tick::Tick;
use linerate_bypass::time::Instant;
use linerate_bypass::{BURST, Nic, Packet, prefetch_whole};
use smoltcp::wire::TcpPacket;

/// How old TS.Recent may be and still say that a segment is old (RFC 7323 §5.5: 24 days), in milliseconds.
const TS_RECENT_AGE: u32 = 24 * 86_400 * 1000;

/// Where in the TCP header the flags are (RFC 9293 §3.1).
const FLAGS: usize = 13;

/// The fields of a TCP header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub seq: Seq,
    pub ack: Seq,
    pub control: Control,
    pub window: u16,
    /// Bytes in front of the payload.
    pub header: usize,
    /// Bytes of payload.
    pub len: u32,
    /// The packet was marked "congestion experienced" (RFC 3168 §5).
    pub marked: bool,
}

impl Arrival {
    /// Reads the headers of a frame, found right by the demultiplexer; the TCP header begins at `start`, and the whole frame is
    /// `total` bytes long.
    #[inline]
    fn read(data: &[u8], start: usize, total: usize) -> Self {
        let (headers, tcp) = data.split_at(start);
        let ecn = match headers[ETHERNET] >> 4 {
            4 => headers[ETHERNET + 1] & 3,
            _ => headers[ETHERNET + 1] >> 4 & 3,
        };
        let control = Control(tcp[13]);
        let segment = TcpPacket::new_unchecked(tcp);
        let header = start + usize::from(segment.header_len());
        Arrival {
            seq: Seq(segment.seq_number().0 as u32),
            ack: Seq(segment.ack_number().0 as u32),
            control,
            window: segment.window_len(),
            header,
            len: total.saturating_sub(header) as u32,
            marked: ecn == 3,
        }
    }

    /// SEG.LEN: what it takes up of the sequence space.
    pub fn span(&self) -> u32 {
        self.len + u32::from(self.control.has(Control::SYN)) + u32::from(self.control.has(Control::FIN))
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Takes in the segments of a burst.
    pub(crate) fn take_burst<N: Nic<Packet = P>>(
        &mut self,
        segments: &mut Segments<P>,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let (packets, heads) = segments.parts();
        let mut hashes = [0; BURST];
        let mut slots = [u32::MAX; BURST];
        let mut packets = packets.drain(..);
        for heads in heads.chunks(BURST) {
            self.ask_ahead(heads, &mut hashes, &mut slots);
            for (head, (hash, slot)) in heads.iter().zip(hashes.iter().zip(&slots)) {
                let Some(packet) = packets.next() else { break };
                // What began it may have come in the same burst.
                let slot = if *slot == u32::MAX { self.candidate(*hash) } else { *slot };
                if let Some(packet) = self.take_turn(slot, head, packet, now) {
                    self.take_other(packet, head, *hash, slot, egress, now);
                }
            }
        }
        drop(packets);
        segments.clear();
    }

    /// The slot where the connection most likely is whose tuple has the hash `hash`; no slot if there is none.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> u32 {
        self.shared.table.candidate(hash).unwrap_or(u32::MAX)
    }

    /// Takes in a segment that is no turn in an exchange, with the hash of its tuple and its [candidate](Self::candidate).
    #[inline(never)]
    pub(crate) fn take_other<N: Nic<Packet = P>>(
        &mut self,
        packet: P,
        head: &Head,
        hash: u64,
        slot: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let Some(block) = self.blocks.get(slot as usize) else {
            return self.take_first(packet, head, hash, egress, now);
        };
        let finishes = packet.data().get(head.tcp + FLAGS).is_some_and(|flags| Control(*flags).has(Control::FIN));
        let left = if block.state == State::Established && !finishes {
            self.take_predicted(slot, head, packet, now)
        } else if self.take_step(slot, head, hash, &packet, now) {
            None
        } else {
            Some(packet)
        };
        if let Some(packet) = left {
            self.segment(packet, head, hash, slot, egress, now);
        }
    }

    /// Works out the hashes of the tuples in `heads`, and the slots where their connections most likely are.
    ///
    /// What their segments will touch is far from the core when there are many connections, and it comes faster together than
    /// one after the other: so first all slots of the table are asked for, then all control blocks, then all queues.
    #[inline(never)]
    fn ask_ahead(&self, heads: &[Head], hashes: &mut [u64; BURST], slots: &mut [u32; BURST]) {
        for (hash, head) in hashes.iter_mut().zip(heads) {
            *hash = head.tuple.hash_with(&self.shared.key);
            self.shared.table.prefetch(*hash);
        }
        for (slot, hash) in slots.iter_mut().zip(&hashes[..heads.len()]) {
            *slot = self.shared.table.candidate(*hash).unwrap_or(u32::MAX);
            if let Some(block) = self.blocks.get(*slot as usize) {
                prefetch_whole(block);
                self.shared.wheel.prefetch(*slot);
            }
            // What few segments need most of those of a connection do that is idle between them.
            if let Some(cold) = self.cold.get(*slot as usize) {
                prefetch_whole(cold);
            }
        }
        for slot in &slots[..heads.len()] {
            let block = self.blocks.get(*slot as usize);
            if let Some(exchange) = block.and_then(|block| self.shared.exchanges.of(block)) {
                prefetch_whole(exchange);
            } else if let Some(buffers) = block.and_then(|block| self.shared.buffers.of(block)) {
                prefetch_whole(buffers);
            }
        }
    }

    /// A segment has come that was not predicted, with the hash of its tuple and the slot where its connection most likely
    /// is.
    #[inline(never)]
    pub(crate) fn segment<N: Nic<Packet = P>>(
        &mut self,
        packet: P,
        head: &Head,
        hash: u64,
        candidate: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let Head { tuple, tcp } = *head;
        let data = packet.data();
        let arrival = Arrival::read(data, tcp, packet.len());
        let slot = match self.blocks.get(candidate as usize) {
            Some(block) if block.tuple == tuple && block.flags.has(Flags::IN_TABLE) => Some(candidate),
            Some(_) => self.look_up(hash, &tuple),
            None => None,
        };
        let Some(slot) = slot else {
            return self.stray(&tuple, &arrival, hash, packet, tcp, egress, now);
        };
        self.connection(slot).examine(arrival, packet, tcp, egress, now);
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// A segment has come that was not expected: it is looked at step by step.
    fn examine<N: Nic<Packet = P>>(
        &mut self,
        mut arrival: Arrival,
        packet: P,
        tcp: usize,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        if self.shared.settings.keepalive.is_some() && arrival.len == 0 && arrival.ack == self.block.una {
            self.heard(now);
        }
        let options = Options::parse(&packet.data()[tcp + 20..arrival.header]);
        let block = &mut *self.block;
        let control = arrival.control;
        match block.state {
            State::SynSent => return self.syn_sent(&arrival, &options, packet, egress, now),
            State::Closed => return,
            _ if control.has(Control::RST) => return self.take_reset(&arrival, egress, now),
            State::SynReceived if control.has(Control::SYN) && arrival.seq + 1 == block.rcv_nxt => {
                if !control.has(Control::ACK) {
                    // The SYN again: ours was lost.
                    block.flags |= Flags::ACK_NOW;
                    return self.dirty();
                }
                // Both ends opened at once (RFC 9293 §3.5, figure 8): the SYN is known, the rest is news.
                arrival.seq += 1;
                arrival.control.0 &= !Control::SYN.0;
            }
            _ => {}
        }
        let block = &mut *self.block;
        let control = arrival.control;
        let timestamp = if block.flags.has(Flags::TIMESTAMPS) {
            match options.timestamp {
                Some(timestamp) => {
                    let old = (timestamp.value.wrapping_sub(block.ts_recent) as i32) < 0;
                    if old && self.ts_recent_is_outdated(now) {
                        self.block.ts_recent = timestamp.value;
                    } else if old {
                        // RFC 7323 §5.3 R1.
                        return self.answer_out_of_order(&arrival, egress, now);
                    }
                    Some(timestamp)
                }
                // RFC 7323 §3.2.
                None => return egress.drop_for(Cause::NoTimestamp),
            }
        } else {
            None
        };
        let block = &mut *self.block;
        if !is_acceptable(block, &arrival) {
            let probes = block.rcv_window() == 0 && arrival.seq == block.rcv_nxt && !control.has(Control::SYN);
            self.answer_out_of_order(&arrival, egress, now);
            if !probes {
                return;
            }
            // The window is closed: the data have no place, but what they acknowledge counts (RFC 9293 §3.4).
            arrival.len = 0;
            arrival.control.0 &= !Control::FIN.0;
        }
        let block = &mut *self.block;
        let control = arrival.control;
        if control.has(Control::SYN) {
            // RFC 5961 §4.2.
            return self.challenge(egress, now);
        }
        if !control.has(Control::ACK) {
            return;
        }
        if block.state == State::SynReceived {
            if arrival.ack != block.nxt {
                // RFC 9293 §3.10.7.4, fifth.
                let tuple = block.tuple;
                return self.shared.reset_for(&tuple, &arrival, egress, now);
            }
            if !block.flags.has(Flags::ACTIVE) && self.shared.has_all(&block.tuple) {
                // Others were completed by SYN cookies meanwhile.
                egress.drop_for(Cause::TooManyPerSource);
                let tuple = block.tuple;
                self.shared.reset_for(&tuple, &arrival, egress, now);
                return self.end(Flags::WAS_RESET);
            }
            self.establish(&arrival, now);
        }
        let block = &mut *self.block;
        // RFC 5961 §5.2. What is older than the largest window that the peer has had is not of this connection.
        if arrival.ack.after(block.nxt)
            || i64::from(block.una.distance(arrival.ack)) > i64::from(self.cold.largest_window(block.snd_scale()))
        {
            return self.challenge(egress, now);
        }
        if let Some(timestamp) = timestamp
            && !arrival.seq.after(block.rcv_acked)
            && timestamp.value.wrapping_sub(block.ts_recent) as i32 >= 0
        {
            block.ts_recent = timestamp.value;
        }
        if block.flags.has(Flags::ECN) {
            self.note_congestion(&arrival, egress, now);
        }
        let sack = if self.block.flags.has(Flags::SACK) { &options.sack[..] } else { &[] };
        self.acknowledged(&arrival, sack, timestamp, now);
        self.take_rest(&arrival, packet, now);
    }

    /// Takes in the payload and the FIN of an acceptable segment whose acknowledgement has been taken in.
    #[inline(always)]
    pub(crate) fn take_rest(&mut self, arrival: &Arrival, packet: P, now: Instant) {
        if arrival.len > 0 && self.block.state.may_receive() {
            self.take_in(arrival, packet, now);
        }
        if arrival.control.has(Control::FIN) {
            self.peer_finishes(arrival.seq + arrival.len, now);
        }
    }

    /// What an acceptable ACK, not beyond SND.NXT, says of what we have sent.
    #[inline]
    pub(crate) fn acknowledged(
        &mut self,
        arrival: &Arrival,
        sack: &[SackBlock],
        timestamp: Option<Timestamp>,
        now: Instant,
    ) {
        let block = &mut *self.block;
        let window = u32::from(arrival.window) << block.snd_scale();
        let window_changed = window != block.snd_wnd;
        let forward = arrival.ack.after(block.una);
        // RFC 9293 §3.10.7.4: the window is taken from the newest segment; an acknowledgement of new data is always newer.
        let newest = forward || arrival.ack == block.una && arrival.seq.at_or_after(block.wl1);
        if newest {
            block.wl1 = arrival.seq;
            if window_changed {
                block.snd_wnd = window;
                self.window_changed();
            }
        }
        let block = &mut *self.block;
        if block.flags.has(Flags::PERSIST)
            && let Some(buffers) = self.shared.buffers.of_mut(block)
        {
            // It answers probes.
            buffers.stalled = Instant::ZERO;
        }
        if block.outstanding() == 0 && self.shared.buffers.of(block).is_none_or(|buffers| buffers.flight.is_settled()) {
            return;
        }
        let ece = block.flags.has(Flags::ECN) && arrival.control.has(Control::ECE);
        let mut blocks = [(Seq(0), Seq(0)); MAX_SACK_BLOCKS];
        for (place, block) in blocks.iter_mut().zip(sack) {
            *place = (block.left, block.right);
        }
        let acknowledgement = Acknowledgement {
            ack: arrival.ack,
            sack: &blocks[..sack.len().min(MAX_SACK_BLOCKS)],
            echoed_timestamp: timestamp.map(|timestamp| timestamp.echo),
            ece,
            duplicate_candidate: arrival.span() == 0 && !window_changed,
            pure: arrival.span() == 0,
            unsent: block.unsent > 0 && block.window_left() > 0,
            now,
        };
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return };
        let cold = &mut *self.cold;
        let outcome = buffers.flight.acknowledge(
            &acknowledgement,
            &mut block.rtt,
            &mut cold.path,
            &mut cold.control,
            &self.shared.settings.limits,
        );
        if outcome.window_changed {
            block.cwnd = cold.control.window();
        }
        if outcome.reduced && block.flags.has(Flags::ECN) {
            block.flags |= Flags::CWR;
        }
        let mut send = block.unsent > 0 || outcome.window_changed || block.flags.has(Flags::FIN_QUEUED);
        if forward {
            // A tail loss probe that the port has not taken is needless (RFC 8985 §7.2).
            block.flags.clear(Flags::PROBE);
            block.una = arrival.ack;
            let packets = buffers.queue.acknowledge(arrival.ack);
            self.shared.pinned.unqueue(packets);
            // Queues that have become empty go back where it would be sent.
            send |= buffers.queue.is_empty();
            block.retransmit_at = if buffers.flight.is_settled() {
                Tick::NONE
            } else {
                deadline(buffers, block, cold, &self.shared.settings.limits)
            };
            if block.flags.has(Flags::WANTS_ROOM) {
                self.touch();
            }
            let block = &mut *self.block;
            if block.flags.has(Flags::FIN_SENT) && block.una == block.nxt {
                self.fin_acknowledged(now);
            }
        } else {
            block.retransmit_at = deadline(buffers, block, cold, &self.shared.settings.limits);
        }
        if send {
            // It may turn out that nothing can be sent, so that this is the only one to arm the timer.
            self.dirty();
        }
        self.arm();
    }

    /// The peer's window is another.
    fn window_changed(&mut self) {
        let block = &mut *self.block;
        self.cold.offered(block.snd_wnd, block.snd_scale());
        if block.flags.has(Flags::PERSIST) && block.snd_wnd > 0 {
            block.flags.clear(Flags::PERSIST);
            block.retransmit_at = Tick::NONE;
            block.attempts = 0;
        }
        if block.unsent > 0 {
            self.dirty();
        }
    }

    /// Answers a segment that is not acceptable or old (RFC 9293 §3.10.7.4, first; RFC 7323 §5.3), reporting which of its
    /// data were received before (RFC 2883 §4).
    fn answer_out_of_order<N: Nic<Packet = P>>(&mut self, arrival: &Arrival, egress: &mut Egress<N>, now: Instant) {
        let block = &mut *self.block;
        if arrival.len == 0 && arrival.span() == 0 {
            return self.challenge(egress, now);
        }
        let known = arrival.seq.before(block.rcv_nxt) || block.has_buffers();
        if arrival.len > 0 && known && block.state.is_synchronized() {
            self.shared.buffers.attach(block).note_duplicate(block, arrival);
        }
        block.flags |= Flags::ACK_NOW;
        self.dirty();
    }

    /// Acknowledges what we have, unless that was done just now: a peer that knows nothing of the connection answers with a
    /// reset that we believe (RFC 5961 §3.2, §7).
    fn challenge<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if !self.cold.may_challenge(now) {
            return;
        }
        if self.block.state == State::SynReceived {
            // `ACK_NOW` would send the SYN-ACK again.
            let seq = self.block.nxt;
            self.send_empty(seq, Control::ACK, egress, now);
            return;
        }
        self.block.flags |= Flags::ACK_NOW;
        self.dirty();
    }

    /// Processes a reset (RFC 5961 §3.2). Only its sequence number counts: neither a payload nor an old timestamp (RFC 7323
    /// §5.2) makes it acceptable or unacceptable.
    fn take_reset<N: Nic<Packet = P>>(&mut self, arrival: &Arrival, egress: &mut Egress<N>, now: Instant) {
        let block = &*self.block;
        if arrival.seq == block.rcv_nxt {
            self.end(Flags::WAS_RESET);
        } else if arrival.seq.after(block.rcv_nxt) && arrival.seq.before(block.rcv_edge) {
            self.challenge(egress, now);
        }
    }

    /// Whether the connection has been silent for so long that its peer's timestamps may have wrapped (RFC 7323 §5.5).
    fn ts_recent_is_outdated(&self, now: Instant) -> bool {
        let block = &*self.block;
        let idle_since = self.cold.idle_since;
        !block.has_buffers() && crate::native::milliseconds(now).wrapping_sub(idle_since) > TS_RECENT_AGE
    }

    /// Explicit congestion notification on receipt (RFC 3168 §6.1.3; RFC 8257 §3.2).
    fn note_congestion<N: Nic<Packet = P>>(&mut self, arrival: &Arrival, egress: &mut Egress<N>, now: Instant) {
        let exact = self.shared.settings.exact_ecn_echo;
        let block = &mut *self.block;
        if exact {
            if arrival.len == 0 {
                return;
            }
            if arrival.marked != block.flags.has(Flags::LAST_MARKED) && block.unanswered > 0 {
                // What came before it is acknowledged by itself, with the state that it had.
                let seq = block.nxt;
                self.send_empty(seq, Control::ACK, egress, now);
            }
            let block = &mut *self.block;
            block.flags.clear(Flags::LAST_MARKED | Flags::ECN_ECHO);
            if arrival.marked {
                block.flags |= Flags::LAST_MARKED | Flags::ECN_ECHO;
            }
            return;
        }
        if arrival.control.has(Control::CWR) {
            block.flags.clear(Flags::ECN_ECHO);
        }
        if arrival.marked {
            block.flags |= Flags::ECN_ECHO | Flags::ACK_NOW;
        }
    }
}

/// Whether a segment may be looked at further (RFC 9293 §3.4, §3.10.7.4). One at the very edge of the window that takes up
/// nothing may, too: it is what a peer that has filled the window sends.
fn is_acceptable(block: &Block, arrival: &Arrival) -> bool {
    let span = arrival.span();
    if span == 0 {
        return arrival.seq.at_or_after(block.rcv_nxt) && !arrival.seq.after(block.rcv_edge);
    }
    (arrival.seq + span).after(block.rcv_nxt) && arrival.seq.before(block.rcv_edge)
        // A FIN needs no window.
        || arrival.len == 0 && arrival.control.has(Control::FIN) && arrival.seq == block.rcv_nxt
}
