//! Changes of what is stored, which text commands and meta commands have in common.

use super::line::{DIGITS, digits};
use super::request::{How, size};
use super::words::unsigned;
use super::{Context, Count, Data};
use crate::store::{Error, Expiry, ItemMeta, Key, Store, Str, Value};

/// A client has fetched it.
pub(super) const FETCHED: u8 = 1;
/// It is to be replaced, and may be used until then.
pub(super) const STALE: u8 = 2;
/// A client has been told to replace it.
pub(super) const WON: u8 = 4;
/// Its key is sent in base64.
pub(super) const BINARY: u8 = 8;

/// Spaces behind a number that has become shorter.
const PADDING: usize = 32;

/// What is to be put under a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put {
    pub how: How,
    pub flags: u32,
    pub marks: u8,
    pub expiry: Expiry,
    /// It is put there only if this is the number of what is there,
    pub cas: Option<u64>,
    /// or if a later one is, and it is stale then and expires when what was there would have.
    pub may_be_stale: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// It is there, and has this number.
    Stored(u64),
    NotStored,
    Exists,
    NotFound,
    Unended,
    TooLarge,
    Full,
}

/// Puts `data` under `key`.
pub(super) fn put(cx: &mut Context<'_, '_>, key: &Key, put: &Put, data: Data<'_>) -> Done {
    let now = cx.now;
    let largest = cx.limits.item;
    let store = cx.shards.of(key);
    let value = match data {
        Data::Short(bytes) => Value::Short(bytes),
        Data::Long(long) => Value::Long(long),
        Data::Unended => return Done::Unended,
        Data::TooLarge => {
            cx.counts.add(Count::StoreTooLarge);
            return Done::TooLarge;
        }
        Data::Full => {
            cx.counts.add(Count::StoreNoMemory);
            return Done::Full;
        }
    };
    cx.counts.add(Count::CmdSet);
    let old = store.meta(key, now);
    let done = match (put.how, old) {
        (How::Set, None) | (How::Replace, None) if put.cas.is_some() => Ok(Done::NotFound),
        (How::Set | How::Add, None) => set(store, key, put, value, now),
        (How::Set | How::Replace, Some(old)) => match put.cas {
            Some(cas) if (1..old.cas).contains(&cas) && put.may_be_stale => {
                let put = Put { expiry: Expiry::Keep, marks: put.marks | STALE | old.marks & WON, ..*put };
                set(store, key, &put, value, now)
            }
            Some(cas) if cas != old.cas => Ok(Done::Exists),
            _ => set(store, key, put, value, now),
        },
        (How::Add, Some(_)) => {
            store.touch(key, now);
            Ok(Done::NotStored)
        }
        (How::Replace | How::Append | How::Prepend, None) => Ok(Done::NotStored),
        (How::Append | How::Prepend, Some(old)) if put.cas.is_some_and(|cas| ![0, old.cas].contains(&cas)) => {
            Ok(Done::Exists)
        }
        (How::Append, Some(old)) => append(store, key, old, &value, largest, now),
        (How::Prepend, Some(old)) => prepend(store, key, old, &value, largest, now),
    };
    let done = done.unwrap_or(Done::Full);
    match done {
        Done::Stored(_) => cx.counts.add(Count::TotalItems),
        Done::Full => cx.counts.add(Count::StoreNoMemory),
        _ => {}
    }
    if put.cas.is_some() {
        match done {
            Done::Stored(_) => cx.counts.add(Count::CasHits),
            Done::Exists => cx.counts.add(Count::CasBadval),
            Done::NotFound => cx.counts.add(Count::CasMisses),
            _ => {}
        }
    }
    done
}

fn set(store: &mut Store, key: &Key, put: &Put, value: Value<'_>, now: u64) -> Result<Done, Error> {
    store.set_with_meta(key, value, put.flags, put.marks, put.expiry, now).map(Done::Stored)
}

/// The length of what is under `key`, if that of an item is no more than `largest` with `more` bytes added.
fn has_room(
    store: &mut Store,
    key: &Key,
    old: ItemMeta,
    more: usize,
    largest: usize,
    now: u64,
) -> Result<Option<usize>, Error> {
    let len = store.peek(key, now)?.map_or(0, |value| value.len());
    Ok((size(key.bytes.len(), old.flags, len + more) <= largest).then_some(len))
}

fn append(
    store: &mut Store,
    key: &Key,
    old: ItemMeta,
    value: &Value<'_>,
    largest: usize,
    now: u64,
) -> Result<Done, Error> {
    let value = as_str(value);
    if has_room(store, key, old, value.len(), largest, now)?.is_none() {
        return Ok(Done::NotStored);
    }
    match value {
        Str::Short(bytes) => store.append(key, bytes, now)?,
        Str::Long(_) => store.append(key, &value.to_vec(), now)?,
    };
    let cas = store.next_cas();
    store.set_meta(key, ItemMeta { cas, marks: 0, ..old }, now);
    Ok(Done::Stored(cas))
}

fn prepend(
    store: &mut Store,
    key: &Key,
    old: ItemMeta,
    value: &Value<'_>,
    largest: usize,
    now: u64,
) -> Result<Done, Error> {
    let value = as_str(value);
    let Some(len) = has_room(store, key, old, value.len(), largest, now)? else { return Ok(Done::NotStored) };
    let mut whole = Vec::with_capacity(len + value.len());
    value.copy_to(&mut whole);
    if let Some(behind) = store.peek(key, now)? {
        behind.copy_to(&mut whole);
    }
    store.set_with_meta(key, &whole[..], old.flags, 0, Expiry::Keep, now).map(Done::Stored)
}

fn as_str<'a>(value: &'a Value<'_>) -> Str<'a> {
    match value {
        Value::Short(bytes) => Str::Short(bytes),
        Value::Long(long) => Str::Long(long),
    }
}

/// What came of counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// The number there is now, and the unique one.
    To(u64, u64),
    NotFound,
    Exists,
    NoNumber,
    Full,
}

/// Counts the number under `key` up or down, if what is there has the unique number `cas`.
pub(super) fn count(cx: &mut Context<'_, '_>, key: &Key, up: bool, by: u64, cas: Option<u64>) -> Counted {
    let (hits, misses) = if up { (Count::IncrHits, Count::IncrMisses) } else { (Count::DecrHits, Count::DecrMisses) };
    let now = cx.now;
    let store = cx.shards.of(key);
    let Ok(found) = store.fetch(key, true, now) else { return Counted::NoNumber };
    let Some(found) = found else {
        cx.counts.add(misses);
        return Counted::NotFound;
    };
    let meta = found.meta;
    // What cannot be a number is not compared.
    let Some(bytes) = found.value.short().filter(|bytes| !bytes.is_empty()) else { return Counted::NoNumber };
    if cas.is_some_and(|cas| ![0, meta.cas].contains(&cas)) {
        return Counted::Exists;
    }
    let (number, len) = (unsigned(bytes), bytes.len());
    let Some(number) = number else { return Counted::NoNumber };
    cx.counts.add(hits);
    let number = if up { number.wrapping_add(by) } else { number.saturating_sub(by) };
    match write_number(store, key, number, len, meta, now) {
        Ok(cas) => Counted::To(number, cas),
        Err(_) => Counted::Full,
    }
}

/// Puts `number` under `key`, where a value of `len` bytes is: it stays as long as it is, if it is long enough.
fn write_number(store: &mut Store, key: &Key, number: u64, len: usize, meta: ItemMeta, now: u64) -> Result<u64, Error> {
    let mut room = [0; DIGITS];
    let digits = digits(number, &mut room);
    if digits.len() > len {
        return store.set_with_meta(key, digits, meta.flags, 0, Expiry::Keep, now);
    }
    store.set_range(key, 0, digits, now)?;
    let mut at = digits.len();
    while at < len {
        let n = (len - at).min(PADDING);
        store.set_range(key, at, &[b' '; PADDING][..n], now)?;
        at += n;
    }
    let cas = store.next_cas();
    store.set_meta(key, ItemMeta { cas, ..meta }, now);
    Ok(cas)
}

/// What is under `key` expires as a client says in `seconds`. Returns whether anything is.
pub(super) fn touch(cx: &mut Context<'_, '_>, key: &Key, seconds: i32) -> Result<bool, Error> {
    let now = cx.now;
    let store = cx.shards.of(key);
    cx.counts.add(Count::CmdTouch);
    if !store.set_expiry(key, super::words::expires_at(seconds, now), now)? {
        cx.counts.add(Count::TouchMisses);
        return Ok(false);
    }
    cx.counts.add(Count::TouchHits);
    Ok(true)
}

/// Notes that what is under `key`, which has `meta`, has been fetched.
#[inline]
pub(super) fn note_fetched(store: &mut Store, key: &Key, meta: ItemMeta, now: u64) {
    if meta.marks & FETCHED == 0 {
        store.set_meta(key, ItemMeta { marks: meta.marks | FETCHED, ..meta }, now);
    }
}
