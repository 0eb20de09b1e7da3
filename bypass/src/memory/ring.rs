//! The frames that were sent and not yet received: a bounded ring that senders fill, a burst at a time, and one
//! receiver empties.

use super::packet::MemoryPacket;
use super::pool::Slot;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A ring of packets, with one atomic operation that others can make wait for a burst, none for a packet.
///
/// Both ends count packets and never start again; number `n` has its place at `n` modulo the places. A sender reserves
/// places by moving `tail`, then fills them. The receiver takes what it finds from `head` on, up to the first empty
/// place, empties those, then moves `head`.
pub(super) struct Ring {
    /// A power of two of them; null where there is no packet.
    places: Box<[AtomicPtr<Slot>]>,
    capacity: usize,
    tail: Line<AtomicUsize>,
    head: Line<AtomicUsize>,
}

/// A value with a cache line to itself.
#[repr(align(64))]
struct Line<T>(T);

impl Ring {
    /// A ring for up to `capacity` packets.
    pub(super) fn new(capacity: usize) -> Self {
        Ring {
            places: (0..capacity.next_power_of_two()).map(|_| AtomicPtr::new(null_mut())).collect(),
            capacity,
            tail: Line(AtomicUsize::new(0)),
            head: Line(AtomicUsize::new(0)),
        }
    }

    /// Packets that it holds at most.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The places of `n` packets, of which there are no more than places, from number `first` on.
    #[inline]
    fn places(&self, first: usize, n: usize) -> [&[AtomicPtr<Slot>]; 2] {
        let start = first & (self.places.len() - 1);
        let before_end = n.min(self.places.len() - start);
        [&self.places[start..start + before_end], &self.places[..n - before_end]]
    }

    /// Whether there is nothing to receive.
    pub(super) fn is_empty(&self) -> bool {
        let [next, _] = self.places(self.head.0.load(Ordering::Relaxed), 1);
        next[0].load(Ordering::Acquire).is_null()
    }

    /// Where the next packet goes, and how many there is room for.
    #[inline]
    fn free(&self) -> (usize, usize) {
        // Acquire: who fills a place sees that the receiver has emptied it. The tail second: it is not behind the head
        // then, but may be beyond what fits behind this one.
        let head = self.head.0.load(Ordering::Acquire);
        let tail = self.tail.0.load(Ordering::Relaxed);
        (tail, self.capacity.saturating_sub(tail.wrapping_sub(head)))
    }

    /// How many packets there is room for, if no other sender is faster.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.free().1
    }

    /// Takes the first `most` of `packets`, or as many as there is room for, and returns how many.
    #[inline]
    pub(super) fn push(&self, packets: &mut Vec<MemoryPacket>, most: usize) -> usize {
        let (first, n) = loop {
            let (tail, room) = self.free();
            let n = room.min(most);
            // Relaxed: what is in the places is published by filling them.
            match self.tail.0.compare_exchange_weak(tail, tail.wrapping_add(n), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break (tail, n),
                Err(_) => continue,
            }
        };
        let mut packets = packets.drain(..n);
        for places in self.places(first, n) {
            for (place, packet) in places.iter().zip(packets.by_ref()) {
                // Release: the receiver sees the packet as the sender left it.
                place.store(packet.into_raw().as_ptr(), Ordering::Release);
            }
        }
        n
    }

    /// Appends up to `most` packets to `into`, in the order of sending, and returns how many.
    ///
    /// # Safety
    /// Nobody else takes packets out meanwhile.
    #[inline]
    pub(super) unsafe fn pop(&self, into: &mut Vec<MemoryPacket>, most: usize) -> usize {
        let head = self.head.0.load(Ordering::Relaxed);
        let before = into.len();
        'taking: for places in self.places(head, most.min(self.capacity)) {
            for place in places {
                let Some(packet) = NonNull::new(place.load(Ordering::Acquire)) else { break 'taking };
                place.store(null_mut(), Ordering::Relaxed);
                // SAFETY: `push` gave the packet up, and emptying its place makes sure that it is taken once.
                into.push(unsafe { MemoryPacket::from_raw(packet) });
            }
        }
        let taken = into.len() - before;
        if taken > 0 {
            // Release: the places are empty for who fills them next.
            self.head.0.store(head.wrapping_add(taken), Ordering::Release);
        }
        taken
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut rest = Vec::with_capacity(self.capacity);
        // SAFETY: `&mut self`.
        unsafe { self.pop(&mut rest, self.capacity) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Link, LinkConfig, MemoryNic};
    use crate::{Nic, Packet};

    fn packets(nic: &mut MemoryNic, lengths: std::ops::Range<usize>) -> Vec<MemoryPacket> {
        lengths
            .map(|len| {
                let mut packet = nic.allocate().unwrap();
                packet.append(len).unwrap();
                packet
            })
            .collect()
    }

    fn pop(ring: &Ring, most: usize) -> Vec<usize> {
        let mut popped = Vec::with_capacity(most);
        // SAFETY: called by one thread.
        unsafe { ring.pop(&mut popped, most) };
        popped.iter().map(Packet::len).collect()
    }

    #[test]
    fn packets_come_out_in_order_and_no_more_fit_than_asked_for() {
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 8, ..LinkConfig::default() });
        let ring = Ring::new(5);
        assert!(ring.is_empty());
        for round in 0..7 {
            let mut offered = packets(&mut nic, 10..18);
            assert_eq!((ring.push(&mut offered, 2), ring.room()), (2, 3), "round {round}");
            assert_eq!((ring.push(&mut offered, 6), ring.room()), (3, 0));
            assert_eq!((ring.push(&mut offered, 1), offered.len()), (0, 3));
            assert_eq!(pop(&ring, 2), [10, 11]);
            assert_eq!((ring.push(&mut offered, 3), ring.is_empty()), (2, false));
            assert_eq!(pop(&ring, 9), [12, 13, 14, 15, 16]);
            assert!(ring.is_empty() && pop(&ring, 9).is_empty());
        }
    }

    #[test]
    fn a_packet_waits_for_those_before_it_whose_sender_has_not_filled_their_places_yet() {
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 8, ..LinkConfig::default() });
        let ring = Ring::new(4);
        ring.push(&mut packets(&mut nic, 0..3), 3);
        assert_eq!(pop(&ring, 4).len(), 3);
        // Another sender has reserved the last place, and what follows it is at the beginning again.
        ring.tail.0.fetch_add(1, Ordering::Relaxed);
        ring.push(&mut packets(&mut nic, 11..12), 1);
        assert!(ring.is_empty() && pop(&ring, 4).is_empty());
        let late = packets(&mut nic, 10..11).remove(0);
        ring.places[3].store(late.into_raw().as_ptr(), Ordering::Release);
        assert_eq!(pop(&ring, 4), [10, 11]);
    }

    #[test]
    fn packets_left_in_a_ring_go_back_to_their_pool_with_it() {
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 4, ..LinkConfig::default() });
        let ring = Ring::new(4);
        ring.push(&mut packets(&mut nic, 0..4), 4);
        assert_eq!(nic.pool_available(), 0);
        drop(ring);
        assert_eq!(nic.pool_available(), 4);
    }

    #[test]
    fn senders_on_several_threads_lose_and_reorder_nothing() {
        const EACH: usize = 20_000;
        let (mut ends, _peers) = Link::with_queues(LinkConfig { pool: 64, ..LinkConfig::default() }, 3);
        let ring = Ring::new(7);
        std::thread::scope(|scope| {
            for (sender, nic) in ends.iter_mut().enumerate() {
                let ring = &ring;
                scope.spawn(move || {
                    let mut waiting = Vec::new();
                    let mut made = 0;
                    while made < EACH || !waiting.is_empty() {
                        while made < EACH && waiting.len() < 5 {
                            let Some(mut packet) = nic.allocate() else { break };
                            let bytes = packet.append(16).unwrap();
                            bytes[..8].copy_from_slice(&sender.to_ne_bytes());
                            bytes[8..].copy_from_slice(&made.to_ne_bytes());
                            waiting.push(packet);
                            made += 1;
                        }
                        let offered = waiting.len();
                        if ring.push(&mut waiting, offered) == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 3];
            let mut received = Vec::with_capacity(4);
            while next.iter().sum::<usize>() < 3 * EACH {
                // SAFETY: only this thread takes packets out.
                if unsafe { ring.pop(&mut received, 4) } == 0 {
                    std::thread::yield_now();
                }
                for packet in received.drain(..) {
                    let word = |at: usize| usize::from_ne_bytes(packet.data()[at..at + 8].try_into().unwrap());
                    assert_eq!(word(8), next[word(0)]);
                    next[word(0)] += 1;
                }
            }
        });
    }
}
