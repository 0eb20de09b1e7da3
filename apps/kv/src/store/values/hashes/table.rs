//! Bucket directory of a large hash.

use crate::store::memory::Location;

/// Bucket heads per chunk. Growth adds to the last chunk and moves nothing else.
const CHUNK: usize = 1024;

/// Bucket directory of a large hash, by linear hashing (Litwin, "Linear hashing", 1980): it grows and shrinks by one
/// bucket at a time.
///
/// The lowest bits of a field's hash select its bucket. A scan follows the bit-reversed hash: in that order the fields
/// of a bucket are adjacent, and remain so when it is split or merged.
#[derive(Default)]
pub(crate) struct Table {
    heads: Vec<Vec<Option<Location>>>,
    buckets: u32,
    /// Number of fields, and their bytes.
    pub count: usize,
    pub bytes: usize,
    /// Redis would use its hash table encoding.
    pub is_wide: bool,
    /// Number of the last change, unique among all tables of the store.
    pub version: u64,
}

impl Table {
    /// Creates a table with one empty bucket.
    pub fn new() -> Self {
        let mut table = Table::default();
        table.grow();
        table
    }

    pub fn size(&self) -> usize {
        let last = self.heads.last().map_or(0, Vec::capacity);
        (self.heads.len().saturating_sub(1) * CHUNK + last) * size_of::<Option<Location>>()
    }

    /// Returns an upper bound of the bytes added by one more bucket.
    pub fn growth(&self) -> usize {
        /// Initial capacity of a `Vec`.
        const FEWEST: usize = 4;
        match self.heads.last() {
            Some(last) if last.len() < last.capacity() => 0,
            Some(last) if last.len() < CHUNK => last.capacity() * size_of::<Option<Location>>(),
            _ => FEWEST * size_of::<Option<Location>>(),
        }
    }

    pub fn buckets(&self) -> u32 {
        self.buckets
    }

    pub fn header(&self, bucket: u32) -> Option<Location> {
        self.heads[bucket as usize / CHUNK][bucket as usize % CHUNK]
    }

    pub fn set_head(&mut self, bucket: u32, head: Option<Location>) {
        self.heads[bucket as usize / CHUNK][bucket as usize % CHUNK] = head;
    }

    pub fn bucket_of(&self, hash: u32) -> u32 {
        let bits = self.most_bits();
        let bucket = hash & mask(bits);
        if bucket < self.buckets { bucket } else { bucket & mask(bits - 1) }
    }

    /// Returns the bucket that is split to fill the new bucket `bucket`, and takes its fields back in a merge.
    pub fn partner(bucket: u32) -> u32 {
        bucket & !(1 << bucket.ilog2())
    }

    /// Adds an empty bucket at the end.
    pub fn grow(&mut self) {
        if self.heads.last().is_none_or(|last| last.len() == CHUNK) {
            self.heads.push(Vec::new());
        }
        if let Some(last) = self.heads.last_mut() {
            last.push(None);
            self.buckets += 1;
        }
    }

    /// Removes the last bucket. Returns its head.
    pub fn shrink(&mut self) -> Option<Location> {
        let last = self.heads.last_mut()?;
        let head = last.pop()?;
        if last.is_empty() {
            self.heads.pop();
        }
        self.buckets -= 1;
        head
    }

    /// Returns the bucket at `cursor` in the order of bit-reversed hashes, and the cursor after that bucket: 2³² at the
    /// end.
    pub fn at(&self, cursor: u32) -> (u32, u64) {
        let bucket = self.bucket_of(cursor.reverse_bits());
        let bits = self.most_bits();
        // A bucket not yet split is selected by one bit less. The new half of a split bucket ends where both halves do.
        let half = 1u64 << bits.saturating_sub(1);
        let is_split = u64::from(bucket) + half < u64::from(self.buckets);
        let bits = if is_split { bits } else { bits.saturating_sub(1) };
        let width = 1u64 << (u32::BITS - bits);
        (bucket, (u64::from(cursor) / width + 1) * width)
    }

    /// Returns the number of bits that select the last buckets.
    fn most_bits(&self) -> u32 {
        self.buckets.next_power_of_two().trailing_zeros()
    }
}

fn mask(bits: u32) -> u32 {
    ((1u64 << bits) - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_moves_fields_between_bucket_and_partner_only() {
        let mut random = fastrand::Rng::with_seed(1);
        let hashes: Vec<u32> = (0..300).map(|_| random.u32(..)).collect();
        let mut table = Table::new();
        for _ in 0..200 {
            let before: Vec<u32> = hashes.iter().map(|hash| table.bucket_of(*hash)).collect();
            table.grow();
            let new = table.buckets() - 1;
            for (hash, before) in hashes.iter().zip(before) {
                let bucket = table.bucket_of(*hash);
                assert!(bucket == before || bucket == new && before == Table::partner(new));
            }
        }
    }

    #[test]
    fn scan_order_visits_every_bucket_once() {
        let mut table = Table::new();
        for buckets in 1..300 {
            assert_eq!(table.buckets(), buckets);
            let mut seen = Vec::new();
            let mut cursor = 0u64;
            while cursor < 1 << 32 {
                let (bucket, end) = table.at(cursor as u32);
                for hash in [cursor, end - 1, cursor + (end - cursor) / 3] {
                    assert_eq!(table.bucket_of((hash as u32).reverse_bits()), bucket);
                }
                seen.push(bucket);
                cursor = end;
            }
            seen.sort();
            assert_eq!(seen, (0..buckets).collect::<Vec<_>>());
            let most = table.size() + table.growth();
            table.grow();
            assert!(table.size() <= most, "{buckets}");
        }
    }

    #[test]
    fn heads_do_not_move_while_table_grows_and_shrinks() {
        let location = |n| std::num::NonZeroU32::new(n).map(Location);
        let mut table = Table::new();
        for buckets in 1..=2 * CHUNK as u32 + 100 {
            table.set_head(buckets - 1, location(buckets));
            let size = table.size() + table.growth();
            table.grow();
            assert_eq!((table.size(), table.header(buckets)), (size, None));
        }
        assert_eq!(table.shrink(), None);
        while table.buckets() > 1 {
            let last = table.buckets() - 1;
            assert_eq!((table.header(last), table.header(0)), (location(last + 1), location(1)));
            let size = table.size();
            assert_eq!(table.shrink(), location(last + 1));
            assert!(table.size() <= size);
        }
        assert!(table.size() <= CHUNK * size_of::<Option<Location>>());
    }
}
