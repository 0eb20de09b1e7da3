//! Cache of records that one thread writes and others read without locks.
//!
//! The memory is an array of words, which are accessed by atomic operations only:
//!
//! | words | contents |
//! |-------|----------|
//! | 0     | floor: position in the log below which records are invalid |
//! | 1     | 1 if there is a writer |
//! | 8..   | lines of eight entries; the hash of a key selects the line |
//! | then  | log: records, oldest first, in a ring |
//!
//! | bits of an entry | contents |
//! |------------------|----------|
//! | 0..30  | first word of the record in the log |
//! | 30..40 | lap of the log, modulo 2¹⁰ |
//! | 40..50 | length of the record in words |
//! | 50..64 | tag of the hash, at least 1; an entry of 0 is empty |
//!
//! | words of a record | contents |
//! |-------------------|----------|
//! | 0    | hash |
//! | 1    | label, which the writer may replace |
//! | 2    | length of the key, and of the value in the upper half |
//! | 3..  | key and value, each padded to a whole word |
//!
//! The floor is a position as in entries: lap and word. A record does not cross the end of the ring. Except for its
//! label it never changes: it is overwritten after the floor has passed it. A reader loads an entry, copies the
//! record, and then loads the floor. If the record is not below the floor, the copy is whole, and the value was
//! current when the entry was loaded.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;

/// Entries of a line, and words of a cache line.
const LINE: usize = 8;
/// Words of a record before its key.
const HEAD: usize = 3;
const WORD_BITS: u32 = 30;
const POSITION_BITS: u32 = 40;
const POSITIONS: u64 = (1 << POSITION_BITS) - 1;
const LEN_BITS: u32 = 10;
const MAX_LEN: usize = (1 << LEN_BITS) - 1;
const TAG_AT: u32 = POSITION_BITS + LEN_BITS;
/// Divisor of the log: the floor advances by this part of the log at a time, so that most writes do not touch the cache
/// line of the floor, and a record is no longer than this part.
const STEP: u64 = 8;

/// Cache in the words of `M`.
pub struct SharedCache<M> {
    memory: M,
    lines: usize,
    /// Words of the log.
    log: usize,
}

/// Entry of a record, as [found](SharedCache::find).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheEntry(std::num::NonZeroU64);

impl CacheEntry {
    #[inline(always)]
    fn bits(hash: u64, len: usize, position: u64) -> u64 {
        tag_of(hash) << TAG_AT | (len as u64) << POSITION_BITS | position & POSITIONS
    }

    #[inline(always)]
    fn len(self) -> usize {
        (self.0.get() >> POSITION_BITS) as usize & MAX_LEN
    }
}

#[inline(always)]
fn tag_of(hash: u64) -> u64 {
    (hash & ((1 << (u64::BITS - TAG_AT)) - 1)).max(1)
}

/// Returns true if the record of `entry` is not below `floor`.
#[inline(always)]
fn is_valid(entry: u64, floor: u64) -> bool {
    entry.wrapping_sub(floor) & POSITIONS < 1 << (POSITION_BITS - 1)
}

impl<M: AsRef<[AtomicU64]>> SharedCache<M> {
    /// Creates a cache in `memory`, whose words are 0. A fifth of the words that it uses are entries. Returns `None` if
    /// the memory is too small or too large.
    pub fn new(memory: M) -> Option<Self> {
        let words = memory.as_ref().len();
        let log = words.checked_sub(LINE)? / 5 * 4;
        let lines = log / 4 / LINE;
        (lines > 0 && log < 1 << (WORD_BITS - 1)).then_some(SharedCache { memory, lines, log })
    }

    /// Returns the number of words for records.
    pub fn log_words(&self) -> usize {
        self.log
    }

    #[inline(always)]
    fn line(&self, hash: u64) -> &[AtomicU64] {
        let line = ((u128::from(hash) * self.lines as u128) >> 64) as usize;
        self.line_at(line)
    }

    #[inline(always)]
    fn line_at(&self, line: usize) -> &[AtomicU64] {
        &self.memory.as_ref()[LINE + line * LINE..][..LINE]
    }

    #[inline(always)]
    fn floor(&self) -> &AtomicU64 {
        &self.memory.as_ref()[0]
    }

    #[inline(always)]
    fn record(&self, entry: CacheEntry) -> &[AtomicU64] {
        let at = entry.0.get() as usize & ((1 << WORD_BITS) - 1);
        self.memory.as_ref()[LINE + self.lines * LINE..].get(at..at + entry.len()).unwrap_or_default()
    }

    /// Calls `prefetch` with the first word of the line for `hash`.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64, prefetch: impl FnOnce(&AtomicU64)) {
        prefetch(&self.line(hash)[0]);
    }

    /// Calls `prefetch` with a word of each cache line of the record of `entry`, up to 256 bytes.
    #[inline(always)]
    pub fn prefetch_record(&self, entry: CacheEntry, prefetch: impl FnMut(&AtomicU64)) {
        let record = self.record(entry);
        record.iter().step_by(LINE).chain(record.last()).take(5).for_each(prefetch);
    }

    /// Returns the entry for `hash`. It nearly always belongs to its key.
    #[inline(always)]
    pub fn find(&self, hash: u64) -> Option<CacheEntry> {
        let tag = tag_of(hash);
        for entry in self.line(hash) {
            // Acquire: the record was written before the entry.
            let entry = entry.load(Ordering::Acquire);
            if entry >> TAG_AT == tag {
                return std::num::NonZeroU64::new(entry).map(CacheEntry);
            }
        }
        None
    }

    /// Returns true if `entry`, which was found for `hash`, is still there.
    #[inline]
    pub fn is_current(&self, hash: u64, entry: CacheEntry) -> bool {
        self.find(hash) == Some(entry)
    }

    /// Copies the value under `key`, with the hash `hash`, from the record of `entry` to `out`. Returns the label and
    /// the length of the value. Returns `None` if the record is of another key or has been overwritten, or if the value
    /// padded to whole words does not fit.
    #[inline(always)]
    pub fn read(&self, entry: CacheEntry, hash: u64, key: &[u8], out: &mut [u8]) -> Option<(u64, usize)> {
        let [its, label, lens, rest @ ..] = self.record(entry) else { return None };
        let label = label.load(Ordering::Relaxed);
        let lens = lens.load(Ordering::Relaxed);
        if its.load(Ordering::Relaxed) != hash || lens & u64::from(u32::MAX) != key.len() as u64 {
            return None;
        }
        let (its, value) = rest.split_at_checked(key.len().div_ceil(8))?;
        let len = (lens >> 32) as usize;
        let value = value.get(..len.div_ceil(8))?;
        let is_same = words_of(key).zip(its).all(|(word, its)| its.load(Ordering::Relaxed) == word);
        let (out, _) = out.get_mut(..value.len() * 8)?.as_chunks_mut();
        for (out, word) in out.iter_mut().zip(value) {
            *out = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        // Pairs with the fence of `raise_floor`: a reader of a word that overwrote the record sees the raised floor.
        fence(Ordering::Acquire);
        let is_whole = is_valid(entry.0.get(), self.floor().load(Ordering::Relaxed));
        (is_same && is_whole).then_some((label, len))
    }
}

impl<M> std::fmt::Debug for SharedCache<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedCache({} words)", self.log)
    }
}

/// Returns `bytes` as words, the last one padded with zeros.
#[inline(always)]
fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, rest) = bytes.as_chunks();
    let last = (!rest.is_empty()).then(|| {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last
    });
    words.iter().copied().chain(last).map(u64::from_ne_bytes)
}

/// Use of the log of a cache.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CacheUsage {
    /// Records stored so far.
    pub records: u64,
    /// Bytes of the records in the log, including those that were removed one by one.
    pub used: u64,
    /// Bytes of the records below the floor: replaced by newer records, or removed all at once.
    pub evicted: u64,
}

/// Writer of a cache.
pub struct CacheWriter<M> {
    cache: Arc<SharedCache<M>>,
    /// Position of the next record: lap, and word in the log.
    lap: u64,
    next: u64,
    floor: u64,
    /// Line whose invalid entries are removed next.
    swept: usize,
    records: u64,
}

impl<M: AsRef<[AtomicU64]>> CacheWriter<M> {
    /// Creates the writer of `cache`.
    ///
    /// # Panics
    /// If `cache` has had a writer already.
    pub fn new(cache: Arc<SharedCache<M>>) -> Self {
        assert_eq!(cache.memory.as_ref()[1].swap(1, Ordering::Relaxed), 0, "a cache has two writers");
        CacheWriter { cache, lap: 0, next: 0, floor: 0, swept: 0, records: 0 }
    }

    /// Returns the cache.
    #[inline(always)]
    pub fn cache(&self) -> &SharedCache<M> {
        &self.cache
    }

    /// Returns the use of the log.
    pub fn usage(&self) -> CacheUsage {
        let bytes = |position: u64| {
            ((position >> WORD_BITS) * self.cache.log as u64 + position % (1 << WORD_BITS)) * size_of::<u64>() as u64
        };
        let (next, floor) = (bytes(self.lap << WORD_BITS | self.next), bytes(self.floor));
        CacheUsage { records: self.records, used: next.saturating_sub(floor), evicted: floor.min(next) }
    }

    /// Returns the entry with the tag of `hash`, valid or not.
    fn entry(&self, hash: u64) -> Option<&AtomicU64> {
        let tag = tag_of(hash);
        self.cache.line(hash).iter().find(|entry| entry.load(Ordering::Relaxed) >> TAG_AT == tag)
    }

    /// Removes the record of the key with the hash `hash`, or the record of another key with the same line and tag.
    #[inline]
    pub fn invalidate(&mut self, hash: u64) {
        if let Some(entry) = self.entry(hash) {
            entry.store(0, Ordering::Release);
        }
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.raise_floor(self.lap << WORD_BITS | self.next);
    }

    /// Invalidates the records below `floor`.
    fn raise_floor(&mut self, floor: u64) {
        self.floor = floor;
        self.cache.floor().store(floor & POSITIONS, Ordering::Release);
        // The records below are overwritten only after this.
        fence(Ordering::Release);
    }

    /// Raises the floor above the records of the last lap that end before the next record, in steps.
    fn free(&mut self, step: u64) {
        let Some(lap) = self.lap.checked_sub(1) else { return };
        if (lap << WORD_BITS | self.next) > self.floor {
            self.raise_floor(lap << WORD_BITS | self.next.next_multiple_of(step));
        }
    }

    /// Stores a record, unless it is too long. If `key` has a record already, its value must be the same, and only the
    /// label is replaced.
    pub fn publish(&mut self, hash: u64, label: u64, key: &[u8], value: &[u8]) {
        let old = self.entry(hash).map(|entry| entry.load(Ordering::Relaxed));
        if let Some(old) = old.filter(|old| is_valid(*old, self.floor)).and_then(std::num::NonZeroU64::new)
            && let [its, label_word, lens, rest @ ..] = self.cache.record(CacheEntry(old))
            && its.load(Ordering::Relaxed) == hash
            && lens.load(Ordering::Relaxed) & u64::from(u32::MAX) == key.len() as u64
            && words_of(key).zip(rest).all(|(word, its)| its.load(Ordering::Relaxed) == word)
        {
            return label_word.store(label, Ordering::Relaxed);
        }
        let len = HEAD + key.len().div_ceil(8) + value.len().div_ceil(8);
        let log = self.cache.log as u64;
        let step = log / STEP;
        if len > MAX_LEN || len as u64 > step {
            return self.invalidate(hash);
        }
        if self.next + len as u64 > log {
            (self.lap, self.next) = (self.lap + 1, 0);
        }
        self.records += 1;
        let position = self.lap << WORD_BITS | self.next;
        self.next += len as u64;
        self.free(step);
        let entry = CacheEntry::bits(hash, len, position);
        let lens = key.len() as u64 | (value.len() as u64) << 32;
        let words = [hash, label, lens].into_iter().chain(words_of(key)).chain(words_of(value));
        let record = std::num::NonZeroU64::new(entry).map(|entry| self.cache.record(CacheEntry(entry)));
        for (place, word) in record.unwrap_or_default().iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.place(hash).store(entry, Ordering::Release);
        self.sweep();
    }

    /// Returns the entry in which the entry of `hash` is stored: an entry with the same tag, or an invalid one, or the
    /// oldest.
    fn place(&self, hash: u64) -> &AtomicU64 {
        let age = |entry: &&AtomicU64| match entry.load(Ordering::Relaxed) {
            entry if entry != 0 && is_valid(entry, self.floor) => 1 + (entry.wrapping_sub(self.floor) & POSITIONS),
            _ => 0,
        };
        let line = self.cache.line(hash);
        self.entry(hash).or_else(|| line.iter().min_by_key(age)).unwrap_or(&line[0])
    }

    /// Removes the invalid entries of one line. Each entry is thus removed long before its position could mean another
    /// record.
    fn sweep(&mut self) {
        for entry in self.cache.line_at(self.swept) {
            let word = entry.load(Ordering::Relaxed);
            if word != 0 && !is_valid(word, self.floor) {
                entry.store(0, Ordering::Relaxed);
            }
        }
        self.swept = (self.swept + 1) % self.cache.lines;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    type Words = Box<[AtomicU64]>;

    fn cache(log: usize) -> (Arc<SharedCache<Words>>, CacheWriter<Words>) {
        let memory = (0..LINE + log / 4 * 5).map(|_| AtomicU64::new(0)).collect();
        let cache = Arc::new(SharedCache::new(memory).unwrap());
        assert_eq!(cache.log, log);
        (cache.clone(), CacheWriter::new(cache))
    }

    /// Returns a hash of `key` whose bits are all used.
    fn hash(key: &[u8]) -> u64 {
        key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    fn read<M: AsRef<[AtomicU64]>>(cache: &SharedCache<M>, hash: u64, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let mut value = [0; 8 * MAX_LEN];
        let (label, len) = cache.read(cache.find(hash)?, hash, key, &mut value)?;
        Some((label, value[..len].to_vec()))
    }

    #[test]
    fn record_is_read_as_published() {
        let (cache, mut writer) = cache(4096);
        for len in [0, 1, 7, 8, 9, 16, 17, 100] {
            let (key, value) = (vec![b'k'; len], vec![b'v'; 3 * len]);
            assert_eq!(read(&cache, hash(&key), &key), None);
            writer.publish(hash(&key), 5, &key, &value);
            assert_eq!(read(&cache, hash(&key), &key), Some((5, value.clone())), "{len}");
            writer.publish(hash(&key), 6, &key, &value);
            assert_eq!(read(&cache, hash(&key), &key), Some((6, value)));
            let mut other = key.clone();
            other.push(0);
            assert_eq!(read(&cache, hash(&key), &other), None);
            if let Some(last) = other.get_mut(len.wrapping_sub(1)) {
                *last ^= 1;
                assert_eq!(read(&cache, hash(&key), &other[..len]), None);
            }
        }
    }

    #[test]
    fn invalidated_and_cleared_records_are_absent() {
        let (cache, mut writer) = cache(4096);
        writer.publish(hash(b"a"), 1, b"a", b"one");
        writer.publish(hash(b"b"), 1, b"b", b"two");
        let entry = cache.find(hash(b"a")).unwrap();
        assert!(cache.is_current(hash(b"a"), entry));
        writer.invalidate(hash(b"a"));
        assert!(!cache.is_current(hash(b"a"), entry));
        assert_eq!(read(&cache, hash(b"a"), b"a"), None);
        assert!(read(&cache, hash(b"b"), b"b").is_some());
        writer.clear();
        assert_eq!(read(&cache, hash(b"b"), b"b"), None);
        writer.publish(hash(b"b"), 1, b"b", b"three");
        assert_eq!(read(&cache, hash(b"b"), b"b"), Some((1, b"three".to_vec())));
    }

    #[test]
    fn usage_counts_records_and_bytes() {
        let (_, mut writer) = cache(1024);
        assert_eq!(writer.usage(), CacheUsage::default());
        // A label is replaced in place.
        [1, 2].into_iter().for_each(|label| writer.publish(hash(b"a"), label, b"a", &[1; 16]));
        writer.publish(hash(b"b"), 1, b"b", &[1; 8]);
        let bytes = (2 * (HEAD + 1) as u64 + 3) * 8;
        assert_eq!(writer.usage(), CacheUsage { records: 2, used: bytes, evicted: 0 });
        writer.clear();
        assert_eq!(writer.usage(), CacheUsage { records: 2, used: 0, evicted: bytes });
        let (mut last, record) = (writer.usage(), (HEAD as u64 + 2) * 8);
        for n in 0..1000_u32 {
            writer.publish(hash(&n.to_le_bytes()), 1, &n.to_le_bytes(), &[1; 8]);
            let usage = writer.usage();
            assert_eq!(usage.records, 3 + u64::from(n));
            assert!(usage.used <= 8 * 1024 && usage.evicted >= last.evicted, "{usage:?}");
            let grown = usage.used + usage.evicted - last.used - last.evicted;
            // The end of a lap stays free.
            assert!((record..2 * record).contains(&grown), "{usage:?}");
            last = usage;
        }
        assert!(last.evicted > 8 * 1024 * 3, "{last:?}");
    }

    #[test]
    fn too_long_record_is_not_stored_and_replaces_none() {
        let (cache, mut writer) = cache(1024);
        let key = b"key";
        writer.publish(hash(key), 1, key, &[1; 8 * (128 - HEAD - 1)]);
        assert!(read(&cache, hash(key), key).is_some());
        writer.invalidate(hash(key));
        writer.publish(hash(key), 1, key, &[1; 8 * (128 - HEAD - 1) + 1]);
        assert_eq!(read(&cache, hash(key), key), None);
        assert!(SharedCache::new([]).is_none() && SharedCache::new([const { AtomicU64::new(0) }; 40]).is_none());
    }

    #[test]
    fn value_that_does_not_fit_is_not_read() {
        let (cache, mut writer) = cache(1024);
        writer.publish(hash(b"key"), 1, b"key", b"123456789");
        let entry = cache.find(hash(b"key")).unwrap();
        assert_eq!(cache.read(entry, hash(b"key"), b"key", &mut [0; 15]), None);
        assert_eq!(cache.read(entry, hash(b"key"), b"key", &mut [0; 16]), Some((1, 9)));
    }

    /// A lookup returns the record published last or nothing, over many laps of the log.
    #[test]
    fn records_equal_a_model_over_many_laps() {
        const OPERATIONS: u64 = if cfg!(miri) { 2_000 } else { 30_000 };
        let (cache, mut writer) = cache(2048);
        let mut random = fastrand::Rng::with_seed(37);
        let mut model = HashMap::new();
        let (mut found, mut looked_up) = (0, 0);
        for n in 0..OPERATIONS {
            let key = random.u16(..200).to_string().into_bytes();
            let hash = hash(&key);
            match random.u32(..10) {
                0 => {
                    writer.invalidate(hash);
                    model.remove(&key);
                }
                1..4 => {
                    if let Some((_, value)) = model.get(&key) {
                        let value: &Vec<u8> = value;
                        writer.publish(hash, n, &key, value);
                        model.insert(key.clone(), (n, value.clone()));
                    } else {
                        let value = n.to_string().repeat(random.usize(..20)).into_bytes();
                        writer.publish(hash, n, &key, &value);
                        model.insert(key.clone(), (n, value));
                    }
                    assert_eq!(read(&cache, hash, &key).as_ref(), model.get(&key));
                }
                4 if random.u32(..500) == 0 => {
                    writer.clear();
                    model.clear();
                }
                _ => {
                    looked_up += u32::from(model.contains_key(&key));
                    if let Some(record) = read(&cache, hash, &key) {
                        assert_eq!(Some(&record), model.get(&key));
                        found += 1;
                    }
                }
            }
        }
        let laps = writer.lap;
        assert!(laps > OPERATIONS / 3_000 && found > looked_up / 20, "{found} of {looked_up}, {laps} laps");
    }

    #[test]
    fn entries_below_the_floor_are_removed() {
        let (cache, mut writer) = cache(1024);
        writer.publish(hash(b"old"), 1, b"old", b"value");
        writer.clear();
        for n in 0..cache.lines {
            let key = n.to_string();
            writer.publish(hash(key.as_bytes()), 1, key.as_bytes(), b"");
        }
        assert_eq!(cache.find(hash(b"old")), None);
    }

    #[test]
    fn reader_sees_whole_records_while_they_are_overwritten() {
        // Miri takes milliseconds for each record.
        const RECORDS: u64 = if cfg!(miri) { 200 } else { 20_000 };
        let (cache, mut writer) = cache(512);
        let done = AtomicBool::new(false);
        let keys: Vec<Vec<u8>> = (0..20u32).map(|n| n.to_string().into_bytes()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for key in &keys {
                        if let Some((label, value)) = read(&cache, hash(key), key) {
                            assert!(value.len() == 64 && value.iter().all(|byte| *byte == label as u8), "{value:?}");
                        }
                    }
                }
            });
            for n in 0..RECORDS {
                let key = &keys[n as usize % keys.len()];
                writer.invalidate(hash(key));
                writer.publish(hash(key), n, key, &[n as u8; 64]);
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
