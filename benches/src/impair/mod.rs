//! Bridge between two ports that delays, loses, reorders, duplicates and rate-limits frames.
//!
//! The impairments are those of the memory link ([`Link`]), whose clock shows the real time: a received frame is copied
//! into the pool of the link's end, crosses the link, and is copied into a packet of the other port. Frames in flight
//! hold no packet of a port, and the link's pools bound the memory.

pub mod path;
pub mod spec;

use hdrhistogram::Histogram;
use linerate_bypass::memory_nic::{End, ImpairmentStats, Impairments, Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_bypass::{BURST, Nic, Packet};
use linerate_service::time::Instant;
use std::fmt;

/// Bytes of a frame in addition to its IP packet: the Ethernet header and two VLAN tags.
const AROUND: usize = 22;

/// Impairments of a [`Bridge`] in each direction.
#[derive(Debug, Clone)]
pub struct BridgeConfig {
    /// From the first port to the second.
    pub a_to_b: Impairments,
    /// From the second port to the first.
    pub b_to_a: Impairments,
    /// Maximum number of frames in flight per direction; further ones are dropped and counted.
    pub frames: usize,
}

/// Statistics of a [`Bridge`] for the frames received by one of its ports.
#[derive(Debug, Clone)]
pub struct BridgeStats {
    /// Frames received by the port.
    pub received: u64,
    /// Frames sent by the other port.
    pub sent: u64,
    /// Frames dropped because too many were in flight.
    pub no_room: u64,
    /// Frames dropped because the other port cannot send that length, or had no packet.
    pub not_sendable: u64,
    /// Statistics of the impairments.
    pub impaired: ImpairmentStats,
    /// Lateness of sent bursts in nanoseconds.
    pub late_nanos: Histogram<u64>,
}

/// Bridge. One thread calls [`turn`](Self::turn) continuously.
pub struct Bridge<A: Nic, B: Nic> {
    link: Link,
    a: Side<A>,
    b: Side<B>,
    /// Time of the previous turn.
    last_turn: Option<Instant>,
    pauses_nanos: Histogram<u64>,
}

/// One port, and its end of the link.
struct Side<N: Nic> {
    port: N,
    end: MemoryNic,
    received: Vec<N::Packet>,
    entering: Vec<MemoryPacket>,
    leaving: Vec<MemoryPacket>,
    /// Frames that await space in the port, before any other frame leaves the link.
    outgoing: Vec<N::Packet>,
    no_room: u64,
    not_sendable: u64,
    received_frames: u64,
    sent: u64,
    late_nanos: Histogram<u64>,
}

/// Returns a histogram of nanoseconds up to a minute.
fn nanoseconds() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).expect("the bounds are valid")
}

impl<A: Nic, B: Nic> Bridge<A, B> {
    /// Creates a bridge between `a` and `b`.
    pub fn new(a: A, b: B, config: BridgeConfig) -> Self {
        let mtu = a.capabilities().mtu.max(b.capabilities().mtu);
        let (end_a, end_b) = Link::pair(LinkConfig {
            mtu,
            ring: config.frames.max(1),
            pool: config.frames.max(1),
            data_room: (usize::from(mtu) + AROUND).next_multiple_of(64),
            ..LinkConfig::default()
        });
        let link = end_a.link().clone();
        link.impair(End::A, config.a_to_b);
        link.impair(End::B, config.b_to_a);
        let (a, b) = (Side::new(a, end_a), Side::new(b, end_b));
        Bridge { link, a, b, last_turn: None, pauses_nanos: nanoseconds() }
    }

    /// Receives frames from the ports and sends the frames due at `now`, which must not decrease. Returns true if there
    /// was any work.
    pub fn turn(&mut self, now: Instant) -> bool {
        if let Some(before) = self.last_turn.replace(now) {
            self.pauses_nanos.saturating_record(nanos_between(before, now));
        }
        self.link.clock().advance_to(now);
        let taken = self.a.take_in() + self.b.take_in();
        let given = self.a.give_out(now) + self.b.give_out(now);
        taken + given > 0
    }

    /// Returns the due time of the next frame in flight.
    pub fn next_due(&mut self) -> Option<Instant> {
        [self.a.end.next_arrival(), self.b.end.next_arrival()].into_iter().flatten().min()
    }

    /// Returns the statistics of the frames received by the first port, and by the second.
    pub fn crossed(&self) -> (BridgeStats, BridgeStats) {
        let crossed = |from: End, received, no_room, (sent, not_sendable, late_nanos): (u64, u64, &Histogram<u64>)| {
            let late_nanos = late_nanos.clone();
            BridgeStats { received, sent, no_room, not_sendable, impaired: self.link.impaired(from), late_nanos }
        };
        let (a, b) = (&self.a, &self.b);
        (
            crossed(End::A, a.received_frames, a.no_room, (b.sent, b.not_sendable, &b.late_nanos)),
            crossed(End::B, b.received_frames, b.no_room, (a.sent, a.not_sendable, &a.late_nanos)),
        )
    }

    /// Returns the intervals between turns in nanoseconds, which bound the time until the bridge sees a frame.
    pub fn pauses_nanos(&self) -> &Histogram<u64> {
        &self.pauses_nanos
    }
}

fn nanos_between(earlier: Instant, later: Instant) -> u64 {
    later.as_nanos().saturating_sub(earlier.as_nanos())
}

impl<N: Nic> Side<N> {
    fn new(port: N, end: MemoryNic) -> Self {
        Side {
            port,
            end,
            received: Vec::with_capacity(BURST),
            entering: Vec::with_capacity(BURST),
            leaving: Vec::with_capacity(BURST),
            outgoing: Vec::with_capacity(BURST),
            no_room: 0,
            not_sendable: 0,
            received_frames: 0,
            sent: 0,
            late_nanos: nanoseconds(),
        }
    }

    /// Moves received frames of the port onto the link. Returns their number.
    fn take_in(&mut self) -> usize {
        let received = self.port.rx_burst(&mut self.received);
        self.received_frames += received as u64;
        for frame in self.received.drain(..) {
            match self.end.allocate().and_then(|packet| copied(&frame, packet)) {
                Some(copy) => self.entering.push(copy),
                None => self.no_room += 1,
            }
        }
        self.end.tx_burst(&mut self.entering);
        self.no_room += self.entering.drain(..).count() as u64;
        received
    }

    /// Sends frames that have arrived over the link. Returns the number that the port accepted.
    fn give_out(&mut self, now: Instant) -> usize {
        if self.outgoing.is_empty() {
            if let Some(due) = self.end.next_arrival().filter(|due| *due <= now) {
                self.late_nanos.saturating_record(nanos_between(due, now));
            }
            self.end.rx_burst(&mut self.leaving);
            for frame in self.leaving.drain(..) {
                match self.port.allocate().and_then(|packet| copied(&frame, packet)) {
                    Some(copy) => self.outgoing.push(copy),
                    None => self.not_sendable += 1,
                }
            }
        }
        if self.outgoing.is_empty() {
            return 0;
        }
        let dropped = self.port.stats().tx_dropped;
        let taken = self.port.tx_burst(&mut self.outgoing);
        let dropped = self.port.stats().tx_dropped - dropped;
        self.not_sendable += dropped;
        self.sent += taken as u64 - dropped;
        taken
    }
}

/// Copies `frame` to `into`; `None` if it does not fit.
fn copied<P: Packet>(frame: &impl Packet, mut into: P) -> Option<P> {
    for segment in frame.segments() {
        into.append(segment.len())?.copy_from_slice(segment);
    }
    Some(into)
}

impl<A: Nic, B: Nic> fmt::Debug for Bridge<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").field("link", &self.link).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
