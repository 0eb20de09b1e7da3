//! Hash index from key hashes to item locations.
//!
//! Index and item are prefetched before a command runs: the caller prefetches the index line of a key, later reads the
//! location from it and prefetches the item, and then runs the command. Other keys of the burst are handled between the
//! steps. A hint holds until an item is freed or moved.

pub mod hash;

use crate::store::memory::Location;
use crate::store::memory::item::{Form, Item};
use crate::store::{Key, Store};
use linerate_bypass::prefetch;
use wide::u32x8;

/// Entries of a full-size segment. Growing one takes some ten microseconds.
const SEGMENT: usize = 1024;
/// Slots per line, which fill a cache line.
const LINE: usize = 8;

/// Hash table of locations, divided into segments that grow independently.
///
/// The upper half of a hash selects the segment. The number of segments is fixed. The lower half, the tag, is stored
/// with the location, so a segment grows without reading any item. The home of an entry in its segment is a line: the
/// tag scaled to the number of homes, so homes are ordered by tag. An entry is stored in any slot of its home line, or
/// if that is full, in the next line that is not. Entries of the last homes overflow into extra lines after them;
/// nothing wraps around.
///
/// A segment grows by a quarter when it is two thirds full. No request therefore pays for more than one segment, and an
/// entry takes 12 to 15 bytes. A higher load factor would make more entries overflow.
pub(crate) struct Index {
    segments: Box<[Segment]>,
    len: usize,
    /// Lines of all segments.
    lines: usize,
    /// Number of times a segment shrank, modulo 2³².
    shrunk: u32,
}

#[derive(Default, Clone)]
struct Segment {
    lines: Vec<Line>,
    homes: u32,
    len: u32,
}

/// Group of slots. A slot without a location is free.
#[derive(Default, Clone, Copy)]
#[repr(align(64))]
struct Line {
    tags: [u32; LINE],
    locations: [Option<Location>; LINE],
}

impl Index {
    /// Creates a table sized for about `expected` entries. It may hold more.
    pub fn new(expected: usize) -> Self {
        let segments = expected.div_ceil(SEGMENT).max(1);
        Index { segments: vec![Segment::default(); segments].into(), len: 0, lines: 0, shrunk: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of times a segment shrank, modulo 2³². Shrinking takes as long as hundreds of removals.
    pub fn shrunk(&self) -> u32 {
        self.shrunk
    }

    pub fn bytes(&self) -> usize {
        self.lines * size_of::<Line>() + self.segments.len() * size_of::<Segment>()
    }

    #[inline(always)]
    fn segment_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.segments.len() as u128) >> 64) as usize
    }

    /// Prefetches the line that [`probe`](Self::probe) and [`find`](Self::find) read first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let segment = &self.segments[self.segment_of(hash)];
        if let Some(line) = segment.lines.get(segment.home(hash as u32)) {
            prefetch(line);
        }
    }

    /// Returns a location with the tag of `hash`, without looking at the item. It is nearly always the only candidate.
    #[inline(always)]
    pub fn probe(&self, hash: u64) -> Option<Location> {
        let segment = &self.segments[self.segment_of(hash)];
        let line = segment.lines.get(segment.home(hash as u32))?;
        match line.probe(hash as u32) {
            Some(location) => Some(location),
            None => self.probe_overflow(hash),
        }
    }

    /// [`probe`](Self::probe) if the home line has no match.
    #[cold]
    #[inline(never)]
    fn probe_overflow(&self, hash: u64) -> Option<Location> {
        self.find(hash, |_| true)
    }

    /// Returns the first location under `hash` for which `is_it` returns true.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(Location) -> bool) -> Option<Location> {
        self.find_map(hash, |location| is_it(location).then_some(location))
    }

    /// Returns the first `Some` that `is_it` returns for a location under `hash`.
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

    /// Replaces the location `from` under `hash` with `to`. Returns false if it is not there.
    pub fn relocate(&mut self, hash: u64, from: Location, to: Location) -> bool {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let Some((line, at)) = segment.position_of(hash as u32, from) else { return false };
        segment.lines[line].locations[at] = Some(to);
        true
    }

    /// Removes `location` under `hash`. Returns false if it is not there.
    pub fn remove(&mut self, hash: u64, location: Location) -> bool {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let Some(position) = segment.position_of(hash as u32, location) else { return false };
        segment.take(position);
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

    /// Calls `visit` with the locations of some entries from `cursor` on. The first cursor is 0. Returns the next
    /// cursor, or 0 at the end. An entry that exists from the first call to the last is visited at least once, even if
    /// other entries are inserted and removed in between. A call examines about `most` slots.
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
                for (line, slots) in segment.lines.iter().enumerate().skip(first) {
                    let between = |it: &(u32, Location)| u64::from(it.0) < beyond && it.0 >= tag;
                    slots.entries().filter(between).for_each(|(_, location)| visit(location));
                    if line + 1 >= end && !slots.is_full() {
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

    /// Returns the cursor from which a [`scan`](Self::scan) visits the entries under `hash` next.
    #[inline]
    pub fn cursor_of(&self, hash: u64) -> u64 {
        (self.segment_of(hash) as u64) << 32 | u64::from(hash as u32)
    }

    /// Returns an estimated upper bound of the bytes added by `count` entries.
    pub fn growth(&self, count: usize) -> usize {
        // A segment grows by a quarter, and segments differ in length.
        let each = self.bytes() / self.segments.len() / 2 + 1024;
        count.min(self.segments.len()) * each + count * 2 * size_of::<u64>()
    }

    /// Returns an upper bound of the bytes added by an entry under `hash`.
    pub fn growth_under(&self, hash: u64) -> usize {
        let segment = &self.segments[self.segment_of(hash)];
        let (homes, lines) = (segment.homes as usize, segment.lines.len());
        let lines = if segment.is_full() {
            let more = segment.more_homes();
            // With more homes, no more entries overflow after the last home than now, except for the new one and one
            // line of rounding.
            lines_for(more).max(more + (lines - homes) + 2)
        } else {
            lines + usize::from(lines == segment.lines.capacity())
        };
        lines.saturating_sub(segment.lines.capacity()) * size_of::<Line>()
    }

    /// Returns an entry near the slot that `random` selects, a uniform 64-bit number.
    pub fn sample(&self, random: u64) -> Option<Location> {
        let start = self.segment_of(random);
        let later = self.segments[start..].iter().chain(&self.segments[..start]);
        let segment = later.into_iter().find(|segment| segment.len > 0)?;
        let (front, back) = segment.lines.split_at(segment.home(random as u32));
        let slots = back.iter().chain(front).flat_map(|line| line.locations);
        // The lowest bits hardly affect the line. They select the slot.
        slots.clone().skip(random as usize % LINE).chain(slots).flatten().next()
    }
}

impl Segment {
    #[inline(always)]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * u64::from(self.homes)) >> 32) as usize
    }

    /// Returns true if another entry makes the segment grow.
    fn is_full(&self) -> bool {
        self.len as usize + 1 > self.homes as usize * LINE * 2 / 3
    }

    fn more_homes(&self) -> usize {
        let homes = self.homes as usize;
        homes + (homes / 4).max(1)
    }

    /// Returns the first tag whose home is `home` or after it, or 2³² if there is none.
    fn first_tag(&self, home: usize) -> u64 {
        ((home as u64) << 32).div_ceil(u64::from(self.homes))
    }

    /// Returns the line and slot of `location` under `tag`.
    fn position_of(&self, tag: u32, location: Location) -> Option<(usize, usize)> {
        for (line, slots) in self.lines.iter().enumerate().skip(self.home(tag)) {
            if let found @ Some(_) = slots.locations.iter().position(|it| *it == Some(location)) {
                return found.map(|at| (line, at));
            }
            if !slots.is_full() {
                break;
            }
        }
        None
    }

    /// Stores `location` in the first line from the home of `tag` on that is not full.
    fn put(&mut self, tag: u32, location: Location) {
        let home = self.home(tag);
        if self.lines[home..].iter_mut().any(|line| line.put(tag, location)) {
            return;
        }
        if self.lines.len() == self.lines.capacity() {
            // `push` would double the capacity.
            self.lines.reserve_exact(1);
        }
        let mut line = Line::default();
        line.put(tag, location);
        self.lines.push(line);
    }

    /// Clears a slot, then moves entries forward that a search would miss because the line is no longer full.
    fn take(&mut self, (mut line, mut at): (usize, usize)) {
        let mut was_full = self.lines[line].is_full();
        for after in line + 1..self.lines.len() {
            if !was_full {
                break;
            }
            let slots = self.lines[after];
            was_full = slots.is_full();
            let movable = |at: &usize| slots.locations[*at].is_some() && self.home(slots.tags[*at]) <= line;
            if let Some(found) = (0..LINE).find(movable) {
                self.lines[line].tags[at] = slots.tags[found];
                self.lines[line].locations[at] = slots.locations[found];
                (line, at) = (after, found);
            }
        }
        self.lines[line].locations[at] = None;
    }

    /// Returns true if the segment should have fewer homes: it is much emptier, and the remaining entries are spread
    /// over all tags. After removals in the order of tags, as by a scan, the rest would collide in fewer homes.
    fn may_shrink(&self) -> bool {
        /// log2 of the number of tag ranges whose entries are counted.
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

    /// Returns a location with `tag`. All slots are compared at once, because the matching slot is unpredictable.
    #[inline(always)]
    fn probe(&self, tag: u32) -> Option<Location> {
        let found = u32x8::from(self.tags).simd_eq(u32x8::splat(tag)).to_bitmask();
        *self.locations.get(found.trailing_zeros() as usize)?
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.locations.iter().all(Option::is_some)
    }

    /// Stores an entry. Returns false if the line is full.
    fn put(&mut self, tag: u32, location: Location) -> bool {
        let free = self.locations.iter().position(Option::is_none);
        free.inspect(|at| (self.tags[*at], self.locations[*at]) = (tag, Some(location))).is_some()
    }
}

/// Returns the number of lines for `homes`, including spare lines for overflow, so that the vector rarely has to move.
fn lines_for(homes: usize) -> usize {
    homes + if homes == 0 { 0 } else { 1 + homes / 64 }
}

/// Location where the item of a key may be.
#[derive(Debug, Default, Clone, Copy)]
pub struct LocationHint {
    location: Option<Location>,
    /// Number of freed slots when the hint was made.
    released: u32,
}

impl Store {
    #[inline(always)]
    pub fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Returns the location of the item under `hash`, if any. The index line should be in the cache.
    #[inline(always)]
    pub fn location_hint(&self, hash: u64) -> LocationHint {
        LocationHint { location: self.index.probe(hash), released: self.heap.released() }
    }

    /// Prefetches the item, all of it unless it is long.
    #[inline(always)]
    pub fn prefetch_item(&self, seen: LocationHint) {
        if let Some(location) = seen.location {
            self.heap.prefetch(location);
        }
    }

    /// Returns the short string under `key` at `now` and records a use, if the hint leads to it. Otherwise
    /// [`get`](Self::get) gives the answer.
    #[inline(always)]
    pub fn get_with_hint(&mut self, key: &Key, seen: LocationHint, now: u64) -> Option<&[u8]> {
        let location = self.check_hint(seen)?;
        let space = self.keyspaces.current(key.space);
        let slot = self.heap.at_mut(location);
        let item = Item(&*slot);
        let head = item.header_if(space, key.bytes)?;
        if head.form() != Form::Short || item.expires_at().is_some_and(|at| at <= now) {
            return None;
        }
        self.evict.record_use(Item(&mut *slot), head.access(), now, &mut self.rng);
        Some(head.value_of(slot))
    }

    /// Overwrites the string under `key` if the hint leads to it, the length is the same, and nothing but the value
    /// changes. Otherwise returns false and changes nothing, and [`set`](Self::set) does the work.
    #[inline(always)]
    pub fn set_with_hint(&mut self, key: &Key, seen: LocationHint, value: &[u8], now: u64) -> bool {
        let Some(location) = self.check_hint(seen) else { return false };
        let space = self.keyspaces.current(key.space);
        let mut item = Item(self.heap.at_mut(location));
        let Some(head) = item.header_if(space, key.bytes) else { return false };
        if !head.is_plain() || head.form() != Form::Short || head.value_len() != value.len() {
            return false;
        }
        // The value's place is derived from the whole header, and `set_access` writes a part of it. Reading the header
        // after that write would stall on the store, so the value is written first.
        item.value_mut().copy_from_slice(value);
        item.set_access(self.evict.updated_access(Some(head.access()), now, 0));
        self.note_write(key.hash, location);
        true
    }

    /// Returns the location of the hint if it is still valid.
    #[inline(always)]
    pub(in crate::store) fn check_hint(&self, seen: LocationHint) -> Option<Location> {
        seen.location.filter(|_| seen.released == self.heap.released())
    }
}

#[cfg(test)]
mod tests;
