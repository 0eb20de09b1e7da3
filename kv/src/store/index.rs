//! Which items a hash leads to.

use std::num::NonZeroU32;

/// Where an item lies, for whoever keeps items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location(pub NonZeroU32);

/// Entries that a segment has when there are as many as were expected: growing it takes some ten microseconds.
const SEGMENT: usize = 1024;
/// The fewest homes of a segment that has any.
const FEWEST: usize = 8;

/// A table of locations by hash, in segments that grow by themselves.
///
/// The upper half of a hash chooses the segment, whose number never changes. The lower half, the tag, lies in the entry beside
/// the location, so that a segment grows without a look at any item. In a segment an entry's home is the tag scaled to their
/// number, so that homes are in the order of tags however many there are; it lies there or, by linear probing, behind. The last
/// home's entries go on beyond it: nothing wraps around. A segment grows by a quarter when it is four fifths full: growth
/// costs no request more than a segment's, and an entry takes 10 to 13 bytes.
pub(crate) struct Index {
    segments: Box<[Segment]>,
    len: usize,
    /// Places of all segments, taken or not.
    places: usize,
    /// How often a segment was made smaller, as long as that is known.
    shrunk: u32,
}

#[derive(Default, Clone)]
struct Segment {
    /// The tag in the upper half, the location in the lower; 0 is nothing.
    places: Vec<u64>,
    homes: u32,
    len: u32,
}

impl Index {
    /// A table for about `expected` entries. It may have more.
    pub fn new(expected: usize) -> Self {
        let segments = expected.div_ceil(SEGMENT).max(1);
        Index { segments: vec![Segment::default(); segments].into(), len: 0, places: 0, shrunk: 0 }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// How often a segment was made smaller, as long as that is known: it takes as long as removing hundreds of entries.
    pub fn shrunk(&self) -> u32 {
        self.shrunk
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.places * size_of::<u64>() + self.segments.len() * size_of::<Segment>()
    }

    #[inline(always)]
    fn segment_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.segments.len() as u128) >> 64) as usize
    }

    /// Where the search for `hash` begins, to be fetched ahead.
    #[inline]
    pub fn first(&self, hash: u64) -> Option<&u64> {
        let segment = &self.segments[self.segment_of(hash)];
        segment.places.get(segment.home(hash as u32))
    }

    /// The location under `hash` that `is_it` says yes to.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(Location) -> bool) -> Option<Location> {
        self.find_map(hash, |location| is_it(location).then_some(location))
    }

    /// What `is_it` makes of the first location under `hash` that it makes anything of.
    #[inline(always)]
    pub fn find_map<T>(&self, hash: u64, mut is_it: impl FnMut(Location) -> Option<T>) -> Option<T> {
        let segment = &self.segments[self.segment_of(hash)];
        for entry in segment.places.get(segment.home(hash as u32)..)? {
            if tag_of(*entry) == hash as u32
                && let Some(location) = location_of(*entry)
                && let found @ Some(_) = is_it(location)
            {
                return found;
            }
            if *entry == 0 {
                return None;
            }
        }
        None
    }

    /// Adds `location` under `hash`.
    pub fn insert(&mut self, hash: u64, location: Location) {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let before = segment.places.capacity();
        if segment.is_full() {
            segment.set_homes(segment.more_homes() as u32);
        }
        segment.put(entry(hash as u32, location));
        segment.len += 1;
        self.places = self.places - before + segment.places.capacity();
        self.len += 1;
    }

    /// What lay at `from` lies at `to`. Returns whether `from` was there, under `hash`.
    pub fn relocate(&mut self, hash: u64, from: Location, to: Location) -> bool {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let Some((at, _)) = segment.candidates(hash as u32).find(|(_, location)| *location == from) else {
            return false;
        };
        segment.places[at] = entry(hash as u32, to);
        true
    }

    /// Takes `location` out from under `hash`. Returns whether it was there.
    pub fn remove(&mut self, hash: u64, location: Location) -> bool {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let Some((at, _)) = segment.candidates(hash as u32).find(|(_, it)| *it == location) else { return false };
        segment.take(at);
        segment.len -= 1;
        self.len -= 1;
        if segment.may_shrink() {
            let before = segment.places.capacity();
            let homes = if segment.len == 0 { 0 } else { (segment.len as usize * 3 / 2).max(FEWEST) };
            segment.set_homes(homes as u32);
            self.places = self.places - before + segment.places.capacity();
            self.shrunk = self.shrunk.wrapping_add(1);
        }
        true
    }

    /// Calls `visit` with the locations of some entries, from `cursor` on, which is 0 at first; returns the next cursor, 0 when
    /// all have been visited. What is there from the first call to the last is visited, some of it perhaps twice, whatever is
    /// inserted and removed meanwhile. A call looks at about `most` places.
    pub fn scan(&self, cursor: u64, most: usize, mut visit: impl FnMut(Location)) -> u64 {
        let (mut at, mut tag) = ((cursor >> 32) as usize, cursor as u32);
        let mut left = most.max(1);
        while let Some(segment) = self.segments.get(at) {
            if segment.homes == 0 {
                (at, tag) = (at + 1, 0);
                left = left.saturating_sub(1);
            } else {
                let first = segment.home(tag);
                let end = (first + left).min(segment.homes as usize);
                left = left.saturating_sub(end - first);
                let beyond = segment.first_tag(end);
                for (place, entry) in segment.places.iter().enumerate().skip(first) {
                    if place >= end && *entry == 0 {
                        break;
                    }
                    if let Some(location) = location_of(*entry)
                        && u64::from(tag_of(*entry)) < beyond
                        && tag_of(*entry) >= tag
                    {
                        visit(location);
                    }
                }
                (at, tag) = if end == segment.homes as usize { (at + 1, 0) } else { (at, beyond as u32) };
            }
            if left == 0 {
                break;
            }
        }
        if at < self.segments.len() { (at as u64) << 32 | u64::from(tag) } else { 0 }
    }

    /// The cursor from which a [`scan`](Self::scan) comes to what is under `hash` next.
    #[inline]
    pub fn cursor_of(&self, hash: u64) -> u64 {
        (self.segment_of(hash) as u64) << 32 | u64::from(hash as u32)
    }

    /// The most bytes, nearly, by which it grows when `count` entries are added.
    pub fn growth(&self, count: usize) -> usize {
        // A segment grows by a quarter; some are longer than others.
        let each = self.bytes() / self.segments.len() / 2 + 1024;
        count.min(self.segments.len()) * each + count * 2 * size_of::<u64>()
    }

    /// The most bytes by which it grows when an entry is added under `hash`.
    pub fn growth_under(&self, hash: u64) -> usize {
        let segment = &self.segments[self.segment_of(hash)];
        let (homes, len) = (segment.homes as usize, segment.places.len());
        let places = if segment.is_full() {
            let more = segment.more_homes();
            // With more homes no more entries go on beyond the last than now, but for the new one and a rounding.
            places_for(more).max(more + (len - homes + 2).next_multiple_of(FEWEST))
        } else {
            len + if len == segment.places.capacity() { FEWEST } else { 0 }
        };
        places.saturating_sub(segment.places.capacity()) * size_of::<u64>()
    }

    /// An entry near where `random`, a number of all 64 bits, leads: nearly any.
    pub fn sample(&self, random: u64) -> Option<Location> {
        let start = self.segment_of(random);
        let later = self.segments[start..].iter().chain(&self.segments[..start]);
        let segment = later.into_iter().find(|segment| segment.len > 0)?;
        let (front, back) = segment.places.split_at(segment.home(random as u32));
        back.iter().chain(front).find_map(|entry| location_of(*entry))
    }
}

impl Segment {
    /// The place where an entry with `tag` belongs.
    #[inline(always)]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * u64::from(self.homes)) >> 32) as usize
    }

    /// Whether another entry makes it grow.
    fn is_full(&self) -> bool {
        self.len as usize + 1 > self.homes as usize * 4 / 5
    }

    /// Homes that it has when it has grown.
    fn more_homes(&self) -> usize {
        (self.homes as usize * 5 / 4).max(FEWEST)
    }

    /// The first tag whose home is `home` or behind it; 2³² if there is none.
    fn first_tag(&self, home: usize) -> u64 {
        ((home as u64) << 32).div_ceil(u64::from(self.homes))
    }

    /// Places and locations of the entries with `tag`.
    #[inline(always)]
    fn candidates(&self, tag: u32) -> impl Iterator<Item = (usize, Location)> {
        let first = self.home(tag);
        let places = self.places.get(first..).unwrap_or_default();
        let run = places.iter().take_while(|entry| **entry != 0).enumerate();
        run.filter(move |(_, entry)| tag_of(**entry) == tag)
            .filter_map(move |(at, entry)| Some((first + at, location_of(*entry)?)))
    }

    /// Puts `entry` into the first free place from its home on.
    fn put(&mut self, entry: u64) {
        let home = self.home(tag_of(entry));
        match self.places[home..].iter_mut().find(|place| **place == 0) {
            Some(place) => *place = entry,
            None => {
                if self.places.len() == self.places.capacity() {
                    // By itself it would double.
                    self.places.reserve_exact(FEWEST);
                }
                self.places.push(entry);
            }
        }
    }

    /// Empties the place `hole` and moves what would not be found behind it any more.
    fn take(&mut self, mut hole: usize) {
        for at in hole + 1..self.places.len() {
            let entry = self.places[at];
            if entry == 0 {
                break;
            }
            if self.home(tag_of(entry)) <= hole {
                self.places[hole] = entry;
                hole = at;
            }
        }
        self.places[hole] = 0;
    }

    /// Whether it is time for fewer homes: when it has become much emptier, and what is left is spread over all tags. It is not
    /// when they went in the order of tags, as by a scan: those left would be in each other's way in fewer homes.
    fn may_shrink(&self) -> bool {
        /// Parts of the tags whose entries are counted, as a power of two.
        const PARTS: u32 = 3;
        if self.len == 0 || self.len >= self.homes / 4 || !self.len.is_power_of_two() {
            return self.len == 0;
        }
        let mut counts = [0; 1 << PARTS];
        let tags = self.places.iter().filter(|entry| **entry != 0).map(|entry| tag_of(*entry));
        tags.for_each(|tag| counts[(tag >> (u32::BITS - PARTS)) as usize] += 1);
        counts.iter().all(|count| *count <= self.len >> PARTS << 1 | FEWEST as u32)
    }

    fn set_homes(&mut self, homes: u32) {
        let mut places = Vec::with_capacity(places_for(homes as usize));
        places.resize(homes as usize, 0);
        let old = std::mem::replace(&mut self.places, places);
        self.homes = homes;
        for entry in old.into_iter().filter(|entry| *entry != 0) {
            self.put(entry);
        }
    }
}

/// Places with `homes`: some more for what goes on beyond the last home, so that it seldom has to be moved for that.
fn places_for(homes: usize) -> usize {
    homes + if homes == 0 { 0 } else { 8 + homes / 64 }
}

fn entry(tag: u32, Location(location): Location) -> u64 {
    u64::from(tag) << 32 | u64::from(location.get())
}

#[inline(always)]
fn tag_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

#[inline(always)]
fn location_of(entry: u64) -> Option<Location> {
    NonZeroU32::new(entry as u32).map(Location)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn location(n: u32) -> Location {
        Location(NonZeroU32::new(n).unwrap())
    }

    /// Hashes of which many share a tag, a segment, or nearly so.
    fn hashes() -> impl Strategy<Value = u64> {
        let tag = prop_oneof![Just(0), Just(u32::MAX), 0u32..64, any::<u32>()];
        let upper = prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
        (upper, tag).prop_map(|(upper, tag)| u64::from(upper) << 32 | u64::from(tag))
    }

    proptest! {
        /// Each location is found under its hash for as long as it is there, and nothing else is.
        #[test]
        fn it_holds_what_was_put_in(operations in prop::collection::vec((hashes(), 0..4u8, any::<prop::sample::Index>()), 1..600)) {
            let mut index = Index::new(3 * SEGMENT);
            let mut model = BTreeMap::new();
            for (n, (hash, what, which)) in operations.into_iter().enumerate() {
                let there: Vec<(Location, u64)> = model.iter().map(|(location, hash)| (*location, *hash)).collect();
                match what {
                    0 | 1 => {
                        index.insert(hash, location(n as u32 + 1));
                        model.insert(location(n as u32 + 1), hash);
                    }
                    2 if !there.is_empty() => {
                        let (old, hash) = there[which.index(there.len())];
                        prop_assert!(index.remove(hash, old));
                        prop_assert!(!index.remove(hash, old));
                        model.remove(&old);
                    }
                    3 if !there.is_empty() => {
                        let (old, hash) = there[which.index(there.len())];
                        let new = location(n as u32 + 10_000);
                        prop_assert!(index.relocate(hash, old, new));
                        model.remove(&old);
                        model.insert(new, hash);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for (location, hash) in &model {
                prop_assert_eq!(index.find(*hash, |it| it == *location), Some(*location));
                prop_assert_eq!(index.find(!*hash, |it| it == *location), None);
            }
            let mut seen = BTreeSet::new();
            let mut cursor = 0;
            loop {
                cursor = index.scan(cursor, 7, |location| { seen.insert(location); });
                if cursor == 0 { break }
            }
            prop_assert_eq!(seen, model.keys().copied().collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn a_scan_visits_whatever_stays_while_the_table_grows_and_shrinks() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut index = Index::new(2 * SEGMENT);
        let stay: Vec<u64> = (0..3000).map(|_| random.u64(..)).collect();
        for (n, hash) in stay.iter().enumerate() {
            index.insert(*hash, location(n as u32 + 1));
        }
        let mut seen = BTreeSet::new();
        let mut passing: Vec<(u64, Location)> = Vec::new();
        let mut cursor = 0;
        for turn in 0.. {
            cursor = index.scan(cursor, 10, |location| {
                seen.insert(location);
            });
            if cursor == 0 {
                break;
            }
            for n in 0..40 {
                // It grows to three times the size, and shrinks again.
                if turn < 150 {
                    let (hash, location) = (random.u64(..), location(100_000 + turn * 40 + n));
                    index.insert(hash, location);
                    passing.push((hash, location));
                } else if let Some((hash, location)) = passing.pop() {
                    assert!(index.remove(hash, location));
                }
            }
        }
        for n in 0..3000 {
            assert!(seen.contains(&location(n + 1)), "{n}");
        }
    }

    #[test]
    fn an_entry_takes_ten_to_thirteen_bytes_once_segments_are_as_long_as_they_are_meant_to_be() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut index = Index::new(200_000);
        for n in 0..200_000 {
            index.insert(random.u64(..), location(n + 1));
            if n > 40_000 && n % 10_000 == 0 {
                let each = index.bytes() as f64 / index.len() as f64;
                assert!((10.0..=13.5).contains(&each), "{each} at {n}");
            }
        }
    }

    #[test]
    fn what_is_removed_gives_its_memory_back() {
        let mut index = Index::new(10_000);
        let empty = index.bytes();
        for n in 0..10_000u64 {
            index.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), location(n as u32 + 1));
        }
        for n in 0..10_000u64 {
            assert!(index.remove(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), location(n as u32 + 1)));
        }
        assert_eq!((index.len(), index.bytes()), (0, empty));
    }

    #[test]
    fn what_goes_in_the_order_of_tags_leaves_the_rest_where_it_is_found_at_once() {
        let mut index = Index::new(SEGMENT);
        let mut tags: Vec<u64> = (0..4000u64).map(|n| n << 20 | n).collect();
        for (n, tag) in tags.iter().enumerate() {
            index.insert(*tag, location(n as u32 + 1));
        }
        while let Some(tag) = tags.pop() {
            assert!(index.remove(tag, location(tags.len() as u32 + 1)));
            // The longest run of places that are taken.
            let places = &index.segments[0].places;
            let longest = places.split(|entry| *entry == 0).map(<[u64]>::len).max().unwrap_or(0);
            assert!(longest < 200, "{longest} of {}", tags.len());
        }
        assert_eq!(index.places, 0);
    }

    #[test]
    fn samples_come_from_everywhere() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut index = Index::new(1000);
        assert_eq!(index.sample(5), None);
        for n in 0..1000 {
            index.insert(random.u64(..), location(n + 1));
        }
        let seen: BTreeSet<_> = (0..10_000).map(|_| index.sample(random.u64(..)).unwrap()).collect();
        assert!(seen.len() > 900, "{}", seen.len());
    }
}
