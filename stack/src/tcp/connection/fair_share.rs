//! Fair shares of the port's packets: limits of one connection while packets run low, and the sweep that takes packets
//! back from connections that hold more than their share or make no progress.
//!
//! A connection may hold any number of packets up to its buffer limits while all connections together hold less than
//! the pressure limit. Beyond it, the share of a connection in each direction is half of the limit divided by the
//! number of connections that hold packets, at most half of the packets left, and at least [`MIN_SHARE`].
//!
//! The sweep visits connections in order of their slots. It moves queued and unread data of connections without
//! progress to the heap, and discards out-of-order data, which the peer retransmits (RFC 2018 §8 permits it). Under
//! pressure it does so earlier, from connections that hold at least a threshold of packets. The threshold is halved
//! with each pass over all connections, so that the largest holders are first. Data on the heap, moved there or queued
//! by the service, reduces the send buffer of all connections. While other connections find no packet, a connection
//! that still holds at least the threshold and whose peer has not acknowledged anything for [`SHED_AFTER`] is reset; so
//! is a connection whose data finds no room on the heap for [`RESET_AFTER_IF_HEAP_IS_FULL`]. Linux does the same under
//! `tcp_mem` pressure: it collapses and prunes queues, and kills orphans.

use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::buffers::queue::Queue;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::{Connection, Shared};
use crate::tcp::tcb::Tcb;
use crate::tcp::tcb::cold::EndReason;
use crate::tcp::tcb::conn_buffers::ConnBuffers;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};
use std::cell::{Cell, RefCell};

/// Packets that a connection may hold in each direction, however many others hold packets.
pub(crate) const MIN_SHARE: usize = 4;

/// Time without an acknowledgement after which queued and unread data moves to the heap.
const PARK_AFTER: Duration = Duration::from_secs(15);
/// Time without progress after which, while packets run low, queued data of a connection at or above the threshold
/// moves to the heap and its out-of-order data is discarded. Data of connections that make progress stays in packets,
/// unless a connection below its minimum share finds no packet.
const STALLED: Duration = Duration::from_millis(100);
/// Time without an acknowledgement after which unread data of a connection at or above the threshold moves to the heap
/// while packets run low.
const SPILL_AFTER: Duration = Duration::from_secs(1);
/// Time without an acknowledgement after which a connection at or above the threshold is reset while packets are
/// scarce.
const SHED_AFTER: Duration = Duration::from_secs(5);
/// [`SHED_AFTER`] while a connection below its minimum share finds no packet.
const SHED_AFTER_IF_BLOCKED: Duration = Duration::from_millis(500);
/// Time without an acknowledgement after which a connection is reset if the heap has no room for its data.
const RESET_AFTER_IF_HEAP_IS_FULL: Duration = Duration::from_secs(20);
/// Time after which out-of-order data is discarded if the first gap was not filled.
const GAP_TIMEOUT: Duration = Duration::from_secs(10);

/// Smallest send buffer of a connection, in bytes, however much of the heap is in use.
const MIN_TX_BUFFER: usize = 16 << 10;

/// Time for which the receive side counts as starved after an in-order segment of a connection without its minimum
/// share was discarded.
const STARVED_FOR: Duration = Duration::from_millis(100);

/// Average bytes in a packet up to which unread data is packed.
const SPARSE: usize = 512;

/// Interval of the steps of the sweep.
const PERIOD: Duration = Duration::from_millis(16);
/// Interval of the steps while packets run low.
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
    due: Cell<Instant>,
    /// Slots of connections whose service tried to read while all unread data was on the heap.
    read_attempts: RefCell<Vec<u32>>,
    /// Time of the last step.
    last: Instant,
    /// Threshold in packets: while packets run low, the sweep takes packets from connections that hold at least as
    /// many.
    threshold: usize,
    /// End of the time for which the receive side counts as starved.
    starved_until: Instant,
}

impl Sweep {
    pub fn new(now: Instant) -> Self {
        Sweep {
            cursor: 0,
            due: Cell::new(now),
            read_attempts: RefCell::default(),
            last: now,
            threshold: usize::MAX,
            starved_until: now,
        }
    }

    /// Makes the next step due at once. The step moves the unread data of the connection in `slot` back into packets.
    #[cold]
    fn note_read_attempt(&self, slot: u32) {
        let mut slots = self.read_attempts.borrow_mut();
        if !slots.contains(&slot) {
            slots.push(slot);
        }
        self.due.set(Instant::ZERO);
    }

    /// Starts the next pass over all connections.
    fn wrap(&mut self, pressure: usize, is_low: bool) {
        self.cursor = 0;
        self.threshold = if is_low { (self.threshold.min(pressure) / 2).max(MIN_SHARE) } else { pressure / 2 };
    }
}

/// Returns the time since `number` last changed; zero if nothing is pending.
fn time_since_change(seen: &mut (Seq, Instant), number: Seq, waits: bool, now: Instant) -> Duration {
    if !waits || seen.1 == Instant::ZERO || seen.0 != number {
        *seen = (number, now);
    }
    now.since(seen.1)
}

impl<P: Packet> Shared<P> {
    /// Returns the packets that one connection may hold in one direction while packets run low: half of its part of the
    /// pressure limit, but at most half of the packets left, so that later connections find some (Choudhury and Hahne,
    /// "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
    #[cold]
    #[inline(never)]
    pub(crate) fn share(&self) -> usize {
        let left = self.settings.packets_in_advance.saturating_sub(self.mbufs_held.all);
        (self.settings.pressure / 2 / self.holders()).min(left / 2).max(MIN_SHARE)
    }

    /// Returns the number of connections that hold packets, at least one.
    fn holders(&self) -> usize {
        (self.buffers.attached() + self.rr.len()).max(1)
    }

    /// Records that an in-order segment was discarded although its connection holds less than the minimum share.
    #[cold]
    pub(crate) fn note_starved_receiver(&mut self) {
        self.sweep.starved_until = self.clock.now + STARVED_FOR;
    }

    /// Returns whether a connection that holds less than the minimum share finds no packet.
    fn is_starved(&self) -> bool {
        !self.alloc_blocked.is_empty() || self.clock.now < self.sweep.starved_until
    }

    /// Limits send buffers while queues are on the heap: half of the rest of the heap, divided by the number of
    /// connections that hold packets or queues.
    pub(crate) fn limit_send_buffers(&mut self) {
        let held = self.mbufs_held.heap_bytes;
        let rest = self.settings.heap_limit.saturating_sub(held);
        let (share, most) = (rest / 2 / self.holders(), self.settings.tx_buffer_max);
        self.settings.tx_buffer = if held == 0 { most } else { share.max(MIN_TX_BUFFER).min(most) };
    }

    /// Records that the service tried to read from the connection of `tcb`, in `slot`, whose receive queue is empty.
    #[inline]
    pub(crate) fn note_empty_read(&self, slot: u32, tcb: &Tcb) {
        if self.buffers.of(tcb).is_some_and(|buffers| buffers.reassembly.has_spilled()) {
            self.sweep.note_read_attempt(slot);
        }
    }

    /// Returns whether received packets may not be added to a send queue of `chunks`, which takes no further packets
    /// from the pool.
    #[inline]
    pub(crate) fn may_not_forward(&self, chunks: usize) -> bool {
        self.is_low() && chunks >= (self.settings.packets_in_advance / self.holders()).max(MIN_SHARE)
    }

    /// Returns whether a packet may be added to a send queue of `chunks`.
    #[inline]
    pub(crate) fn may_queue_packet(&self, chunks: usize) -> bool {
        !self.is_low() || self.mbufs_held.all < self.settings.packets_in_advance && chunks < self.share()
    }

    /// Returns the time of the next step of the sweep, if there are connections to visit.
    pub(crate) fn next_sweep(&self) -> Option<Instant> {
        if self.buffers.attached() == 0 {
            return None;
        }
        Some(if self.is_low() { self.sweep.last + PERIOD_UNDER_PRESSURE } else { self.sweep.due.get() })
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Performs the next step of the sweep if it is due.
    #[inline]
    pub(crate) fn sweep_if_due<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if now >= self.shared.sweep.due.get() || self.shared.is_low() {
            self.sweep(egress, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn sweep<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let (is_low, is_starved) = (self.shared.is_low(), self.shared.is_starved());
        let sweep = &mut self.shared.sweep;
        if now < sweep.due.get() && now.since(sweep.last) < PERIOD_UNDER_PRESSURE && !is_starved {
            return;
        }
        sweep.last = now;
        sweep.due.set(now + PERIOD);
        for slot in self.shared.sweep.read_attempts.take() {
            let Some(mut connection) = self.connection(slot) else { continue };
            if connection.tcb.has_buffers() && !connection.tcb.in_rr_mode() {
                connection.restore_unread(egress, now);
            }
        }
        self.shared.limit_send_buffers();
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
            let Some(mut connection) = self.connection(slot) else { continue };
            if connection.tcb.has_buffers() && !connection.tcb.in_rr_mode() {
                connection.visit(egress, now);
                if is_low && !self.shared.is_low() {
                    break;
                }
            }
        }
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Handles data that has not moved for too long and, while packets run low, packets beyond the share.
    fn visit<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let tcb = &*self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let waits = !buffers.queue.is_empty();
        let stalled = time_since_change(&mut buffers.progress.sent, tcb.una, waits, now);
        let gap = time_since_change(&mut buffers.progress.received, tcb.rcv_nxt, buffers.reassembly.packets() > 0, now);
        let held = buffers.received_packets() + buffers.queue.chunks();
        // Data that has just returned stays in packets for a time, so that the service can read it.
        let unread_for = stalled.min(now.since(buffers.progress.restored_at));
        let restores = stalled.is_zero() && buffers.reassembly.has_spilled();
        if restores {
            return self.restore_unread(egress, now);
        }
        if gap >= GAP_TIMEOUT {
            self.discard_out_of_order();
        }
        if self.shared.settings.stall_timeout.is_some_and(|timeout| stalled >= timeout) {
            self.shared.counters.stalled += 1;
            return self.end_with_reset(EndReason::TimedOut);
        }
        if stalled >= PARK_AFTER {
            let mut has_room = self.park();
            // A service that waits for room for its response does not read.
            if unread_for >= PARK_AFTER {
                has_room &= self.spill_unread();
            }
            if !has_room && stalled >= RESET_AFTER_IF_HEAP_IS_FULL {
                self.shared.counters.shed += 1;
                return self.end_with_reset(EndReason::TimedOut);
            }
        }
        if self.shared.is_low() && held >= self.shared.sweep.threshold {
            self.shed(stalled, unread_for, gap);
        }
    }

    /// Takes packets from the connection, which holds at least the threshold.
    fn shed(&mut self, stalled: Duration, unread_for: Duration, gap: Duration) {
        let threshold = self.shared.sweep.threshold;
        let is_starved = self.shared.is_starved();
        if is_starved || gap >= STALLED {
            self.discard_out_of_order();
        }
        if is_starved || stalled >= STALLED {
            self.park();
        }
        self.pack_unread();
        if unread_for >= SPILL_AFTER {
            self.spill_unread();
        }
        let tcb = &*self.tcb;
        let limit = if is_starved { SHED_AFTER_IF_BLOCKED } else { SHED_AFTER };
        let is_short = is_starved || self.shared.mbufs_held.all >= self.shared.settings.packets_in_advance;
        if is_short
            && stalled >= limit
            && self.shared.buffers.of(tcb).is_some_and(|buffers| buffers.mbufs_held() >= threshold)
        {
            self.shared.counters.shed += 1;
            self.end_with_reset(EndReason::TimedOut);
        }
    }

    /// Discards data beyond a gap. The peer has to retransmit it, although it may have been reported (RFC 2018 §8).
    pub(crate) fn discard_out_of_order(&mut self) {
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return };
        if buffers.reassembly.packets() == 0 {
            return;
        }
        let packets = buffers.reassembly.packets();
        buffers.reassembly.discard();
        self.shared.mbufs_held.all -= packets;
        self.shared.counters.discarded += packets as u64;
        // The next flush detaches empty buffers.
        self.schedule_tx();
    }

    /// Moves queued data to the heap. Returns false if the heap has no room for it.
    fn park(&mut self) -> bool {
        self.discard_reserved();
        let Shared { buffers, mbufs_held, settings, counters, .. } = &mut *self.shared;
        let Some(buffers) = buffers.of_mut(self.tcb) else { return true };
        let bytes = buffers.queue.packet_bytes();
        if bytes > 0 && mbufs_held.heap_bytes + bytes > settings.heap_limit {
            return false;
        }
        mbufs_held.unqueue(buffers.queue.packets());
        mbufs_held.heap_bytes -= buffers.queue.heap_bytes();
        counters.copied += buffers.queue.move_to_heap(self.tcb.nxt) as u64;
        mbufs_held.heap_bytes += buffers.queue.heap_bytes();
        true
    }

    /// Packs unread data into as few packets as possible, if the packets hold little of it on average.
    pub(crate) fn pack_unread(&mut self) {
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

/// Appends each unread packet to the previous one, if the previous one has room. Returns the bytes copied.
fn pack<P: Packet>(buffers: &mut ConnBuffers<P>) -> usize {
    let mut copied = 0;
    let mut unread = std::mem::replace(&mut buffers.received, Queue::new());
    while let Some(packet) = unread.pop_front() {
        let len = packet.len();
        if let Some(tail) = buffers.received.back_mut().and_then(|last| last.append(len)) {
            tail.copy_from_slice(packet.data());
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
    fn threshold_is_halved_with_each_pass_under_pressure_down_to_the_least_share() {
        let mut sweep = Sweep::new(Instant::ZERO);
        let thresholds = [true, true, true, true, false, true].map(|is_low| {
            sweep.wrap(40, is_low);
            sweep.threshold
        });
        assert_eq!(thresholds, [20, 10, 5, MIN_SHARE, 20, 10]);
    }
}
