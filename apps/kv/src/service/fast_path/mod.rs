//! Fast path: plain GET and short SET ([`FastRequest`]) are parsed ahead, prefetched, and executed here. All other
//! requests go through the full parser and the command table.

pub mod conn_fast_state;
pub mod fast_parse;
mod lookahead;

use crate::cluster::{NO_SHARD, slot_of_hash};
use crate::commands::{CommandType, FastCommand, Session};
use crate::resp::bulk::{bulk_len, write_bulk};
use crate::resp::{OK, Protocol};
use crate::service::Kv;
use crate::service::conn::gather::Piece;
use crate::service::conn::{Client, ProtocolState};
use crate::service::fast_path::fast_parse::FastRequest;
use crate::service::workers::routed::set;
use crate::shards::shard_of;
use crate::store::{LocationHint, Str};
use crate::value::Sink;
use linerate_bypass::BURST;
use linerate_service::{ConnId, Transport};
use std::ops::Range;

/// Limit of requests parsed ahead per client.
pub(super) const MAX_AHEAD: usize = 16;
/// Number of requests parsed ahead before they are executed. More would evict prefetched lines from the cache. A port's
/// burst with one request per segment has as many requests.
pub(super) const GROUP: usize = BURST;
/// Number of requests parsed ahead before their index lines are prefetched, which load while more are parsed.
/// Prefetching one at a time would be slower: the segment descriptors miss the cache as well, and few such misses
/// overlap with other work in between.
const INDEX_GROUP: usize = GROUP / 2;

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

    /// Prefetches the parts of the export that the parsed SETs change.
    #[cold]
    #[inline(never)]
    fn prefetch_export_rows(&self, net: &mut impl Transport) {
        let Some(store) = &self.stores[self.worker] else { return };
        let single = self.single.iter().map(|(conn, at)| (*conn, *at as usize..*at as usize + 1));
        for (conn, ahead) in single.chain(self.others.iter().cloned()) {
            let mut data = net.peek(conn);
            for ParsedAhead { fast, space, .. } in &self.ahead[ahead] {
                if fast.value(data).is_some() {
                    store.prefetch_export(*space, fast.key(data));
                }
                data = &data[fast.len..];
            }
        }
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
        while let Some((fast, key)) = FastRequest::of(&data[used..]) {
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

    /// Prefetches the items of the requests from number `first` on.
    #[inline(always)]
    pub(super) fn prefetch_items(&mut self, first: usize) {
        self.prefetch_indexes();
        if let Some(store) = &self.stores[self.worker] {
            let fetch = |ahead: &mut ParsedAhead| {
                ahead.hint = store.location_hint(ahead.hash);
                store.prefetch_item(ahead.hint);
            };
            let (own, ahead) = (self.worker as u8, self.ahead[first..].iter_mut());
            if !self.is_routed {
                ahead.for_each(fetch);
            } else {
                ahead.filter(|ahead| ahead.owner == own).for_each(fetch);
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

    /// [`prefetch_indexes`](Self::prefetch_indexes) that also finds the owners of the keys.
    #[inline(never)]
    fn prefetch_routed_indexes(&mut self) {
        let ahead = &mut self.ahead;
        self.hasher.hash_all(&mut self.unhashed, |at, hash| ahead[at as usize].hash = hash);
        let own = self.worker as u8;
        let store = self.stores[self.worker].as_ref();
        let route = |ahead: &mut ParsedAhead, owner: usize| {
            ahead.owner = owner as u8;
            if let Some(store) = store.filter(|_| ahead.owner == own) {
                store.prefetch_index(ahead.hash);
            }
        };
        let new = ahead[self.prefetched..].iter_mut();
        match self.server.map() {
            None => {
                let shards = self.stores.len();
                new.for_each(|ahead| route(ahead, shard_of(ahead.hash, shards)));
            }
            Some(map) => new.for_each(|ahead| {
                let is_here = map.is_here(slot_of_hash(ahead.hash));
                route(ahead, if is_here { self.placement.shard_of(ahead.hash) } else { NO_SHARD.into() });
            }),
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

    /// [`execute_ahead`](Self::execute_ahead) with several workers: requests for others are sent.
    fn execute_routed(&mut self, net: &mut impl Transport, client: &mut Client, ahead: Range<usize>) -> bool {
        let Client { conn, protocol_state, round, .. } = client;
        let ProtocolState::Resp { session, .. } = protocol_state else { return false };
        let data = net.peek(*conn);
        let (mut used, count) = (0, ahead.len());
        let mut last = None;
        let mut done = 0;
        for at in ahead {
            let ParsedAhead { fast, hash, hint, space, owner } = self.ahead[at];
            let bytes = &data[used..];
            let key = self.hasher.key_with_hash(space, fast.key(bytes), hash);
            let routed = fast.routed(key, session.protocol(), bytes);
            if usize::from(owner) != self.worker {
                if owner == NO_SHARD {
                    break;
                }
                let Some(batch) = self.batch_to(owner.into(), round, Piece::Text) else { break };
                batch.push(*conn, &routed);
            } else {
                if !self.run_routed(&routed, hint) {
                    break;
                }
                if let Some(round) = round {
                    round.hold(self.worker, self.replies.mark(), Piece::Text);
                }
            }
            used += fast.len;
            done += 1;
            last = Some(if fast.is_set() { FastCommand::Set } else { FastCommand::Get });
        }
        if let Some(last) = last {
            session.note_command(last, self.now);
        }
        self.server.read(used);
        net.consume(*conn, used);
        self.reply(net, client);
        done == count
    }

    /// Sends request number `at` of `conn`, its only one, to the worker of its key.
    #[inline(never)]
    fn send_single(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) {
        let ParsedAhead { fast, space, hash, owner, .. } = self.ahead[at];
        let data = net.peek(conn);
        let key = self.hasher.key_with_hash(space, fast.key(data), hash);
        let fast_state = &mut self.fast_states[conn.slot()];
        fast_state.note_served(if fast.is_set() { FastCommand::Set } else { FastCommand::Get }, self.now);
        fast_state.wait();
        let routed = fast.routed(key, fast_state.protocol, data);
        self.batch_with_room(owner.into()).push(conn, &routed);
        self.server.read(fast.len);
        net.consume(conn, fast.len);
    }

    /// Executes request number `at` of `conn`, a GET, if the hint leads to its short value. Returns false otherwise.
    ///
    /// The reply is written directly into the transmit buffer.
    #[inline(always)]
    fn get_one(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) -> bool {
        let ParsedAhead { fast, space, hash, hint, .. } = &self.ahead[at];
        let Some(store) = &mut self.stores[self.worker] else { return false };
        let key = self.hasher.key_with_hash(*space, fast.key(net.peek(conn)), *hash);
        let Some(value) = store.get_with_hint(&key, *hint, self.now) else { return false };
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

    /// Executes the requests `ahead` at the start of `data` in `session`. Returns the number of bytes consumed, and
    /// whether all requests were executed.
    #[inline(always)]
    pub(super) fn execute(&mut self, session: &mut Session, data: &[u8], ahead: Range<usize>) -> Option<(usize, bool)> {
        let ahead = &self.ahead[ahead];
        let store = self.stores[self.worker].as_mut()?;
        let mut used = 0;
        let mut done = 0;
        for ParsedAhead { fast, hash, hint, .. } in ahead {
            let data = &data[used..];
            let key = self.hasher.key_with_hash(session.space(), fast.key(data), *hash);
            let is_done = match fast.value(data) {
                None => {
                    let found = if let Some(value) = store.get_with_hint(&key, *hint, self.now) {
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
                        // A long value or another type.
                        _ => false,
                    }
                }
                Some(value) => {
                    let is_set = set(store, &key, *hint, value, self.now);
                    if is_set {
                        self.stats.count_type(CommandType::Set);
                        self.replies.put(OK);
                    }
                    is_set
                }
            };
            if !is_done {
                break;
            }
            used += fast.len;
            done += 1;
        }
        if let Some(last) = ahead[..done].last() {
            session.note_command(if last.fast.is_set() { FastCommand::Set } else { FastCommand::Get }, self.now);
        }
        self.stats.commands += done as u64;
        Some((used, done == ahead.len()))
    }
}
