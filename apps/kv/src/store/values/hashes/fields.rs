//! Fields of a hash, one behind the other.
//!
//! Each is the length of its name and that of its value, of two bytes, and both. The value of one whose length is [`FAR`] is a
//! number of four bytes: it lies in the arena.

use std::ops::Range;

/// Instead of a length.
const FAR: u16 = u16::MAX;
/// Bytes in front of a name.
const HEAD: usize = 4;

/// A value among fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Near<'a> {
    /// The value itself.
    Here(&'a [u8]),
    /// The number of one in the arena.
    Far(u32),
}

/// A field among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub name: &'a [u8],
    pub value: Near<'a>,
}

impl Field<'_> {
    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        let value = match self.value {
            Near::Here(value) => value.len(),
            Near::Far(_) => size_of::<u32>(),
        };
        HEAD + self.name.len() + value
    }

    /// Appends it to others.
    pub fn write(&self, fields: &mut Vec<u8>) {
        let len = match self.value {
            Near::Here(value) => value.len() as u16,
            Near::Far(_) => FAR,
        };
        fields.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        fields.extend_from_slice(&len.to_le_bytes());
        fields.extend_from_slice(self.name);
        match self.value {
            Near::Here(value) => fields.extend_from_slice(value),
            Near::Far(number) => fields.extend_from_slice(&number.to_le_bytes()),
        }
    }
}

/// The fields in `bytes`, and where they are.
pub(crate) fn fields(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, Field<'_>)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(start..)?;
        let (head, rest) = rest.split_first_chunk::<HEAD>()?;
        let (name_len, len) = (u16::from_le_bytes([head[0], head[1]]), u16::from_le_bytes([head[2], head[3]]));
        let (name, rest) = rest.split_at_checked(name_len.into())?;
        let value = match len {
            FAR => Near::Far(u32::from_le_bytes(*rest.first_chunk()?)),
            len => Near::Here(rest.get(..len.into())?),
        };
        let field = Field { name, value };
        let range = start..start + field.size();
        start = range.end;
        Some((range, field))
    })
}

/// The one with `name`.
pub(crate) fn find<'a>(bytes: &'a [u8], name: &[u8]) -> Option<(Range<usize>, Near<'a>)> {
    fields(bytes).find(|(_, field)| field.name == name).map(|(range, field)| (range, field.value))
}

/// The fields in `bytes` in parts of at most `most` bytes, or of one field.
pub(crate) fn parts(bytes: &[u8], most: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let ends = fields(rest).map(|(range, _)| range.end);
        let first = fields(rest).next()?.0.end;
        let end = ends.take_while(|end| *end <= most).last().unwrap_or(first);
        let (part, behind) = rest.split_at(end);
        rest = behind;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_read_as_they_were_written(
            written in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), prop::collection::vec(any::<u8>(), 0..300), any::<bool>()), 0..20),
            most in 1..800usize,
        ) {
            let mut bytes = Vec::new();
            let field = |(name, value, is_far): &(Vec<u8>, Vec<u8>, bool), bytes: &mut Vec<u8>| {
                let value = if *is_far { Near::Far(value.len() as u32) } else { Near::Here(value) };
                Field { name, value }.write(bytes);
            };
            written.iter().for_each(|it| field(it, &mut bytes));
            let read: Vec<_> = fields(&bytes).collect();
            prop_assert_eq!(read.len(), written.len());
            for ((range, read), written) in read.iter().zip(&written) {
                let mut alone = Vec::new();
                field(written, &mut alone);
                prop_assert_eq!(&bytes[range.clone()], &alone[..]);
                prop_assert_eq!((read.name, read.size()), (&written.0[..], alone.len()));
                let first = fields(&bytes).find(|(_, field)| field.name == read.name);
                prop_assert_eq!(find(&bytes, &written.0), first.map(|(range, field)| (range, field.value)));
            }
            let parts: Vec<&[u8]> = parts(&bytes, most).collect();
            prop_assert!(parts.iter().all(|part| part.len() <= most || fields(part).count() == 1));
            prop_assert_eq!(parts.concat(), bytes);
        }
    }

    #[test]
    fn parts_have_as_many_fields_as_fit() {
        let mut bytes = Vec::new();
        for name in [b"a", b"b", b"c", b"d", b"e"] {
            Field { name, value: Near::Here(b"value") }.write(&mut bytes);
        }
        let sizes = |most| parts(&bytes, most).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(20), [20, 20, 10]);
        assert_eq!(sizes(29), [20, 20, 10]);
        assert_eq!(sizes(30), [30, 20]);
        assert_eq!(sizes(1), [10; 5]);
    }
}
