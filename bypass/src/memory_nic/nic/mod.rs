//! Queue pair of one end of a link.

use super::link::{Direction, End, Frame, Link, LinkConfig};
use super::packet::pool::{HEADROOM, PoolHandle};
use super::packet::{MAX_LEN, MemoryPacket};
use super::ring::{Receiver, Sender};
use super::wire::Wire;
use super::{ImpairmentStats, impair::count};
use crate::{BURST, Capabilities, ChecksumOffload, MacAddr, Nic, Packet, QueueStats};
use linerate_service::Bytes;
use linerate_service::time::Instant;
use std::fmt;
use std::ops::Range;

/// Length of an Ethernet header and one VLAN tag.
const FRAME_OVERHEAD: usize = 18;

impl LinkConfig {
    /// Returns the maximum TCP payload that `end` segments.
    fn tso_of(&self, end: End) -> Option<usize> {
        self.tso.filter(|_| self.tso_from.is_none_or(|only| only == end))
    }

    pub(super) fn max_frame(&self) -> usize {
        usize::from(self.mtu) + FRAME_OVERHEAD
    }
}

/// Queue pair of one end of a [`Link`]: a port without a device.
///
/// A frame crosses the link without a copy. It stays in the sender's pool until the receiver drops it.
pub struct MemoryNic {
    link: Link,
    end: End,
    queue: usize,
    pool: PoolHandle,
    capabilities: Capabilities,
    wire: Wire,
    /// Version of the impairments of `wire`.
    version: u64,
    /// Ring to the queue of the same number at the other end; with steering, to every queue.
    senders: Vec<Sender>,
    /// Rings from the other end, in the same order.
    receivers: Vec<Receiver>,
    /// Ring to receive from first.
    turn: usize,
    /// Frames between the rings and this end.
    entering: Vec<MemoryPacket>,
    /// Maximum length of a frame that is not segmented.
    longest: usize,
    stats: QueueStats,
}

impl MemoryNic {
    pub(super) fn new(link: Link, end: End, queue: usize, senders: Vec<Sender>, receivers: Vec<Receiver>) -> Self {
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
            // Sent frames occupy the pool while they are in the ring and until the peer drops them.
            pool: config.pool - config.ring.min(config.pool / 2),
            rx_checksum: checksum,
            tx_checksum: checksum,
            tso: config.tso_of(end),
            lro: config.tso_of(end.other()).is_some(),
            multi_segment_tx: config.multi_segment,
            scatter_rx: config.multi_segment,
            rss: config.steering.is_some(),
            vlan: config.vlan,
            rx_partial_checksum: false,
        };
        MemoryNic {
            end,
            queue,
            pool: PoolHandle::new(config.pool, config.data_room),
            capabilities,
            wire: Wire::new(),
            version: 0,
            senders,
            receivers,
            turn: 0,
            entering: Vec::with_capacity(BURST),
            longest: config.max_frame(),
            stats: QueueStats::default(),
            link,
        }
    }

    /// Returns the link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the end of the link to which this queue pair belongs.
    pub fn end(&self) -> End {
        self.end
    }

    /// Returns the number of packets in this queue's pool, free or not.
    pub fn pool_capacity(&self) -> usize {
        self.pool.capacity()
    }

    /// Returns the number of free packets. All are free once everything allocated, attached, cloned or sent here has
    /// been dropped. During concurrent drops the result may be too low.
    pub fn pool_available(&self) -> usize {
        self.pool.available()
    }

    /// Returns the next arrival time, to which a simulation can advance its clock. Returns `None` if no frame is in
    /// flight.
    pub fn next_arrival(&mut self) -> Option<Instant> {
        self.follow_impairments();
        if self.wire.is_transparent() {
            let frames = self.receivers.iter().any(|ring| !ring.is_empty());
            return frames.then(|| self.link.clock().now());
        }
        self.enter_wire();
        self.wire.next_arrival()
    }

    /// Returns the counters of impairments of frames to this end.
    pub fn impaired(&self) -> ImpairmentStats {
        self.incoming().counters.stats()
    }

    #[inline]
    fn incoming(&self) -> &Direction {
        self.link.from(self.end.other())
    }

    #[inline]
    fn follow_impairments(&mut self) {
        if let Some((impairments, version)) = self.incoming().impairments_after(self.version) {
            let stream = (self.queue as u64) << 1 | u64::from(self.end == End::A);
            self.wire.impair(impairments, stream);
            self.version = version;
        }
    }

    /// Appends up to `most` frames that have been sent to `into`.
    #[inline]
    fn pop(&mut self, into: &mut Vec<MemoryPacket>, most: usize) {
        if let [ring] = &mut self.receivers[..] {
            ring.pop(into, most);
            return;
        }
        // Each ring is first in turn, which prevents starvation.
        self.turn = (self.turn + 1) % self.receivers.len();
        let (later, first) = self.receivers.split_at_mut(self.turn);
        let mut left = most;
        for ring in first.iter_mut().chain(later) {
            left -= ring.pop(into, left);
        }
    }

    /// Moves frames that have been sent onto the wire.
    fn enter_wire(&mut self) {
        let incoming = self.link.from(self.end.other());
        for ring in &mut self.receivers {
            // Bounded by the size of the ring: a sender on another thread may be as fast as this loop.
            for _ in 0..self.link.config().ring.div_ceil(BURST) {
                if ring.pop(&mut self.entering, BURST) == 0 {
                    break;
                }
                self.entering.drain(..).for_each(|packet| self.wire.enter(packet, &incoming.counters));
            }
        }
    }

    /// Returns the lengths of frames that can be sent with the offloads of `packet`; empty if the port does not offer
    /// them.
    fn lengths(&self, packet: &MemoryPacket) -> Range<usize> {
        let port = packet.port();
        if !port.has_request() {
            return 1..self.longest + 1;
        }
        let can = &self.capabilities;
        let Some((l2_len, l3_and_l4)) = port.headers() else { return Range::default() };
        if port.requests_checksum() && !can.tx_checksum.tcp {
            return Range::default();
        }
        let headers = (l2_len + l3_and_l4).max(1);
        match (port.segment_payload(), can.tso) {
            (None, _) => headers..self.longest + 1,
            (Some(segment), Some(most)) if segment > 0 && l3_and_l4 + usize::from(segment) <= usize::from(can.mtu) => {
                headers..headers.saturating_add(most).saturating_add(1)
            }
            _ => Range::default(),
        }
    }

    /// Returns the first frames of `frames` that can be sent to one queue unchanged and at once.
    #[inline]
    fn ready(&mut self, frames: &mut [MemoryPacket], now: Instant) -> Run {
        if self.capabilities.rss || !self.capabilities.multi_segment_tx {
            return self.ready_one(&mut frames[0], now);
        }
        let room = self.senders[0].room(frames.len());
        let end = if frames.len() > room { RunEnd::Full } else { RunEnd::AllReady };
        let mut run = Run { sender: 0, frames: room, bytes: 0, end };
        // Frames of a burst usually request the same offloads.
        let (mut requests, mut lengths) = (frames[0].port().requests(), self.lengths(&frames[0]));
        for (at, frame) in frames[..run.frames].iter_mut().enumerate() {
            if frame.port().requests() != requests {
                (requests, lengths) = (frame.port().requests(), self.lengths(frame));
            }
            let len = frame.len();
            if !lengths.contains(&len) {
                run.frames = at;
                run.end = RunEnd::Never;
                break;
            }
            run.bytes += len as u64;
            frame.mark_sent(now, None);
        }
        run
    }

    /// Returns the run of `frame` alone, or an empty run if it cannot be sent unchanged and at once.
    fn ready_one(&mut self, frame: &mut MemoryPacket, now: Instant) -> Run {
        let none = |end| Run { sender: 0, frames: 0, bytes: 0, end };
        if !self.lengths(frame).contains(&frame.len()) {
            return none(RunEnd::Never);
        }
        let (queue, hash) = match &self.link.config().steering {
            None => (0, None),
            Some(steering) => steering.0(frame.data()),
        };
        let sender = queue % self.senders.len();
        if self.senders[sender].room(1) == 0 {
            return none(RunEnd::Full);
        }
        if !self.capabilities.multi_segment_tx && !frame.is_exclusive() {
            return none(RunEnd::Copy);
        }
        frame.mark_sent(now, hash);
        Run { sender, frames: 1, bytes: frame.len() as u64, end: RunEnd::AllReady }
    }

    /// Sends the frames of `run`, the first of `from`.
    #[inline]
    fn hand_over(&mut self, from: &mut Vec<MemoryPacket>, run: &Run, now: Instant) {
        if !self.link.is_up() || self.senders[run.sender].is_abandoned() {
            count(&self.link.from(self.end).counters.down, run.frames as u64);
            from.drain(..run.frames);
        } else {
            if self.link.is_capturing() {
                self.capture(&from[..run.frames], run.sender, now);
            }
            let sent = self.senders[run.sender].push(from, run.frames);
            debug_assert_eq!(sent, run.frames);
        }
        self.stats.tx_frames += run.frames as u64;
        self.stats.tx_bytes += run.bytes;
    }

    #[cold]
    fn capture(&self, frames: &[MemoryPacket], sender: usize, now: Instant) {
        let queue = if self.capabilities.rss { sender } else { self.queue };
        let frame = |packet: &MemoryPacket| {
            let bytes = packet.segments().collect::<Vec<_>>().concat();
            Frame { at: now, from: self.end, queue, bytes }
        };
        self.link.keep(frames.iter().map(frame).collect());
    }

    /// Replaces `packet` by a copy in one packet of this pool. Returns `false` if the pool is empty.
    fn make_exclusive(&mut self, packet: &mut MemoryPacket) -> bool {
        let Some(copy) = packet.copy(Some(&self.pool)) else {
            self.stats.pool_empty += 1;
            return false;
        };
        self.stats.copied_bytes += copy.len() as u64;
        *packet = copy;
        true
    }
}

/// Frames that are sent to one queue at once.
struct Run {
    sender: usize,
    frames: usize,
    bytes: u64,
    end: RunEnd,
}

enum RunEnd {
    /// The next frame, if any, has not been examined.
    AllReady,
    /// There is no room for the next frame.
    Full,
    /// The next frame must be copied.
    Copy,
    /// The next frame can never be sent.
    Never,
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
        self.link.is_up() && !self.senders.iter().all(Sender::is_abandoned)
    }

    #[inline]
    fn rx_burst(&mut self, into: &mut Vec<MemoryPacket>) -> usize {
        let before = into.len();
        let room = (into.capacity() - before).min(BURST);
        self.follow_impairments();
        if self.wire.is_transparent() {
            self.pop(into, room);
        } else {
            self.enter_wire();
            let now = self.link.clock().now();
            into.extend(std::iter::from_fn(|| self.wire.arrive(now)).take(room));
        }
        let received = &mut into[before..];
        let mut bytes = 0;
        for packet in received.iter_mut() {
            bytes += packet.len() as u64;
            packet.mark_received();
        }
        self.stats.rx_frames += received.len() as u64;
        self.stats.rx_bytes += bytes;
        received.len()
    }

    #[inline]
    fn tx_burst(&mut self, from: &mut Vec<MemoryPacket>) -> usize {
        let now = self.link.clock().now();
        let offered = from.len();
        while !from.is_empty() {
            let run = self.ready(from, now);
            if run.frames > 0 {
                self.hand_over(from, &run, now);
            }
            let is_over = match run.end {
                RunEnd::AllReady => false,
                RunEnd::Full => true,
                RunEnd::Copy => !self.make_exclusive(&mut from[0]),
                RunEnd::Never => {
                    from.remove(0);
                    self.stats.tx_dropped += 1;
                    false
                }
            };
            if is_over {
                break;
            }
        }
        self.stats.tx_full += u64::from(!from.is_empty());
        offered - from.len()
    }

    #[inline]
    fn allocate(&mut self) -> Option<MemoryPacket> {
        let packet = MemoryPacket::take(&self.pool);
        self.stats.pool_empty += u64::from(packet.is_none());
        packet
    }

    #[inline]
    fn attach(&mut self, bytes: Bytes) -> Result<MemoryPacket, Bytes> {
        if bytes.len() > MAX_LEN {
            return Err(bytes);
        }
        let packet = MemoryPacket::attach(&self.pool, bytes);
        self.stats.pool_empty += u64::from(packet.is_err());
        packet
    }

    fn stats(&self) -> QueueStats {
        self.stats
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
