//! Which items a hash leads to.

pub mod hasher;
pub mod lookahead;
pub mod siphash;

use linerate_bypass::prefetch;
use std::num::NonZeroU32;
use wide::u32x8;

/// Where an item lies, for whoever keeps items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location(pub NonZeroU32);

/// Entries that a segment has when there are as many as were expected: growing it takes some ten microseconds.
const SEGMENT: usize = 1024;
/// Places of a line: as many as a processor's cache line has room for.
const LINE: usize = 8;

/// A table of locations by hash, in segments that grow by themselves.
///
/// The upper half of a hash chooses the segment, whose number never changes. The lower half, the tag, lies in the entry beside
/// the location, so that a segment grows without a look at any item. In a segment an entry's home is a line: the tag scaled to their
/// number, so that homes are in the order of tags however many there are. An entry lies there, in any place, or if the line is
/// full in the first behind that is not. The last home's entries go on beyond it: nothing wraps around. A segment grows by a
/// quarter when it is two thirds full: growth costs no request more than a segment's, and an entry takes 12 to 15 bytes. The
/// fuller they are, the more entries go on beyond their home.
pub(crate) struct Index {
    segments: Box<[Segment]>,
    len: usize,
    /// Lines of all segments.
    lines: usize,
    /// How often a segment was made smaller, as long as that is known.
    shrunk: u32,
}

#[derive(Default, Clone)]
struct Segment {
    lines: Vec<Line>,
    homes: u32,
    len: u32,
}

/// Places, those without a location free.
#[derive(Default, Clone, Copy)]
#[repr(align(64))]
struct Line {
    tags: [u32; LINE],
    locations: [Option<Location>; LINE],
}

impl Index {
    /// A table for about `expected` entries. It may have more.
    pub fn new(expected: usize) -> Self {
        let segments = expected.div_ceil(SEGMENT).max(1);
        Index { segments: vec![Segment::default(); segments].into(), len: 0, lines: 0, shrunk: 0 }
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
        self.lines * size_of::<Line>() + self.segments.len() * size_of::<Segment>()
    }

    #[inline(always)]
    fn segment_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.segments.len() as u128) >> 64) as usize
    }

    /// Fetches ahead what [`likely`](Self::likely) and [`find`](Self::find) read first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let segment = &self.segments[self.segment_of(hash)];
        if let Some(line) = segment.lines.get(segment.home(hash as u32)) {
            prefetch(line);
        }
    }

    /// A location under `hash`, if there is one: nearly always the only one.
    #[inline(always)]
    pub fn likely(&self, hash: u64) -> Option<Location> {
        let segment = &self.segments[self.segment_of(hash)];
        let line = segment.lines.get(segment.home(hash as u32))?;
        match line.likely(hash as u32) {
            Some(location) => Some(location),
            None => self.beyond_home(hash),
        }
    }

    /// As [`likely`](Self::likely), where the home line is full, or there is none.
    #[cold]
    #[inline(never)]
    fn beyond_home(&self, hash: u64) -> Option<Location> {
        self.find(hash, |_| true)
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
        for line in segment.lines.get(segment.home(hash as u32)..)? {
            for (tag, location) in line.entries() {
                if tag == hash as u32
                    && let found @ Some(_) = is_it(location)
                {
                    return found;
                }
            }
            if !line.is_full() {
                return None;
            }
        }
        None
    }

    /// Adds `location` under `hash`.
    pub fn insert(&mut self, hash: u64, location: Location) {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let before = segment.lines.capacity();
        if segment.is_full() {
            segment.set_homes(segment.more_homes());
        }
        segment.put(hash as u32, location);
        segment.len += 1;
        self.lines = self.lines - before + segment.lines.capacity();
        self.len += 1;
    }

    /// What lay at `from` lies at `to`. Returns whether `from` was there, under `hash`.
    pub fn relocate(&mut self, hash: u64, from: Location, to: Location) -> bool {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let Some((line, at)) = segment.place_of(hash as u32, from) else { return false };
        segment.lines[line].locations[at] = Some(to);
        true
    }

    /// Takes `location` out from under `hash`. Returns whether it was there.
    pub fn remove(&mut self, hash: u64, location: Location) -> bool {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let Some(place) = segment.place_of(hash as u32, location) else { return false };
        segment.take(place);
        segment.len -= 1;
        self.len -= 1;
        if segment.may_shrink() {
            let before = segment.lines.capacity();
            segment.set_homes((segment.len as usize * 3 / 2).div_ceil(LINE));
            self.lines = self.lines - before + segment.lines.capacity();
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
                let end = (first + left.div_ceil(LINE)).min(segment.homes as usize);
                left = left.saturating_sub((end - first) * LINE);
                let beyond = segment.first_tag(end);
                for (line, places) in segment.lines.iter().enumerate().skip(first) {
                    let between = |it: &(u32, Location)| u64::from(it.0) < beyond && it.0 >= tag;
                    places.entries().filter(between).for_each(|(_, location)| visit(location));
                    if line + 1 >= end && !places.is_full() {
                        break;
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
        let (homes, lines) = (segment.homes as usize, segment.lines.len());
        let lines = if segment.is_full() {
            let more = segment.more_homes();
            // With more homes no more entries go on beyond the last than now, but for the new one and a line's by rounding.
            lines_for(more).max(more + (lines - homes) + 2)
        } else {
            lines + usize::from(lines == segment.lines.capacity())
        };
        lines.saturating_sub(segment.lines.capacity()) * size_of::<Line>()
    }

    /// An entry near where `random`, a number of all 64 bits, leads: nearly any.
    pub fn sample(&self, random: u64) -> Option<Location> {
        let start = self.segment_of(random);
        let later = self.segments[start..].iter().chain(&self.segments[..start]);
        let segment = later.into_iter().find(|segment| segment.len > 0)?;
        let (front, back) = segment.lines.split_at(segment.home(random as u32));
        let places = back.iter().chain(front).flat_map(|line| line.locations);
        // The lowest bits, which say next to nothing of the line, choose the place.
        places.clone().skip(random as usize % LINE).chain(places).flatten().next()
    }
}

impl Segment {
    /// The line where an entry with `tag` belongs.
    #[inline(always)]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * u64::from(self.homes)) >> 32) as usize
    }

    /// Whether another entry makes it grow.
    fn is_full(&self) -> bool {
        self.len as usize + 1 > self.homes as usize * LINE * 2 / 3
    }

    /// Homes that it has when it has grown.
    fn more_homes(&self) -> usize {
        let homes = self.homes as usize;
        homes + (homes / 4).max(1)
    }

    /// The first tag whose home is `home` or behind it; 2³² if there is none.
    fn first_tag(&self, home: usize) -> u64 {
        ((home as u64) << 32).div_ceil(u64::from(self.homes))
    }

    /// The line and the place in it where `location` is under `tag`.
    fn place_of(&self, tag: u32, location: Location) -> Option<(usize, usize)> {
        for (line, places) in self.lines.iter().enumerate().skip(self.home(tag)) {
            if let found @ Some(_) = places.locations.iter().position(|it| *it == Some(location)) {
                return found.map(|at| (line, at));
            }
            if !places.is_full() {
                break;
            }
        }
        None
    }

    /// Puts `location` into the first line from the home of `tag` on that is not full.
    fn put(&mut self, tag: u32, location: Location) {
        let home = self.home(tag);
        if self.lines[home..].iter_mut().any(|line| line.put(tag, location)) {
            return;
        }
        if self.lines.len() == self.lines.capacity() {
            // By itself it would double.
            self.lines.reserve_exact(1);
        }
        let mut line = Line::default();
        line.put(tag, location);
        self.lines.push(line);
    }

    /// Empties a place, and moves what would not be found any more because its line is not full now.
    fn take(&mut self, (mut line, mut at): (usize, usize)) {
        let mut was_full = self.lines[line].is_full();
        for behind in line + 1..self.lines.len() {
            if !was_full {
                break;
            }
            let places = self.lines[behind];
            was_full = places.is_full();
            let movable = |at: &usize| places.locations[*at].is_some() && self.home(places.tags[*at]) <= line;
            if let Some(found) = (0..LINE).find(movable) {
                self.lines[line].tags[at] = places.tags[found];
                self.lines[line].locations[at] = places.locations[found];
                (line, at) = (behind, found);
            }
        }
        self.lines[line].locations[at] = None;
    }

    /// Whether it is time for fewer homes: when it has become much emptier, and what is left is spread over all tags. It is not
    /// when they went in the order of tags, as by a scan: those left would be in each other's way in fewer homes.
    fn may_shrink(&self) -> bool {
        /// Parts of the tags whose entries are counted, as a power of two.
        const PARTS: u32 = 3;
        if self.len == 0 || self.homes == 1 || self.len >= self.homes * LINE as u32 / 4 || !self.len.is_power_of_two() {
            return self.len == 0;
        }
        let mut counts = [0; 1 << PARTS];
        let entries = self.lines.iter().flat_map(Line::entries);
        entries.for_each(|(tag, _)| counts[(tag >> (u32::BITS - PARTS)) as usize] += 1);
        counts.iter().all(|count| *count <= self.len >> PARTS << 1 | LINE as u32)
    }

    fn set_homes(&mut self, homes: usize) {
        let mut lines = Vec::with_capacity(lines_for(homes));
        lines.resize(homes, Line::default());
        let old = std::mem::replace(&mut self.lines, lines);
        self.homes = homes as u32;
        old.iter().flat_map(Line::entries).for_each(|(tag, location)| self.put(tag, location));
    }
}

impl Line {
    fn entries(&self) -> impl Iterator<Item = (u32, Location)> {
        self.tags.into_iter().zip(self.locations).filter_map(|(tag, location)| Some((tag, location?)))
    }

    /// A location under `tag`, if there is one. All places are looked at together: which has it cannot be predicted.
    #[inline(always)]
    fn likely(&self, tag: u32) -> Option<Location> {
        let found = u32x8::from(self.tags).simd_eq(u32x8::splat(tag)).to_bitmask();
        *self.locations.get(found.trailing_zeros() as usize)?
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.locations.iter().all(Option::is_some)
    }

    /// Returns whether there was room.
    fn put(&mut self, tag: u32, location: Location) -> bool {
        let free = self.locations.iter().position(Option::is_none);
        free.inspect(|at| (self.tags[*at], self.locations[*at]) = (tag, Some(location))).is_some()
    }
}

/// Lines with `homes`: some more for what goes on beyond the last home, so that it seldom has to be moved for that.
fn lines_for(homes: usize) -> usize {
    homes + if homes == 0 { 0 } else { 1 + homes / 64 }
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
                        let most = index.bytes() + index.growth_under(hash);
                        index.insert(hash, location(n as u32 + 1));
                        prop_assert!(index.bytes() <= most);
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
                // The tag is all that is compared.
                let likely = index.likely(*hash);
                prop_assert_eq!(likely.map(|it| model[&it] as u32), Some(*hash as u32));
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
    fn an_entry_takes_twelve_to_fifteen_bytes_once_segments_are_as_long_as_they_are_meant_to_be() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut index = Index::new(200_000);
        for n in 0..200_000 {
            index.insert(random.u64(..), location(n + 1));
            if n > 40_000 && n % 10_000 == 0 {
                let each = index.bytes() as f64 / index.len() as f64;
                assert!((12.0..=15.5).contains(&each), "{each} at {n}");
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
            let lines = &index.segments[0].lines;
            let longest = lines.split(|line| !line.is_full()).map(<[Line]>::len).max().unwrap_or(0) * LINE;
            assert!(longest < 200, "{longest} of {}", tags.len());
        }
        assert_eq!(index.lines, 0);
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

    #[test]
    fn sample_finds_the_only_entry_among_many_segments() {
        let mut random = fastrand::Rng::with_seed(4);
        let mut index = Index::new(8 * SEGMENT);
        index.insert(5 << 61 | 9, location(1));
        for _ in 0..1000 {
            assert_eq!(index.sample(random.u64(..)), Some(location(1)));
        }
    }

    #[test]
    fn segment_shrinks_to_two_thirds_full_when_most_entries_have_gone() {
        let mut random = fastrand::Rng::with_seed(6);
        let mut index = Index::new(SEGMENT);
        let mut hashes: Vec<u64> = (0..4096).map(|_| random.u64(..)).collect();
        for (n, hash) in hashes.iter().enumerate() {
            index.insert(*hash, location(n as u32 + 1));
        }
        let full = index.lines;
        while hashes.len() > 1024 {
            assert_eq!((index.lines, index.shrunk()), (full, 0), "{} entries", hashes.len());
            let hash = hashes.pop().unwrap();
            assert!(index.remove(hash, location(hashes.len() as u32 + 1)));
        }
        // 1536 places of 8 to a line, and the lines behind the last home.
        assert_eq!((index.lines, index.shrunk()), (lines_for(192), 1));
        for (n, hash) in hashes.iter().enumerate() {
            assert_eq!(index.find(*hash, |_| true), Some(location(n as u32 + 1)));
        }
    }

    #[test]
    fn scan_begins_with_the_tag_of_its_cursor() {
        let mut index = Index::new(2 * SEGMENT);
        let hashes: Vec<u64> = (0..100u64).map(|n| (n % 2) << 63 | n << 25).collect();
        for (n, hash) in hashes.iter().enumerate() {
            index.insert(*hash, location(n as u32 + 1));
        }
        for (n, hash) in hashes.iter().enumerate() {
            let (segment, tag) = (n as u64 % 2, u64::from(*hash as u32));
            assert_eq!(index.cursor_of(*hash), segment << 32 | tag);
            let mut first = BTreeSet::new();
            index.scan(index.cursor_of(*hash), 1, |location| {
                first.insert(location);
            });
            assert!(first.contains(&location(n as u32 + 1)), "{n}");
            assert!(first.iter().all(|it| it.0.get() > n as u32), "{n}: {first:?}");
        }
    }

    #[test]
    fn growth_bounds_what_many_entries_take() {
        let mut random = fastrand::Rng::with_seed(2);
        for segments in [1, 8] {
            let mut index = Index::new(segments * SEGMENT);
            let mut last = 0;
            for count in [1, 10, 100, 1000, 5000, 20_000] {
                let most = index.bytes() + index.growth(count);
                for _ in 0..count {
                    last += 1;
                    index.insert(random.u64(..), location(last));
                }
                assert!(index.bytes() <= most, "{count} entries in {segments} segments");
            }
            assert!(index.growth(1) < index.bytes() / segments, "a segment does not double");
        }
    }
}
