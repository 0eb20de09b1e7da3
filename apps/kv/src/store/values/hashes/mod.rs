//! Operations on hashes.
//!
//! The value of a small hash is a byte that is nonzero if Redis would use its hash table encoding, the number of fields
//! in two bytes, and the [fields]. The value of a large hash is the number of its
//! [`Table`](crate::store::values::hashes::table::Table).

mod buckets;
pub mod fields;
pub mod table;

use crate::store::memory::Location;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::{Form, Item};
use crate::store::values::hashes::fields::{Field, FieldValue, fields, find};
use crate::store::values::strings::NewValue;
use crate::store::{Error, Expiry, Key, Store};
use crate::value::{Str, Value};

/// Limit of a small hash's value in bytes.
pub(in crate::store) const SMALL: usize = 4096;
/// Bytes before the fields of a small hash.
pub(in crate::store) const HEADER: usize = 3;
/// Redis uses a hash table for hashes with more fields, or with a longer name or value.
const REDIS_FIELDS: usize = 512;
const REDIS_BYTES: usize = 64;

/// Returns true if a field of this size, as the `count`th, makes Redis use a hash table.
pub(in crate::store) fn is_wide(name: &[u8], len: usize, count: usize) -> bool {
    name.len() > REDIS_BYTES || len > REDIS_BYTES || count > REDIS_FIELDS
}

fn field_count(value: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([value[1], value[2]]))
}

impl Store {
    /// Sets `field` of the hash under `key` to `value`. Returns true if the field is new.
    pub fn hset<'v>(&mut self, key: &Key, field: &[u8], value: impl Into<Value<'v>>, now: u64) -> Result<bool, Error> {
        if field.len() > Self::LONGEST_KEY || key.bytes.len() > Self::LONGEST_KEY {
            return Err(Error::TooLong);
        }
        let value = value.into();
        // A wrong type takes precedence over a lack of memory.
        if !matches!(value, Value::Short(value) if value.len() < self.long) {
            self.find_hash(key, now)?;
        }
        let result = match value {
            Value::Short(value) if value.len() < self.long => {
                return self.hset_field(key, Field { name: field, value: FieldValue::Inline(value) }, value.len(), now);
            }
            Value::Long(long) if long.len() < self.long => {
                let value = Str::Long(&long).to_vec();
                return self.hset_field(
                    key,
                    Field { name: field, value: FieldValue::Inline(&value) },
                    value.len(),
                    now,
                );
            }
            Value::Short(value) => self.copy_to_arena(value, now),
            Value::Long(long) => self.adopt(long, now),
        };
        let long = result?;
        let len = long.len();
        let number = self.insert_long(long, now)?;
        let result = self.hset_field(key, Field { name: field, value: FieldValue::Long(number) }, len, now);
        if result.is_err() {
            self.remove_long(number);
        }
        result
    }

    fn hset_field(&mut self, key: &Key, field: Field<'_>, len: usize, now: u64) -> Result<bool, Error> {
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

    /// [`hset`](Self::hset) on a small hash or a missing key.
    fn hset_small(
        &mut self,
        key: &Key,
        location: Option<Location>,
        field: Field<'_>,
        len: usize,
        now: u64,
    ) -> Result<bool, Error> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let value = location.map_or(&[0; HEADER][..], |location| self.item(location).into_value());
        let (flag, count, there) = (value[0], field_count(value), &value[HEADER..]);
        let old = find(there, field.name);
        if let (Some(location), Some((range, FieldValue::Inline(old))), FieldValue::Inline(new)) =
            (location, &old, field.value)
            && old.len() == new.len()
        {
            let end = HEADER + range.end;
            Item(self.heap.at_mut(location)).value_mut()[end - new.len()..end].copy_from_slice(new);
            self.scratch = scratch;
            return Ok(false);
        }
        let is_new = old.is_none();
        let count = count + usize::from(is_new);
        let is_wide = flag != 0 || is_wide(field.name, len, count);
        scratch.push(is_wide.into());
        scratch.extend_from_slice(&(count as u16).to_le_bytes());
        let long_number = match old {
            None => {
                scratch.extend_from_slice(there);
                None
            }
            Some((range, value)) => {
                scratch.extend_from_slice(&there[..range.start]);
                scratch.extend_from_slice(&there[range.end..]);
                long_number(value)
            }
        };
        field.write(&mut scratch);
        let result = if scratch.len() <= SMALL {
            let new = NewValue { form: Form::Fields, value: &scratch, meta: None, changed: false, keeps_value: true };
            self.write(key, new, Expiry::Keep, now)
        } else {
            self.convert_to_large(key, &scratch[HEADER..], count, is_wide, now)
        };
        scratch.clear();
        self.scratch = scratch;
        result?;
        if let Some(number) = long_number {
            self.remove_long(number);
        }
        Ok(is_new)
    }

    pub fn hget(&mut self, key: &Key, field: &[u8], now: u64) -> Result<Option<Str<'_>>, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(None) };
        let item = self.item(location);
        if item.form() == Form::Fields {
            let there = find(&item.into_value()[HEADER..], field);
            return Ok(there.and_then(|(_, value)| self.resolve_field(value)));
        }
        Ok(self.field_of(item.number(), field))
    }

    /// Removes `field` from the hash under `key`. Removing the last field removes the key. Returns false if there is no
    /// such field.
    pub fn hdel(&mut self, key: &Key, field: &[u8], now: u64) -> Result<bool, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(false) };
        let item = self.item(location);
        let is_small = item.form() == Form::Fields;
        let (was_there, is_empty) = if is_small {
            self.hdel_small(location, field)
        } else {
            let number = item.number();
            // Pinned: making room for the shrunk bucket must not evict the hash.
            self.with_pinned(key, |store| store.hdel_large(number, field, now))
        };
        if is_empty {
            self.remove(key, now);
        } else if was_there && is_small {
            self.shrink_item(key, location, now);
        }
        if was_there {
            self.watches.changed(key.hash);
        }
        Ok(was_there)
    }

    /// Removes the field unless it is the last one. Returns whether it exists, and whether it is the last one.
    fn hdel_small(&mut self, location: Location, field: &[u8]) -> (bool, bool) {
        let value = self.item(location).into_value();
        let (count, len) = (field_count(value), value.len());
        let Some((range, value)) = find(&value[HEADER..], field) else { return (false, false) };
        if count == 1 {
            return (true, true);
        }
        if let Some(number) = long_number(value) {
            self.remove_long(number);
        }
        let mut item = Item(self.heap.at_mut(location));
        let value = item.value_mut();
        value[1..HEADER].copy_from_slice(&(count as u16 - 1).to_le_bytes());
        value.copy_within(HEADER + range.end.., HEADER + range.start);
        item.set_value_len(len - range.len());
        (true, false)
    }

    /// Moves the item at `location`, of `key`, to a smaller slot if that saves at least half.
    fn shrink_item(&mut self, key: &Key, location: Location, now: u64) {
        let item = self.item(location);
        let (size, at) = (item.size(), item.expires_at());
        if Heap::slot_len(size) * 2 <= self.heap.slot_at(location) && self.has_room(size, 1, None) {
            // On failure the item stays where it is.
            let _ = self.rewrite_item(key, location, at, now);
        }
    }

    /// Returns the number of fields of the hash under `key`.
    pub fn hlen(&mut self, key: &Key, now: u64) -> Result<usize, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(0) };
        let item = self.item(location);
        Ok(match item.form() {
            Form::Fields => field_count(item.value()),
            _ => self.tables.get(item.number()).map_or(0, |table| table.count),
        })
    }

    /// Returns the version of the hash under `key` if it is large. While the version is the same, so are the fields and
    /// values.
    pub fn hversion(&mut self, key: &Key, now: u64) -> Result<Option<u64>, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(None) };
        let item = self.item(location);
        Ok(match item.form() {
            Form::Fields => None,
            _ => self.tables.get(item.number()).map(|table| table.version),
        })
    }

    /// Returns the length of the value of `field` in the hash under `key`.
    pub fn hstrlen(&mut self, key: &Key, field: &[u8], now: u64) -> Result<usize, Error> {
        Ok(self.hget(key, field, now)?.map_or(0, |value| value.len()))
    }

    /// Calls `visit` with every field of the hash under `key` and returns their number. The time is not bounded;
    /// [`hscan`](Self::hscan) visits some at a time.
    pub fn hvisit(&mut self, key: &Key, now: u64, mut visit: impl FnMut(&[u8], Str<'_>)) -> Result<usize, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(0) };
        let mut count = 0;
        self.visit_at(location, 0, usize::MAX, |name, value| {
            count += 1;
            visit(name, value);
        });
        Ok(count)
    }

    /// Calls `visit` with about `count` fields of the hash under `key` from `cursor` on. The first cursor is 0. Returns
    /// the next cursor, or 0 at the end. A field that exists throughout is visited at least once.
    pub fn hscan(
        &mut self,
        key: &Key,
        cursor: u64,
        count: usize,
        now: u64,
        visit: impl FnMut(&[u8], Str<'_>),
    ) -> Result<u64, Error> {
        let Some(location) = self.find_hash(key, now)? else { return Ok(0) };
        // A cursor beyond 32 bits is after all field hashes.
        let Ok(cursor) = u32::try_from(cursor) else { return Ok(0) };
        Ok(self.visit_at(location, cursor, count.max(1), visit))
    }

    /// Calls `visit` with fields of the hash at `location` from `cursor` on, about `most` if the hash is large. Returns
    /// the next cursor.
    fn visit_at(&self, location: Location, cursor: u32, most: usize, mut visit: impl FnMut(&[u8], Str<'_>)) -> u64 {
        let item = self.item(location);
        if item.form() != Form::Fields {
            return self.visit_table(item.number(), cursor, most, visit);
        }
        for (_, Field { name, value }) in fields(&item.value()[HEADER..]) {
            if let Some(value) = self.resolve_field(value) {
                visit(name, value);
            }
        }
        0
    }

    /// Returns the location of the hash under `key` and records a use.
    fn find_hash(&mut self, key: &Key, now: u64) -> Result<Option<Location>, Error> {
        let location = self.find_and_touch(key, now);
        match location.map(|location| self.item(location).form()) {
            Some(Form::Short | Form::Long) => Err(Error::WrongType),
            _ => Ok(location),
        }
    }

    pub(in crate::store) fn resolve_field<'a>(&'a self, value: FieldValue<'a>) -> Option<Str<'a>> {
        match value {
            FieldValue::Inline(value) => Some(Str::Short(value)),
            FieldValue::Long(number) => self.longs.get(number).map(Str::Long),
        }
    }

    pub(in crate::store) fn field_hash(&self, name: &[u8]) -> u32 {
        self.hasher.hash_field(name)
    }

    /// Releases the long values of the fields of the item at `location`, which start at offset `from` of its value.
    pub(in crate::store) fn release_fields(&mut self, location: Location, from: usize) {
        let mut at = from;
        // One at a time, because a removal borrows the whole store.
        loop {
            let first = fields(&self.item(location).into_value()[at..]).next();
            let Some((len, number)) = first.map(|(range, field)| (range.len(), long_number(field.value))) else {
                return;
            };
            at += len;
            if let Some(number) = number {
                self.remove_long(number);
            }
        }
    }

    /// Returns the bytes that the item at `location` takes, including the external part of its value.
    pub(in crate::store) fn size_at(&self, location: Location) -> usize {
        let item = self.item(location);
        let external = match item.form() {
            Form::Long => self.longs.get(item.number()).map_or(0, |long| long.len()),
            Form::Buckets => self.tables.get(item.number()).map_or(0, |table| table.size() + table.bytes),
            _ => 0,
        };
        self.heap.slot_at(location) + external
    }

    /// Returns the encoding that Redis would use for the hash at `location`.
    pub(in crate::store) fn hash_encoding(&self, location: Location) -> &'static str {
        let item = self.item(location);
        let is_wide = match item.form() {
            Form::Fields => item.value()[0] != 0,
            _ => self.tables.get(item.number()).is_some_and(|table| table.is_wide),
        };
        if is_wide { "hashtable" } else { "listpack" }
    }
}

pub(in crate::store) fn long_number(value: FieldValue<'_>) -> Option<u32> {
    match value {
        FieldValue::Inline(_) => None,
        FieldValue::Long(number) => Some(number),
    }
}
