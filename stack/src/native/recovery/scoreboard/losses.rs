//! Marking what is lost, and what is sent again.

use linerate_bypass::time::Instant;

use super::record::{LOST, RETRANSMITTED, SACKED};
use super::{Scoreboard, Seq};

/// A range retransmitted at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retransmission {
    pub(crate) seq: Seq,
    pub(crate) end: Seq,
    pub(crate) sent: Instant,
}

/// What [`Scoreboard::find_lost`] found.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LossScan {
    /// Bytes newly marked lost.
    pub(crate) lost: u32,
    /// How many of them had been retransmitted before.
    pub(crate) lost_again: u32,
    /// Whether something sent early enough to be suspected is not overdue yet.
    pub(crate) waiting: bool,
}

impl Scoreboard {
    /// The first range that is lost and has not been retransmitted.
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

    /// Marks the first segment lost, unless it was acknowledged selectively or ever retransmitted. Returns its length.
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

    /// Marks every record in flight that is overdue: sent before what was delivered last (`sent_before`, of time and end)
    /// and long enough ago (`overdue`, of the time); RACK_detect_loss of RFC 8985 §6.2 step 5.
    pub(crate) fn find_lost(
        &mut self,
        sent_before: impl Fn(Instant, Seq) -> bool,
        overdue: impl Fn(Instant) -> bool,
    ) -> LossScan {
        let mut found = LossScan::default();
        // What was sent once: in order of time as it is in order of sequence numbers.
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
        // What was sent more than once.
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

    /// Marks the first record and all those for which `overdue` holds of their time lost, except what was acknowledged
    /// selectively (RFC 8985 §6.3). Returns how many bytes were newly marked. Looks at every record.
    pub(crate) fn time_out(&mut self, overdue: impl Fn(Instant) -> bool) -> u32 {
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

    /// Takes back that anything is lost.
    pub(crate) fn unmark_lost(&mut self) {
        for (start, end) in self.lost.iter() {
            let mut index = self.records.partition_point(|record| start.at_or_after(record.end()));
            while let Some(record) = self.records.get_mut(index)
                && record.seq.before(end)
            {
                record.flags &= !LOST;
                if record.is_retransmitted() {
                    // In flight again, at its place among the retransmissions.
                    let resent = Retransmission { seq: record.seq, end: record.end(), sent: record.sent };
                    let place = self.retransmissions.partition_point(|other| other.sent <= resent.sent);
                    self.retransmissions.insert(place, resent);
                }
                index += 1;
            }
        }
        self.lost.clear();
        self.loss_scan_from = self.una;
    }

    /// Notes the retransmission of `[seq, seq + len)`. Returns how many bytes of it are still of interest.
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
    fn forgiven_retransmissions_of_one_time_stay_in_order_of_sequence_numbers() {
        // RFC 8985 §6.2 step 2: of segments that were sent at one time, those with the lower numbers were sent first.
        let at = Instant::from_nanos;
        let mut scoreboard = Scoreboard::new(Seq(0));
        for n in 1..4 {
            scoreboard.push(1000, 1000, at(n));
        }
        assert_eq!(scoreboard.time_out(|_| true), 3000);
        assert_eq!(scoreboard.retransmitted(Seq(0), 3000, at(10), 0), 3000);
        assert_eq!(scoreboard.find_lost(|_, _| true, |_| true).lost_again, 3000);
        scoreboard.unmark_lost();
        scoreboard.check();
        let found = scoreboard.find_lost(|sent, end| sent < at(10) || !end.after(Seq(2000)), |_| true);
        assert_eq!((found.lost_again, scoreboard.first_lost()), (2000, Some((Seq(0), Seq(2000)))));
    }
}
