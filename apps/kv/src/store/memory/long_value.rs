//! Long values, which are stored in the arena.

use crate::sink::Sink;
use crate::store::reclaim::memory_pressure::SLACK;
use crate::store::{Error, Store};
use linerate_bypass::arena::{BuddyArena, BuddyMut, Evacuation};
use linerate_service::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Appending merges pieces up to this many bytes.
const MAX_MERGED: usize = 256 << 10;

/// Divisor for the part of a value's memory that may be unused.
const WASTE_DIVISOR: usize = 8;
/// Limit of reclaim steps per value. The reserve supplies the rest.
const MAX_RECLAIM_STEPS: usize = 32;
/// Smallest number of bytes by which a partly received value is extended.
const EXTEND_STEP: usize = 64 << 10;
/// Approximate limit of pieces per value, however fragmented memory is.
const MAX_PIECES: usize = 64;

/// Value in the arena, in one or more pieces. Clones share the bytes, which never change, even if the key is
/// overwritten or removed.
#[derive(Clone)]
pub struct Long {
    /// Pieces, none of them empty.
    pieces: Arc<[Bytes]>,
    len: usize,
    /// True if the memory belongs to another store, which no longer counts it: the store that holds the value counts
    /// it.
    is_lent: bool,
}

impl Long {
    /// Returns a value without bytes.
    pub fn empty() -> Self {
        Long { pieces: Arc::new([]), len: 0, is_lent: false }
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a long value is not empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the memory belongs to another store.
    pub(in crate::store) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Returns the pieces in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Returns the pieces of a part of the value.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = Bytes> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        let mut start = 0;
        self.pieces.iter().filter_map(move |piece| {
            let here = start..start + piece.len();
            start = here.end;
            let part = range.start.max(here.start)..range.end.min(here.end);
            (!part.is_empty()).then(|| piece.slice(part.start - here.start..part.end - here.start))
        })
    }

    /// Returns the bytes that the store holding the value counts besides its own arena memory: the list of pieces, and
    /// the bytes of a lent value.
    pub(in crate::store) fn overhead(&self) -> usize {
        2 * size_of::<usize>() + size_of_val(&*self.pieces) + if self.is_lent { self.len } else { 0 }
    }

    /// Moves the pieces in `clearing` to other memory, as long as `memory` stays within `most` bytes.
    pub(in crate::store) fn evacuate(
        &mut self,
        clearing: &Evacuation,
        label: u32,
        memory: &mut BuddyArena,
        most: usize,
    ) {
        let mut pieces = self.pieces.to_vec();
        for piece in pieces.iter_mut().filter(|piece| clearing.contains(piece)) {
            let room = most.saturating_sub(memory.used());
            let Some(mut moved) = memory.alloc_within(piece.len(), room) else { continue };
            moved.copy_from_slice(piece);
            *piece = moved.freeze();
            memory.set_label(piece, label);
        }
        self.pieces = pieces.into();
    }

    /// Returns the bytes of all pieces to be replaced when the bytes from `at` to `end` change. If the value grows,
    /// this includes preceding pieces that are no longer than the bytes behind them, so that repeated appends leave few
    /// pieces.
    pub(in crate::store) fn rewrite_range(&self, at: usize, end: usize) -> Range<usize> {
        let starts = self.pieces.iter().scan(0, |next, piece| {
            let start = *next;
            *next += piece.len();
            Some(start..*next)
        });
        let pieces: Vec<Range<usize>> = starts.collect();
        let mut start = pieces.iter().map(|piece| piece.start).filter(|start| *start <= at).max().unwrap_or(0);
        if at >= self.len {
            start = self.len;
        }
        if end <= self.len {
            let last = pieces.iter().map(|piece| piece.end).find(|last| *last >= end);
            return start..last.unwrap_or(self.len);
        }
        let before = pieces.partition_point(|piece| piece.start < start);
        for piece in pieces[..before].iter().rev() {
            if piece.len() > end - start || end - piece.start > MAX_MERGED {
                break;
            }
            start = piece.start;
        }
        start..self.len
    }

    /// Returns the value with `new` in place of `range`, which covers whole pieces.
    pub(in crate::store) fn with_replaced(&self, range: Range<usize>, new: &Long) -> Long {
        let (before, behind) = (self.range(0..range.start), self.range(range.end..self.len));
        Long {
            pieces: before.chain(new.pieces.iter().cloned()).chain(behind).collect(),
            len: self.len - range.len() + new.len,
            is_lent: false,
        }
    }
}

impl fmt::Debug for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Long({} bytes in {} pieces)", self.len, self.pieces.len())
    }
}

/// Value of a string or of a hash field.
#[derive(Debug, Clone, Copy)]
pub enum Str<'a> {
    /// Value shorter than [`Config::long`](crate::store::Config::long).
    Short(&'a [u8]),
    /// Value in the arena.
    Long(&'a Long),
}

impl<'a> Str<'a> {
    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Str::Short(bytes) => bytes.len(),
            Str::Long(long) => long.len,
        }
    }

    /// Returns true if the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes if the value is short.
    #[inline]
    pub fn short(&self) -> Option<&'a [u8]> {
        match self {
            Str::Short(bytes) => Some(bytes),
            Str::Long(_) => None,
        }
    }

    /// Appends a copy to `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        match self {
            Str::Short(bytes) => out.extend_from_slice(bytes),
            Str::Long(long) => long.pieces.iter().for_each(|piece| out.extend_from_slice(piece)),
        }
    }

    /// Returns a copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len());
        self.copy_to(&mut copy);
        copy
    }

    /// Writes the value to `sink`, without a copy if it is long.
    #[inline]
    pub fn write_to(&self, sink: &mut impl Sink) {
        match self {
            Str::Short(bytes) => sink.put(bytes),
            Str::Long(long) => long.pieces.iter().for_each(|piece| sink.attach(piece.clone())),
        }
    }

    /// Writes a part of the value to `sink`, without a copy if it is long.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn write_range_to(&self, range: Range<usize>, sink: &mut impl Sink) {
        match self {
            Str::Short(bytes) => sink.put(&bytes[range]),
            Str::Long(long) => long.range(range).for_each(|piece| sink.attach(piece)),
        }
    }
}

impl PartialEq<[u8]> for Str<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        match self {
            Str::Short(bytes) => *bytes == other,
            Str::Long(long) => {
                let mut rest = other;
                let is_equal = long.pieces.iter().all(|piece| {
                    rest.split_at_checked(piece.len()).is_some_and(|(front, back)| {
                        rest = back;
                        front == &piece[..]
                    })
                });
                is_equal && rest.is_empty()
            }
        }
    }
}

/// Value to be stored.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// Bytes to be copied, into the arena if there are many.
    Short(&'a [u8]),
    /// Value that is in the arena already.
    Long(Long),
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Value::Short(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Value<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Value::Short(bytes)
    }
}

impl From<Long> for Value<'_> {
    fn from(long: Long) -> Self {
        Value::Long(long)
    }
}

/// [`Long`] that is being written.
#[derive(Debug)]
pub struct LongWriter {
    pieces: Vec<BuddyMut>,
    /// Piece being written, and the position in it.
    piece: usize,
    at: usize,
    len: usize,
    left: usize,
    /// Missing bytes for which memory is allocated.
    room: usize,
}

impl LongWriter {
    /// Creates a writer for a value of `len` bytes without memory. The caller [extends](Store::extend_long) it while
    /// the value arrives.
    pub fn new(len: usize) -> Self {
        LongWriter { pieces: Vec::new(), piece: 0, at: 0, len, left: len, room: 0 }
    }

    /// Copies bytes from the start of `bytes` into the allocated room. Returns their number.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while let Some(piece) = self.pieces.get_mut(self.piece)
            && !rest.is_empty()
        {
            let n = rest.len().min(piece.len() - self.at);
            piece[self.at..self.at + n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            self.at += n;
            if self.at == piece.len() {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
        }
        let filled = bytes.len() - rest.len();
        self.left -= filled;
        self.room -= filled;
        filled
    }

    /// Appends `n` zeros.
    pub(in crate::store) fn fill_zeros(&mut self, mut n: usize) {
        const ZEROS: [u8; 1024] = [0; 1024];
        while n > 0 {
            let filled = self.fill(&ZEROS[..n.min(ZEROS.len())]);
            assert!(filled > 0, "no room for zeros");
            n -= filled;
        }
    }

    /// Appends a part of `long`.
    pub(in crate::store) fn fill_from(&mut self, long: &Long, range: Range<usize>) {
        long.range(range).for_each(|piece| _ = self.fill(&piece));
    }

    /// Returns the number of missing bytes.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns the number of missing bytes for which memory is allocated.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Returns the complete value.
    ///
    /// # Panics
    /// Panics if bytes are missing.
    pub fn finish(self) -> Long {
        assert_eq!(self.left, 0, "bytes are missing from a value");
        Long { pieces: self.pieces.into_iter().map(BuddyMut::freeze).collect(), len: self.len, is_lent: false }
    }
}

impl Store {
    /// Allocates memory for a value of `len` bytes. The call evicts as many items as necessary, possibly very many.
    /// Values that arrive over time should be [extended](Self::extend_long) instead.
    pub fn long(&mut self, len: usize, now: u64) -> Result<LongWriter, Error> {
        if len > self.memory {
            return Err(Error::Full);
        }
        let mut writer = LongWriter::new(len);
        writer.pieces = self.allocate_long(len, len, now)?;
        writer.room = len;
        Ok(writer)
    }

    /// Allocates memory for the next 64 KB or 64th of a value, evicting items if necessary.
    pub fn extend_long(&mut self, writer: &mut LongWriter, now: u64) -> Result<(), Error> {
        let step = writer.left.min(EXTEND_STEP.max((writer.len / MAX_PIECES).next_power_of_two()));
        if writer.room == 0 {
            writer.pieces.extend(self.allocate_long(step, writer.len, now)?);
            writer.room = step;
        }
        Ok(())
    }

    /// Allocates pieces for `len` bytes of a value of `whole` bytes, evicting items if necessary.
    fn allocate_long(&mut self, len: usize, whole: usize, now: u64) -> Result<Vec<BuddyMut>, Error> {
        /// Reclaim steps between two attempts.
        const WORK: usize = 8;
        // One step for each item of usual size that the value displaces, up to the limit.
        self.refill_reserve((len / 256).min(MAX_RECLAIM_STEPS), now);
        loop {
            if let Some(pieces) = self.take_pieces(len, whole) {
                return Ok(pieces);
            }
            // Free the pieces of the failed attempt. They do not count as progress.
            while self.heap.pieces.collect(MAX_PIECES) {}
            if (0..WORK).take_while(|_| self.reclaim_step(now)).count() == 0 {
                return Err(Error::Full);
            }
        }
    }

    /// Allocates pieces for `len` bytes of a value of `whole` bytes: few pieces with little unused memory, or smaller
    /// ones if the arena has no large ones.
    fn take_pieces(&mut self, len: usize, whole: usize) -> Option<Vec<BuddyMut>> {
        if self.used() + len + SLACK > self.memory {
            return None;
        }
        self.heap.pieces.set_limit(self.chunks());
        let smallest = (whole / MAX_PIECES).next_power_of_two().clamp(BuddyArena::SMALLEST, BuddyArena::LARGEST);
        let mut most = BuddyArena::LARGEST;
        let mut pieces = Vec::new();
        let mut left = len;
        while left > 0 {
            let whole = left.next_power_of_two().max(BuddyArena::SMALLEST);
            let size = if whole - left <= len / WASTE_DIVISOR { whole } else { whole / 2 }.min(most);
            let room = self.memory.saturating_sub(self.used() + SLACK);
            match self.heap.pieces.alloc_within(size.min(left), room) {
                Some(piece) => pieces.push(piece),
                None if size / 2 >= smallest => {
                    most = size / 2;
                    continue;
                }
                None => return None,
            }
            left -= size.min(left);
        }
        Some(pieces)
    }

    /// Stores `long` in the slab if there is room for its list of pieces. Returns its number.
    pub(in crate::store) fn insert_long(&mut self, long: Long, now: u64) -> Result<u32, Error> {
        self.make_room_outside_heap(long.overhead() + self.longs.growth(1), now)?;
        self.external_bytes += long.overhead();
        let number = self.longs.insert(long);
        if let Some(long) = self.longs.get(number) {
            long.pieces.iter().for_each(|piece| self.heap.pieces.set_label(piece, number + 1));
        }
        Ok(number)
    }

    /// Removes the long value with this number.
    pub(in crate::store) fn remove_long(&mut self, number: u32) {
        if let Some(long) = self.longs.remove(number) {
            self.external_bytes -= long.overhead();
        }
    }

    /// Prepares `long` for another store, which counts its memory from then on.
    pub fn lend(&mut self, long: &mut Long) {
        if long.pieces.iter().all(|piece| self.heap.pieces.owns(piece)) {
            long.pieces.iter().for_each(|piece| self.heap.pieces.exclude(piece));
            long.is_lent = true;
        }
    }

    /// Returns `long` in a form this store can keep: itself, or a copy if its memory belongs to another store and was
    /// not lent.
    pub(in crate::store) fn adopt(&mut self, long: Long, now: u64) -> Result<Long, Error> {
        if long.is_lent || long.pieces.iter().all(|piece| self.heap.pieces.owns(piece)) {
            return Ok(long);
        }
        self.copy(&long, now)
    }

    /// Returns a copy of `long` in this store's memory.
    pub(in crate::store) fn copy(&mut self, long: &Long, now: u64) -> Result<Long, Error> {
        let mut writer = self.long(long.len, now)?;
        writer.fill_from(long, 0..long.len);
        Ok(writer.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, Evictable, EvictionPolicy, Expiry};

    /// Returns a value of pieces with these lengths.
    fn of(lens: &[usize]) -> Long {
        let pieces = lens.iter().map(|len| Bytes::from(vec![7; *len])).collect();
        Long { pieces, len: lens.iter().sum(), is_lent: false }
    }

    #[test]
    fn change_inside_value_rewrites_touched_pieces() {
        let long = of(&[10, 20, 30]);
        for (change, rewrite_range) in [
            (0..1, 0..10),
            (9..10, 0..10),
            (10..30, 10..30),
            (15..18, 10..30),
            (29..31, 10..60),
            (0..60, 0..60),
            (35..60, 30..60),
        ] {
            assert_eq!(long.rewrite_range(change.start, change.end), rewrite_range, "{change:?}");
        }
    }

    #[test]
    fn growth_merges_pieces_no_longer_than_bytes_behind_them() {
        let long = of(&[10, 20, 30]);
        for (change, rewrite_range) in
            [(60..65, 60..60), (60..89, 60..60), (60..90, 0..60), (70..75, 60..60), (70..95, 0..60), (35..61, 0..60)]
        {
            assert_eq!(long.rewrite_range(change.start, change.end), rewrite_range, "{change:?}");
        }
        const HALF: usize = MAX_MERGED / 2;
        let long = of(&[HALF, HALF]);
        assert_eq!(long.rewrite_range(2 * HALF, 3 * HALF), HALF..2 * HALF);
        assert_eq!(long.rewrite_range(2 * HALF, 3 * HALF + 1), 2 * HALF..2 * HALF);
    }

    #[test]
    fn value_has_one_piece_unless_more_than_an_eighth_is_unused() {
        let mut store = Store::new(&Config::new(64 << 20), 0);
        let pieces = |store: &mut Store, len| store.long(len, 0).unwrap().pieces.len();
        // 64 KB exceed 58 255 bytes by an eighth of the value.
        assert_eq!((pieces(&mut store, 58_255), pieces(&mut store, 65_536)), (1, 1));
        assert!(pieces(&mut store, 58_254) > 1);
        for len in [4096, 5000, 100_000, 1_000_000, 10_000_000] {
            let writer = store.long(len, 0).unwrap();
            assert_eq!((writer.left(), writer.room()), (len, len));
            let taken = |piece: &BuddyMut| piece.len().next_power_of_two().max(BuddyArena::SMALLEST);
            assert!(
                writer.pieces.iter().map(taken).sum::<usize>() <= len + len / WASTE_DIVISOR + BuddyArena::SMALLEST,
                "{len}"
            );
            assert!(writer.pieces.len() <= 4 + len / BuddyArena::LARGEST, "{len}: {}", writer.pieces.len());
        }
    }

    #[test]
    fn writer_is_extended_by_64_kb_or_a_64th_of_the_value() {
        let mut store = Store::new(&Config::new(64 << 20), 0);
        for (len, step) in [(1000, 1000), (1 << 20, EXTEND_STEP), (16 << 20, 256 << 10)] {
            let mut writer = LongWriter::new(len);
            store.extend_long(&mut writer, 0).unwrap();
            assert_eq!((writer.room(), writer.left()), (step, len));
            // Extending has no effect while there is room.
            store.extend_long(&mut writer, 0).unwrap();
            assert_eq!(writer.fill(&vec![1; step + 1]), step);
            assert_eq!((writer.room(), writer.left()), (0, len - step));
        }
    }

    #[test]
    fn value_larger_than_memory_is_refused_without_evictions() {
        let config = Config { evict: EvictionPolicy::Lru(Evictable::AllKeys), ..Config::new(1 << 20) };
        let mut store = Store::new(&config, 0);
        for n in 0..1000u32 {
            store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 0).unwrap();
        }
        for len in [(1 << 20) + 1, 2 << 20] {
            assert_eq!(store.long(len, 0).err(), Some(Error::Full));
            assert_eq!((store.len(0), store.counts().evicted), (1000, 0));
        }
    }

    #[test]
    fn string_equals_only_the_same_bytes() {
        let bytes = [7; 60];
        let long = of(&[10, 20, 30]);
        for string in [Str::Long(&long), Str::Short(&bytes)] {
            assert!(string == bytes[..] && string != bytes[..59] && string != [7; 61][..] && string != [0; 0][..]);
            let mut other = bytes;
            other[35] = 8;
            assert!(string != other[..]);
            assert_eq!((string.len(), string.is_empty(), string.to_vec()), (60, false, bytes.to_vec()));
        }
        assert!(Str::Short(b"").is_empty() && Str::Short(b"") == [0; 0][..]);
    }

    #[test]
    fn piece_list_and_lent_bytes_count_as_overhead() {
        let mut long = of(&[10, 20, 30]);
        let list = 2 * size_of::<usize>() + 3 * size_of::<Bytes>();
        assert_eq!(long.overhead(), list);
        long.is_lent = true;
        assert_eq!(long.overhead(), list + 60);
    }
}
