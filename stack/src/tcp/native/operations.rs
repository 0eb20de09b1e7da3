//! Operations of services on connections.

use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::fair_share::MIN_SHARE;
use crate::tcp::connection::{Connection, Shared};
use crate::tcp::tcb::cold::EndReason;
use crate::tcp::tcb::conn_buffers::CROWDED;
use crate::tcp::tcb::{Flags, State, Tcb};
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;
use linerate_service::{Bytes, ConnId, Unsent, WriteError};

/// Maximum payload that is copied to the last chunk of a crowded send queue.
const SHORT: usize = 256;

/// Returns the bytes of payload that are put into one outgoing packet: one segment, which is then sent in place, or as
/// many whole segments as fit if `mss` is at most a quarter of the room. A peer with a small MSS thus pins few packets.
#[inline]
fn payload_of_packet(mss: u16, room: usize) -> usize {
    let mss = usize::from(mss.max(1));
    if 4 * mss > room { mss } else { room - room % mss }
}

impl<P: Packet> Shared<P> {
    /// Returns the first received slice of the connection of `tcb`, in `slot`, which is not in request-response mode.
    #[inline(never)]
    pub(crate) fn peek_queued(&self, slot: u32, tcb: &Tcb) -> &[u8] {
        if tcb.received == 0 {
            self.note_empty_read(slot, tcb);
        }
        let buffers = self.buffers.of(tcb);
        buffers.and_then(|buffers| buffers.received.front()).map_or(&[], Packet::data)
    }

    /// Returns the bytes that can be queued on the connection of `tcb`.
    #[inline]
    pub(crate) fn send_space(&self, tcb: &Tcb) -> usize {
        if !tcb.state.may_send() {
            return 0;
        }
        let queued = (tcb.outstanding() + tcb.unsent) as usize;
        let chunks = self.buffers.of(tcb).map_or(0, |buffers| buffers.queue.chunks());
        if chunks >= self.settings.tx_chunks { 0 } else { self.settings.tx_buffer.saturating_sub(queued) }
    }

    /// Returns whether the service should be notified of free send buffer space: at a quarter of the buffer, so that a
    /// bulk sender is not called for every acknowledgement.
    pub(crate) fn has_enough_room(&self, tcb: &Tcb) -> bool {
        self.send_space(tcb) * 4 >= self.settings.tx_buffer
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    pub(crate) fn consume(&mut self, n: usize) {
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let mut left = n.min(tcb.received as usize);
        let consumed = left as u32;
        while left > 0
            && let Some(first) = buffers.received.front_mut()
        {
            let len = first.len();
            if len > left {
                // The packet is a single mbuf segment.
                let _ = first.adjust(left);
                break;
            }
            left -= len;
            buffers.received.pop_front();
            self.shared.mbufs_held.all -= 1;
        }
        tcb.received -= consumed;
        self.after_consuming(consumed);
    }

    pub(crate) fn take(&mut self, max: usize) -> Option<Bytes> {
        let tcb = &mut *self.tcb;
        if tcb.received == 0 {
            self.shared.note_empty_read(self.slot, tcb);
        }
        let buffers = self.shared.buffers.of_mut(tcb)?;
        let first = buffers.received.front_mut()?;
        let len = first.len();
        if max == 0 {
            return None;
        }
        let bytes = if len <= max {
            self.shared.mbufs_held.all -= 1;
            buffers.received.pop_front()?.into_bytes(0..len)
        } else {
            let mut bytes = first.retain(0)?;
            bytes.truncate(max);
            let _ = first.adjust(max);
            bytes
        };
        let n = bytes.len() as u32;
        tcb.received -= n;
        self.after_consuming(n);
        Some(bytes)
    }

    /// Updates the state after `n` bytes were removed from the receive queue.
    #[inline]
    fn after_consuming(&mut self, n: u32) {
        if n == 0 {
            return;
        }
        self.consumed(n, self.shared.clock.now);
        let tcb = &*self.tcb;
        if tcb.received == 0 && tcb.state.peer_finished() && !tcb.flags.has(Flags::FIN_REPORTED) {
            self.notify();
        }
        self.schedule_tx();
    }

    /// Returns the bytes that can be queued.
    #[inline]
    pub(crate) fn send_space(&self) -> usize {
        self.shared.send_space(self.tcb)
    }

    pub(crate) fn want_room(&mut self) {
        self.tcb.flags |= Flags::WANTS_ROOM;
    }

    /// Releases bytes that were reserved and not committed.
    #[inline]
    pub(crate) fn discard_reserved(&mut self) {
        if let Some(buffers) = self.shared.buffers.of_mut(self.tcb)
            && buffers.reserved > 0
        {
            let reserved = std::mem::take(&mut buffers.reserved);
            let packets = buffers.queue.trim(reserved);
            self.shared.mbufs_held.unqueue(packets);
        }
    }

    /// Returns whether queued data has to be sent before more is accepted, because packets run low. One chunk is always
    /// accepted, so that no two connections wait for each other.
    fn must_send_first(&self) -> bool {
        let chunks = self.shared.buffers.of(self.tcb).map_or(0, |buffers| buffers.queue.chunks());
        chunks > 0 && !self.shared.may_queue_packet(chunks)
    }

    /// Returns the reason why nothing can be sent, if that is the case.
    pub(crate) fn write_error(&self) -> WriteError {
        if self.tcb.state.may_send() { WriteError::Full } else { WriteError::Closed }
    }

    pub(crate) fn send(&mut self, bytes: Bytes) -> Result<(), Unsent> {
        self.discard_reserved();
        // An empty send queue accepts a slice of up to the full send buffer, even while send buffers are reduced.
        let room = match self.send_space() {
            0 => 0,
            _ if self.tcb.outstanding() + self.tcb.unsent == 0 => self.shared.settings.tx_buffer_max,
            room => room,
        };
        // An acknowledgement of queued data frees space and packets.
        if room < bytes.len() || self.must_send_first() {
            self.want_room();
            return Err(Unsent { bytes, error: self.write_error() });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.queue_bytes(bytes);
        self.schedule_tx();
        Ok(())
    }

    pub(crate) fn commit(&mut self, n: usize) {
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let reserved = std::mem::take(&mut buffers.reserved);
        assert!(n <= reserved as usize, "{n} bytes committed of {reserved} reserved");
        let packets = buffers.queue.trim(reserved - n as u32);
        self.shared.mbufs_held.unqueue(packets);
        tcb.unsent += n as u32;
        self.schedule_tx();
    }

    /// Queues the received data for transmission on the same connection, if all of it fits. Returns the number of
    /// bytes.
    #[inline]
    fn echo(&mut self) -> Option<usize> {
        self.discard_reserved();
        let n = self.tcb.received;
        if self.send_space() < n as usize {
            return None;
        }
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        let buffers = self.shared.buffers.of_mut(tcb)?;
        if is_low || buffers.queue.chunks() + buffers.received.len() > CROWDED {
            // The caller moves packets one by one, which enforces the share and merges short ones.
            return None;
        }
        let mut end = tcb.nxt + tcb.unsent;
        self.shared.mbufs_held.queued += buffers.received.len();
        while let Some(packet) = buffers.received.pop_front() {
            let len = packet.len() as u32;
            buffers.queue.push_packet(end, packet);
            end += len;
        }
        tcb.received = 0;
        tcb.unsent += n;
        self.after_consuming(n);
        Some(n as usize)
    }

    #[inline]
    fn first_len(&self) -> Option<usize> {
        Some(self.shared.buffers.of(self.tcb)?.received.front()?.len())
    }

    /// Takes the first received packet to queue it for transmission. It remains counted.
    #[inline]
    fn pop_received(&mut self) -> Option<P> {
        let packet = self.shared.buffers.of_mut(self.tcb)?.received.pop_front()?;
        self.tcb.received -= packet.len() as u32;
        Some(packet)
    }

    /// Splits the first `n` bytes from the first received packet, which is longer. The memory is shared.
    fn split_received(&mut self, n: usize) -> Option<Bytes> {
        let first = self.shared.buffers.of_mut(self.tcb)?.received.front_mut()?;
        let mut part = first.retain(0)?;
        part.truncate(n);
        let _ = first.adjust(n);
        self.tcb.received -= n as u32;
        Some(part)
    }

    /// Queues a received packet, which remains counted. A short packet is copied to the last chunk of a crowded queue.
    #[inline]
    fn queue_packet(&mut self, packet: P) {
        self.discard_reserved();
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        let end = tcb.nxt + tcb.unsent;
        tcb.unsent += packet.len() as u32;
        let queue = &mut self.shared.buffers.attach(tcb).queue;
        let crowded = if is_low { MIN_SHARE } else { CROWDED };
        // A short packet among full segments, such as the end of a message, is not worth a copy.
        let is_sparse = end - tcb.una <= (queue.chunks() * SHORT) as u32;
        if queue.chunks() >= crowded
            && is_sparse
            && packet.len() <= SHORT
            && queue.append_copy(packet.data(), usize::from(tcb.mss))
        {
            self.shared.mbufs_held.all -= 1;
            self.shared.counters.copied += packet.len() as u64;
            return;
        }
        queue.push_packet(end, packet);
        self.shared.mbufs_held.queued += 1;
    }

    /// Returns whether the connection holds its share of packets, so that more may be queued only after an
    /// acknowledgement.
    fn holds_its_share(&self) -> bool {
        let chunks = self.shared.buffers.of(self.tcb).map_or(0, |buffers| buffers.queue.chunks());
        chunks > 0 && self.shared.may_not_forward(chunks)
    }

    fn queue_bytes(&mut self, bytes: Bytes) {
        self.discard_reserved();
        let tcb = &mut *self.tcb;
        let end = tcb.nxt + tcb.unsent;
        tcb.unsent += bytes.len() as u32;
        let added = self.shared.buffers.attach(tcb).queue.push_bytes(end, bytes);
        let has_grown = added.heap_bytes > 0;
        self.shared.mbufs_held.add(added);
        if has_grown {
            self.shared.limit_send_buffers();
        }
    }

    /// Closes the local end (RFC 9293 §3.10.4).
    pub(crate) fn close(&mut self) {
        if let Some(linger) = self.shared.settings.linger
            && self.tcb.state.may_send()
        {
            if linger.is_zero() {
                return self.abort();
            }
            self.linger_for(linger);
        }
        let tcb = &mut *self.tcb;
        match tcb.state {
            State::Established => tcb.state = State::FinWait1,
            State::CloseWait => tcb.state = State::LastAck,
            State::SynSent | State::SynReceived => return self.end(EndReason::Aborted),
            _ => return,
        }
        tcb.flags |= Flags::FIN_QUEUED;
        tcb.flags.clear(Flags::WANTS_ROOM);
        self.schedule_tx();
    }

    /// Aborts the connection (RFC 9293 §3.10.5).
    pub(crate) fn abort(&mut self) {
        let tcb = &mut *self.tcb;
        let resets = tcb.state != State::SynSent;
        match tcb.state {
            State::Closed => return,
            // There is nothing to reset; the peer's FIN may still have to be acknowledged.
            State::TimeWait => {
                self.detach();
                self.tcb.received = 0;
                self.tcb.flags |= Flags::FIN_REPORTED;
                self.cold.end_reason = EndReason::Aborted;
                return self.notify();
            }
            _ => {}
        }
        if resets {
            self.end_with_reset(EndReason::Aborted);
        } else {
            self.end(EndReason::Aborted);
        }
    }

    /// Ends the connection and sends a RST.
    pub(crate) fn end_with_reset(&mut self, reason: EndReason) {
        self.end(reason);
        self.tcb.flags |= Flags::RESET;
        self.schedule_tx();
    }
}

impl<'a, P: Packet, C: CongestionControl> Connection<'a, P, C> {
    /// Reserves up to `max` bytes in an outgoing packet: the last one queued, if it is unsent and has room, or a new
    /// one.
    pub(crate) fn reserve<N: Nic<Packet = P>>(
        mut self,
        max: usize,
        egress: &mut Egress<N>,
    ) -> Result<&'a mut [u8], WriteError> {
        let room = self.send_space();
        if room < max {
            self.want_room();
        }
        let max = max.min(room);
        if max == 0 {
            return Err(self.write_error());
        }
        self.discard_reserved();
        // The flush releases bytes that are not committed by then.
        self.schedule_tx();
        let Connection { slot, tcb, shared, .. } = self;
        let most = payload_of_packet(tcb.mss, egress.capabilities().data_room);
        let end = tcb.nxt + tcb.unsent;
        let queue = &mut shared.buffers.attach(tcb).queue;
        let mut n = queue.extend(max, most);
        if n == 0 {
            let chunks = queue.chunks();
            let packet = if shared.may_queue_packet(chunks) { egress.allocate_for_payload() } else { None };
            let Some(packet) = packet else {
                // The flush also detaches the buffers if they stay empty.
                if !tcb.flags.has_any(Flags::NOTIFY | Flags::TX_PENDING) {
                    shared.active.push(slot);
                }
                tcb.flags |= Flags::WANTS_ROOM | Flags::TX_PENDING;
                // With data in the queue, an acknowledgement frees space.
                if chunks == 0 {
                    shared.alloc_blocked.push_back(slot);
                }
                return Err(WriteError::Full);
            };
            shared.mbufs_held.queue(1);
            let queue = &mut shared.buffers.attach(tcb).queue;
            queue.push_packet(end, packet);
            n = queue.extend(max, most);
        }
        let buffers = shared.buffers.attach(tcb);
        buffers.reserved = n as u32;
        buffers.queue.end_mut(n).ok_or(WriteError::Full)
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    #[inline]
    pub(crate) fn forward<N: Nic<Packet = P>>(
        &mut self,
        from: ConnId,
        to: ConnId,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> usize {
        let Some(mut source) = self.open_connection(from) else { return 0 };
        if from == to
            && let Some(moved) = source.rr_send_response::<false, N>(egress, now)
        {
            return moved;
        }
        self.forward_general(from, to, egress, now)
    }

    /// Implements the general case of [`forward`](Self::forward).
    #[inline(never)]
    fn forward_general<N: Nic<Packet = P>>(
        &mut self,
        from: ConnId,
        to: ConnId,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> usize {
        let Some(mut source) = self.open_connection(from) else { return 0 };
        if source.tcb.received == 0 {
            source.shared.note_empty_read(source.slot, source.tcb);
            return 0;
        }
        if from == to
            && let Some(moved) = source
                .rr_echo_later(egress)
                .or_else(|| source.reborrow().echo_lone(egress, now))
                .or_else(|| source.demote().echo())
        {
            return moved;
        }
        source.demote();
        let source = source.slot;
        let Some(mut sink) = self.open_connection(to) else { return 0 };
        sink.demote();
        let sink = sink.slot;
        let mut moved = 0;
        while let Some(n) = self.forward_chunk(source, sink) {
            moved += n;
        }
        if moved > 0 {
            if let Some(mut source) = self.connection(source) {
                source.after_consuming(moved as u32);
            }
            if let Some(mut sink) = self.connection(sink) {
                sink.schedule_tx();
            }
        }
        moved
    }

    /// Moves a received packet, or the part of it that fits, from the connection in `source` to the connection in
    /// `sink`. Returns the number of bytes, or `None` if nothing can be moved.
    fn forward_chunk(&mut self, source: u32, sink: u32) -> Option<usize> {
        let len = self.connection(source)?.first_len()?;
        let mut to = self.connection(sink)?;
        let room = to.send_space();
        if room == 0 || to.holds_its_share() {
            to.want_room();
            return None;
        }
        if len <= room {
            let packet = self.connection(source)?.pop_received()?;
            self.connection(sink)?.queue_packet(packet);
            return Some(len);
        }
        // A part of the packet, which both queues share.
        let part = self.connection(source)?.split_received(room)?;
        self.connection(sink)?.queue_bytes(part);
        Some(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_takes_one_segment_or_as_many_whole_ones_as_fit() {
        for (mss, payload) in [(1460, 1460), (513, 513), (512, 2048), (500, 2000), (88, 2024), (1, 2048), (0, 2048)] {
            assert_eq!(payload_of_packet(mss, 2048), payload, "MSS {mss}");
        }
    }
}
