//! Layout of an item in its slot.
//!
//! | bytes | contents |
//! |-------|----------|
//! | 0..2  | key length |
//! | 2     | [`Form`] and flags for the optional parts below; never 0 |
//! | 3     | id of the keyspace |
//! | 4..6  | access field: time or frequency of use |
//! | 6..8  | length of the value in the slot |
//! | 16, if it expires | expiry time in milliseconds; position in the timing wheel: slot, previous, next |
//! | 13, if set by a memcached client | client flags, CAS value, marks |
//! | then  | key and value |
//!
//! Numbers are little-endian.

use crate::store::ValueType;
use crate::store::memory::Location;
use std::num::NonZeroU32;

/// Bytes before the optional parts.
const FIXED: usize = 8;
const EXPIRY_LEN: usize = 16;
const META_LEN: usize = 13;
/// Offset of the key, by the combination of optional parts.
const KEY_AT: [usize; 4] = [FIXED, FIXED + EXPIRY_LEN, FIXED + META_LEN, FIXED + EXPIRY_LEN + META_LEN];
/// Flags in the third byte, with the form.
const EXPIRES: u8 = 0x10;
const HAS_META: u8 = 0x20;
const CHANGED: u8 = 0x40;

/// Representation of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Form {
    /// String with the value in the item.
    Short = 1,
    /// String with the value in the arena. The item holds its number.
    Long = 2,
    /// Hash with the fields in the item.
    Fields = 3,
    /// Hash with the fields in buckets. The item holds the number of its table.
    Buckets = 4,
    /// Bucket of such a hash.
    Bucket = 5,
}

impl Form {
    pub fn value_type(self) -> ValueType {
        match self {
            Form::Short | Form::Long => ValueType::String,
            Form::Fields | Form::Buckets | Form::Bucket => ValueType::Hash,
        }
    }
}

/// Metadata of a value set by a memcached client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemMeta {
    pub flags: u32,
    /// CAS value, different after every change.
    pub cas: u64,
    /// Flags of the protocol. The store does not interpret them.
    pub marks: u8,
}

/// Description of an item to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewItem<'a> {
    pub form: Form,
    pub space: u8,
    pub key: &'a [u8],
    pub expires: bool,
    pub meta: Option<ItemMeta>,
    pub len: usize,
}

impl NewItem<'_> {
    pub fn size(&self) -> usize {
        let expiry = if self.expires { EXPIRY_LEN } else { 0 };
        let meta = if self.meta.is_some() { META_LEN } else { 0 };
        FIXED + expiry + meta + self.key.len() + self.len
    }

    /// Writes everything but the value into `slot`. Returns the place of the value.
    pub fn write<'s>(&self, slot: &'s mut [u8]) -> &'s mut [u8] {
        let expires = if self.expires { EXPIRES } else { 0 };
        let tagged = if self.meta.is_some() { HAS_META } else { 0 };
        slot[..2].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        slot[2] = self.form as u8 | expires | tagged;
        slot[3] = self.space;
        slot[4..6].fill(0);
        slot[6..8].copy_from_slice(&(self.len as u16).to_le_bytes());
        let mut rest = &mut slot[FIXED..];
        if self.expires {
            let (expiry, after) = rest.split_at_mut(EXPIRY_LEN);
            expiry.fill(0);
            rest = after;
        }
        if let Some(ItemMeta { flags, cas, marks }) = self.meta {
            let (meta, after) = rest.split_at_mut(META_LEN);
            meta[..4].copy_from_slice(&flags.to_le_bytes());
            meta[4..12].copy_from_slice(&cas.to_le_bytes());
            meta[12] = marks;
            rest = after;
        }
        let (key, value) = rest.split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        &mut value[..self.len]
    }
}

/// Header of an item: its first eight bytes, which determine the rest of the layout.
#[derive(Clone, Copy)]
pub(crate) struct ItemHeader(u64);

impl ItemHeader {
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

    /// Returns true if the item has no optional parts and is not marked as changed.
    #[inline(always)]
    pub fn is_plain(self) -> bool {
        self.parts() & (EXPIRES | HAS_META | CHANGED) == 0
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

    #[inline(always)]
    fn key_of(self, slot: &[u8]) -> &[u8] {
        &slot[self.key_at()..][..self.key_len()]
    }

    #[inline(always)]
    pub fn value_of(self, slot: &[u8]) -> &[u8] {
        &slot[self.value_at()..][..self.value_len()]
    }
}

/// Compares two keys. For keys of usual length this is faster than a call of `memcmp`.
#[inline(always)]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    // The first and the last eight bytes cover the whole key.
    let ends = |key: &[u8]| Some((*key.first_chunk::<8>()?, *key.last_chunk::<8>()?));
    one.len() == other.len() && if one.len() <= 16 && one.len() >= 8 { ends(one) == ends(other) } else { one == other }
}

/// Item in its slot, mutable if `B` is.
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

    pub fn size(&self) -> usize {
        let head = self.header();
        head.value_at() + head.value_len()
    }

    #[inline(always)]
    pub fn header(&self) -> ItemHeader {
        ItemHeader(u64::from_le_bytes(self.chunk(0)))
    }

    pub fn form(&self) -> Form {
        self.header().form()
    }

    /// Returns the header if the item has this key and keyspace id.
    #[inline(always)]
    pub fn header_if(&self, space: u8, key: &[u8]) -> Option<ItemHeader> {
        let head = self.header();
        (head.space() == space && is_same(head.key_of(self.bytes()), key)).then_some(head)
    }

    /// Returns true for a string made by changing a part, which Redis would store in raw encoding.
    pub fn is_changed(&self) -> bool {
        self.bytes()[2] & CHANGED != 0
    }

    #[inline(always)]
    pub fn space(&self) -> u8 {
        self.header().space()
    }

    pub fn access(&self) -> u16 {
        self.header().access()
    }

    #[inline(always)]
    pub fn expires(&self) -> bool {
        self.header().expires()
    }

    #[inline(always)]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires().then(|| u64::from_le_bytes(self.chunk(FIXED)) & ((1 << 48) - 1))
    }

    pub fn wheel_slot(&self) -> u16 {
        u16::from_le_bytes(self.chunk(FIXED + 6))
    }

    /// Returns the previous and the next item in the wheel slot.
    pub fn neighbours(&self) -> [Option<Location>; 2] {
        [8, 12].map(|at| NonZeroU32::new(u32::from_le_bytes(self.chunk(FIXED + at))).map(Location))
    }

    pub fn meta(&self) -> Option<ItemMeta> {
        let at = FIXED + if self.expires() { EXPIRY_LEN } else { 0 };
        (self.bytes()[2] & HAS_META != 0).then(|| ItemMeta {
            flags: u32::from_le_bytes(self.chunk(at)),
            cas: u64::from_le_bytes(self.chunk(at + 4)),
            marks: self.bytes()[at + 12],
        })
    }

    #[inline(always)]
    pub fn key(&self) -> &[u8] {
        self.header().key_of(self.bytes())
    }

    /// Returns the number stored as the value of a long string or large hash.
    pub fn number(&self) -> u32 {
        u32::from_le_bytes(self.chunk(self.header().value_at()))
    }

    pub fn value(&self) -> &[u8] {
        self.header().value_of(self.bytes())
    }
}

impl<'a> Item<&'a [u8]> {
    /// Returns the key with the lifetime of the slot.
    pub fn into_key(self) -> &'a [u8] {
        self.header().key_of(self.0)
    }

    /// Returns the value with the lifetime of the slot.
    #[inline(always)]
    pub fn into_value(self) -> &'a [u8] {
        self.header().value_of(self.0)
    }
}

impl<B: AsMut<[u8]> + AsRef<[u8]>> Item<B> {
    fn put<const N: usize>(&mut self, at: usize, number: [u8; N]) {
        self.0.as_mut()[at..at + N].copy_from_slice(&number);
    }

    pub fn set_access(&mut self, access: u16) {
        self.put(4, access.to_le_bytes());
    }

    /// Sets the expiry time of an item that [has one](Self::expires). The wheel slot stays.
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

    pub fn set_form(&mut self, form: Form) {
        let parts = &mut self.0.as_mut()[2];
        *parts = *parts & 0xf0 | form as u8;
    }

    /// Replaces the metadata of an item that has some.
    pub fn set_meta(&mut self, meta: ItemMeta) {
        let at = FIXED + if self.expires() { EXPIRY_LEN } else { 0 };
        self.put(at, meta.flags.to_le_bytes());
        self.put(at + 4, meta.cas.to_le_bytes());
        self.put(at + 12, [meta.marks]);
    }

    pub fn set_changed(&mut self, is_changed: bool) {
        let parts = &mut self.0.as_mut()[2];
        *parts = *parts & !CHANGED | if is_changed { CHANGED } else { 0 };
    }

    pub fn value_mut(&mut self) -> &mut [u8] {
        let head = self.header();
        &mut self.0.as_mut()[head.value_at()..][..head.value_len()]
    }

    /// Sets the length of the value. The slot must have room for it.
    pub fn set_value_len(&mut self, len: usize) {
        self.put(6, (len as u16).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_read_as_written() {
        for expires in [false, true] {
            for meta in [None, Some(ItemMeta { flags: 0xdead_beef, cas: u64::MAX - 1, marks: 7 })] {
                let draft = NewItem { form: Form::Short, space: 7, key: b"key", expires, meta, len: 5 };
                let mut slot = vec![0xff; draft.size() + 3];
                draft.write(&mut slot).copy_from_slice(b"value");
                let mut item = Item(&mut slot[..]);
                assert_eq!(
                    (item.form(), item.space(), item.key(), item.value()),
                    (Form::Short, 7, &b"key"[..], &b"value"[..])
                );
                assert_eq!((item.size(), item.meta(), item.access()), (draft.size(), meta, 0));
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
    fn keys_of_other_bytes_or_length_differ() {
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
    fn plain_item_has_no_optional_part_and_is_unchanged() {
        for (expires, meta, changed) in [
            (false, None, false),
            (true, None, false),
            (false, Some(ItemMeta { flags: 1, cas: 2, marks: 3 }), false),
            (false, None, true),
        ] {
            let draft = NewItem { form: Form::Buckets, space: 7, key: b"key", expires, meta, len: 4 };
            let mut slot = vec![0; draft.size()];
            draft.write(&mut slot).copy_from_slice(&9u32.to_le_bytes());
            let mut item = Item(&mut slot[..]);
            item.set_changed(changed);
            assert_eq!(
                (item.header().is_plain(), item.is_changed()),
                (!expires && meta.is_none() && !changed, changed)
            );
            item.set_form(Form::Long);
            assert_eq!(
                (item.form(), item.expires(), item.meta(), item.is_changed()),
                (Form::Long, expires, meta, changed)
            );
            item.set_changed(false);
            assert_eq!((item.form(), item.is_changed(), item.number()), (Form::Long, false, 9));
            assert!(item.header_if(7, b"key").is_some());
            assert!(item.header_if(6, b"key").is_none() && item.header_if(7, b"kez").is_none());
        }
    }
}
