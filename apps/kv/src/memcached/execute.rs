//! Execution of requests.

use super::line::{DIGITS, Line, digits};
use super::put::{self, CountResult, Put, StoreResult};
use super::request::{Command, Request, StoreMode};
use super::words::{Time, Words};
use super::{Count, Data, Limits, SPACE, Server, WorkerCounts, meta, stats};
use crate::shards::Shards;
use crate::store::{Error, Key};
use crate::value::Sink;

pub(super) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";
pub(super) const NO_MEMORY_TO_STORE: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(super) const NO_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// Environment of a request.
pub struct Context<'c, 's> {
    /// Shards of its keys, or all shards if it [needs all](Request::needs_all).
    pub shards: &'c mut Shards<'s>,
    pub server: &'c mut dyn Server,
    pub counts: &'c WorkerCounts,
    pub limits: Limits,
    pub time: Time,
}

impl Context<'_, '_> {
    #[inline]
    pub(super) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        self.shards.key(SPACE, bytes)
    }
}

/// Outcome of a request for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    On,
    Close,
    /// The connection closes because the client sent an HTTP request.
    Http,
}

pub fn execute(request: &Request<'_>, data: Data<'_>, cx: &mut Context<'_, '_>, sink: &mut impl Sink) -> Flow {
    let answer: &[u8] = match request.command {
        Command::Reply(reply) => {
            sink.put(reply.as_bytes());
            return Flow::On;
        }
        Command::Get { keys, cas, expires } => {
            get(keys, cas, expires, cx, sink);
            return Flow::On;
        }
        Command::Put { key, how, flags, expires, cas } => {
            let put = Put { how, flags, marks: 0, expiry: cx.time.expiry(expires), cas, may_be_stale: false };
            store(key, &put, data, cx)
        }
        Command::Count { key, up, by } => {
            let key = cx.key(key);
            match put::count(cx, &key, up, by, None) {
                CountResult::To(number, _) if !request.quiet => {
                    let mut room = [0; DIGITS];
                    sink.put(Line::new(digits(number, &mut room)).put(b"\r\n").bytes());
                    return Flow::On;
                }
                CountResult::To(..) => b"",
                CountResult::NotFound => b"NOT_FOUND\r\n",
                CountResult::Exists => b"EXISTS\r\n",
                CountResult::NoNumber => NO_NUMBER,
                CountResult::Full => NO_MEMORY,
            }
        }
        Command::Delete(key) => {
            let key = cx.key(key);
            if cx.shards.store(&key).remove(&key, cx.time.now) {
                cx.counts.add(Count::DeleteHits);
                b"DELETED\r\n"
            } else {
                cx.counts.add(Count::DeleteMisses);
                b"NOT_FOUND\r\n"
            }
        }
        Command::Touch { key, expires } => touch(key, expires, cx),
        Command::Flush(delay) => {
            flush(delay, cx);
            b"OK\r\n"
        }
        Command::Stats(words) => {
            stats::stats(words, cx, sink);
            return Flow::On;
        }
        Command::Quit => return Flow::Close,
        Command::Http => return Flow::Http,
        Command::MetaGet(meta) => {
            meta::get(&meta, request.quiet, cx, sink);
            return Flow::On;
        }
        Command::MetaSet(meta, how) => {
            meta::set(&meta, how, request.quiet, data, cx, sink);
            return Flow::On;
        }
        Command::MetaDelete(meta) => {
            meta::delete(&meta, request.quiet, cx, sink);
            return Flow::On;
        }
        Command::MetaCount(meta, up) => {
            meta::count(&meta, up, request.quiet, cx, sink);
            return Flow::On;
        }
        Command::MetaDebug(meta) => {
            meta::debug(&meta, cx, sink);
            return Flow::On;
        }
    };
    if !request.quiet {
        sink.put(answer);
    }
    Flow::On
}

fn get(keys: Words<'_>, cas: bool, expires: Option<i32>, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    if keys.count() > 1 {
        cx.shards.prefetch_items(keys.map(|name| cx.key(name).hash()));
    }
    for name in keys {
        let key = cx.key(name);
        if let Some(seconds) = expires {
            // A value that expires at once is returned a last time.
            let goes = cx.time.expires_at(seconds).is_some_and(|at| at <= cx.time.now);
            if goes {
                get_one(&key, cas, cx, sink);
            }
            match put::touch(cx, &key, seconds) {
                Err(_) => return sink.put(NO_MEMORY),
                Ok(_) if goes => continue,
                Ok(_) => {}
            }
        }
        get_one(&key, cas, cx, sink);
    }
    sink.put(b"END\r\n");
}

#[inline]
fn get_one(key: &Key, cas: bool, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    let now = cx.time.now;
    let store = cx.shards.store(key);
    cx.counts.add(Count::CmdGet);
    let Ok(Some(found)) = store.fetch(key, true, now) else {
        cx.counts.add(Count::GetMisses);
        return;
    };
    cx.counts.add(Count::GetHits);
    let mut line = Line::new(b"VALUE ");
    line.put(key.bytes).put(b" ").number(found.meta.flags.into()).put(b" ").number(found.value.len() as u64);
    if cas {
        line.put(b" ").number(found.meta.cas);
    }
    sink.put(line.put(b"\r\n").bytes());
    found.value.write_to(sink);
    sink.put(b"\r\n");
    let meta = found.meta;
    put::note_fetched(store, key, meta, now);
}

fn store(key: &[u8], put: &Put, data: Data<'_>, cx: &mut Context<'_, '_>) -> &'static [u8] {
    let key = cx.key(key);
    match put::put(cx, &key, put, data) {
        StoreResult::Stored(_) => b"STORED\r\n",
        StoreResult::NotStored => b"NOT_STORED\r\n",
        StoreResult::Exists => b"EXISTS\r\n",
        StoreResult::NotFound => b"NOT_FOUND\r\n",
        StoreResult::Unended => BAD_CHUNK,
        done @ (StoreResult::TooLarge | StoreResult::Full) => {
            // The client must not find the value it wanted to replace.
            if put.how == StoreMode::Set && put.cas.is_none() {
                cx.shards.store(&key).remove(&key, cx.time.now);
            }
            if done == StoreResult::Full { NO_MEMORY_TO_STORE } else { TOO_LARGE }
        }
    }
}

fn touch(key: &[u8], expires: i32, cx: &mut Context<'_, '_>) -> &'static [u8] {
    let key = cx.key(key);
    match put::touch(cx, &key, expires) {
        Ok(true) => {
            let now = cx.time.now;
            let store = cx.shards.store(&key);
            if let Ok(Some(found)) = store.fetch(&key, true, now) {
                let meta = found.meta;
                put::note_fetched(store, &key, meta, now);
            }
            b"TOUCHED\r\n"
        }
        Ok(false) => b"NOT_FOUND\r\n",
        Err(Error::Full | Error::WrongType | Error::TooLong) => NO_MEMORY,
    }
}

fn flush(delay: i32, cx: &mut Context<'_, '_>) {
    cx.counts.add(Count::CmdFlush);
    let at = cx.time.expires_at(delay).filter(|at| *at > cx.time.now);
    if at.is_none() {
        cx.shards.all().for_each(|store| store.flush(SPACE));
    }
    cx.server.flush_at(at);
}
