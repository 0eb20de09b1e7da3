//! The buckets of a large hash.

use crate::store::index::Location;

/// Heads in a piece: what grows, grows by one, and nothing is moved.
const PIECE: usize = 1024;

/// Where the buckets of a large hash are: linear hashing (Litwin, "Linear hashing", 1980), so that it grows and shrinks by one
/// bucket at a time.
///
/// The lowest bits of a field's hash choose its bucket. In the order of the reversed hash a bucket's fields are next to each
/// other, and stay so when it is split or put together with another: that is the order of a scan.
#[derive(Default)]
pub(crate) struct Table {
    heads: Vec<Vec<Option<Location>>>,
    buckets: u32,
    /// Fields, and their bytes.
    pub count: usize,
    pub bytes: usize,
    /// It is nobody's: its buckets go by and by.
    pub doomed: bool,
    /// Redis would keep it as a table, too.
    pub is_wide: bool,
    /// Number of its last change, which no other table of the store has had.
    pub version: u64,
}

impl Table {
    /// Of one bucket, which is empty.
    pub fn new() -> Self {
        let mut table = Table::default();
        table.grow();
        table
    }

    /// Bytes of memory that it takes beside its buckets.
    pub fn size(&self) -> usize {
        let last = self.heads.last().map_or(0, Vec::capacity);
        (self.heads.len().saturating_sub(1) * PIECE + last) * size_of::<Option<Location>>()
    }

    /// Bytes by which it grows at most with a bucket more.
    pub fn growth(&self) -> usize {
        /// What a list has room for when it has any.
        const FEWEST: usize = 4;
        match self.heads.last() {
            Some(last) if last.len() < last.capacity() => 0,
            Some(last) if last.len() < PIECE => last.capacity() * size_of::<Option<Location>>(),
            _ => FEWEST * size_of::<Option<Location>>(),
        }
    }

    pub fn buckets(&self) -> u32 {
        self.buckets
    }

    pub fn head(&self, bucket: u32) -> Option<Location> {
        self.heads[bucket as usize / PIECE][bucket as usize % PIECE]
    }

    pub fn set_head(&mut self, bucket: u32, head: Option<Location>) {
        self.heads[bucket as usize / PIECE][bucket as usize % PIECE] = head;
    }

    /// The bucket of a field with `hash`.
    pub fn bucket_of(&self, hash: u32) -> u32 {
        let bits = self.most_bits();
        let bucket = hash & mask(bits);
        if bucket < self.buckets { bucket } else { bucket & mask(bits - 1) }
    }

    /// The bucket that shares fields with a new last one, or takes those of the last one.
    pub fn partner(bucket: u32) -> u32 {
        bucket & !(1 << bucket.ilog2())
    }

    /// There is a bucket more, the last, which is empty.
    pub fn grow(&mut self) {
        if self.heads.last().is_none_or(|last| last.len() == PIECE) {
            self.heads.push(Vec::new());
        }
        if let Some(last) = self.heads.last_mut() {
            last.push(None);
            self.buckets += 1;
        }
    }

    /// There is a bucket less: the last. Returns its head.
    pub fn shrink(&mut self) -> Option<Location> {
        let last = self.heads.last_mut()?;
        let head = last.pop()?;
        if last.is_empty() {
            self.heads.pop();
        }
        self.buckets -= 1;
        head
    }

    /// The bucket whose fields follow `place` in the order of reversed hashes, and the place behind it; 2³² at the end.
    pub fn at(&self, place: u32) -> (u32, u64) {
        let bucket = self.bucket_of(place.reverse_bits());
        let bits = self.most_bits();
        // A bucket that is not split chooses by one bit less. The second half of one that is ends where the two halves do.
        let half = 1u64 << bits.saturating_sub(1);
        let is_split = u64::from(bucket) + half < u64::from(self.buckets);
        let bits = if is_split { bits } else { bits.saturating_sub(1) };
        let width = 1u64 << (u32::BITS - bits);
        (bucket, (u64::from(place) / width + 1) * width)
    }

    /// Bits by which the last buckets are chosen.
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
    fn fields_are_in_the_bucket_or_in_its_partner_when_there_is_one_more() {
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
    fn every_bucket_comes_once_in_the_order_of_reversed_hashes() {
        let mut table = Table::new();
        for buckets in 1..300 {
            assert_eq!(table.buckets(), buckets);
            let mut seen = Vec::new();
            let mut place = 0u64;
            while place < 1 << 32 {
                let (bucket, end) = table.at(place as u32);
                for hash in [place, end - 1, place + (end - place) / 3] {
                    assert_eq!(table.bucket_of((hash as u32).reverse_bits()), bucket);
                }
                seen.push(bucket);
                place = end;
            }
            seen.sort();
            assert_eq!(seen, (0..buckets).collect::<Vec<_>>());
            let most = table.size() + table.growth();
            table.grow();
            assert!(table.size() <= most, "{buckets}");
        }
    }

    #[test]
    fn heads_stay_where_they_are_while_the_table_grows_and_shrinks() {
        let location = |n| std::num::NonZeroU32::new(n).map(Location);
        let mut table = Table::new();
        for buckets in 1..=2 * PIECE as u32 + 100 {
            table.set_head(buckets - 1, location(buckets));
            let size = table.size() + table.growth();
            table.grow();
            assert_eq!((table.size(), table.head(buckets)), (size, None));
        }
        assert_eq!(table.shrink(), None);
        while table.buckets() > 1 {
            let last = table.buckets() - 1;
            assert_eq!((table.head(last), table.head(0)), (location(last + 1), location(1)));
            let size = table.size();
            assert_eq!(table.shrink(), location(last + 1));
            assert!(table.size() <= size);
        }
        assert!(table.size() <= PIECE * size_of::<Option<Location>>());
    }
}
