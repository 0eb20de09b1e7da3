//! Fair shares of the port's packets: limits of one connection while packets run low, and the sweep that takes packets
//! back from connections that hold more than their share or make no progress.
//!
//! A connection may hold any number of packets up to its buffer limits while all connections together hold less than
//! the pressure limit. Beyond it, the share of a connection is the limit divided by the number of connections that hold
//! packets, at most half of the packets left, and at least [`MIN_SHARE`]. The sweep visits connections in order of
//! their slots. Under pressure it takes packets from the largest holders first: each pass over all connections halves
//! the number of packets from which on a connection is a target. The sweep discards out-of-order data, which the peer
//! retransmits (RFC 2018 §8 permits it), moves queued data to the heap, and packs unread data into fewer packets. A
//! connection whose peer has not acknowledged anything for [`SHED_AFTER`] and that still holds more is reset. Linux
//! does the same below `tcp_mem`: it collapses and prunes queues, and kills orphans.

use crate::congestion::CongestionControl;
use crate::native::NativeEngine;
use crate::native::connection::{Connection, Shared};
use crate::native::queue::Queue;
use crate::native::segment::seq::Seq;
use crate::native::tcb::Flags;
use crate::native::tcb::conn_buffers::ConnBuffers;
use linerate_bypass::Packet;
use linerate_bypass::time::{Duration, Instant};

/// Packets that a connection may hold in each direction, however many others hold packets.
pub(crate) const MIN_SHARE: usize = 4;

/// Time without an acknowledgement after which queued data moves to the heap and unread data is packed.
const PARK_AFTER: Duration = Duration::from_secs(15);
/// Time without progress after which a connection is a target while packets run low. Data of connections that make
/// progress is neither copied nor discarded, unless there is no packet for a connection that holds none.
const STALLED: Duration = Duration::from_millis(100);
/// Time without an acknowledgement after which a connection beyond its share is reset while packets run low.
const SHED_AFTER: Duration = Duration::from_secs(5);
/// The same while there is no packet for a connection that holds none.
const SHED_AFTER_IF_BLOCKED: Duration = Duration::from_millis(500);
/// Time after which out-of-order data is discarded if the first gap was not filled.
const GAP_TIMEOUT: Duration = Duration::from_secs(10);

/// Average bytes in a packet up to which unread data is packed.
const SPARSE: usize = 512;

/// Interval of the steps of the sweep.
const PERIOD: Duration = Duration::from_millis(16);
/// The same while packets run low.
const PERIOD_UNDER_PRESSURE: Duration = Duration::from_micros(100);
/// Steps of a pass over all connections, which takes about a second.
const STEPS: usize = 64;
/// Minimum connections visited by a step.
const VISITS: usize = 16;
/// Connections visited by a step while packets run low.
const VISITS_UNDER_PRESSURE: usize = 256;

/// Position and results of the sweep.
pub(crate) struct Sweep {
    /// Slot visited next.
    cursor: usize,
    /// Time of the next step while packets do not run low.
    due: Instant,
    /// Time of the last step.
    last: Instant,
    /// Packets from which on a connection is a target while packets run low.
    threshold: usize,
    /// Bytes on the heap: the result of the last pass, and the bytes moved since.
    parked: usize,
    /// Bytes on the heap found by the current pass.
    parked_in_pass: usize,
}

impl Sweep {
    pub fn new(now: Instant) -> Self {
        Sweep { cursor: 0, due: now, last: now, threshold: usize::MAX, parked: 0, parked_in_pass: 0 }
    }

    /// Records that `bytes` were moved to the heap.
    fn park(&mut self, bytes: usize) {
        self.parked += bytes;
        self.parked_in_pass += bytes;
    }

    /// Starts the next pass over all connections.
    fn wrap(&mut self, pressure: usize, is_low: bool) {
        self.cursor = 0;
        self.parked = std::mem::take(&mut self.parked_in_pass);
        self.threshold = if is_low { (self.threshold.min(pressure) / 2).max(MIN_SHARE) } else { pressure / 2 };
    }
}

/// Last progress of a connection in each direction, as seen by the sweep.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// SND.UNA, and when it was first seen. [`Instant::ZERO`] before the first visit.
    sent: (Seq, Instant),
    /// RCV.NXT, and when it was first seen.
    received: (Seq, Instant),
    /// End of the queued data that was moved to the heap.
    parked_to: Option<Seq>,
}

/// Returns the time since `number` last changed; zero if nothing is pending.
fn time_since_change(seen: &mut (Seq, Instant), number: Seq, waits: bool, now: Instant) -> Duration {
    if !waits || seen.1 == Instant::ZERO || seen.0 != number {
        *seen = (number, now);
    }
    now.since(seen.1)
}

impl<P: Packet> Shared<P> {
    /// Returns the packets that one connection may hold in one direction while packets run low: its part of the
    /// pressure limit, but at most half of the packets left, so that later connections find some (Choudhury and Hahne,
    /// "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
    #[cold]
    #[inline(never)]
    pub(crate) fn share(&self) -> usize {
        let left = self.settings.packets_in_advance.saturating_sub(self.mbufs_held.all);
        (self.settings.pressure / self.holders()).min(left / 2).max(MIN_SHARE)
    }

    /// Returns the number of connections that hold packets, at least one.
    fn holders(&self) -> usize {
        (self.buffers.attached() + self.rr.len()).max(1)
    }

    /// Returns whether received packets may not be added to a send queue of `pieces`, which takes no further packets
    /// from the pool.
    #[inline]
    pub(crate) fn may_not_forward(&self, pieces: usize) -> bool {
        self.is_low() && pieces >= (self.settings.packets_in_advance / self.holders()).max(MIN_SHARE)
    }

    /// Returns whether a packet may be added to a send queue of `pieces`.
    #[inline]
    pub(crate) fn may_queue_packet(&self, pieces: usize) -> bool {
        !self.is_low() || self.mbufs_held.all < self.settings.packets_in_advance && pieces < self.share()
    }

    /// Returns the time of the next step of the sweep, if there are connections to visit.
    pub(crate) fn next_sweep(&self) -> Option<Instant> {
        if self.buffers.attached() == 0 {
            return None;
        }
        Some(if self.is_low() { self.sweep.last + PERIOD_UNDER_PRESSURE } else { self.sweep.due })
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Performs the next step of the sweep if it is due.
    #[inline]
    pub(crate) fn sweep_if_due(&mut self, now: Instant) {
        if now >= self.shared.sweep.due || self.shared.is_low() {
            self.sweep(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn sweep(&mut self, now: Instant) {
        let (is_low, is_alloc_blocked) = (self.shared.is_low(), !self.shared.alloc_blocked.is_empty());
        let sweep = &mut self.shared.sweep;
        if now < sweep.due && now.since(sweep.last) < PERIOD_UNDER_PRESSURE && !is_alloc_blocked {
            return;
        }
        sweep.last = now;
        sweep.due = now + PERIOD;
        if self.shared.buffers.attached() == 0 {
            return;
        }
        let visits = if is_low { VISITS_UNDER_PRESSURE } else { self.tcbs.len() / STEPS + VISITS };
        for _ in 0..visits.min(self.tcbs.len()) {
            if self.shared.sweep.cursor >= self.tcbs.len() {
                self.shared.sweep.wrap(self.shared.settings.pressure, is_low);
            }
            let slot = self.shared.sweep.cursor as u32;
            self.shared.sweep.cursor += 1;
            let tcb = &self.tcbs[slot as usize];
            if tcb.has_buffers() && !tcb.in_rr_mode() {
                self.demoted(slot).visit(now);
                if is_low && !self.shared.is_low() {
                    break;
                }
            }
        }
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Handles data that has not moved for too long and, while packets run low, packets beyond the share.
    fn visit(&mut self, now: Instant) {
        let tcb = &*self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let waits = !buffers.queue.is_empty();
        let stalled = time_since_change(&mut buffers.progress.sent, tcb.una, waits, now);
        let gap = time_since_change(&mut buffers.progress.received, tcb.rcv_nxt, !buffers.reassembly.is_empty(), now);
        let parked = buffers.progress.parked_to.filter(|end| end.after(tcb.una));
        buffers.progress.parked_to = parked;
        let held = buffers.received_packets() + buffers.queue.pieces();
        self.shared.sweep.parked_in_pass += parked.map_or(0, |end| (end - tcb.una) as usize);
        if gap >= GAP_TIMEOUT {
            self.discard_out_of_order();
        }
        if self.shared.settings.stall_timeout.is_some_and(|timeout| stalled >= timeout) {
            self.shared.counters.stalled += 1;
            return self.end_with_reset(Flags::TIMED_OUT);
        }
        if stalled >= PARK_AFTER {
            self.park();
            // A service that waits for room for its response does not read.
            self.pack_unread();
        }
        if self.shared.is_low() && held >= self.shared.sweep.threshold {
            self.shed(stalled, gap);
        }
    }

    /// Takes packets from the connection, which holds more than others.
    fn shed(&mut self, stalled: Duration, gap: Duration) {
        let threshold = self.shared.sweep.threshold;
        let is_alloc_blocked = !self.shared.alloc_blocked.is_empty();
        if is_alloc_blocked || gap >= STALLED {
            self.discard_out_of_order();
        }
        if is_alloc_blocked || stalled >= STALLED {
            self.park();
        }
        self.pack_unread();
        let tcb = &*self.tcb;
        let limit = if self.shared.alloc_blocked.is_empty() { SHED_AFTER } else { SHED_AFTER_IF_BLOCKED };
        if stalled >= limit && self.shared.buffers.of(tcb).is_some_and(|buffers| buffers.mbufs_held() >= threshold) {
            self.shared.counters.shed += 1;
            self.end_with_reset(Flags::TIMED_OUT);
        }
    }

    /// Discards data beyond a gap. The peer has to retransmit it, although it may have been reported (RFC 2018 §8).
    fn discard_out_of_order(&mut self) {
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return };
        if buffers.reassembly.is_empty() {
            return;
        }
        let packets = buffers.reassembly.packets();
        buffers.reassembly.clear();
        self.shared.mbufs_held.all -= packets;
        self.shared.counters.discarded += packets as u64;
        // The next flush detaches empty buffers.
        self.schedule_tx();
    }

    /// Moves queued data to the heap, unless the heap holds as much of it as the pool could.
    fn park(&mut self) {
        let tcb = &*self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let parked = buffers.progress.parked_to.map_or(0, |end| end - tcb.una);
        let bytes = (tcb.outstanding() + tcb.unsent + buffers.reserved).saturating_sub(parked) as usize;
        if self.shared.sweep.parked + bytes > self.shared.settings.heap_limit {
            return;
        }
        self.discard_reserved();
        let tcb = &*self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let moved = buffers.queue.move_to_heap(tcb.nxt);
        if moved.packets > 0 {
            buffers.progress.parked_to = Some(tcb.nxt + tcb.unsent);
            self.shared.sweep.park(moved.bytes);
            self.shared.mbufs_held.unqueue(moved.packets);
            self.shared.counters.copied += moved.copied as u64;
        }
    }

    /// Packs unread data into as few packets as possible, if the packets hold little of it on average.
    fn pack_unread(&mut self) {
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return };
        if self.tcb.received as usize > buffers.received.len() * SPARSE {
            return;
        }
        let before = buffers.received.len();
        let copied = pack(buffers);
        self.shared.mbufs_held.all -= before - buffers.received.len();
        self.shared.counters.copied += copied as u64;
    }
}

/// Appends each unread packet to the previous one, if that has room. Returns the bytes copied.
fn pack<P: Packet>(buffers: &mut ConnBuffers<P>) -> usize {
    let mut copied = 0;
    let mut unread = std::mem::replace(&mut buffers.received, Queue::new());
    while let Some(packet) = unread.pop_front() {
        let len = packet.len();
        if let Some(place) = buffers.received.back_mut().and_then(|last| last.append(len)) {
            place.copy_from_slice(packet.data());
            copied += len;
        } else {
            buffers.received.push_back(packet);
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_moved_in_a_pass_count_until_the_next_has_ended() {
        let mut sweep = Sweep::new(Instant::ZERO);
        sweep.park(10);
        sweep.park(20);
        assert_eq!(sweep.parked, 30);
        sweep.wrap(100, false);
        sweep.park(5);
        assert_eq!(sweep.parked, 35);
        sweep.wrap(100, false);
        assert_eq!(sweep.parked, 5);
        sweep.wrap(100, false);
        assert_eq!((sweep.parked, sweep.cursor), (0, 0));
    }

    #[test]
    fn threshold_is_halved_with_each_pass_under_pressure_down_to_the_least_share() {
        let mut sweep = Sweep::new(Instant::ZERO);
        let thresholds = [true, true, true, true, false, true].map(|is_low| {
            sweep.wrap(40, is_low);
            sweep.threshold
        });
        assert_eq!(thresholds, [20, 10, 5, MIN_SHARE, 20, 10]);
    }
}
