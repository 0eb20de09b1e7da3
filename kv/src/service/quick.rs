//! The fast path: nearly every request is a GET, or a SET of a short value and nothing else, that has come as a whole.
//!
//! A few comparisons find that out, and what they say is what the parser and the table of commands would; whatever they do not
//! recognise goes that way.

use super::Kv;
use super::client::{Client, Speech};
use super::output::{bulk_len, write_bulk};
use crate::commands::{Quick, Session};
use crate::resp::{OK, Protocol};
use crate::shards::shard_of;
use crate::sink::Sink;
use crate::store::{Expiry, Key, LONG, Seen, Store, Str};
use linerate_bypass::{BURST, ConnId, Transport};
use std::ops::Range;

/// Requests of one client that are recognised ahead at most.
pub(super) const AHEAD: usize = 16;
/// When so many have been recognised, they are done: what was fetched is near then, and may not be when more has been. One of each
/// client that a burst of the port brings is as many.
pub(super) const FEW: usize = BURST;
/// When so many have been, the lines of the index that they need are asked for, which come while others are recognised. Not one by one:
/// what leads there is not near either, and few at a time wait for it if much is done in between.
const SOME: usize = FEW / 2;

/// A request that is recognised: where in its bytes the key and the value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// Where the key begins and ends, and where the value does, which is empty at 0 for a GET: 16 bits each, the lowest first. In one
    /// word, as it is written and read: a processor that reads as a whole what has just been written in parts waits for that.
    places: u64,
    /// Bytes of it.
    pub len: usize,
}

/// A request that was recognised ahead, the hash of its key, and what was seen of that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    known: Known,
    hash: u64,
    seen: Seen,
    space: u8,
}

/// The beginning of each, in upper case.
const GET: &[u8; HEAD] = b"*2\r\n$3\r\nGET\r\n$";
const SET: &[u8; HEAD] = b"*3\r\n$3\r\nSET\r\n$";
const HEAD: usize = 14;
/// In the last eight bytes of it, of which the third is the first letter: what tells upper case from lower.
const CASE: u64 = 0x20_2020 << 16;
/// Where the key is, if its length has two digits.
const KEY: usize = HEAD + 4;
const END: &[u8; 2] = b"\r\n";

/// The first eight bytes of a beginning, and the last eight with letters in upper case.
#[inline(always)]
fn words(head: &[u8; HEAD]) -> (u64, u64) {
    let [first, last] =
        [head.first_chunk(), head.last_chunk()].map(|word| word.map_or(0, |word| u64::from_le_bytes(*word)));
    (first, last & !CASE)
}

impl Known {
    /// With a key and a value there, each at most [`LONG`] bytes behind some lines.
    #[inline(always)]
    fn new(key: Range<usize>, value: Range<usize>, len: usize) -> Self {
        let places = key.start as u64 | (key.end as u64) << 16 | (value.start as u64) << 32 | (value.end as u64) << 48;
        Known { places, len }
    }

    /// The place number `n`.
    #[inline(always)]
    fn place(&self, n: u32) -> usize {
        (self.places >> (16 * n)) as u16 as usize
    }

    /// What `data` begin with, if that is recognised, and its key.
    #[inline(always)]
    pub fn of(data: &[u8]) -> Option<(Self, &[u8])> {
        // Most have keys and values whose lengths have two digits.
        if let Some(start) = data.first_chunk::<{ HEAD + 7 }>()
            && let (Some(head), Some(line)) = (start.first_chunk(), start.last_chunk())
            && let Some(len) = tens(u64::from_le_bytes(*line))
            && let Some((key, behind)) = data[KEY..].split_at_checked(len)
            && let Some((END, behind)) = behind.split_first_chunk()
        {
            let (head, end) = (words(head), KEY + len);
            if head == words(GET) {
                return Some((Known::new(KEY..end, 0..0, end + 2), key));
            }
            if head == words(SET)
                && let Some(line) = behind.first_chunk()
                && let Some(len) = tens(u64::from_le_bytes(*line))
                && behind.get(5 + len..).is_some_and(|behind| behind.first_chunk() == Some(END))
            {
                let (from, to) = (end + 7, end + 7 + len);
                return Some((Known::new(KEY..end, from..to, to + 2), key));
            }
        }
        Known::of_another(data)
    }

    /// As [`of`](Self::of), for all that is recognised.
    #[inline(never)]
    fn of_another(data: &[u8]) -> Option<(Self, &[u8])> {
        let head = words(data.first_chunk()?);
        let key = Bulk::of(data, HEAD - 1)?;
        let bytes = &data[key.start..key.end];
        if head == words(GET) {
            return Some((Known::new(key.range(), 0..0, key.behind), bytes));
        }
        let value = Bulk::of(data, key.behind)?;
        let is_set = head == words(SET) && value.end - value.start < LONG;
        is_set.then(|| (Known::new(key.range(), value.range(), value.behind), bytes))
    }

    /// Its key in `data`, which it was recognised in.
    #[inline(always)]
    pub fn key<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.place(0)..self.place(1)]
    }

    /// Whether it is a SET.
    #[inline(always)]
    fn is_set(&self) -> bool {
        self.places >> 32 > 0
    }

    /// The value that it sets, if it is a SET.
    #[inline(always)]
    fn value<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        self.is_set().then(|| &data[self.place(2)..self.place(3)])
    }
}

/// The length of an argument of which these are the first bytes, if that has two digits, as most have.
#[inline(always)]
fn tens(word: u64) -> Option<usize> {
    const OTHERS: u64 = u64::from_le_bytes(*b"\xff\0\0\xff\xff\0\0\0");
    const EXPECTED: u64 = u64::from_le_bytes(*b"$\0\0\r\n\0\0\0");
    // Two digits in a byte each, the tens first, of which none is zero.
    let digits = (word >> 8 & 0xffff) ^ 0x3030;
    let is_number = (digits | (digits + 0x7676)) & 0x8080 == 0 && digits & 0xff > 0;
    (word & OTHERS == EXPECTED && is_number).then_some(((digits * 0x0a01) >> 8 & 0xff) as usize)
}

/// The length of the argument that `data` begin with, and its digits, of which there are four at most.
#[inline]
fn length(data: &[u8]) -> Option<(usize, usize)> {
    let digits = data.get(1..)?.iter().take(5).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = data[1..].split_at(digits);
    // "01" is for the parser to judge.
    if data[0] != b'$' || !(1..=4).contains(&digits) || digits > 1 && number[0] == b'0' || !rest.starts_with(b"\r\n") {
        return None;
    }
    Some((number.iter().fold(0, |len, digit| len * 10 + usize::from(digit - b'0')), digits))
}

/// An argument: where it begins and ends, and what is behind it.
pub(super) struct Bulk {
    pub start: usize,
    pub end: usize,
    pub behind: usize,
}

impl Bulk {
    /// That whose `$` is at `at`, if all of it is there and its length has four digits at most.
    #[inline(always)]
    pub fn of(data: &[u8], at: usize) -> Option<Self> {
        let (len, digits) = match data.get(at..)?.first_chunk().and_then(|word| tens(u64::from_le_bytes(*word))) {
            Some(len) => (len, 2),
            None => length(&data[at..])?,
        };
        let start = at + digits + 3;
        let end = start + len;
        let is_whole = data.get(end..)?.first_chunk() == Some(END);
        is_whole.then_some(Bulk { start, end, behind: end + 2 })
    }

    #[inline(always)]
    fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

impl Kv {
    /// Recognises what the first of the clients of `readable` ask for next, and fetches what it will touch. Returns how many
    /// clients were looked at, and whether all of them are known.
    #[inline(never)]
    pub(super) fn look_ahead(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> (usize, bool) {
        self.forget_ahead();
        let is_here = self.stores[self.worker].is_some();
        let (mut looked_at, mut are_known) = (0, true);
        for conn in readable {
            if self.ahead.len() + self.glimpsed.len() >= FEW {
                break;
            }
            looked_at += 1;
            let Some(lane) = self.lanes.get_mut(conn.slot()).filter(|lane| lane.is_of(*conn)) else {
                are_known = false;
                continue;
            };
            lane.served_in = self.burst;
            let (space, is_quiet) = (lane.space, lane.is_quiet);
            let all = net.received(*conn);
            let data = net.peek(*conn);
            let (mut ahead, mut used) = (0..0, 0);
            if let Some(space) = space.filter(|_| is_here) {
                (ahead, used) = self.recognise_ours(space, data);
            }
            if is_quiet && used == all && ahead.len() == 1 {
                self.lone.push((*conn, ahead.start as u32));
            } else {
                if used < data.len() && ahead.len() < AHEAD {
                    self.glimpse(*conn, &data[used..]);
                }
                self.others.push((*conn, ahead));
            }
            if self.ahead.len() >= self.asked + SOME {
                self.fetch_index();
            }
        }
        self.fetch(0);
        self.fetch_glimpsed();
        if self.exports {
            self.fetch_export(net);
        }
        (looked_at, are_known)
    }

    /// Asks for those parts of the export that will be written by what was recognised.
    #[cold]
    #[inline(never)]
    fn fetch_export(&self, net: &mut impl Transport) {
        let Some(store) = &self.stores[self.worker] else { return };
        let lone = self.lone.iter().map(|(conn, at)| (*conn, *at as usize..*at as usize + 1));
        for (conn, ahead) in lone.chain(self.others.iter().cloned()) {
            let mut data = net.peek(conn);
            for Ahead { known, space, .. } in &self.ahead[ahead] {
                if known.value(data).is_some() {
                    store.prefetch_export(*space, known.key(data));
                }
                data = &data[known.len..];
            }
        }
    }

    /// Serves those clients that were looked at ahead.
    #[inline(never)]
    pub(super) fn serve_group(&mut self, net: &mut impl Transport) {
        let mut lone = std::mem::take(&mut self.lone);
        for (conn, at) in lone.drain(..) {
            let at = at as usize;
            let is_set = self.ahead[at].known.is_set();
            if !(if is_set { self.set_one(net, conn, at) } else { self.get_one(net, conn, at) }) {
                self.serve_known(net, conn, at..at + 1);
            }
        }
        self.lone = lone;
        let mut others = std::mem::take(&mut self.others);
        others.drain(..).for_each(|(conn, ahead)| self.serve_known(net, conn, ahead));
        self.others = others;
    }

    /// Serves the client of `conn`, whose next requests are those of `ahead`.
    #[inline(never)]
    fn serve_known(&mut self, net: &mut impl Transport, conn: ConnId, ahead: Range<usize>) {
        self.with_client(net, conn, |kv, net, client| {
            client.ahead = ahead;
            kv.serve(net, client);
        });
    }

    /// Nothing has been recognised.
    pub(super) fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.asked = 0;
    }

    /// Recognises requests in `space` at the beginning of `data` that can be done here. Returns which they are, and how many bytes.
    /// They must be [fetched](Self::fetch) before they are answered.
    #[inline]
    pub(super) fn recognise(&mut self, space: u8, data: &[u8]) -> (Range<usize>, usize) {
        match self.stores[self.worker] {
            Some(_) => self.recognise_ours(space, data),
            None => (0..0, 0),
        }
    }

    /// As [`recognise`](Self::recognise), while our shard is here.
    #[inline(always)]
    fn recognise_ours(&mut self, space: u8, data: &[u8]) -> (Range<usize>, usize) {
        let first = self.ahead.len();
        let shards = self.stores.len();
        let mut used = 0;
        while let Some((known, key)) = Known::of(&data[used..]) {
            if self.unhashed.is_full() {
                self.fetch_index();
            }
            // That of a key that is hashed together with others is not known yet.
            let mut hash = 0;
            if shards > 1 || !self.keys.add(&mut self.unhashed, self.ahead.len() as u32, space, key) {
                hash = self.keys.key(space, key).hash();
                if shard_of(hash, shards) != self.worker {
                    break;
                }
            }
            self.ahead.push(Ahead { known, hash, seen: Seen::default(), space });
            used += known.len;
            if used >= data.len() || self.ahead.len() - first >= AHEAD {
                break;
            }
        }
        (first..self.ahead.len(), used)
    }

    /// Asks for the items of the requests that were recognised from the number `first` on.
    #[inline(always)]
    pub(super) fn fetch(&mut self, first: usize) {
        self.fetch_index();
        if let Some(store) = &self.stores[self.worker] {
            self.ahead[first..].iter_mut().for_each(|ahead| {
                ahead.seen = store.see(ahead.hash);
                store.prefetch_item(ahead.seen);
            });
        }
    }

    /// Finds the hashes of those that have been recognised since, and asks for what leads to their items.
    #[inline(always)]
    fn fetch_index(&mut self) {
        let ahead = &mut self.ahead;
        self.keys.hash_all(&mut self.unhashed, |at, hash| ahead[at as usize].hash = hash);
        if let Some(store) = &self.stores[self.worker] {
            ahead[self.asked..].iter().for_each(|ahead| store.prefetch_index(ahead.hash));
        }
        self.asked = ahead.len();
    }

    /// Asks for the items of keys that were noted.
    #[inline(always)]
    fn fetch_glimpsed(&mut self) {
        if let Some(store) = &self.stores[self.worker] {
            self.glimpsed.drain(..).for_each(|hash| store.prefetch_item(store.see(hash)));
        }
    }

    /// Recognises what `client` asks for next, and fetches what it will touch.
    pub(super) fn look_further(&mut self, net: &mut impl Transport, client: &mut Client) {
        let first = self.ahead.len();
        client.ahead = 0..0;
        if let Some(space) = client.recognised_in() {
            (client.ahead, _) = self.recognise(space, net.peek(client.conn));
            self.fetch(first);
        }
    }

    /// Does what was recognised ahead of what `client` asks for. Returns whether all of it has been done.
    pub(super) fn serve_ahead(&mut self, net: &mut impl Transport, client: &mut Client) -> bool {
        let ahead = std::mem::take(&mut client.ahead);
        let Speech::Resp { session, .. } = &mut client.speech else { return false };
        let Some((used, is_all)) = self.answer(session, net.peek(client.conn), ahead) else { return false };
        self.host.read(used);
        net.consume(client.conn, used);
        self.reply(net, client);
        is_all
    }

    /// Does what the client of `conn` asks for, the request number `at` of those that were recognised, if that is a GET of a short
    /// value that was seen. Returns whether it was.
    ///
    /// The answer is written where it is sent from.
    #[inline(always)]
    fn get_one(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) -> bool {
        let Ahead { known, space, hash, seen, .. } = &self.ahead[at];
        let Some(store) = &mut self.stores[self.worker] else { return false };
        let data = net.peek(conn);
        let key = self.keys.known(*space, known.key(data), *hash);
        let Some(value) = store.get_seen(&key, *seen, self.now) else { return false };
        self.stats.hits += 1;
        self.lanes[conn.slot()].answered(Quick::Get, self.now);
        self.stats.commands += 1;
        self.host.read(known.len);
        let len = bulk_len(value.len());
        if net.answer(conn, known.len, len, |place| write_bulk(value, place)) {
            self.host.wrote(len);
        } else {
            self.replies.bulk(value);
            self.with_client(net, conn, |kv, net, client| kv.reply(net, client));
        }
        true
    }

    /// As [`get_one`](Self::get_one), if it is a SET that there is room for.
    #[inline(never)]
    fn set_one(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) -> bool {
        let Ahead { known, space, hash, seen, .. } = &self.ahead[at];
        let Some(store) = &mut self.stores[self.worker] else { return false };
        let data = net.peek(conn);
        let key = self.keys.known(*space, known.key(data), *hash);
        if !known.value(data).is_some_and(|value| set(store, &key, *seen, value, self.now)) {
            return false;
        }
        self.lanes[conn.slot()].answered(Quick::Set, self.now);
        self.stats.commands += 1;
        self.host.read(known.len);
        if net.answer(conn, known.len, OK.len(), |place| place.copy_from_slice(OK)) {
            self.host.wrote(OK.len());
        } else {
            self.replies.put(OK);
            self.with_client(net, conn, |kv, net, client| kv.reply(net, client));
        }
        true
    }

    /// Does what was recognised ahead at the beginning of `data`, which `session` asks for. Returns how many bytes of that it was,
    /// and whether it was all.
    #[inline(always)]
    pub(super) fn answer(&mut self, session: &mut Session, data: &[u8], ahead: Range<usize>) -> Option<(usize, bool)> {
        let ahead = &self.ahead[ahead];
        let store = self.stores[self.worker].as_mut()?;
        let mut used = 0;
        let mut done = 0;
        for Ahead { known, hash, seen, .. } in ahead {
            let data = &data[used..];
            let key = self.keys.known(session.space(), known.key(data), *hash);
            let is_done = match known.value(data) {
                None => {
                    let found = if let Some(value) = store.get_seen(&key, *seen, self.now) {
                        Ok(Some(Str::Short(value)))
                    } else {
                        store.get(&key, self.now)
                    };
                    match found {
                        Ok(Some(Str::Short(value))) => {
                            self.replies.bulk(value);
                            self.stats.hits += 1;
                            true
                        }
                        Ok(None) => {
                            let is_2 = session.protocol() == Protocol::Resp2;
                            self.replies.put(if is_2 { b"$-1\r\n" } else { b"_\r\n" });
                            self.stats.misses += 1;
                            true
                        }
                        // Long, or no string.
                        _ => false,
                    }
                }
                Some(value) => {
                    let is_set = set(store, &key, *seen, value, self.now);
                    if is_set {
                        self.replies.put(OK);
                    }
                    is_set
                }
            };
            if !is_done {
                break;
            }
            used += known.len;
            done += 1;
        }
        if let Some(last) = ahead[..done].last() {
            session.used_for(if last.known.is_set() { Quick::Set } else { Quick::Get }, self.now);
        }
        self.stats.commands += done as u64;
        Some((used, done == ahead.len()))
    }
}

/// Puts `value` under `key`, whose item may have been seen. Returns whether there was room; otherwise nothing has changed.
#[inline(always)]
fn set(store: &mut Store, key: &Key<'_>, seen: Seen, value: &[u8], now: u64) -> bool {
    store.set_seen(key, seen, value, now) || store.set(key, value, Expiry::Never, now).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Limits, Parsed, Parser};

    const LIMITS: Limits = Limits { bulk: 512 << 20, long: LONG, apart: false, authenticated: true };

    /// What is recognised is what the parser reads.
    fn check(data: &[u8]) -> bool {
        let Some((known, key)) = Known::of(data) else { return false };
        let mut parser = Parser::default();
        assert_eq!(parser.parse(data, LIMITS), Ok(Parsed::Request(known.len)), "{data:?}");
        let args: Vec<&[u8]> = parser.args(data).iter().collect();
        let name: &[u8] = if args.len() == 2 { b"GET" } else { b"SET" };
        assert!(args[0].eq_ignore_ascii_case(name));
        assert_eq!((key, known.key(data), known.value(data)), (args[1], args[1], args.get(2).copied()));
        true
    }

    fn request(args: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend(format!("${}\r\n", arg.len()).bytes());
            bytes.extend(*arg);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn ordinary_requests_are_recognised() {
        for len in [0, 1, 9, 10, 99, 100, 999, 1000, 4095] {
            let bytes = vec![b'x'; len];
            assert!(check(&request(&[b"GET", &bytes])) && check(&request(&[b"set", b"key", &bytes])), "{len}");
        }
        assert!(check(b"*2\r\n$3\r\ngEt\r\n$2\r\n\r\n\r\n*1\r\n"));
    }

    #[test]
    fn what_goes_on_or_is_something_else_is_not() {
        let long = vec![b'x'; LONG];
        for bytes in [
            request(&[b"SET", b"k", &long]),
            request(&[b"DEL", b"k"]),
            request(&[b"SET", b"k", b"v", b"EX", b"1"]),
            request(&[b"GET", b"k", b"l"]),
            b"*2\r\n$3\r\nGET\r\n$01\r\nk\r\n".to_vec(),
            b"*2\r\n$3\r\nGET\r\n$-1\r\n\r\n".to_vec(),
            b"*2\r\n$3\r\nGET\r\n$1\r\nkxx".to_vec(),
            b"GET k\r\n".to_vec(),
        ] {
            assert!(!check(&bytes), "{}", bytes.escape_ascii());
        }
        let whole = request(&[b"SET", b"key", b"value"]);
        (0..whole.len()).for_each(|len| assert!(!check(&whole[..len]), "{len}"));
    }

    #[test]
    fn whatever_is_recognised_is_what_the_parser_reads() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200_000 {
            let (key, value) = (vec![b'k'; random.usize(..12)], vec![b'\n'; random.usize(..120)]);
            let mut bytes = if random.bool() { request(&[b"get", &key]) } else { request(&[b"SET", &key, &value]) };
            for _ in 0..random.usize(..3) {
                let at = random.usize(..bytes.len());
                bytes[at] = *random.choice(b"0123456789\r\n$*-+ gGsS").unwrap();
            }
            check(&bytes);
        }
    }
}
