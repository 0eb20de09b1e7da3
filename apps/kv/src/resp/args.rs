//! Arguments of a request.

use crate::value::{Long, Str, Value};
use std::fmt;
use std::ops::{Index, Range};

/// Arguments of a request: the command name and its arguments.
///
/// A long argument may be stored in the arena. It reads as empty except through [`value`](Self::value). A command that
/// cannot handle that copies the arguments [whole](Self::to_whole) first.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    pub(super) data: &'a [u8],
    pub(super) ranges: &'a [Range<usize>],
    pub(super) longs: &'a [(usize, Long)],
}

impl<'a> Args<'a> {
    /// Returns the number of arguments including the name.
    #[inline]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of bytes from the first to the last argument, without long values.
    #[inline]
    pub fn len_of_text(&self) -> usize {
        self.ranges.last().map_or(0, |last| last.end)
    }

    /// Returns the argument at `at`, where 0 is the name.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&'a [u8]> {
        Some(&self.data[self.ranges.get(at)?.clone()])
    }

    /// Returns the argument at `at` with the lifetime of the request.
    ///
    /// # Panics
    /// Panics if there is none.
    #[inline]
    pub fn at(&self, at: usize) -> &'a [u8] {
        &self.data[self.ranges[at].clone()]
    }

    /// Returns the argument at `at` as a value to be stored.
    ///
    /// # Panics
    /// Panics if there is none.
    #[inline]
    pub fn value(&self, at: usize) -> Value<'a> {
        // Sorted by position. Most requests have none.
        match self.longs.binary_search_by_key(&at, |(number, _)| *number) {
            Err(_) => Value::Short(self.at(at)),
            Ok(found) => Value::Long(self.longs[found].1.clone()),
        }
    }

    /// Returns a copy of the first `most` bytes of the argument at `at`, long or not.
    ///
    /// # Panics
    /// Panics if there is none.
    pub fn prefix(&self, at: usize, most: usize) -> Vec<u8> {
        match self.value(at) {
            Value::Short(bytes) => bytes[..bytes.len().min(most)].to_vec(),
            Value::Long(long) => long.range(0..long.len().min(most)).flat_map(|part| part.to_vec()).collect(),
        }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let data = self.data;
        self.ranges.iter().map(move |range| &data[range.clone()])
    }

    pub fn longs(&self) -> impl ExactSizeIterator<Item = usize> {
        self.longs.iter().map(|(number, _)| *number)
    }

    /// Returns an owned copy. Long arguments are shared.
    pub fn to_owned(&self) -> OwnedArgs {
        let mut owned = OwnedArgs { longs: self.longs.to_vec(), ..OwnedArgs::default() };
        owned.data.reserve_exact(self.iter().map(<[u8]>::len).sum());
        owned.ranges.reserve_exact(self.len());
        self.iter().for_each(|arg| owned.push(Str::Short(arg)));
        owned
    }

    /// Returns an owned copy in which long arguments are contiguous.
    pub fn to_whole(&self) -> OwnedArgs {
        let mut whole = OwnedArgs::default();
        for number in 0..self.len() {
            match &self.value(number) {
                Value::Short(bytes) => whole.push(Str::Short(bytes)),
                Value::Long(long) => whole.push(Str::Long(long)),
            }
        }
        whole
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    #[inline]
    fn index(&self, at: usize) -> &[u8] {
        &self.data[self.ranges[at].clone()]
    }
}

impl fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

/// Owned arguments.
#[derive(Clone, Default)]
pub struct OwnedArgs {
    data: Vec<u8>,
    ranges: Vec<Range<usize>>,
    longs: Vec<(usize, Long)>,
}

impl OwnedArgs {
    pub fn args(&self) -> Args<'_> {
        Args { data: &self.data, ranges: &self.ranges, longs: &self.longs }
    }

    pub fn longs_mut(&mut self) -> impl Iterator<Item = &mut Long> {
        self.longs.iter_mut().map(|(_, long)| long)
    }

    /// Returns the bytes in use, including long arguments.
    pub fn bytes(&self) -> usize {
        self.memory() + self.longs.iter().map(|(_, long)| long.len()).sum::<usize>()
    }

    /// Returns the bytes in use outside of the arena.
    pub fn memory(&self) -> usize {
        self.data.len() + size_of_val(&self.ranges[..]) + size_of_val(&self.longs[..])
    }

    fn push(&mut self, arg: Str<'_>) {
        let start = self.data.len();
        arg.copy_to(&mut self.data);
        self.ranges.push(start..self.data.len());
    }
}

impl<'a> FromIterator<&'a [u8]> for OwnedArgs {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(args: I) -> Self {
        let mut owned = OwnedArgs::default();
        args.into_iter().for_each(|arg| owned.push(Str::Short(arg)));
        owned
    }
}

impl fmt::Debug for OwnedArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.args().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_service::Bytes;

    #[test]
    fn args_index_arguments_by_number() {
        let owned: OwnedArgs = [&b"set"[..], b"", b"value"].into_iter().collect();
        let args = owned.args();
        assert_eq!((args.len(), args.is_empty()), (3, false));
        assert_eq!((args.get(0), args.get(1), args.get(3)), (Some(&b"set"[..]), Some(&b""[..]), None));
        assert_eq!((&args[2], args.at(2)), (&b"value"[..], &b"value"[..]));
        assert_eq!(args.prefix(2, 3), b"val");
        assert_eq!(args.prefix(2, 9), b"value");
        assert!(OwnedArgs::default().args().is_empty());
    }

    #[test]
    fn owned_args_bytes_include_long_arguments() {
        let mut owned: OwnedArgs = [&b"set"[..], b"key", b""].into_iter().collect();
        let short = 6 + 3 * size_of::<Range<usize>>();
        assert_eq!(owned.bytes(), short);
        owned.longs.push((2, Long::from_parts([Bytes::from(vec![b'x'; 5000])])));
        assert_eq!(owned.bytes(), short + size_of::<(usize, Long)>() + 5000);
        assert_eq!(owned.args().prefix(2, 4), b"xxxx");
        assert_eq!(owned.args().longs().collect::<Vec<_>>(), [2]);
        assert_eq!(owned.args().to_whole().args()[2].len(), 5000);
    }
}
