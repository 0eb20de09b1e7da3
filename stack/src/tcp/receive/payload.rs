//! Processing of received payload and FINs: in order, out of order, and duplicate.

use crate::tcp::buffers::reassembly::Inserted;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::connection::fair_share::MIN_SHARE;
use crate::tcp::tcb::conn_buffers::{CROWDED, ConnBuffers};
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::Packet;
use linerate_service::time::Instant;

/// Maximum payload that is merged with other packets in a [crowded](CROWDED) queue, if the average payload in the queue
/// is no longer. Short packets among long ones, such as the ends of messages, are not worth a copy.
const SHORT: u32 = 256;

/// Kinds of data for which a connection may hold one more packet.
struct ReceiveRoom {
    /// True if packets run low.
    is_low: bool,
    /// True if no packet is left for data beyond gaps or for data to send.
    is_scarce: bool,
    in_order: bool,
    out_of_order: bool,
}

impl<P: Packet> ConnBuffers<P> {
    /// Records the part of `seg` that was received before, which the next acknowledgement reports: the first contiguous
    /// part, and next the larger block that contains it (RFC 2883 §4, §4.2). The payload of `seg` is not yet queued.
    pub(crate) fn note_dsack(&mut self, tcb: &mut Tcb, seg: &TcpHeader) {
        let end = seg.seq + seg.len;
        let duplicate = if seg.seq.before(tcb.rcv_nxt) {
            (seg.seq, end.min(tcb.rcv_nxt))
        } else if let Some(held) = self.reassembly.first_held(seg.seq, end) {
            self.reassembly.note_recent(held.0);
            held
        } else {
            return;
        };
        self.dsack = duplicate;
        tcb.flags |= Flags::DSACK;
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Processes the payload of an acceptable segment.
    #[inline]
    pub(crate) fn receive_payload(&mut self, seg: &TcpHeader, mut packet: P, now: Instant) {
        // The headers are in the first mbuf of a chain, where the demultiplexer has parsed them.
        let tail = packet.unchain();
        if !packet.adjust(seg.header) {
            return;
        }
        let tcb = &mut *self.tcb;
        let buffers = self.shared.buffers.attach(tcb);
        // A segment merged by LRO counts as two, which triggers an immediate ACK.
        tcb.segs_unacked = tcb.segs_unacked.saturating_add(1 + u8::from(seg.len > u32::from(tcb.mss)));
        if tail.is_none() && seg.seq == tcb.rcv_nxt && buffers.reassembly.is_empty() && !packet.is_empty() {
            let len = packet.len() as u32;
            let room = buffers.received.len() < CROWDED && self.shared.mbufs_held.all < self.shared.settings.pressure;
            if seg.len <= tcb.rcv_window() && room {
                buffers.received.push_back(packet);
                tcb.rcv_nxt += len;
                tcb.received += len;
                tcb.flags |= Flags::READABLE;
                self.shared.mbufs_held.all += 1;
                return self.activate(Flags::NOTIFY | Flags::TX_PENDING);
            }
        }
        if seg.seq == tcb.rcv_nxt
            && buffers.reassembly.is_empty()
            && seg.len <= tcb.rcv_window()
            && let Some(tail) = tail
        {
            return self.receive_chain(packet, tail, now);
        }
        let before = tcb.rcv_nxt;
        let gap = !buffers.reassembly.is_empty();
        buffers.note_dsack(tcb, seg);
        let mut seq = seg.seq;
        let mut next = Some(packet);
        let mut rest = tail;
        while let Some(mut packet) = next {
            if rest.is_none() {
                rest = packet.unchain();
            }
            let len = packet.len() as u32;
            self.receive_chunk(seq, packet);
            seq += len;
            next = rest.take();
        }
        let tcb = &mut *self.tcb;
        let filled = tcb.rcv_nxt != before;
        let gap = gap || self.shared.buffers.of(tcb).is_some_and(|buffers| !buffers.reassembly.is_empty());
        if gap || !filled || seg.seq != before {
            // RFC 5681 §4.2: out-of-order data, a gap filled completely or in part, or no new data.
            tcb.flags |= Flags::ACK_NOW;
        }
        if filled {
            tcb.flags |= Flags::READABLE;
            self.notify();
        }
        self.schedule_tx();
        self.process_deferred_fin(now);
    }

    /// Queues the mbufs `first` and `tail` of a segment in order and within the window.
    fn receive_chain(&mut self, first: P, tail: P, now: Instant) {
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let mut next = Some(first);
        let mut rest = Some(tail);
        // Further packets may exceed a limit, and are checked one by one.
        let before = buffers.received.len();
        let mut room = CROWDED
            .saturating_sub(before)
            .min(self.shared.settings.pressure.saturating_sub(self.shared.mbufs_held.all));
        while room > 0
            && let Some(packet) = next.take()
        {
            let len = packet.len() as u32;
            if len > 0 {
                room -= 1;
                buffers.received.push_back(packet);
                tcb.rcv_nxt += len;
                tcb.received += len;
            }
            next = rest.take();
            rest = next.as_mut().and_then(Packet::unchain);
        }
        self.shared.mbufs_held.all += buffers.received.len() - before;
        while let Some(packet) = next {
            let seq = self.tcb.rcv_nxt;
            let len = packet.len() as u32;
            self.receive_chunk(seq, packet);
            if self.tcb.rcv_nxt != seq + len {
                // The queue is full: the following data would be beyond a gap.
                self.tcb.flags |= Flags::ACK_NOW;
                break;
            }
            next = rest.take();
            rest = next.as_mut().and_then(Packet::unchain);
        }
        self.tcb.flags |= Flags::READABLE;
        self.activate(Flags::NOTIFY | Flags::TX_PENDING);
        self.process_deferred_fin(now);
    }

    /// Returns the kinds of data for which the connection may hold one more packet.
    fn receive_room(&self) -> ReceiveRoom {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        let (all, unread, is_low) = (shared.mbufs_held.all, shared.unread(), shared.is_low());
        let (queued, held) =
            shared.buffers.of(self.tcb).map_or((0, 0), |it| (it.received.len(), it.received_packets()));
        ReceiveRoom {
            is_low,
            is_scarce: all >= settings.packets_in_advance,
            // Above the thresholds for all connections, a connection may still queue a few packets, enough for a
            // service that reads almost at once.
            in_order: all < settings.packets
                && (queued < MIN_SHARE
                    || unread < settings.packets_received
                        && (all < settings.packets_in_advance || held < shared.share())),
            out_of_order: all < settings.packets_in_advance
                && unread < settings.pressure
                && (!is_low || held < shared.share()),
        }
    }

    /// Queues the payload `packet`, a single mbuf, at `seq`.
    fn receive_chunk(&mut self, mut seq: Seq, mut packet: P) {
        let room = self.receive_room();
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let len = packet.len() as u32;
        let end = seq + len;
        if len == 0 {
            return;
        }
        if seq.before(tcb.rcv_nxt) {
            let known = (tcb.rcv_nxt - seq).min(len);
            if known == len || !packet.adjust(known as usize) {
                return;
            }
            seq = tcb.rcv_nxt;
        }
        if end.after(tcb.rcv_edge) {
            let beyond = (end - tcb.rcv_edge) as usize;
            if beyond >= packet.len() || !packet.trim(beyond) {
                return;
            }
        }
        let len = packet.len() as u32;
        if buffers.reassembly.has_spilled() {
            return self.spill_segment(seq, packet);
        }
        let before = buffers.received_packets();
        if seq == tcb.rcv_nxt {
            // A segment that fills a gap lengthens the queue by the data after the gap.
            let fits = buffers.received.len() < self.shared.settings.rx_packets;
            let crowded = if room.is_low { MIN_SHARE } else { CROWDED };
            if buffers.received.len() >= crowded
                && (fits || buffers.reassembly.is_empty())
                && len <= SHORT
                && (room.is_scarce || tcb.received as usize <= buffers.received.len() * SHORT as usize)
                && let Some(last) = buffers.received.back_mut()
                && let Some(space) = last.append(len as usize)
            {
                space.copy_from_slice(packet.data());
                self.shared.counters.copied += u64::from(len);
            } else if !fits || !room.in_order {
                self.shared.counters.pruned += 1;
                if buffers.received.len() < MIN_SHARE {
                    self.shared.note_starved_receiver();
                }
                return;
            } else {
                buffers.received.push_back(packet);
            }
            tcb.rcv_nxt += len;
            tcb.received += len;
            while let Some((packet, len)) = buffers.reassembly.take(tcb.rcv_nxt) {
                buffers.received.push_back(packet);
                tcb.rcv_nxt += len;
                tcb.received += len;
            }
        } else if !room.out_of_order {
            self.shared.counters.pruned += 1;
        } else {
            // Each packet pins an mbuf of the port: the number of short packets is limited to that of long packets with
            // the same payload.
            let worth = CROWDED + buffers.reassembly.bytes() / SHORT as usize;
            let limit = self.shared.settings.rx_out_of_order.min(worth);
            match buffers.reassembly.insert(seq, packet, limit) {
                Inserted::Held | Inserted::Duplicate => {}
                Inserted::Copied => self.shared.counters.copied += u64::from(len),
                Inserted::Full => self.shared.counters.pruned += 1,
            }
        }
        self.shared.mbufs_held.all = self.shared.mbufs_held.all + buffers.received_packets() - before;
    }

    /// Processes the peer's FIN at sequence number `at`.
    #[inline(always)]
    pub(crate) fn process_fin(&mut self, at: Seq, now: Instant) {
        let tcb = &mut *self.tcb;
        if !tcb.state.may_receive() {
            // Retransmission of the FIN: its acknowledgement was lost.
            tcb.flags |= Flags::ACK_NOW;
            return self.schedule_tx();
        }
        if at == tcb.rcv_nxt {
            return self.accept_fin(now);
        }
        if at.after(tcb.rcv_nxt) {
            self.shared.buffers.attach(tcb).reassembly.set_fin(at);
        }
        tcb.flags |= Flags::ACK_NOW;
        self.schedule_tx();
    }

    /// Processes a FIN that arrived before the gap in front of it was filled.
    pub(crate) fn process_deferred_fin(&mut self, now: Instant) {
        let tcb = &*self.tcb;
        let next = tcb.rcv_nxt;
        if self.shared.buffers.of(tcb).is_some_and(|buffers| buffers.reassembly.is_fin_at(next)) {
            self.accept_fin(now);
        }
    }

    /// Processes a FIN that is next in order (RFC 9293 §3.10.7.4, eighth).
    #[inline(always)]
    pub(crate) fn accept_fin(&mut self, now: Instant) {
        let tcb = &mut *self.tcb;
        tcb.flags |= Flags::ACK_NOW;
        if let Some(buffers) = self.shared.buffers.of_mut(tcb)
            && !buffers.reassembly.is_empty()
        {
            if buffers.reassembly.has_spilled() {
                // The FIN waits until the service can read the data on the heap.
                buffers.reassembly.set_fin(tcb.rcv_nxt);
                return self.schedule_tx();
            }
            self.shared.mbufs_held.all -= buffers.reassembly.packets();
            buffers.reassembly.discard();
        }
        tcb.rcv_nxt += 1;
        tcb.rcv_edge = tcb.rcv_edge.max(tcb.rcv_nxt);
        let tcb = &mut *self.tcb;
        match tcb.state {
            State::Established => tcb.state = State::CloseWait,
            State::FinWait1 => tcb.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(now),
            _ => {}
        }
        self.activate(Flags::NOTIFY | Flags::TX_PENDING);
    }
}
