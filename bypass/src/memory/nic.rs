//! One queue pair of one end of a link.

use super::capture::Frame;
use super::link::{Direction, End, Lane, Link, LinkConfig};
use super::packet::MemoryPacket;
use super::pool::{HEADROOM, PoolHandle};
use super::wire::{Wire, rx_info};
use super::{ImpairmentStats, impair::count};
use crate::time::Instant;
use crate::{BURST, Bytes, Capabilities, ChecksumOffload, MacAddr, Nic, Packet, QueueStats, TxOffload};
use std::fmt;
use std::sync::atomic::Ordering;

/// Ethernet header and one VLAN tag: what a frame has beside its IP packet.
const FRAME_OVERHEAD: usize = 18;

impl LinkConfig {
    /// The longest frame.
    pub(super) fn max_frame(&self) -> usize {
        usize::from(self.mtu) + FRAME_OVERHEAD
    }
}

/// One queue pair of one end of a [`Link`]: a port without a device.
///
/// A frame crosses the link without being copied; it stays in the sender's pool until the receiver drops it.
pub struct MemoryNic {
    link: Link,
    end: End,
    queue: usize,
    pool: PoolHandle,
    capabilities: Capabilities,
    wire: Wire,
    /// Of the impairments that `wire` has.
    version: u64,
    /// Frames that do not fit, while the burst they came in is put together again.
    refused: Vec<MemoryPacket>,
    stats: QueueStats,
}

impl MemoryNic {
    pub(super) fn new(link: Link, end: End, queue: usize) -> Self {
        let config = link.config();
        let checksum = ChecksumOffload {
            ipv4: config.checksum_offload,
            tcp: config.checksum_offload,
            udp: config.checksum_offload,
        };
        let capabilities = Capabilities {
            mtu: config.mtu,
            headroom: HEADROOM,
            data_room: config.data_room,
            // What was sent stays in the pool while it is in the ring, or with a peer that has as much for itself.
            pool: config.pool - config.ring.min(config.pool / 2),
            rx_checksum: checksum,
            tx_checksum: checksum,
            tso: config.tso,
            lro: config.tso.is_some(),
            multi_segment_tx: config.multi_segment,
            scatter_rx: config.multi_segment,
            rss: config.steering.is_some(),
            vlan: false,
            rx_partial_checksum: false,
        };
        MemoryNic {
            end,
            queue,
            pool: PoolHandle::new(config.pool, config.data_room),
            capabilities,
            wire: Wire::new(),
            version: 0,
            refused: Vec::with_capacity(BURST),
            stats: QueueStats::default(),
            link,
        }
    }

    /// The link that this is an end of.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Which end of it.
    pub fn end(&self) -> End {
        self.end
    }

    /// Packets in this queue's pool, free or not.
    pub fn pool_capacity(&self) -> usize {
        self.pool.capacity()
    }

    /// Packets that are free. All of them, once everything that was allocated, attached, cloned or sent here has
    /// been dropped; while other threads are doing so, a few less than there will be.
    pub fn pool_available(&self) -> usize {
        self.pool.available()
    }

    /// When the next frame arrives, or has arrived: where a simulation can move its clock to. `None` when none is
    /// under way.
    pub fn next_arrival(&mut self) -> Option<Instant> {
        self.follow_impairments();
        if self.wire.is_transparent() {
            let frames = !self.lane().frames.is_empty();
            return frames.then(|| self.link.clock().now());
        }
        self.enter_wire();
        self.wire.next_arrival()
    }

    /// What the link has done to the frames on their way to this end.
    pub fn impaired(&self) -> ImpairmentStats {
        self.incoming().counters.stats()
    }

    fn outgoing(&self) -> &Direction {
        self.link.from(self.end)
    }

    fn incoming(&self) -> &Direction {
        self.link.from(self.end.other())
    }

    fn lane(&self) -> &Lane {
        &self.incoming().lanes[self.queue]
    }

    fn follow_impairments(&mut self) {
        if let Some((impairments, version)) = self.incoming().impairments_after(self.version) {
            let stream = (self.queue as u64) << 1 | u64::from(self.end == End::A);
            self.wire.impair(impairments, stream);
            self.version = version;
        }
    }

    /// Puts the frames that the sender has handed over onto the wire.
    fn enter_wire(&mut self) {
        let incoming = self.link.from(self.end.other());
        let lane = &incoming.lanes[self.queue];
        // No more than one ring of them: a sender on another thread may be as fast as this.
        for _ in 0..lane.frames.capacity() {
            let Some(packet) = lane.frames.pop() else { break };
            self.wire.enter(packet, &incoming.counters);
        }
    }

    /// Whether the port can never send `packet`: it is empty, too long, or asks for what the port cannot do.
    fn is_unsendable(&self, packet: &MemoryPacket) -> bool {
        let (len, can, longest) = (packet.len(), &self.capabilities, self.link.config().max_frame());
        let Some(TxOffload { l2_len, l3_len, l4_len, ipv4_checksum, l4_checksum, tso, .. }) = packet.tx_offload()
        else {
            return len == 0 || len > longest;
        };
        let headers = l2_len.saturating_add(l3_len).saturating_add(l4_len);
        if len == 0 || headers > len || ((ipv4_checksum || l4_checksum.is_some()) && !can.tx_checksum.tcp) {
            return true;
        }
        match (tso, can.tso) {
            (None, _) => len > longest,
            (Some(_), None) => true,
            (Some(segment), Some(most)) => {
                let ip_len = l3_len + l4_len + usize::from(segment);
                segment == 0 || ip_len > usize::from(can.mtu) || len - headers > most
            }
        }
    }

    /// `packet` as it can go over the link: itself, or a copy in one packet of this pool. Comes back as it was
    /// when the pool is empty.
    fn sendable(&mut self, packet: MemoryPacket) -> Result<MemoryPacket, MemoryPacket> {
        if self.capabilities.multi_segment_tx || packet.is_exclusive() {
            return Ok(packet);
        }
        match packet.copy(Some(&self.pool)) {
            Some(copy) => {
                self.stats.copied_bytes += copy.len() as u64;
                Ok(copy)
            }
            None => {
                self.stats.pool_empty += 1;
                Err(packet)
            }
        }
    }

    /// Hands one frame over; it comes back when there is no room for it, or for a copy that it needs.
    #[inline]
    fn send(&mut self, packet: MemoryPacket, now: Instant) -> Result<(), MemoryPacket> {
        if self.is_unsendable(&packet) {
            self.stats.tx_dropped += 1;
            return Ok(());
        }
        let (queue, hash) = match &self.link.config().steering {
            None => (self.queue, None),
            Some(steering) => steering.0(packet.data()),
        };
        let queue = queue % self.outgoing().lanes.len();
        if self.outgoing().lanes[queue].frames.is_full() {
            return Err(packet);
        }
        let mut packet = self.sendable(packet)?;
        let (len, direction) = (packet.len() as u64, self.link.from(self.end));
        packet.mark_sent(now, hash);
        let lane = &direction.lanes[queue];
        if self.link.is_up() && !lane.abandoned.load(Ordering::Acquire) {
            let frame = self.link.is_capturing().then(|| {
                let bytes = packet.segments().collect::<Vec<_>>().concat();
                Frame { at: now, from: self.end, queue, bytes }
            });
            lane.frames.push(packet)?;
            if let Some(frame) = frame {
                self.link.keep(frame);
            }
        } else {
            count(&direction.counters.down, 1);
        }
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len;
        Ok(())
    }
}

impl Nic for MemoryNic {
    type Packet = MemoryPacket;

    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, if self.end == End::A { 0xa } else { 0xb }])
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn link_up(&mut self) -> bool {
        self.link.is_up() && !self.outgoing().lanes[self.queue].abandoned.load(Ordering::Acquire)
    }

    fn rx_burst(&mut self, into: &mut Vec<MemoryPacket>) -> usize {
        let room = (into.capacity() - into.len()).min(BURST);
        self.follow_impairments();
        let transparent = self.wire.is_transparent();
        if !transparent {
            self.enter_wire();
        }
        let now = self.link.clock().now();
        for n in 0..room {
            let next = if transparent { self.lane().frames.pop() } else { self.wire.arrive(now) };
            let Some(mut packet) = next else { return n };
            packet.mark_received(rx_info(&packet));
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += packet.len() as u64;
            into.push(packet);
        }
        room
    }

    fn tx_burst(&mut self, from: &mut Vec<MemoryPacket>) -> usize {
        let now = self.link.clock().now();
        let offered = from.len();
        let mut packets = from.drain(..);
        for packet in packets.by_ref() {
            if let Err(packet) = self.send(packet, now) {
                self.refused.push(packet);
                break;
            }
        }
        if self.refused.is_empty() {
            return offered;
        }
        self.stats.tx_full += 1;
        self.refused.extend(packets);
        from.append(&mut self.refused);
        offered - from.len()
    }

    fn allocate(&mut self) -> Option<MemoryPacket> {
        let packet = MemoryPacket::take(&self.pool);
        self.stats.pool_empty += u64::from(packet.is_none());
        packet
    }

    fn attach(&mut self, bytes: Bytes) -> Result<MemoryPacket, Bytes> {
        let packet = MemoryPacket::attach(&self.pool, bytes);
        self.stats.pool_empty += u64::from(packet.is_err());
        packet
    }

    fn stats(&self) -> QueueStats {
        self.stats
    }
}

impl Drop for MemoryNic {
    fn drop(&mut self) {
        let lane = self.lane();
        lane.abandoned.store(true, Ordering::Release);
        // What nobody will receive goes back to the sender's pool.
        while lane.frames.pop().is_some() {}
    }
}

impl fmt::Debug for MemoryNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNic")
            .field("end", &self.end)
            .field("queue", &self.queue)
            .field("stats", &self.stats)
            .field("impaired", &self.impaired())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
