//! Operations on strings.

use crate::store::memory::Location;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::{Form, Item, ItemHeader, ItemMeta, NewItem};
use crate::store::memory::slab::Slab;
use crate::store::{Error, Expiry, Key, Store};
use crate::value::{Long, Str, Value};

/// Item contents to be written under a key.
#[derive(Clone, Copy)]
pub(in crate::store) struct NewValue<'a> {
    pub form: Form,
    pub value: &'a [u8],
    pub meta: Option<ItemMeta>,
    /// [`Item::is_changed`] of the new item.
    pub changed: bool,
    /// True if the new item takes over the external part of the old value.
    pub keeps_value: bool,
}

impl Store {
    /// Returns the string under `key` at `now` and records a use.
    #[inline]
    pub fn get(&mut self, key: &Key, now: u64) -> Result<Option<Str<'_>>, Error> {
        let Some((location, head)) = self.find_with_header(key, now) else { return Ok(None) };
        let slot = self.heap.at_mut(location);
        self.evict.record_use(Item(&mut *slot), head.access(), now, &mut self.rng);
        string(&self.longs, head, slot).map(Some)
    }

    /// Returns the string under `key` at `now` without recording a use.
    #[inline]
    pub fn peek(&mut self, key: &Key, now: u64) -> Result<Option<Str<'_>>, Error> {
        match self.find(key, now) {
            Some(location) => self.string(location).map(Some),
            None => Ok(None),
        }
    }

    /// Stores `value` under `key`, replacing any value.
    #[inline]
    pub fn set<'v>(&mut self, key: &Key, value: impl Into<Value<'v>>, expiry: Expiry, now: u64) -> Result<(), Error> {
        self.put(key, value.into(), None, false, expiry, now)
    }

    /// [`set`](Self::set) with the client flags and marks of a memcached client. Returns the CAS value.
    pub fn set_with_meta<'v>(
        &mut self,
        key: &Key,
        value: impl Into<Value<'v>>,
        flags: u32,
        marks: u8,
        expiry: Expiry,
        now: u64,
    ) -> Result<u64, Error> {
        let cas = self.last_cas + 1;
        self.put(key, value.into(), Some(ItemMeta { flags, cas, marks }), false, expiry, now)?;
        self.last_cas = cas;
        Ok(cas)
    }

    /// Returns the memcached metadata of the value under `key`. Zeros if no memcached client set it.
    pub fn meta(&mut self, key: &Key, now: u64) -> Option<ItemMeta> {
        let location = self.find(key, now)?;
        Some(self.item(location).meta().unwrap_or(ItemMeta { flags: 0, cas: 0, marks: 0 }))
    }

    /// Replaces the metadata of the value under `key`. Returns false unless the value was stored by
    /// [`set_with_meta`](Self::set_with_meta).
    pub fn set_meta(&mut self, key: &Key, meta: ItemMeta, now: u64) -> bool {
        let Some(location) = self.find(key, now) else { return false };
        let mut item = Item(self.heap.at_mut(location));
        let has_tag = item.meta().is_some();
        if has_tag {
            item.set_meta(meta);
            self.last_cas = self.last_cas.max(meta.cas);
        }
        has_tag
    }

    /// Returns a CAS value that no value has had.
    pub fn next_cas(&mut self) -> u64 {
        self.last_cas += 1;
        self.last_cas
    }

    /// Appends `bytes` to the string under `key`. Returns its new length.
    pub fn append(&mut self, key: &Key, bytes: &[u8], now: u64) -> Result<usize, Error> {
        let Some(location) = self.find_and_touch(key, now) else {
            self.put(key, Value::Short(bytes), None, false, Expiry::Never, now)?;
            return Ok(bytes.len());
        };
        let len = self.string(location)?.len();
        if !bytes.is_empty() {
            self.write_part(key, location, len, bytes, now)?;
        }
        Ok(len + bytes.len())
    }

    /// Writes `bytes` at offset `at` of the string under `key`, padding with zeros if necessary. Returns its new
    /// length.
    pub fn set_range(&mut self, key: &Key, at: usize, bytes: &[u8], now: u64) -> Result<usize, Error> {
        let location = self.find_and_touch(key, now);
        let len = match location {
            Some(location) => self.string(location)?.len(),
            None => 0,
        };
        if bytes.is_empty() {
            return Ok(len);
        }
        match location {
            Some(location) => self.write_part(key, location, at, bytes, now)?,
            None => self.replace_part(key, None, at, bytes, now)?,
        }
        Ok(len.max(at + bytes.len()))
    }

    /// Writes `bytes` at offset `at` of the string at `location`, of `key`.
    fn write_part(&mut self, key: &Key, location: Location, at: usize, bytes: &[u8], now: u64) -> Result<(), Error> {
        let item = self.item(location);
        if item.form() == Form::Short && item.value().len() >= at + bytes.len() {
            let mut item = Item(self.heap.at_mut(location));
            item.value_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            item.set_changed(true);
            self.note_write(key.hash, location);
            return Ok(());
        }
        self.with_pinned(key, |store| store.replace_part(key, Some(location), at, bytes, now))
    }

    /// [`write_part`](Self::write_part) by storing another value.
    fn replace_part(
        &mut self,
        key: &Key,
        old: Option<Location>,
        at: usize,
        bytes: &[u8],
        now: u64,
    ) -> Result<(), Error> {
        let meta = old.and_then(|old| self.item(old).meta());
        let mut scratch = std::mem::take(&mut self.scratch);
        let before = match old {
            Some(old) => self.string(old)?,
            None => Str::Short(&[]),
        };
        let len = before.len().max(at + bytes.len());
        let value = match before {
            Str::Long(long) => {
                let long = long.clone();
                Value::Long(self.long_with_part(&long, at, bytes, now)?)
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
                let result = self.put(key, Value::Short(&scratch), meta, true, Expiry::Keep, now);
                scratch.clear();
                self.scratch = scratch;
                return result;
            }
        };
        self.put(key, value, meta, true, Expiry::Keep, now)
    }

    fn long_with_part(&mut self, long: &Long, at: usize, bytes: &[u8], now: u64) -> Result<Long, Error> {
        // Neither store would count a value with parts of both.
        if long.is_lent() {
            let own = self.copy(long, now)?;
            return self.long_with_part(&own, at, bytes, now);
        }
        let end = at + bytes.len();
        let old = long.rewrite_range(at, end);
        let mut writer = self.long(old.end.max(end) - old.start, now)?;
        writer.fill_from(long, old.start..at.min(old.end));
        writer.fill_zeros(at.saturating_sub(long.len()));
        writer.fill(bytes);
        writer.fill_from(long, end.min(old.end)..old.end);
        Ok(long.with_replaced(old, &writer.finish()))
    }

    #[inline]
    pub(in crate::store) fn string(&self, location: Location) -> Result<Str<'_>, Error> {
        let slot = self.heap.at(location);
        string(&self.longs, Item(slot).header(), slot)
    }

    /// Returns true if a value of `len` bytes is stored in the arena.
    #[inline]
    pub(in crate::store) fn is_long(&self, _key: &Key, len: usize) -> bool {
        len >= self.long
    }

    /// Stores a string under `key`.
    pub(in crate::store) fn put(
        &mut self,
        key: &Key,
        value: Value<'_>,
        meta: Option<ItemMeta>,
        changed: bool,
        expiry: Expiry,
        now: u64,
    ) -> Result<(), Error> {
        match value {
            Value::Short(value) if !self.is_long(key, value.len()) => {
                self.write(key, NewValue { form: Form::Short, value, meta, changed, keeps_value: false }, expiry, now)
            }
            Value::Short(value) => {
                let expiry = self.resolve_expiry(key, expiry, now);
                let long = self.copy_to_arena(value, now)?;
                self.put_long(key, long, meta, changed, expiry, now)
            }
            Value::Long(long) if !self.is_long(key, long.len()) => {
                let value = Str::Long(&long).to_vec();
                self.write(
                    key,
                    NewValue { form: Form::Short, value: &value, meta, changed, keeps_value: false },
                    expiry,
                    now,
                )
            }
            Value::Long(long) => {
                let expiry = self.resolve_expiry(key, expiry, now);
                let long = self.adopt(long, now)?;
                self.put_long(key, long, meta, changed, expiry, now)
            }
        }
    }

    /// Replaces [`Expiry::Keep`] by the current expiry time of `key`: making room may evict the old value.
    fn resolve_expiry(&mut self, key: &Key, expiry: Expiry, now: u64) -> Expiry {
        match expiry {
            Expiry::Keep => self.expires_at(key, now).flatten().map_or(Expiry::Never, Expiry::At),
            other => other,
        }
    }

    pub(in crate::store) fn copy_to_arena(&mut self, bytes: &[u8], now: u64) -> Result<Long, Error> {
        let mut writer = self.long(bytes.len(), now)?;
        writer.fill(bytes);
        Ok(writer.finish())
    }

    fn put_long(
        &mut self,
        key: &Key,
        long: Long,
        meta: Option<ItemMeta>,
        changed: bool,
        expiry: Expiry,
        now: u64,
    ) -> Result<(), Error> {
        let number = self.insert_long(long, now)?;
        let value = &number.to_le_bytes();
        let result =
            self.write(key, NewValue { form: Form::Long, value, meta, changed, keeps_value: false }, expiry, now);
        if result.is_err() {
            self.remove_long(number);
        }
        result
    }

    /// Writes an item under `key`, replacing any value.
    pub(in crate::store) fn write(
        &mut self,
        key: &Key,
        new: NewValue<'_>,
        expiry: Expiry,
        now: u64,
    ) -> Result<(), Error> {
        if new.keeps_value {
            return self.with_pinned(key, |store| store.write_item(key, new, expiry, now));
        }
        self.write_item(key, new, expiry, now)
    }

    fn write_item(&mut self, key: &Key, new: NewValue<'_>, expiry: Expiry, now: u64) -> Result<(), Error> {
        if key.bytes.len() > Self::LONGEST_KEY {
            return Err(Error::TooLong);
        }
        let NewValue { form, value, meta, changed, keeps_value } = new;
        let old = self.find(key, now);
        let expires_at = match (expiry, old) {
            (Expiry::Never, _) | (Expiry::Keep, None) => None,
            (Expiry::At(at), _) => Some(at),
            (Expiry::Keep, Some(old)) => self.item(old).expires_at(),
        };
        let space = self.keyspaces.current(key.space);
        let draft = NewItem { form, space, key: key.bytes, expires: expires_at.is_some(), meta, len: value.len() };
        let before = old.map(|old| self.item(old).access());
        let access =
            if keeps_value { before } else { None }.unwrap_or_else(|| self.evict.updated_access(before, now, 0));
        if let Some(old) = old {
            let item = self.item(old);
            let is_alike = item.expires() == draft.expires && item.meta().is_some() == meta.is_some();
            if is_alike && Heap::slot_len(draft.size()) == self.heap.slot_at(old) {
                if !keeps_value {
                    self.release_value(old);
                }
                let mut item = Item(self.heap.at_mut(old));
                item.set_form(form);
                item.set_access(access);
                item.set_changed(changed);
                item.set_value_len(value.len());
                item.value_mut().copy_from_slice(value);
                if let Some(meta) = meta {
                    item.set_meta(meta);
                }
                if let Some(at) = expires_at {
                    self.set_item_expiry(old, at);
                }
                self.note_write(key.hash, old);
                return Ok(());
            }
        }
        // Making room may evict the old value, so it is looked up again below.
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
            self.keyspaces.expires(space);
        }
        match self.find_ignoring_expiry(key) {
            Some(old) => {
                self.index.relocate(key.hash, old, location);
                if !keeps_value {
                    self.release_value(old);
                }
                self.free(old);
            }
            None => {
                self.index.insert(key.hash, location);
                self.keyspaces.add_item(space, self.index.cursor_of(key.hash));
            }
        }
        self.note_write(key.hash, location);
        Ok(())
    }

    /// Changes the expiry time of the item at `location`, which has one.
    pub(in crate::store) fn set_item_expiry(&mut self, location: Location, at: u64) {
        if self.wheel.may_stay(location, at, &self.heap) {
            Item(self.heap.at_mut(location)).set_expires_at(at);
        } else {
            self.wheel.remove(location, &mut self.heap);
            Item(self.heap.at_mut(location)).set_expires_at(at);
            self.wheel.insert(location, &mut self.heap);
        }
    }
}

#[inline(always)]
pub(in crate::store) fn string<'a>(longs: &'a Slab<Long>, head: ItemHeader, slot: &'a [u8]) -> Result<Str<'a>, Error> {
    match head.form() {
        Form::Short => Ok(Str::Short(head.value_of(slot))),
        Form::Long => longs.get(Item(slot).number()).map(Str::Long).ok_or(Error::WrongType),
        _ => Err(Error::WrongType),
    }
}
