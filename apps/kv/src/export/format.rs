//! How an export lies in memory.
//!
//! Numbers have the lowest byte first. Hashes are XXH3, 64 bits of it, as its specification says with a seed.
//!
//! First come rows of buckets, then a log for each shard, and last the logs' floors:
//!
//! | at | bytes | what |
//! |----|-------|------|
//! | (row · shards + shard) · 64 | 64 | the bucket of `shard` in `row` |
//! | (rows · shards) · 64 + shard · log · 16 | log · 16 | the log of `shard`, in units of 16 bytes |
//! | (rows · shards) · 64 + (shards · log + shard) · 16 | 16 | the floor of `shard` |
//!
//! A key's hash, with the seed that the server chose, leads to its row: hash · rows / 2⁶⁴. Which shard a key is in only the server can
//! tell, who has a secret for that; so the buckets of all shards lie beside each other, and come by one READ. A bucket has
//! places for seven keys, in any order:
//!
//! | bytes of a bucket | what |
//! |-------------------|------|
//! | 0..8   | the hash of what follows, with the seed XOR (row · shards + shard) |
//! | 8..64  | seven entries of 8 bytes; those that are 0 are empty |
//!
//! | bits of an entry | what |
//! |------------------|------|
//! | 0..30  | the unit of the shard's log at which the record begins |
//! | 30..40 | how often the log had gone round, as far as that goes into ten bits |
//! | 40..48 | units of the record |
//! | 48..64 | the tag: the lowest 16 bits of the key's hash |
//!
//! In a bucket there is one entry of a tag, at most: keys that have it in common come instead of each other.
//!
//! | bytes of a record | what |
//! |-------------------|------|
//! | 0..8   | the hash of what follows, with the seed XOR the entry |
//! | 8..16  | the key's hash |
//! | 16..24 | when it expires, in milliseconds since 1970; 0 if it does not |
//! | 24..26 | bytes of the key |
//! | 26..28 | bytes of the value |
//! | 28..32 | how often the log had gone round, as far as that goes into 32 bits |
//! | 32..   | the key, the value, and zeros up to a whole unit |
//!
//! No record goes beyond the end of its log. Records do not change but for being overwritten, the oldest first.
//!
//! | bytes of a floor | what |
//! |------------------|------|
//! | 0..8   | the hash of what follows, with the seed XOR the shard's number from the other end: 2⁶⁴ - 1 - shard |
//! | 8..12  | the unit of the shard's log at which the first record that counts begins, or will |
//! | 12..16 | how often the log will have gone round by then, as records say it |
//!
//! Records below their log's floor were flushed: they are not there, though an entry leads to them. A record is below it if its times
//! round and unit, as a number of 64 bits, less the floor's is below 0 as a signed number. A search that wants to find what there is
//! while it goes on reads the floors any time after it began; they are best read with the row. One word is written for a flush
//! however many keys there were.
//!
//! A READ promises no order of what it reads, and what is written meanwhile may be seen in part, byte by byte. The hashes tell:
//! who finds another one reads again. That of a bucket vouches for its being, whole, what the bucket was at some time during the READ: an
//! entry of which some bytes are older than others could be that of a still older record. That of a record has the entry in it, and so the
//! place in the log and the time round: what lay there a round before, or comes to lie there a round later, is not taken for it,
//! though it be a record.
//!
//! The hashes are against accidents. They hold no secret from those who may read, so one of these who may also write keys might make up
//! a value in which a record seems to lie for a moment; but what it would have others read it may as well write under the key.

use twox_hash::XxHash3_64;

/// Bytes of a bucket, and its entries.
pub(super) const BUCKET: usize = 64;
pub(super) const ENTRIES: usize = 7;
/// Bytes of a unit of a log.
pub(super) const UNIT: usize = 16;
/// Bytes of a record in front of the key.
pub(super) const HEAD: usize = 32;
/// Units of the longest record.
const LONGEST: usize = 255;
/// Bytes of the longest record.
pub(super) const LONGEST_BYTES: usize = LONGEST * UNIT;
/// Records have this part of a log, at most: what is longer would push out too many.
const PART: usize = 8;
/// Bits of a unit's number, and of a place with the times round.
const UNIT_BITS: u32 = 30;
/// Bytes of a floor.
pub(super) const FLOOR: usize = 16;
pub(super) const PLACE_BITS: u32 = 40;
/// The part of an export that buckets have: with usual records, half of their entries are taken.
const INDEX_PART: usize = 6;
const SHARDS: std::ops::RangeInclusive<u32> = 1..=256;
const LOG: std::ops::RangeInclusive<u32> = 64..=1 << UNIT_BITS;

/// Where everything is. It comes from the server, whom its clients need not believe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    seed: u64,
    shards: u32,
    rows: u32,
    log: u32,
}

impl Layout {
    /// That of `shards` shards in `bytes` bytes, or somewhat fewer; `None` if that is too little, or there are too many shards.
    pub fn fitting(bytes: usize, shards: usize, seed: u64) -> Option<Self> {
        let count = u32::try_from(shards).ok().filter(|count| SHARDS.contains(count))?;
        let row = shards * BUCKET;
        let rows = (bytes / INDEX_PART / row).clamp(1, u32::MAX as usize);
        let log = bytes.checked_sub(rows * row + shards * FLOOR)? / shards / UNIT;
        Layout::new(seed, count, rows as u32, log.min(*LOG.end() as usize) as u32)
    }

    /// That of `shards` shards with `rows` rows of buckets and logs of `log` units; `None` if there is none.
    pub fn new(seed: u64, shards: u32, rows: u32, log: u32) -> Option<Self> {
        (SHARDS.contains(&shards) && rows > 0 && LOG.contains(&log)).then_some(Layout { seed, shards, rows, log })
    }

    /// What hashes begin with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many shards there are.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Rows of buckets.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Units of each shard's log.
    pub fn log(&self) -> u32 {
        self.log
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.floor_at(self.shards)
    }

    /// Where the floor of `shard` is, in bytes.
    pub(super) fn floor_at(&self, shard: u32) -> u64 {
        self.log_at(self.shards) + u64::from(shard) * FLOOR as u64
    }

    /// Bytes of the longest key and value together that have a place.
    pub fn longest(&self) -> usize {
        LONGEST.min(self.log as usize / PART) * UNIT - HEAD
    }

    /// Bytes of a row.
    pub(super) fn row(&self) -> usize {
        self.shards as usize * BUCKET
    }

    /// Where the log of `shard` begins, in bytes.
    pub(super) fn log_at(&self, shard: u32) -> u64 {
        let index = u64::from(self.rows) * self.row() as u64;
        index + u64::from(shard) * u64::from(self.log) * UNIT as u64
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed, key)
    }

    /// The row of keys of this hash.
    #[inline]
    pub(super) fn row_of(&self, hash: u64) -> u64 {
        ((u128::from(hash) * u128::from(self.rows)) >> 64) as u64
    }

    /// The number of the bucket of `shard` in `row`.
    #[inline]
    pub(super) fn bucket(&self, row: u64, shard: u32) -> u64 {
        row * u64::from(self.shards) + u64::from(shard)
    }

    /// What the bucket of this number begins with that has these entries.
    #[inline]
    pub(super) fn check_bucket(&self, number: u64, entries: &[u8; ENTRIES * 8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed ^ number, entries)
    }

    /// What the record of `entry` begins with that has these bytes behind that.
    #[inline]
    pub(super) fn check_record(&self, entry: Entry, rest: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed ^ entry.0, rest)
    }

    /// What the floor of `shard` begins with that has these bytes behind that.
    #[inline]
    pub(super) fn check_floor(&self, shard: u32, floor: &[u8; 8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed ^ !u64::from(shard), floor)
    }

    /// Units of the record of a key and a value of so many bytes, if they are not too long.
    #[inline]
    pub(super) fn units(&self, key: usize, value: usize) -> Option<u32> {
        (key + value <= self.longest()).then(|| (HEAD + key + value).div_ceil(UNIT) as u32)
    }
}

/// Where a record begins: at a unit of the log, which has gone round so often. In the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub lap: u64,
    pub at: u32,
}

impl Place {
    /// As entries say it.
    #[inline]
    pub fn bits(self) -> u64 {
        (self.lap << UNIT_BITS | u64::from(self.at)) & ((1 << PLACE_BITS) - 1)
    }

    /// As floors say it.
    #[inline]
    pub fn number(self) -> u64 {
        self.lap << 32 | u64::from(self.at)
    }
}

/// What a bucket says of a key's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(pub u64);

impl Entry {
    pub const EMPTY: Entry = Entry(0);

    /// That of a key of this hash.
    #[inline]
    pub fn new(hash: u64, units: u32, place: Place) -> Self {
        Entry(hash << 48 | u64::from(units) << PLACE_BITS | place.bits())
    }

    /// Whether it is that of a key of this hash, as far as it can tell.
    #[inline]
    pub fn is_of(self, hash: u64) -> bool {
        self.units() > 0 && self.0 >> 48 == hash & 0xffff
    }

    #[inline]
    pub fn units(self) -> u32 {
        (self.0 >> PLACE_BITS) as u32 & 0xff
    }

    #[inline]
    pub fn at(self) -> u32 {
        self.0 as u32 & ((1 << UNIT_BITS) - 1)
    }

    /// Its place's [`bits`](Place::bits).
    #[inline]
    pub fn place(self) -> u64 {
        self.0 & ((1 << PLACE_BITS) - 1)
    }
}
