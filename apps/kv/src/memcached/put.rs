//! Storage operations common to text commands and meta commands.

use super::line::{DIGITS, digits};
use super::request::{StoreMode, size};
use super::words::unsigned;
use super::{Context, Count, Data};
use crate::store::{Error, Expiry, ItemMeta, Key, Store, Str, Value};

/// A client has fetched the item.
pub(super) const FETCHED: u8 = 1;
/// The item is stale: usable until a client recaches it.
pub(super) const STALE: u8 = 2;
/// A client was requested to recache the item.
pub(super) const WON: u8 = 4;
/// The key was sent in base64.
pub(super) const BINARY: u8 = 8;

/// Number of spaces written at a time after a number that became shorter.
const PADDING: usize = 32;

/// Parameters of a store operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put {
    pub how: StoreMode,
    pub flags: u32,
    pub marks: u8,
    pub expiry: Expiry,
    /// Required CAS value of the present item.
    pub cas: Option<u64>,
    /// Also store if the present item is newer, marked as stale and with the present expiry time.
    pub may_be_stale: bool,
}

/// Result of a store operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreResult {
    /// Stored with this CAS value.
    Stored(u64),
    NotStored,
    Exists,
    NotFound,
    Unended,
    TooLarge,
    Full,
}

pub(super) fn put(cx: &mut Context<'_, '_>, key: &Key, put: &Put, data: Data<'_>) -> StoreResult {
    let now = cx.time.now;
    let largest = cx.limits.item;
    let store = cx.shards.store(key);
    let value = match data {
        Data::Short(bytes) => Value::Short(bytes),
        Data::Long(long) => Value::Long(long),
        Data::Unended => return StoreResult::Unended,
        Data::TooLarge => {
            cx.counts.add(Count::StoreTooLarge);
            return StoreResult::TooLarge;
        }
        Data::Full => {
            cx.counts.add(Count::StoreNoMemory);
            return StoreResult::Full;
        }
    };
    cx.counts.add(Count::CmdSet);
    let old = store.meta(key, now);
    let done = match (put.how, old) {
        (StoreMode::Set, None) | (StoreMode::Replace, None) if put.cas.is_some() => Ok(StoreResult::NotFound),
        (StoreMode::Set | StoreMode::Add, None) => set(store, key, put, value, now),
        (StoreMode::Set | StoreMode::Replace, Some(old)) => match put.cas {
            Some(cas) if (1..old.cas).contains(&cas) && put.may_be_stale => {
                let put = Put { expiry: Expiry::Keep, marks: put.marks | STALE | old.marks & WON, ..*put };
                set(store, key, &put, value, now)
            }
            Some(cas) if cas != old.cas => Ok(StoreResult::Exists),
            _ => set(store, key, put, value, now),
        },
        (StoreMode::Add, Some(_)) => {
            store.touch(key, now);
            Ok(StoreResult::NotStored)
        }
        (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => Ok(StoreResult::NotStored),
        (StoreMode::Append | StoreMode::Prepend, Some(old))
            if put.cas.is_some_and(|cas| ![0, old.cas].contains(&cas)) =>
        {
            Ok(StoreResult::Exists)
        }
        (how, Some(old)) => extend(store, key, old, how, &value, largest, now),
    };
    let done = done.unwrap_or(StoreResult::Full);
    match done {
        StoreResult::Stored(_) => cx.counts.add(Count::TotalItems),
        StoreResult::Full => cx.counts.add(Count::StoreNoMemory),
        _ => {}
    }
    if put.cas.is_some() {
        match done {
            StoreResult::Stored(_) => cx.counts.add(Count::CasHits),
            StoreResult::Exists => cx.counts.add(Count::CasBadval),
            StoreResult::NotFound => cx.counts.add(Count::CasMisses),
            _ => {}
        }
    }
    done
}

fn set(store: &mut Store, key: &Key, put: &Put, value: Value<'_>, now: u64) -> Result<StoreResult, Error> {
    store.set_with_meta(key, value, put.flags, put.marks, put.expiry, now).map(StoreResult::Stored)
}

/// Appends or prepends `value`, unless the item would exceed `largest`.
fn extend(
    store: &mut Store,
    key: &Key,
    old: ItemMeta,
    how: StoreMode,
    value: &Value<'_>,
    largest: usize,
    now: u64,
) -> Result<StoreResult, Error> {
    let value = as_str(value);
    let len = store.peek(key, now)?.map_or(0, |value| value.len());
    if size(key.bytes.len(), old.flags, len + value.len()) > largest {
        return Ok(StoreResult::NotStored);
    }
    if how == StoreMode::Append {
        match value {
            Str::Short(bytes) => store.append(key, bytes, now)?,
            Str::Long(_) => store.append(key, &value.to_vec(), now)?,
        };
        let cas = store.next_cas();
        store.set_meta(key, ItemMeta { cas, marks: 0, ..old }, now);
        return Ok(StoreResult::Stored(cas));
    }
    let mut whole = Vec::with_capacity(len + value.len());
    value.copy_to(&mut whole);
    if let Some(after) = store.peek(key, now)? {
        after.copy_to(&mut whole);
    }
    store.set_with_meta(key, &whole[..], old.flags, 0, Expiry::Keep, now).map(StoreResult::Stored)
}

fn as_str<'a>(value: &'a Value<'_>) -> Str<'a> {
    match value {
        Value::Short(bytes) => Str::Short(bytes),
        Value::Long(long) => Str::Long(long),
    }
}

/// Result of an increment or decrement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountResult {
    /// New number and CAS value.
    To(u64, u64),
    NotFound,
    Exists,
    NoNumber,
    Full,
}

/// Increments or decrements the number under `key`, if its CAS value is `cas`.
pub(super) fn count(cx: &mut Context<'_, '_>, key: &Key, up: bool, by: u64, cas: Option<u64>) -> CountResult {
    let (hits, misses) = if up { (Count::IncrHits, Count::IncrMisses) } else { (Count::DecrHits, Count::DecrMisses) };
    let now = cx.time.now;
    let store = cx.shards.store(key);
    let Ok(found) = store.fetch(key, true, now) else { return CountResult::NoNumber };
    let Some(found) = found else {
        cx.counts.add(misses);
        return CountResult::NotFound;
    };
    let meta = found.meta;
    // A value that cannot be a number is rejected before the CAS check.
    let Some(bytes) = found.value.short().filter(|bytes| !bytes.is_empty()) else { return CountResult::NoNumber };
    if cas.is_some_and(|cas| ![0, meta.cas].contains(&cas)) {
        return CountResult::Exists;
    }
    let (number, len) = (unsigned(bytes), bytes.len());
    let Some(number) = number else { return CountResult::NoNumber };
    cx.counts.add(hits);
    let number = if up { number.wrapping_add(by) } else { number.saturating_sub(by) };
    match write_number(store, key, number, len, meta, now) {
        Ok(cas) => CountResult::To(number, cas),
        Err(_) => CountResult::Full,
    }
}

/// Stores `number` under `key`, where a value of `len` bytes is. The length stays the same if it suffices.
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

/// Sets the expiry time of `key` as given by a client in `seconds`. Returns false if it does not exist.
pub(super) fn touch(cx: &mut Context<'_, '_>, key: &Key, seconds: i32) -> Result<bool, Error> {
    let now = cx.time.now;
    let store = cx.shards.store(key);
    cx.counts.add(Count::CmdTouch);
    if !store.set_expiry(key, cx.time.expires_at(seconds), now)? {
        cx.counts.add(Count::TouchMisses);
        return Ok(false);
    }
    cx.counts.add(Count::TouchHits);
    Ok(true)
}

/// Marks the item under `key`, whose metadata is `meta`, as fetched.
#[inline]
pub(super) fn note_fetched(store: &mut Store, key: &Key, meta: ItemMeta, now: u64) {
    if meta.marks & FETCHED == 0 {
        store.set_meta(key, ItemMeta { marks: meta.marks | FETCHED, ..meta }, now);
    }
}
