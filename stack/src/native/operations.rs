//! What a service asks of a connection.

use super::NativeEngine;
use super::block::{Flags, State};
use crate::congestion::CongestionControl;
use crate::egress::Egress;
use linerate_bypass::{Bytes, ConnId, Nic, Packet};

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    pub(super) fn first_received(&mut self, conn: ConnId) -> &[u8] {
        let Some(slot) = self.find(conn) else { return &[] };
        let buffers = self.buffers.of(&self.blocks[slot as usize]);
        buffers.and_then(|buffers| buffers.received.front()).map_or(&[], Packet::data)
    }

    pub(super) fn drop_received(&mut self, conn: ConnId, n: usize) {
        let Some(slot) = self.find(conn) else { return };
        let block = &mut self.blocks[slot as usize];
        let Some(buffers) = self.buffers.of_mut(block) else { return };
        let mut left = n.min(block.received as usize);
        let consumed = left as u32;
        while left > 0
            && let Some(first) = buffers.received.front_mut()
        {
            let len = first.len();
            if len > left {
                // Within the packet's one segment.
                let _ = first.adjust(left);
                break;
            }
            left -= len;
            buffers.received.pop_front();
            self.pinned -= 1;
        }
        block.received -= consumed;
        self.after_consuming(slot, consumed);
    }

    pub(super) fn take_received(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        let slot = self.find(conn)?;
        let block = &mut self.blocks[slot as usize];
        let buffers = self.buffers.of_mut(block)?;
        let first = buffers.received.front_mut()?;
        let len = first.len();
        if max == 0 {
            return None;
        }
        let bytes = if len <= max {
            self.pinned -= 1;
            buffers.received.pop_front()?.into_bytes(0..len)
        } else {
            let mut bytes = first.retain(0)?;
            bytes.truncate(max);
            let _ = first.adjust(max);
            bytes
        };
        let n = bytes.len() as u32;
        block.received -= n;
        self.after_consuming(slot, n);
        Some(bytes)
    }

    /// The receive queue has become shorter by `n` bytes.
    #[inline]
    fn after_consuming(&mut self, slot: u32, n: u32) {
        if n == 0 {
            return;
        }
        self.consumed(slot, n, self.now);
        let block = &self.blocks[slot as usize];
        if block.received == 0 && block.state.peer_finished() && !block.flags.has(Flags::END_TOLD) {
            self.touch(slot);
        }
        self.dirty(slot);
    }

    /// Bytes that can be queued.
    #[inline]
    fn room(&self, slot: u32) -> usize {
        let block = &self.blocks[slot as usize];
        if !block.state.may_send() || block.flags.has(Flags::FIN_QUEUED) {
            return 0;
        }
        let queued = (block.outstanding() + block.unsent) as usize;
        let pieces = self.buffers.of(block).map_or(0, |buffers| buffers.queue.pieces());
        if pieces >= self.settings.tx_pieces { 0 } else { self.settings.tx_buffer.saturating_sub(queued) }
    }

    /// Whether it is worth telling the service of the room: a quarter of the buffer, so that a bulk sender is not called
    /// for every segment acknowledged.
    pub(super) fn has_enough_room(&self, slot: u32) -> bool {
        self.room(slot) * 4 >= self.settings.tx_buffer
    }

    pub(super) fn room_to_send(&mut self, conn: ConnId) -> usize {
        let Some(slot) = self.find(conn) else { return 0 };
        let room = self.room(slot);
        if room == 0 {
            self.want_room(slot);
        }
        room
    }

    fn want_room(&mut self, slot: u32) {
        self.blocks[slot as usize].flags |= Flags::WANTS_ROOM;
    }

    pub(super) fn send_bytes(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes> {
        let Some(slot) = self.find(conn) else { return Err(bytes) };
        if self.room(slot) < bytes.len() {
            self.want_room(slot);
            return Err(bytes);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let now = self.now;
        let block = &mut self.blocks[slot as usize];
        let buffers = self.buffers.attach(block, now);
        let end = block.nxt + block.unsent;
        block.unsent += bytes.len() as u32;
        buffers.queue.push_bytes(end, bytes);
        self.pinned += 1;
        self.dirty(slot);
        Ok(())
    }

    pub(super) fn reserve_place<N: Nic<Packet = P>>(
        &mut self,
        conn: ConnId,
        max: usize,
        egress: &mut Egress<N>,
    ) -> Option<&mut [u8]> {
        let slot = self.find(conn)?;
        let room = self.room(slot);
        if room < max {
            self.want_room(slot);
        }
        let max = max.min(room);
        if max == 0 {
            return None;
        }
        let now = self.now;
        let block = &mut self.blocks[slot as usize];
        let most = usize::from(block.mss);
        let end = block.nxt + block.unsent;
        let buffers = self.buffers.attach(block, now);
        // What was reserved and not committed is nothing.
        if buffers.reserved > 0 {
            let reserved = std::mem::take(&mut buffers.reserved);
            self.pinned -= buffers.queue.trim(reserved);
        }
        let mut n = buffers.queue.extend(max, most);
        if n == 0 {
            // The last packets are for receiving and for acknowledgements: without them nothing that is sent would ever be
            // let go.
            let packet = if self.pinned < self.settings.packets { egress.allocate_for_payload() } else { None };
            let Some(packet) = packet else {
                block.flags |= Flags::WANTS_ROOM;
                self.starved.push(slot);
                return None;
            };
            buffers.queue.push_packet(end, packet);
            self.pinned += 1;
            n = buffers.queue.extend(max, most);
        }
        buffers.reserved = n as u32;
        buffers.queue.end_mut(n)
    }

    pub(super) fn commit_place(&mut self, conn: ConnId, n: usize) {
        let Some(slot) = self.find(conn) else { return };
        let block = &mut self.blocks[slot as usize];
        let Some(buffers) = self.buffers.of_mut(block) else { return };
        let reserved = std::mem::take(&mut buffers.reserved);
        assert!(n <= reserved as usize, "{n} bytes committed of a place of {reserved}");
        self.pinned -= buffers.queue.trim(reserved - n as u32);
        block.unsent += n as u32;
        self.dirty(slot);
    }

    pub(super) fn forward_received(&mut self, from: ConnId, to: ConnId) -> usize {
        let (Some(source), Some(sink)) = (self.find(from), self.find(to)) else { return 0 };
        let mut moved = 0;
        loop {
            let room = self.room(sink);
            let block = &mut self.blocks[source as usize];
            let Some(buffers) = self.buffers.of_mut(block) else { break };
            let Some(first) = buffers.received.front_mut() else { break };
            let len = first.len();
            if room == 0 {
                self.want_room(sink);
                break;
            }
            if len > room {
                // A part of it, shared from here on.
                let Some(mut part) = first.retain(0) else { break };
                part.truncate(room);
                let _ = first.adjust(room);
                block.received -= room as u32;
                moved += room;
                self.queue_bytes(sink, part);
                continue;
            }
            let Some(packet) = buffers.received.pop_front() else { break };
            block.received -= len as u32;
            moved += len;
            let now = self.now;
            let block = &mut self.blocks[sink as usize];
            let end = block.nxt + block.unsent;
            block.unsent += len as u32;
            self.buffers.attach(block, now).queue.push_packet(end, packet);
        }
        if moved > 0 {
            self.after_consuming(source, moved as u32);
            self.dirty(sink);
        }
        moved
    }

    fn queue_bytes(&mut self, slot: u32, bytes: Bytes) {
        let now = self.now;
        let block = &mut self.blocks[slot as usize];
        let end = block.nxt + block.unsent;
        block.unsent += bytes.len() as u32;
        self.buffers.attach(block, now).queue.push_bytes(end, bytes);
        self.pinned += 1;
    }

    /// Finishes sending (RFC 9293 §3.10.4).
    pub(super) fn close_slot(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        match block.state {
            State::Established => block.state = State::FinWait1,
            State::CloseWait => block.state = State::LastAck,
            State::SynSent | State::SynReceived => return self.end(slot, Flags::WAS_ABORTED),
            _ => return,
        }
        block.flags |= Flags::FIN_QUEUED;
        block.flags.clear(Flags::WANTS_ROOM);
        self.dirty(slot);
    }

    /// Resets (RFC 9293 §3.10.5).
    pub(super) fn abort_slot(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        let resets = !matches!(block.state, State::Closed | State::SynSent | State::TimeWait);
        if block.state == State::Closed {
            return;
        }
        self.end(slot, Flags::WAS_ABORTED);
        if resets {
            self.blocks[slot as usize].flags |= Flags::RESET;
            self.dirty(slot);
        }
    }
}
