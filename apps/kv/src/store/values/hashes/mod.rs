//! Hashes.
//!
//! The value of a small one's item is whether Redis would keep it as a table, in a byte, the number of its fields, in two, and
//! the [fields]. That of a large one is the number of its [`Table`](crate::store::values::hashes::table::Table).

mod buckets;
pub mod fields;
pub mod table;

use crate::store::index::Location;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::{Form, Item};
use crate::store::memory::long_value::{Str, Value};
use crate::store::values::hashes::fields::{Field, Near, fields, find};
use crate::store::values::strings::What;
use crate::store::{Error, Expiry, Key, Store};

/// Bytes of a small hash's fields, at most, with what is in front of them.
pub(in crate::store) const SMALL: usize = 4096;
/// Bytes in front of a small hash's fields.
pub(in crate::store) const HEAD: usize = 3;
/// Hashes with more fields are tables to Redis, and those with a longer name or value.
const REDIS_FIELDS: usize = 512;
const REDIS_BYTES: usize = 64;

/// Whether a field makes a hash a table to Redis.
pub(in crate::store) fn is_wide(name: &[u8], len: usize, count: usize) -> bool {
    name.len() > REDIS_BYTES || len > REDIS_BYTES || count > REDIS_FIELDS
}

/// How many fields a small hash has.
fn count_of(value: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([value[1], value[2]]))
}

impl Store {
    /// Puts `value` under `field` of the hash under `key`. Returns whether the field is new.
    pub fn hset<'v>(&mut self, key: &Key, field: &[u8], value: impl Into<Value<'v>>, now: u64) -> Result<bool, Error> {
        if field.len() > Self::LONGEST_KEY || key.bytes.len() > Self::LONGEST_KEY {
            return Err(Error::TooLong);
        }
        let value = value.into();
        // A wrong type is said before it is known whether there is memory.
        if !matches!(value, Value::Short(value) if value.len() < self.long) {
            self.find_hash(key, now)?;
        }
        let result = match value {
            Value::Short(value) if value.len() < self.long => {
                return self.hset_near(key, Field { name: field, value: Near::Here(value) }, value.len(), now);
            }
            Value::Long(long) if long.len() < self.long => {
                let value = Str::Long(&long).to_vec();
                return self.hset_near(key, Field { name: field, value: Near::Here(&value) }, value.len(), now);
            }
            Value::Short(value) => self.long_of(value, now),
            Value::Long(long) => self.own(long, now),
        };
        let long = result?;
        let len = long.len();
        let number = self.keep_long(long, now)?;
        let result = self.hset_near(key, Field { name: field, value: Near::Far(number) }, len, now);
        if result.is_err() {
            self.drop_long(number);
        }
        result
    }

    fn hset_near(&mut self, key: &Key, field: Field<'_>, len: usize, now: u64) -> Result<bool, Error> {
        let location = self.find_hash(key, now)?;
        let result = self.with_pinned(key, |store| match location {
            Some(location) if store.item(location).form() == Form::Buckets => {
                store.hset_large(store.item(location).number(), field, len, now)
            }
            _ => store.hset_small(key, location, field, len, now),
        });
        if result.is_ok() {
            self.watches.changed(key.hash);
        }
        result
    }

    /// As [`hset`](Self::hset), where the hash is small or there is none yet.
    fn hset_small(
        &mut self,
        key: &Key,
        location: Option<Location>,
        field: Field<'_>,
        len: usize,
        now: u64,
    ) -> Result<bool, Error> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let value = location.map_or(&[0; HEAD][..], |location| self.item(location).into_value());
        let (flag, count, there) = (value[0], count_of(value), &value[HEAD..]);
        let old = find(there, field.name);
        if let (Some(location), Some((range, Near::Here(old))), Near::Here(new)) = (location, &old, field.value)
            && old.len() == new.len()
        {
            let end = HEAD + range.end;
            Item(self.heap.at_mut(location)).value_mut()[end - new.len()..end].copy_from_slice(new);
            self.scratch = scratch;
            return Ok(false);
        }
        let is_new = old.is_none();
        let count = count + usize::from(is_new);
        let is_wide = flag != 0 || is_wide(field.name, len, count);
        scratch.push(is_wide.into());
        scratch.extend_from_slice(&(count as u16).to_le_bytes());
        let far = match old {
            None => {
                scratch.extend_from_slice(there);
                None
            }
            Some((range, value)) => {
                scratch.extend_from_slice(&there[..range.start]);
                scratch.extend_from_slice(&there[range.end..]);
                far(value)
            }
        };
        field.write(&mut scratch);
        let result = if scratch.len() <= SMALL {
            let what = What { form: Form::Fields, value: &scratch, tag: None, changed: false, stays: true };
            self.write(key, what, Expiry::Keep, now)
        } else {
            self.become_large(key, &scratch[HEAD..], count, is_wide, now)
        };
        scratch.clear();
        self.scratch = scratch;
        result?;
        if let Some(number) = far {
            self.drop_long(number);
        }
        Ok(is_new)
    }

    /// What is under `field` of the hash under `key`.
    pub fn hget(&mut self, key: &Key, field: &[u8], now: u64) -> Result<Option<Str<'_>>, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(None) };
        let item = self.item(location);
        if item.form() == Form::Fields {
            let there = find(&item.into_value()[HEAD..], field);
            return Ok(there.and_then(|(_, value)| self.near(value)));
        }
        Ok(self.field_of(item.number(), field))
    }

    /// Takes `field` out of the hash under `key`; the last one takes the key with it. Returns whether it was there.
    pub fn hdel(&mut self, key: &Key, field: &[u8], now: u64) -> Result<bool, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(false) };
        let item = self.item(location);
        let is_small = item.form() == Form::Fields;
        let (was_there, is_empty) = if is_small {
            self.hdel_small(location, field)
        } else {
            let number = item.number();
            // It does not go for the room that a bucket of its own needs meanwhile.
            self.with_pinned(key, |store| store.hdel_large(number, field, now))
        };
        if is_empty {
            self.remove(key, now);
        } else if was_there && is_small {
            self.fit(key, location, now);
        }
        if was_there {
            self.watches.changed(key.hash);
        }
        Ok(was_there)
    }

    /// Whether it was there, and whether it was the last, which is left.
    fn hdel_small(&mut self, location: Location, field: &[u8]) -> (bool, bool) {
        let value = self.item(location).into_value();
        let (count, len) = (count_of(value), value.len());
        let Some((range, value)) = find(&value[HEAD..], field) else { return (false, false) };
        if count == 1 {
            return (true, true);
        }
        if let Some(number) = far(value) {
            self.drop_long(number);
        }
        let mut item = Item(self.heap.at_mut(location));
        let value = item.value_mut();
        value[1..HEAD].copy_from_slice(&(count as u16 - 1).to_le_bytes());
        value.copy_within(HEAD + range.end.., HEAD + range.start);
        item.set_value_len(len - range.len());
        (true, false)
    }

    /// Moves what is at `location`, of `key`, to a smaller place if that saves much.
    fn fit(&mut self, key: &Key, location: Location, now: u64) {
        let item = self.item(location);
        let (size, at) = (item.size(), item.expires_at());
        if Heap::slot_len(size) * 2 <= self.heap.slot_at(location) && self.has_room(size, 1, None) {
            // Else it stays where it is.
            let _ = self.rewrite(key, location, at, now);
        }
    }

    /// Fields of the hash under `key`.
    pub fn hlen(&mut self, key: &Key, now: u64) -> Result<usize, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(0) };
        let item = self.item(location);
        Ok(match item.form() {
            Form::Fields => count_of(item.value()),
            _ => self.tables.get(item.number()).map_or(0, |table| table.count),
        })
    }

    /// Returns the version of the hash under `key` if it is a large one: the fields and values are the same while the version is.
    pub fn hversion(&mut self, key: &Key, now: u64) -> Result<Option<u64>, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(None) };
        let item = self.item(location);
        Ok(match item.form() {
            Form::Fields => None,
            _ => self.tables.get(item.number()).map(|table| table.version),
        })
    }

    /// Bytes of what is under `field` of the hash under `key`.
    pub fn hstrlen(&mut self, key: &Key, field: &[u8], now: u64) -> Result<usize, Error> {
        Ok(self.hget(key, field, now)?.map_or(0, |value| value.len()))
    }

    /// Calls `visit` with each field of the hash under `key`, however many: [`hscan`](Self::hscan) is for those who cannot wait.
    /// Returns how many there are.
    pub fn hvisit(&mut self, key: &Key, now: u64, mut visit: impl FnMut(&[u8], Str<'_>)) -> Result<usize, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(0) };
        let mut count = 0;
        self.visit_at(location, 0, usize::MAX, |name, value| {
            count += 1;
            visit(name, value);
        });
        Ok(count)
    }

    /// Calls `visit` with fields of the hash under `key` from `cursor` on, which is 0 at first. Returns the next cursor, 0 at the
    /// end. What is there throughout is visited. `count` is about how many.
    pub fn hscan(
        &mut self,
        key: &Key,
        cursor: u64,
        count: usize,
        now: u64,
        visit: impl FnMut(&[u8], Str<'_>),
    ) -> Result<u64, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(0) };
        // What is beyond all hashes is at the end.
        let Ok(place) = u32::try_from(cursor) else { return Ok(0) };
        Ok(self.visit_at(location, place, count.max(1), visit))
    }

    /// Calls `visit` with fields of the hash at `location` from `place` on, with about `most` if it is large. Returns the next
    /// place.
    fn visit_at(&self, location: Location, place: u32, most: usize, mut visit: impl FnMut(&[u8], Str<'_>)) -> u64 {
        let item = self.item(location);
        if item.form() != Form::Fields {
            return self.visit_table(item.number(), place, most, visit);
        }
        for (_, Field { name, value }) in fields(&item.value()[HEAD..]) {
            if let Some(value) = self.near(value) {
                visit(name, value);
            }
        }
        0
    }

    /// Where the hash under `key` is.
    fn find_hash(&mut self, key: &Key, now: u64) -> Result<Option<Location>, Error> {
        let location = self.find_used(key, now);
        match location.map(|location| self.item(location).form()) {
            Some(Form::Short | Form::Long) => Err(Error::WrongType),
            _ => Ok(location),
        }
    }

    /// A value among fields, wherever it lies.
    pub(in crate::store) fn near<'a>(&'a self, value: Near<'a>) -> Option<Str<'a>> {
        match value {
            Near::Here(value) => Some(Str::Short(value)),
            Near::Far(number) => self.longs.get(number).map(Str::Long),
        }
    }

    /// The hash of a field's name.
    pub(in crate::store) fn field_hash(&self, name: &[u8]) -> u32 {
        self.keys.field(name)
    }

    /// Lets what lies elsewhere of the fields in `bytes` go.
    pub(in crate::store) fn release_fields(&mut self, location: Location, from: usize) {
        let mut at = from;
        // One at a time, for what goes is elsewhere in the store.
        loop {
            let first = fields(&self.item(location).into_value()[at..]).next();
            let Some((len, number)) = first.map(|(range, field)| (range.len(), far(field.value))) else { return };
            at += len;
            if let Some(number) = number {
                self.drop_long(number);
            }
        }
    }

    /// Bytes that what is at `location` takes.
    pub(in crate::store) fn size_at(&self, location: Location) -> usize {
        let item = self.item(location);
        let beside = match item.form() {
            Form::Long => self.longs.get(item.number()).map_or(0, |long| long.len()),
            Form::Buckets => self.tables.get(item.number()).map_or(0, |table| table.size() + table.bytes),
            _ => 0,
        };
        self.heap.slot_at(location) + beside
    }

    /// How Redis would keep the hash at `location`.
    pub(in crate::store) fn hash_encoding(&self, location: Location) -> &'static str {
        let item = self.item(location);
        let is_wide = match item.form() {
            Form::Fields => item.value()[0] != 0,
            _ => self.tables.get(item.number()).is_some_and(|table| table.is_wide),
        };
        if is_wide { "hashtable" } else { "listpack" }
    }
}

/// The number of a value that lies elsewhere.
pub(in crate::store) fn far(value: Near<'_>) -> Option<u32> {
    match value {
        Near::Here(_) => None,
        Near::Far(number) => Some(number),
    }
}
