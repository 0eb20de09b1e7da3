//! How an item lies in its slot.
//!
//! | bytes | what |
//! |-------|------|
//! | 0..2  | length of the key |
//! | 2     | what it is, never 0: its [`Form`] and which of the parts below there are |
//! | 3     | the keyspace |
//! | 4..6  | when or how often it was used |
//! | 6..8  | length of the value in the slot |
//! | 16, if it expires | when, in milliseconds; its place in the wheel: slot, previous, next |
//! | 13, if it is a memcached client's | flags, the unique number, and marks |
//! | then  | the key, and the value |
//!
//! Numbers have the lowest byte first.

use crate::store::Kind;
use crate::store::index::Location;
use std::num::NonZeroU32;

/// Bytes in front of the optional parts.
const FIXED: usize = 8;
const EXPIRY: usize = 16;
const TAG: usize = 13;
/// Where the key begins, by which of the parts there are.
const KEY_AT: [usize; 4] = [FIXED, FIXED + EXPIRY, FIXED + TAG, FIXED + EXPIRY + TAG];
/// In the third byte, beside the form.
const EXPIRES: u8 = 0x10;
const TAGGED: u8 = 0x20;
const CHANGED: u8 = 0x40;

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Form {
    /// A string whose value is here.
    Short = 1,
    /// A string whose value lies elsewhere; here is its number.
    Long = 2,
    /// A hash whose fields are here.
    Fields = 3,
    /// A hash whose fields lie in buckets; here is which.
    Buckets = 4,
    /// One of those buckets.
    Bucket = 5,
}

impl Form {
    pub fn kind(self) -> Kind {
        match self {
            Form::Short | Form::Long => Kind::String,
            Form::Fields | Form::Buckets | Form::Bucket => Kind::Hash,
        }
    }
}

/// What a memcached client keeps beside a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// What the client gave.
    pub flags: u32,
    /// Another one after every change.
    pub unique: u64,
    /// For what the protocol notes beside: the store does not look at it.
    pub marks: u8,
}

/// An item to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draft<'a> {
    pub form: Form,
    pub space: u8,
    pub key: &'a [u8],
    /// Whether it will expire.
    pub expires: bool,
    pub tag: Option<Tag>,
    /// Bytes of its value.
    pub len: usize,
}

impl Draft<'_> {
    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        let expiry = if self.expires { EXPIRY } else { 0 };
        let tag = if self.tag.is_some() { TAG } else { 0 };
        FIXED + expiry + tag + self.key.len() + self.len
    }

    /// Writes it into `slot`, but for the value, whose place is returned.
    pub fn write<'s>(&self, slot: &'s mut [u8]) -> &'s mut [u8] {
        let expires = if self.expires { EXPIRES } else { 0 };
        let tagged = if self.tag.is_some() { TAGGED } else { 0 };
        slot[..2].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        slot[2] = self.form as u8 | expires | tagged;
        slot[3] = self.space;
        slot[4..6].fill(0);
        slot[6..8].copy_from_slice(&(self.len as u16).to_le_bytes());
        let mut rest = &mut slot[FIXED..];
        if self.expires {
            let (expiry, behind) = rest.split_at_mut(EXPIRY);
            expiry.fill(0);
            rest = behind;
        }
        if let Some(Tag { flags, unique, marks }) = self.tag {
            let (tag, behind) = rest.split_at_mut(TAG);
            tag[..4].copy_from_slice(&flags.to_le_bytes());
            tag[4..12].copy_from_slice(&unique.to_le_bytes());
            tag[12] = marks;
            rest = behind;
        }
        let (key, value) = rest.split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        &mut value[..self.len]
    }
}

/// The first eight bytes of an item, from which everything else follows.
#[derive(Clone, Copy)]
pub(crate) struct Head(u64);

impl Head {
    #[inline(always)]
    pub fn form(self) -> Form {
        match self.parts() & 0xf {
            1 => Form::Short,
            2 => Form::Long,
            3 => Form::Fields,
            4 => Form::Buckets,
            _ => Form::Bucket,
        }
    }

    #[inline(always)]
    fn space(self) -> u8 {
        (self.0 >> 24) as u8
    }

    #[inline(always)]
    pub fn access(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline(always)]
    fn parts(self) -> u8 {
        (self.0 >> 16) as u8
    }

    #[inline(always)]
    pub fn expires(self) -> bool {
        self.parts() & EXPIRES != 0
    }

    /// Whether it is a key and a value, and nothing is to be known beside them.
    #[inline(always)]
    pub fn is_bare(self) -> bool {
        self.parts() & (EXPIRES | TAGGED | CHANGED) == 0
    }

    #[inline(always)]
    fn key_at(self) -> usize {
        KEY_AT[usize::from(self.parts() >> 4 & 3)]
    }

    #[inline(always)]
    fn key_len(self) -> usize {
        usize::from(self.0 as u16)
    }

    #[inline(always)]
    fn value_at(self) -> usize {
        self.key_at() + self.key_len()
    }

    #[inline(always)]
    pub fn value_len(self) -> usize {
        usize::from((self.0 >> 48) as u16)
    }

    /// The key of the item in `slot`.
    #[inline(always)]
    fn key_of(self, slot: &[u8]) -> &[u8] {
        &slot[self.key_at()..][..self.key_len()]
    }

    /// The value of the item in `slot`.
    #[inline(always)]
    pub fn value_of(self, slot: &[u8]) -> &[u8] {
        &slot[self.value_at()..][..self.value_len()]
    }
}

/// Whether two keys are the same: a call would take longer than to compare those of usual lengths.
#[inline(always)]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    // The first and the last bytes are all of it.
    let ends = |key: &[u8]| Some((*key.first_chunk::<8>()?, *key.last_chunk::<8>()?));
    one.len() == other.len() && if one.len() <= 16 && one.len() >= 8 { ends(one) == ends(other) } else { one == other }
}

/// An item in its slot, to be read or, with `B` mutable bytes, changed.
#[derive(Clone, Copy)]
pub(crate) struct Item<B>(pub B);

impl<B: AsRef<[u8]>> Item<B> {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    #[inline(always)]
    fn chunk<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.bytes()[at..].first_chunk().expect("a slot holds its item")
    }

    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        let head = self.head();
        head.value_at() + head.value_len()
    }

    #[inline(always)]
    pub fn head(&self) -> Head {
        Head(u64::from_le_bytes(self.chunk(0)))
    }

    pub fn form(&self) -> Form {
        self.head().form()
    }

    /// Its head, if its key is `key`, in `space`.
    #[inline(always)]
    pub fn head_if(&self, space: u8, key: &[u8]) -> Option<Head> {
        let head = self.head();
        (head.space() == space && is_same(head.key_of(self.bytes()), key)).then_some(head)
    }

    /// A string that was made by changing a part, which Redis keeps otherwise.
    pub fn is_changed(&self) -> bool {
        self.bytes()[2] & CHANGED != 0
    }

    #[inline(always)]
    pub fn space(&self) -> u8 {
        self.head().space()
    }

    pub fn access(&self) -> u16 {
        self.head().access()
    }

    #[inline(always)]
    pub fn expires(&self) -> bool {
        self.head().expires()
    }

    /// When it expires, in milliseconds.
    #[inline(always)]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires().then(|| u64::from_le_bytes(self.chunk(FIXED)) & ((1 << 48) - 1))
    }

    /// Its slot in the wheel.
    pub fn wheel_slot(&self) -> u16 {
        u16::from_le_bytes(self.chunk(FIXED + 6))
    }

    /// Those before and behind it there.
    pub fn neighbours(&self) -> [Option<Location>; 2] {
        [8, 12].map(|at| NonZeroU32::new(u32::from_le_bytes(self.chunk(FIXED + at))).map(Location))
    }

    pub fn tag(&self) -> Option<Tag> {
        let at = FIXED + if self.expires() { EXPIRY } else { 0 };
        (self.bytes()[2] & TAGGED != 0).then(|| Tag {
            flags: u32::from_le_bytes(self.chunk(at)),
            unique: u64::from_le_bytes(self.chunk(at + 4)),
            marks: self.bytes()[at + 12],
        })
    }

    #[inline(always)]
    pub fn key(&self) -> &[u8] {
        self.head().key_of(self.bytes())
    }

    /// The number that is its value, if that lies elsewhere.
    pub fn number(&self) -> u32 {
        u32::from_le_bytes(self.chunk(self.head().value_at()))
    }

    pub fn value(&self) -> &[u8] {
        self.head().value_of(self.bytes())
    }
}

impl<'a> Item<&'a [u8]> {
    /// The key, for as long as the slot is borrowed.
    pub fn into_key(self) -> &'a [u8] {
        self.head().key_of(self.0)
    }

    /// The value, for as long as the slot is borrowed.
    #[inline(always)]
    pub fn into_value(self) -> &'a [u8] {
        self.head().value_of(self.0)
    }
}

impl<B: AsMut<[u8]> + AsRef<[u8]>> Item<B> {
    fn put<const N: usize>(&mut self, at: usize, number: [u8; N]) {
        self.0.as_mut()[at..at + N].copy_from_slice(&number);
    }

    pub fn set_access(&mut self, access: u16) {
        self.put(4, access.to_le_bytes());
    }

    /// It [expires](Self::expires), at `at` milliseconds; its slot in the wheel stays.
    pub fn set_expires_at(&mut self, at: u64) {
        let [a, b, c, d, e, f, _, _] = at.to_le_bytes();
        self.put(FIXED, [a, b, c, d, e, f]);
    }

    pub fn set_wheel_slot(&mut self, slot: u16) {
        self.put(FIXED + 6, slot.to_le_bytes());
    }

    pub fn set_previous(&mut self, previous: Option<Location>) {
        self.put(FIXED + 8, previous.map_or(0, |Location(it)| it.get()).to_le_bytes());
    }

    pub fn set_next(&mut self, next: Option<Location>) {
        self.put(FIXED + 12, next.map_or(0, |Location(it)| it.get()).to_le_bytes());
    }

    /// It is of another form.
    pub fn set_form(&mut self, form: Form) {
        let parts = &mut self.0.as_mut()[2];
        *parts = *parts & 0xf0 | form as u8;
    }

    /// It has a tag: this one, from now on.
    pub fn set_tag(&mut self, tag: Tag) {
        let at = FIXED + if self.expires() { EXPIRY } else { 0 };
        self.put(at, tag.flags.to_le_bytes());
        self.put(at + 4, tag.unique.to_le_bytes());
        self.put(at + 12, [tag.marks]);
    }

    /// Whether it has been [changed](Self::is_changed).
    pub fn set_changed(&mut self, is_changed: bool) {
        let parts = &mut self.0.as_mut()[2];
        *parts = *parts & !CHANGED | if is_changed { CHANGED } else { 0 };
    }

    /// Its value, to be changed in place.
    pub fn value_mut(&mut self) -> &mut [u8] {
        let head = self.head();
        &mut self.0.as_mut()[head.value_at()..][..head.value_len()]
    }

    /// Its value is of `len` bytes from now on, which the slot has room for.
    pub fn set_value_len(&mut self, len: usize) {
        self.put(6, (len as u16).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_read_as_it_was_written() {
        for expires in [false, true] {
            for tag in [None, Some(Tag { flags: 0xdead_beef, unique: u64::MAX - 1, marks: 7 })] {
                let draft = Draft { form: Form::Short, space: 7, key: b"key", expires, tag, len: 5 };
                let mut slot = vec![0xff; draft.size() + 3];
                draft.write(&mut slot).copy_from_slice(b"value");
                let mut item = Item(&mut slot[..]);
                assert_eq!(
                    (item.form(), item.space(), item.key(), item.value()),
                    (Form::Short, 7, &b"key"[..], &b"value"[..])
                );
                assert_eq!((item.size(), item.tag(), item.access()), (draft.size(), tag, 0));
                item.set_access(0x1234);
                assert_eq!(item.access(), 0x1234);
                if expires {
                    assert_eq!(item.neighbours(), [None, None]);
                    let [a, b] = [1, u32::MAX].map(|n| NonZeroU32::new(n).map(Location));
                    item.set_wheel_slot(300);
                    item.set_expires_at((1 << 48) - 2);
                    item.set_previous(a);
                    item.set_next(b);
                    assert_eq!((item.wheel_slot(), item.neighbours()), (300, [a, b]));
                    assert_eq!(item.expires_at(), Some((1 << 48) - 2));
                } else {
                    assert_eq!(item.expires_at(), None);
                }
                assert_eq!((item.key(), item.value()), (&b"key"[..], &b"value"[..]));
            }
        }
    }

    #[test]
    fn keys_that_differ_in_any_byte_or_in_length_are_not_the_same() {
        for len in 1..40 {
            let key: Vec<u8> = (0..len).collect();
            assert!(is_same(&key, &key.clone()));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 0x80;
                assert!(!is_same(&key, &other), "{at} of {len}");
            }
            assert!(!is_same(&key, &key[1..]) && !is_same(&key[1..], &key));
        }
    }

    #[test]
    fn bare_item_has_no_optional_part_and_was_not_changed() {
        for (expires, tag, changed) in [
            (false, None, false),
            (true, None, false),
            (false, Some(Tag { flags: 1, unique: 2, marks: 3 }), false),
            (false, None, true),
        ] {
            let draft = Draft { form: Form::Buckets, space: 7, key: b"key", expires, tag, len: 4 };
            let mut slot = vec![0; draft.size()];
            draft.write(&mut slot).copy_from_slice(&9u32.to_le_bytes());
            let mut item = Item(&mut slot[..]);
            item.set_changed(changed);
            assert_eq!((item.head().is_bare(), item.is_changed()), (!expires && tag.is_none() && !changed, changed));
            item.set_form(Form::Long);
            assert_eq!(
                (item.form(), item.expires(), item.tag(), item.is_changed()),
                (Form::Long, expires, tag, changed)
            );
            item.set_changed(false);
            assert_eq!((item.form(), item.is_changed(), item.number()), (Form::Long, false, 9));
            assert!(item.head_if(7, b"key").is_some());
            assert!(item.head_if(6, b"key").is_none() && item.head_if(7, b"kez").is_none());
        }
    }
}
