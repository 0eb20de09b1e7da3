//! One queue pair of one end of a link.

use super::capture::Frame;
use super::link::{Direction, End, Link, LinkConfig};
use super::packet::{MAX_LEN, MemoryPacket};
use super::pool::{HEADROOM, PoolHandle};
use super::ring::{Receiver, Sender};
use super::wire::Wire;
use super::{ImpairmentStats, impair::count};
use crate::time::Instant;
use crate::{BURST, Bytes, Capabilities, ChecksumOffload, MacAddr, Nic, Packet, QueueStats};
use std::fmt;
use std::ops::Range;

/// Ethernet header and one VLAN tag: what a frame has beside its IP packet.
const FRAME_OVERHEAD: usize = 18;

impl LinkConfig {
    /// The largest TCP payload that `end` cuts.
    fn tso_of(&self, end: End) -> Option<usize> {
        self.tso.filter(|_| self.tso_from.is_none_or(|only| only == end))
    }

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
    /// To the queue of the same number at the other end, or with steering to each of them.
    senders: Vec<Sender>,
    /// From there in the same way.
    receivers: Vec<Receiver>,
    /// The receiver that comes first, if there are several.
    turn: usize,
    /// Frames between the ring and the wire.
    entering: Vec<MemoryPacket>,
    /// The longest frame that is not cut.
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
            // What was sent stays in the pool while it is in the ring, or with a peer that has as much for itself.
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
            let frames = self.receivers.iter().any(|ring| !ring.is_empty());
            return frames.then(|| self.link.clock().now());
        }
        self.enter_wire();
        self.wire.next_arrival()
    }

    /// What the link has done to the frames on their way to this end.
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

    /// Appends up to `most` of the frames that the sender has handed over to `into`.
    #[inline]
    fn pop(&mut self, into: &mut Vec<MemoryPacket>, most: usize) {
        if let [ring] = &mut self.receivers[..] {
            ring.pop(into, most);
            return;
        }
        // Each comes first in turn, so that none waits for ever.
        self.turn = (self.turn + 1) % self.receivers.len();
        let (later, first) = self.receivers.split_at_mut(self.turn);
        let mut left = most;
        for ring in first.iter_mut().chain(later) {
            left -= ring.pop(into, left);
        }
    }

    /// Puts the frames that the sender has handed over onto the wire.
    fn enter_wire(&mut self) {
        let incoming = self.link.from(self.end.other());
        for ring in &mut self.receivers {
            // No more than one ring of them: a sender on another thread may be as fast as this.
            for _ in 0..self.link.config().ring.div_ceil(BURST) {
                if ring.pop(&mut self.entering, BURST) == 0 {
                    break;
                }
                self.entering.drain(..).for_each(|packet| self.wire.enter(packet, &incoming.counters));
            }
        }
    }

    /// How long a frame may be that asks for what `packet` does, if the port can do that. None may be empty.
    fn lengths(&self, packet: &MemoryPacket) -> Range<usize> {
        let port = packet.port();
        if !port.asks() {
            return 1..self.longest + 1;
        }
        let can = &self.capabilities;
        let Some((l2_len, l3_and_l4)) = port.headers() else { return Range::default() };
        if port.asks_checksum() && !can.tx_checksum.tcp {
            return Range::default();
        }
        let headers = (l2_len + l3_and_l4).max(1);
        match (port.cut(), can.tso) {
            (None, _) => headers..self.longest + 1,
            (Some(segment), Some(most)) if segment > 0 && l3_and_l4 + usize::from(segment) <= usize::from(can.mtu) => {
                headers..headers.saturating_add(most).saturating_add(1)
            }
            _ => Range::default(),
        }
    }

    /// The first frames of `frames` that can go to one queue, as they are and all at once, made ready.
    #[inline]
    fn ready(&mut self, frames: &mut [MemoryPacket], now: Instant) -> Run {
        if self.capabilities.rss || !self.capabilities.multi_segment_tx {
            return self.ready_one(&mut frames[0], now);
        }
        let room = self.senders[0].room(frames.len());
        let end = if frames.len() > room { RunEnd::Full } else { RunEnd::AllReady };
        let mut run = Run { sender: 0, frames: room, bytes: 0, end };
        // The frames of a burst ask for the same, mostly.
        let (mut asked, mut lengths) = (frames[0].port().asked(), self.lengths(&frames[0]));
        for (at, frame) in frames[..run.frames].iter_mut().enumerate() {
            if frame.port().asked() != asked {
                (asked, lengths) = (frame.port().asked(), self.lengths(frame));
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

    /// A run of the one frame, or of none, to whichever queue it goes.
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

    /// Hands the frames of `run`, the first of `from`, over.
    #[inline]
    fn hand_over(&mut self, from: &mut Vec<MemoryPacket>, run: &Run, now: Instant) {
        if !self.link.is_up() || self.senders[run.sender].is_abandoned() {
            count(&self.link.from(self.end).counters.down, run.frames as u64);
            from.drain(..run.frames);
        } else {
            if self.link.is_capturing() {
                self.capture(&from[..run.frames], run.sender, now);
            }
            let gone = self.senders[run.sender].push(from, run.frames);
            debug_assert_eq!(gone, run.frames);
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

    /// Puts a copy of `packet` in one packet of this pool in its place; `false` when the pool is empty.
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

/// Frames that go to one queue at once.
struct Run {
    /// Which of the senders it has.
    sender: usize,
    /// How many of them.
    frames: usize,
    /// Bytes in them.
    bytes: u64,
    end: RunEnd,
}

/// Why a run is no longer.
enum RunEnd {
    /// The next has not been looked at, if there is one.
    AllReady,
    /// There is no room for the next.
    Full,
    /// The next can go as a copy only.
    Copy,
    /// The next can never go.
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
