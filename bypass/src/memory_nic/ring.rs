//! Bounded ring of packets between one sender and one receiver, used a burst at a time and without locked instructions.

use super::packet::MemoryPacket;
use crate::BURST;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// State shared by both sides.
///
/// Both sides count packets without end. Packet `n` is in slot `n` modulo the number of slots. Slots of packets that
/// were sent and not received contain packets, the others do not.
struct Ring {
    /// Slots: a power of two, at least the capacity.
    slots: Box<[UnsafeCell<MaybeUninit<MemoryPacket>>]>,
    capacity: usize,
    /// True if the receiver has been dropped.
    abandoned: AtomicBool,
    sent: Line<AtomicUsize>,
    received: Line<AtomicUsize>,
}

#[repr(align(64))]
struct Line<T>(T);

// SAFETY: apart from atomics there are the slots. `ring` creates one `Sender` and one `Receiver`, which cannot be
// cloned, and both require `&mut` to access slots: the receiver those from `received` up to `sent`, the sender the
// others. Each side advances its count, with release, after its last access to the slots that it hands over. The other
// side reads the count, with acquire, before it accesses them. A packet may be sent to another thread.
unsafe impl Sync for Ring {}

/// Sending side of a ring.
pub(super) struct Sender {
    ring: Arc<Ring>,
    /// Packets sent, as in the ring.
    sent: usize,
    /// Packets received as last read. Read again when there is too little room.
    received: usize,
}

/// Receiving side of a ring.
pub(super) struct Receiver {
    ring: Arc<Ring>,
    /// Packets received, as in the ring.
    received: usize,
    /// Packets sent as last read. Read again when there are too few.
    sent: usize,
}

/// Creates a ring for up to `capacity` packets.
pub(super) fn ring(capacity: usize) -> (Sender, Receiver) {
    let ring = Arc::new(Ring {
        slots: (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        capacity,
        abandoned: AtomicBool::new(false),
        sent: Line(AtomicUsize::new(0)),
        received: Line(AtomicUsize::new(0)),
    });
    (Sender { ring: ring.clone(), sent: 0, received: 0 }, Receiver { ring, sent: 0, received: 0 })
}

impl Ring {
    /// Returns the slots of packets `first` to `first + n`, where `n` is at most the number of slots: a pointer to the
    /// first slot, the number of packets up to the end of the ring, and a pointer to the start of the ring, where the
    /// other packets are.
    #[inline]
    fn slots(&self, first: usize, n: usize) -> (*mut MemoryPacket, usize, *mut MemoryPacket) {
        let start = first & (self.slots.len() - 1);
        let base = UnsafeCell::raw_get(self.slots.as_ptr()).cast::<MemoryPacket>();
        (base.wrapping_add(start), n.min(self.slots.len() - start), base)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let (mut at, sent) = (*self.received.0.get_mut(), *self.sent.0.get_mut());
        while at != sent {
            let index = at & (self.slots.len() - 1);
            // SAFETY: sent and not received, so the slot contains a packet. Both sides are gone, and each slot is
            // visited once.
            unsafe { self.slots[index].get_mut().assume_init_drop() };
            at = at.wrapping_add(1);
        }
    }
}

impl Sender {
    /// Returns whether the receiver has been dropped, so that sent packets are lost. It may be dropped at any time.
    #[inline]
    pub(super) fn is_abandoned(&self) -> bool {
        // Relaxed: nothing else depends on it.
        self.ring.abandoned.load(Ordering::Relaxed)
    }

    /// Returns the number of packets that can be pushed, at most `wanted`.
    #[inline]
    pub(super) fn room(&mut self, wanted: usize) -> usize {
        let capacity = self.ring.capacity;
        if capacity - self.sent.wrapping_sub(self.received) < wanted {
            // Acquire: the receiver has taken the packets out of the slots.
            self.received = self.ring.received.0.load(Ordering::Acquire);
        }
        wanted.min(capacity - self.sent.wrapping_sub(self.received))
    }

    /// Sends packets from the front of `packets`, at most `most`, until the ring is full. Returns their number.
    #[inline]
    pub(super) fn push(&mut self, packets: &mut Vec<MemoryPacket>, most: usize) -> usize {
        let offered = packets.len();
        let n = self.room(most.min(offered));
        let (slots, before_end, rest) = self.ring.slots(self.sent, n);
        let from = packets.as_mut_ptr();
        // SAFETY: there is room for `n` packets, so their slots, all within the ring, contain no packets, and `room`
        // has synchronised with the receiver. The vector contains at least `n` packets. They are moved out: the other
        // packets move to the front, and the vector forgets the last `n`.
        unsafe {
            slots.copy_from_nonoverlapping(from, before_end);
            rest.copy_from_nonoverlapping(from.add(before_end), n - before_end);
            from.copy_from(from.add(n), offered - n);
            packets.set_len(offered - n);
        }
        self.sent = self.sent.wrapping_add(n);
        // Release: the receiver sees the packets as they were stored.
        self.ring.sent.0.store(self.sent, Ordering::Release);
        n
    }
}

impl Receiver {
    /// Returns whether the ring is empty.
    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: nothing else depends on it.
        self.received == self.ring.sent.0.load(Ordering::Relaxed)
    }

    /// Appends up to `most` packets to `into`, at most its spare capacity, in the order of sending. Returns their
    /// number.
    #[inline]
    pub(super) fn pop(&mut self, into: &mut Vec<MemoryPacket>, most: usize) -> usize {
        let before = into.len();
        let most = most.min(into.capacity() - before);
        if self.sent.wrapping_sub(self.received) < most {
            // Acquire: the packets are as their sender stored them.
            self.sent = self.ring.sent.0.load(Ordering::Acquire);
        }
        let n = self.sent.wrapping_sub(self.received).min(most);
        if n == 0 {
            return 0;
        }
        let (slots, before_end, rest) = self.ring.slots(self.received, n);
        // SAFETY: `n` were sent and not received, so their slots contain packets, and `into` has room for them. They
        // are moved: the slots count as empty below.
        unsafe {
            let to = into.as_mut_ptr().add(before);
            to.copy_from_nonoverlapping(slots, before_end);
            to.add(before_end).copy_from_nonoverlapping(rest, n - before_end);
            into.set_len(before + n);
        }
        self.received = self.received.wrapping_add(n);
        // Release: the packets were taken before the sender stores others in their slots.
        self.ring.received.0.store(self.received, Ordering::Release);
        n
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ring.abandoned.store(true, Ordering::Relaxed);
        // Packets in the ring return to the sender's pool now. If the sender has not seen `abandoned` yet, a packet
        // that it sends returns when the ring is dropped.
        let mut unread = Vec::with_capacity(BURST);
        while self.pop(&mut unread, BURST) > 0 {
            unread.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_nic::{Link, LinkConfig, MemoryNic};
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

    fn pop(receiver: &mut Receiver, most: usize) -> Vec<usize> {
        let mut popped = Vec::with_capacity(most);
        assert_eq!(receiver.pop(&mut popped, most), popped.len());
        popped.iter().map(Packet::len).collect()
    }

    #[test]
    fn ring_accepts_as_many_as_there_is_room_for() {
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 8, ..LinkConfig::default() });
        let (mut sender, mut receiver) = ring(5);
        assert!(receiver.is_empty());
        for round in 0..7 {
            let mut offered = packets(&mut nic, 10..18);
            assert_eq!((sender.push(&mut offered, 2), sender.room(9)), (2, 3), "round {round}");
            assert_eq!((sender.push(&mut offered, 6), sender.room(9)), (3, 0));
            assert_eq!((sender.push(&mut offered, 1), offered.len()), (0, 3));
            assert_eq!(pop(&mut receiver, 2), [10, 11]);
            assert_eq!((sender.push(&mut offered, 3), receiver.is_empty()), (2, false));
            assert_eq!(offered.iter().map(Packet::len).collect::<Vec<_>>(), [17]);
            assert_eq!(pop(&mut receiver, 9), [12, 13, 14, 15, 16]);
            assert!(receiver.is_empty() && pop(&mut receiver, 9).is_empty());
        }
    }

    #[test]
    fn counts_may_wrap() {
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 8, ..LinkConfig::default() });
        let (mut sender, mut receiver) = ring(5);
        let start = usize::MAX - 2;
        sender.ring.sent.0.store(start, Ordering::Relaxed);
        sender.ring.received.0.store(start, Ordering::Relaxed);
        (sender.sent, sender.received) = (start, start);
        (receiver.sent, receiver.received) = (start, start);
        assert_eq!(sender.push(&mut packets(&mut nic, 10..18), 8), 5);
        assert_eq!(pop(&mut receiver, 4), [10, 11, 12, 13]);
        assert_eq!((sender.room(9), receiver.is_empty()), (4, false));
        drop((sender, receiver));
        assert_eq!(nic.pool_available(), 8);
    }

    #[test]
    fn receiver_takes_at_most_the_spare_capacity() {
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 4, ..LinkConfig::default() });
        let (mut sender, mut receiver) = ring(4);
        sender.push(&mut packets(&mut nic, 0..4), 4);
        let mut into = Vec::with_capacity(3);
        assert_eq!(receiver.pop(&mut into, usize::MAX), into.capacity());
        assert_eq!(pop(&mut receiver, 4), [3]);
    }

    #[test]
    fn packets_left_in_a_ring_return_with_the_receiver_or_the_sender() {
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 4, ..LinkConfig::default() });
        let (mut sender, receiver) = ring(4);
        sender.push(&mut packets(&mut nic, 0..4), 4);
        assert_eq!((nic.pool_available(), sender.is_abandoned()), (0, false));
        drop(receiver);
        assert_eq!((nic.pool_available(), sender.is_abandoned()), (4, true));
        sender.push(&mut packets(&mut nic, 0..3), 3);
        assert_eq!(nic.pool_available(), 1);
        drop(sender);
        assert_eq!(nic.pool_available(), 4);
    }

    #[test]
    fn ring_between_threads_neither_loses_nor_reorders() {
        const PACKETS: usize = if cfg!(miri) { 100 } else { 20_000 };
        let (mut nic, _peer) = Link::pair(LinkConfig { pool: 128, ..LinkConfig::default() });
        let (mut sender, mut receiver) = ring(61);
        std::thread::scope(|scope| {
            let nic = &mut nic;
            let mut sending = Some(scope.spawn(move || {
                let mut waiting = Vec::new();
                let mut made = 0;
                while (made < PACKETS || !waiting.is_empty()) && !sender.is_abandoned() {
                    while made < PACKETS && waiting.len() < 20 {
                        let Some(mut packet) = nic.allocate() else { break };
                        packet.append(8).unwrap().copy_from_slice(&made.to_ne_bytes());
                        waiting.push(packet);
                        made += 1;
                    }
                    if sender.push(&mut waiting, 17) == 0 {
                        std::thread::yield_now();
                    }
                }
            }));
            let mut next = 0usize;
            let mut received = Vec::with_capacity(13);
            while next < PACKETS {
                if receiver.pop(&mut received, 13) == 0 {
                    if sending.as_ref().is_none_or(|sending| sending.is_finished()) {
                        // Only a joined thread has certainly stored all packets.
                        sending.take().into_iter().for_each(|sending| sending.join().unwrap());
                        assert!(!receiver.is_empty());
                    }
                    std::thread::yield_now();
                }
                for packet in received.drain(..) {
                    assert_eq!(packet.data(), next.to_ne_bytes());
                    next += 1;
                }
            }
            drop(receiver);
        });
        assert_eq!(nic.pool_available(), nic.pool_capacity());
    }
}
