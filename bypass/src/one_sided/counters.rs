//! Numbers that others change: a device, for its peers.

use crate::Published;
use std::io;
use std::ops::Range;

/// Numbers of eight bytes that a device changes by atomic operations of its peers, and that are only looked at here.
///
/// All are 0 at first. The program cannot write them: what a device does is atomic towards what it does itself, and on most
/// devices not towards a processor (`IBV_ATOMIC_HCA`, IBA 9.4.5), so that a write from here could undo what a peer was told is done.
///
/// A number that is looked at is what it was before or after each operation, and never half of each: it is eight bytes at a multiple of
/// eight, which devices write at once, and Linux' Soft-RoCE by a processor. When an operation is seen here, compared with its answer
/// at the peer or with other numbers, is not said: a peer that has its answer may find that this end still reads the old number.
pub struct Counters {
    memory: Published,
    count: usize,
}

impl Counters {
    /// So many of them, one at least.
    pub fn new(count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let bytes = count.checked_mul(size_of::<u64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Counters { memory: Published::new(bytes, false)?, count })
    }

    /// Their addresses, for a device that must be told before it may change them: one after the other, and nothing else.
    pub fn range(&self) -> Range<usize> {
        let start = self.memory.range().start;
        start..start + self.count * size_of::<u64>()
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "there is one at least")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The one of this number, counted from 0.
    ///
    /// # Panics
    /// If there are not as many.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        assert!(at < self.count, "no counter {at} of {}", self.count);
        // Devices count as this machine does.
        u64::from_ne_bytes(self.memory.load(at).to_le_bytes())
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Counters({})", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_were_asked_for_and_all_are_0() {
        for (asked, count) in [(0, 1), (1, 1), (512, 512), (513, 513)] {
            let counters = Counters::new(asked).unwrap();
            assert_eq!((counters.len(), counters.range().len()), (count, count * 8));
            assert_eq!(counters.range().start % 8, 0);
            assert!((0..count).all(|at| counters.load(at) == 0));
        }
        assert!(Counters::new(usize::MAX).is_err());
    }

    #[test]
    #[should_panic = "no counter 3 of 3"]
    fn what_lies_behind_them_is_none() {
        Counters::new(3).unwrap().load(3);
    }
}
