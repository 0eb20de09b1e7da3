//! Sets of sequence numbers.

use std::collections::VecDeque;

use super::Seq;

/// Maximum number of separate ranges in a set built from a peer's reports.
///
/// Further ranges are not recorded: a selective acknowledgement is advisory (RFC 2018 §8), and the data counts as in
/// flight for longer. The limit bounds the cost of an insertion for a peer that reports every other segment.
const RANGES_LIMIT: usize = 4096;

/// Set of sequence numbers within one window, as sorted, separate, non-empty ranges `[start, end)`.
///
/// Lookup is a binary search. Insertion and removal move the shorter side, at most half the ranges.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeqRanges {
    list: VecDeque<(Seq, Seq)>,
    bytes: u32,
}

impl SeqRanges {
    /// Returns the number of sequence numbers.
    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Empties the set and keeps its memory, which is small.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<(Seq, Seq)> {
        self.list.front().copied()
    }

    /// Returns the end of the last range.
    pub(crate) fn end(&self) -> Option<Seq> {
        self.list.back().map(|&(_, end)| end)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> {
        self.list.iter().copied()
    }

    /// Returns the index of the first range that ends after `seq`.
    fn after(&self, seq: Seq) -> usize {
        self.list.partition_point(|&(_, end)| seq.at_or_after(end))
    }

    /// Returns the first part of `[start, end)` that is not in the set.
    pub(crate) fn gap(&self, start: Seq, end: Seq) -> Option<(Seq, Seq)> {
        let (mut start, mut index) = (start, self.after(start));
        if let Some(&(from, to)) = self.list.get(index)
            && !start.before(from)
        {
            (start, index) = (to, index + 1);
        }
        let end = self.list.get(index).map_or(end, |&(from, _)| from.min(end));
        start.before(end).then_some((start, end))
    }

    /// Returns whether `[start, end)` can be inserted within the limit on separate ranges.
    pub(crate) fn has_room_for(&self, start: Seq, end: Seq) -> bool {
        if self.list.len() < RANGES_LIMIT {
            return true;
        }
        let index = self.list.partition_point(|&(_, to)| to.before(start));
        self.list.get(index).is_some_and(|&(from, _)| end.at_or_after(from))
    }

    /// Adds `[start, end)`.
    pub(crate) fn insert(&mut self, start: Seq, end: Seq) {
        if !start.before(end) {
            return;
        }
        // Ranges that touch the new one are merged with it.
        let first = match self.list.back() {
            Some(&(_, last)) if !last.before(start) => self.list.partition_point(|&(_, to)| to.before(start)),
            _ => self.list.len(),
        };
        let (mut merged, mut last) = ((start, end), first);
        while let Some(&(from, to)) = self.list.get(last)
            && end.at_or_after(from)
        {
            merged = (merged.0.min(from), merged.1.max(to));
            self.bytes -= to - from;
            last += 1;
        }
        self.bytes += merged.1 - merged.0;
        match self.list.get_mut(first) {
            Some(slot) if last > first => {
                *slot = merged;
                if last > first + 1 {
                    self.list.drain(first + 1..last);
                }
            }
            _ => self.list.insert(first, merged),
        }
    }

    /// Removes `[start, end)`.
    pub(crate) fn remove(&mut self, start: Seq, end: Seq) {
        let mut index = self.after(start);
        while let Some(slot) = self.list.get_mut(index) {
            let (from, to) = *slot;
            if !from.before(end) || !start.before(end) {
                break;
            }
            self.bytes -= to.min(end) - from.max(start);
            let (before, after) = (from.before(start), end.before(to));
            match (before, after) {
                (true, true) => {
                    slot.1 = start;
                    self.list.insert(index + 1, (end, to));
                    break;
                }
                (true, false) => {
                    slot.1 = start;
                    index += 1;
                }
                (false, true) => {
                    slot.0 = end;
                    break;
                }
                (false, false) => {
                    self.list.remove(index);
                }
            }
        }
    }

    /// Removes everything before `seq`.
    pub(crate) fn advance(&mut self, seq: Seq) {
        while let Some(first) = self.list.front_mut()
            && first.0.before(seq)
        {
            if first.1.after(seq) {
                self.bytes -= seq - first.0;
                first.0 = seq;
                break;
            }
            self.bytes -= first.1 - first.0;
            self.list.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u32, u32),
        Remove(u32, u32),
        Advance(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..60u32, 0..12u32).prop_map(|(at, len)| Step::Insert(at, len)),
            3 => (0..60u32, 0..12u32).prop_map(|(at, len)| Step::Remove(at, len)),
            1 => (0..20u32).prop_map(Step::Advance),
        ]
    }

    proptest! {
        #[test]
        fn ranges_behave_like_a_set(base in any::<u32>(), steps in prop::collection::vec(step(), 0..60), queried in (0..60u32, 0..20u32)) {
            let base = Seq(base);
            let (mut ranges, mut model) = (SeqRanges::default(), [false; 80]);
            for step in steps {
                match step {
                    Step::Insert(at, len) => {
                        ranges.insert(base + at, base + at + len);
                        model[at as usize..(at + len) as usize].fill(true);
                    }
                    Step::Remove(at, len) => {
                        ranges.remove(base + at, base + at + len);
                        model[at as usize..(at + len) as usize].fill(false);
                    }
                    Step::Advance(to) => {
                        ranges.advance(base + to);
                        model[..to as usize].fill(false);
                    }
                }
                prop_assert_eq!(ranges.bytes() as usize, model.iter().filter(|&&held| held).count());
                let mut end = None;
                for (from, to) in ranges.iter() {
                    prop_assert!(from.before(to) && end.is_none_or(|end: Seq| end.before(from)));
                    prop_assert!(model[(from - base) as usize..(to - base) as usize].iter().all(|&held| held));
                    end = Some(to);
                }
            }
            let (start, end) = (queried.0 as usize, (queried.0 + queried.1) as usize);
            let gap = (start..end).find(|&at| !model[at]).map(|from| {
                (from, (from..end).find(|&at| model[at]).unwrap_or(end))
            });
            let found = ranges.gap(base + start as u32, base + end as u32);
            prop_assert_eq!(found.map(|(from, to)| ((from - base) as usize, (to - base) as usize)), gap);
        }
    }

    #[test]
    fn number_of_ranges_is_limited() {
        let mut ranges = SeqRanges::default();
        for i in 0..RANGES_LIMIT as u32 {
            assert!(ranges.has_room_for(Seq(i * 10), Seq(i * 10 + 5)));
            ranges.insert(Seq(i * 10), Seq(i * 10 + 5));
        }
        assert!(!ranges.has_room_for(Seq(7), Seq(9)));
        assert!(ranges.has_room_for(Seq(5), Seq(9)) && ranges.has_room_for(Seq(7), Seq(10)));
        assert!(!ranges.has_room_for(Seq(100_000), Seq(100_001)));
    }
}
