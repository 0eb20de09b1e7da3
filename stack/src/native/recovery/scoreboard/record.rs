//! One transmission.

use linerate_bypass::time::Instant;

use super::Seq;

/// It was acknowledged selectively.
pub(crate) const SACKED: u8 = 1;
/// It is believed lost and has not been retransmitted since.
pub(crate) const LOST: u8 = 2;
/// It was retransmitted at least once.
pub(crate) const RETRANSMITTED: u8 = 4;

/// One transmission: a segment, or the segments that one call made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxRecord {
    pub(crate) seq: Seq,
    /// Length in sequence space, at least one.
    pub(crate) len: u32,
    /// When it was last sent.
    pub(crate) sent: Instant,
    /// TSval of the last retransmission, if there was one.
    pub(crate) timestamp: u32,
    /// Into segments of how many bytes it was cut, counted from `seq`.
    pub(crate) mss: u16,
    pub(crate) flags: u8,
}

impl TxRecord {
    #[inline]
    pub(crate) fn end(&self) -> Seq {
        self.seq + self.len
    }

    /// Whether it was acknowledged selectively.
    #[inline]
    pub(crate) fn is_sacked(&self) -> bool {
        self.flags & SACKED != 0
    }

    /// Whether it is believed lost and has not been retransmitted since.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.flags & LOST != 0
    }

    /// Whether it was ever retransmitted.
    #[inline]
    pub(crate) fn is_retransmitted(&self) -> bool {
        self.flags & RETRANSMITTED != 0
    }

    /// Whether it is a single segment.
    #[inline]
    pub(crate) fn is_one_segment(&self) -> bool {
        self.len <= u32::from(self.mss)
    }

    /// The last boundary between segments at or before `offset`.
    pub(crate) fn boundary_before(&self, offset: u32) -> u32 {
        if offset >= self.len { self.len } else { offset - offset % u32::from(self.mss) }
    }

    /// The first boundary between segments at or after `offset`.
    pub(crate) fn boundary_after(&self, offset: u32) -> u32 {
        offset.next_multiple_of(u32::from(self.mss)).min(self.len)
    }
}
