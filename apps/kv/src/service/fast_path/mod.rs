//! The fast path: requests that are recognised by a few comparisons ([`Known`]) are fetched ahead and answered here, if they are of a
//! short string. Whatever else there is goes the way of all commands.

pub mod conn_fast_state;
pub mod fast_parse;
mod lookahead;

use crate::commands::{FastCommand, Session};
use crate::resp::{OK, Protocol};
use crate::service::Kv;
use crate::service::conn::output::{bulk_len, write_bulk};
use crate::service::conn::{Client, Speech};
use crate::service::fast_path::fast_parse::Known;
use crate::shards::shard_of;
use crate::sink::Sink;
use crate::store::{Expiry, Key, LocationHint, Store, Str};
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

/// A request that was recognised ahead, the hash of its key, and what was seen of that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    known: Known,
    hash: u64,
    seen: LocationHint,
    space: u8,
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
            if shards > 1 || !self.hasher.add(&mut self.unhashed, self.ahead.len() as u32, space, key) {
                hash = self.hasher.key(space, key).hash();
                if shard_of(hash, shards) != self.worker {
                    break;
                }
            }
            self.ahead.push(Ahead { known, hash, seen: LocationHint::default(), space });
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
                ahead.seen = store.location_hint(ahead.hash);
                store.prefetch_item(ahead.seen);
            });
        }
    }

    /// Finds the hashes of those that have been recognised since, and asks for what leads to their items.
    #[inline(never)]
    fn fetch_index(&mut self) {
        let ahead = &mut self.ahead;
        self.hasher.hash_all(&mut self.unhashed, |at, hash| ahead[at as usize].hash = hash);
        if let Some(store) = &self.stores[self.worker] {
            ahead[self.asked..].iter().for_each(|ahead| store.prefetch_index(ahead.hash));
        }
        self.asked = ahead.len();
    }

    /// Asks for the items of keys that were noted.
    #[inline(always)]
    fn fetch_glimpsed(&mut self) {
        if let Some(store) = &self.stores[self.worker] {
            self.glimpsed.drain(..).for_each(|hash| store.prefetch_item(store.location_hint(hash)));
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
        let key = self.hasher.key_with_hash(*space, known.key(data), *hash);
        let Some(value) = store.get_with_hint(&key, *seen, self.now) else { return false };
        self.stats.hits += 1;
        self.lanes[conn.slot()].answered(FastCommand::Get, self.now);
        self.stats.commands += 1;
        self.host.read(known.len);
        let len = bulk_len(value.len());
        if net.respond(conn, known.len, len, |place| write_bulk(value, place)) {
            self.host.wrote(len);
        } else {
            self.replies.bulk(value);
            self.reply_to(net, conn);
        }
        true
    }

    /// As [`get_one`](Self::get_one), if it is a SET that there is room for.
    #[inline(never)]
    fn set_one(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) -> bool {
        let Ahead { known, space, hash, seen, .. } = &self.ahead[at];
        let Some(store) = &mut self.stores[self.worker] else { return false };
        let data = net.peek(conn);
        let key = self.hasher.key_with_hash(*space, known.key(data), *hash);
        if !known.value(data).is_some_and(|value| set(store, &key, *seen, value, self.now)) {
            return false;
        }
        self.lanes[conn.slot()].answered(FastCommand::Set, self.now);
        self.stats.commands += 1;
        self.host.read(known.len);
        if net.respond(conn, known.len, OK.len(), |place| place.copy_from_slice(OK)) {
            self.host.wrote(OK.len());
        } else {
            self.replies.put(OK);
            self.reply_to(net, conn);
        }
        true
    }

    /// Sends the client of `conn` what it could not be sent from where it was to be written.
    #[cold]
    #[inline(never)]
    fn reply_to(&mut self, net: &mut impl Transport, conn: ConnId) {
        self.with_client(net, conn, |kv, net, client| kv.reply(net, client));
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
            let key = self.hasher.key_with_hash(session.space(), known.key(data), *hash);
            let is_done = match known.value(data) {
                None => {
                    let found = if let Some(value) = store.get_with_hint(&key, *seen, self.now) {
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
            session.note_command(if last.known.is_set() { FastCommand::Set } else { FastCommand::Get }, self.now);
        }
        self.stats.commands += done as u64;
        Some((used, done == ahead.len()))
    }
}

/// Puts `value` under `key`, whose item may have been seen. Returns whether there was room; otherwise nothing has changed.
#[inline(always)]
fn set(store: &mut Store, key: &Key<'_>, seen: LocationHint, value: &[u8], now: u64) -> bool {
    store.set_with_hint(key, seen, value, now) || store.set(key, value, Expiry::Never, now).is_ok()
}
