//! Scoreboard: transmission time, delivery and loss of every byte between SND.UNA and SND.NXT.
//!
//! # Structure and cost
//!
//! *Records*, one for each transmission, are kept in a deque in sequence order, and cover the sequence space without a
//! gap. Three smaller structures avoid searches:
//!
//! - **Selectively acknowledged ranges**: a binary search finds the new part of a SACK block, whatever its size, so
//!   that each record is marked once however often it is reported.
//! - **Lost ranges** that were not retransmitted since: the first is the next to retransmit.
//! - **Retransmissions** in order of time. Records that were never retransmitted are in order of time as well, so that
//!   both together are RACK's list by transmission time (RFC 8985 §6.2). The search for losses stops at the first
//!   transmission of either kind that is not lost, and does not visit earlier ones again.
//!
//! Therefore an acknowledgement costs a binary search for each SACK block, and amortised constant time for each record
//! that it acknowledges, cumulatively or selectively, or that is found lost.
//!
//! A block that ends within a record (with TSO, one record of up to 64 KB for many segments) splits it. If the adjacent
//! record is acknowledged, the boundary moves instead, so that a growing block splits nothing. Otherwise a record is
//! inserted, which moves up to half the deque, at 24 bytes a record. The worst case of an acknowledgement is eight
//! insertions for four blocks. The number of ranges that a peer can create is limited (see [`SeqRanges`]).
//!
//! Records are split only at boundaries between segments: a block that ends elsewhere counts up to the last boundary.
//! Therefore **there are never more records than segments in flight**, which the engine's send buffer bounds.

mod losses;
mod ranges;
mod record;
mod sack;
mod selective;

use std::collections::VecDeque;

use linerate_service::time::Instant;

use super::Seq;
use crate::tcp::buffers::queue::Queue;
use losses::Retransmission;
use ranges::SeqRanges;

pub(crate) use losses::LossScan;
pub(crate) use record::TxRecord;
pub(crate) use sack::SackReport;

/// Records for which an idle scoreboard keeps memory.
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
    /// Records before this that were never retransmitted are acknowledged or marked lost.
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

    /// Moves an empty scoreboard to `una`.
    #[inline]
    pub(crate) fn move_to(&mut self, una: Seq) {
        self.una = una;
        self.next = una;
        self.loss_scan_from = una;
    }

    /// Returns whether the scoreboard holds more memory than an idle one keeps.
    #[inline]
    pub(crate) fn exceeds_idle_capacity(&self) -> bool {
        self.records.capacity() > IDLE_RECORDS
    }

    /// Empties the scoreboard, and frees memory beyond that of an idle one.
    pub(crate) fn reset(&mut self) {
        self.next = self.una;
        self.records.clear();
        self.records.shrink_to(IDLE_RECORDS);
        self.sacked.clear();
        self.lost.clear();
        self.retransmissions.clear();
        self.retransmissions.shrink_to(IDLE_RECORDS);
    }

    #[inline]
    pub(crate) fn una(&self) -> Seq {
        self.una
    }

    /// Returns SND.NXT (more precisely SND.MAX: retransmission does not move it back).
    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.next
    }

    /// Returns the bytes sent and not acknowledged cumulatively: "FlightSize" of RFC 5681 §2.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.next - self.una
    }

    /// Returns the bytes selectively acknowledged.
    #[inline]
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked.bytes()
    }

    /// Returns the bytes lost and not retransmitted since.
    #[inline]
    pub(crate) fn lost(&self) -> u32 {
        self.lost.bytes()
    }

    /// Returns the bytes estimated to be in the network, as in RFC 9937 §6.2 for a sender with SACK.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.outstanding() - self.sacked.bytes() - self.lost.bytes()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&TxRecord> {
        self.records.front()
    }

    /// Returns whether there is exactly one record.
    #[inline(always)]
    pub(crate) fn is_lone(&self) -> bool {
        self.records.only().is_some()
    }

    /// Returns whether a single segment is outstanding.
    #[inline]
    pub(crate) fn is_one_segment(&self) -> bool {
        self.records.only().is_some_and(TxRecord::is_one_segment)
    }

    #[inline]
    pub(crate) fn last(&self) -> Option<&TxRecord> {
        self.records.back()
    }

    /// Returns whether a retransmission may be in flight.
    #[inline]
    pub(crate) fn has_retransmissions(&self) -> bool {
        !self.retransmissions.is_empty()
    }

    /// Returns the end of the highest selectively acknowledged range.
    pub(crate) fn highest_sacked(&self) -> Option<Seq> {
        self.sacked.end()
    }

    /// Records the transmission of `len` new bytes, at most one segment, in an empty scoreboard.
    #[inline(always)]
    pub(crate) fn push_lone(&mut self, len: u32, mss: u16, sent: Instant) {
        self.records.put(TxRecord { seq: self.next, len, sent, timestamp: 0, mss, flags: 0 });
        self.next += len;
    }

    /// Records the transmission of `len` new bytes in segments of `mss`.
    #[inline(always)]
    pub(crate) fn push(&mut self, len: u32, mss: u16, sent: Instant) {
        let mss = mss.max(1);
        // Data and a FIN that fit into one segment are one segment.
        let mss = if len == u32::from(mss) + 1 { mss.saturating_add(1) } else { mss };
        self.records.push_back(TxRecord { seq: self.next, len, sent, timestamp: 0, mss, flags: 0 });
        self.next += len;
    }

    /// Moves the start of the loss scan along with SND.UNA.
    pub(crate) fn follow_una(&mut self) {
        self.loss_scan_from = self.loss_scan_from.max(self.una);
    }

    /// Returns the index of the record that contains `seq`, or the number of records.
    fn index_of(&self, seq: Seq) -> usize {
        match self.records.front() {
            Some(first) if seq.before(first.end()) => 0,
            _ => self.records.partition_point(|record| seq.at_or_after(record.end())),
        }
    }

    /// Splits the record at `index` at `at`, which is within it.
    fn split(&mut self, index: usize, at: Seq) {
        let Some(record) = self.records.get_mut(index) else { return };
        let mut second = *record;
        record.len = at - record.seq;
        second.seq = at;
        second.len -= record.len;
        self.records.insert(index + 1, second);
    }

    /// Removes the only record, which `ack` acknowledges. Returns its time of transmission.
    #[inline(always)]
    pub(crate) fn take_lone(&mut self, ack: Seq) -> Instant {
        self.una = ack;
        self.records.take_only().map_or(Instant::ZERO, |record| record.sent)
    }

    /// Removes everything before `ack`, which is in (SND.UNA, SND.NXT], when nothing was selectively acknowledged, lost
    /// or retransmitted. Returns the time of transmission of the oldest record.
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

    /// Removes everything before `ack`, which is in (SND.UNA, SND.NXT]. Calls `delivered` in order with each record, or
    /// part of one, that was not selectively acknowledged before.
    pub(crate) fn advance(&mut self, ack: Seq, mut delivered: impl FnMut(&TxRecord)) {
        while let Some(record) = self.records.front_mut() {
            let mut chunk = *record;
            if ack.at_or_after(record.end()) {
                self.records.pop_front();
            } else if ack.after(record.seq) {
                chunk.len = ack - record.seq;
                record.seq = ack;
                record.len -= chunk.len;
            } else {
                break;
            }
            if !chunk.is_sacked() {
                delivered(&chunk);
            }
        }
        self.una = ack;
        self.sacked.advance(ack);
        self.lost.advance(ack);
        while self.retransmissions.front().is_some_and(|resent| ack.at_or_after(resent.end)) {
            self.retransmissions.pop_front();
        }
    }

    /// Limits segments to `mss` bytes: records in flight may be split accordingly.
    pub(crate) fn set_mss(&mut self, mss: u16) {
        for record in self.records.iter_mut() {
            record.mss = record.mss.min(mss.max(1));
        }
    }

    /// Panics if the structures are inconsistent.
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
                assert!(record.sent >= sent, "records sent once are in order of time");
                sent = record.sent;
                assert!(!record.seq.before(self.loss_scan_from), "records before the loss scan are settled");
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
