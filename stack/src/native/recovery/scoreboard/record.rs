//! One transmission.

use linerate_bypass::time::Instant;

use super::Seq;

/// It was acknowledged selectively.
pub(super) const SACKED: u8 = 1;
/// It is believed lost and has not been retransmitted since.
pub(super) const LOST: u8 = 2;
/// It was retransmitted at least once.
pub(super) const RETRANSMITTED: u8 = 4;

/// One transmission: a segment, or the segments that one call made.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct TxRecord {
    pub(in super::super) seq: Seq,
    /// Length in sequence space, at least one.
    pub(in super::super) len: u32,
    /// When it was last sent.
    pub(in super::super) sent: Instant,
    /// TSval of the last retransmission, if there was one.
    pub(in super::super) timestamp: u32,
    /// Into segments of how many bytes it was cut, counted from `seq`.
    pub(super) mss: u16,
    pub(super) flags: u8,
}

impl TxRecord {
    #[inline]
    pub(in super::super) fn end(&self) -> Seq {
        self.seq + self.len
    }

    /// Whether it was acknowledged selectively.
    #[inline]
    pub(in super::super) fn is_sacked(&self) -> bool {
        self.flags & SACKED != 0
    }

    /// Whether it is believed lost and has not been retransmitted since.
    #[inline]
    pub(in super::super) fn is_lost(&self) -> bool {
        self.flags & LOST != 0
    }

    /// Whether it was ever retransmitted.
    #[inline]
    pub(in super::super) fn is_retransmitted(&self) -> bool {
        self.flags & RETRANSMITTED != 0
    }

    /// Whether it is a single segment.
    #[inline]
    pub(in super::super) fn is_one_segment(&self) -> bool {
        self.len <= u32::from(self.mss)
    }

    /// The last boundary between segments at or before `offset`.
    pub(super) fn boundary_before(&self, offset: u32) -> u32 {
        if offset >= self.len { self.len } else { offset - offset % u32::from(self.mss) }
    }

    /// The first boundary between segments at or after `offset`.
    pub(super) fn boundary_after(&self, offset: u32) -> u32 {
        offset.next_multiple_of(u32::from(self.mss)).min(self.len)
    }
}
