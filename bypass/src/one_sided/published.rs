//! Memory that peers read while this process writes it.

use crate::arena::{Backing, Region};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Page size. The memory consists of whole pages, because registration with a device covers whole pages.
const PAGE: usize = 4096;

/// Memory that a device reads on behalf of its peers, or that another process reads, at any time and without
/// synchronisation.
///
/// The memory is an array of `u64` words, which this process reads and writes one by one. No slice of it exists,
/// because a slice would promise that its contents do not change.
///
/// A remote reader sees each byte at some time during its read, and may see old and new bytes of one word: verbs
/// guarantee neither an order nor an atomic size for READ. The contents must therefore carry their own check, such as a
/// version or a checksum. A word that was [stored](Self::store) is not visible before earlier writes: to a device
/// because x86-64 keeps stores in order, and within this process to a thread that loads the word.
pub struct Published {
    region: Region,
}

// SAFETY: the region belongs to no thread, and its release function may be called on any thread.
unsafe impl Send for Published {}
// SAFETY: the memory is accessed by atomic operations only.
unsafe impl Sync for Published {}

impl Published {
    /// Allocates at least `bytes` zero bytes. With `hugepages`, uses hugepages if enough are free, and otherwise
    /// ordinary pages with a warning.
    pub fn new(bytes: usize, hugepages: bool) -> io::Result<Self> {
        let pages = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Published { region: Region::new(pages, hugepages, "memory that peers read")? })
    }

    /// Returns the addresses of the memory, for registration with a device.
    pub fn range(&self) -> Range<usize> {
        let start = self.region.start.addr().get();
        start..start + self.region.len
    }

    /// Returns the kind of pages.
    pub fn backing(&self) -> Backing {
        self.region.backing
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        let words = self.region.len / size_of::<AtomicU64>();
        // SAFETY: the region is mapped readable and writable until `self` is dropped. It starts at a page, so words are
        // aligned, and it was zero when mapped, so words are initialised. It was mapped for `self` alone, which returns
        // no pointer, so this process accesses it through these atomics only. Readers outside of the process, which
        // know the addresses from `range`, do not access it in the sense of the language. If one of them wrote, a word
        // would hold the written value, as an atomic may.
        unsafe { std::slice::from_raw_parts(self.region.start.as_ptr().cast(), words) }
    }

    /// Returns the number of words.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one page")]
    pub fn len(&self) -> usize {
        self.words().len()
    }

    /// Returns word `at`, whose first byte is the least significant.
    ///
    /// # Panics
    /// If `at` is not below [`len`](Self::len).
    #[inline(always)]
    pub fn load(&self, at: usize) -> u64 {
        u64::from_le(self.words()[at].load(Ordering::Acquire))
    }

    /// Stores `word` as word `at`. A reader that sees it also sees all earlier writes.
    ///
    /// # Panics
    /// If `at` is not below [`len`](Self::len).
    #[inline(always)]
    pub fn store(&self, at: usize, word: u64) {
        self.words()[at].store(word.to_le(), Ordering::Release);
    }

    /// Copies `bytes`, a whole number of words, to the words from `at` on, one by one.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of words, or extends beyond the end.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "{} bytes are not a whole number of words", bytes.len());
        for (word, bytes) in self.words()[at..][..chunks.len()].iter().zip(chunks) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Copies the words from `at` on to `bytes`, a whole number of words, one by one. During a concurrent write the
    /// result may mix old and new words.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of words, or extends beyond the end.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let len = bytes.len();
        let (chunks, rest) = bytes.as_chunks_mut();
        assert!(rest.is_empty(), "{len} bytes are not a whole number of words");
        for (word, bytes) in self.words()[at..][..chunks.len()].iter().zip(chunks) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    /// Prefetches the cache line of word `at`, if it exists.
    #[inline(always)]
    pub fn prefetch(&self, at: usize) {
        if let Some(word) = self.words().get(at) {
            crate::prefetch(word);
        }
    }
}

impl std::fmt::Debug for Published {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Published({} bytes of {})", self.region.len, self.backing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn new_allocates_whole_pages_of_zeros() {
        for (bytes, len) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192)] {
            let memory = Published::new(bytes, false).unwrap();
            assert_eq!((memory.range().len(), memory.len()), (len, len / 8));
            assert_eq!(memory.range().start % PAGE, 0);
            assert!((0..memory.len()).all(|at| memory.load(at) == 0));
            assert_eq!(memory.backing(), Backing::Pages);
        }
        assert!(Published::new(usize::MAX, false).is_err());
    }

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let memory = Published::new(4096, false).unwrap();
        memory.store(3, 0x0807_0605_0403_0201);
        memory.write(4, &[9; 16]);
        let mut bytes = [0xff; 40];
        memory.read(2, &mut bytes);
        assert_eq!(bytes[..8], [0; 8]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..32], [9; 16]);
        assert_eq!(bytes[32..], [0; 8]);
        assert_eq!(memory.load(5), 0x0909_0909_0909_0909);
        memory.write(511, &[7; 8]);
        memory.prefetch(511);
        memory.prefetch(512);
        memory.read(512, &mut []);
        assert_eq!(memory.load(511), 0x0707_0707_0707_0707);
    }

    #[test]
    fn access_beyond_the_end_panics() {
        let reaches: [fn(&Published); 6] = [
            |memory| _ = memory.load(512),
            |memory| memory.store(512, 1),
            |memory| memory.write(511, &[0; 16]),
            |memory| memory.read(511, &mut [0; 16]),
            |memory| memory.write(0, &[0; 12]),
            |memory| memory.read(0, &mut [0; 9]),
        ];
        for reach in reaches {
            let memory = Published::new(4096, false).unwrap();
            let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reach(&memory)));
            assert!(reached.is_err());
        }
    }

    #[test]
    fn stored_word_is_seen_after_earlier_writes() {
        const ROUNDS: u64 = if cfg!(miri) { 200 } else { 100_000 };
        let memory = Published::new(4096, false).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    memory.write(8, &round.to_le_bytes());
                    memory.store(0, round);
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                let seen = memory.load(0);
                let mut bytes = [0; 8];
                memory.read(8, &mut bytes);
                assert!(u64::from_le_bytes(bytes) >= seen);
            }
        });
        assert_eq!(memory.load(0), ROUNDS);
    }
}
