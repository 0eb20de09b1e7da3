//! What is known of every byte between SND.UNA and SND.NXT: when it was last sent, whether it arrived, whether it is lost.
//!
//! # Structure and cost
//!
//! *Records*, one for each transmission, lie in a deque in the order of the sequence space and cover it without a gap.
//! Beside them three smaller structures keep anything from being searched for:
//!
//! - the **ranges acknowledged selectively**: what a SACK block adds is found by a binary search, whatever the block's
//!   size, so that each record is marked once however often it is reported;
//! - the **ranges lost** and not retransmitted since: the next to retransmit is the first;
//! - the **retransmissions** in the order in which they were made. Together with the records that were never retransmitted,
//!   whose order in the sequence space is their order in time, they are RACK's list by transmission time
//!   (RFC 8985 §6.2): looking for losses stops at the first transmission of either kind that is not lost, and what it went
//!   past is not looked at again.
//!
//! So an acknowledgement costs a binary search for each of its SACK blocks, and constant time, amortised, for each
//! record that it acknowledges, cumulatively or selectively, and for each that is found lost.
//!
//! A block that ends within a record (segmentation offload: one record of up to 64 KB for many segments) cuts it. Where the
//! neighbour was acknowledged already the boundary is moved, so that a growing block cuts nothing; otherwise a record is
//! inserted, which moves up to half the deque, 24 bytes a record. That is the worst case of an acknowledgement: eight
//! insertions for four blocks. The number of ranges a peer can make is limited (see [`Ranges`]).
//!
//! Records are only cut between the segments they were sent in: a block that does not end at such a place counts up to the
//! last one. So **there are never more records than segments in flight**, which is what the engine's send buffer bounds.

use std::collections::VecDeque;

use linerate_bypass::time::Instant;

use super::Seq;
use super::ranges::Ranges;

const SACKED: u8 = 1;
const LOST: u8 = 2;
const RETRANSMITTED: u8 = 4;

/// One transmission: a segment, or the segments that one call made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) seq: Seq,
    /// Length in sequence space, at least one.
    pub(super) len: u32,
    /// When it was last sent.
    pub(super) sent: Instant,
    /// TSval of the last retransmission, if there was one.
    pub(super) timestamp: u32,
    /// Into segments of how many bytes it was cut, counted from `seq`.
    mss: u16,
    flags: u8,
}

impl Record {
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.seq + self.len
    }

    /// Whether it was acknowledged selectively.
    #[inline]
    pub(super) fn is_sacked(&self) -> bool {
        self.flags & SACKED != 0
    }

    /// Whether it is believed lost and has not been retransmitted since.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.flags & LOST != 0
    }

    /// Whether it was ever retransmitted.
    #[inline]
    pub(super) fn is_retransmitted(&self) -> bool {
        self.flags & RETRANSMITTED != 0
    }

    /// Whether it is a single segment.
    #[inline]
    pub(super) fn is_one_segment(&self) -> bool {
        self.len <= u32::from(self.mss)
    }

    /// The last boundary between segments at or before `offset`.
    fn boundary_before(&self, offset: u32) -> u32 {
        if offset >= self.len { self.len } else { offset - offset % u32::from(self.mss) }
    }

    /// The first boundary between segments at or after `offset`.
    fn boundary_after(&self, offset: u32) -> u32 {
        offset.next_multiple_of(u32::from(self.mss)).min(self.len)
    }
}

/// A range retransmitted at one time.
#[derive(Debug, Clone, Copy)]
struct Resent {
    seq: Seq,
    end: Seq,
    sent: Instant,
}

/// What [`Scoreboard::find_lost`] found.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Found {
    /// Bytes newly marked lost.
    pub(super) lost: u32,
    /// How many of them had been retransmitted before.
    pub(super) lost_again: u32,
    /// Whether something sent early enough to be suspected is not overdue yet.
    pub(super) waiting: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Scoreboard {
    una: Seq,
    next: Seq,
    records: VecDeque<Record>,
    sacked: Ranges,
    lost: Ranges,
    resent: VecDeque<Resent>,
    /// No record before it that was never retransmitted is still in flight: all were acknowledged or marked lost.
    unsettled: Seq,
}

impl Scoreboard {
    pub(super) fn new(una: Seq) -> Self {
        Scoreboard {
            una,
            next: una,
            records: VecDeque::new(),
            sacked: Ranges::default(),
            lost: Ranges::default(),
            resent: VecDeque::new(),
            unsettled: una,
        }
    }

    /// Forgets everything; keeps its memory.
    #[inline]
    pub(super) fn reset(&mut self, una: Seq) {
        self.una = una;
        self.next = una;
        self.unsettled = una;
        self.records.clear();
        self.sacked.clear();
        self.lost.clear();
        self.resent.clear();
    }

    /// SND.UNA.
    #[inline]
    pub(super) fn una(&self) -> Seq {
        self.una
    }

    /// SND.NXT, or rather SND.MAX: retransmitting does not move it back.
    #[inline]
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// Bytes sent and not acknowledged cumulatively: "FlightSize" of RFC 5681 §2.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.next - self.una
    }

    /// Bytes acknowledged selectively.
    #[inline]
    pub(super) fn sacked(&self) -> u32 {
        self.sacked.bytes()
    }

    /// Bytes lost and not retransmitted since.
    #[inline]
    pub(super) fn lost(&self) -> u32 {
        self.lost.bytes()
    }

    /// Bytes believed to be in the network: what RFC 9937 §6.2 has a sender with SACK calculate.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.outstanding() - self.sacked.bytes() - self.lost.bytes()
    }

    /// How many records there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The oldest record.
    #[inline]
    pub(super) fn first(&self) -> Option<&Record> {
        self.records.front()
    }

    /// Whether a single segment is all there is.
    #[inline]
    pub(super) fn is_one_segment(&self) -> bool {
        self.records.len() == 1 && self.records.front().is_some_and(Record::is_one_segment)
    }

    /// The newest record.
    #[inline]
    pub(super) fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    /// Whether a retransmission may be in flight.
    #[inline]
    pub(super) fn has_retransmissions(&self) -> bool {
        !self.resent.is_empty()
    }

    /// The end of the highest range acknowledged selectively.
    pub(super) fn highest_sacked(&self) -> Option<Seq> {
        self.sacked.end()
    }

    /// Notes the transmission of `len` new bytes in segments of `mss`.
    #[inline]
    pub(super) fn push(&mut self, len: u32, mss: u16, sent: Instant) {
        let mss = mss.max(1);
        // Data and a FIN that fit into one segment together are one segment.
        let mss = if len == u32::from(mss) + 1 { mss.saturating_add(1) } else { mss };
        self.records.push_back(Record { seq: self.next, len, sent, timestamp: 0, mss, flags: 0 });
        self.next += len;
    }

    /// Lets the place up to which all is settled not fall behind SND.UNA.
    pub(super) fn keep_up(&mut self) {
        self.unsettled = self.unsettled.max(self.una);
    }

    /// The index of the record that holds `seq`, or the number of records.
    fn index_of(&self, seq: Seq) -> usize {
        match self.records.front() {
            Some(first) if seq.before(first.end()) => 0,
            _ => self.records.partition_point(|record| seq.at_or_after(record.end())),
        }
    }

    /// Cuts the record at `index` in two, the second beginning at `at`, which lies within it.
    fn split(&mut self, index: usize, at: Seq) {
        let Some(record) = self.records.get_mut(index) else { return };
        let mut second = *record;
        record.len = at - record.seq;
        second.seq = at;
        second.len -= record.len;
        self.records.insert(index + 1, second);
    }

    /// Removes everything before `ack`, which lies in (SND.UNA, SND.NXT], when nothing was acknowledged selectively, lost
    /// or retransmitted. Returns the oldest record removed, and whether it was the only one.
    #[inline]
    pub(super) fn advance_in_order(&mut self, ack: Seq) -> Option<(Record, bool)> {
        self.una = ack;
        let oldest = *self.records.front()?;
        if ack == self.next {
            let only = self.records.len() == 1;
            self.records.clear();
            return Some((oldest, only));
        }
        let mut removed = 0;
        while let Some(record) = self.records.front_mut() {
            if !ack.at_or_after(record.end()) {
                if ack.after(record.seq) {
                    record.len -= ack - record.seq;
                    record.seq = ack;
                }
                break;
            }
            self.records.pop_front();
            removed += 1;
        }
        Some((oldest, removed == 1))
    }

    /// Removes everything before `ack`, which lies in (SND.UNA, SND.NXT]. Calls `delivered` in order with each record, or
    /// part of one, that had not been acknowledged selectively before.
    pub(super) fn advance(&mut self, ack: Seq, mut delivered: impl FnMut(&Record)) {
        while let Some(record) = self.records.front_mut() {
            let mut piece = *record;
            if ack.at_or_after(record.end()) {
                self.records.pop_front();
            } else if ack.after(record.seq) {
                piece.len = ack - record.seq;
                record.seq = ack;
                record.len -= piece.len;
            } else {
                break;
            }
            if !piece.is_sacked() {
                delivered(&piece);
            }
        }
        self.una = ack;
        self.sacked.advance(ack);
        self.lost.advance(ack);
        while self.resent.front().is_some_and(|resent| ack.at_or_after(resent.end)) {
            self.resent.pop_front();
        }
    }

    /// Marks `[start, end)`, within (SND.UNA, SND.NXT], as acknowledged selectively. Calls `delivered` in order with each
    /// record, or part of one, that had not been before.
    pub(super) fn sack(&mut self, start: Seq, end: Seq, mut delivered: impl FnMut(&Record)) {
        let mut from = start;
        while let Some((start, to)) = self.sacked.gap(from, end) {
            from = to;
            let (start, end) = self.whole_segments(start, to);
            if start.before(end) && self.sacked.has_room_for(start, end) {
                self.mark_sacked(start, end, &mut delivered);
            }
        }
    }

    /// The largest part of `[start, end)` that begins and ends between segments; empty if it starts at or after its end.
    fn whole_segments(&self, start: Seq, end: Seq) -> (Seq, Seq) {
        let first = self.records.get(self.index_of(start));
        let last = self.records.get(self.index_of(end - 1));
        match (first, last) {
            (Some(first), Some(last)) => {
                (first.seq + first.boundary_after(start - first.seq), last.seq + last.boundary_before(end - last.seq))
            }
            _ => (end, end),
        }
    }

    /// Marks `[start, end)`, which begins and ends between segments and of which nothing is marked.
    fn mark_sacked(&mut self, start: Seq, end: Seq, delivered: &mut impl FnMut(&Record)) {
        let mut index = self.index_of(start);
        let Some(&first) = self.records.get(index) else { return };
        if first.seq != start {
            let follower = self.records.get_mut(index + 1).filter(|next| next.is_sacked());
            if let Some(follower) = follower
                && !first.end().after(end)
            {
                // What follows is marked already: it grows downwards.
                let mut piece = first;
                piece.seq = start;
                piece.len = first.end() - start;
                follower.seq = start;
                follower.len += piece.len;
                if let Some(record) = self.records.get_mut(index) {
                    record.len -= piece.len;
                }
                self.deliver(&piece, delivered);
                index += 2;
            } else {
                self.split(index, start);
                index += 1;
            }
        }
        while let Some(&record) = self.records.get(index)
            && record.seq.before(end)
        {
            if record.end().after(end) {
                let before = index.checked_sub(1).and_then(|before| self.records.get_mut(before));
                let Some(before) = before.filter(|before| before.is_sacked()) else {
                    self.split(index, end);
                    continue;
                };
                // What precedes is marked already: it grows upwards.
                let mut piece = record;
                piece.len = end - record.seq;
                before.len += piece.len;
                if let Some(record) = self.records.get_mut(index) {
                    record.seq = end;
                    record.len -= piece.len;
                }
                self.deliver(&piece, delivered);
            } else {
                if let Some(record) = self.records.get_mut(index) {
                    record.flags = record.flags & !LOST | SACKED;
                }
                self.deliver(&record, delivered);
            }
            index += 1;
        }
        self.sacked.insert(start, end);
    }

    fn deliver(&mut self, piece: &Record, delivered: &mut impl FnMut(&Record)) {
        if piece.is_lost() {
            self.lost.remove(piece.seq, piece.end());
        }
        delivered(piece);
    }

    /// Whether at least `count` segments were acknowledged selectively. Looks at no more than `count` records.
    pub(super) fn sacked_segments_reach(&self, count: u32) -> bool {
        let mut seen = 0;
        for (start, end) in self.sacked.iter() {
            let mut index = self.index_of(start);
            while let Some(record) = self.records.get(index)
                && record.seq.before(end)
            {
                seen += record.len.div_ceil(u32::from(record.mss));
                if seen >= count {
                    return true;
                }
                index += 1;
            }
        }
        false
    }

    /// The first range that is lost and has not been retransmitted.
    #[inline]
    pub(super) fn first_lost(&self) -> Option<(Seq, Seq)> {
        self.lost.first()
    }

    fn mark_lost(&mut self, index: usize) -> u32 {
        let Some(record) = self.records.get_mut(index) else { return 0 };
        record.flags |= LOST;
        let (seq, end) = (record.seq, record.end());
        self.lost.insert(seq, end);
        end - seq
    }

    /// Marks the first segment lost, unless it was acknowledged selectively or ever retransmitted. Returns its length.
    pub(super) fn mark_first_segment_lost(&mut self) -> u32 {
        let Some(&first) = self.records.front() else { return 0 };
        if first.flags != 0 {
            return 0;
        }
        if !first.is_one_segment() {
            self.split(0, first.seq + u32::from(first.mss));
        }
        self.mark_lost(0)
    }

    /// Marks every record in flight that is overdue: sent before what was delivered last (`sent_before`, of time and end)
    /// and long enough ago (`overdue`, of the time); RACK_detect_loss of RFC 8985 §6.2 step 5.
    pub(super) fn find_lost(
        &mut self,
        sent_before: impl Fn(Instant, Seq) -> bool,
        overdue: impl Fn(Instant) -> bool,
    ) -> Found {
        let mut found = Found::default();
        // What was sent once: in order of time as it is in order of sequence numbers.
        let mut index = self.index_of(self.unsettled.max(self.una));
        self.unsettled = self.next;
        while let Some(&record) = self.records.get(index) {
            if record.flags == 0 {
                let suspected = sent_before(record.sent, record.end());
                if !suspected || !overdue(record.sent) {
                    found.waiting = suspected;
                    self.unsettled = record.seq;
                    break;
                }
                found.lost += self.mark_lost(index);
            }
            index += 1;
        }
        // What was sent more than once.
        while let Some(&Resent { seq, end, sent }) = self.resent.front() {
            let mut index = self.index_of(seq.max(self.una));
            let mut stopped = None;
            while let Some(&record) = self.records.get(index)
                && record.seq.before(end)
            {
                let in_flight = record.flags & (SACKED | LOST) == 0 && record.sent == sent;
                if in_flight {
                    let suspected = sent_before(sent, record.end());
                    if !suspected || !overdue(sent) {
                        found.waiting |= suspected;
                        stopped = Some(record.seq);
                        break;
                    }
                    let len = self.mark_lost(index);
                    found.lost += len;
                    found.lost_again += len;
                }
                index += 1;
            }
            match (stopped, self.resent.front_mut()) {
                (Some(at), Some(first)) => {
                    first.seq = at;
                    break;
                }
                _ => {
                    self.resent.pop_front();
                }
            }
        }
        found
    }

    /// Marks the first record and all those for which `overdue` holds of their time lost, except what was acknowledged
    /// selectively (RFC 8985 §6.3). Returns how many bytes were newly marked. Looks at every record.
    pub(super) fn time_out(&mut self, overdue: impl Fn(Instant) -> bool) -> u32 {
        let before = self.lost.bytes();
        let mut first = true;
        for record in &mut self.records {
            if record.flags & (SACKED | LOST) == 0 && (first || overdue(record.sent)) {
                record.flags |= LOST;
                self.lost.insert(record.seq, record.end());
            }
            first = false;
        }
        self.lost.bytes() - before
    }

    /// Forgets all selective acknowledgements (RFC 2018 §8).
    pub(super) fn forget_sacks(&mut self) {
        for record in &mut self.records {
            record.flags &= !SACKED;
        }
        self.sacked.clear();
        self.unsettled = self.una;
    }

    /// Takes back that anything is lost.
    pub(super) fn forgive(&mut self) {
        for (start, end) in self.lost.iter() {
            let mut index = self.records.partition_point(|record| start.at_or_after(record.end()));
            while let Some(record) = self.records.get_mut(index)
                && record.seq.before(end)
            {
                record.flags &= !LOST;
                if record.is_retransmitted() {
                    // In flight again, at its place among the retransmissions.
                    let resent = Resent { seq: record.seq, end: record.end(), sent: record.sent };
                    let place = self.resent.partition_point(|other| other.sent <= resent.sent);
                    self.resent.insert(place, resent);
                }
                index += 1;
            }
        }
        self.lost.clear();
        self.unsettled = self.una;
    }

    /// Notes the retransmission of `[seq, seq + len)`. Returns how many bytes of it are still of interest.
    pub(super) fn retransmitted(&mut self, seq: Seq, len: u32, sent: Instant, timestamp: u32) -> u32 {
        let end = (seq + len).min(self.next);
        let seq = seq.max(self.una);
        if !seq.before(end) {
            return 0;
        }
        let mut index = self.index_of(seq);
        if self.records.get(index).is_some_and(|record| record.seq != seq) {
            self.split(index, seq);
            index += 1;
        }
        while let Some(&record) = self.records.get(index)
            && record.seq.before(end)
        {
            if record.end().after(end) {
                self.split(index, end);
            }
            if let Some(record) = self.records.get_mut(index) {
                record.sent = sent;
                record.timestamp = timestamp;
                record.flags = record.flags & !LOST | RETRANSMITTED;
            }
            index += 1;
        }
        self.lost.remove(seq, end);
        self.resent.push_back(Resent { seq, end, sent });
        end - seq
    }

    /// From now on segments have no more than `mss` bytes: what is in flight may be cut accordingly.
    pub(super) fn set_mss(&mut self, mss: u16) {
        for record in &mut self.records {
            record.mss = record.mss.min(mss.max(1));
        }
    }

    /// Panics if the structures do not agree with each other.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let (mut at, mut sacked, mut lost) = (self.una, Ranges::default(), Ranges::default());
        let mut sent = Instant::ZERO;
        for record in &self.records {
            assert_eq!(record.seq, at, "records are contiguous");
            assert!(record.len > 0, "records are not empty");
            assert!(!(record.is_sacked() && record.is_lost()), "nothing is both acknowledged and lost");
            at = record.end();
            if record.is_sacked() {
                sacked.insert(record.seq, record.end());
            }
            if record.is_lost() {
                lost.insert(record.seq, record.end());
            }
            if record.flags == 0 {
                assert!(record.sent >= sent, "what was sent once is in order of time");
                sent = record.sent;
                assert!(!record.seq.before(self.unsettled), "what is before the mark is settled");
            }
            if record.flags & (SACKED | LOST) == 0 && record.is_retransmitted() {
                let listed = |resent: &Resent| {
                    resent.sent == record.sent && !record.seq.before(resent.seq) && !record.end().after(resent.end)
                };
                assert!(self.resent.iter().any(listed), "retransmissions in flight are listed");
            }
        }
        assert_eq!(at, self.next, "records reach SND.NXT");
        assert!(self.resent.iter().is_sorted_by_key(|resent| resent.sent), "retransmissions are in order of time");
        assert!(sacked.iter().eq(self.sacked.iter()), "{sacked:?} {:?}", self.sacked);
        assert!(lost.iter().eq(self.lost.iter()), "{lost:?} {:?}", self.lost);
    }
}
