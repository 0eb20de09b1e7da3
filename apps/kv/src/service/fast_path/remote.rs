//! Part of the fast path with several workers, and with an export.

use crate::cluster::{NO_SHARD, slot_of_hash};
use crate::service::Kv;
use crate::service::conn::gather::ReplyUse;
use crate::service::conn::{Client, ProtocolState};
use crate::service::fast_path::ParsedAhead;
use crate::shards::shard_of;
use linerate_service::{ConnId, Transport};
use std::ops::Range;

impl Kv {
    /// Prefetches the parts of the export that the parsed SETs change.
    #[cold]
    #[inline(never)]
    pub(super) fn prefetch_export_rows(&self, net: &mut impl Transport) {
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

    /// [`prefetch_indexes`](Self::prefetch_indexes) that also finds the owners of the keys.
    #[inline(never)]
    pub(super) fn prefetch_routed_indexes(&mut self) {
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

    /// [`execute_ahead`](Self::execute_ahead) with several workers: requests for others are sent to them.
    pub(super) fn execute_routed(
        &mut self,
        net: &mut impl Transport,
        client: &mut Client,
        ahead: Range<usize>,
    ) -> bool {
        let Client { conn, protocol_state, round, .. } = client;
        let ProtocolState::Resp { session, .. } = protocol_state else { return false };
        let data = net.peek(*conn);
        let (mut used, end) = (0, ahead.end);
        let mut last = None;
        for at in ahead {
            let ParsedAhead { fast, hash, hint, space, owner } = self.ahead[at];
            let bytes = &data[used..];
            let key = self.hasher.key_with_hash(space, fast.key(bytes), hash);
            let routed = fast.routed(key, session.protocol(), bytes);
            if usize::from(owner) == self.worker {
                if !self.run_routed(&routed, hint) {
                    break;
                }
                if let Some(round) = round {
                    round.hold(self.worker, self.replies.mark(), ReplyUse::Text);
                }
            } else if owner == NO_SHARD {
                break;
            } else {
                let Some(batch) = self.batch_to(owner.into(), round, ReplyUse::Text) else { break };
                batch.push(*conn, &routed);
            }
            used += fast.len;
            last = Some((at, fast.command()));
        }
        if let Some((_, command)) = last {
            session.note_command(command, self.now);
        }
        self.server.read(used);
        net.consume(*conn, used);
        self.reply(net, client);
        last.map_or(0, |(at, _)| at + 1) == end
    }

    /// Sends request number `at` of `conn`, its only one, to the worker of its key.
    #[inline(never)]
    pub(super) fn send_single(&mut self, net: &mut impl Transport, conn: ConnId, at: usize) {
        let ParsedAhead { fast, space, hash, owner, .. } = self.ahead[at];
        let data = net.peek(conn);
        let key = self.hasher.key_with_hash(space, fast.key(data), hash);
        let fast_state = &mut self.fast_states[conn.slot()];
        fast_state.note_served(fast.command(), self.now);
        fast_state.wait();
        let routed = fast.routed(key, fast_state.protocol, data);
        self.batch_with_room(owner.into()).push(conn, &routed);
        self.server.read(fast.len);
        net.consume(conn, fast.len);
    }
}
