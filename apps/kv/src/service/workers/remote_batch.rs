//! Batches of requests that run on another worker.

use crate::commands::{Request, Session};
use crate::memcached::{Data, udp};
use crate::resp::{self, Protocol};
use crate::service::Kv;
use crate::service::conn::output::{Mark, Replies};
use crate::service::conn::{Client, PendingRequest, ProtocolState};
use crate::service::fast_path::GROUP;
use crate::service::udp::DatagramSource;
use crate::service::workers::messages::Message;
use crate::shards::ShardSet;
use crate::store::LONG_THRESHOLD;
use linerate_bypass::{ConnId, Transport};
use std::ops::Range;

/// Approximate limit of request bytes per batch.
const MAX_TEXT: usize = 16 << 10;
/// Number of finished batches kept for reuse.
const IDLE: usize = 8;

/// Batch of requests for the shard of another worker, from all connections that have some in a turn. It returns with
/// the replies.
#[derive(Default)]
pub struct RemoteBatch {
    /// Worker that sent the batch.
    sender: usize,
    parts: Vec<Part>,
    /// Requests as received.
    pub(in crate::service) text: Vec<u8>,
    /// Last request of the last part, stored because it has long values.
    pub(in crate::service) last: Option<PendingRequest>,
    replies: Replies,
    /// Sources of the datagrams in the batch.
    sources: Vec<DatagramSource>,
}

/// Source of requests.
#[derive(Debug, Clone, Copy)]
enum BatchSource {
    Client(ConnId),
    /// Datagram, by its index in the batch.
    Datagram(usize),
}

/// Requests of one connection or datagram.
struct Part {
    source: BatchSource,
    /// Keyspace and protocol of a Redis client, or `None` for a memcached client.
    redis: Option<(u8, Protocol)>,
    /// Start of the requests in the text.
    text: usize,
    /// End of the replies, or `None` if they exceeded the limit.
    replied: Option<Mark>,
    /// Requests parsed ahead.
    ahead: Range<usize>,
}

impl Kv {
    /// Returns the batch for a request of `conn` that needs the shards `needs`, if it needs exactly one shard of
    /// another worker and no earlier request is in the open batch to a different one.
    #[inline]
    pub(in crate::service) fn batch_for(
        &mut self,
        open: &mut Option<usize>,
        conn: ConnId,
        redis: Option<(u8, Protocol)>,
        needs: &ShardSet,
    ) -> Option<&mut RemoteBatch> {
        let mut shards = needs.iter();
        let (Some(worker), None) = (shards.next(), shards.next()) else { return None };
        self.batch_to(worker, open, conn, redis)
    }

    /// [`batch_for`](Self::batch_for) for a request that needs the shard of `worker`.
    #[inline]
    pub(in crate::service) fn batch_to(
        &mut self,
        worker: usize,
        open: &mut Option<usize>,
        conn: ConnId,
        redis: Option<(u8, Protocol)>,
    ) -> Option<&mut RemoteBatch> {
        if worker == self.worker || open.is_some_and(|open| open != worker) {
            return None;
        }
        if open.is_none() {
            self.batch_with_room(worker).begin(BatchSource::Client(conn), redis);
            *open = Some(worker);
        }
        // An open batch is not sent.
        let batch = self.batches[worker].as_deref_mut()?;
        let begun = batch.parts.last()?.text;
        batch.has_room(begun).then_some(batch)
    }

    /// Adds the requests in `text`, which arrived in a datagram, to a batch for `worker`.
    pub(in crate::service) fn send_for(&mut self, source: DatagramSource, worker: usize, text: &[u8]) {
        let batch = self.batch_with_room(worker);
        batch.begin(BatchSource::Datagram(batch.sources.len()), None);
        batch.sources.push(source);
        batch.text.extend_from_slice(text);
    }

    /// Returns a batch for `worker` with room for another source.
    #[inline]
    fn batch_with_room(&mut self, worker: usize) -> &mut RemoteBatch {
        if self.batches[worker].as_ref().is_some_and(|batch| !batch.has_room(0)) {
            self.send_batch(worker);
        }
        let batch = self.batches[worker].get_or_insert_with(|| self.idle_batches.pop().unwrap_or_default());
        batch.sender = self.worker;
        batch
    }

    /// Sends all batches.
    pub(in crate::service) fn send_batches(&mut self) {
        for worker in 0..self.batches.len() {
            self.send_batch(worker);
        }
    }

    fn send_batch(&mut self, worker: usize) {
        if let Some(batch) = self.batches[worker].take() {
            self.server.outbox.send(worker, Message::RunBatch(batch));
        }
    }

    /// Runs the received batches while this worker's shard is present.
    pub(in crate::service) fn run_batches(&mut self) {
        while self.stores[self.worker].is_some()
            && let Some(batch) = self.shard_borrow.batches.pop_front()
        {
            self.run_batch(batch);
        }
    }

    fn run_batch(&mut self, mut batch: Box<RemoteBatch>) {
        let Some(mut remote_session) = self.remote_session.take() else { return };
        let RemoteBatch { sender, parts, text, last, replies, .. } = &mut *batch;
        // The pending replies of this worker continue after the batch.
        std::mem::swap(&mut self.replies, replies);
        let most = self.settings().output;
        let mut examined = 0;
        for at in 0..parts.len() {
            if at == examined {
                examined += self.parse_batch_ahead(&mut parts[at..], text);
            }
            let (until, last) = match parts.get(at + 1) {
                Some(next) => (next.text, None),
                None => (text.len(), last.take()),
            };
            let part = &mut parts[at];
            let text = &text[part.text..until];
            let before = self.replies.mark();
            self.replies.set_limit_after(
                before,
                if matches!(part.source, BatchSource::Datagram(_)) { udp::MAX_REPLY as u64 } else { most },
            );
            match (part.redis, part.source) {
                (Some((space, protocol)), _) => {
                    remote_session.act_for(space, protocol);
                    self.run_for_redis(&mut remote_session, text, part.ahead.clone(), last);
                }
                (None, BatchSource::Client(_)) => self.run_for_memcached(text, last),
                (None, BatchSource::Datagram(_)) => self.run_datagram(text),
            }
            part.replied = self.replies.mark_or_rollback(before);
        }
        self.clear_ahead();
        self.remote_session = Some(remote_session);
        text.clear();
        text.shrink_to(2 * MAX_TEXT);
        std::mem::swap(&mut self.replies, replies);
        let sender = *sender;
        self.server.outbox.send(sender, Message::BatchDone(batch));
    }

    /// Parses the first requests of the first parts ahead and prefetches their items. Returns the number of parts
    /// examined.
    fn parse_batch_ahead(&mut self, parts: &mut [Part], text: &[u8]) -> usize {
        self.clear_ahead();
        let mut examined = 0;
        while examined < parts.len() && self.ahead.len() < GROUP {
            let until = parts.get(examined + 1).map_or(text.len(), |next| next.text);
            let part = &mut parts[examined];
            if let Some((space, _)) = part.redis {
                (part.ahead, _) = self.parse_ahead(space, &text[part.text..until]);
            }
            examined += 1;
        }
        self.prefetch_items(0);
        examined
    }

    /// Runs the requests of a Redis client: those in `text`, which start with the parsed `ahead`, and then `last`.
    fn run_for_redis(
        &mut self,
        remote_session: &mut Session,
        text: &[u8],
        mut ahead: Range<usize>,
        last: Option<PendingRequest>,
    ) {
        let mut parser = resp::Parser::default();
        let limits = remote_session.limits(self.settings().bulk as usize, LONG_THRESHOLD);
        let (space, mut rest) = (remote_session.space(), text);
        while !rest.is_empty() {
            let mut done = self.execute(remote_session, rest, ahead).map_or(0, |(done, _)| done);
            if done == 0 {
                // The sender has parsed it already, so this succeeds.
                let Ok(resp::Parsed::Request(len)) = parser.parse(rest, limits) else { break };
                self.run(&Request::new(parser.args(rest), space, &self.hasher), remote_session);
                done = len;
            }
            rest = &rest[done..];
            let first = self.ahead.len();
            (ahead, _) = self.parse_ahead(space, rest);
            self.prefetch_items(first);
        }
        if let Some(PendingRequest::Resp(args)) = last {
            self.run(&Request::new(args.args(), space, &self.hasher), remote_session);
        }
    }

    /// Runs the requests of a memcached client: those in `text`, and then `last`.
    fn run_for_memcached(&mut self, text: &[u8], last: Option<PendingRequest>) {
        let mut rest = text;
        while let Some((len, _)) = self.run_bytes(rest, Data::Short(b"")) {
            rest = &rest[len..];
        }
        if let Some(PendingRequest::Memcached(bytes, value)) = last {
            self.run_bytes(&bytes, value);
        }
    }

    /// Passes the replies of a finished batch to their clients.
    pub(in crate::service) fn finish_batch(&mut self, net: &mut impl Transport, mut batch: Box<RemoteBatch>) {
        let mut from = Mark::default();
        for part in batch.parts.drain(..) {
            match part.source {
                BatchSource::Client(conn) => self.with_client(net, conn, |kv, net, client| {
                    client.pending_replies -= 1;
                    kv.replies.append(&mut batch.replies, from, part.replied);
                    kv.reply(net, client);
                    kv.resume(net, client);
                }),
                BatchSource::Datagram(at) => {
                    self.replies.append(&mut batch.replies, from, part.replied);
                    self.answer_from_elsewhere(net, &batch.sources[at]);
                }
            }
            from = part.replied.unwrap_or(from);
        }
        batch.replies.clear();
        batch.sources.clear();
        if self.idle_batches.len() < IDLE {
            self.idle_batches.push(batch);
        }
    }
}

impl RemoteBatch {
    /// Starts the part of another source.
    #[inline]
    fn begin(&mut self, source: BatchSource, redis: Option<(u8, Protocol)>) {
        self.parts.push(Part { source, redis, text: self.text.len(), replied: None, ahead: 0..0 });
    }

    /// Returns true if there is room behind the requests from `begun` on.
    #[inline]
    fn has_room(&self, begun: usize) -> bool {
        self.text.len() - begun < MAX_TEXT && self.last.is_none()
    }
}

impl Client {
    /// Returns the keyspace and protocol of a Redis client.
    pub(in crate::service) fn redis(&self) -> Option<(u8, Protocol)> {
        match &self.protocol_state {
            ProtocolState::Resp { session, .. } => Some((session.space(), session.protocol())),
            ProtocolState::Memcached { .. } => None,
        }
    }
}
