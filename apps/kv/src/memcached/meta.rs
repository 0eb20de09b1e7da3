//! Execution of meta commands.

use super::execute::{BAD_CHUNK, NO_MEMORY, NO_MEMORY_TO_STORE, NO_NUMBER, TOO_LARGE};
use super::flags::Meta;
use super::line::{DIGITS, Line, digits};
use super::put::{self, BINARY, CountResult, FETCHED, Put, STALE, StoreResult, WON};
use super::request::{StoreMode, size};
use super::words::{Time, seconds_left};
use super::{Context, Count, Data, KEY, binary_key};
use crate::store::{Expiry, ItemMeta, Key, Store, Str};
use crate::value::Sink;

const NO_MEMORY_TO_COUNT: &[u8] = b"SERVER_ERROR Out of memory allocating new item\r\n";

/// Item of an `mg`.
struct Item {
    meta: ItemMeta,
    len: usize,
    idle: u64,
    expires_at: Option<u64>,
    /// The request created the item.
    is_new: bool,
    /// The client is to recache the item.
    won: bool,
}

pub(super) fn get(meta: &Meta<'_>, quiet: bool, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    let mut room = [0; KEY];
    let key = cx.key(meta.key(&mut room));
    cx.counts.add(Count::CmdMeta);
    cx.counts.add(Count::CmdGet);
    let time @ Time { now, .. } = cx.time;
    let store = cx.shards.store(&key);
    let (mut item, value) = match store.fetch(&key, !meta.unused, now) {
        Ok(Some(found)) => {
            cx.counts.add(Count::GetHits);
            let (meta, len, idle) = (found.meta, found.value.len(), found.idle);
            let item = Item { meta, len, idle, expires_at: found.expires_at, is_new: false, won: false };
            (item, Some(found.value))
        }
        _ => {
            cx.counts.add(Count::GetMisses);
            let new = meta.vivify.and_then(|_| store.set_with_meta(&key, b"", 0, WON, Expiry::Never, now).ok());
            let Some(cas) = new else { return missed(meta, quiet, &key, sink) };
            let meta = ItemMeta { flags: 0, cas, marks: WON };
            (Item { meta, len: 0, idle: 0, expires_at: None, is_new: true, won: true }, None)
        }
    };
    let before = item.expires_at;
    let mut line = Line::new(b"");
    if meta.value {
        line.put(b"VA ").number(item.len as u64);
    } else {
        line.put(b"HD");
    }
    describe(meta, &mut item, &key, time, &mut line);
    if meta.expires.is_some() {
        cx.counts.add(Count::CmdTouch);
        cx.counts.add(Count::TouchHits);
    }
    let goes = item.expires_at.is_some_and(|at| at <= now);
    if item.expires_at == before || goes {
        answer(meta, &line, value.unwrap_or(Str::Short(b"")), sink);
        if goes {
            store.remove(&key, now);
            return;
        }
    } else if store.set_expiry(&key, item.expires_at, now).is_err() {
        return sink.put(NO_MEMORY);
    } else if let Ok(Some(value)) = store.peek(&key, now) {
        answer(meta, &line, value, sink);
    }
    let used = if meta.unused { 0 } else { FETCHED };
    let marks = item.meta.marks | used | if item.won { WON } else { 0 };
    if marks != item.meta.marks {
        store.set_meta(&key, ItemMeta { marks, ..item.meta }, now);
    }
}

fn answer(meta: &Meta<'_>, line: &Line, value: Str<'_>, sink: &mut impl Sink) {
    sink.put(line.bytes());
    if meta.value {
        value.write_to(sink);
        sink.put(b"\r\n");
    }
}

/// Evaluates the flags in order and appends their results and the line end to `line`.
fn describe(meta: &Meta<'_>, item: &mut Item, key: &Key, time: Time, line: &mut Line) {
    let had_won = !item.is_new && item.meta.marks & WON != 0;
    let is_stale = item.meta.marks & STALE != 0;
    for flag in meta.flags {
        match flag[0] {
            b'T' => item.expires_at = meta.expires.and_then(|seconds| time.expires_at(seconds)),
            b'N' if item.is_new => item.expires_at = meta.vivify.and_then(|seconds| time.expires_at(seconds)),
            b'R' => {
                let soon = meta.recache.and_then(|seconds| time.expires_at(seconds));
                let is_near = item.expires_at.is_some_and(|at| soon.is_some_and(|soon| at < soon));
                item.won |= is_near && !had_won;
            }
            b's' => _ = line.put(b" s").number(item.len as u64),
            b't' => put_expiry(item.expires_at, time.now, line),
            b'c' => _ = line.put(b" c").number(item.meta.cas),
            b'f' => _ = line.put(b" f").number(item.meta.flags.into()),
            b'h' => _ = line.put(b" h").number((item.meta.marks & FETCHED != 0).into()),
            b'l' => _ = line.put(b" l").number(item.idle),
            _ => echo(flag, key, item.meta.marks & BINARY != 0, line),
        }
    }
    item.won |= is_stale && !had_won;
    for (is_set, mark) in [(had_won, b" Z"), (is_stale, b" X"), (item.won, b" W")] {
        if is_set {
            line.put(mark);
        }
    }
    line.put(b"\r\n");
}

/// Appends the flags that are returned unchanged.
fn echo(flag: &[u8], key: &Key, binary: bool, line: &mut Line) {
    match flag[0] {
        b'O' => _ = line.put(b" ").put(flag),
        b'k' if binary => {
            line.put(b" k");
            binary_key::encode(key.bytes, |text| _ = line.put(text));
            line.put(b" b");
        }
        b'k' => _ = line.put(b" k").put(key.bytes),
        _ => {}
    }
}

fn put_expiry(at: Option<u64>, now: u64, line: &mut Line) {
    match at {
        None => line.put(b" t-1"),
        Some(at) => line.put(b" t").number(seconds_left(at, now)),
    };
}

fn reply_code(code: &[u8], meta: &Meta<'_>, key: &Key, sink: &mut impl Sink) {
    let mut line = Line::new(code);
    meta.flags.for_each(|flag| echo(flag, key, meta.binary, &mut line));
    sink.put(line.put(b"\r\n").bytes());
}

fn missed(meta: &Meta<'_>, quiet: bool, key: &Key, sink: &mut impl Sink) {
    if !quiet {
        reply_code(b"EN", meta, key, sink);
    }
}

pub(super) fn set(
    meta: &Meta<'_>,
    how: StoreMode,
    quiet: bool,
    data: Data<'_>,
    cx: &mut Context<'_, '_>,
    sink: &mut impl Sink,
) {
    let mut room = [0; KEY];
    let key = cx.key(meta.key(&mut room));
    cx.counts.add(Count::CmdMeta);
    let put = Put {
        how,
        flags: meta.client_flags,
        marks: if meta.binary { BINARY } else { 0 },
        expiry: meta.expires.map_or(Expiry::Never, |seconds| cx.time.expiry(seconds)),
        cas: meta.cas,
        may_be_stale: meta.invalidate,
    };
    let (code, cas) = match put::put(cx, &key, &put, data) {
        StoreResult::Stored(_) if quiet => return,
        StoreResult::Stored(cas) => (b"HD", cas),
        StoreResult::NotStored => (b"NS", 0),
        StoreResult::Exists => (b"EX", 0),
        StoreResult::NotFound => (b"NF", 0),
        StoreResult::Unended => return sink.put(BAD_CHUNK),
        done @ (StoreResult::TooLarge | StoreResult::Full) => {
            // The client must not find the value it wanted to replace.
            cx.shards.store(&key).remove(&key, cx.time.now);
            return sink.put(if done == StoreResult::Full { NO_MEMORY_TO_STORE } else { TOO_LARGE });
        }
    };
    let mut line = Line::new(code);
    for flag in meta.flags {
        match flag[0] {
            b'c' => _ = line.put(b" c").number(cas),
            _ => echo(flag, &key, meta.binary, &mut line),
        }
    }
    sink.put(line.put(b"\r\n").bytes());
}

pub(super) fn delete(meta: &Meta<'_>, quiet: bool, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    let mut room = [0; KEY];
    let key = cx.key(meta.key(&mut room));
    cx.counts.add(Count::CmdMeta);
    let time @ Time { now, .. } = cx.time;
    let store = cx.shards.store(&key);
    let code = match store.meta(&key, now) {
        None => {
            cx.counts.add(Count::DeleteMisses);
            b"NF"
        }
        Some(old) if meta.cas.is_some_and(|cas| cas != old.cas) => b"EX",
        Some(old) => {
            if meta.invalidate {
                if let Some(seconds) = meta.expires
                    && store.set_expiry(&key, time.expires_at(seconds), now).is_err()
                {
                    return sink.put(NO_MEMORY);
                }
                let cas = store.next_cas();
                store.set_meta(&key, ItemMeta { cas, marks: (old.marks | STALE) & !WON, ..old }, now);
            } else {
                store.remove(&key, now);
                cx.counts.add(Count::DeleteHits);
            }
            if quiet {
                return;
            }
            b"HD"
        }
    };
    reply_code(code, meta, &key, sink);
}

pub(super) fn count(meta: &Meta<'_>, up: bool, quiet: bool, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    let mut room = [0; KEY];
    let key = cx.key(meta.key(&mut room));
    cx.counts.add(Count::CmdMeta);
    let counted = put::count(cx, &key, up, meta.delta, meta.cas);
    let time @ Time { now, .. } = cx.time;
    let store = cx.shards.store(&key);
    let mut digits_room = [0; DIGITS];
    let (number, cas, is_new) = match counted {
        CountResult::To(number, cas) => (number, cas, false),
        CountResult::NotFound if meta.vivify.is_none() => return reply_code(b"NF", meta, &key, sink),
        CountResult::NotFound => {
            let initial = digits(meta.initial, &mut digits_room);
            let Ok(cas) = store.set_with_meta(&key, initial, 0, 0, Expiry::Never, now) else {
                return sink.put(NO_MEMORY_TO_COUNT);
            };
            (meta.initial, cas, true)
        }
        CountResult::Exists => return reply_code(b"EX", meta, &key, sink),
        CountResult::NoNumber => return sink.put(NO_NUMBER),
        CountResult::Full => return sink.put(NO_MEMORY),
    };
    let digits = digits(number, &mut digits_room);
    let mut line = Line::new(b"");
    if meta.value {
        line.put(b"VA ").number(digits.len() as u64);
    } else {
        line.put(b"HD");
    }
    let before = store.expires_at(&key, now).flatten();
    let mut expires = before;
    for flag in meta.flags {
        match flag[0] {
            b'T' => expires = meta.expires.and_then(|seconds| time.expires_at(seconds)),
            b'N' if is_new => expires = meta.vivify.and_then(|seconds| time.expires_at(seconds)),
            b't' => put_expiry(expires, now, &mut line),
            b'c' => _ = line.put(b" c").number(cas),
            _ => echo(flag, &key, meta.binary, &mut line),
        }
    }
    if expires != before && store.set_expiry(&key, expires, now).is_err() {
        return sink.put(NO_MEMORY);
    }
    if quiet && !is_new {
        return;
    }
    line.put(b"\r\n");
    if meta.value {
        line.put(digits).put(b"\r\n");
    }
    sink.put(line.bytes());
}

pub(super) fn debug(meta: &Meta<'_>, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    let mut room = [0; KEY];
    let key = cx.key(meta.key(&mut room));
    cx.counts.add(Count::CmdMeta);
    let now = cx.time.now;
    let store: &mut Store = cx.shards.store(&key);
    let Ok(Some(found)) = store.fetch(&key, false, now) else { return sink.put(b"EN\r\n") };
    let mut line = Line::new(b"ME ");
    if found.meta.marks & BINARY != 0 {
        binary_key::encode(key.bytes, |text| _ = line.put(text));
    } else {
        line.put(key.bytes);
    }
    // Expiry times are shown as negative seconds left.
    let left = found.expires_at.map_or(1, |at| seconds_left(at, now));
    line.put(b" exp=-").number(left).put(b" la=").number(found.idle);
    line.put(b" cas=").number(found.meta.cas).put(b" fetch=");
    line.put(if found.meta.marks & FETCHED != 0 { b"yes" } else { b"no" });
    let size = size(key.bytes.len(), found.meta.flags, found.value.len());
    line.put(b" cls=1 size=").number(size as u64).put(b"\r\n");
    sink.put(line.bytes());
}
