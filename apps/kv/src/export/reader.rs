//! What a peer makes of the bytes that it has read. Whatever they are, it ends; what is found is a part of them.

use super::format::{BUCKET, ENTRIES, Entry, FLOOR, HEAD, Layout, UNIT};
use std::ops::Range;

/// What is to be READ, in bytes from the export's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// From where on.
    pub at: u64,
    /// How many.
    pub len: usize,
}

impl Layout {
    /// Where the floors are, which tell what has been flushed.
    pub fn floors(&self) -> Extent {
        Extent { at: self.floor_at(0), len: self.shards() as usize * FLOOR }
    }
}

/// A record that may be the key's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    shard: u32,
    pub(super) entry: Entry,
    /// Where it is.
    pub extent: Extent,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// This is to be read, and [looked at](Search::in_record).
    Read(Candidate),
    /// The value is this part of the record.
    Found(Range<usize>),
    /// It is not there, or has expired by the reader's clock: the server is to be asked.
    Absent,
    /// What was read was being changed: all is to be read again, the floors as well, from the row on. However often that happens, there may be no
    /// end to it: the server may be asked any time.
    Retry,
}

/// A look for a key.
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
    /// For `key`, in an export laid out like that.
    pub fn new(layout: &Layout, key: &'a [u8]) -> Self {
        Search { layout: *layout, key, hash: layout.hash(key) }
    }

    /// What is to be read first.
    pub fn row(&self) -> Extent {
        let len = self.layout.row();
        Extent { at: self.layout.row_of(self.hash) * len as u64, len }
    }

    /// What is to be read as well, after the search has begun and before a record is [looked at](Self::in_record): at the same time
    /// as the row is best. Searches that have begun may share it.
    pub fn floors(&self) -> Extent {
        self.layout.floors()
    }

    /// What to do when `row` has been read there.
    pub fn in_row(&self, row: &[u8]) -> Next {
        self.from(row, 0)
    }

    /// What to do when `record` has been read, at `now` milliseconds since 1970; and before it `row`, which led to `candidate`, and any
    /// time `floors`.
    pub fn in_record(&self, candidate: Candidate, record: &[u8], (row, floors): (&[u8], &[u8]), now: u64) -> Next {
        let Candidate { shard, entry, extent } = candidate;
        let Some((check, rest)) = record.split_first_chunk().filter(|_| record.len() == extent.len) else {
            return Next::Retry;
        };
        if u64::from_le_bytes(*check) != self.layout.check_record(entry, rest) {
            return Next::Retry;
        }
        let word = |at: usize| record.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (Some(expires_at), Some(lens)) = (word(16), word(24)) else { return Next::Absent };
        let (key, value) = (lens as u16 as usize, (lens >> 16) as u16 as usize);
        let value_at = HEAD.saturating_add(key);
        let value = value_at..value_at.saturating_add(value);
        if record.get(HEAD..value_at) != Some(self.key) {
            return self.from(row, shard + 1);
        }
        let Some(floor) = self.floor(shard, floors) else { return Next::Retry };
        let place = lens >> 32 << 32 | u64::from(entry.at());
        let is_flushed = (place.wrapping_sub(floor) as i64) < 0;
        let has_expired = expires_at != 0 && expires_at <= now;
        if is_flushed || has_expired || value.end > record.len() { Next::Absent } else { Next::Found(value) }
    }

    /// The floor of `shard`, if it is whole.
    fn floor(&self, shard: u32, floors: &[u8]) -> Option<u64> {
        let (floors, _) = floors.as_chunks::<FLOOR>();
        let (check, floor) = floors.get(shard as usize)?.split_first_chunk()?;
        let floor = floor.first_chunk()?;
        let is_whole = u64::from_le_bytes(*check) == self.layout.check_floor(shard, floor);
        is_whole.then(|| u64::from_le_bytes(*floor))
    }

    /// What the buckets of `row` say, those of the shards before `first` left out.
    fn from(&self, row: &[u8], first: u32) -> Next {
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
                Err(Torn) => is_whole = false,
            }
        }
        if is_whole { Next::Absent } else { Next::Retry }
    }

    fn in_bucket(&self, number: u64, bucket: &[u8; BUCKET]) -> Result<Option<Entry>, Torn> {
        let (check, entries) = bucket.split_first_chunk().ok_or(Torn)?;
        let entries: &[u8; ENTRIES * 8] = entries.first_chunk().ok_or(Torn)?;
        if u64::from_le_bytes(*check) != self.layout.check_bucket(number, entries) {
            return Err(Torn);
        }
        let (entries, _) = entries.as_chunks();
        let found = entries.iter().map(|bytes| Entry(u64::from_le_bytes(*bytes))).find(|entry| entry.is_of(self.hash));
        // No READ goes to where no log is, whatever the server says.
        let is_there = |entry: &Entry| entry.at() + entry.units() <= self.layout.log();
        if found.as_ref().is_none_or(is_there) { Ok(found) } else { Err(Torn) }
    }
}

/// What is not whole.
struct Torn;
