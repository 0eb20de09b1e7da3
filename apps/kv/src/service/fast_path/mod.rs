//! Fast path: plain GET and short SET ([`FastRequest`]) are parsed ahead, prefetched, and executed here. All other
//! requests go through the full parser and the command table.

mod lookahead;
mod remote;

use crate::cluster::NO_SHARD;
use crate::commands::{CommandType, FastCommand, Session};
use crate::resp::bulk::{bulk_len, write_bulk};
use crate::resp::{OK, Protocol};
use crate::service::Kv;
use crate::service::conn::{Client, ProtocolState};
use crate::service::workers::routed::{GROUP, Operation, Routed, get, set};
use crate::store::{Key, LONG_THRESHOLD, LocationHint, Store};
use crate::value::Sink;
use linerate_service::{ConnId, Transport};
use std::ops::Range;

/// Limit of requests parsed ahead per client.
pub(super) const MAX_AHEAD: usize = 16;
/// Number of requests parsed ahead before their index lines are prefetched, which load while more are parsed.
/// Prefetching one at a time would be slower: the segment descriptors miss the cache as well, and few such misses
/// overlap with other work in between.
const INDEX_GROUP: usize = GROUP / 2;

/// Parsed request: positions of the key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) struct FastRequest {
    /// Start and end of the key, then of the value, 16 bits each, lowest first. The value of a GET is empty at 0. One
    /// word, so that it is written and read as a whole: reading a word just written in parts stalls.
    bounds: u64,
    pub len: usize,
}

/// First bytes of each command, in upper case.
const GET: &[u8; HEAD] = b"*2\r\n$3\r\nGET\r\n$";
const SET: &[u8; HEAD] = b"*3\r\n$3\r\nSET\r\n$";
const HEAD: usize = 14;
/// Case bits of the letters in the last eight of these bytes, where the command name starts at the third byte.
const CASE: u64 = 0x20_2020 << 16;
/// Position of a key whose length has two digits.
const KEY: usize = HEAD + 4;
const END: &[u8; 2] = b"\r\n";

/// Returns the first and the last eight bytes of `head`, with letters in upper case.
#[inline(always)]
fn words(head: &[u8; HEAD]) -> (u64, u64) {
    let [first, last] =
        [head.first_chunk(), head.last_chunk()].map(|word| word.map_or(0, |word| u64::from_le_bytes(*word)));
    (first, last & !CASE)
}

impl FastRequest {
    /// Creates a request from positions, which fit into 16 bits: key and value are shorter than [`LONG_THRESHOLD`].
    #[inline(always)]
    fn new(key: Range<usize>, value: Range<usize>, len: usize) -> Self {
        let bounds = key.start as u64 | (key.end as u64) << 16 | (value.start as u64) << 32 | (value.end as u64) << 48;
        FastRequest { bounds, len }
    }

    #[inline(always)]
    fn bound(&self, n: u32) -> usize {
        (self.bounds >> (16 * n)) as u16 as usize
    }

    /// Parses the request at the start of `data`. Returns it with its key.
    #[inline(always)]
    pub fn parse(data: &[u8]) -> Option<(Self, &[u8])> {
        // Most keys and values have lengths of two digits.
        if let Some(start) = data.first_chunk::<{ HEAD + 7 }>()
            && let (Some(head), Some(line)) = (start.first_chunk(), start.last_chunk())
            && let Some(len) = two_digit_len(u64::from_le_bytes(*line))
            && let Some((key, after)) = data[KEY..].split_at_checked(len)
            && after.first_chunk() == Some(END)
        {
            let (head, end) = (words(head), KEY + len);
            if head == words(GET) {
                return Some((FastRequest::new(KEY..end, 0..0, end + 2), key));
            }
            if head == words(SET)
                && let Some(line) = after[END.len()..].first_chunk()
                && let Some(len) = two_digit_len(u64::from_le_bytes(*line))
                && after.get(7 + len..).is_some_and(|after| after.first_chunk() == Some(END))
            {
                let (from, to) = (end + 7, end + 7 + len);
                return Some((FastRequest::new(KEY..end, from..to, to + 2), key));
            }
        }
        FastRequest::parse_general(data)
    }

    /// [`parse`](Self::parse) for lengths of any number of digits.
    #[inline(never)]
    fn parse_general(data: &[u8]) -> Option<(Self, &[u8])> {
        let head = words(data.first_chunk()?);
        let key = Bulk::parse(data, HEAD - 1)?;
        let bytes = &data[key.start..key.end];
        if head == words(GET) {
            return Some((FastRequest::new(key.range(), 0..0, key.after), bytes));
        }
        let value = Bulk::parse(data, key.after)?;
        let is_set = head == words(SET) && value.end - value.start < LONG_THRESHOLD;
        is_set.then(|| (FastRequest::new(key.range(), value.range(), value.after), bytes))
    }

    /// Returns the key in `data`, from which the request was parsed.
    #[inline(always)]
    pub fn key<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.bound(0)..self.bound(1)]
    }

    /// Returns the operation for `data`, from which the request was parsed, with its key.
    #[inline(always)]
    pub fn routed<'a>(&self, key: Key<'a>, protocol: Protocol, data: &'a [u8]) -> Routed<'a> {
        match self.value(data) {
            Some(value) => Routed { operation: Operation::Set, key, value, protocol },
            None => Routed { operation: Operation::Get, key, value: &[], protocol },
        }
    }

    #[inline(always)]
    pub fn is_set(&self) -> bool {
        self.bounds >> 32 > 0
    }

    #[inline(always)]
    fn command(&self) -> FastCommand {
        if self.is_set() { FastCommand::Set } else { FastCommand::Get }
    }

    #[inline(always)]
    pub fn value<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        self.is_set().then(|| &data[self.bound(2)..self.bound(3)])
    }
}

/// Parses the length line of a bulk string in `word`, if the length has two digits.
#[inline(always)]
fn two_digit_len(word: u64) -> Option<usize> {
    const OTHERS: u64 = u64::from_le_bytes(*b"\xff\0\0\xff\xff\0\0\0");
    const EXPECTED: u64 = u64::from_le_bytes(*b"$\0\0\r\n\0\0\0");
    // Two digits, one per byte, the tens first and not zero.
    let digits = (word >> 8 & 0xffff) ^ 0x3030;
    let is_number = (digits | (digits + 0x7676)) & 0x8080 == 0 && digits & 0xff > 0;
    (word & OTHERS == EXPECTED && is_number).then_some(((digits * 0x0a01) >> 8 & 0xff) as usize)
}

/// Parses the length line at the start of `data`. Returns the length and its number of digits, at most four.
#[inline]
fn length(data: &[u8]) -> Option<(usize, usize)> {
    let digits = data.get(1..)?.iter().take(5).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = data[1..].split_at(digits);
    // Leading zeros are left to the full parser.
    if data[0] != b'$' || !(1..=4).contains(&digits) || digits > 1 && number[0] == b'0' || !rest.starts_with(b"\r\n") {
        return None;
    }
    Some((number.iter().fold(0, |len, digit| len * 10 + usize::from(digit - b'0')), digits))
}

/// Bulk string: start and end of its bytes, and the position after it.
pub(in crate::service) struct Bulk {
    pub start: usize,
    pub end: usize,
    pub after: usize,
}

impl Bulk {
    /// Parses the bulk string whose `$` is at `at`, if it is complete and its length has at most four digits.
    #[inline(always)]
    pub fn parse(data: &[u8], at: usize) -> Option<Self> {
        let (len, digits) =
            match data.get(at..)?.first_chunk().and_then(|word| two_digit_len(u64::from_le_bytes(*word))) {
                Some(len) => (len, 2),
                None => length(&data[at..])?,
            };
        let start = at + digits + 3;
        let end = start + len;
        let is_whole = data.get(end..)?.first_chunk() == Some(END);
        is_whole.then_some(Bulk { start, end, after: end + 2 })
    }

    #[inline(always)]
    fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// Fast-path state of the connection in a slot. The default is that of an unused slot.
#[derive(Clone, Default)]
#[repr(align(64))]
pub(in crate::service) struct ConnFastState {
    conn: Option<ConnId>,
    /// Keyspace of the requests, if the fast path may take them.
    pub space: Option<u8>,
    /// No output is queued, and the peer has not finished.
    pub is_quiet: bool,
    /// Last command, if the fast path ran it.
    last: Option<FastCommand>,
    /// Time of that command.
    last_input: u64,
    /// Burst in which the connection was served last.
    pub served_in: u64,
    pub memory: usize,
    pub protocol: Protocol,
    /// Keyspace of the only request, whose reply is expected from another worker.
    waiting: Option<u8>,
}

impl ConnFastState {
    pub fn new(client: &Client) -> Self {
        let mut fast_state = ConnFastState { conn: Some(client.conn), ..ConnFastState::default() };
        fast_state.sync_from(client);
        fast_state
    }

    #[inline(always)]
    pub fn belongs_to(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    #[inline(always)]
    pub fn note_served(&mut self, request: FastCommand, now: u64) {
        (self.last, self.last_input) = (Some(request), now);
    }

    /// Returns the time of the last request served by the fast path.
    pub fn last_input(&self) -> u64 {
        self.last_input
    }

    /// Takes no further request before the reply to the last one arrives from another worker.
    #[inline(always)]
    pub fn wait(&mut self) {
        self.waiting = self.space.take();
    }

    #[inline(always)]
    pub fn waits(&self, conn: ConnId) -> bool {
        self.belongs_to(conn) && self.waiting.is_some()
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    #[inline(always)]
    pub fn end_wait(&mut self) {
        self.space = self.waiting.take();
    }

    /// Copies the last command and its time, and the expected reply, to `client`.
    pub fn sync_to(&mut self, client: &mut Client) {
        client.last_input = client.last_input.max(self.last_input);
        if self.waiting.take().is_some() {
            client.pending_replies += 1;
        }
        if let (Some(last), Some(session)) = (self.last.take(), client.session_mut()) {
            session.note_command(last, self.last_input);
        }
    }

    pub fn sync_from(&mut self, client: &Client) {
        self.space = client.fast_path_space();
        self.is_quiet = client.is_quiet();
        if let Some(session) = client.session() {
            self.protocol = session.protocol();
        }
    }
}

/// Request parsed ahead, the hash of its key, and the location hint.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParsedAhead {
    fast: FastRequest,
    hash: u64,
    hint: LocationHint,
    space: u8,
    /// Worker of the key, or [`NO_SHARD`] if another machine serves it. A [`ConnId`] limits the workers to 256, a
    /// cluster to 255.
    owner: u8,
}

impl ParsedAhead {
    #[inline(always)]
    fn prefetch_item(&mut self, store: &Store) {
        self.hint = store.location_hint(self.hash);
        store.prefetch_item(self.hint);
    }
}

impl Kv {
    /// Parses the next requests of the first clients in `readable` and prefetches their items. Returns the number of
    /// clients examined, and whether all of them are known.
    #[inline(never)]
    pub(super) fn parse_group(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> (usize, bool) {
        self.clear_ahead();
        let is_here = self.stores[self.worker].is_some();
        let (mut examined, mut are_fast) = (0, true);
        for conn in readable {
            if self.ahead.len() + self.lookahead_hashes.len() >= GROUP {
                break;
            }
            examined += 1;
            let Some(fast_state) =
                self.fast_states.get_mut(conn.slot()).filter(|fast_state| fast_state.belongs_to(*conn))
            else {
                are_fast = false;
                continue;
            };
            fast_state.served_in = self.burst;
            let (space, is_quiet) = (fast_state.space, fast_state.is_quiet);
            let (data, all) = net.front(*conn);
            let (mut ahead, mut used) = (0..0, 0);
            if let Some(space) = space.filter(|_| is_here) {
                (ahead, used) = self.parse_ahead_local(space, data);
            }
            if is_quiet && used == all && ahead.len() == 1 {
                self.single.push((*conn, ahead.start as u32));
            } else {
                if used < data.len() && ahead.len() < MAX_AHEAD {
                    self.lookahead(*conn, &data[used..]);
                }
                self.others.push((*conn, ahead));
            }
            if self.ahead.len() >= self.prefetched + INDEX_GROUP {
                self.prefetch_indexes();
            }
        }
        self.prefetch_items(0);
        self.prefetch_lookahead();
        if self.exports {
            self.prefetch_export_rows(net);
        }
        (examined, are_fast)
    }

    /// Serves the clients examined by [`parse_group`](Self::parse_group).
    #[inline(never)]
    pub(super) fn serve_group(&mut self, net: &mut impl Transport) {
        let mut single = std::mem::take(&mut self.single);
        for (conn, at) in single.drain(..) {
            let at = at as usize;
            let ParsedAhead { fast, owner, .. } = &self.ahead[at];
            if usize::from(*owner) != self.worker {
                if *owner == NO_SHARD {
                    self.serve_parsed(net, conn, at..at + 1);
                } else {
                    self.send_single(net, conn, at);
                }
            } else if !(if fast.is_set() { self.set_one(net, conn, at) } else { self.get_one(net, conn, at) }) {
                self.serve_parsed(net, conn, at..at + 1);
            }
        }
        self.single = single;
        let mut others = std::mem::take(&mut self.others);
        others.drain(..).for_each(|(conn, ahead)| self.serve_parsed(net, conn, ahead));
        self.others = others;
    }

    /// Serves the client of `conn`, whose next requests are `ahead`.
    #[inline(never)]
    fn serve_parsed(&mut self, net: &mut impl Transport, conn: ConnId, ahead: Range<usize>) {
        self.with_client(net, conn, |kv, net, client| {
            client.ahead = ahead;
            kv.serve(net, client);
        });
    }

    /// Discards all requests parsed ahead.
    pub(super) fn clear_ahead(&mut self) {
        self.ahead.clear();
        self.prefetched = 0;
    }

    /// Parses requests in `space` at the start of `data`. Returns them and the number of bytes. They must be
    /// [fetched](Self::prefetch_items) before they are executed.
    #[inline]
    pub(super) fn parse_ahead(&mut self, space: u8, data: &[u8]) -> (Range<usize>, usize) {
        match self.stores[self.worker] {
            Some(_) => self.parse_ahead_local(space, data),
            None => (0..0, 0),
        }
    }

    /// [`parse_ahead`](Self::parse_ahead) while this worker's shard is present.
    #[inline(always)]
    fn parse_ahead_local(&mut self, space: u8, data: &[u8]) -> (Range<usize>, usize) {
        let first = self.ahead.len();
        let owner = self.worker as u8;
        let mut used = 0;
        while let Some((fast, key)) = FastRequest::parse(&data[used..]) {
            if self.unhashed.is_full() {
                self.prefetch_indexes();
            }
            // A batched key has no hash yet.
            let mut hash = 0;
            if !self.hasher.add(&mut self.unhashed, self.ahead.len() as u32, space, key) {
                hash = self.hasher.key(space, key).hash();
            }
            self.ahead.push(ParsedAhead { fast, hash, hint: LocationHint::default(), space, owner });
            used += fast.len;
            if used >= data.len() || self.ahead.len() - first >= MAX_AHEAD {
                break;
            }
        }
        (first..self.ahead.len(), used)
    }

    #[inline(always)]
    pub(super) fn prefetch_items(&mut self, first: usize) {
        self.prefetch_indexes();
        if let Some(store) = &self.stores[self.worker] {
            let (own, ahead) = (self.worker as u8, self.ahead[first..].iter_mut());
            if self.is_routed {
                ahead.filter(|ahead| ahead.owner == own).for_each(|ahead| ahead.prefetch_item(store));
            } else {
                ahead.for_each(|ahead| ahead.prefetch_item(store));
            }
        }
    }

    /// Hashes the keys parsed since the last call and prefetches their index lines.
    #[inline(never)]
    fn prefetch_indexes(&mut self) {
        if self.is_routed {
            return self.prefetch_routed_indexes();
        }
        let ahead = &mut self.ahead;
        self.hasher.hash_all_without_slots(&mut self.unhashed, |at, hash| ahead[at as usize].hash = hash);
        if let Some(store) = &self.stores[self.worker] {
            ahead[self.prefetched..].iter_mut().for_each(|ahead| store.prefetch_index(ahead.hash));
        }
        self.prefetched = ahead.len();
    }

    /// Prefetches the items of requests outside the fast path.
    #[inline(always)]
    fn prefetch_lookahead(&mut self) {
        if let Some(store) = &self.stores[self.worker] {
            self.lookahead_hashes.drain(..).for_each(|hash| store.prefetch_item(store.location_hint(hash)));
        }
    }

    /// Parses the next requests of `client` and prefetches their items.
    pub(super) fn parse_more(&mut self, net: &mut impl Transport, client: &mut Client) {
        let first = self.ahead.len();
        client.ahead = 0..0;
        if let Some(space) = client.fast_path_space() {
            (client.ahead, _) = self.parse_ahead(space, net.peek(client.conn));
            self.prefetch_items(first);
        }
    }

    /// Executes the requests parsed ahead for `client`. Returns true if all were executed.
    pub(super) fn execute_ahead(&mut self, net: &mut impl Transport, client: &mut Client) -> bool {
        let ahead = std::mem::take(&mut client.ahead);
        if self.is_routed {
            return self.execute_routed(net, client, ahead);
        }
        let ProtocolState::Resp { session, .. } = &mut client.protocol_state else { return false };
        let Some((used, is_all)) = self.execute(session, net.peek(client.conn), ahead) else { return false };
        self.server.read(used);
        net.consume(client.conn, used);
        self.reply(net, client);
        is_all
    }

    /// Executes the requests `ahead` at the start of `data` in `session`. Returns the number of bytes consumed, and
    /// whether all requests were executed.
    #[inline(always)]
    fn execute(&mut self, session: &mut Session, data: &[u8], ahead: Range<usize>) -> Option<(usize, bool)> {
        let ahead = &self.ahead[ahead];
        let store = self.stores[self.worker].as_mut()?;
        let mut used = 0;
        let mut done = 0;
        for ParsedAhead { fast, hash, hint, .. } in ahead {
            let data = &data[used..];
            let key = self.hasher.key_with_hash(session.space(), fast.key(data), *hash);
            match fast.value(data) {
                None => {
                    if !get(store, &mut self.replies, &mut self.stats, &key, *hint, session.protocol(), self.now) {
                        break;
                    }
                }
                Some(value) => {
                    if !set(store, &key, *hint, value, self.now) {
                        break;
                    }
                    self.stats.count_type(CommandType::Set);
                    self.replies.put(OK);
                }
            }
            used += fast.len;
            done += 1;
        }
        if let Some(last) = ahead[..done].last() {
            session.note_command(last.fast.command(), self.now);
        }
        self.stats.commands += done as u64;
        Some((used, done == ahead.len()))
    }

    /// Executes request number `at` of `conn`, a GET, if the hint leads to its short value. Returns false otherwise.
    ///
    /// The reply is written directly into the transmit buffer.
    #[inline(always)]
    fn get_one(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) -> bool {
        let ParsedAhead { fast, space, hash, hint, .. } = &self.ahead[at];
        let key = self.hasher.key_with_hash(*space, fast.key(net.peek(conn)), *hash);
        let store = self.stores[self.worker].as_mut();
        let Some(value) = store.and_then(|store| store.get_with_hint(&key, *hint, self.now)) else { return false };
        self.stats.hits += 1;
        self.fast_states[conn.slot()].note_served(FastCommand::Get, self.now);
        self.stats.commands += 1;
        self.server.read(fast.len);
        let len = bulk_len(value.len());
        if net.respond(conn, fast.len, len, |out| write_bulk(value, out)) {
            self.server.wrote(len);
        } else {
            self.replies.bulk(value);
            self.reply_to(net, conn);
        }
        true
    }

    /// [`get_one`](Self::get_one) for a SET that fits into memory.
    #[inline(never)]
    fn set_one(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) -> bool {
        let ParsedAhead { fast, space, hash, hint, .. } = &self.ahead[at];
        let Some(store) = &mut self.stores[self.worker] else { return false };
        let data = net.peek(conn);
        let key = self.hasher.key_with_hash(*space, fast.key(data), *hash);
        if !fast.value(data).is_some_and(|value| set(store, &key, *hint, value, self.now)) {
            return false;
        }
        self.fast_states[conn.slot()].note_served(FastCommand::Set, self.now);
        self.stats.commands += 1;
        self.stats.count_type(CommandType::Set);
        self.server.read(fast.len);
        if net.respond(conn, fast.len, OK.len(), |out| out.copy_from_slice(OK)) {
            self.server.wrote(OK.len());
        } else {
            self.replies.put(OK);
            self.reply_to(net, conn);
        }
        true
    }

    /// Sends a reply that did not fit into a transmit buffer.
    #[cold]
    #[inline(never)]
    pub(super) fn reply_to(&mut self, net: &mut impl Transport, conn: ConnId) {
        self.with_client(net, conn, |kv, net, client| kv.reply(net, client));
    }
}

#[cfg(test)]
mod tests;
