//! Counters that peers change by atomic operations.

use crate::Published;
use std::io;
use std::ops::Range;

/// Array of `u64` counters that peers change by one-sided atomic operations, and that this process only reads.
///
/// All counters start at 0. The process cannot write them: atomic operations of most devices are atomic with respect to
/// the device, and not to the CPU (`IBV_ATOMIC_HCA`, IBA 9.4.5), so a store could undo an operation that a peer has
/// seen complete.
///
/// A load never returns a torn value: a counter is 8 bytes at a multiple of 8, which devices write at once, and Linux
/// Soft-RoCE by CPU instructions. There is no guarantee when an operation becomes visible: a peer may have its
/// completion while a load still returns the old value.
pub struct RemoteCounters {
    memory: Published,
    count: usize,
}

impl RemoteCounters {
    /// Creates `count` counters, at least 1.
    pub fn new(count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let bytes = count.checked_mul(size_of::<u64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(RemoteCounters { memory: Published::new(bytes, false)?, count })
    }

    /// Returns the addresses of the counters, for registration with a device. The range contains nothing else.
    pub fn range(&self) -> Range<usize> {
        let start = self.memory.range().start;
        start..start + self.count * size_of::<u64>()
    }

    /// Returns the number of counters.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one counter")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the value of counter `at`.
    ///
    /// # Panics
    /// If `at` is not below [`len`](Self::len).
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        assert!(at < self.count, "no counter {at} of {}", self.count);
        // Devices count in native byte order.
        u64::from_ne_bytes(self.memory.load(at).to_le_bytes())
    }
}

impl std::fmt::Debug for RemoteCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteCounters({})", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_creates_the_requested_number_of_zeros() {
        for (requested, count) in [(0, 1), (1, 1), (512, 512), (513, 513)] {
            let counters = RemoteCounters::new(requested).unwrap();
            assert_eq!((counters.len(), counters.range().len()), (count, count * 8));
            assert_eq!(counters.range().start % 8, 0);
            assert!((0..count).all(|at| counters.load(at) == 0));
        }
        assert!(RemoteCounters::new(usize::MAX).is_err());
    }

    #[test]
    #[should_panic = "no counter 3 of 3"]
    fn load_beyond_the_end_panics() {
        RemoteCounters::new(3).unwrap().load(3);
    }
}
