//! Fields of a hash, stored one after the other.
//!
//! A field is the length of its name and of its value, two bytes each, followed by both. If the length of the value is
//! [`LONG_MARK`], the value is in the arena, and a number of four bytes is stored instead.

use std::ops::Range;

/// Length that marks a value in the arena.
const LONG_MARK: u16 = u16::MAX;
/// Bytes before the name.
const HEADER: usize = 4;

/// Value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValue<'a> {
    /// Value stored in the field.
    Inline(&'a [u8]),
    /// Number of a value in the arena.
    Long(u32),
}

/// Field of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub name: &'a [u8],
    pub value: FieldValue<'a>,
}

impl Field<'_> {
    /// Returns the stored size.
    pub fn size(&self) -> usize {
        let value = match self.value {
            FieldValue::Inline(value) => value.len(),
            FieldValue::Long(_) => size_of::<u32>(),
        };
        HEADER + self.name.len() + value
    }

    pub fn write(&self, fields: &mut Vec<u8>) {
        let len = match self.value {
            FieldValue::Inline(value) => value.len() as u16,
            FieldValue::Long(_) => LONG_MARK,
        };
        fields.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        fields.extend_from_slice(&len.to_le_bytes());
        fields.extend_from_slice(self.name);
        match self.value {
            FieldValue::Inline(value) => fields.extend_from_slice(value),
            FieldValue::Long(number) => fields.extend_from_slice(&number.to_le_bytes()),
        }
    }
}

pub(crate) fn fields(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, Field<'_>)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(start..)?;
        let (head, rest) = rest.split_first_chunk::<HEADER>()?;
        let (name_len, len) = (u16::from_le_bytes([head[0], head[1]]), u16::from_le_bytes([head[2], head[3]]));
        let (name, rest) = rest.split_at_checked(name_len.into())?;
        let value = match len {
            LONG_MARK => FieldValue::Long(u32::from_le_bytes(*rest.first_chunk()?)),
            len => FieldValue::Inline(rest.get(..len.into())?),
        };
        let field = Field { name, value };
        let range = start..start + field.size();
        start = range.end;
        Some((range, field))
    })
}

pub(crate) fn find<'a>(bytes: &'a [u8], name: &[u8]) -> Option<(Range<usize>, FieldValue<'a>)> {
    fields(bytes).find(|(_, field)| field.name == name).map(|(range, field)| (range, field.value))
}

/// Divides the fields in `bytes` into parts of at most `most` bytes, or of one field.
pub(crate) fn parts(bytes: &[u8], most: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let ends = fields(rest).map(|(range, _)| range.end);
        let first = fields(rest).next()?.0.end;
        let end = ends.take_while(|end| *end <= most).last().unwrap_or(first);
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_read_as_written(
            written in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), prop::collection::vec(any::<u8>(), 0..300), any::<bool>()), 0..20),
            most in 1..800usize,
        ) {
            let mut bytes = Vec::new();
            let field = |(name, value, is_far): &(Vec<u8>, Vec<u8>, bool), bytes: &mut Vec<u8>| {
                let value = if *is_far { FieldValue::Long(value.len() as u32) } else { FieldValue::Inline(value) };
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
    fn parts_hold_as_many_fields_as_fit() {
        let mut bytes = Vec::new();
        for name in [b"a", b"b", b"c", b"d", b"e"] {
            Field { name, value: FieldValue::Inline(b"value") }.write(&mut bytes);
        }
        let sizes = |most| parts(&bytes, most).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(20), [20, 20, 10]);
        assert_eq!(sizes(29), [20, 20, 10]);
        assert_eq!(sizes(30), [30, 20]);
        assert_eq!(sizes(1), [10; 5]);
    }
}
