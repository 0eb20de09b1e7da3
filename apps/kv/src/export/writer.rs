//! Writer of the part of one shard.

use super::format::{ENTRIES, Entry, HEAD, LONGEST_BYTES, Layout, LogPosition, POSITION_BITS, UNIT};
use linerate_bypass::Published;
use std::sync::Arc;

const UNIT_WORDS: usize = UNIT / 8;
const BUCKET_WORDS: usize = 1 + ENTRIES;

/// Writer of the buckets and the log of one shard.
///
/// A concurrent reader finds a key with its value before or after a call, or not at all. After the call it does not
/// find the old value.
#[derive(Debug)]
pub struct Writer {
    memory: Arc<Published>,
    layout: Layout,
    shard: u32,
    /// First word of the log.
    log: usize,
    /// Positions of the next record and of the oldest one. All records that entries refer to are between them.
    head: LogPosition,
    tail: LogPosition,
    /// End of the records of the preceding lap.
    end: u32,
    /// Position of the first record that was not flushed.
    floor: LogPosition,
    /// Buffer in which a record is assembled.
    record: Box<[u8; LONGEST_BYTES]>,
}

/// Entries of a bucket.
struct Bucket {
    number: u64,
    entries: [Entry; ENTRIES],
}

impl Writer {
    pub(super) fn new(memory: Arc<Published>, layout: Layout, shard: usize) -> Self {
        let shard = shard as u32;
        let start = LogPosition { lap: 0, at: 0 };
        let log = (layout.log_at(shard) / 8) as usize;
        let record = Box::new([0; LONGEST_BYTES]);
        let mut writer = Writer { memory, layout, shard, log, head: start, tail: start, end: 0, floor: start, record };
        writer.empty();
        writer.raise_floor(start);
        writer
    }

    /// Stores `value` under `key` until `expires_at` milliseconds since 1970. A pair that is too long is removed
    /// instead.
    pub fn set(&mut self, key: &[u8], value: &[u8], expires_at: Option<u64>) {
        let Some(units) = self.layout.units(key.len(), value.len()) else { return self.remove(key) };
        let hash = self.layout.hash(key);
        self.prefetch_bucket(hash);
        let position = self.make_room(units);
        let entry = Entry::new(hash, units, position);
        let record = &mut self.record[..units as usize * UNIT];
        record[8..16].copy_from_slice(&hash.to_le_bytes());
        record[16..24].copy_from_slice(&expires_at.unwrap_or(0).to_le_bytes());
        record[24..26].copy_from_slice(&(key.len() as u16).to_le_bytes());
        record[26..28].copy_from_slice(&(value.len() as u16).to_le_bytes());
        record[28..32].copy_from_slice(&(position.lap as u32).to_le_bytes());
        let (key_space, rest) = record[HEAD..].split_at_mut(key.len());
        let (value_space, padding) = rest.split_at_mut(value.len());
        key_space.copy_from_slice(key);
        value_space.copy_from_slice(value);
        padding.fill(0);
        let check = self.layout.check_record(entry, &record[8..]);
        record[..8].copy_from_slice(&check.to_le_bytes());
        self.memory.write(self.word_of(position.at), &self.record[..units as usize * UNIT]);

        let bucket = self.bucket(hash);
        // If the bucket is full, the oldest record's entry is replaced, which would be overwritten next anyway.
        let slot = bucket.find(|its| its.is_of(hash)).or_else(|| bucket.find(|its| its == Entry::EMPTY));
        let slot = slot.unwrap_or_else(|| bucket.oldest(position));
        self.replace(bucket, slot, entry);
    }

    /// Prefetches the bucket of `key` for a later [`set`](Self::set).
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        self.prefetch_bucket(self.layout.hash(key));
    }

    pub fn remove(&mut self, key: &[u8]) {
        let hash = self.layout.hash(key);
        let bucket = self.bucket(hash);
        if let Some(slot) = bucket.find(|entry| entry.is_of(hash)) {
            self.replace(bucket, slot, Entry::EMPTY);
        }
    }

    /// Removes all keys in constant time: the entries remain, and refer to records below the floor until those are
    /// overwritten.
    pub fn clear(&mut self) {
        self.raise_floor(self.head);
    }

    /// Invalidates the records before `position`.
    fn raise_floor(&mut self, position: LogPosition) {
        self.floor = position;
        let (word, number) = ((self.layout.floor_at(self.shard) / 8) as usize, position.number());
        self.memory.store(word + 1, number);
        self.memory.store(word, self.layout.check_floor(self.shard, &number.to_le_bytes()));
    }

    fn empty(&self) {
        for row in 0..self.layout.rows() {
            let number = self.layout.bucket(row.into(), self.shard);
            let word = number as usize * BUCKET_WORDS;
            let none = [0; ENTRIES * 8];
            self.memory.write(word + 1, &none);
            self.memory.store(word, self.layout.check_bucket(number, &none));
        }
    }

    /// Returns the position for a record of `units` units, after removing all entries that refer there.
    fn make_room(&mut self, units: u32) -> LogPosition {
        if self.head.at + units > self.layout.log() {
            while self.tail.lap < self.head.lap {
                self.remove_oldest();
            }
            self.end = self.head.at;
            self.head = LogPosition { lap: self.head.lap + 1, at: 0 };
            // A floor that lags too far would later compare as ahead.
            self.raise_floor(self.floor.max(self.tail));
        }
        while self.tail.lap < self.head.lap && self.tail.at < self.head.at + units {
            self.remove_oldest();
        }
        let position = self.head;
        self.head.at += units;
        position
    }

    /// Removes the entry of the oldest record, which is from the preceding lap.
    fn remove_oldest(&mut self) {
        if self.tail.at == self.end {
            self.tail = LogPosition { lap: self.tail.lap + 1, at: 0 };
            return;
        }
        let word = self.word_of(self.tail.at);
        let (hash, lens) = (self.memory.load(word + 1), self.memory.load(word + 3));
        let bucket = self.bucket(hash);
        let position = self.tail.bits();
        if let Some(slot) = bucket.find(|entry| entry != Entry::EMPTY && entry.position() == position) {
            self.replace(bucket, slot, Entry::EMPTY);
        }
        let units = self.layout.units(lens as u16 as usize, (lens >> 16) as u16 as usize);
        self.tail.at += units.expect("a record in the log has a valid length");
        if self.tail.at != self.end {
            // Prefetch the bucket for the next call.
            self.prefetch_bucket(self.memory.load(self.word_of(self.tail.at) + 1));
        }
    }

    fn word_of(&self, at: u32) -> usize {
        self.log + at as usize * UNIT_WORDS
    }

    /// Returns the number of the bucket for keys with this hash.
    fn number_of(&self, hash: u64) -> u64 {
        self.layout.bucket(self.layout.row_of(hash), self.shard)
    }

    fn prefetch_bucket(&self, hash: u64) {
        self.memory.prefetch(self.number_of(hash) as usize * BUCKET_WORDS);
    }

    fn bucket(&self, hash: u64) -> Bucket {
        let number = self.number_of(hash);
        let first = number as usize * BUCKET_WORDS + 1;
        Bucket { number, entries: std::array::from_fn(|slot| Entry(self.memory.load(first + slot))) }
    }

    /// Replaces the entry in `slot`, and inverts the hash of the former entry's record.
    fn replace(&self, mut bucket: Bucket, slot: usize, entry: Entry) {
        let former = std::mem::replace(&mut bucket.entries[slot], entry);
        let mut bytes = [0; ENTRIES * 8];
        bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(bucket.entries)
            .for_each(|(bytes, Entry(bits))| *bytes = bits.to_le_bytes());
        let word = bucket.number as usize * BUCKET_WORDS;
        self.memory.store(word + 1 + slot, entry.0);
        self.memory.store(word, self.layout.check_bucket(bucket.number, &bytes));
        if former != Entry::EMPTY {
            // Records that entries refer to are not overwritten yet.
            let check = self.word_of(former.at());
            self.memory.store(check, !self.memory.load(check));
        }
    }
}

impl Bucket {
    fn find(&self, is_it: impl Fn(Entry) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| is_it(*entry))
    }

    /// Returns the slot whose record is the oldest at the position `now`.
    fn oldest(&self, now: LogPosition) -> usize {
        let age = |entry: &Entry| now.bits().wrapping_sub(entry.position()) << (64 - POSITION_BITS);
        let ages = self.entries.iter().map(age);
        ages.enumerate().max_by_key(|(_, age)| *age).map_or(0, |(slot, _)| slot)
    }
}
