//! Reassembly queue: out-of-order data, held in its packets until the gap in front of it is filled.

use crate::wire::tcp::options::{MAX_SACK_BLOCKS, SackBlock};
use crate::wire::tcp::seq::Seq;
use linerate_bypass::Packet;
use std::collections::VecDeque;

/// Maximum payload that is copied to the preceding chunk, so that it pins no packet of its own.
const SHORT: usize = 256;

/// Number of held chunks at which short ones are copied.
const COPY_FROM: usize = 16;

/// Number of chunks for which an empty queue keeps memory.
const RETAINED_CAPACITY: usize = 64;

/// Chunk of the stream in the single-mbuf packet that carried it. The packet contains payload only.
struct Held<P> {
    seq: Seq,
    packet: P,
}

/// Contiguous range of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: Seq,
    end: Seq,
}

/// Data beyond the first gap, in order and without overlap.
pub(crate) struct Reassembly<P> {
    held: VecDeque<Held<P>>,
    /// Contiguous ranges that the chunks form, in order.
    runs: Vec<Run>,
    /// Bytes held.
    bytes: usize,
    /// One sequence number of each of the last runs that grew, latest first, which is the order of SACK blocks (RFC
    /// 2018 §4).
    recent: [Seq; MAX_SACK_BLOCKS],
    recent_len: usize,
    /// Sequence number of the peer's FIN, if it has arrived.
    fin: Option<Seq>,
    /// Unread in-order data on the heap. It follows the data in the receive queue.
    spilled: Vec<u8>,
    /// True if there is a FIN or unread data on the heap.
    has_more: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The chunk, or part of it, is held.
    Held,
    /// The chunk was short, and was copied to the preceding chunk.
    Copied,
    /// All of the chunk was held already.
    Duplicate,
    Full,
}

impl<P: Packet> Reassembly<P> {
    pub fn new() -> Self {
        Reassembly {
            held: VecDeque::new(),
            runs: Vec::new(),
            bytes: 0,
            recent: [Seq(0); MAX_SACK_BLOCKS],
            recent_len: 0,
            fin: None,
            spilled: Vec::new(),
            has_more: false,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && !self.has_more
    }

    /// Returns the packets held. Each pins an mbuf of the pool, however short its payload.
    pub fn packets(&self) -> usize {
        self.held.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records the sequence number of the peer's FIN beyond a gap.
    pub fn set_fin(&mut self, at: Seq) {
        self.fin = Some(at);
        self.has_more = true;
    }

    /// Drops all data.
    pub fn clear(&mut self) {
        self.spilled = Vec::new();
        self.discard();
    }

    /// Drops out-of-order data and the FIN.
    pub fn discard(&mut self) {
        self.held.clear();
        self.held.shrink_to(RETAINED_CAPACITY);
        self.runs.clear();
        self.runs.shrink_to(RETAINED_CAPACITY);
        self.bytes = 0;
        self.recent_len = 0;
        self.fin = None;
        self.has_more = self.has_spilled();
    }

    /// Returns whether unread data is on the heap: in-order data has to follow it there.
    #[inline]
    pub fn has_spilled(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// Returns the bytes of unread data on the heap.
    pub fn spilled(&self) -> usize {
        self.spilled.len()
    }

    /// Appends `data` to the unread data on the heap.
    pub fn spill(&mut self, data: &[u8]) {
        self.spilled.extend_from_slice(data);
        self.has_more |= !data.is_empty();
    }

    /// Puts `data` in front of the unread data on the heap.
    pub fn spill_front(&mut self, mut data: Vec<u8>) {
        data.append(&mut self.spilled);
        self.spilled = data;
        self.has_more |= self.has_spilled();
    }

    /// Passes the unread data on the heap to `restore` and removes as many bytes from its front as `restore` returns.
    pub fn restore(&mut self, restore: impl FnOnce(&[u8]) -> usize) {
        let n = restore(&self.spilled);
        self.spilled.drain(..n);
        if self.spilled.is_empty() {
            self.spilled = Vec::new();
        }
        self.has_more = self.has_spilled() || self.fin.is_some();
    }

    /// Inserts `packet`, a single mbuf with the data at `seq`. At most `limit` packets are held.
    pub fn insert(&mut self, mut seq: Seq, mut packet: P, limit: usize) -> Inserted {
        let len = packet.len() as u32;
        if len == 0 {
            return Inserted::Duplicate;
        }
        let mut end = seq + len;
        if self.run_of(seq).is_some_and(|run| run.end.at_or_after(end)) {
            self.note_recent(seq);
            return Inserted::Duplicate;
        }
        // Most data arrives after all data held.
        let mut at = self.held.len();
        while at > 0 && self.held[at - 1].seq.after(seq) {
            if self.held.len() - at > 8 {
                at = self.held.partition_point(|held| !held.seq.after(seq));
                break;
            }
            at -= 1;
        }
        if let Some(before) = at.checked_sub(1).map(|i| &self.held[i]) {
            let covered = before.seq + before.packet.len() as u32;
            if covered.after(seq) {
                if !packet.adjust((covered - seq) as usize) {
                    return Inserted::Duplicate;
                }
                seq = covered;
            }
        }
        // Checked before anything is removed: data reported as held must stay.
        let covers = self.held.get(at).is_some_and(|next| end.at_or_after(next.seq + next.packet.len() as u32));
        if self.held.len() >= limit && !covers {
            return Inserted::Full;
        }
        // Chunks that the packet covers completely are removed; at a chunk covered in part the packet is trimmed.
        while let Some(next) = self.held.get(at) {
            let next_end = next.seq + next.packet.len() as u32;
            if !end.after(next.seq) {
                break;
            }
            if end.at_or_after(next_end) {
                self.bytes -= next.packet.len();
                self.held.remove(at);
                continue;
            }
            if next.seq == seq || !packet.trim((end - next.seq) as usize) {
                return Inserted::Duplicate;
            }
            end = next.seq;
            break;
        }
        let len = packet.len();
        self.bytes += len;
        let mut inserted = Inserted::Held;
        if len <= SHORT
            && self.held.len() >= COPY_FROM
            && self.bytes <= self.held.len() * SHORT
            && let Some(before) = at.checked_sub(1).and_then(|i| self.held.get_mut(i))
            && before.seq + before.packet.len() as u32 == seq
            && let Some(tail) = before.packet.append(len)
        {
            tail.copy_from_slice(packet.data());
            inserted = Inserted::Copied;
        } else {
            self.held.insert(at, Held { seq, packet });
        }
        self.cover(seq, end);
        self.note_recent(seq);
        inserted
    }

    /// Adds `start..end`, which no run contains, to the runs.
    fn cover(&mut self, start: Seq, end: Seq) {
        let first = self.runs.partition_point(|run| run.end.before(start));
        let mut run = Run { start, end };
        let mut last = first;
        while let Some(next) = self.runs.get(last).filter(|next| !next.start.after(end)) {
            run = Run { start: run.start.min(next.start), end: run.end.max(next.end) };
            last += 1;
        }
        if last == first {
            self.runs.insert(first, run);
        } else {
            self.runs[first] = run;
            self.runs.drain(first + 1..last);
        }
    }

    /// Returns the first part of `start..end` that is held.
    pub fn first_held(&self, start: Seq, end: Seq) -> Option<(Seq, Seq)> {
        let at = self.runs.partition_point(|run| !run.end.after(start));
        let run = self.runs.get(at)?;
        let (left, right) = (run.start.max(start), run.end.min(end));
        right.after(left).then_some((left, right))
    }

    /// Makes the run that contains `seq` the first to be reported.
    pub fn note_recent(&mut self, seq: Seq) {
        let Some(run) = self.run_of(seq) else { return };
        let mut kept = [seq; MAX_SACK_BLOCKS];
        let mut n = 1;
        for other in &self.recent[..self.recent_len] {
            let same = other.at_or_after(run.start) && other.before(run.end);
            if n < MAX_SACK_BLOCKS && !same && self.run_of(*other).is_some() {
                kept[n] = *other;
                n += 1;
            }
        }
        self.recent = kept;
        self.recent_len = n;
    }

    fn run_of(&self, seq: Seq) -> Option<Run> {
        let at = self.runs.partition_point(|run| !run.end.after(seq));
        self.runs.get(at).copied().filter(|run| seq.at_or_after(run.start))
    }

    /// Writes SACK blocks to `into`, the run that grew last first. Returns their number.
    pub fn blocks(&self, into: &mut [SackBlock]) -> usize {
        let mut n = 0;
        for seq in &self.recent[..self.recent_len] {
            if n == into.len() {
                break;
            }
            if let Some(run) = self.run_of(*seq) {
                into[n] = SackBlock { left: run.start, right: run.end };
                n += 1;
            }
        }
        n
    }

    /// Takes the chunk that continues the stream at `next`, trimmed to new data, and its length. Chunks before `next`
    /// are dropped.
    pub fn take(&mut self, next: Seq) -> Option<(P, u32)> {
        loop {
            let first = self.held.front()?;
            if first.seq.after(next) {
                return None;
            }
            let mut first = self.held.pop_front()?;
            let len = first.packet.len() as u32;
            self.bytes -= len as usize;
            let end = first.seq + len;
            let skip = next - first.seq;
            self.uncover(end);
            if !end.after(next) || !first.packet.adjust(skip as usize) {
                continue;
            }
            return Some((first.packet, len - skip));
        }
    }

    /// Removes everything before `next` from the runs.
    fn uncover(&mut self, next: Seq) {
        let gone = self.runs.partition_point(|run| !run.end.after(next));
        self.runs.drain(..gone);
        if let Some(first) = self.runs.first_mut() {
            first.start = first.start.max(next);
        }
        if self.runs.is_empty() {
            self.recent_len = 0;
        }
    }

    /// Panics unless the chunks are in order, without overlap, between `next` and `edge`, and form the runs.
    pub fn assert_in_order(&self, next: Seq, edge: Seq) {
        let mut at = next;
        let mut runs = Vec::new();
        for held in &self.held {
            let end = held.seq + held.packet.len() as u32;
            assert!(!held.seq.before(at) && end.after(held.seq), "out of order: {:?}..{end:?} at {at:?}", held.seq);
            match runs.last_mut() {
                Some(Run { end: last, .. }) if *last == held.seq => *last = end,
                _ => runs.push(Run { start: held.seq, end }),
            }
            at = end;
        }
        assert!(!at.after(edge), "{at:?} is beyond the window {edge:?}");
        assert_eq!(runs, self.runs, "the runs");
        assert_eq!(self.held.iter().map(|held| held.packet.len()).sum::<usize>(), self.bytes, "bytes held");
        assert!(runs.first().is_none_or(|run| run.start.after(next)), "{next:?} is held but in order");
    }

    /// Returns whether the peer's FIN is at `next`.
    pub fn is_fin_at(&self, next: Seq) -> bool {
        self.fin == Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::Nic;
    use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
    use proptest::prelude::*;

    fn packet(nic: &mut MemoryNic, seq: u32, len: u32) -> MemoryPacket {
        let mut packet = nic.allocate().unwrap();
        let tail = packet.append(len as usize).unwrap();
        tail.iter_mut().enumerate().for_each(|(i, byte)| *byte = (seq.wrapping_add(i as u32) % 251) as u8);
        packet
    }

    fn blocks(reassembly: &Reassembly<MemoryPacket>) -> Vec<(u32, u32)> {
        let mut blocks = [SackBlock::default(); MAX_SACK_BLOCKS];
        let n = reassembly.blocks(&mut blocks);
        blocks[..n].iter().map(|block| (block.left.0, block.right.0)).collect()
    }

    /// RFC 2018 §4: the first block reports the latest segment, the others the preceding ones.
    #[test]
    fn blocks_are_reported_latest_first() {
        let (mut nic, _) = Link::pair(LinkConfig::default());
        let mut reassembly = Reassembly::new();
        for seq in [5500, 6500, 7500, 8500] {
            let chunk = packet(&mut nic, seq, 500);
            assert_eq!(reassembly.insert(Seq(seq), chunk, 100), Inserted::Held);
        }
        assert_eq!(blocks(&reassembly), [(8500, 9000), (7500, 8000), (6500, 7000), (5500, 6000)]);
        let chunk = packet(&mut nic, 6000, 500);
        reassembly.insert(Seq(6000), chunk, 100);
        assert_eq!(blocks(&reassembly), [(5500, 7000), (8500, 9000), (7500, 8000)]);
    }

    /// Reported data is kept when the limit is reached.
    #[test]
    fn segment_that_covers_others_replaces_them_at_the_limit() {
        let (mut nic, _) = Link::pair(LinkConfig::default());
        let mut reassembly = Reassembly::new();
        for seq in [10, 30, 50] {
            let chunk = packet(&mut nic, seq, 5);
            assert_eq!(reassembly.insert(Seq(seq), chunk, 3), Inserted::Held);
        }
        // The limit may decrease, because more data waits in order.
        let chunk = packet(&mut nic, 8, 10);
        assert_eq!(reassembly.insert(Seq(8), chunk, 1), Inserted::Held);
        assert_eq!(reassembly.packets(), 3);
        let chunk = packet(&mut nic, 28, 2);
        assert_eq!(reassembly.insert(Seq(28), chunk, 1), Inserted::Full);
        assert_eq!(blocks(&reassembly), [(8, 18), (50, 55), (30, 35)]);
        for (from, len) in [(8, 10), (30, 5), (50, 5)] {
            assert_eq!(reassembly.take(Seq(from)).map(|(_, len)| len), Some(len));
        }
    }

    #[test]
    fn packets_are_limited() {
        let (mut nic, _) = Link::pair(LinkConfig::default());
        let mut reassembly = Reassembly::new();
        for i in 0..10 {
            let chunk = packet(&mut nic, 2 * i, 1);
            let expected = if i < 4 { Inserted::Held } else { Inserted::Full };
            assert_eq!(reassembly.insert(Seq(2 * i), chunk, 4), expected);
        }
        assert_eq!(reassembly.packets(), 4);
        reassembly.clear();
        assert_eq!(nic.pool_available(), nic.pool_capacity());
    }

    /// RFC 2018 §4: a block is a contiguous range that is held; a range below RCV.NXT is not.
    #[test]
    fn ranges_below_rcv_nxt_are_not_reported() {
        let (mut nic, _) = Link::pair(LinkConfig::default());
        let mut reassembly = Reassembly::new();
        reassembly.insert(Seq(300), packet(&mut nic, 300, 100), 100);
        reassembly.insert(Seq(900), packet(&mut nic, 900, 100), 100);
        assert!(reassembly.take(Seq(500)).is_none());
        assert_eq!((blocks(&reassembly), reassembly.packets()), (vec![(900, 1000)], 1));
    }

    proptest! {
        #[test]
        fn bytes_are_delivered_once_and_in_order(
            chunks in prop::collection::vec((0..400u32, 1..60u32), 1..80), base: u32
        ) {
            let (mut nic, _) = Link::pair(LinkConfig::default());
            let mut reassembly = Reassembly::new();
            let mut there = [false; 500];
            for (at, len) in chunks {
                let new = (at..at + len).any(|i| !there[i as usize]);
                let inserted = reassembly.insert(Seq(base) + at, packet(&mut nic, at, len), usize::MAX);
                prop_assert_eq!(matches!(inserted, Inserted::Held | Inserted::Copied), new);
                (at..at + len).for_each(|i| there[i as usize] = true);
                // The runs are the ranges that are present.
                let expected: Vec<_> = (0..500).filter(|i| there[*i] && (*i == 0 || !there[*i - 1])).map(|start| {
                    let end = (start..500).find(|i| !there[*i]).unwrap_or(500);
                    Run { start: Seq(base) + start as u32, end: Seq(base) + end as u32 }
                }).collect();
                prop_assert_eq!(&reassembly.runs, &expected);
                let reported = blocks(&reassembly);
                for (start, end) in &reported {
                    let run = Run { start: Seq(*start), end: Seq(*end) };
                    prop_assert!(expected.contains(&run));
                }
                prop_assert!(reported[0].0.wrapping_sub(base) <= at && at < reported[0].1.wrapping_sub(base));
            }
            let mut next = 0;
            while next < 500 {
                match reassembly.take(Seq(base) + next) {
                    Some((chunk, len)) => {
                        prop_assert_eq!(chunk.len() as u32, len);
                        for (i, byte) in chunk.data().iter().enumerate() {
                            let at = next + i as u32;
                            prop_assert!(there[at as usize]);
                            prop_assert_eq!(u32::from(*byte), at % 251);
                        }
                        next += len;
                    }
                    None => {
                        prop_assert!(!there[next as usize]);
                        next += 1;
                    }
                }
            }
            prop_assert!(reassembly.is_empty() && reassembly.runs.is_empty());
            prop_assert_eq!(nic.pool_available(), nic.pool_capacity());
        }
    }
}
