//! Reads of copies of the strings of other shards, in place of requests to their workers.

use crate::store::{CopyEntry, Key, LONG_THRESHOLD, ReadCopies};
use linerate_service::inspect::ServiceMetric;
use std::sync::Arc;

/// Bounds of the number of reads in a window.
const MIN_WINDOW: u64 = 4096;
const MAX_WINDOW: u64 = 1 << 24;
/// Fraction of the reads of a window that must succeed for copies to be used. An unsuccessful read costs more than a
/// request alone, because the copy made for it also moves cache lines between the cores.
const NEEDED: (u64, u64) = (3, 4);
/// Number of windows for which copies are not used after a window with too few successful reads.
const PAUSE: u64 = 128;

/// Reader of the copies of other shards.
///
/// Copies are used if most of the requested keys have one. Otherwise they are tried again from time to time.
pub(in crate::service) struct CopyReader {
    copies: Arc<[ReadCopies]>,
    /// Value read last, padded to whole words.
    value: Box<[u8; LONG_THRESHOLD + 8]>,
    window: u64,
    /// Reads without success in this window, or in a pause.
    failures: u64,
    successes: u64,
    /// Copies are neither read nor made.
    is_paused: bool,
    /// Reads with and without success before this window, and in earlier pauses.
    hits_before: u64,
    misses_before: u64,
    paused_before: u64,
    /// Many keys of this window have no copies yet.
    is_first_window: bool,
}

impl CopyReader {
    pub fn new(copies: Arc<[ReadCopies]>) -> Self {
        let capacity: u64 = copies.iter().map(|copies| copies.capacity() as u64).sum();
        CopyReader {
            is_paused: copies.is_empty(),
            copies,
            value: Box::new([0; LONG_THRESHOLD + 8]),
            window: capacity.clamp(MIN_WINDOW, MAX_WINDOW),
            failures: 0,
            successes: 0,
            hits_before: 0,
            misses_before: 0,
            paused_before: 0,
            is_first_window: true,
        }
    }

    #[cold]
    #[inline(never)]
    fn end_window(&mut self) {
        self.is_paused =
            !self.is_first_window && self.successes * NEEDED.1 < (self.failures + self.successes) * NEEDED.0;
        self.is_first_window = self.is_paused;
        self.hits_before += self.successes;
        self.misses_before += self.failures;
        (self.failures, self.successes) = (0, 0);
    }

    #[cold]
    #[inline(never)]
    fn end_pause(&mut self) {
        self.paused_before += self.failures;
        (self.failures, self.is_paused) = (0, false);
    }

    /// Returns the number of reads of strings of other shards, by result.
    pub fn figures(&self) -> impl Iterator<Item = ServiceMetric> {
        let (missed, paused) = if self.is_paused { (0, self.failures) } else { (self.failures, 0) };
        let by_result = [
            ("hit", self.hits_before + self.successes),
            ("miss", self.misses_before + missed),
            ("paused", self.paused_before + paused),
        ];
        let by_result = by_result.into_iter().filter(|_| !self.copies.is_empty());
        by_result.map(|(part, value)| ServiceMetric { name: "copy reads", part, value })
    }

    /// Prefetches the entries of the shard `owner` for `hash`.
    #[inline(always)]
    pub fn prefetch_entry(&self, owner: usize, hash: u64) {
        if let Some(copies) = self.copies.get(owner).filter(|_| !self.is_paused) {
            copies.prefetch_entry(hash);
        }
    }

    /// Returns the entry of the shard `owner` for `hash`, if there is one, and prefetches its copy.
    #[inline(always)]
    pub fn find(&self, owner: usize, hash: u64) -> Option<CopyEntry> {
        if self.is_paused { None } else { self.copies.get(owner)?.find(hash) }
    }

    /// Returns the value of `key`, of the shard `owner`, from its copy.
    #[inline(always)]
    pub fn read(&mut self, owner: usize, entry: Option<CopyEntry>, key: &Key<'_>, now: u64) -> Option<&[u8]> {
        let value = self.copies.get(owner)?.read(entry?, key, now, &mut self.value[..])?;
        self.successes += 1;
        Some(value)
    }

    /// Returns true if `entry` of the shard `owner` still belongs to the key with the hash `hash`.
    #[inline]
    pub fn is_current(&self, owner: usize, hash: u64, entry: Option<CopyEntry>) -> bool {
        self.copies.get(owner).zip(entry).is_some_and(|(copies, entry)| copies.is_current(hash, entry))
    }

    /// Counts a read of a string of another shard that had no copy. Returns true if the request for it should make one.
    #[inline(always)]
    pub fn wants_copy(&mut self) -> bool {
        self.failures += 1;
        if self.is_paused {
            if self.failures >= self.window * PAUSE && !self.copies.is_empty() {
                self.end_pause();
            }
        } else if self.failures + self.successes >= self.window {
            self.end_window();
        }
        !self.is_paused
    }
}
