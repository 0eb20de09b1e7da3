//! Marking of selectively acknowledged data.

use super::record::{LOST, SACKED, TxRecord};
use super::{Scoreboard, Seq};

impl Scoreboard {
    /// Marks `[start, end)`, within (SND.UNA, SND.NXT], as selectively acknowledged. Calls `delivered` in order with
    /// each record, or part of one, that was not marked before.
    pub(crate) fn sack(&mut self, start: Seq, end: Seq, mut delivered: impl FnMut(&TxRecord)) {
        let mut from = start;
        while let Some((start, to)) = self.sacked.gap(from, end) {
            from = to;
            let (start, end) = self.whole_segments(start, to);
            if start.before(end) && self.sacked.has_room_for(start, end) {
                self.mark_sacked(start, end, &mut delivered);
            }
        }
    }

    /// Returns the largest part of `[start, end)` between segment boundaries; empty if it starts at or after its end.
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

    /// Marks `[start, end)`, which starts and ends at segment boundaries and of which nothing is marked.
    fn mark_sacked(&mut self, start: Seq, end: Seq, delivered: &mut impl FnMut(&TxRecord)) {
        let mut index = self.index_of(start);
        let Some(&first) = self.records.get(index) else { return };
        if first.seq != start {
            let follower = self.records.get_mut(index + 1).filter(|next| next.is_sacked());
            if let Some(follower) = follower
                && !first.end().after(end)
            {
                // The next record is marked: it grows downwards.
                let mut chunk = first;
                chunk.seq = start;
                chunk.len = first.end() - start;
                follower.seq = start;
                follower.len += chunk.len;
                if let Some(record) = self.records.get_mut(index) {
                    record.len -= chunk.len;
                }
                self.deliver(&chunk, delivered);
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
                // The previous record is marked: it grows upwards.
                let mut chunk = record;
                chunk.len = end - record.seq;
                before.len += chunk.len;
                if let Some(record) = self.records.get_mut(index) {
                    record.seq = end;
                    record.len -= chunk.len;
                }
                self.deliver(&chunk, delivered);
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

    fn deliver(&mut self, chunk: &TxRecord, delivered: &mut impl FnMut(&TxRecord)) {
        if chunk.is_lost() {
            self.lost.remove(chunk.seq, chunk.end());
        }
        delivered(chunk);
    }

    /// Returns whether at least `count` segments are selectively acknowledged. Visits at most `count` records.
    pub(crate) fn sacked_segments_reach(&self, count: u32) -> bool {
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
}
