//! Memory that others read while it is written: a device that answers its peers' READs, another process.

use crate::arena::{Backing, Region};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page, of which there are whole ones: what is opened to a device is opened by the page.
const PAGE: usize = 4096;

/// Memory that whoever it is opened to reads at any time, without a word to this process.
///
/// It is a row of words of eight bytes, which are read and written here one by one. No slice of it is ever made: that would
/// promise that nothing changes meanwhile.
///
/// A reader elsewhere sees each byte as it was at some time while it read, and may see some bytes of a word before a change
/// and others behind it: no order of its reading, and no size that is read at once, is promised by the verbs of RDMA. What is put
/// here must say by itself whether it is whole. What is [stored](Self::store) is not seen there before what was written
/// earlier: by a processor that keeps stores in order for devices, as x86-64 does, or within this process by whoever loads it.
pub struct Published {
    region: Region,
}

// SAFETY: the region is memory that belongs to no thread, and what gives it back may be called on any.
unsafe impl Send for Published {}
// SAFETY: all that is done with the memory is done by atomic operations.
unsafe impl Sync for Published {}

impl Published {
    /// At least `bytes` bytes, all zero: hugepages if `hugepages` says so and there are enough, else ordinary pages, and a warning
    /// says so.
    pub fn new(bytes: usize, hugepages: bool) -> io::Result<Self> {
        let pages = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Published { region: Region::new(pages, hugepages, "what others may read")? })
    }

    /// Its addresses, for a device that must be told before it may read there.
    pub fn range(&self) -> Range<usize> {
        let start = self.region.start.addr().get();
        start..start + self.region.len
    }

    /// What pages it is in.
    pub fn backing(&self) -> Backing {
        self.region.backing
    }

    /// The words.
    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        let words = self.region.len / size_of::<AtomicU64>();
        // SAFETY: the region is mapped, readable and writable, until `self` is dropped; it begins at a page, so that words are
        // aligned; and it was zero when it was mapped, so that they are initialised. It was mapped for `self` alone, which gives
        // nobody a pointer, so in this process it is reached through these atomics only. The addresses that `range` tells are
        // for those outside of it, whose reading is no access of this program; and if one of them wrote there, a word would
        // hold what it wrote, as an atomic may.
        unsafe { std::slice::from_raw_parts(self.region.start.as_ptr().cast(), words) }
    }

    /// How many words there are.
    #[expect(clippy::len_without_is_empty, reason = "there is a page at least")]
    pub fn len(&self) -> usize {
        self.words().len()
    }

    /// The word of this number, whose lowest byte lies first.
    ///
    /// # Panics
    /// If there are not as many.
    #[inline(always)]
    pub fn load(&self, at: usize) -> u64 {
        u64::from_le(self.words()[at].load(Ordering::Acquire))
    }

    /// The word of this number is `word` from now on. Whoever sees it there sees what was written before.
    ///
    /// # Panics
    /// If there are not as many.
    #[inline(always)]
    pub fn store(&self, at: usize, word: u64) {
        self.words()[at].store(word.to_le(), Ordering::Release);
    }

    /// Copies `bytes`, which are whole words, to the word of this number and those behind it, one by one.
    ///
    /// # Panics
    /// If they are not, or there is no room for them.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "{} bytes are no words", bytes.len());
        for (word, bytes) in self.words()[at..][..chunks.len()].iter().zip(chunks) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Copies the word of this number and those behind it to `bytes`, which are whole words, one by one. While somebody writes
    /// there, some may be older than others.
    ///
    /// # Panics
    /// If they are not, or there are fewer.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let len = bytes.len();
        let (chunks, rest) = bytes.as_chunks_mut();
        assert!(rest.is_empty(), "{len} bytes are no words");
        for (word, bytes) in self.words()[at..][..chunks.len()].iter().zip(chunks) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    /// Asks for the cache line of the word of this number, if there are as many.
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
    fn it_is_whole_pages_of_zeros() {
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
    fn nothing_beyond_its_end_is_reached() {
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

    /// Who sees a stored word sees what was written before.
    #[test]
    fn what_is_stored_is_seen_behind_what_was_written() {
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
