//! Memory format of an export.
//!
//! Numbers are little-endian. Hashes are 64-bit XXH3 with a seed, as in its specification.
//!
//! The memory holds rows of buckets, a log for each shard, and the floors of the logs:
//!
//! | offset | bytes | contents |
//! |--------|-------|----------|
//! | (row · shards + shard) · 64 | 64 | bucket of `shard` in `row` |
//! | (rows · shards) · 64 + shard · log · 16 | log · 16 | log of `shard`, in units of 16 bytes |
//! | (rows · shards) · 64 + (shards · log + shard) · 16 | 16 | floor of `shard` |
//!
//! The hash of a key, with a seed chosen by the server, selects its row: hash · rows / 2⁶⁴. Only the server can compute
//! the shard of a key, which depends on a secret. The buckets of all shards are therefore adjacent and are fetched by
//! one READ. A bucket has entries for seven keys, in any order:
//!
//! | bytes of a bucket | contents |
//! |-------------------|----------|
//! | 0..8   | hash of the rest, with the seed XOR (row · shards + shard) |
//! | 8..64  | seven entries of 8 bytes; an entry of 0 is empty |
//!
//! | bits of an entry | contents |
//! |------------------|----------|
//! | 0..30  | unit of the shard's log at which the record starts |
//! | 30..40 | lap of the log, modulo 2¹⁰ |
//! | 40..48 | length of the record in units |
//! | 48..64 | tag: the lowest 16 bits of the key's hash |
//!
//! A bucket has at most one entry with a tag. Keys with the same tag replace each other.
//!
//! | bytes of a record | contents |
//! |-------------------|----------|
//! | 0..8   | hash of the rest, with the seed XOR the entry; inverted once no entry refers to the record |
//! | 8..16  | hash of the key |
//! | 16..24 | expiry time in milliseconds since 1970, or 0 |
//! | 24..26 | length of the key |
//! | 26..28 | length of the value |
//! | 28..32 | lap of the log, modulo 2³² |
//! | 32..   | key, value, and zeros up to a whole unit |
//!
//! A record does not cross the end of its log. It stays unchanged until it is overwritten, the oldest first. Only its
//! hash is inverted when its entry is removed or replaced. A client that keeps the entry of a key therefore gets the
//! current value by one READ, or learns that the record was superseded. A client that has just read the entry in a
//! bucket accepts the inverted hash as well: the value was current when the bucket was read.
//!
//! | bytes of a floor | contents |
//! |------------------|----------|
//! | 0..8   | hash of the rest, with the seed XOR 2⁶⁴ - 1 - shard |
//! | 8..12  | unit of the log at which the first valid record starts, or will start |
//! | 12..16 | lap of the log at that record, as in records |
//!
//! Records below the floor of their log were flushed and are invalid, even if an entry refers to them. A record is
//! below the floor if its lap and unit, as a 64-bit number, minus those of the floor is negative as a signed number. A
//! search that must see every flush made before it began reads the floors after it began, preferably together with the
//! row. A flush writes two words, regardless of the number of keys.
//!
//! A READ has no defined order, and may see parts of concurrent writes, byte by byte. The hashes detect this; the
//! reader then reads again. The hash of a bucket proves that the bucket was in this state at some time during the READ:
//! an entry mixed from old and new bytes could refer to a still older record. The hash of a record includes the entry,
//! and so the position and lap: a record of another lap at the same position does not match.
//!
//! The hashes protect against accidents only. They are no secret from the readers, so a reader that may also write keys
//! could construct a value that looks like a record for a moment. It gains nothing: it could store the same bytes under
//! the key.

use twox_hash::XxHash3_64;

/// Bytes of a bucket, and its number of entries.
pub(super) const BUCKET: usize = 64;
pub(super) const ENTRIES: usize = 7;
/// Bytes of a log unit.
pub(super) const UNIT: usize = 16;
/// Bytes of a record before the key.
pub(super) const HEAD: usize = 32;
/// Length limit of a record in units.
const LONGEST: usize = 255;
/// Length limit of a record in bytes.
pub(super) const LONGEST_BYTES: usize = LONGEST * UNIT;
/// A record takes at most 1/`PART` of a log, because a longer one would displace too many others.
const PART: usize = 8;
/// Bits of a unit number, and of a unit number with its lap.
const UNIT_BITS: u32 = 30;
pub(super) const FLOOR: usize = 16;
pub(super) const POSITION_BITS: u32 = 40;
/// Buckets take 1/`INDEX_PART` of the export. With records of usual length, half of the entries are in use.
const INDEX_PART: usize = 6;
const SHARDS: std::ops::RangeInclusive<u32> = 1..=256;
const LOG: std::ops::RangeInclusive<u32> = 64..=1 << UNIT_BITS;

/// Layout of an export. Clients get it from the server, which they need not trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    seed: u64,
    shards: u32,
    rows: u32,
    log: u32,
}

impl Layout {
    /// Returns the layout of `shards` shards in at most `bytes` bytes. Returns `None` if that is too small or there are
    /// too many shards.
    pub fn fitting(bytes: usize, shards: usize, seed: u64) -> Option<Self> {
        let count = u32::try_from(shards).ok().filter(|count| SHARDS.contains(count))?;
        let row = shards * BUCKET;
        let rows = (bytes / INDEX_PART / row).clamp(1, u32::MAX as usize);
        let log = bytes.checked_sub(rows * row + shards * FLOOR)? / shards / UNIT;
        Layout::new(seed, count, rows as u32, log.min(*LOG.end() as usize) as u32)
    }

    /// Returns the layout of `shards` shards with `rows` rows of buckets and logs of `log` units, if it is valid.
    pub fn new(seed: u64, shards: u32, rows: u32, log: u32) -> Option<Self> {
        (SHARDS.contains(&shards) && rows > 0 && LOG.contains(&log)).then_some(Layout { seed, shards, rows, log })
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub fn shards(&self) -> u32 {
        self.shards
    }

    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the length of each log in units.
    pub fn log(&self) -> u32 {
        self.log
    }

    pub fn bytes(&self) -> u64 {
        self.floor_at(self.shards)
    }

    pub(super) fn floor_at(&self, shard: u32) -> u64 {
        self.log_at(self.shards) + u64::from(shard) * FLOOR as u64
    }

    /// Returns the length limit of key and value together.
    pub fn longest(&self) -> usize {
        LONGEST.min(self.log as usize / PART) * UNIT - HEAD
    }

    pub(super) fn row(&self) -> usize {
        self.shards as usize * BUCKET
    }

    pub(super) fn log_at(&self, shard: u32) -> u64 {
        let index = u64::from(self.rows) * self.row() as u64;
        index + u64::from(shard) * u64::from(self.log) * UNIT as u64
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed, key)
    }

    #[inline]
    pub(super) fn row_of(&self, hash: u64) -> u64 {
        ((u128::from(hash) * u128::from(self.rows)) >> 64) as u64
    }

    #[inline]
    pub(super) fn bucket(&self, row: u64, shard: u32) -> u64 {
        row * u64::from(self.shards) + u64::from(shard)
    }

    /// Returns the hash of a bucket with this number and these entries.
    #[inline]
    pub(super) fn check_bucket(&self, number: u64, entries: &[u8; ENTRIES * 8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed ^ number, entries)
    }

    /// Returns the hash of the record of `entry`, whose bytes after the hash are `rest`.
    #[inline]
    pub(super) fn check_record(&self, entry: Entry, rest: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed ^ entry.0, rest)
    }

    #[inline]
    pub(super) fn check_floor(&self, shard: u32, floor: &[u8; 8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed ^ !u64::from(shard), floor)
    }

    /// Returns the length in units of a record with a key and value of these lengths, if it is within the limit.
    #[inline]
    pub(super) fn units(&self, key: usize, value: usize) -> Option<u32> {
        (key + value <= self.longest()).then(|| (HEAD + key + value).div_ceil(UNIT) as u32)
    }
}

/// Position of a record: lap and unit of the log, ordered by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogPosition {
    pub lap: u64,
    pub at: u32,
}

impl LogPosition {
    /// Returns the position as in entries.
    #[inline]
    pub fn bits(self) -> u64 {
        (self.lap << UNIT_BITS | u64::from(self.at)) & ((1 << POSITION_BITS) - 1)
    }

    /// Returns the position as in floors.
    #[inline]
    pub fn number(self) -> u64 {
        self.lap << 32 | u64::from(self.at)
    }
}

/// Bucket entry that refers to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(pub u64);

impl Entry {
    pub const EMPTY: Entry = Entry(0);

    #[inline]
    pub fn new(hash: u64, units: u32, position: LogPosition) -> Self {
        Entry(hash << 48 | u64::from(units) << POSITION_BITS | position.bits())
    }

    /// Returns true if the entry has the tag of this hash.
    #[inline]
    pub fn is_of(self, hash: u64) -> bool {
        self.units() > 0 && self.0 >> 48 == hash & 0xffff
    }

    #[inline]
    pub fn units(self) -> u32 {
        (self.0 >> POSITION_BITS) as u32 & 0xff
    }

    #[inline]
    pub fn at(self) -> u32 {
        self.0 as u32 & ((1 << UNIT_BITS) - 1)
    }

    /// Returns the [`bits`](LogPosition::bits) of the record's position.
    #[inline]
    pub fn position(self) -> u64 {
        self.0 & ((1 << POSITION_BITS) - 1)
    }
}
