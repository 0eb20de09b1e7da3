//! Operations on keys with values of any type.

use crate::store::memory::item::{Form, ItemMeta};
use crate::store::values::strings::NewValue;
use crate::store::{Error, Expiry, Key, Store, ValueType};
use crate::value::{Long, Str, Value};
use std::ops::Range;

/// Owned value of a string or field.
#[derive(Debug, Clone)]
pub(in crate::store) enum OwnedStr {
    Short(Vec<u8>),
    Long(Long),
}

/// Value removed from its key, to be stored under another key, perhaps in another store.
#[derive(Debug, Clone)]
pub struct DumpedValue {
    pub(in crate::store) value: OwnedValue,
    expires_at: Option<u64>,
    meta: Option<ItemMeta>,
    changed: bool,
}

#[derive(Debug, Clone)]
pub(in crate::store) enum OwnedValue {
    String(OwnedStr),
    Hash(Vec<(Vec<u8>, OwnedStr)>),
}

impl OwnedStr {
    pub fn value(&self) -> Value<'_> {
        match self {
            OwnedStr::Short(bytes) => Value::Short(bytes),
            OwnedStr::Long(long) => Value::Long(long.clone()),
        }
    }
}

impl std::convert::From<Str<'_>> for OwnedStr {
    fn from(bytes: Str<'_>) -> Self {
        match bytes {
            Str::Short(bytes) => OwnedStr::Short(bytes.to_vec()),
            Str::Long(long) => OwnedStr::Long(long.clone()),
        }
    }
}

impl Store {
    #[inline]
    pub fn value_type(&mut self, key: &Key, now: u64) -> Option<ValueType> {
        let location = self.find(key, now)?;
        Some(self.item(location).form().value_type())
    }

    #[inline]
    pub fn exists(&mut self, key: &Key, now: u64) -> bool {
        self.find(key, now).is_some()
    }

    /// [`exists`](Self::exists) that also records a use.
    pub fn touch(&mut self, key: &Key, now: u64) -> bool {
        self.find_and_touch(key, now).is_some()
    }

    /// Removes `key`. Returns false if it did not exist at `now`.
    pub fn remove(&mut self, key: &Key, now: u64) -> bool {
        let Some(location) = self.find(key, now) else { return false };
        self.watches.changed(key.hash);
        self.remove_item(key.hash, location);
        true
    }

    /// Returns the expiry time of `key`: `None` if it does not exist, `Some(None)` if it does not expire.
    pub fn expires_at(&mut self, key: &Key, now: u64) -> Option<Option<u64>> {
        let location = self.find(key, now)?;
        Some(self.item(location).expires_at())
    }

    /// Sets or removes the expiry time of `key`. Returns false if it does not exist.
    pub fn set_expiry(&mut self, key: &Key, at: Option<u64>, now: u64) -> Result<bool, Error> {
        let Some(location) = self.find(key, now) else { return Ok(false) };
        let item = self.item(location);
        match (item.expires(), at) {
            (false, None) => {}
            (true, Some(at)) => {
                self.set_item_expiry(location, at);
                self.note_write(key.hash, location);
            }
            // The layout of the item changes, so it is written anew.
            _ => self.rewrite_item(key, location, at, now)?,
        }
        Ok(true)
    }

    /// Rewrites the item at `location`, of `key`, with the expiry time `at`.
    pub(in crate::store) fn rewrite_item(
        &mut self,
        key: &Key,
        location: crate::store::Location,
        at: Option<u64>,
        now: u64,
    ) -> Result<(), Error> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let item = self.item(location);
        let (form, meta, changed) = (item.form(), item.meta(), item.is_changed());
        scratch.extend_from_slice(item.value());
        let new = NewValue { form, value: &scratch, meta, changed, keeps_value: true };
        let result = self.write(key, new, at.map_or(Expiry::Never, Expiry::At), now);
        scratch.clear();
        self.scratch = scratch;
        result
    }

    /// Returns a copy of the value under `key`. The time is linear in the bytes of a short string or the fields of a
    /// hash.
    pub fn dump(&mut self, key: &Key, now: u64) -> Option<DumpedValue> {
        let location = self.find(key, now)?;
        let value = match self.string(location) {
            Ok(string) => OwnedValue::String(string.into()),
            Err(_) => {
                let mut fields = Vec::new();
                let visit = |field: &[u8], value: Str<'_>| fields.push((field.to_vec(), value.into()));
                self.hvisit(key, now, visit).ok()?;
                OwnedValue::Hash(fields)
            }
        };
        let item = self.item(location);
        Some(DumpedValue { value, expires_at: item.expires_at(), meta: item.meta(), changed: item.is_changed() })
    }

    /// Moves the value of `from` with its expiry time to `to`, replacing any value. The time does not depend on the
    /// number of fields of a hash. Returns false if `from` does not exist. If memory is full, nothing changes, except
    /// that the old value of `to` may be evicted.
    ///
    /// # Panics
    /// Panics if the keys are equal.
    pub fn rename(&mut self, from: &Key, to: &Key, now: u64) -> Result<bool, Error> {
        assert!((from.space, from.bytes) != (to.space, to.bytes), "the keys of a rename are equal");
        let Some(location) = self.find(from, now) else { return Ok(false) };
        let mut scratch = std::mem::take(&mut self.scratch);
        let item = self.item(location);
        let (form, meta, changed) = (item.form(), item.meta(), item.is_changed());
        let expiry = item.expires_at().map_or(Expiry::Never, Expiry::At);
        scratch.extend_from_slice(item.value());
        let new = NewValue { form, value: &scratch, meta, changed, keeps_value: false };
        // Until the old item is removed, both items refer to the same value, which an eviction of `from` would release.
        let result = self.with_pinned(from, |store| store.write(to, new, expiry, now));
        scratch.clear();
        self.scratch = scratch;
        result?;
        if form.value_type() == ValueType::Hash {
            self.unexport_string(to);
        }
        self.watches.changed(from.hash);
        // The write may have moved the item.
        if let Some(location) = self.find_ignoring_expiry(from) {
            self.unlink(from.hash, location);
            self.free(location);
        }
        Ok(true)
    }

    /// Stores a copied value under `key`, replacing any value. The time is linear in the fields of a hash. If memory is
    /// full, `key` is removed.
    pub fn restore(&mut self, key: &Key, owned: DumpedValue, now: u64) -> Result<(), Error> {
        let DumpedValue { value, expires_at, meta, changed } = owned;
        let expiry = expires_at.map_or(Expiry::Never, Expiry::At);
        let result = match value {
            OwnedValue::String(value) => self.put(key, value.value(), meta, changed, expiry, now),
            OwnedValue::Hash(fields) => self.restore_hash(key, fields, expires_at, now),
        };
        if result.is_err() {
            self.remove(key, now);
        }
        result
    }

    fn restore_hash(
        &mut self,
        key: &Key,
        mut fields: Vec<(Vec<u8>, OwnedStr)>,
        expires_at: Option<u64>,
        now: u64,
    ) -> Result<(), Error> {
        self.remove(key, now);
        // In the order of a scan, the fields would fill one bucket after the other to many times its size.
        self.rng.shuffle(&mut fields);
        for (field, value) in fields {
            self.hset(key, &field, value.value(), now)?;
        }
        self.set_expiry(key, expires_at, now)?;
        Ok(())
    }

    /// Calls `visit` with keys of `space` from `cursor` on. The first cursor is 0. Returns the next cursor, or 0 at the
    /// end. A key that exists throughout is visited at least once. A call examines about `count` index slots.
    pub fn scan(&self, space: u8, cursor: u64, count: usize, now: u64, mut visit: impl FnMut(&[u8], ValueType)) -> u64 {
        let space = self.keyspaces.current(space);
        self.index.scan(cursor, count, |location| {
            let item = self.item(location);
            if item.space() == space && item.expires_at().is_none_or(|at| at > now) {
                visit(item.key(), item.form().value_type());
            }
        })
    }

    /// Returns a random key of `space`. If only a small part of all keys is in `space`, it returns a key near the last
    /// one added or found. If that key and its neighbours are gone, all keys are examined.
    pub fn random_key(&mut self, space: u8, now: u64) -> Option<Vec<u8>> {
        /// Number of random items examined, which suffices if most keys are in the keyspace.
        const TRIES: usize = 64;
        /// Adjacent index slots examined at a time after that.
        const NEAR: usize = 2048;
        if self.len(space) == 0 {
            return None;
        }
        let number = self.keyspaces.current(space);
        for _ in 0..TRIES {
            let location = self.index.sample(self.rng.u64(..))?;
            let item = self.item(location);
            if item.space() == number && item.expires_at().is_none_or(|at| at > now) {
                return Some(item.key().to_vec());
            }
        }
        let start = self.keyspaces.near(space);
        let (mut cursor, mut ends, mut found) = (start, 0, None);
        while found.is_none() && ends < 2 && (ends == 0 || cursor < start) {
            cursor = self.scan(space, cursor, NEAR, now, |key, _| found = Some(key.to_vec()));
            ends += usize::from(cursor == 0);
        }
        if let Some(found) = &found {
            let hash = self.key(space, found).hash;
            self.keyspaces.set_near(space, self.index.cursor_of(hash));
        }
        found
    }

    /// Returns the number of keys in `space`, including expired keys that are not removed yet.
    pub fn len(&self, space: u8) -> usize {
        self.keyspaces.len(space)
    }

    pub fn expiring(&self, space: u8) -> usize {
        self.keyspaces.expiring(space)
    }

    pub fn is_empty(&self) -> bool {
        self.index.len() == self.keyspaces.flushed()
    }

    /// Returns true if all of `spaces` can be flushed in constant time. Otherwise dead keys of too many flushes remain,
    /// and about `most` index slots are examined for dead keys, which are removed.
    pub fn prepare_flush(&mut self, spaces: Range<u8>, most: usize) -> bool {
        if !self.keyspaces.can_flush(spaces.clone()) {
            self.sweep_some(most);
        }
        self.keyspaces.can_flush(spaces)
    }

    /// Removes all keys of `space`. Their memory is freed in the background. If dead keys of some 200 flushes remain,
    /// the call first removes all of them, which takes time linear in their number.
    /// [`prepare_flush`](Self::prepare_flush) avoids that.
    pub fn flush(&mut self, space: u8) {
        self.watches.flushed(space);
        while !self.keyspaces.flush(space) {
            self.sweep_some(usize::MAX);
        }
        self.unexport_all(space);
    }

    pub fn size_of(&mut self, key: &Key, now: u64) -> Option<usize> {
        let location = self.find(key, now)?;
        Some(self.size_at(location))
    }

    /// Returns the encoding that Redis would use for the value (`OBJECT ENCODING`).
    pub fn encoding(&mut self, key: &Key, now: u64) -> Option<&'static str> {
        let location = self.find(key, now)?;
        let item = self.item(location);
        Some(match item.form() {
            Form::Short if item.is_changed() => "raw",
            Form::Short => string_encoding(item.value()),
            Form::Long => "raw",
            _ => self.hash_encoding(location),
        })
    }

    /// Returns the seconds since the last recorded use (`OBJECT IDLETIME`).
    pub fn idle(&mut self, key: &Key, now: u64) -> Option<u64> {
        let location = self.find(key, now)?;
        Some(self.evict.idle(self.item(location).access(), now))
    }

    /// Returns the use counter from 0 to 255 (`OBJECT FREQ`).
    pub fn frequency(&mut self, key: &Key, now: u64) -> Option<u8> {
        let location = self.find(key, now)?;
        Some(self.evict.frequency(self.item(location).access(), now))
    }

    /// Starts to record changes of `key`. Returns its [version](Self::version).
    pub fn watch(&mut self, key: &Key) -> u64 {
        self.has_observers = true;
        self.watches.watch(key.hash)
    }

    /// Ends a [`watch`](Self::watch).
    pub fn unwatch(&mut self, key: &Key) {
        self.watches.unwatch(key.hash);
        self.has_observers = self.export.is_some() || !self.watches.is_empty();
    }

    /// Returns the version of a watched key, which differs after every change except a [flush](Self::flushes). An
    /// expiry counts when the key is removed, for example by a lookup.
    pub fn version(&self, key: &Key) -> u64 {
        self.watches.version(key.hash)
    }

    /// Returns the number of flushes of `space`. A flush changes all existing keys, so a watched key that existed when
    /// the watch began has changed if this number has.
    pub fn flushes(&self, space: u8) -> u64 {
        self.watches.flushes(space)
    }
}

/// Returns the encoding that Redis would use for a string.
fn string_encoding(bytes: &[u8]) -> &'static str {
    let is_number = || {
        let text = std::str::from_utf8(bytes).ok()?;
        let number: i64 = text.parse().ok()?;
        (number.to_string() == text).then_some(())
    };
    match bytes.len() {
        1..=20 if is_number().is_some() => "int",
        0..=44 => "embstr",
        _ => "raw",
    }
}
