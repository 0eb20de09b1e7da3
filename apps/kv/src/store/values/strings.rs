//! Strings.

use crate::store::index::Location;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::{Draft, Form, Head, Item, Tag};
use crate::store::memory::long_value::{Long, Str, Value};
use crate::store::memory::slab::Slab;
use crate::store::{Error, Expiry, Key, Store};

/// What is to be written under a key, beside the key.
#[derive(Clone, Copy)]
pub(in crate::store) struct What<'a> {
    pub form: Form,
    pub value: &'a [u8],
    pub tag: Option<Tag>,
    /// As [`Item::is_changed`] says.
    pub changed: bool,
    /// The value is that of what is there, which lies elsewhere and stays.
    pub stays: bool,
}

impl Store {
    /// The string under `key` at `now`, which has been used once more.
    #[inline]
    pub fn get(&mut self, key: &Key, now: u64) -> Result<Option<Str<'_>>, Error> {
        let Some((location, head)) = self.look(key, now) else { return Ok(None) };
        let slot = self.heap.at_mut(location);
        self.evict.note_use(Item(&mut *slot), head.access(), now, &mut self.random);
        string(&self.longs, head, slot).map(Some)
    }

    /// The string under `key` at `now`, without a use of it.
    #[inline]
    pub fn peek(&mut self, key: &Key, now: u64) -> Result<Option<Str<'_>>, Error> {
        match self.find(key, now) {
            Some(location) => self.string(location).map(Some),
            None => Ok(None),
        }
    }

    /// Puts `value` under `key`, instead of whatever is there.
    #[inline]
    pub fn set<'v>(&mut self, key: &Key, value: impl Into<Value<'v>>, expiry: Expiry, now: u64) -> Result<(), Error> {
        self.put(key, value.into(), None, false, expiry, now)
    }

    /// As [`set`](Self::set), with the `flags` and `marks` of a memcached client. Returns the value's unique number.
    pub fn set_tagged<'v>(
        &mut self,
        key: &Key,
        value: impl Into<Value<'v>>,
        flags: u32,
        marks: u8,
        expiry: Expiry,
        now: u64,
    ) -> Result<u64, Error> {
        let unique = self.unique + 1;
        self.put(key, value.into(), Some(Tag { flags, unique, marks }), false, expiry, now)?;
        self.unique = unique;
        Ok(unique)
    }

    /// What a memcached client keeps beside the value under `key`; zeros beside one that is no memcached client's.
    pub fn tag(&mut self, key: &Key, now: u64) -> Option<Tag> {
        let location = self.find(key, now)?;
        Some(self.item(location).tag().unwrap_or(Tag { flags: 0, unique: 0, marks: 0 }))
    }

    /// Changes what is kept beside the value under `key`, if it was [set tagged](Self::set_tagged).
    pub fn set_tag(&mut self, key: &Key, tag: Tag, now: u64) -> bool {
        let Some(location) = self.find(key, now) else { return false };
        let mut item = Item(self.heap.at_mut(location));
        let has_tag = item.tag().is_some();
        if has_tag {
            item.set_tag(tag);
            self.unique = self.unique.max(tag.unique);
        }
        has_tag
    }

    /// A unique number that no value has had.
    pub fn next_unique(&mut self) -> u64 {
        self.unique += 1;
        self.unique
    }

    /// Appends `bytes` to the string under `key`. Returns how long it is.
    pub fn append(&mut self, key: &Key, bytes: &[u8], now: u64) -> Result<usize, Error> {
        let Some(location) = self.find_used(key, now) else {
            self.put(key, Value::Short(bytes), None, false, Expiry::Never, now)?;
            return Ok(bytes.len());
        };
        let len = self.string(location)?.len();
        if !bytes.is_empty() {
            self.change(key, location, len, bytes, now)?;
        }
        Ok(len + bytes.len())
    }

    /// Writes `bytes` over the string under `key` from `at` on, with zeros between its end and there. Returns how long it is.
    pub fn set_range(&mut self, key: &Key, at: usize, bytes: &[u8], now: u64) -> Result<usize, Error> {
        let location = self.find_used(key, now);
        let len = match location {
            Some(location) => self.string(location)?.len(),
            None => 0,
        };
        if bytes.is_empty() {
            return Ok(len);
        }
        match location {
            Some(location) => self.change(key, location, at, bytes, now)?,
            None => self.replace_part(key, None, at, bytes, now)?,
        }
        Ok(len.max(at + bytes.len()))
    }

    /// Writes `bytes` over the string at `location`, of `key`, from `at` on.
    fn change(&mut self, key: &Key, location: Location, at: usize, bytes: &[u8], now: u64) -> Result<(), Error> {
        let item = self.item(location);
        if item.form() == Form::Short && item.value().len() >= at + bytes.len() {
            let mut item = Item(self.heap.at_mut(location));
            item.value_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            item.set_changed(true);
            self.wrote(key.hash, location);
            return Ok(());
        }
        self.with_pinned(key, |store| store.replace_part(key, Some(location), at, bytes, now))
    }

    /// As [`change`](Self::change), by another value.
    fn replace_part(
        &mut self,
        key: &Key,
        old: Option<Location>,
        at: usize,
        bytes: &[u8],
        now: u64,
    ) -> Result<(), Error> {
        let tag = old.and_then(|old| self.item(old).tag());
        let mut scratch = std::mem::take(&mut self.scratch);
        let before = match old {
            Some(old) => self.string(old)?,
            None => Str::Short(&[]),
        };
        let len = before.len().max(at + bytes.len());
        let value = match before {
            Str::Long(long) => {
                let long = long.clone();
                Value::Long(self.changed_long(&long, at, bytes, now)?)
            }
            Str::Short(short) if self.is_long(key, len) => {
                let short = short.to_vec();
                let mut writer = self.long(len, now)?;
                writer.fill(&short[..short.len().min(at)]);
                writer.fill_zeros(at.saturating_sub(short.len()));
                writer.fill(bytes);
                writer.fill(short.get(at + bytes.len()..).unwrap_or_default());
                Value::Long(writer.finish())
            }
            Str::Short(short) => {
                scratch.extend_from_slice(short);
                scratch.resize(len, 0);
                scratch[at..at + bytes.len()].copy_from_slice(bytes);
                let result = self.put(key, Value::Short(&scratch), tag, true, Expiry::Keep, now);
                scratch.clear();
                self.scratch = scratch;
                return result;
            }
        };
        self.put(key, value, tag, true, Expiry::Keep, now)
    }

    /// `long` with `bytes` from `at` on.
    fn changed_long(&mut self, long: &Long, at: usize, bytes: &[u8], now: u64) -> Result<Long, Error> {
        // What has pieces of two stores would be counted by neither.
        if long.is_lent() {
            let own = self.copy(long, now)?;
            return self.changed_long(&own, at, bytes, now);
        }
        let end = at + bytes.len();
        let old = long.rewritten(at, end);
        let mut writer = self.long(old.end.max(end) - old.start, now)?;
        writer.fill_from(long, old.start..at.min(old.end));
        writer.fill_zeros(at.saturating_sub(long.len()));
        writer.fill(bytes);
        writer.fill_from(long, end.min(old.end)..old.end);
        Ok(long.with(old, &writer.finish()))
    }

    /// The string at `location`.
    #[inline]
    pub(in crate::store) fn string(&self, location: Location) -> Result<Str<'_>, Error> {
        let slot = self.heap.at(location);
        string(&self.longs, Item(slot).head(), slot)
    }

    /// Whether a value of `len` bytes under `key` lies in the arena.
    #[inline]
    pub(in crate::store) fn is_long(&self, _key: &Key, len: usize) -> bool {
        len >= self.long
    }

    /// Puts a string under `key`.
    pub(in crate::store) fn put(
        &mut self,
        key: &Key,
        value: Value<'_>,
        tag: Option<Tag>,
        changed: bool,
        expiry: Expiry,
        now: u64,
    ) -> Result<(), Error> {
        match value {
            Value::Short(value) if !self.is_long(key, value.len()) => {
                self.write(key, What { form: Form::Short, value, tag, changed, stays: false }, expiry, now)
            }
            Value::Short(value) => {
                let expiry = self.kept(key, expiry, now);
                let long = self.long_of(value, now)?;
                self.put_long(key, long, tag, changed, expiry, now)
            }
            Value::Long(long) if !self.is_long(key, long.len()) => {
                let value = Str::Long(&long).to_vec();
                self.write(key, What { form: Form::Short, value: &value, tag, changed, stays: false }, expiry, now)
            }
            Value::Long(long) => {
                let expiry = self.kept(key, expiry, now);
                let long = self.own(long, now)?;
                self.put_long(key, long, tag, changed, expiry, now)
            }
        }
    }

    /// When what is to be put under `key` expires, where that may be as what is there does: that may go to make room for it.
    fn kept(&mut self, key: &Key, expiry: Expiry, now: u64) -> Expiry {
        match expiry {
            Expiry::Keep => self.expires_at(key, now).flatten().map_or(Expiry::Never, Expiry::At),
            other => other,
        }
    }

    /// A copy of `bytes` in the arena.
    pub(in crate::store) fn long_of(&mut self, bytes: &[u8], now: u64) -> Result<Long, Error> {
        let mut writer = self.long(bytes.len(), now)?;
        writer.fill(bytes);
        Ok(writer.finish())
    }

    fn put_long(
        &mut self,
        key: &Key,
        long: Long,
        tag: Option<Tag>,
        changed: bool,
        expiry: Expiry,
        now: u64,
    ) -> Result<(), Error> {
        let number = self.keep_long(long, now)?;
        let value = &number.to_le_bytes();
        let result = self.write(key, What { form: Form::Long, value, tag, changed, stays: false }, expiry, now);
        if result.is_err() {
            self.drop_long(number);
        }
        result
    }

    /// Writes an item under `key`, instead of whatever is there.
    pub(in crate::store) fn write(&mut self, key: &Key, what: What<'_>, expiry: Expiry, now: u64) -> Result<(), Error> {
        if what.stays {
            return self.with_pinned(key, |store| store.write_item(key, what, expiry, now));
        }
        self.write_item(key, what, expiry, now)
    }

    fn write_item(&mut self, key: &Key, what: What<'_>, expiry: Expiry, now: u64) -> Result<(), Error> {
        if key.bytes.len() > Self::LONGEST_KEY {
            return Err(Error::TooLong);
        }
        let What { form, value, tag, changed, stays } = what;
        let old = self.find(key, now);
        let expires_at = match (expiry, old) {
            (Expiry::Never, _) | (Expiry::Keep, None) => None,
            (Expiry::At(at), _) => Some(at),
            (Expiry::Keep, Some(old)) => self.item(old).expires_at(),
        };
        let space = self.spaces.current(key.space);
        let draft = Draft { form, space, key: key.bytes, expires: expires_at.is_some(), tag, len: value.len() };
        let before = old.map(|old| self.item(old).access());
        let access = if stays { before } else { None }.unwrap_or_else(|| self.evict.note(before, now, 0));
        if let Some(old) = old {
            let item = self.item(old);
            let is_alike = item.expires() == draft.expires && item.tag().is_some() == tag.is_some();
            if is_alike && Heap::slot_len(draft.size()) == self.heap.slot_at(old) {
                if !stays {
                    self.release_value(old);
                }
                let mut item = Item(self.heap.at_mut(old));
                item.set_form(form);
                item.set_access(access);
                item.set_changed(changed);
                item.set_value_len(value.len());
                item.value_mut().copy_from_slice(value);
                if let Some(tag) = tag {
                    item.set_tag(tag);
                }
                if let Some(at) = expires_at {
                    self.put_off(old, at);
                }
                self.wrote(key.hash, old);
                return Ok(());
            }
        }
        // What is overwritten may be what goes.
        self.make_room(draft.size(), 1, Some(key), now)?;
        let location = self.heap.allocate(draft.size()).ok_or(Error::Full)?;
        let slot = self.heap.at_mut(location);
        draft.write(slot).copy_from_slice(value);
        let mut item = Item(slot);
        item.set_access(access);
        item.set_changed(changed);
        if let Some(at) = expires_at {
            item.set_expires_at(at);
            self.wheel.insert(location, &mut self.heap);
            self.spaces.expires(space);
        }
        match self.find_any(key) {
            Some(old) => {
                self.index.relocate(key.hash, old, location);
                if !stays {
                    self.release_value(old);
                }
                self.free(old);
            }
            None => {
                self.index.insert(key.hash, location);
                self.spaces.added(space, self.index.cursor_of(key.hash));
            }
        }
        self.wrote(key.hash, location);
        Ok(())
    }

    /// The item at `location`, which expires some time, does so at `at`.
    pub(in crate::store) fn put_off(&mut self, location: Location, at: u64) {
        if self.wheel.may_stay(location, at, &self.heap) {
            Item(self.heap.at_mut(location)).set_expires_at(at);
        } else {
            self.wheel.remove(location, &mut self.heap);
            Item(self.heap.at_mut(location)).set_expires_at(at);
            self.wheel.insert(location, &mut self.heap);
        }
    }
}

/// The string that the item in `slot` is, which begins with `head` and may be one of `longs`.
#[inline(always)]
pub(in crate::store) fn string<'a>(longs: &'a Slab<Long>, head: Head, slot: &'a [u8]) -> Result<Str<'a>, Error> {
    match head.form() {
        Form::Short => Ok(Str::Short(head.value_of(slot))),
        Form::Long => longs.get(Item(slot).number()).map(Str::Long).ok_or(Error::WrongType),
        _ => Err(Error::WrongType),
    }
}
