//! Reference count.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// Maximum count. A larger one results from a bug that leaks handles. The distance to the range of the counter exceeds
/// the number of threads that could increment it at once.
const MAX: u32 = i32::MAX as u32;

/// Number of handles that share a chunk of memory.
#[derive(Debug)]
pub(crate) struct RefCount(AtomicU32);

impl RefCount {
    pub(crate) fn one() -> Self {
        RefCount(AtomicU32::new(1))
    }

    /// Resets the count to 1 after the last release. The caller owns the memory exclusively.
    pub(crate) fn restart(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Adds a reference. The caller holds one.
    ///
    /// Aborts the process at 2³¹ references, as [`std::sync::Arc`] does: an overflow would free memory in use.
    #[inline]
    pub(crate) fn share(&self) {
        // Relaxed: the new holder receives the memory from the old one, which orders its accesses.
        if self.0.fetch_add(1, Ordering::Relaxed) > MAX {
            std::process::abort();
        }
    }

    /// Adds a reference, as [`share`](Self::share), without a locked instruction if the caller's is the only one.
    ///
    /// # Safety
    /// The caller uses its reference exclusively: no other thread shares or releases the same one meanwhile.
    #[inline]
    pub(crate) unsafe fn share_own(&self) {
        if self.is_sole() {
            self.0.store(2, Ordering::Relaxed);
        } else {
            self.share();
        }
    }

    /// Releases the caller's reference. Returns whether it was the last. In that case the caller owns the memory
    /// exclusively and sees all accesses of the other holders.
    #[inline]
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        // No other thread can add to a count of 1, so this case needs no locked instruction.
        if self.is_sole() {
            return true;
        }
        let last = self.0.fetch_sub(1, Ordering::Release) == 1;
        if last {
            fence(Ordering::Acquire);
        }
        last
    }

    /// Returns whether the caller holds the only reference.
    #[inline]
    pub(crate) fn is_sole(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn last_of_many_releases_returns_true() {
        let count = RefCount::one();
        for _ in 0..7 {
            count.share();
        }
        assert!(!count.is_sole());
        let last: usize = std::thread::scope(|scope| {
            let holders: Vec<_> = (0..8).map(|_| scope.spawn(|| usize::from(count.release()))).collect();
            holders.into_iter().map(|holder| holder.join().unwrap()).sum()
        });
        assert_eq!(last, 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri starts no other process")]
    fn overflow_aborts_the_process() {
        use std::os::unix::process::ExitStatusExt;
        const IN_CHILD: &str = "LINERATE_TEST_REFCOUNT_OVERFLOW";
        if std::env::var_os(IN_CHILD).is_some() {
            RefCount(AtomicU32::new(MAX + 1)).share();
            return;
        }
        let test = "sync::refcount::tests::overflow_aborts_the_process";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", test]).env(IN_CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    }
}
