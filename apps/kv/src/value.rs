//! Strings as requests, shards and replies share them.

use linerate_bypass::arena::{BuddyArena, Evacuation};
use linerate_service::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Appending merges parts up to this many bytes.
const MAX_MERGED: usize = 256 << 10;

/// Destination of reply bytes, in order.
pub trait Sink {
    /// Appends a copy of `bytes`, which should be short.
    fn put(&mut self, bytes: &[u8]);

    /// Appends `bytes` without a copy, if the destination supports that.
    fn attach(&mut self, bytes: Bytes);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn attach(&mut self, bytes: Bytes) {
        self.extend_from_slice(&bytes);
    }
}

/// Value in the arena, in one or more parts. Clones share the bytes, which never change, even if the key is
/// overwritten or removed.
#[derive(Clone)]
pub struct Long {
    /// Parts, none of them empty.
    parts: Arc<[Bytes]>,
    len: usize,
    /// True if the memory belongs to another store, which no longer counts it: the store that holds the value counts
    /// it.
    is_lent: bool,
}

impl Long {
    pub fn empty() -> Self {
        Long::from_parts([])
    }

    /// Creates a value of parts, none of them empty.
    pub fn from_parts(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let parts: Arc<[Bytes]> = parts.into_iter().collect();
        Long { len: parts.iter().map(|part| part.len()).sum(), parts, is_lent: false }
    }

    #[expect(clippy::len_without_is_empty, reason = "a long value is not empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the memory belongs to another store.
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Notes that the memory belongs to another store, which no longer counts it.
    pub(crate) fn lend(&mut self) {
        self.is_lent = true;
    }

    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Returns the bytes in `range` in order.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = Bytes> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        let mut start = 0;
        self.parts.iter().filter_map(move |part| {
            let here = start..start + part.len();
            start = here.end;
            let common = range.start.max(here.start)..range.end.min(here.end);
            (!common.is_empty()).then(|| part.slice(common.start - here.start..common.end - here.start))
        })
    }

    /// Returns the bytes that the store holding the value counts in addition to its own arena memory: the list of
    /// parts, and the bytes of a lent value.
    pub(crate) fn overhead(&self) -> usize {
        2 * size_of::<usize>() + size_of_val(&*self.parts) + if self.is_lent { self.len } else { 0 }
    }

    /// Moves the parts in `clearing` to other memory, as long as `memory` stays within `most` bytes.
    pub(crate) fn evacuate(&mut self, clearing: &Evacuation, label: u32, memory: &mut BuddyArena, most: usize) {
        let mut parts = self.parts.to_vec();
        for part in parts.iter_mut().filter(|part| clearing.contains(part)) {
            let room = most.saturating_sub(memory.used());
            let Some(mut moved) = memory.alloc_within(part.len(), room) else { continue };
            moved.copy_from_slice(part);
            *part = moved.freeze();
            memory.set_label(part, label);
        }
        self.parts = parts.into();
    }

    /// Returns the bytes of all parts to be replaced when the bytes from `at` to `end` change. If the value grows,
    /// this includes preceding parts that are no longer than the bytes after them, so that repeated appends leave few
    /// parts.
    pub(crate) fn rewrite_range(&self, at: usize, end: usize) -> Range<usize> {
        let starts = self.parts.iter().scan(0, |next, part| {
            let start = *next;
            *next += part.len();
            Some(start..*next)
        });
        let parts: Vec<Range<usize>> = starts.collect();
        let mut start = parts.iter().map(|part| part.start).filter(|start| *start <= at).max().unwrap_or(0);
        if at >= self.len {
            start = self.len;
        }
        if end <= self.len {
            let last = parts.iter().map(|part| part.end).find(|last| *last >= end);
            return start..last.unwrap_or(self.len);
        }
        let before = parts.partition_point(|part| part.start < start);
        for part in parts[..before].iter().rev() {
            if part.len() > end - start || end - part.start > MAX_MERGED {
                break;
            }
            start = part.start;
        }
        start..self.len
    }

    /// Returns the value with `new` in place of `range`, which covers whole parts.
    pub(crate) fn with_replaced(&self, range: Range<usize>, new: &Long) -> Long {
        let (before, rest) = (self.range(0..range.start), self.range(range.end..self.len));
        Long::from_parts(before.chain(new.parts.iter().cloned()).chain(rest))
    }
}

impl fmt::Debug for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Long({} bytes in {} parts)", self.len, self.parts.len())
    }
}

/// Value of a string or of a hash field.
#[derive(Debug, Clone, Copy)]
pub enum Str<'a> {
    /// Value shorter than [`Config::long`](crate::store::Config::long).
    Short(&'a [u8]),
    Long(&'a Long),
}

impl<'a> Str<'a> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Str::Short(bytes) => bytes.len(),
            Str::Long(long) => long.len,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn short(&self) -> Option<&'a [u8]> {
        match self {
            Str::Short(bytes) => Some(bytes),
            Str::Long(_) => None,
        }
    }

    pub fn copy_to(&self, out: &mut Vec<u8>) {
        match self {
            Str::Short(bytes) => out.extend_from_slice(bytes),
            Str::Long(long) => long.parts.iter().for_each(|part| out.extend_from_slice(part)),
        }
    }

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
            Str::Long(long) => long.parts.iter().for_each(|part| sink.attach(part.clone())),
        }
    }

    /// Writes a part of the value to `sink`, without a copy if it is long.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn write_range_to(&self, range: Range<usize>, sink: &mut impl Sink) {
        match self {
            Str::Short(bytes) => sink.put(&bytes[range]),
            Str::Long(long) => long.range(range).for_each(|part| sink.attach(part)),
        }
    }
}

impl PartialEq<[u8]> for Str<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        match self {
            Str::Short(bytes) => *bytes == other,
            Str::Long(long) => {
                let mut rest = other;
                let is_equal = long.parts.iter().all(|part| {
                    rest.split_at_checked(part.len()).is_some_and(|(front, back)| {
                        rest = back;
                        front == &part[..]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a value of parts with these lengths.
    fn with_lens(lens: &[usize]) -> Long {
        Long::from_parts(lens.iter().map(|len| Bytes::from(vec![7; *len])))
    }

    #[test]
    fn change_inside_value_rewrites_touched_parts() {
        let long = with_lens(&[10, 20, 30]);
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
    fn growth_merges_parts_no_longer_than_bytes_after_them() {
        let long = with_lens(&[10, 20, 30]);
        for (change, rewrite_range) in
            [(60..65, 60..60), (60..89, 60..60), (60..90, 0..60), (70..75, 60..60), (70..95, 0..60), (35..61, 0..60)]
        {
            assert_eq!(long.rewrite_range(change.start, change.end), rewrite_range, "{change:?}");
        }
        const HALF: usize = MAX_MERGED / 2;
        let long = with_lens(&[HALF, HALF]);
        assert_eq!(long.rewrite_range(2 * HALF, 3 * HALF), HALF..2 * HALF);
        assert_eq!(long.rewrite_range(2 * HALF, 3 * HALF + 1), 2 * HALF..2 * HALF);
    }

    #[test]
    fn string_equals_only_the_same_bytes() {
        let bytes = [7; 60];
        let long = with_lens(&[10, 20, 30]);
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
    fn part_list_and_lent_bytes_count_as_overhead() {
        let mut long = with_lens(&[10, 20, 30]);
        let list = 2 * size_of::<usize>() + 3 * size_of::<Bytes>();
        assert_eq!(long.overhead(), list);
        long.lend();
        assert_eq!(long.overhead(), list + 60);
    }
}
