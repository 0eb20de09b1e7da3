//! Reading the SACK option: what is a duplicate report, what is news, and what is nonsense (RFC 2018, RFC 2883).

use super::Seq;

/// How many blocks an option can carry (RFC 2018 §3).
const BLOCKS: usize = 4;
/// How far below SND.UNA a report of a duplicate may lie: a window, at most (RFC 7323 §2.3).
const HISTORY: u32 = 1 << 30;

/// The blocks of one acknowledgement, validated.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SackReport {
    /// What the receiver got twice: the first block, if it lies below the acknowledgement number or within the second
    /// (RFC 2883 §4).
    pub(crate) duplicate: Option<(Seq, Seq)>,
    /// The others that are possible, sorted by where they begin. They may overlap.
    blocks: [(Seq, Seq); BLOCKS],
    count: usize,
    /// Blocks that were ignored because they cannot be.
    pub(crate) invalid_blocks: u8,
}

impl SackReport {
    /// Reads the blocks that came with the acknowledgement number `ack` while `una` (which may be later) and `next` are
    /// SND.UNA and SND.NXT. More than four are not looked at.
    pub(crate) fn read(sack: &[(Seq, Seq)], ack: Seq, una: Seq, next: Seq) -> Self {
        let mut read = SackReport::default();
        for (index, &(start, end)) in sack.iter().take(BLOCKS).enumerate() {
            let possible = start.before(end) && end - start <= HISTORY && !end.after(next);
            let reported = index == 0
                && possible
                && (!end.after(ack)
                    || sack.get(1).is_some_and(|&(from, to)| {
                        from.before(to) && !start.before(from) && !end.after(to) && from.after(ack)
                    }));
            if reported && una.distance(start) <= HISTORY as i32 {
                read.duplicate = Some((start, end));
            } else if possible && start.after(una) {
                // What begins at SND.UNA itself would have been acknowledged cumulatively.
                read.insert(start, end);
            } else if !possible || end.after(una) {
                read.invalid_blocks += 1;
            }
        }
        read
    }

    fn insert(&mut self, start: Seq, end: Seq) {
        let mut place = self.count;
        if let Some(slot) = self.blocks.get_mut(place) {
            *slot = (start, end);
            self.count += 1;
        }
        while let Some(before) = place.checked_sub(1)
            && let Some(&(from, _)) = self.blocks.get(before)
            && start.before(from)
        {
            self.blocks.swap(before, place);
            place = before;
        }
    }

    /// The blocks that say what arrived, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> {
        self.blocks.iter().take(self.count).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Plain = (u32, u32);

    fn read(sack: &[Plain], ack: u32) -> (Option<Plain>, Vec<Plain>, u8) {
        let sack: Vec<_> = sack.iter().map(|&(start, end)| (Seq(start), Seq(end))).collect();
        let read = SackReport::read(&sack, Seq(ack), Seq(4000), Seq(9000));
        let plain = |(start, end): (Seq, Seq)| (start.0, end.0);
        (read.duplicate.map(plain), read.iter().map(plain).collect(), read.invalid_blocks)
    }

    #[test]
    fn the_first_block_below_the_acknowledgement_reports_a_duplicate() {
        // RFC 2883 §4.1.1.
        assert_eq!(read(&[(3000, 3500)], 4000), (Some((3000, 3500)), vec![], 0));
        // RFC 2883 §4.1.2.
        assert_eq!(read(&[(3000, 3500), (4500, 5000)], 4000), (Some((3000, 3500)), vec![(4500, 5000)], 0));
    }

    #[test]
    fn the_first_block_within_the_second_reports_a_duplicate() {
        // RFC 2883 §4.2.
        assert_eq!(read(&[(5000, 5500), (4500, 6000)], 4000), (Some((5000, 5500)), vec![(4500, 6000)], 0));
        // RFC 2883 §4.2.3: the whole second block.
        assert_eq!(read(&[(4500, 6000), (4500, 6000)], 4000), (Some((4500, 6000)), vec![(4500, 6000)], 0));
    }

    #[test]
    fn blocks_come_in_any_order_and_are_sorted() {
        assert_eq!(
            read(&[(8000, 8500), (5000, 5500), (7000, 7500), (6000, 6500)], 4000),
            (None, vec![(5000, 5500), (6000, 6500), (7000, 7500), (8000, 8500)], 0)
        );
    }

    #[test]
    fn duplicate_report_is_at_most_a_window_long_and_a_window_below() {
        // RFC 7323 §2.3: the largest window is 2^30 bytes.
        let window = 1u32 << 30;
        let below = |bytes: u32| 4000u32.wrapping_sub(bytes);
        assert_eq!(read(&[(below(window), 4000)], 4000), (Some((below(window), 4000)), vec![], 0));
        assert_eq!(read(&[(below(window + 1), 4000)], 4000), (None, vec![], 1));
        assert_eq!(read(&[(below(window), below(1))], 4000), (Some((below(window), below(1))), vec![], 0));
        assert_eq!(read(&[(below(window + 1), below(1))], 4000), (None, vec![], 0));
    }

    #[test]
    fn nonsense_is_ignored() {
        // Empty, reversed, beyond SND.NXT, around SND.UNA, too large.
        assert_eq!(read(&[(5000, 5000), (6000, 5000), (8000, 9001), (3500, 4500)], 4000), (None, vec![], 4));
        assert_eq!(read(&[(4000, 4500)], 4000), (None, vec![], 1));
        assert_eq!(read(&[(9000u32.wrapping_sub(1 << 31), 9000)], 4000), (None, vec![], 1));
        // Old news, after the first block, is no error.
        assert_eq!(read(&[(5000, 5500), (3000, 3500)], 4000), (None, vec![(5000, 5500)], 0));
    }

    #[test]
    fn an_acknowledgement_that_was_overtaken_still_tells() {
        assert_eq!(read(&[(3500, 3800), (5000, 5500)], 3000), (None, vec![(5000, 5500)], 0));
    }
}
