//! Sleep flag of a reader that polls a queue and may sleep while the queue is empty.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Flag by which the reader of a queue tells its writers that they must wake it.
#[derive(Debug)]
pub(crate) struct SleepFlag(AtomicBool);

impl SleepFlag {
    /// Creates the flag of a reader that polls.
    pub(crate) fn new() -> Self {
        SleepFlag(AtomicBool::new(false))
    }

    /// Returns whether the writer, which has just added something to the queue, must wake the reader. One writer is told to for each
    /// time that the reader goes to sleep.
    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        // Pairs with the fence of `prepare`: either the reader sees the addition, or the writer sees that the reader sleeps.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }

    /// Announces that the reader is going to sleep. Returns whether it may: not if the queue is not empty, as `is_empty` tells.
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
