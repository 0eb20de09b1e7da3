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
//! insertions for four blocks. The number of ranges a peer can make is limited (see [`SeqRanges`]).
//!
//! Records are only cut between the segments they were sent in: a block that does not end at such a place counts up to the
//! last one. So **there are never more records than segments in flight**, which is what the engine's send buffer bounds.

mod losses;
mod ranges;
mod record;
mod sack;
mod selective;

use std::collections::VecDeque;

use linerate_bypass::time::Instant;

use super::Seq;
use crate::native::queue::Queue;
use losses::Retransmission;
use ranges::SeqRanges;

pub(crate) use losses::LossScan;
pub(crate) use record::TxRecord;
pub(crate) use sack::SackReport;

/// For how many records an idle scoreboard keeps memory.
const IDLE_RECORDS: usize = 1024;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Scoreboard {
    una: Seq,
    next: Seq,
    records: Queue<TxRecord>,
    sacked: SeqRanges,
    lost: SeqRanges,
    retransmissions: VecDeque<Retransmission>,
    /// No record before it that was never retransmitted is still in flight: all were acknowledged or marked lost.
    loss_scan_from: Seq,
}

impl Scoreboard {
    pub(crate) fn new(una: Seq) -> Self {
        Scoreboard {
            una,
            next: una,
            records: Queue::new(),
            sacked: SeqRanges::default(),
            lost: SeqRanges::default(),
            retransmissions: VecDeque::new(),
            loss_scan_from: una,
        }
    }

    /// Begins anew at `una`, being empty.
    #[inline]
    pub(crate) fn move_to(&mut self, una: Seq) {
        self.una = una;
        self.next = una;
        self.loss_scan_from = una;
    }

    /// Whether it holds more memory than an idle one should.
    #[inline]
    pub(crate) fn exceeds_idle_capacity(&self) -> bool {
        self.records.capacity() > IDLE_RECORDS
    }

    /// Forgets everything; keeps its memory, as far as an idle one should.
    pub(crate) fn reset(&mut self) {
        self.next = self.una;
        self.records.clear();
        self.records.shrink_to(IDLE_RECORDS);
        self.sacked.clear();
        self.lost.clear();
        self.retransmissions.clear();
        self.retransmissions.shrink_to(IDLE_RECORDS);
    }

    /// SND.UNA.
    #[inline]
    pub(crate) fn una(&self) -> Seq {
        self.una
    }

    /// SND.NXT, or rather SND.MAX: retransmitting does not move it back.
    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.next
    }

    /// Bytes sent and not acknowledged cumulatively: "FlightSize" of RFC 5681 §2.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.next - self.una
    }

    /// Bytes acknowledged selectively.
    #[inline]
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked.bytes()
    }

    /// Bytes lost and not retransmitted since.
    #[inline]
    pub(crate) fn lost(&self) -> u32 {
        self.lost.bytes()
    }

    /// Bytes believed to be in the network: what RFC 9937 §6.2 has a sender with SACK calculate.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.outstanding() - self.sacked.bytes() - self.lost.bytes()
    }

    /// How many records there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// The oldest record.
    #[inline]
    pub(crate) fn first(&self) -> Option<&TxRecord> {
        self.records.front()
    }

    /// Whether there is one record.
    #[inline(always)]
    pub(crate) fn is_lone(&self) -> bool {
        self.records.only().is_some()
    }

    /// Whether a single segment is all there is.
    #[inline]
    pub(crate) fn is_one_segment(&self) -> bool {
        self.records.only().is_some_and(TxRecord::is_one_segment)
    }

    /// The newest record.
    #[inline]
    pub(crate) fn last(&self) -> Option<&TxRecord> {
        self.records.back()
    }

    /// Whether a retransmission may be in flight.
    #[inline]
    pub(crate) fn has_retransmissions(&self) -> bool {
        !self.retransmissions.is_empty()
    }

    /// The end of the highest range acknowledged selectively.
    pub(crate) fn highest_sacked(&self) -> Option<Seq> {
        self.sacked.end()
    }

    /// Notes the transmission of `len` new bytes, no more than a segment, when there is no record.
    #[inline(always)]
    pub(crate) fn push_lone(&mut self, len: u32, mss: u16, sent: Instant) {
        self.records.put(TxRecord { seq: self.next, len, sent, timestamp: 0, mss, flags: 0 });
        self.next += len;
    }

    /// Notes the transmission of `len` new bytes in segments of `mss`.
    #[inline(always)]
    pub(crate) fn push(&mut self, len: u32, mss: u16, sent: Instant) {
        let mss = mss.max(1);
        // Data and a FIN that fit into one segment together are one segment.
        let mss = if len == u32::from(mss) + 1 { mss.saturating_add(1) } else { mss };
        self.records.push_back(TxRecord { seq: self.next, len, sent, timestamp: 0, mss, flags: 0 });
        self.next += len;
    }

    /// Lets the place up to which all is settled not fall behind SND.UNA.
    pub(crate) fn follow_una(&mut self) {
        self.loss_scan_from = self.loss_scan_from.max(self.una);
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

    /// Removes the only record there is, all of which `ack` acknowledges. Returns when it was sent.
    #[inline(always)]
    pub(crate) fn take_lone(&mut self, ack: Seq) -> Instant {
        self.una = ack;
        self.records.take_only().map_or(Instant::ZERO, |record| record.sent)
    }

    /// Removes everything before `ack`, which lies in (SND.UNA, SND.NXT], when nothing was acknowledged selectively, lost
    /// or retransmitted. Returns when the oldest of it was sent.
    #[inline]
    pub(crate) fn advance_in_order(&mut self, ack: Seq) -> Instant {
        self.una = ack;
        let Some(oldest) = self.records.front() else { return Instant::ZERO };
        let sent = oldest.sent;
        while let Some(record) = self.records.front_mut() {
            if !ack.at_or_after(record.end()) {
                if ack.after(record.seq) {
                    record.len -= ack - record.seq;
                    record.seq = ack;
                }
                break;
            }
            self.records.pop_front();
        }
        sent
    }

    /// Removes everything before `ack`, which lies in (SND.UNA, SND.NXT]. Calls `delivered` in order with each record, or
    /// part of one, that had not been acknowledged selectively before.
    pub(crate) fn advance(&mut self, ack: Seq, mut delivered: impl FnMut(&TxRecord)) {
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
        while self.retransmissions.front().is_some_and(|resent| ack.at_or_after(resent.end)) {
            self.retransmissions.pop_front();
        }
    }

    /// From now on segments have no more than `mss` bytes: what is in flight may be cut accordingly.
    pub(crate) fn set_mss(&mut self, mss: u16) {
        for record in self.records.iter_mut() {
            record.mss = record.mss.min(mss.max(1));
        }
    }

    /// Panics if the structures do not agree with each other.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let (mut at, mut sacked, mut lost) = (self.una, SeqRanges::default(), SeqRanges::default());
        let mut sent = Instant::ZERO;
        for record in self.records.iter() {
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
                assert!(!record.seq.before(self.loss_scan_from), "what is before the mark is settled");
            }
            if !record.is_sacked() && !record.is_lost() && record.is_retransmitted() {
                let listed = |resent: &Retransmission| {
                    resent.sent == record.sent && !record.seq.before(resent.seq) && !record.end().after(resent.end)
                };
                assert!(self.retransmissions.iter().any(listed), "retransmissions in flight are listed");
            }
        }
        assert_eq!(at, self.next, "records reach SND.NXT");
        assert!(
            self.retransmissions.iter().is_sorted_by_key(|resent| resent.sent),
            "retransmissions are in order of time"
        );
        assert!(sacked.iter().eq(self.sacked.iter()), "{sacked:?} {:?}", self.sacked);
        assert!(lost.iter().eq(self.lost.iter()), "{lost:?} {:?}", self.lost);
    }
}
