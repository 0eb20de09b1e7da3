//! Sleep flag of a reader that polls a queue and may sleep while the queue is empty.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Flag that requests writers of a queue to wake its reader.
#[derive(Debug)]
pub(crate) struct SleepFlag(AtomicBool);

impl SleepFlag {
    pub(crate) fn new() -> Self {
        SleepFlag(AtomicBool::new(false))
    }

    /// Returns whether a writer that has just added an entry must wake the reader. Returns `true` to one writer each
    /// time that the reader goes to sleep.
    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        // Pairs with the fence of `prepare`: either the reader sees the entry, or the writer sees the flag.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }

    /// Announces that the reader is going to sleep. Returns whether it may, which requires that the queue `is_empty`.
    #[inline]
    pub(crate) fn prepare(&self, is_empty: impl FnOnce() -> bool) -> bool {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may_sleep = is_empty();
        if !may_sleep {
            self.clear();
        }
        may_sleep
    }

    /// Announces that the reader polls again.
    #[inline]
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
