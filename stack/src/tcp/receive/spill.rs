//! Unread data on the heap.
//!
//! A service that waits for room in the send queue does not read, so a peer that does not read pins packets in both
//! directions. The sweep (`fair_share`) moves unread data of connections without progress to the heap, and back into
//! packets when the peer acknowledges again or the service tries to read. Meanwhile the service has nothing to read,
//! further in-order data follows on the heap, and the receive buffer is smaller by the bytes on the heap, so that the
//! offered window does not grow.

use crate::ip::egress::Egress;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::tcb::Flags;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Returns whether the heap has room for `bytes` more.
    fn heap_has_room(&self, bytes: usize) -> bool {
        self.shared.mbufs_held.heap_bytes + bytes <= self.shared.settings.heap_limit
    }

    /// Counts `bytes` of unread data as moved to the heap, which shrinks the receive buffer.
    fn charge_heap(&mut self, bytes: usize) {
        self.shared.mbufs_held.heap_bytes += bytes;
        self.shared.counters.copied += bytes as u64;
        self.set_rx_limit(self.cold.rx_limit.saturating_sub(bytes as u32));
    }

    /// Moves unread data to the heap and discards out-of-order data. Data before a FIN stays in packets. Returns false
    /// if the heap has no room for the data.
    pub(crate) fn spill_unread(&mut self) -> bool {
        let bytes = self.tcb.received as usize;
        let has_room = self.heap_has_room(bytes);
        if bytes == 0 || self.tcb.state.peer_finished() || !has_room {
            self.pack_unread();
            return has_room;
        }
        self.discard_out_of_order();
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return true };
        // Data that returned from the heap in part precedes the rest.
        let mut unread = Vec::with_capacity(bytes + buffers.reassembly.spilled());
        while let Some(packet) = buffers.received.pop_front() {
            unread.extend_from_slice(packet.data());
            self.shared.mbufs_held.all -= 1;
        }
        buffers.reassembly.spill_front(unread);
        self.tcb.received = 0;
        self.charge_heap(bytes);
        true
    }

    /// Appends a chunk of payload at `seq`, within the window, to the unread data on the heap. Discards the chunk if it
    /// is out of order or the heap has no room.
    pub(crate) fn spill_segment(&mut self, seq: Seq, packet: P) {
        let bytes = packet.len();
        if seq != self.tcb.rcv_nxt || !self.heap_has_room(bytes) {
            self.shared.counters.pruned += 1;
            return;
        }
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return };
        buffers.reassembly.spill(packet.data());
        self.tcb.rcv_nxt += bytes as u32;
        self.charge_heap(bytes);
    }

    /// Moves unread data from the heap into packets, as far as the connection may hold packets.
    pub(crate) fn restore_unread<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let shared = &mut *self.shared;
        let most = if shared.is_low() { shared.share() } else { shared.settings.rx_packets };
        let Some(buffers) = shared.buffers.of_mut(self.tcb) else { return };
        buffers.progress.restored_at = now;
        let (received, room) = (&mut buffers.received, egress.capabilities().data_room);
        let before = received.len();
        let mut restored = 0;
        buffers.reassembly.restore(|mut data| {
            while !data.is_empty() && received.len() < most {
                let (chunk, rest) = data.split_at(data.len().min(room));
                let Some(mut packet) = egress.allocate_for_payload() else { break };
                let Some(tail) = packet.append(chunk.len()) else { break };
                tail.copy_from_slice(chunk);
                received.push_back(packet);
                restored += chunk.len();
                data = rest;
            }
            restored
        });
        shared.mbufs_held.all += buffers.received.len() - before;
        shared.mbufs_held.heap_bytes -= restored;
        shared.counters.copied += restored as u64;
        let limit = self.cold.rx_limit.saturating_add(restored as u32).min(self.shared.settings.rx_max);
        self.set_rx_limit(limit);
        let tcb = &mut *self.tcb;
        tcb.received += restored as u32;
        tcb.flags |= Flags::READABLE | Flags::CONSUMED;
        self.notify();
        self.schedule_tx();
        self.process_deferred_fin(now);
    }
}
