//! Dispatch of received segments to the fast paths and to the general path.

use crate::engine::{SegmentMeta, Segments};
use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::tcb::{Flags, State};
use crate::wire::tcp::header::Control;
use crate::wire::tcp::received::TcpHeader;
use linerate_bypass::{BURST, Nic, Packet, prefetch_whole};
use linerate_service::time::Instant;

/// Offset of the control bits in the TCP header (RFC 9293 §3.1).
const FLAGS: usize = 13;

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    pub(crate) fn process_burst<N: Nic<Packet = P>>(
        &mut self,
        segments: &mut Segments<P>,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let (packets, metas) = segments.parts();
        let mut hashes = [0; BURST];
        let mut slots = [u32::MAX; BURST];
        let mut packets = packets.drain(..);
        for metas in metas.chunks(BURST) {
            self.prefetch_burst(metas, &mut hashes, &mut slots);
            for (meta, (hash, slot)) in metas.iter().zip(hashes.iter().zip(&slots)) {
                let Some(packet) = packets.next() else { break };
                // An earlier segment of the burst may have created the connection.
                let slot = if *slot == u32::MAX { self.candidate(*hash) } else { *slot };
                self.receive(packet, *meta, *hash, slot, egress, now);
            }
        }
        drop(packets);
        segments.clear();
    }

    #[inline(always)]
    pub(crate) fn process_one<N: Nic<Packet = P>>(
        &mut self,
        packet: P,
        meta: SegmentMeta,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let hash = meta.tuple.hash_with(&self.shared.key);
        self.receive(packet, meta, hash, self.candidate(hash), egress, now);
    }

    /// Returns the slot of the connection that most likely has a tuple with the hash `hash`, or `u32::MAX`.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> u32 {
        self.shared.table.candidate(hash).unwrap_or(u32::MAX)
    }

    /// Processes a segment, given the hash of its tuple and its [candidate](Self::candidate). `meta` is passed by
    /// value, here and to the functions that are not inlined, so that the compiler keeps it in registers.
    #[inline(always)]
    pub(crate) fn receive<N: Nic<Packet = P>>(
        &mut self,
        packet: P,
        meta: SegmentMeta,
        hash: u64,
        slot: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let Some(mut connection) = self.connection(slot) else {
            return self.syn_fast_path(packet, meta, hash, egress, now);
        };
        if let Some(packet) = connection.rr_receive(&meta, packet, now) {
            self.dispatch(packet, meta, hash, slot, egress, now);
        }
    }

    /// Processes a segment that request-response mode did not accept, given the hash of its tuple and its
    /// [candidate](Self::candidate).
    #[inline(never)]
    fn dispatch<N: Nic<Packet = P>>(
        &mut self,
        packet: P,
        meta: SegmentMeta,
        hash: u64,
        slot: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let Some(connection) = self.connection(slot) else { return };
        let finishes =
            packet.data().get(meta.tcp_offset + FLAGS).is_some_and(|flags| Control(*flags).has(Control::FIN));
        let left = if connection.tcb.state == State::Established && !finishes {
            connection.header_predict(&meta, packet, now)
        } else if connection.lifecycle_fast_path(&meta, hash, &packet, now) {
            None
        } else {
            Some(packet)
        };
        if let Some(packet) = left {
            self.process_unpredicted(packet, &meta, hash, slot, egress, now);
        }
    }

    /// Computes the hashes of the tuples in `metas` and the slots of their connections.
    ///
    /// With many connections their state is in memory, where loads that overlap take less time than loads in sequence.
    /// Therefore the table slots of all segments are prefetched first, then all control blocks, then all queues.
    #[inline(never)]
    fn prefetch_burst(&self, metas: &[SegmentMeta], hashes: &mut [u64; BURST], slots: &mut [u32; BURST]) {
        for (hash, meta) in hashes.iter_mut().zip(metas) {
            *hash = meta.tuple.hash_with(&self.shared.key);
            self.shared.table.prefetch(*hash);
        }
        for (slot, hash) in slots.iter_mut().zip(&hashes[..metas.len()]) {
            *slot = self.shared.table.candidate(*hash).unwrap_or(u32::MAX);
            if let Some(tcb) = self.tcbs.get(*slot as usize) {
                prefetch_whole(tcb);
                self.shared.timers.wheel.prefetch(*slot);
            }
            // A connection that is idle between segments needs this rarely used state for most of them.
            if let Some(cold) = self.cold.get(*slot as usize) {
                prefetch_whole(cold);
            }
        }
        for slot in &slots[..metas.len()] {
            let tcb = self.tcbs.get(*slot as usize);
            if let Some(rr) = tcb.and_then(|tcb| self.shared.rr.of(tcb)) {
                prefetch_whole(rr);
            } else if let Some(buffers) = tcb.and_then(|tcb| self.shared.buffers.of(tcb)) {
                prefetch_whole(buffers);
            }
        }
    }

    /// Processes a segment that no fast path accepted, given the hash of its tuple and the slot of its likely
    /// connection.
    #[inline(never)]
    pub(crate) fn process_unpredicted<N: Nic<Packet = P>>(
        &mut self,
        packet: P,
        meta: &SegmentMeta,
        hash: u64,
        candidate: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let SegmentMeta { tuple, tcp_offset: tcp } = *meta;
        let data = packet.data();
        let seg = TcpHeader::parse(data, tcp, packet.len());
        let slot = match self.tcbs.get(candidate as usize) {
            Some(tcb) if tcb.tuple == tuple && tcb.flags.has(Flags::IN_TABLE) => Some(candidate),
            Some(_) => self.lookup(hash, &tuple),
            None => None,
        };
        let Some(mut connection) = slot.and_then(|slot| self.connection(slot)) else {
            return self.no_connection(&tuple, &seg, hash, packet, tcp, egress, now);
        };
        connection.demote().process_segment(seg, packet, tcp, egress, now);
    }
}
