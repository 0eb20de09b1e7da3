//! Values that lie in the arena.

use crate::sink::Sink;
use crate::store::reclaim::memory_pressure::SLACK;
use crate::store::{Error, Store};
use linerate_bypass::Bytes;
use linerate_bypass::arena::{Clearing, Piece, Pieces};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Pieces are put together, when something is appended, up to this many bytes.
const MERGED: usize = 256 << 10;

/// What is not used of pieces is at most this part of a value.
const WASTE: usize = 8;
/// Pieces of work that are done for a value, at most; what they do not bring, the reserve has.
const MOST_WORK: usize = 32;
/// Bytes by which what was begun is extended, at least.
const STEP: usize = 64 << 10;
/// About so many pieces a value has at most, however memory is scattered.
const MOST: usize = 64;

/// A value in the arena, in pieces; clones are the same bytes. It stays as it is whatever is done with the key.
#[derive(Clone)]
pub struct Long {
    /// Without empty ones.
    pieces: Arc<[Bytes]>,
    len: usize,
    /// Its memory is that of another store, which does not count it: whoever keeps it does.
    is_lent: bool,
}

impl Long {
    /// No bytes.
    pub fn empty() -> Self {
        Long { pieces: Arc::new([]), len: 0, is_lent: false }
    }

    /// Bytes of it.
    #[expect(clippy::len_without_is_empty, reason = "what is long is not empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether its memory is another store's.
    pub(in crate::store) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// The pieces that it lies in, in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The pieces of a part of it.
    ///
    /// # Panics
    /// If it does not have that part.
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

    /// Bytes that it takes beside the pieces of who keeps it.
    pub(in crate::store) fn beside(&self) -> usize {
        2 * size_of::<usize>() + size_of_val(&*self.pieces) + if self.is_lent { self.len } else { 0 }
    }

    /// Bytes of what is in `clearing` move elsewhere, if there is room and `memory` has no more than `most` in use then.
    pub(in crate::store) fn leave(&mut self, clearing: &Clearing, label: u32, memory: &mut Pieces, most: usize) {
        let mut pieces = self.pieces.to_vec();
        for piece in pieces.iter_mut().filter(|piece| clearing.contains(piece)) {
            let room = most.saturating_sub(memory.used());
            let Some(mut moved) = memory.take_within(piece.len(), room) else { continue };
            moved.copy_from_slice(piece);
            *piece = moved.freeze();
            memory.set_label(piece, label);
        }
        self.pieces = pieces.into();
    }

    /// The bytes of all pieces that have to be others when those from `at` to `end` change. When it grows, they are
    /// those also that are no longer than what comes behind them, so that there are few however often that happens.
    pub(in crate::store) fn rewritten(&self, at: usize, end: usize) -> Range<usize> {
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
            if piece.len() > end - start || end - piece.start > MERGED {
                break;
            }
            start = piece.start;
        }
        start..self.len
    }

    /// With `new` in place of the bytes of `range`, which are those of whole pieces.
    pub(in crate::store) fn with(&self, range: Range<usize>, new: &Long) -> Long {
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

/// The value of a string or of a field.
#[derive(Debug, Clone, Copy)]
pub enum Str<'a> {
    /// One of fewer bytes than [`Config::long`](crate::store::Config::long).
    Short(&'a [u8]),
    /// One in the arena.
    Long(&'a Long),
}

impl<'a> Str<'a> {
    /// Bytes of it.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Str::Short(bytes) => bytes.len(),
            Str::Long(long) => long.len,
        }
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it, if it is short.
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

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len());
        self.copy_to(&mut copy);
        copy
    }

    /// Sends it, without a copy if it is long.
    #[inline]
    pub fn write_to(&self, sink: &mut impl Sink) {
        match self {
            Str::Short(bytes) => sink.put(bytes),
            Str::Long(long) => long.pieces.iter().for_each(|piece| sink.attach(piece.clone())),
        }
    }

    /// Sends a part of it, as [`write_to`](Self::write_to) does.
    ///
    /// # Panics
    /// If it does not have that part.
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

/// A value to be put under a key.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// Bytes to be copied, into the arena if there are many.
    Short(&'a [u8]),
    /// What is there already.
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

/// A [`Long`] that is being written.
#[derive(Debug)]
pub struct LongWriter {
    pieces: Vec<Piece>,
    /// The piece that is being written, and how far.
    piece: usize,
    at: usize,
    len: usize,
    left: usize,
    /// Bytes of them that there is memory for.
    room: usize,
}

impl LongWriter {
    /// Of a value of `len` bytes that is to come, for which there is no memory yet: it is [extended](Store::extend_long) as it
    /// comes.
    pub fn new(len: usize) -> Self {
        LongWriter { pieces: Vec::new(), piece: 0, at: 0, len, left: len, room: 0 }
    }

    /// Copies from `bytes` what there is still room for. Returns how many bytes that were.
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

    /// Adds `n` zeros.
    pub(in crate::store) fn fill_zeros(&mut self, mut n: usize) {
        const ZEROS: [u8; 1024] = [0; 1024];
        while n > 0 {
            let filled = self.fill(&ZEROS[..n.min(ZEROS.len())]);
            assert!(filled > 0, "no room for zeros");
            n -= filled;
        }
    }

    /// Adds a part of `long`.
    pub(in crate::store) fn fill_from(&mut self, long: &Long, range: Range<usize>) {
        long.range(range).for_each(|piece| _ = self.fill(&piece));
    }

    /// Bytes that are missing.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Bytes of them that there is memory for, until it is [extended](Store::extend_long).
    pub fn room(&self) -> usize {
        self.room
    }

    /// The value, when it has been filled.
    ///
    /// # Panics
    /// If it has not.
    pub fn finish(self) -> Long {
        assert_eq!(self.left, 0, "bytes are missing from a value");
        Long { pieces: self.pieces.into_iter().map(Piece::freeze).collect(), len: self.len, is_lent: false }
    }
}

impl Store {
    /// Memory for a value of `len` bytes, to be filled. What has to go for it, goes in this one call, which may be many items:
    /// one that comes by and by had better be [extended](Self::extend_long) as it does.
    pub fn long(&mut self, len: usize, now: u64) -> Result<LongWriter, Error> {
        if len > self.memory {
            return Err(Error::Full);
        }
        let mut writer = LongWriter::new(len);
        writer.pieces = self.take_room(len, len, now)?;
        writer.room = len;
        Ok(writer)
    }

    /// Memory for some more of a value that was begun, 64 KB or a 64th of it. What has to go for that, goes.
    pub fn extend_long(&mut self, writer: &mut LongWriter, now: u64) -> Result<(), Error> {
        let step = writer.left.min(STEP.max((writer.len / MOST).next_power_of_two()));
        if writer.room == 0 {
            writer.pieces.extend(self.take_room(step, writer.len, now)?);
            writer.room = step;
        }
        Ok(())
    }

    /// Pieces for `len` bytes of a value of `whole`. What has to go for them, goes.
    fn take_room(&mut self, len: usize, whole: usize, now: u64) -> Result<Vec<Piece>, Error> {
        /// Pieces of work that are done before it is tried again.
        const WORK: usize = 8;
        // As many as it takes the place of usual items, within bounds.
        self.make_up((len / 256).min(MOST_WORK), now);
        loop {
            if let Some(pieces) = self.take_pieces(len, whole) {
                return Ok(pieces);
            }
            // What was taken in vain is no room that has come.
            while self.heap.pieces.collect(MOST) {}
            if (0..WORK).take_while(|_| self.clear_some(now)).count() == 0 {
                return Err(Error::Full);
            }
        }
    }

    /// Pieces for `len` bytes of a value of `whole`: as few as waste little, and smaller ones where those are not to be had.
    fn take_pieces(&mut self, len: usize, whole: usize) -> Option<Vec<Piece>> {
        if self.used() + len + SLACK > self.memory {
            return None;
        }
        self.heap.pieces.set_limit(self.chunks());
        let smallest = (whole / MOST).next_power_of_two().clamp(Pieces::SMALLEST, Pieces::LARGEST);
        let mut most = Pieces::LARGEST;
        let mut pieces = Vec::new();
        let mut left = len;
        while left > 0 {
            let whole = left.next_power_of_two().max(Pieces::SMALLEST);
            let size = if whole - left <= len / WASTE { whole } else { whole / 2 }.min(most);
            let room = self.memory.saturating_sub(self.used() + SLACK);
            match self.heap.pieces.take_within(size.min(left), room) {
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

    /// Keeps `long`, if there is room for what it takes beside its pieces. Returns its number.
    pub(in crate::store) fn keep_long(&mut self, long: Long, now: u64) -> Result<u32, Error> {
        self.make_room_beside(long.beside() + self.longs.growth(1), now)?;
        self.beside += long.beside();
        let number = self.longs.insert(long);
        if let Some(long) = self.longs.get(number) {
            long.pieces.iter().for_each(|piece| self.heap.pieces.set_label(piece, number + 1));
        }
        Ok(number)
    }

    /// Lets the one with this number go.
    pub(in crate::store) fn drop_long(&mut self, number: u32) {
        if let Some(long) = self.longs.remove(number) {
            self.beside -= long.beside();
        }
    }

    /// `long`, to be kept by another store, which counts it from then on.
    pub fn lend(&mut self, long: &mut Long) {
        if long.pieces.iter().all(|piece| self.heap.pieces.owns(piece)) {
            long.pieces.iter().for_each(|piece| self.heap.pieces.lend(piece));
            long.is_lent = true;
        }
    }

    /// `long` as it can be kept here: itself, or a copy if it is in another store's memory and was not lent.
    pub(in crate::store) fn own(&mut self, long: Long, now: u64) -> Result<Long, Error> {
        if long.is_lent || long.pieces.iter().all(|piece| self.heap.pieces.owns(piece)) {
            return Ok(long);
        }
        self.copy(&long, now)
    }

    /// A copy of `long` in this store's memory.
    pub(in crate::store) fn copy(&mut self, long: &Long, now: u64) -> Result<Long, Error> {
        let mut writer = self.long(long.len, now)?;
        writer.fill_from(long, 0..long.len);
        Ok(writer.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, Evict, Expiry, From as Whose};

    /// A value of pieces of these lengths.
    fn of(lens: &[usize]) -> Long {
        let pieces = lens.iter().map(|len| Bytes::from(vec![7; *len])).collect();
        Long { pieces, len: lens.iter().sum(), is_lent: false }
    }

    #[test]
    fn change_within_a_value_rewrites_the_pieces_that_it_touches() {
        let long = of(&[10, 20, 30]);
        for (change, rewritten) in [
            (0..1, 0..10),
            (9..10, 0..10),
            (10..30, 10..30),
            (15..18, 10..30),
            (29..31, 10..60),
            (0..60, 0..60),
            (35..60, 30..60),
        ] {
            assert_eq!(long.rewritten(change.start, change.end), rewritten, "{change:?}");
        }
    }

    #[test]
    fn change_beyond_the_end_takes_in_pieces_that_are_no_longer_than_what_is_behind_them() {
        let long = of(&[10, 20, 30]);
        for (change, rewritten) in
            [(60..65, 60..60), (60..89, 60..60), (60..90, 0..60), (70..75, 60..60), (70..95, 0..60), (35..61, 0..60)]
        {
            assert_eq!(long.rewritten(change.start, change.end), rewritten, "{change:?}");
        }
        const HALF: usize = MERGED / 2;
        let long = of(&[HALF, HALF]);
        assert_eq!(long.rewritten(2 * HALF, 3 * HALF), HALF..2 * HALF);
        assert_eq!(long.rewritten(2 * HALF, 3 * HALF + 1), 2 * HALF..2 * HALF);
    }

    #[test]
    fn value_lies_in_one_piece_unless_that_wastes_more_than_an_eighth() {
        let mut store = Store::new(&Config::new(64 << 20), 0);
        let pieces = |store: &mut Store, len| store.long(len, 0).unwrap().pieces.len();
        // An eighth of 58 255 bytes is missing to 64 KB.
        assert_eq!((pieces(&mut store, 58_255), pieces(&mut store, 65_536)), (1, 1));
        assert!(pieces(&mut store, 58_254) > 1);
        for len in [4096, 5000, 100_000, 1_000_000, 10_000_000] {
            let writer = store.long(len, 0).unwrap();
            assert_eq!((writer.left(), writer.room()), (len, len));
            let taken = |piece: &Piece| piece.len().next_power_of_two().max(Pieces::SMALLEST);
            assert!(writer.pieces.iter().map(taken).sum::<usize>() <= len + len / WASTE + Pieces::SMALLEST, "{len}");
            assert!(writer.pieces.len() <= 4 + len / Pieces::LARGEST, "{len}: {}", writer.pieces.len());
        }
    }

    #[test]
    fn writer_is_extended_by_64_kb_or_a_64th_of_the_value() {
        let mut store = Store::new(&Config::new(64 << 20), 0);
        for (len, step) in [(1000, 1000), (1 << 20, STEP), (16 << 20, 256 << 10)] {
            let mut writer = LongWriter::new(len);
            store.extend_long(&mut writer, 0).unwrap();
            assert_eq!((writer.room(), writer.left()), (step, len));
            // There is no more as long as there is room.
            store.extend_long(&mut writer, 0).unwrap();
            assert_eq!(writer.fill(&vec![1; step + 1]), step);
            assert_eq!((writer.room(), writer.left()), (0, len - step));
        }
    }

    #[test]
    fn value_longer_than_memory_is_refused_before_anything_goes() {
        let config = Config { evict: Evict::Lru(Whose::All), ..Config::new(1 << 20) };
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
    fn string_equals_the_same_bytes_only() {
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
    fn list_of_pieces_and_lent_bytes_are_counted_beside_the_heap() {
        let mut long = of(&[10, 20, 30]);
        let list = 2 * size_of::<usize>() + 3 * size_of::<Bytes>();
        assert_eq!(long.beside(), list);
        long.is_lent = true;
        assert_eq!(long.beside(), list + 60);
    }
}
