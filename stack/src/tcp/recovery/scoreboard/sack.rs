//! Validation of SACK blocks: duplicate report, new information, or invalid (RFC 2018, RFC 2883).

use super::Seq;

/// Maximum number of blocks in an option (RFC 2018 §3).
const MAX_BLOCKS: usize = 4;
/// Maximum distance of a duplicate report below SND.UNA: one window (RFC 7323 §2.3).
const MAX_DSACK_DISTANCE: u32 = 1 << 30;

/// Validated blocks of one acknowledgement.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SackReport {
    /// Duplicate reported by the first block: it is below the acknowledgement number or within the second block (RFC
    /// 2883 §4).
    pub(crate) duplicate: Option<(Seq, Seq)>,
    /// Other valid blocks, sorted by start. They may overlap.
    blocks: [(Seq, Seq); MAX_BLOCKS],
    count: usize,
    /// Number of invalid blocks, which were ignored.
    pub(crate) invalid_blocks: u8,
}

impl SackReport {
    /// Validates the blocks of a segment with acknowledgement number `ack`. `una` (which may be later) and `next` are
    /// SND.UNA and SND.NXT. Blocks after the fourth are ignored.
    pub(crate) fn read(sack: &[(Seq, Seq)], ack: Seq, una: Seq, next: Seq) -> Self {
        let mut read = SackReport::default();
        for (index, &(start, end)) in sack.iter().take(MAX_BLOCKS).enumerate() {
            let possible = start.before(end) && end - start <= MAX_DSACK_DISTANCE && !end.after(next);
            let reported = index == 0
                && possible
                && (!end.after(ack)
                    || sack.get(1).is_some_and(|&(from, to)| {
                        from.before(to) && !start.before(from) && !end.after(to) && from.after(ack)
                    }));
            if reported && una.distance(start) <= MAX_DSACK_DISTANCE as i32 {
                read.duplicate = Some((start, end));
            } else if possible && start.after(una) {
                // A block that starts at SND.UNA would have been acknowledged cumulatively.
                read.insert(start, end);
            } else if !possible || end.after(una) {
                read.invalid_blocks += 1;
            }
        }
        read
    }

    fn insert(&mut self, start: Seq, end: Seq) {
        let mut at = self.count;
        if let Some(slot) = self.blocks.get_mut(at) {
            *slot = (start, end);
            self.count += 1;
        }
        while let Some(before) = at.checked_sub(1)
            && let Some(&(from, _)) = self.blocks.get(before)
            && start.before(from)
        {
            self.blocks.swap(before, at);
            at = before;
        }
    }

    /// Iterates over the blocks of arrived data, in order.
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
    fn first_block_below_ack_reports_a_duplicate() {
        // RFC 2883 §4.1.1.
        assert_eq!(read(&[(3000, 3500)], 4000), (Some((3000, 3500)), vec![], 0));
        // RFC 2883 §4.1.2.
        assert_eq!(read(&[(3000, 3500), (4500, 5000)], 4000), (Some((3000, 3500)), vec![(4500, 5000)], 0));
    }

    #[test]
    fn first_block_within_the_second_reports_a_duplicate() {
        // RFC 2883 §4.2.
        assert_eq!(read(&[(5000, 5500), (4500, 6000)], 4000), (Some((5000, 5500)), vec![(4500, 6000)], 0));
        // RFC 2883 §4.2.3: the whole second block.
        assert_eq!(read(&[(4500, 6000), (4500, 6000)], 4000), (Some((4500, 6000)), vec![(4500, 6000)], 0));
    }

    #[test]
    fn blocks_are_sorted() {
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
    fn invalid_blocks_are_ignored() {
        // Empty, reversed, beyond SND.NXT, around SND.UNA, too large.
        assert_eq!(read(&[(5000, 5000), (6000, 5000), (8000, 9001), (3500, 4500)], 4000), (None, vec![], 4));
        assert_eq!(read(&[(4000, 4500)], 4000), (None, vec![], 1));
        assert_eq!(read(&[(9000u32.wrapping_sub(1 << 31), 9000)], 4000), (None, vec![], 1));
        // An outdated block after the first is valid.
        assert_eq!(read(&[(5000, 5500), (3000, 3500)], 4000), (None, vec![(5000, 5500)], 0));
    }

    #[test]
    fn blocks_of_an_overtaken_ack_are_used() {
        assert_eq!(read(&[(3500, 3800), (5000, 5500)], 3000), (None, vec![(5000, 5500)], 0));
    }
}
