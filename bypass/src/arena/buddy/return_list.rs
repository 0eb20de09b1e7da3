//! List of the pieces that have come back to their owner.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Stack that any thread pushes to without a lock, and that one owner takes whole. Since no thread pops a single entry,
/// an entry that is pushed again while another push is under way does no harm.
///
/// An entry is known by its number plus one; 0 is the end. The link of each entry is kept by the caller.
pub(crate) struct ReturnList(AtomicU32);

impl ReturnList {
    /// Creates an empty list.
    pub(crate) fn new() -> Self {
        ReturnList(AtomicU32::new(0))
    }

    /// Pushes the entry with this number, whose link the caller owns until this returns.
    #[inline]
    pub(crate) fn push(&self, number: u32, link: &AtomicU32) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.store(head, Ordering::Relaxed);
            // Release: the owner sees the link, and all that was done with the piece. Nothing of the entry is touched
            // behind it.
            match self.0.compare_exchange_weak(head, number + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Returns whether the list is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Takes all entries. Returns the number of the first plus one; the link of each entry is that of the next.
    #[inline]
    pub(crate) fn take(&self) -> u32 {
        // Acquire: what others did with the pieces comes before what is done with them next.
        self.0.swap(0, Ordering::Acquire)
    }
}
