//! Counting the holders of a piece of memory.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// More holders than this are the work of a bug that forgets handles. Far enough below the counter's range that
/// all threads of a process could step over it at once without a wrap.
const MAX: u32 = i32::MAX as u32;

/// How many handles share a piece of memory.
#[derive(Debug)]
pub(crate) struct RefCount(AtomicU32);

impl RefCount {
    /// One holder.
    pub(crate) fn one() -> Self {
        RefCount(AtomicU32::new(1))
    }

    /// One holder again, after the last one has gone. The caller owns the memory alone.
    pub(crate) fn restart(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// One more holder. The caller is one itself.
    ///
    /// Aborts the process at 2³¹ holders, as [`std::sync::Arc`] does: going on would free memory in use.
    #[inline]
    pub(crate) fn share(&self) {
        // What the new holder sees it was given by the old one, so nothing has to be ordered here.
        if self.0.fetch_add(1, Ordering::Relaxed) > MAX {
            std::process::abort();
        }
    }

    /// One more holder, as [`share`](Self::share), without a locked instruction if the caller is the only one.
    ///
    /// # Safety
    /// The caller has its own hold to itself: no other thread shares or gives up that same hold meanwhile.
    #[inline]
    pub(crate) unsafe fn share_own(&self) {
        if self.is_sole() {
            self.0.store(2, Ordering::Relaxed);
        } else {
            self.share();
        }
    }

    /// One holder less: the caller. Returns whether it was the last, who then owns the memory alone and sees all
    /// that the others did with it.
    #[inline]
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        // A sole holder cannot be joined by another meanwhile, so the common case needs no locked instruction.
        if self.is_sole() {
            return true;
        }
        let last = self.0.fetch_sub(1, Ordering::Release) == 1;
        if last {
            fence(Ordering::Acquire);
        }
        last
    }

    /// Whether the caller is the only holder.
    #[inline]
    pub(crate) fn is_sole(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_of_many_holders_is_told_so() {
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
    fn too_many_holders_end_the_process_instead_of_wrapping() {
        use std::os::unix::process::ExitStatusExt;
        const IN_CHILD: &str = "LINERATE_TEST_TOO_MANY_HOLDERS";
        if std::env::var_os(IN_CHILD).is_some() {
            RefCount(AtomicU32::new(MAX + 1)).share();
            return;
        }
        let test = "sync::refcount::tests::too_many_holders_end_the_process_instead_of_wrapping";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", test]).env(IN_CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    }
}
