//! `MGET`, and commands that count keys, split into their keys. The keys of one shard are read or changed without
//! interruption, the keys of different shards at different times.

use crate::commands::{Scatter, Session};
use crate::resp::{Args, Reply};
use crate::service::Kv;
use crate::service::conn::gather::{MAX_REQUESTS, ReplyRound, ReplyUse};
use crate::service::workers::routed::{Operation, Routed};
use crate::store::LocationHint;
use linerate_service::ConnId;

/// Limit of bytes of a request that is split.
const MAX_BYTES: usize = 64 << 10;

/// Key of a request that is split.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::service) struct ScatteredKey {
    hash: u64,
    owner: usize,
    hint: LocationHint,
}

/// Client of a request that is split.
pub(in crate::service) struct Splitting<'a> {
    pub conn: ConnId,
    pub session: &'a mut Session,
    pub round: &'a mut Option<Box<ReplyRound>>,
}

impl Kv {
    /// Runs the request `args` key by key: here, or on the workers of the keys. Returns false, without any effect, if
    /// it has to run as a whole.
    pub(in crate::service) fn scatter(&mut self, client: Splitting<'_>, scatter: Scatter, args: Args<'_>) -> bool {
        let count = args.len() - 1;
        self.long_work.parsed += count as u64 / 2;
        if count > MAX_REQUESTS || args.len_of_text() > MAX_BYTES {
            return false;
        }
        let mut keys = std::mem::take(&mut self.scattered);
        let can_run = self.route(&client, args, &mut keys);
        if can_run {
            self.run_scattered(client, scatter, args, &keys);
        }
        keys.clear();
        self.scattered = keys;
        can_run
    }

    /// Finds the owners of the keys and prefetches the items in this worker's shard. Returns false if the keys cannot
    /// be reached now.
    fn route(&mut self, client: &Splitting<'_>, args: Args<'_>, keys: &mut Vec<ScatteredKey>) -> bool {
        let space = client.session.space();
        keys.resize(args.len() - 1, ScatteredKey::default());
        for (at, key) in args.iter().skip(1).enumerate() {
            if self.unhashed.is_full() {
                self.hasher.hash_all(&mut self.unhashed, |at, hash| keys[at as usize].hash = hash);
            }
            if !self.hasher.add(&mut self.unhashed, at as u32, space, key) {
                keys[at].hash = self.hasher.key(space, key).hash();
            }
        }
        self.hasher.hash_all(&mut self.unhashed, |at, hash| keys[at as usize].hash = hash);
        for key in &mut *keys {
            key.owner = self.placement.shard_of(key.hash);
            if key.owner != self.worker {
                if !self.has_room_at(key.owner, client.round.as_deref()) {
                    return false;
                }
            } else if let Some(store) = &self.stores[self.worker] {
                store.prefetch_index(key.hash);
            } else {
                return false;
            }
        }
        if let Some(store) = &self.stores[self.worker] {
            for key in keys.iter_mut().filter(|key| key.owner == self.worker) {
                key.hint = store.location_hint(key.hash);
                store.prefetch_item(key.hint);
            }
        }
        true
    }

    fn run_scattered(&mut self, client: Splitting<'_>, scatter: Scatter, args: Args<'_>, keys: &[ScatteredKey]) {
        let Splitting { conn, session, round } = client;
        Scatter::note(args, session, &mut self.stats, self.now);
        let (space, protocol) = (session.space(), session.protocol());
        let (operation, reply_use) = match scatter {
            Scatter::Values => (Operation::Element, ReplyUse::Text),
            Scatter::Exists => (Operation::Exists, ReplyUse::Digit),
            Scatter::Touch => (Operation::Touch, ReplyUse::Digit),
            Scatter::Remove => (Operation::Remove, ReplyUse::Digit),
        };
        let before = self.replies.mark();
        // Without a round all replies are written at once.
        if keys.iter().any(|key| key.owner != self.worker) {
            self.open_round(round);
        }
        if scatter == Scatter::Values {
            Reply::new(&mut self.replies, protocol).array(keys.len());
            if let Some(round) = round {
                round.hold(self.worker, self.replies.mark(), ReplyUse::Text);
            }
        }
        for (bytes, ScatteredKey { hash, owner, hint }) in args.iter().skip(1).zip(keys) {
            let key = self.hasher.key_with_hash(space, bytes, *hash);
            let routed = Routed { operation, key, value: &[], protocol };
            if *owner == self.worker {
                self.run_routed(&routed, *hint);
                if let Some(round) = round {
                    round.hold(self.worker, self.replies.mark(), reply_use);
                }
            } else if let Some(batch) = self.batch_to(*owner, round, reply_use) {
                batch.push(conn, &routed);
            }
        }
        if reply_use == ReplyUse::Digit {
            match round {
                Some(round) => round.expect(self.worker, ReplyUse::Sum),
                None => {
                    let sum = self.replies.take_digits(before);
                    Reply::new(&mut self.replies, protocol).integer(sum);
                }
            }
        }
    }
}
