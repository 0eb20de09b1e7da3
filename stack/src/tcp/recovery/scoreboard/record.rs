//! Record of one transmission.

use linerate_service::time::Instant;

use super::Seq;

/// Flag: selectively acknowledged.
pub(crate) const SACKED: u8 = 1;
/// Flag: considered lost and not retransmitted since.
pub(crate) const LOST: u8 = 2;
/// Flag: retransmitted at least once.
pub(crate) const RETRANSMITTED: u8 = 4;

/// One transmission: a segment, or the segments of one TSO packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxRecord {
    pub(crate) seq: Seq,
    /// Length in sequence numbers, at least one.
    pub(crate) len: u32,
    /// Time of the last transmission.
    pub(crate) sent: Instant,
    /// TSval of the last retransmission, if there was one.
    pub(crate) timestamp: u32,
    /// Segment size of the transmission, counted from `seq`.
    pub(crate) mss: u16,
    pub(crate) flags: u8,
}

impl TxRecord {
    #[inline]
    pub(crate) fn end(&self) -> Seq {
        self.seq + self.len
    }

    #[inline]
    pub(crate) fn is_sacked(&self) -> bool {
        self.flags & SACKED != 0
    }

    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.flags & LOST != 0
    }

    #[inline]
    pub(crate) fn is_retransmitted(&self) -> bool {
        self.flags & RETRANSMITTED != 0
    }

    /// Returns whether it is a single segment.
    #[inline]
    pub(crate) fn is_one_segment(&self) -> bool {
        self.len <= u32::from(self.mss)
    }

    /// Returns the last segment boundary at or before `offset`.
    pub(crate) fn boundary_before(&self, offset: u32) -> u32 {
        if offset >= self.len { self.len } else { offset - offset % u32::from(self.mss) }
    }

    /// Returns the first segment boundary at or after `offset`.
    pub(crate) fn boundary_after(&self, offset: u32) -> u32 {
        offset.next_multiple_of(u32::from(self.mss)).min(self.len)
    }
}
