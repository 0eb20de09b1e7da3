//! Large hashes: their fields lie in buckets, each of which is an item or a few.
//!
//! Such an item has the numbers of its table and its bucket as its key, of four bytes each, and as its value the location of the
//! next one of the bucket, or zeros, and fields.

use crate::store::index::Location;
use crate::store::memory::heap;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::{Draft, Form, Item};
use crate::store::memory::long_value::Str;
use crate::store::values::hashes::fields::{Field, Near, fields, find, parts};
use crate::store::values::hashes::table::Table;
use crate::store::values::hashes::{far, is_wide};
use crate::store::values::strings::What;
use crate::store::{Error, Expiry, Key, Store};
use std::num::NonZeroU32;
use std::ops::Range;

/// Bytes of fields that a bucket has when there are enough of them.
const BUCKET: usize = 512;
/// Bytes of fields in one item of a bucket, unless one field takes more.
const PART: usize = 3072;
/// Bytes in front of an item's fields.
const NEXT: usize = 4;
/// Buckets that are split or put together when a field comes or goes: it is more than one that is necessary in the long run.
const STEPS: usize = 2;
/// What buckets' items say of their keyspace: they are in none.
const NO_SPACE: u8 = u8::MAX;

fn next(value: &[u8]) -> Option<Location> {
    NonZeroU32::new(u32::from_le_bytes(*value.first_chunk()?)).map(Location)
}

fn number(location: Option<Location>) -> [u8; NEXT] {
    location.map_or(0, |Location(it)| it.get()).to_le_bytes()
}

impl Store {
    /// The hash under `key` becomes a large one with `fields`, which are `count`.
    pub(in crate::store) fn become_large(
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
        self.make_room_beside(size + self.tables.growth(1), now)?;
        self.beside += size;
        let table = self.tables.insert(table);
        let result = self.put_bucket(table, 0, fields, now).and_then(|()| {
            let value = &table.to_le_bytes();
            let what = What { form: Form::Buckets, value, tag: None, changed: false, stays: true };
            self.write(key, what, Expiry::Keep, now)
        });
        if result.is_err() {
            // The fields are still those of the small one.
            while self.take_item(table, 0) {}
            self.tables.remove(table);
            self.beside -= size;
            return result;
        }
        self.note_change(table);
        self.split_some(table, now);
        Ok(())
    }

    /// Gives the large hash `table` another version.
    fn note_change(&mut self, table: u32) {
        self.table_changes += 1;
        if let Some(table) = self.tables.get_mut(table) {
            table.version = self.table_changes;
        }
    }

    /// As [`Store::hset`], where the hash is the large one with the number `table`.
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
        if let (Some((location, range)), Near::Here(new)) = (&old, field.value) {
            let mut item = Item(self.heap.at_mut(*location));
            let fields = &mut item.value_mut()[NEXT..];
            if let Some((_, Near::Here(old))) = find(&fields[range.clone()], field.name)
                && old.len() == new.len()
            {
                fields[range.end - new.len()..range.end].copy_from_slice(new);
                return Ok(false);
            }
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let removed = self.gather(table, bucket, Some(field.name), &mut scratch);
        field.write(&mut scratch);
        let result = self.put_bucket(table, bucket, &scratch, now);
        scratch.clear();
        self.scratch = scratch;
        result?;
        let (size, is_new) = (field.size(), removed.is_none());
        let (old_size, old_far) = removed.unwrap_or((0, None));
        if let Some(number) = old_far {
            self.drop_long(number);
        }
        if let Some(table) = self.tables.get_mut(table) {
            table.count += usize::from(is_new);
            table.bytes = table.bytes + size - old_size;
            table.is_wide |= is_wide(field.name, len, table.count);
        }
        self.split_some(table, now);
        Ok(is_new)
    }

    /// As [`Store::hdel`], but the last field is left. Returns whether it was there, and whether it was the last.
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
        let removed = self.gather(table, bucket, Some(name), &mut scratch);
        self.shrink_bucket(table, bucket, &scratch, now);
        scratch.clear();
        self.scratch = scratch;
        let (size, far) = removed.unwrap_or((0, None));
        if let Some(number) = far {
            self.drop_long(number);
        }
        if let Some(table) = self.tables.get_mut(table) {
            table.count -= 1;
            table.bytes -= size;
        }
        self.merge_some(table, now);
        (true, false)
    }

    /// What is under the field `name` of a large hash.
    pub(in crate::store) fn field_of(&self, table: u32, name: &[u8]) -> Option<Str<'_>> {
        let (location, range) = self.find_in(table, self.bucket_of(table, name), name)?;
        let fields = &self.item(location).into_value()[NEXT..];
        self.near(find(&fields[range], name)?.1)
    }

    /// Calls `visit` with fields of a large hash from `place` on in the order of reversed hashes, with about `most`. Returns the
    /// next place, or 0.
    pub(in crate::store) fn visit_table(
        &self,
        number: u32,
        place: u32,
        most: usize,
        mut visit: impl FnMut(&[u8], Str<'_>),
    ) -> u64 {
        let Some(table) = self.tables.get(number) else { return 0 };
        let mut place = u64::from(place);
        let mut visited = 0;
        while visited < most {
            let (bucket, end) = table.at(place as u32);
            for location in self.items_of(number, bucket) {
                for (_, Field { name, value }) in fields(&self.item(location).value()[NEXT..]) {
                    // The bucket may begin before the place: there it was split when its other half was visited.
                    if u64::from(self.field_hash(name).reverse_bits()) >= place
                        && let Some(value) = self.near(value)
                    {
                        visit(name, value);
                        visited += 1;
                    }
                }
            }
            // Those that are empty count, too.
            visited += 1;
            place = end;
            if place > u64::from(u32::MAX) {
                return 0;
            }
        }
        place
    }

    /// The large hash `table` is nobody's any more.
    pub(in crate::store) fn doom(&mut self, table: u32) {
        if let Some(it) = self.tables.get_mut(table) {
            it.doomed = true;
            self.doomed.push(table);
        }
    }

    /// Lets up to `most` items of large hashes go that are nobody's. Returns whether there were any.
    pub(in crate::store) fn bury(&mut self, most: usize) -> bool {
        let had_any = !self.doomed.is_empty();
        for _ in 0..most {
            let Some(number) = self.doomed.last().copied() else { break };
            let Some(table) = self.tables.get_mut(number) else { break };
            let last = table.buckets() - 1;
            match table.head(last) {
                Some(location) => {
                    self.release_fields(location, NEXT);
                    self.take_item(number, last);
                }
                None => {
                    self.beside -= table.size();
                    table.shrink();
                    self.beside += table.size();
                    if last == 0 {
                        self.tables.remove(number);
                        self.doomed.pop();
                    }
                }
            }
        }
        had_any
    }

    /// The item of a bucket that was at `old` is at `new`.
    pub(in crate::store) fn bucket_moved(&mut self, old: Location, new: Location) {
        let (number, bucket) = self.place_of(new);
        let Some(table) = self.tables.get_mut(number) else { return };
        if table.head(bucket) == Some(old) {
            return table.set_head(bucket, Some(new));
        }
        let before = self.items_of(number, bucket).find(|it| next(self.item(*it).value()) == Some(old));
        if let Some(before) = before {
            self.set_next(before, Some(new));
        }
    }

    /// The table and the bucket of the item at `location`.
    fn place_of(&self, location: Location) -> (u32, u32) {
        let key = self.item(location).into_key();
        let number = |at: usize| key[at..].first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
        (number(0), number(4))
    }

    fn bucket_of(&self, table: u32, name: &[u8]) -> u32 {
        self.tables.get(table).map_or(0, |table| table.bucket_of(self.field_hash(name)))
    }

    /// The items of a bucket.
    fn items_of(&self, table: u32, bucket: u32) -> impl Iterator<Item = Location> {
        let head = self.tables.get(table).and_then(|table| table.head(bucket));
        std::iter::successors(head, |location| next(self.item(*location).value()))
    }

    fn set_next(&mut self, location: Location, next: Option<Location>) {
        Item(self.heap.at_mut(location)).value_mut()[..NEXT].copy_from_slice(&number(next));
    }

    /// Where the field `name` is in a bucket.
    fn find_in(&self, table: u32, bucket: u32, name: &[u8]) -> Option<(Location, Range<usize>)> {
        self.items_of(table, bucket).find_map(|location| {
            let (range, _) = find(&self.item(location).value()[NEXT..], name)?;
            Some((location, range))
        })
    }

    /// Appends the fields of a bucket to `to`, except for that with the name `but`, whose size it returns, and the number of its
    /// value if that lies elsewhere.
    fn gather(&self, table: u32, bucket: u32, but: Option<&[u8]>, to: &mut Vec<u8>) -> Option<(usize, Option<u32>)> {
        let mut found = None;
        for location in self.items_of(table, bucket) {
            let there = &self.item(location).into_value()[NEXT..];
            match but.and_then(|but| find(there, but)) {
                None => to.extend_from_slice(there),
                Some((range, value)) => {
                    found = Some((range.len(), far(value)));
                    to.extend_from_slice(&there[..range.start]);
                    to.extend_from_slice(&there[range.end..]);
                }
            }
        }
        found
    }

    /// A bucket has the fields in `bytes` from now on. If there is no memory, it is as it was.
    fn put_bucket(&mut self, table: u32, bucket: u32, bytes: &[u8], now: u64) -> Result<(), Error> {
        let size = |part: &[u8]| draft(&[0; 8], part.len()).size();
        let mut sizes = parts(bytes, PART).map(size);
        let (first, others) = (sizes.next(), sizes.count());
        let head = self.tables.get(table).and_then(|table| table.head(bucket));
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
            // How large they are makes no difference if there are as many pages.
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
        while self.take_item(table, bucket) {}
        if let Some(table) = self.tables.get_mut(table) {
            table.set_head(bucket, new);
        }
        Ok(())
    }

    /// As [`put_bucket`](Self::put_bucket), with some of the fields that there are, in the same order: which always succeeds.
    fn shrink_bucket(&mut self, table: u32, bucket: u32, bytes: &[u8], now: u64) {
        let head = self.tables.get(table).and_then(|table| table.head(bucket));
        let Some(head) = head else { return };
        let size = draft(&[0; 8], bytes.len().min(PART)).size();
        // Where it saves little, and where it would cost others their place, it stays where it is.
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
            // One field may be too long for a place that held another.
            let part = parts(rest, room).next().filter(|part| part.len() <= room).unwrap_or_default();
            self.overwrite(location, part);
            rest = &rest[part.len()..];
            (last, at) = (location, next(self.item(location).value()));
        }
        self.set_next(last, None);
        self.release_chain(at);
    }

    /// Gives the memory of items back, from that at `first` on.
    fn release_chain(&mut self, first: Option<Location>) {
        let mut at = first;
        while let Some(location) = at {
            at = next(self.item(location).value());
            self.heap.release(location);
        }
    }

    /// The item at `location` has the fields in `bytes` from now on, which there is room for.
    fn overwrite(&mut self, location: Location, bytes: &[u8]) {
        let mut item = Item(self.heap.at_mut(location));
        item.set_value_len(NEXT + bytes.len());
        item.value_mut()[NEXT..].copy_from_slice(bytes);
    }

    /// Takes the first item of a bucket out, if there is one, and gives its memory back.
    fn take_item(&mut self, table: u32, bucket: u32) -> bool {
        let Some(head) = self.tables.get(table).and_then(|table| table.head(bucket)) else { return false };
        let next = next(self.item(head).value());
        if let Some(table) = self.tables.get_mut(table) {
            table.set_head(bucket, next);
        }
        self.heap.release(head);
        true
    }

    /// Splits some buckets if there are too few.
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
        if self.make_room_beside(growth, now).is_err() {
            return false;
        }
        let Some(table) = self.tables.get_mut(number) else { return false };
        self.beside -= table.size();
        table.grow();
        self.beside += table.size();
        let new = table.buckets() - 1;
        let old = Table::partner(new);
        let (mut stay, mut go) = (std::mem::take(&mut self.scratch), std::mem::take(&mut self.scratch_beside));
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
            self.beside -= table.size();
            table.shrink();
            self.beside += table.size();
        }
        stay.clear();
        go.clear();
        (self.scratch, self.scratch_beside) = (stay, go);
        is_done
    }

    /// Puts some buckets together if there are too many.
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
            self.gather(number, into, None, &mut scratch);
            self.gather(number, last, None, &mut scratch);
            let is_done = self.put_bucket(number, into, &scratch, now).is_ok();
            scratch.clear();
            self.scratch = scratch;
            if !is_done {
                return;
            }
            while self.take_item(number, last) {}
            if let Some(table) = self.tables.get_mut(number) {
                self.beside -= table.size();
                table.shrink();
                self.beside += table.size();
            }
        }
    }
}

/// An item of a bucket with `len` bytes of fields.
fn draft(key: &[u8; 8], len: usize) -> Draft<'_> {
    Draft { form: Form::Bucket, space: NO_SPACE, key, expires: false, tag: None, len: NEXT + len }
}
