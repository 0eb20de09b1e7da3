//! Marking of lost and retransmitted data.

use linerate_service::time::Instant;

use super::record::{LOST, RETRANSMITTED, SACKED};
use super::{Scoreboard, Seq};

/// Range retransmitted at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retransmission {
    pub(crate) seq: Seq,
    pub(crate) end: Seq,
    pub(crate) sent: Instant,
}

/// Result of [`Scoreboard::find_lost`].
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LossScan {
    /// Bytes newly marked lost.
    pub(crate) lost: u32,
    /// Part of [`lost`](Self::lost) that had been retransmitted before.
    pub(crate) lost_again: u32,
    /// True if a suspected segment is not overdue yet.
    pub(crate) waiting: bool,
}

impl Scoreboard {
    /// Returns the first range that is lost and not retransmitted.
    #[inline]
    pub(crate) fn first_lost(&self) -> Option<(Seq, Seq)> {
        self.lost.first()
    }

    fn mark_lost(&mut self, index: usize) -> u32 {
        let Some(record) = self.records.get_mut(index) else { return 0 };
        record.flags |= LOST;
        let (seq, end) = (record.seq, record.end());
        self.lost.insert(seq, end);
        end - seq
    }

    /// Marks the first segment lost, unless it was selectively acknowledged or ever retransmitted. Returns its length.
    pub(crate) fn mark_first_segment_lost(&mut self) -> u32 {
        let Some(&first) = self.records.front() else { return 0 };
        if first.flags != 0 {
            return 0;
        }
        if !first.is_one_segment() {
            self.split(0, first.seq + u32::from(first.mss));
        }
        self.mark_lost(0)
    }

    /// Marks every record in flight lost that was sent before the last delivered one (`sent_before`, of time and end)
    /// and is overdue (`overdue`, of time); RACK_detect_loss of RFC 8985 §6.2 step 5.
    pub(crate) fn find_lost(
        &mut self,
        sent_before: impl Fn(Instant, Seq) -> bool,
        overdue: impl Fn(Instant) -> bool,
    ) -> LossScan {
        let mut found = LossScan::default();
        // Records sent once are in the same order by time and by sequence number.
        let mut index = self.index_of(self.loss_scan_from.max(self.una));
        self.loss_scan_from = self.next;
        while let Some(&record) = self.records.get(index) {
            if record.flags == 0 {
                let suspected = sent_before(record.sent, record.end());
                if !suspected || !overdue(record.sent) {
                    found.waiting = suspected;
                    self.loss_scan_from = record.seq;
                    break;
                }
                found.lost += self.mark_lost(index);
            }
            index += 1;
        }
        // Records sent more than once.
        while let Some(&Retransmission { seq, end, sent }) = self.retransmissions.front() {
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
            match (stopped, self.retransmissions.front_mut()) {
                (Some(at), Some(first)) => {
                    first.seq = at;
                    break;
                }
                _ => {
                    self.retransmissions.pop_front();
                }
            }
        }
        found
    }

    /// Marks the first record and all overdue records lost, except for selectively acknowledged ones (RFC 8985 §6.3).
    /// `overdue` decides by the time of transmission. Returns the bytes newly marked. Visits every record.
    pub(crate) fn mark_lost_on_rto(&mut self, overdue: impl Fn(Instant) -> bool) -> u32 {
        let before = self.lost.bytes();
        let mut first = true;
        for record in self.records.iter_mut() {
            if record.flags & (SACKED | LOST) == 0 && (first || overdue(record.sent)) {
                record.flags |= LOST;
                self.lost.insert(record.seq, record.end());
            }
            first = false;
        }
        self.lost.bytes() - before
    }

    /// Forgets all selective acknowledgements (RFC 2018 §8).
    pub(crate) fn forget_sacks(&mut self) {
        for record in self.records.iter_mut() {
            record.flags &= !SACKED;
        }
        self.sacked.clear();
        self.loss_scan_from = self.una;
    }

    /// Removes all loss marks.
    pub(crate) fn unmark_lost(&mut self) {
        for (start, end) in self.lost.iter() {
            let mut index = self.records.partition_point(|record| start.at_or_after(record.end()));
            while let Some(record) = self.records.get_mut(index)
                && record.seq.before(end)
            {
                record.flags &= !LOST;
                if record.is_retransmitted() {
                    // The record is in flight again, in its position among the retransmissions.
                    let resent = Retransmission { seq: record.seq, end: record.end(), sent: record.sent };
                    let index = self.retransmissions.partition_point(|other| other.sent <= resent.sent);
                    self.retransmissions.insert(index, resent);
                }
                index += 1;
            }
        }
        self.lost.clear();
        self.loss_scan_from = self.una;
    }

    /// Records the retransmission of `[seq, seq + len)`. Returns the bytes of it that are not acknowledged.
    pub(crate) fn retransmitted(&mut self, seq: Seq, len: u32, sent: Instant, timestamp: u32) -> u32 {
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
        self.retransmissions.push_back(Retransmission { seq, end, sent });
        end - seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmarked_retransmissions_of_one_time_stay_in_sequence_order() {
        // RFC 8985 §6.2 step 2: of segments sent at the same time, lower sequence numbers were sent first.
        let at = Instant::from_nanos;
        let mut scoreboard = Scoreboard::new(Seq(0));
        for n in 1..4 {
            scoreboard.push(1000, 1000, at(n));
        }
        assert_eq!(scoreboard.mark_lost_on_rto(|_| true), 3000);
        assert_eq!(scoreboard.retransmitted(Seq(0), 3000, at(10), 0), 3000);
        assert_eq!(scoreboard.find_lost(|_, _| true, |_| true).lost_again, 3000);
        scoreboard.unmark_lost();
        scoreboard.check();
        let found = scoreboard.find_lost(|sent, end| sent < at(10) || !end.after(Seq(2000)), |_| true);
        assert_eq!((found.lost_again, scoreboard.first_lost()), (2000, Some((Seq(0), Seq(2000)))));
    }
}
