//! Reference counting of a segment by DPDK and by the [`Bytes`](crate::Bytes) over it, without a locked instruction where one thread
//! has it all.

use crate::sync::atomic::{AtomicU16, Ordering};

/// From this count of references or holders on, a segment is never freed: the fields have 16 bits, and safe code can clone
/// [`Bytes`](crate::Bytes) without end. Losing a packet buffer beats losing count.
pub(crate) const SATURATED: u16 = 0x4000;
/// Value of a saturated count of holders. Its distance from [`SATURATED`] exceeds the number of threads that may be leaving.
const STUCK: u16 = 0x6000;
/// Part of a count of holders: the segment has been [lent](Counts::lend) since its first holder came.
const LENT: u16 = 0x8000;

/// Both counts of a segment.
///
/// `references` is DPDK's count: one for each packet that has the segment, and one for all holders together, as long as there are
/// any. DPDK and this code change it atomically while it is more than 1. `holders` is the number of [`Bytes`](crate::Bytes), so that
/// only the first and the last of them touch DPDK's count.
///
/// A function that returns whether the segment is to be freed has given the caller's reference back, and if it was the last, the
/// caller alone has the segment and sees all that was done with it.
#[derive(Clone, Copy)]
pub(crate) struct Counts<'a> {
    pub(crate) references: &'a AtomicU16,
    pub(crate) holders: &'a AtomicU16,
}

impl Counts<'_> {
    /// Returns whether there is one reference.
    #[inline]
    pub(crate) fn is_sole(self) -> bool {
        // Acquire: what those did who gave their references back has happened before the caller writes.
        self.references.load(Ordering::Acquire) == 1
    }

    /// Adds a holder, and `mark` to their count, if there is a holder.
    #[inline]
    fn join(self, mark: u16) -> bool {
        let joined = |count: u16| match count & !LENT {
            0 => None,
            1..SATURATED => Some((count + 1) | mark),
            _ => Some(STUCK | count & LENT | mark),
        };
        self.holders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, joined).is_ok()
    }

    /// Removes a holder; the last gives their reference back. Returns whether the segment is to be freed.
    #[inline]
    #[must_use]
    fn leave(self) -> bool {
        self.holders.load(Ordering::Relaxed) & !LENT < SATURATED
            && self.holders.fetch_sub(1, Ordering::AcqRel) & !LENT == 1
            && self.give_back()
    }

    /// Gives a reference back. Returns whether it was the last.
    #[inline]
    #[must_use]
    pub(crate) fn give_back(self) -> bool {
        let count = self.references.load(Ordering::Acquire);
        !(count >= SATURATED || (count > 1 && self.references.fetch_sub(1, Ordering::AcqRel) > 1))
    }

    /// Adds a holder beside the caller.
    #[inline]
    pub(crate) fn share(self) {
        self.join(0);
    }

    /// Makes the packet's reference, which the caller has, that of a first holder, or gives it back if there are holders. The caller
    /// is a holder from then on. Returns whether the segment is to be freed.
    #[inline]
    #[must_use]
    pub(crate) fn hold(self) -> bool {
        if self.join(0) {
            return self.give_back();
        }
        self.holders.store(1, Ordering::Relaxed);
        false
    }

    /// Adds the first holder beside a packet that has the only reference.
    #[inline]
    pub(crate) fn retain_sole(self) {
        // No other thread has a reference, and so none can change the counts.
        self.holders.store(1, Ordering::Relaxed);
        self.references.store(2, Ordering::Relaxed);
    }

    /// Adds a holder beside a packet whose reference the caller has, and others. Returns `false` if there can be no more references.
    #[inline]
    pub(crate) fn retain_shared(self) -> bool {
        if !self.join(0) {
            if self.references.load(Ordering::Relaxed) >= SATURATED - 1 {
                return false;
            }
            // The others are packets, or the last holder on its way out, which is done with this count.
            self.holders.store(1, Ordering::Relaxed);
            self.references.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Removes the caller from the holders. Returns whether the segment is to be freed.
    #[inline]
    #[must_use]
    pub(crate) fn release(self) -> bool {
        // One reference: the holders'. Unless the segment is lent, and then its mark is seen with the reference. The second load is
        // an acquire too: a holder that left after the packet's reference was given back has ordered what it read by this count only.
        if self.references.load(Ordering::Acquire) == 1 && self.holders.load(Ordering::Acquire) == 1 {
            self.holders.store(0, Ordering::Relaxed);
            return true;
        }
        self.leave()
    }

    /// Lets the packet's reference, which the caller has, look as if it were the only one, until [`reclaim`](Self::reclaim). Returns
    /// `false`, and has changed nothing, if the packet has no holders beside it, or others than holders.
    ///
    /// Meanwhile the caller is a holder, so that the holders' reference is not given back, and there is nobody else to change the
    /// count of references by.
    #[inline]
    pub(crate) fn lend(self) -> bool {
        let lends = self.references.load(Ordering::Relaxed) == 2 && self.join(LENT);
        if lends {
            // Release: who sees this sees the mark.
            self.references.store(1, Ordering::Release);
        }
        lends
    }

    /// Ends what [`lend`](Self::lend) began. Returns whether the segment is to be freed, since the packet was, and the last holder
    /// has left.
    #[inline]
    #[must_use]
    pub(crate) fn reclaim(self) -> bool {
        self.references.store(2, Ordering::Release);
        self.leave()
    }
}
