//! Client side of an export. For any input the search terminates, and a value found is a part of the record read.

use super::format::{BUCKET, ENTRIES, Entry, FLOOR, HEAD, Layout, UNIT};
use std::ops::Range;

/// Bytes to be READ, relative to the start of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub at: u64,
    pub len: usize,
}

impl Layout {
    /// Returns the extent of the floors, which reveal flushes.
    pub fn floors(&self) -> Extent {
        Extent { at: self.floor_at(0), len: self.shards() as usize * FLOOR }
    }
}

/// Record that may belong to the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    shard: u32,
    pub(super) entry: Entry,
    pub extent: Extent,
}

/// Next step of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Read this record and [evaluate it](Search::in_record).
    Read(Candidate),
    /// The value is this part of the record.
    Found(Range<usize>),
    /// The key is absent, or expired by the reader's clock. Send a request to the server.
    Absent,
    /// A concurrent write was seen: repeat the search from the row, including the floors. There is no limit to
    /// repetitions. A request to the server is possible at any time.
    Retry,
}

/// Search for a key.
///
/// ```
/// # use linerate_kv::export::{Export, Layout, Next, Search};
/// # let layout = Layout::fitting(1 << 20, 2, 7).unwrap();
/// # let export = Export::new(layout, false)?;
/// # let mut writer = export.writer(1);
/// # let read = |extent: linerate_kv::export::Extent| {
/// #     let mut bytes = vec![0; extent.len];
/// #     export.memory().read(extent.at as usize / 8, &mut bytes);
/// #     bytes
/// # };
/// writer.set(b"key", b"value", None);
/// let search = Search::new(&layout, b"key");
/// let row = read(search.row());
/// let floors = read(search.floors());
/// let mut next = search.in_row(&row);
/// while let Next::Read(candidate) = next {
///     let record = read(candidate.extent);
///     next = search.in_record(candidate, &record, (&row, &floors), 0);
///     if let Next::Found(value) = &next {
///         assert_eq!(record[value.clone()], *b"value");
///     }
/// }
/// assert!(matches!(next, Next::Found(_)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    layout: Layout,
    key: &'a [u8],
    hash: u64,
}

impl<'a> Search<'a> {
    pub fn new(layout: &Layout, key: &'a [u8]) -> Self {
        Search { layout: *layout, key, hash: layout.hash(key) }
    }

    /// Returns the extent to read first.
    pub fn row(&self) -> Extent {
        let len = self.layout.row();
        Extent { at: self.layout.row_of(self.hash) * len as u64, len }
    }

    /// Returns the extent of the floors. They are read after the search began and before a record is
    /// [evaluated](Self::in_record), preferably together with the row. Searches that have begun may share them.
    pub fn floors(&self) -> Extent {
        self.layout.floors()
    }

    pub fn in_row(&self, row: &[u8]) -> Next {
        self.search_buckets(row, 0)
    }

    /// Evaluates the `record` of `candidate` at `now` milliseconds since 1970. `row` led to the candidate. `floors`
    /// were read at any time during the search.
    pub fn in_record(&self, candidate: Candidate, record: &[u8], (row, floors): (&[u8], &[u8]), now: u64) -> Next {
        if self.state_of(candidate, record).is_none() {
            return Next::Retry;
        }
        let found = self.in_whole_record(candidate, record, floors, now);
        found.unwrap_or_else(|OtherKey| self.search_buckets(row, candidate.shard + 1))
    }

    /// Evaluates the `record` of a `candidate` that an earlier search for the key has found, without reading a row.
    /// Returns `None` if the record was superseded, overwritten or torn: then search from the row.
    pub fn in_known_record(&self, candidate: Candidate, record: &[u8], floors: &[u8], now: u64) -> Option<Next> {
        if !self.is_current(candidate, record) {
            return None;
        }
        self.in_whole_record(candidate, record, floors, now).ok().filter(|next| *next != Next::Retry)
    }

    /// Returns true if an entry refers to the `record` of `candidate`, so that its place may be kept for
    /// [`in_known_record`](Self::in_known_record).
    pub fn is_current(&self, candidate: Candidate, record: &[u8]) -> bool {
        self.state_of(candidate, record) == Some(RecordState::Current)
    }

    /// Returns the state of a record, or `None` if its hash does not match.
    fn state_of(&self, candidate: Candidate, record: &[u8]) -> Option<RecordState> {
        let (check, rest) = record.split_first_chunk().filter(|_| record.len() == candidate.extent.len)?;
        let (check, expected) = (u64::from_le_bytes(*check), self.layout.check_record(candidate.entry, rest));
        match check {
            _ if check == expected => Some(RecordState::Current),
            _ if check == !expected => Some(RecordState::Superseded),
            _ => None,
        }
    }

    /// Evaluates a record whose hash matches.
    fn in_whole_record(
        &self,
        Candidate { shard, entry, .. }: Candidate,
        record: &[u8],
        floors: &[u8],
        now: u64,
    ) -> Result<Next, OtherKey> {
        let word = |at: usize| record.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (Some(expires_at), Some(lens)) = (word(16), word(24)) else { return Ok(Next::Absent) };
        let (key, value) = (lens as u16 as usize, (lens >> 16) as u16 as usize);
        let value_at = HEAD.saturating_add(key);
        let value = value_at..value_at.saturating_add(value);
        if record.get(HEAD..value_at) != Some(self.key) {
            return Err(OtherKey);
        }
        let Some(floor) = self.floor(shard, floors) else { return Ok(Next::Retry) };
        let position = lens >> 32 << 32 | u64::from(entry.at());
        let is_flushed = (position.wrapping_sub(floor) as i64) < 0;
        let has_expired = expires_at != 0 && expires_at <= now;
        let is_absent = is_flushed || has_expired || value.end > record.len();
        Ok(if is_absent { Next::Absent } else { Next::Found(value) })
    }

    /// Returns the floor of `shard` if its hash matches.
    fn floor(&self, shard: u32, floors: &[u8]) -> Option<u64> {
        let (floors, _) = floors.as_chunks::<FLOOR>();
        let (check, floor) = floors.get(shard as usize)?.split_first_chunk()?;
        let floor = floor.first_chunk()?;
        let is_whole = u64::from_le_bytes(*check) == self.layout.check_floor(shard, floor);
        is_whole.then(|| u64::from_le_bytes(*floor))
    }

    /// Evaluates the buckets of `row` from the shard `first` on.
    fn search_buckets(&self, row: &[u8], first: u32) -> Next {
        let (buckets, _) = row.as_chunks::<BUCKET>();
        let number = self.layout.row_of(self.hash);
        let mut is_whole = row.len() == self.layout.row();
        for (shard, bucket) in (0..self.layout.shards()).zip(buckets) {
            match self.in_bucket(self.layout.bucket(number, shard), bucket) {
                Ok(Some(entry)) if shard >= first => {
                    let at = self.layout.log_at(shard) + u64::from(entry.at()) * UNIT as u64;
                    let extent = Extent { at, len: entry.units() as usize * UNIT };
                    return Next::Read(Candidate { shard, entry, extent });
                }
                Ok(_) => {}
                Err(HashMismatch) => is_whole = false,
            }
        }
        if is_whole { Next::Absent } else { Next::Retry }
    }

    fn in_bucket(&self, number: u64, bucket: &[u8; BUCKET]) -> Result<Option<Entry>, HashMismatch> {
        let (check, entries) = bucket.split_first_chunk().ok_or(HashMismatch)?;
        let entries: &[u8; ENTRIES * 8] = entries.first_chunk().ok_or(HashMismatch)?;
        if u64::from_le_bytes(*check) != self.layout.check_bucket(number, entries) {
            return Err(HashMismatch);
        }
        let (entries, _) = entries.as_chunks();
        let found = entries.iter().map(|bytes| Entry(u64::from_le_bytes(*bytes))).find(|entry| entry.is_of(self.hash));
        // An extent outside the log is never READ, regardless of the bytes that the server writes.
        let is_there = |entry: &Entry| entry.at() + entry.units() <= self.layout.log();
        if found.as_ref().is_none_or(is_there) { Ok(found) } else { Err(HashMismatch) }
    }
}

/// Hash mismatch.
struct HashMismatch;

/// The record is of another key with the same tag.
struct OtherKey;

/// State of a record whose hash matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordState {
    /// An entry refers to it.
    Current,
    /// The entry was removed or replaced.
    Superseded,
}
