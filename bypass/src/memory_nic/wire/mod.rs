//! Frames in flight to one receiving queue, in virtual time.

use super::impair::{Counters, Impairments, count};
use super::packet::MemoryPacket;
use crate::Packet;
use linerate_service::time::{Duration, Instant};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Number of bytes preferred by corruption: the headers of a TCP segment with options.
const HEADERS: usize = 64;
/// Length of an Ethernet header.
const ETHERNET: usize = 14;

/// Impaired link, owned by its receiver and therefore without a lock.
pub(super) struct Wire {
    impairments: Impairments,
    random: fastrand::Rng,
    /// Frames in flight, earliest arrival on top.
    in_flight: BinaryHeap<Reverse<InFlight>>,
    /// Frames held back until they are overtaken.
    held: Vec<Held>,
    /// Number of frames so far, which orders frames with equal arrival times.
    serial: u64,
    /// Time until which sent frames occupy the rate-limited link.
    busy_until: Instant,
    /// Arrival of the last frame that was not held back. Later frames do not arrive before it.
    last_arrival: Instant,
}

struct InFlight {
    arrival: Instant,
    serial: u64,
    packet: MemoryPacket,
}

struct Held {
    packet: MemoryPacket,
    arrival: Instant,
    until: Instant,
    /// Number of frames that still have to overtake.
    frames: u32,
}

impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.arrival, self.serial).cmp(&(other.arrival, other.serial))
    }
}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for InFlight {}

impl Wire {
    /// Creates a wire without impairments.
    pub(super) fn new() -> Self {
        Wire {
            impairments: Impairments::default(),
            random: fastrand::Rng::with_seed(0),
            in_flight: BinaryHeap::new(),
            held: Vec::new(),
            serial: 0,
            busy_until: Instant::ZERO,
            last_arrival: Instant::ZERO,
        }
    }

    /// Sets the impairments of frames that enter from now on. `stream` selects the random stream of this wire.
    pub(super) fn impair(&mut self, impairments: Impairments, stream: u64) {
        self.random = fastrand::Rng::with_seed(impairments.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.impairments = impairments;
        self.busy_until = Instant::ZERO;
    }

    /// Returns whether frames can bypass the wire.
    #[inline]
    pub(super) fn is_transparent(&self) -> bool {
        self.in_flight.is_empty() && self.held.is_empty() && self.impairments.is_none()
    }

    /// Returns the earliest known arrival.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        let in_flight = self.in_flight.peek().map(|Reverse(frame)| frame.arrival);
        let held = self.held.iter().map(|frame| frame.until).min();
        in_flight.into_iter().chain(held).min()
    }

    /// Removes and returns the next frame that has arrived by `now`.
    pub(super) fn arrive(&mut self, now: Instant) -> Option<MemoryPacket> {
        self.release_held(now);
        if self.in_flight.peek()?.0.arrival > now {
            return None;
        }
        self.in_flight.pop().map(|Reverse(frame)| frame.packet)
    }

    /// Adds a frame that was just received from the sender.
    pub(super) fn enter(&mut self, mut packet: MemoryPacket, counters: &Counters) {
        let sent_at = packet.sent_at();
        self.release_held(sent_at);
        count(&counters.frames, 1);
        if self.impairments.path_mtu.is_some_and(|mtu| ip_len(&packet) > mtu) {
            return count(&counters.too_long, 1);
        }
        if self.impairments.drop_if.as_ref().is_some_and(|chosen| chosen.0(packet.data())) {
            return count(&counters.chosen, 1);
        }
        let Some(left_at) = self.depart(sent_at, packet.len()) else {
            return count(&counters.queue_full, 1);
        };
        if self.chance(self.impairments.loss) {
            return count(&counters.lost, 1);
        }
        if packet.len() > 1 && self.chance(self.impairments.truncation) {
            count(&counters.truncated, 1);
            let len = self.random.usize(1..packet.len());
            packet.truncate(len);
            packet.mark_damaged();
        }
        if self.chance(self.impairments.corruption) {
            let Some(corrupted) = self.corrupt(packet) else {
                return count(&counters.no_packet, 1);
            };
            count(&counters.corrupted, 1);
            packet = corrupted;
        }
        if self.chance(self.impairments.duplication) {
            match packet.try_clone() {
                Some(twin) => {
                    count(&counters.duplicated, 1);
                    self.travel(twin, left_at, counters);
                }
                None => count(&counters.no_packet, 1),
            }
        }
        self.travel(packet, left_at, counters);
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }

    /// Returns when a frame of `len` bytes that was sent at `sent_at` leaves the queue of the rate limit, or `None` if
    /// the queue has no room for it.
    fn depart(&mut self, sent_at: Instant, len: usize) -> Option<Instant> {
        let Some(rate) = self.impairments.rate else { return Some(sent_at) };
        let bits_per_second = u128::from(rate.bits_per_second.max(1));
        let waiting = self.busy_until.since(sent_at).as_nanos() * bits_per_second / 8_000_000_000;
        if waiting + len as u128 > rate.queue_bytes as u128 {
            return None;
        }
        let takes = len as u128 * 8_000_000_000 / bits_per_second;
        let takes = Duration::from_nanos(u64::try_from(takes).unwrap_or(u64::MAX));
        self.busy_until = self.busy_until.max(sent_at) + takes;
        Some(self.busy_until)
    }

    /// Inverts a bit of `packet`, or of a copy if it is shared. Returns `None` if there is no packet for a copy.
    fn corrupt(&mut self, mut packet: MemoryPacket) -> Option<MemoryPacket> {
        let within = if self.random.bool() { packet.len().min(HEADERS) } else { packet.len() };
        let bit = self.random.usize(0..within * 8);
        if !packet.flip(bit) {
            packet = packet.copy(None)?;
            let flipped = packet.flip(bit);
            debug_assert!(flipped);
        }
        packet.mark_damaged();
        Some(packet)
    }

    /// Adds a frame to the frames in flight, or holds it back.
    fn travel(&mut self, packet: MemoryPacket, left_at: Instant, counters: &Counters) {
        let jitter = match self.impairments.jitter.as_nanos() {
            0 => 0,
            most => self.random.u64(0..=u64::try_from(most).unwrap_or(u64::MAX)),
        };
        let arrival = left_at + self.impairments.delay + Duration::from_nanos(jitter);
        let reordering = self.impairments.reordering;
        if self.chance(reordering.chance) {
            count(&counters.reordered, 1);
            let until = arrival + reordering.within;
            self.held.push(Held { packet, arrival, until, frames: reordering.frames });
            return;
        }
        self.last_arrival = self.last_arrival.max(arrival);
        self.enqueue_in_flight(packet, self.last_arrival);
        let mut at = 0;
        while at < self.held.len() {
            let held = &mut self.held[at];
            held.frames = held.frames.saturating_sub(1);
            if held.frames == 0 {
                let held = self.held.remove(at);
                self.enqueue_in_flight(held.packet, held.arrival.max(self.last_arrival));
            } else {
                at += 1;
            }
        }
    }

    fn enqueue_in_flight(&mut self, packet: MemoryPacket, arrival: Instant) {
        self.serial += 1;
        self.in_flight.push(Reverse(InFlight { arrival, serial: self.serial, packet }));
    }

    /// Releases frames whose maximum hold time has passed at `now`.
    fn release_held(&mut self, now: Instant) {
        while let Some(at) = self.held.iter().position(|held| held.until <= now) {
            let held = self.held.remove(at);
            self.enqueue_in_flight(held.packet, held.until);
        }
    }
}

/// Returns the length of the longest IP packet of the frame, after segmentation if it is requested.
fn ip_len(packet: &MemoryPacket) -> usize {
    let port = packet.port();
    let cut = port.segment_payload().and_then(|segment| Some(port.headers()?.1 + usize::from(segment)));
    cut.unwrap_or_else(|| packet.len().saturating_sub(ETHERNET))
}

#[cfg(test)]
mod tests;
