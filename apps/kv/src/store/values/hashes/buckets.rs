//! Large hashes, whose fields are stored in buckets of one or a few items.
//!
//! The key of such an item is the number of the table and of the bucket, four bytes each. Its value is the location of
//! the bucket's next item, or zeros, followed by fields.

use crate::store::memory::Location;
use crate::store::memory::heap;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::{Form, Item, NewItem};
use crate::store::values::hashes::fields::{Field, FieldValue, fields, find, parts};
use crate::store::values::hashes::table::Table;
use crate::store::values::hashes::{is_wide, long_number};
use crate::store::values::strings::NewValue;
use crate::store::{Error, Expiry, Key, Store};
use crate::value::Str;
use std::num::NonZeroU32;
use std::ops::Range;

/// Target of field bytes per bucket.
const BUCKET: usize = 512;
/// Limit of field bytes per item, unless a single field is longer.
const PART: usize = 3072;
/// Bytes before the fields of an item.
const NEXT: usize = 4;
/// Limit of buckets split or merged per change. In the long run fewer than one is needed.
const STEPS: usize = 2;
/// Keyspace id of bucket items, which belong to no keyspace.
const NO_SPACE: u8 = u8::MAX;

fn next(value: &[u8]) -> Option<Location> {
    NonZeroU32::new(u32::from_le_bytes(*value.first_chunk()?)).map(Location)
}

fn number(location: Option<Location>) -> [u8; NEXT] {
    location.map_or(0, |Location(it)| it.get()).to_le_bytes()
}

impl Store {
    /// Converts the hash under `key` to a large one with these `count` fields.
    pub(in crate::store) fn convert_to_large(
        &mut self,
        key: &Key,
        fields: &[u8],
        count: usize,
        is_wide: bool,
        now: u64,
    ) -> Result<(), Error> {
        let mut table = Table::new();
        (table.count, table.bytes, table.is_wide) = (count, fields.len(), is_wide);
        let size = table.size();
        self.make_room_outside_heap(size + self.tables.growth(1), now)?;
        self.external_bytes += size;
        let table = self.tables.insert(table);
        let result = self.put_bucket(table, 0, fields, now).and_then(|()| {
            let value = &table.to_le_bytes();
            let new = NewValue { form: Form::Buckets, value, meta: None, changed: false, keeps_value: true };
            self.write(key, new, Expiry::Keep, now)
        });
        if result.is_err() {
            // On failure the hash stays small and keeps its fields.
            while self.pop_item(table, 0) {}
            self.tables.remove(table);
            self.external_bytes -= size;
            return result;
        }
        self.note_change(table);
        self.split_some(table, now);
        Ok(())
    }

    /// Gives the large hash `table` a new version.
    fn note_change(&mut self, table: u32) {
        self.table_changes += 1;
        if let Some(table) = self.tables.get_mut(table) {
            table.version = self.table_changes;
        }
    }

    /// [`Store::hset`] on the large hash with the number `table`.
    pub(in crate::store) fn hset_large(
        &mut self,
        table: u32,
        field: Field<'_>,
        len: usize,
        now: u64,
    ) -> Result<bool, Error> {
        self.note_change(table);
        let bucket = self.bucket_of(table, field.name);
        let old = self.find_in(table, bucket, field.name);
        if let (Some((location, range)), FieldValue::Inline(new)) = (&old, field.value) {
            let mut item = Item(self.heap.at_mut(*location));
            let fields = &mut item.value_mut()[NEXT..];
            if let Some((_, FieldValue::Inline(old))) = find(&fields[range.clone()], field.name)
                && old.len() == new.len()
            {
                fields[range.end - new.len()..range.end].copy_from_slice(new);
                return Ok(false);
            }
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let removed = self.collect_fields(table, bucket, Some(field.name), &mut scratch);
        field.write(&mut scratch);
        let result = self.put_bucket(table, bucket, &scratch, now);
        scratch.clear();
        self.scratch = scratch;
        result?;
        let (size, is_new) = (field.size(), removed.is_none());
        let (old_size, old_far) = removed.unwrap_or((0, None));
        if let Some(number) = old_far {
            self.remove_long(number);
        }
        if let Some(table) = self.tables.get_mut(table) {
            table.count += usize::from(is_new);
            table.bytes = table.bytes + size - old_size;
            table.is_wide |= is_wide(field.name, len, table.count);
        }
        self.split_some(table, now);
        Ok(is_new)
    }

    /// [`Store::hdel`] on a large hash, except that the last field is kept. Returns whether the field exists, and
    /// whether it is the last one.
    pub(in crate::store) fn hdel_large(&mut self, table: u32, name: &[u8], now: u64) -> (bool, bool) {
        let bucket = self.bucket_of(table, name);
        if self.find_in(table, bucket, name).is_none() {
            return (false, false);
        }
        if self.tables.get(table).is_some_and(|table| table.count == 1) {
            return (true, true);
        }
        self.note_change(table);
        let mut scratch = std::mem::take(&mut self.scratch);
        let removed = self.collect_fields(table, bucket, Some(name), &mut scratch);
        self.shrink_bucket(table, bucket, &scratch, now);
        scratch.clear();
        self.scratch = scratch;
        let (size, long_number) = removed.unwrap_or((0, None));
        if let Some(number) = long_number {
            self.remove_long(number);
        }
        if let Some(table) = self.tables.get_mut(table) {
            table.count -= 1;
            table.bytes -= size;
        }
        self.merge_some(table, now);
        (true, false)
    }

    pub(in crate::store) fn field_of(&self, table: u32, name: &[u8]) -> Option<Str<'_>> {
        let (location, range) = self.find_in(table, self.bucket_of(table, name), name)?;
        let fields = &self.item(location).into_value()[NEXT..];
        self.resolve_field(find(&fields[range], name)?.1)
    }

    /// Calls `visit` with about `most` fields of a large hash from `cursor` on, in the order of bit-reversed hashes.
    /// Returns the next cursor, or 0 at the end.
    pub(in crate::store) fn visit_table(
        &self,
        number: u32,
        cursor: u32,
        most: usize,
        mut visit: impl FnMut(&[u8], Str<'_>),
    ) -> u64 {
        let Some(table) = self.tables.get(number) else { return 0 };
        let mut cursor = u64::from(cursor);
        let mut visited = 0;
        while visited < most {
            let (bucket, end) = table.at(cursor as u32);
            for location in self.items_of(number, bucket) {
                for (_, Field { name, value }) in fields(&self.item(location).value()[NEXT..]) {
                    // The bucket may start before `cursor`: its other half was visited before a merge.
                    if u64::from(self.field_hash(name).reverse_bits()) >= cursor
                        && let Some(value) = self.resolve_field(value)
                    {
                        visit(name, value);
                        visited += 1;
                    }
                }
            }
            // Empty buckets count as well.
            visited += 1;
            cursor = end;
            if cursor > u64::from(u32::MAX) {
                return 0;
            }
        }
        cursor
    }

    /// Defers freeing the large hash `table`, whose key was removed.
    pub(in crate::store) fn defer_free(&mut self, table: u32) {
        self.dead_tables.push(table);
    }

    /// Frees up to `most` items of removed large hashes. Returns false if there are none.
    pub(in crate::store) fn free_deferred(&mut self, most: usize) -> bool {
        let had_any = !self.dead_tables.is_empty();
        for _ in 0..most {
            let Some(number) = self.dead_tables.last().copied() else { break };
            let Some(table) = self.tables.get_mut(number) else { break };
            let last = table.buckets() - 1;
            match table.header(last) {
                Some(location) => {
                    self.release_fields(location, NEXT);
                    self.pop_item(number, last);
                }
                None => {
                    self.external_bytes -= table.size();
                    table.shrink();
                    self.external_bytes += table.size();
                    if last == 0 {
                        self.tables.remove(number);
                        self.dead_tables.pop();
                    }
                }
            }
        }
        had_any
    }

    /// Updates the reference to a bucket item that moved from `old` to `new`.
    pub(in crate::store) fn bucket_moved(&mut self, old: Location, new: Location) {
        let (number, bucket) = self.table_and_bucket(new);
        let Some(table) = self.tables.get_mut(number) else { return };
        if table.header(bucket) == Some(old) {
            return table.set_head(bucket, Some(new));
        }
        let before = self.items_of(number, bucket).find(|it| next(self.item(*it).value()) == Some(old));
        if let Some(before) = before {
            self.set_next(before, Some(new));
        }
    }

    fn table_and_bucket(&self, location: Location) -> (u32, u32) {
        let key = self.item(location).into_key();
        let number = |at: usize| key[at..].first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
        (number(0), number(4))
    }

    fn bucket_of(&self, table: u32, name: &[u8]) -> u32 {
        self.tables.get(table).map_or(0, |table| table.bucket_of(self.field_hash(name)))
    }

    fn items_of(&self, table: u32, bucket: u32) -> impl Iterator<Item = Location> {
        let head = self.tables.get(table).and_then(|table| table.header(bucket));
        std::iter::successors(head, |location| next(self.item(*location).value()))
    }

    fn set_next(&mut self, location: Location, next: Option<Location>) {
        Item(self.heap.at_mut(location)).value_mut()[..NEXT].copy_from_slice(&number(next));
    }

    /// Returns the item and position of the field `name` in a bucket.
    fn find_in(&self, table: u32, bucket: u32, name: &[u8]) -> Option<(Location, Range<usize>)> {
        self.items_of(table, bucket).find_map(|location| {
            let (range, _) = find(&self.item(location).value()[NEXT..], name)?;
            Some((location, range))
        })
    }

    /// Appends the fields of a bucket to `to`, except the one named `but`. Returns its size, and its number if it is a
    /// long value.
    fn collect_fields(
        &self,
        table: u32,
        bucket: u32,
        but: Option<&[u8]>,
        to: &mut Vec<u8>,
    ) -> Option<(usize, Option<u32>)> {
        let mut found = None;
        for location in self.items_of(table, bucket) {
            let there = &self.item(location).into_value()[NEXT..];
            match but.and_then(|but| find(there, but)) {
                None => to.extend_from_slice(there),
                Some((range, value)) => {
                    found = Some((range.len(), long_number(value)));
                    to.extend_from_slice(&there[..range.start]);
                    to.extend_from_slice(&there[range.end..]);
                }
            }
        }
        found
    }

    /// Replaces the fields of a bucket with those in `bytes`. If memory is full, nothing changes.
    fn put_bucket(&mut self, table: u32, bucket: u32, bytes: &[u8], now: u64) -> Result<(), Error> {
        let size = |part: &[u8]| draft(&[0; 8], part.len()).size();
        let mut sizes = parts(bytes, PART).map(size);
        let (first, others) = (sizes.next(), sizes.count());
        let head = self.tables.get(table).and_then(|table| table.header(bucket));
        if let (Some(head), Some(size), 0) = (head, first, others)
            && next(self.item(head).value()).is_none()
            && Heap::slot_len(size) == self.heap.slot_at(head)
        {
            self.overwrite(head, bytes);
            return Ok(());
        }
        match (first, others) {
            (None, _) => {}
            (Some(size), 0) => self.make_room(size, 1, None, now)?,
            // The size does not matter, because the number of pages is the same.
            _ => self.make_room(heap::LARGEST, others + 1, None, now)?,
        }
        let [a, b, c, d] = table.to_le_bytes();
        let [e, f, g, h] = bucket.to_le_bytes();
        let mut new = None;
        for part in parts(bytes, PART) {
            let key = [a, b, c, d, e, f, g, h];
            let draft = draft(&key, part.len());
            let Some(location) = self.heap.allocate(draft.size()) else {
                self.release_chain(new);
                return Err(Error::Full);
            };
            let value = draft.write(self.heap.at_mut(location));
            value[..NEXT].copy_from_slice(&number(new));
            value[NEXT..].copy_from_slice(part);
            new = Some(location);
        }
        while self.pop_item(table, bucket) {}
        if let Some(table) = self.tables.get_mut(table) {
            table.set_head(bucket, new);
        }
        Ok(())
    }

    /// [`put_bucket`](Self::put_bucket) with a subset of the present fields in the same order. This always succeeds.
    fn shrink_bucket(&mut self, table: u32, bucket: u32, bytes: &[u8], now: u64) {
        let head = self.tables.get(table).and_then(|table| table.header(bucket));
        let Some(head) = head else { return };
        let size = draft(&[0; 8], bytes.len().min(PART)).size();
        // A new item pays off only if it saves half the memory and displaces nothing.
        let is_worth_it = Heap::slot_len(size) * 2 <= self.heap.slot_at(head) && self.has_room(heap::LARGEST, 2, None);
        if (bytes.is_empty() || is_worth_it) && self.put_bucket(table, bucket, bytes, now).is_ok() {
            return;
        }
        let mut rest = bytes;
        let mut at = Some(head);
        let mut last = head;
        while let Some(location) = at
            && !rest.is_empty()
        {
            let room = self.heap.slot_at(location) - draft(&[0; 8], 0).size();
            // A single field may be too long for a slot that held another.
            let part = parts(rest, room).next().filter(|part| part.len() <= room).unwrap_or_default();
            self.overwrite(location, part);
            rest = &rest[part.len()..];
            (last, at) = (location, next(self.item(location).value()));
        }
        self.set_next(last, None);
        self.release_chain(at);
    }

    /// Frees the chain of items that starts at `first`.
    fn release_chain(&mut self, first: Option<Location>) {
        let mut at = first;
        while let Some(location) = at {
            at = next(self.item(location).value());
            self.heap.release(location);
        }
    }

    /// Replaces the fields of the item at `location` with those in `bytes`, for which it has room.
    fn overwrite(&mut self, location: Location, bytes: &[u8]) {
        let mut item = Item(self.heap.at_mut(location));
        item.set_value_len(NEXT + bytes.len());
        item.value_mut()[NEXT..].copy_from_slice(bytes);
    }

    /// Removes and frees the first item of a bucket. Returns false if the bucket is empty.
    fn pop_item(&mut self, table: u32, bucket: u32) -> bool {
        let Some(head) = self.tables.get(table).and_then(|table| table.header(bucket)) else { return false };
        let next = next(self.item(head).value());
        if let Some(table) = self.tables.get_mut(table) {
            table.set_head(bucket, next);
        }
        self.heap.release(head);
        true
    }

    /// Splits buckets if the average bucket is too full.
    fn split_some(&mut self, number: u32, now: u64) {
        for _ in 0..STEPS {
            let Some(table) = self.tables.get_mut(number) else { return };
            if table.bytes <= table.buckets() as usize * BUCKET || !self.split(number, now) {
                return;
            }
        }
    }

    fn split(&mut self, number: u32, now: u64) -> bool {
        let growth = self.tables.get(number).map_or(0, Table::growth);
        if self.make_room_outside_heap(growth, now).is_err() {
            return false;
        }
        let Some(table) = self.tables.get_mut(number) else { return false };
        self.external_bytes -= table.size();
        table.grow();
        self.external_bytes += table.size();
        let new = table.buckets() - 1;
        let old = Table::partner(new);
        let (mut stay, mut go) = (std::mem::take(&mut self.scratch), std::mem::take(&mut self.scratch_other));
        for location in self.items_of(number, old) {
            let there = &self.item(location).into_value()[NEXT..];
            for (range, field) in fields(there) {
                let goes = self.bucket_of(number, field.name) == new;
                if goes { &mut go } else { &mut stay }.extend_from_slice(&there[range]);
            }
        }
        let is_done = self.put_bucket(number, new, &go, now).is_ok();
        if is_done {
            self.shrink_bucket(number, old, &stay, now);
        } else if let Some(table) = self.tables.get_mut(number) {
            self.external_bytes -= table.size();
            table.shrink();
            self.external_bytes += table.size();
        }
        stay.clear();
        go.clear();
        (self.scratch, self.scratch_other) = (stay, go);
        is_done
    }

    /// Merges buckets if the average bucket is too empty.
    fn merge_some(&mut self, number: u32, now: u64) {
        for _ in 0..STEPS {
            let Some(table) = self.tables.get(number) else { return };
            let last = table.buckets() - 1;
            if last == 0
                || table.bytes >= table.buckets() as usize * BUCKET / 4
                || !self.has_room(heap::LARGEST, 2, None)
            {
                return;
            }
            let mut scratch = std::mem::take(&mut self.scratch);
            let into = Table::partner(last);
            self.collect_fields(number, into, None, &mut scratch);
            self.collect_fields(number, last, None, &mut scratch);
            let is_done = self.put_bucket(number, into, &scratch, now).is_ok();
            scratch.clear();
            self.scratch = scratch;
            if !is_done {
                return;
            }
            while self.pop_item(number, last) {}
            if let Some(table) = self.tables.get_mut(number) {
                self.external_bytes -= table.size();
                table.shrink();
                self.external_bytes += table.size();
            }
        }
    }
}

/// Returns a bucket item for `len` bytes of fields.
fn draft(key: &[u8; 8], len: usize) -> NewItem<'_> {
    NewItem { form: Form::Bucket, space: NO_SPACE, key, expires: false, meta: None, len: NEXT + len }
}
