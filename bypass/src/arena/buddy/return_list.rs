//! List of blocks that have been returned to their owner.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Stack that any thread pushes to without a lock, and whose owner takes all entries at once. No thread pops a single
/// entry, so there is no ABA problem.
///
/// An entry is represented by its number plus one; 0 is the end. The caller provides the link of each entry.
pub(crate) struct ReturnList(AtomicU32);

impl ReturnList {
    pub(crate) fn new() -> Self {
        ReturnList(AtomicU32::new(0))
    }

    /// Pushes an entry. The caller owns its link during the call.
    #[inline]
    pub(crate) fn push(&self, number: u32, link: &AtomicU32) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.store(head, Ordering::Relaxed);
            // Release: the owner sees the link and all accesses to the block. The entry is not accessed afterwards.
            match self.0.compare_exchange_weak(head, number + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Takes all entries. Returns the number of the first plus one; the link of each entry contains the next.
    #[inline]
    pub(crate) fn take(&self) -> u32 {
        // Acquire: accesses of other threads to the blocks happen before those of the owner.
        self.0.swap(0, Ordering::Acquire)
    }
}
