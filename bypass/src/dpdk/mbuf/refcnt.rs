//! Reference counts of a segment, by DPDK and by its [`Bytes`](linerate_service::Bytes), without locked instructions
//! while one thread holds all references.

use crate::sync::atomic::{AtomicU16, Ordering};

/// Count from which on a segment is never freed. The fields have 16 bits, and safe code can clone
/// [`Bytes`](linerate_service::Bytes) without limit. Leaking a packet buffer is better than losing count.
pub(crate) const SATURATED: u16 = 0x4000;
/// Value of a saturated handle count. Its distance from [`SATURATED`] exceeds the number of threads that may release.
const STUCK: u16 = 0x6000;
/// Bit of the handle count: the reference count has been [masked](RefCounts::mask_refcnt) since the first handle.
const MASKED: u16 = 0x8000;

/// Both counts of a segment.
///
/// `refcnt` is DPDK's reference count: one for each packet over the segment, and one for all handles together. DPDK and
/// this code change it atomically while it is more than 1. `handles` is the number of
/// [`Bytes`](linerate_service::Bytes), so that only the first and the last handle change DPDK's count.
///
/// A function that returns whether the segment is to be freed has released the caller's reference. If it returns
/// `true`, the caller owns the segment exclusively and sees all earlier accesses.
#[derive(Clone, Copy)]
pub(crate) struct RefCounts<'a> {
    pub(crate) refcnt: &'a AtomicU16,
    pub(crate) handles: &'a AtomicU16,
}

impl RefCounts<'_> {
    /// Returns whether there is one reference.
    #[inline]
    pub(crate) fn is_sole(self) -> bool {
        // Acquire: accesses of released references happen before the caller writes.
        self.refcnt.load(Ordering::Acquire) == 1
    }

    /// Adds a handle, and `mark` to the count, if there already is a handle.
    #[inline]
    fn try_add_handle(self, mark: u16) -> bool {
        let joined = |count: u16| match count & !MASKED {
            0 => None,
            1..SATURATED => Some((count + 1) | mark),
            _ => Some(STUCK | count & MASKED | mark),
        };
        self.handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, joined).is_ok()
    }

    /// Removes a handle; the last one releases the reference of the handles. Returns whether the segment is to be
    /// freed.
    #[inline]
    #[must_use]
    fn remove_handle(self) -> bool {
        self.handles.load(Ordering::Relaxed) & !MASKED < SATURATED
            && self.handles.fetch_sub(1, Ordering::AcqRel) & !MASKED == 1
            && self.dec_refcnt()
    }

    /// Releases a reference. Returns whether it was the last.
    #[inline]
    #[must_use]
    pub(crate) fn dec_refcnt(self) -> bool {
        let count = self.refcnt.load(Ordering::Acquire);
        !(count >= SATURATED || (count > 1 && self.refcnt.fetch_sub(1, Ordering::AcqRel) > 1))
    }

    /// Adds a handle. The caller holds one.
    #[inline]
    pub(crate) fn add_handle(self) {
        self.try_add_handle(0);
    }

    /// Converts the caller's packet reference to a handle: to the reference of the first handle, or to one more handle.
    /// Returns whether the segment is to be freed.
    #[inline]
    #[must_use]
    pub(crate) fn packet_to_handle(self) -> bool {
        if self.try_add_handle(0) {
            return self.dec_refcnt();
        }
        self.handles.store(1, Ordering::Relaxed);
        false
    }

    /// Adds the first handle to a segment whose only reference is the caller's packet.
    #[inline]
    pub(crate) fn add_first_handle(self) {
        // No other thread has a reference, so none can change the counts.
        self.handles.store(1, Ordering::Relaxed);
        self.refcnt.store(2, Ordering::Relaxed);
    }

    /// Adds a handle to a shared segment of the caller's packet. Returns `false` if the reference count is exhausted.
    #[inline]
    pub(crate) fn add_handle_to_shared(self) -> bool {
        if !self.try_add_handle(0) {
            if self.refcnt.load(Ordering::Relaxed) >= SATURATED - 1 {
                return false;
            }
            // Other references are packets, or the last handle on its release, which no longer uses this count.
            self.handles.store(1, Ordering::Relaxed);
            self.refcnt.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Releases the caller's handle. Returns whether the segment is to be freed.
    #[inline]
    #[must_use]
    pub(crate) fn release_handle(self) -> bool {
        // One reference: that of the handles, unless the reference count is masked; the mark is visible with the masked
        // count. The second load is an acquire, too: a handle that was released after the packet's reference has
        // ordered its accesses by this count only.
        if self.refcnt.load(Ordering::Acquire) == 1 && self.handles.load(Ordering::Acquire) == 1 {
            self.handles.store(0, Ordering::Relaxed);
            return true;
        }
        self.remove_handle()
    }

    /// Masks the handles: sets the reference count to 1, as if the caller's packet reference were the only one, until
    /// [`restore_refcnt`](Self::restore_refcnt). Returns `false`, without an effect, if there are no handles, or other
    /// references than handles.
    ///
    /// The caller holds a handle meanwhile, so the reference of the handles is not released, and no one else changes
    /// the reference count.
    #[inline]
    pub(crate) fn mask_refcnt(self) -> bool {
        let masks = self.refcnt.load(Ordering::Relaxed) == 2 && self.try_add_handle(MASKED);
        if masks {
            // Release: a thread that sees this value sees the mark.
            self.refcnt.store(1, Ordering::Release);
        }
        masks
    }

    /// Ends the masking by [`mask_refcnt`](Self::mask_refcnt). Returns whether the segment is to be freed, because the
    /// packet was freed meanwhile and the last handle has been released.
    #[inline]
    #[must_use]
    pub(crate) fn restore_refcnt(self) -> bool {
        self.refcnt.store(2, Ordering::Release);
        self.remove_handle()
    }
}
