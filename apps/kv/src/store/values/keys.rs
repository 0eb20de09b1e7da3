//! Keys, whatever is under them.

use crate::store::memory::item::{Form, Tag};
use crate::store::memory::long_value::{Long, Str, Value};
use crate::store::values::strings::What;
use crate::store::{Error, Expiry, Key, Kind, Store};
use std::ops::Range;

/// The bytes of a string or a field that are nobody else's.
#[derive(Debug, Clone)]
pub(in crate::store) enum OwnedStr {
    Short(Vec<u8>),
    Long(Long),
}

/// What was under a key: to be put under another, perhaps another store's.
#[derive(Debug, Clone)]
pub struct Owned {
    pub(in crate::store) value: OwnedValue,
    expires_at: Option<u64>,
    tag: Option<Tag>,
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
    /// What is under `key` at `now`.
    #[inline]
    pub fn kind(&mut self, key: &Key, now: u64) -> Option<Kind> {
        let location = self.find(key, now)?;
        Some(self.item(location).form().kind())
    }

    /// Whether anything is under `key` at `now`.
    #[inline]
    pub fn exists(&mut self, key: &Key, now: u64) -> bool {
        self.find(key, now).is_some()
    }

    /// As [`exists`](Self::exists), and it has been used once more.
    pub fn touch(&mut self, key: &Key, now: u64) -> bool {
        self.find_used(key, now).is_some()
    }

    /// Takes away what is under `key`. Returns whether anything was, at `now`.
    pub fn remove(&mut self, key: &Key, now: u64) -> bool {
        let Some(location) = self.find(key, now) else { return false };
        self.watches.changed(key.hash);
        self.drop_item(key.hash, location);
        true
    }

    /// When what is under `key` at `now` expires: `None` if nothing is, `Some(None)` if it does not.
    pub fn expires_at(&mut self, key: &Key, now: u64) -> Option<Option<u64>> {
        let location = self.find(key, now)?;
        Some(self.item(location).expires_at())
    }

    /// What is under `key` expires at `at`, or never. Returns whether anything is.
    pub fn set_expiry(&mut self, key: &Key, at: Option<u64>, now: u64) -> Result<bool, Error> {
        let Some(location) = self.find(key, now) else { return Ok(false) };
        let item = self.item(location);
        match (item.expires(), at) {
            (false, None) => {}
            (true, Some(at)) => {
                self.put_off(location, at);
                self.wrote(key.hash, location);
            }
            // The item gets a part more, or has one less: it is another.
            _ => self.rewrite(key, location, at, now)?,
        }
        Ok(true)
    }

    /// Another item in place of that at `location`, of `key`, which expires at `at`.
    pub(in crate::store) fn rewrite(
        &mut self,
        key: &Key,
        location: crate::store::Location,
        at: Option<u64>,
        now: u64,
    ) -> Result<(), Error> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let item = self.item(location);
        let (form, tag, changed) = (item.form(), item.tag(), item.is_changed());
        scratch.extend_from_slice(item.value());
        let what = What { form, value: &scratch, tag, changed, stays: true };
        let result = self.write(key, what, at.map_or(Expiry::Never, Expiry::At), now);
        scratch.clear();
        self.scratch = scratch;
        result
    }

    /// A copy of what is under `key`. It takes as long as there are bytes of a short string or fields of a hash.
    pub fn export(&mut self, key: &Key, now: u64) -> Option<Owned> {
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
        Some(Owned { value, expires_at: item.expires_at(), tag: item.tag(), changed: item.is_changed() })
    }

    /// Moves the value of `from` to `to`, with its time to expire, in place of the value there. The time does not depend on the number of
    /// fields of a hash. Returns false if nothing is under `from`. If there is no memory, both are as they were, unless what was under
    /// `to` has been evicted.
    ///
    /// # Panics
    /// If the keys are the same.
    pub fn rename(&mut self, from: &Key, to: &Key, now: u64) -> Result<bool, Error> {
        assert!((from.space, from.bytes) != (to.space, to.bytes), "a key is not renamed to itself");
        let Some(location) = self.find(from, now) else { return Ok(false) };
        let mut scratch = std::mem::take(&mut self.scratch);
        let item = self.item(location);
        let (form, tag, changed) = (item.form(), item.tag(), item.is_changed());
        let expiry = item.expires_at().map_or(Expiry::Never, Expiry::At);
        scratch.extend_from_slice(item.value());
        let what = What { form, value: &scratch, tag, changed, stays: false };
        // Until the item is removed, both lead to the same value: what makes room must not release it.
        let result = self.with_pinned(from, |store| store.write(to, what, expiry, now));
        scratch.clear();
        self.scratch = scratch;
        result?;
        if form.kind() == Kind::Hash {
            self.withdraw_string(to);
        }
        self.watches.changed(from.hash);
        // It may lie elsewhere now.
        if let Some(location) = self.find_any(from) {
            self.unlink(from.hash, location);
            self.free(location);
        }
        Ok(true)
    }

    /// Puts what was under another key under `key`, instead of whatever is there. A hash takes as long as there are fields. If there is no memory for it, nothing is
    /// under `key`.
    pub fn import(&mut self, key: &Key, owned: Owned, now: u64) -> Result<(), Error> {
        let Owned { value, expires_at, tag, changed } = owned;
        let expiry = expires_at.map_or(Expiry::Never, Expiry::At);
        let result = match value {
            OwnedValue::String(value) => self.put(key, value.value(), tag, changed, expiry, now),
            OwnedValue::Hash(fields) => self.import_hash(key, fields, expires_at, now),
        };
        if result.is_err() {
            self.remove(key, now);
        }
        result
    }

    fn import_hash(
        &mut self,
        key: &Key,
        fields: Vec<(Vec<u8>, OwnedStr)>,
        expires_at: Option<u64>,
        now: u64,
    ) -> Result<(), Error> {
        self.remove(key, now);
        for (field, value) in fields {
            self.hset(key, &field, value.value(), now)?;
        }
        self.set_expiry(key, expires_at, now)?;
        Ok(())
    }

    /// Calls `visit` with keys of `space` from `cursor` on, which is 0 at first. Returns the next cursor, 0 at the end. What is
    /// there throughout is visited, perhaps twice. It looks at about `count` places.
    pub fn scan(&self, space: u8, cursor: u64, count: usize, now: u64, mut visit: impl FnMut(&[u8], Kind)) -> u64 {
        let space = self.spaces.current(space);
        self.index.scan(cursor, count, |location| {
            let item = self.item(location);
            if item.space() == space && item.expires_at().is_none_or(|at| at > now) {
                visit(item.key(), item.form().kind());
            }
        })
    }

    /// One of the keys of `space`, any. Where few keys are of the space, it is one near that which was put in or found last; if
    /// that and its neighbours have gone, all keys are looked at.
    pub fn random_key(&mut self, space: u8, now: u64) -> Option<Vec<u8>> {
        /// Where most keys are of the space, a few tries do.
        const TRIES: usize = 64;
        /// Places beside each other that are looked at, then.
        const NEAR: usize = 2048;
        if self.len(space) == 0 {
            return None;
        }
        let number = self.spaces.current(space);
        for _ in 0..TRIES {
            let location = self.index.sample(self.random.u64(..))?;
            let item = self.item(location);
            if item.space() == number && item.expires_at().is_none_or(|at| at > now) {
                return Some(item.key().to_vec());
            }
        }
        let start = self.spaces.near(space);
        let (mut cursor, mut ends, mut found) = (start, 0, None);
        while found.is_none() && ends < 2 && (ends == 0 || cursor < start) {
            cursor = self.scan(space, cursor, NEAR, now, |key, _| found = Some(key.to_vec()));
            ends += usize::from(cursor == 0);
        }
        if let Some(found) = &found {
            let hash = self.key(space, found).hash;
            self.spaces.set_near(space, self.index.cursor_of(hash));
        }
        found
    }

    /// Keys of `space`, those included that have expired and have not come up.
    pub fn len(&self, space: u8) -> usize {
        self.spaces.len(space)
    }

    /// Those of them that expire some time.
    pub fn expiring(&self, space: u8) -> usize {
        self.spaces.expiring(space)
    }

    /// Whether no key is there, in any space.
    pub fn is_empty(&self) -> bool {
        self.index.len() == self.spaces.flushed()
    }

    /// Returns true if all of `spaces` can be flushed at once. Otherwise too many keys are left of earlier flushes, and those at about
    /// `most` places are removed.
    pub fn prepare_flush(&mut self, spaces: Range<u8>, most: usize) -> bool {
        if !self.spaces.can_flush(spaces.clone()) {
            self.sweep_some(most);
        }
        self.spaces.can_flush(spaces)
    }

    /// Takes away all keys of `space`. Their memory comes back by and by. After some 200 flushes whose keys have not been removed yet,
    /// it removes all of them, which takes as long as there are keys: [`prepare_flush`](Self::prepare_flush) is for those who cannot wait.
    pub fn flush(&mut self, space: u8) {
        self.watches.flushed(space);
        while !self.spaces.flush(space) {
            self.sweep_some(usize::MAX);
        }
        self.withdraw_all(space);
    }

    /// Bytes that what is under `key` takes.
    pub fn size_of(&mut self, key: &Key, now: u64) -> Option<usize> {
        let location = self.find(key, now)?;
        Some(self.size_at(location))
    }

    /// How what is under `key` is kept, as Redis would.
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

    /// Seconds since what is under `key` was used last, as far as that is known.
    pub fn idle(&mut self, key: &Key, now: u64) -> Option<u64> {
        let location = self.find(key, now)?;
        Some(self.evict.idle(self.item(location).access(), now))
    }

    /// How often what is under `key` is used, on a scale from 0 to 255.
    pub fn frequency(&mut self, key: &Key, now: u64) -> Option<u8> {
        let location = self.find(key, now)?;
        Some(self.evict.frequency(self.item(location).access(), now))
    }

    /// Notes changes of `key` from now on. Returns its [version](Self::version).
    pub fn watch(&mut self, key: &Key) -> u64 {
        self.is_heard = true;
        self.watches.watch(key.hash)
    }

    /// Ends a [`watch`](Self::watch).
    pub fn unwatch(&mut self, key: &Key) {
        self.watches.unwatch(key.hash);
        self.is_heard = self.export.is_some() || !self.watches.is_empty();
    }

    /// The version of a watched key: another one after every change but a [flush](Self::flushes). What has expired counts when it
    /// has come up, by a look at the key for one.
    pub fn version(&self, key: &Key) -> u64 {
        self.watches.version(key.hash)
    }

    /// Returns the number of flushes of `space`. A flush changes all keys that exist, so a watched key that existed when the watch
    /// began has changed if this number has.
    pub fn flushes(&self, space: u8) -> u64 {
        self.watches.flushes(space)
    }
}

/// How Redis keeps a string that is `bytes`.
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
