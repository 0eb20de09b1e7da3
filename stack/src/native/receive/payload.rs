//! What arrives becomes the stream: payload in order, out of order and known already, and its end.

use crate::congestion::CongestionControl;
use crate::native::connection::Connection;
use crate::native::fair_share::MIN_SHARE;
use crate::native::receive::input::Arrival;
use crate::native::receive::reassembly::Inserted;
use crate::native::segment::seq::Seq;
use crate::native::tcb::conn_buffers::{Buffers, CROWDED};
use crate::native::tcb::{Block, Flags, State};
use linerate_bypass::Packet;
use linerate_bypass::time::Instant;

/// The longest payload that is put together with others in a [crowded](CROWDED) queue, and what all in the queue have on
/// average then: the short ones among many long ones, the ends of messages, are not worth a copy.
const SHORT: u32 = 256;

/// Kinds of data for which a connection may hold one more packet.
struct ReceiveRoom {
    /// Packets run low.
    is_low: bool,
    in_order: bool,
    out_of_order: bool,
}

impl<P: Packet> Buffers<P> {
    /// Notes what of `arrival`, whose payload has not been taken in, was received before, for the next acknowledgement to
    /// report: the first contiguous part of it, and next the larger block that holds this part (RFC 2883 §4, §4.2).
    pub(crate) fn note_duplicate(&mut self, block: &mut Block, arrival: &Arrival) {
        let end = arrival.seq + arrival.len;
        let duplicate = if arrival.seq.before(block.rcv_nxt) {
            (arrival.seq, end.min(block.rcv_nxt))
        } else if let Some(held) = self.reassembly.first_held(arrival.seq, end) {
            self.reassembly.note_recent(held.0);
            held
        } else {
            return;
        };
        self.duplicate = duplicate;
        block.flags |= Flags::DUPLICATE;
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Takes in the payload of an acceptable segment.
    #[inline]
    pub(crate) fn take_in(&mut self, arrival: &Arrival, mut packet: P, now: Instant) {
        // The headers are in the first segment of a chain (the demultiplexer has read them there).
        let tail = packet.unchain();
        if !packet.adjust(arrival.header) {
            return;
        }
        let block = &mut *self.block;
        let buffers = self.shared.buffers.attach(block);
        // One that the port has put together of several wants an answer as they do.
        block.unanswered = block.unanswered.saturating_add(1 + u8::from(arrival.len > u32::from(block.mss)));
        if tail.is_none() && arrival.seq == block.rcv_nxt && buffers.reassembly.is_empty() && !packet.is_empty() {
            let len = packet.len() as u32;
            let room = buffers.received.len() < CROWDED && self.shared.pinned.all < self.shared.settings.pressure;
            if arrival.len <= block.rcv_window() && room {
                buffers.received.push_back(packet);
                block.rcv_nxt += len;
                block.received += len;
                block.flags |= Flags::READABLE;
                self.shared.pinned.all += 1;
                return self.activate(Flags::TOUCHED | Flags::DIRTY);
            }
        }
        if arrival.seq == block.rcv_nxt
            && buffers.reassembly.is_empty()
            && arrival.len <= block.rcv_window()
            && let Some(tail) = tail
        {
            return self.take_chain(packet, tail, now);
        }
        let before = block.rcv_nxt;
        let gap = !buffers.reassembly.is_empty();
        buffers.note_duplicate(block, arrival);
        let mut seq = arrival.seq;
        let mut next = Some(packet);
        let mut rest = tail;
        while let Some(mut packet) = next {
            if rest.is_none() {
                rest = packet.unchain();
            }
            let len = packet.len() as u32;
            self.take_piece(seq, packet);
            seq += len;
            next = rest.take();
        }
        let block = &mut *self.block;
        let filled = block.rcv_nxt != before;
        let gap = gap || self.shared.buffers.of(block).is_some_and(|buffers| !buffers.reassembly.is_empty());
        if gap || !filled || arrival.seq != before {
            // RFC 5681 §4.2: out of order, a gap filled or part of it, or nothing new.
            block.flags |= Flags::ACK_NOW;
        }
        if filled {
            block.flags |= Flags::READABLE;
            self.touch();
        }
        self.dirty();
        self.fin_in_order(now);
    }

    /// Takes in what is next in order and within the window, in several segments: `first` and what follows it.
    fn take_chain(&mut self, first: P, tail: P, now: Instant) {
        let block = &mut *self.block;
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return };
        let mut next = Some(first);
        let mut rest = Some(tail);
        // Others may be too many, and are looked at one by one.
        let before = buffers.received.len();
        let mut room =
            CROWDED.saturating_sub(before).min(self.shared.settings.pressure.saturating_sub(self.shared.pinned.all));
        while room > 0
            && let Some(packet) = next.take()
        {
            let len = packet.len() as u32;
            if len > 0 {
                room -= 1;
                buffers.received.push_back(packet);
                block.rcv_nxt += len;
                block.received += len;
            }
            next = rest.take();
            rest = next.as_mut().and_then(Packet::unchain);
        }
        self.shared.pinned.all += buffers.received.len() - before;
        while let Some(packet) = next {
            let seq = self.block.rcv_nxt;
            let len = packet.len() as u32;
            self.take_piece(seq, packet);
            if self.block.rcv_nxt != seq + len {
                // No place: what follows would only lie behind a gap.
                self.block.flags |= Flags::ACK_NOW;
                break;
            }
            next = rest.take();
            rest = next.as_mut().and_then(Packet::unchain);
        }
        self.block.flags |= Flags::READABLE;
        self.activate(Flags::TOUCHED | Flags::DIRTY);
        self.fin_in_order(now);
    }

    /// Returns the kinds of data for which the connection may hold one more packet.
    fn receive_room(&self) -> ReceiveRoom {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        let (all, unread, is_low) = (shared.pinned.all, shared.unread(), shared.is_low());
        let (queued, held) =
            shared.buffers.of(self.block).map_or((0, 0), |it| (it.received.len(), it.received_packets()));
        ReceiveRoom {
            is_low,
            // Beyond the limit for all, only for a service that reads nearly at once.
            in_order: all < settings.packets && (unread < settings.packets_received || queued < MIN_SHARE),
            out_of_order: all < settings.packets_in_advance
                && unread < settings.pressure
                && (!is_low || held < shared.share()),
        }
    }

    /// Takes in one piece of payload at `seq`, in a single segment.
    fn take_piece(&mut self, mut seq: Seq, mut packet: P) {
        let room = self.receive_room();
        let block = &mut *self.block;
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return };
        let len = packet.len() as u32;
        let end = seq + len;
        if len == 0 {
            return;
        }
        if seq.before(block.rcv_nxt) {
            let known = (block.rcv_nxt - seq).min(len);
            if known == len || !packet.adjust(known as usize) {
                return;
            }
            seq = block.rcv_nxt;
        }
        if end.after(block.rcv_edge) {
            let beyond = (end - block.rcv_edge) as usize;
            if beyond >= packet.len() || !packet.trim(beyond) {
                return;
            }
        }
        let len = packet.len() as u32;
        let before = buffers.received_packets();
        if seq == block.rcv_nxt {
            // What fills a gap makes the queue longer by what lay behind it.
            let fits = buffers.received.len() < self.shared.settings.rx_packets;
            let crowded = if room.is_low { MIN_SHARE } else { CROWDED };
            if buffers.received.len() >= crowded
                && (fits || buffers.reassembly.is_empty())
                && len <= SHORT
                && block.received as usize <= buffers.received.len() * SHORT as usize
                && let Some(last) = buffers.received.back_mut()
                && let Some(place) = last.append(len as usize)
            {
                place.copy_from_slice(packet.data());
                self.shared.counts.copied += u64::from(len);
            } else if !fits || !room.in_order {
                self.shared.counts.pruned += 1;
                return;
            } else {
                buffers.received.push_back(packet);
            }
            block.rcv_nxt += len;
            block.received += len;
            while let Some((packet, len)) = buffers.reassembly.take(block.rcv_nxt) {
                buffers.received.push_back(packet);
                block.rcv_nxt += len;
                block.received += len;
            }
        } else if !room.out_of_order {
            self.shared.counts.pruned += 1;
        } else {
            // Each packet pins a buffer of the port: short ones are held only as many as long ones would be worth.
            let worth = CROWDED + buffers.reassembly.bytes() / SHORT as usize;
            let limit = self.shared.settings.rx_scattered.min(worth);
            match buffers.reassembly.insert(seq, packet, limit) {
                Inserted::Held | Inserted::Duplicate => {}
                Inserted::Copied => self.shared.counts.copied += u64::from(len),
                Inserted::Full => self.shared.counts.pruned += 1,
            }
        }
        self.shared.pinned.all = self.shared.pinned.all + buffers.received_packets() - before;
    }

    /// The peer's FIN is at `at`.
    #[inline(always)]
    pub(crate) fn peer_finishes(&mut self, at: Seq, now: Instant) {
        let block = &mut *self.block;
        if !block.state.may_receive() {
            // Again: it was acknowledged, and the acknowledgement was lost.
            block.flags |= Flags::ACK_NOW;
            return self.dirty();
        }
        if at == block.rcv_nxt {
            return self.finish_receiving(now);
        }
        if at.after(block.rcv_nxt) {
            self.shared.buffers.attach(block).reassembly.set_fin(at);
        }
        block.flags |= Flags::ACK_NOW;
        self.dirty();
    }

    /// Takes the peer's FIN in, if it came before what has now been filled.
    fn fin_in_order(&mut self, now: Instant) {
        let block = &*self.block;
        let next = block.rcv_nxt;
        if self.shared.buffers.of(block).is_some_and(|buffers| buffers.reassembly.is_fin_at(next)) {
            self.finish_receiving(now);
        }
    }

    /// The peer's FIN is next in order (RFC 9293 §3.10.7.4, eighth).
    #[inline(always)]
    pub(crate) fn finish_receiving(&mut self, now: Instant) {
        let block = &mut *self.block;
        block.rcv_nxt += 1;
        block.rcv_edge = block.rcv_edge.max(block.rcv_nxt);
        block.flags |= Flags::ACK_NOW;
        if let Some(buffers) = self.shared.buffers.of_mut(block)
            && !buffers.reassembly.is_empty()
        {
            self.shared.pinned.all -= buffers.reassembly.packets();
            buffers.reassembly.clear();
        }
        let block = &mut *self.block;
        match block.state {
            State::Established => block.state = State::CloseWait,
            State::FinWait1 => block.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(now),
            _ => {}
        }
        self.activate(Flags::TOUCHED | Flags::DIRTY);
    }
}
