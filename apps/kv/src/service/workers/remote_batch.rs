//! Batches of requests that run on another worker.

use crate::commands::Session;
use crate::resp::Protocol;
use crate::service::Kv;
use crate::service::conn::gather::{BatchPart, MAX_REQUESTS, ReplyList, ReplyRound, ReplyUse};
use crate::service::conn::output::Mark;
use crate::service::conn::{DatagramSource, PendingRequest, Requester};
use crate::service::workers::messages::Message;
use crate::service::workers::routed::{Operation, Routed};
use crate::shards::ShardSet;
use crate::value::Sink;
use linerate_service::time::{Duration, Instant};
use linerate_service::{ConnId, Transport};
use std::ops::Range;

/// Approximate limit of request bytes per batch, and of each client in it.
const MAX_TEXT: usize = 16 << 10;
/// Number of finished batches, and of rounds, kept for reuse.
const IDLE: usize = 8;
const IDLE_ROUNDS: usize = 64;

/// Batch of the requests of one turn, from all connections, for the shard of another worker. It returns with the
/// replies.
///
/// The sender has parsed the requests and hashed their keys. The requests of a client are consecutive.
#[derive(Default)]
pub struct RemoteBatch {
    /// Worker that sent the batch.
    pub(in crate::service) sender: usize,
    /// Number of the batch, counted by the sender from 1.
    pub(in crate::service) number: u64,
    /// Start of the burst in which the requests arrived, if that burst is timed.
    pub(in crate::service) since: Option<Instant>,
    pub(in crate::service) requests: Vec<RemoteRequest>,
    /// Bytes of all requests.
    pub(in crate::service) text: Vec<u8>,
    /// Requests with long values, in order.
    pub(in crate::service) stored: Vec<PendingRequest>,
    /// Sources of the datagrams, in order.
    pub(in crate::service) sources: Vec<DatagramSource>,
    pub(in crate::service) replies: ReplyList,
    /// Number of requests that have run before the batch was queued, and the session of the next one,
    /// which has run in part.
    pub(in crate::service) done: usize,
    pub(in crate::service) session: Option<Box<Session>>,
    /// Clients whose requests were moved to batches of their own.
    pub(in crate::service) moved: Vec<ConnId>,
    /// Clients whose requests took long, and how long.
    pub(in crate::service) long: Vec<(ConnId, Duration)>,
}

/// Form of a request in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Form {
    /// Operation on one key. The bytes are the key and the value.
    Routed(Operation),
    /// Request of a Redis client, as received.
    Redis,
    /// Request of a memcached client, as received.
    Memcached,
    /// Request with long values, stored apart from the bytes.
    Stored,
    /// Datagram of a memcached client.
    Datagram,
}

/// Request in a batch.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct RemoteRequest {
    /// Connection of the client, or an index into `sources` for a datagram.
    pub conn: ConnId,
    /// Hash of the first key, or 0.
    pub hash: u64,
    /// End of the bytes in the text.
    pub end: u32,
    /// Length of the key of a routed request.
    pub key: u16,
    pub form: Form,
    pub space: u8,
    pub protocol: Protocol,
}

impl Kv {
    /// Returns the batch for the next request of a client to `owner`, which is another worker, and notes in `round`
    /// that a reply for this use will return. Returns `None` if the client has enough requests in the batch.
    #[inline]
    pub(in crate::service) fn batch_to(
        &mut self,
        owner: usize,
        round: &mut Option<Box<ReplyRound>>,
        reply_use: ReplyUse,
    ) -> Option<&mut RemoteBatch> {
        self.long_work.parsed += 1;
        let round = match round {
            Some(round) => &mut **round,
            None => self.begin_round(round),
        };
        match round.parts.iter().find(|part| part.owner == owner) {
            Some(part) => {
                // A batch with requests of an open round is not sent.
                let batch = self.batches[owner].as_deref_mut().filter(|batch| batch.has_room_after(part))?;
                round.expect(owner, reply_use);
                Some(batch)
            }
            None => {
                let batch = self.batch_with_room(owner);
                round.parts.push(BatchPart { owner, requests: batch.requests.len(), text: batch.text.len() });
                round.expect(owner, reply_use);
                Some(batch)
            }
        }
    }

    /// Returns the batch for a request that needs exactly one shard, of another worker.
    #[inline]
    pub(in crate::service) fn batch_for(
        &mut self,
        needs: &ShardSet,
        round: &mut Option<Box<ReplyRound>>,
        reply_use: ReplyUse,
    ) -> Option<&mut RemoteBatch> {
        let mut shards = needs.iter();
        let (Some(owner), None) = (shards.next(), shards.next()) else { return None };
        if owner == self.worker { None } else { self.batch_to(owner, round, reply_use) }
    }

    /// Returns true if `owner` has room for another request of the client with `round`.
    pub(in crate::service) fn has_room_at(&self, owner: usize, round: Option<&ReplyRound>) -> bool {
        round
            .and_then(|round| round.parts.iter().find(|part| part.owner == owner))
            .is_none_or(|part| self.batches[owner].as_ref().is_some_and(|batch| batch.has_room_after(part)))
    }

    /// Begins a round, unless there is one. A request for another worker must follow.
    pub(in crate::service) fn open_round(&mut self, round: &mut Option<Box<ReplyRound>>) {
        if round.is_none() {
            self.begin_round(round);
        }
    }

    /// Begins a round. The replies written so far belong to its client.
    fn begin_round<'a>(&mut self, round: &'a mut Option<Box<ReplyRound>>) -> &'a mut ReplyRound {
        let round = round.insert(self.idle_rounds.pop().unwrap_or_default());
        if !self.replies.is_empty() {
            round.hold(self.worker, self.replies.mark(), ReplyUse::Text);
        }
        round
    }

    /// Keeps a finished round for reuse.
    pub(in crate::service) fn end_round(&mut self, mut round: Box<ReplyRound>) {
        if self.idle_rounds.len() < IDLE_ROUNDS {
            round.clear();
            self.idle_rounds.push(round);
        }
    }

    /// Adds the requests in `text`, which arrived in a datagram, to a batch for `worker`.
    pub(in crate::service) fn send_for(&mut self, source: DatagramSource, worker: usize, text: &[u8]) {
        let batch = self.batch_with_room(worker);
        let conn = ConnId::from_bits(batch.sources.len() as u64);
        batch.sources.push(source);
        let from = Requester { conn, space: 0, protocol: Protocol::Resp2 };
        batch.push_text(from, Form::Datagram, 0, text);
    }

    /// Returns a batch for `worker` with room for another source.
    #[inline]
    pub(in crate::service) fn batch_with_room(&mut self, worker: usize) -> &mut RemoteBatch {
        if self.batches[worker].as_ref().is_some_and(|batch| batch.is_full()) {
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
        if let Some(mut batch) = self.batches[worker].take() {
            self.stats.batches += 1;
            self.batches_elsewhere += 1;
            batch.number = self.stats.batches;
            batch.since = self.latency.since;
            self.stats.batched += batch.requests.len() as u64;
            self.server.outbox.send(worker, Message::RunBatch(batch));
        }
    }

    /// Passes the replies of a batch, which `owner` has run, to their clients.
    pub(in crate::service) fn finish_batch(
        &mut self,
        net: &mut impl Transport,
        owner: usize,
        mut batch: Box<RemoteBatch>,
    ) {
        let moved = batch.moved.len() as u64;
        self.batches_elsewhere = self.batches_elsewhere + moved - 1;
        self.map_change.sent_before.note_returned(batch.number, moved);
        self.note_returned(batch.number, moved);
        let mut first = 0;
        let mut from = Mark::default();
        while let Some(request) = batch.requests.get(first) {
            let conn = request.conn;
            let is_datagram = request.form == Form::Datagram;
            let same = |other: &&RemoteRequest| !is_datagram && other.conn == conn && other.form != Form::Datagram;
            let end = first + 1 + batch.requests[first + 1..].iter().take_while(same).count();
            let to = Some(batch.replies.ends[end - 1]).filter(|to| *to != Mark::EXCEEDED);
            (batch.replies.next, batch.replies.from) = (first, from);
            if !is_datagram && batch.moved.contains(&conn) {
                // The replies follow.
            } else if is_datagram {
                self.replies.append(&mut batch.replies.replies, from, to);
                self.answer_from_elsewhere(net, &batch.sources[conn.to_bits() as usize]);
            } else if !self.finish_single(net, conn, &batch.replies, to) {
                self.with_client(net, conn, |kv, net, client| {
                    client.pending_replies -= 1;
                    batch.long.iter().filter(|long| long.0 == conn).for_each(|long| kv.long_work.add_remote(long.1));
                    if client.is_closing() {
                        return;
                    }
                    if to.is_none() {
                        kv.replies.discard();
                    } else if let Some(round) = &mut client.round {
                        round.missing -= 1;
                        if round.missing > 0 {
                            return round.keep(owner, &mut batch.replies, end);
                        }
                        round.write(kv.worker, owner, &mut batch.replies, &mut kv.replies);
                    } else {
                        kv.replies.append(&mut batch.replies.replies, from, to);
                    }
                    if let Some(round) = client.round.take() {
                        kv.end_round(round);
                    }
                    kv.reply(net, client);
                    kv.resume(net, client);
                });
            }
            (first, from) = (end, to.unwrap_or(from));
        }
        if let Some(since) = batch.since.take() {
            self.note_latency(since, batch.requests.len() as u64);
        }
        // The requests that clients sent meanwhile have been executed.
        self.clear_ahead();
        batch.clear();
        if self.idle_batches.len() < IDLE {
            self.idle_batches.push(batch);
        }
    }

    /// Writes the reply to a client with a single request, which the [fast path](Self::send_single) sent. Returns false
    /// if the state of the client has changed.
    #[inline]
    fn finish_single(&mut self, net: &mut impl Transport, conn: ConnId, replies: &ReplyList, to: Option<Mark>) -> bool {
        let Some(fast_state) = self.fast_states.get_mut(conn.slot()).filter(|state| state.waits(conn)) else {
            return false;
        };
        let Some(text) = to.and_then(|to| replies.replies.text_between(replies.from, to)) else { return false };
        fast_state.end_wait();
        let sent = net.write(conn, text);
        self.server.wrote(sent);
        if sent < text.len() {
            self.replies.put(&text[sent..]);
            self.reply_to(net, conn);
        }
        true
    }
}

impl RemoteBatch {
    /// Returns a batch with part of `requests`, whose bytes are in `text`.
    pub(in crate::service) fn part(requests: &[RemoteRequest], text: &[u8], range: Range<usize>) -> Box<RemoteBatch> {
        let start = range.start.checked_sub(1).map_or(0, |before| requests[before].end);
        let requests = &requests[range];
        let end = requests.last().map_or(start, |last| last.end);
        let rebased = |request: &RemoteRequest| RemoteRequest { end: request.end - start, ..*request };
        Box::new(RemoteBatch {
            requests: requests.iter().map(rebased).collect(),
            text: text[start as usize..end as usize].to_vec(),
            ..RemoteBatch::default()
        })
    }

    /// Adds an operation on one key.
    #[inline]
    pub(in crate::service) fn push(&mut self, conn: ConnId, routed: &Routed<'_>) {
        self.text.extend_from_slice(routed.key.bytes);
        self.text.extend_from_slice(routed.value);
        self.requests.push(RemoteRequest {
            conn,
            hash: routed.key.hash(),
            end: self.text.len() as u32,
            key: routed.key.bytes.len() as u16,
            form: Form::Routed(routed.operation),
            space: routed.key.space,
            protocol: routed.protocol,
        });
    }

    /// Adds a request with the bytes `text`, whose first key has the hash `hash`.
    pub(in crate::service) fn push_text(&mut self, from: Requester, form: Form, hash: u64, text: &[u8]) {
        self.text.extend_from_slice(text);
        let (end, Requester { conn, space, protocol }) = (self.text.len() as u32, from);
        self.requests.push(RemoteRequest { conn, hash, end, key: 0, form, space, protocol });
    }

    /// Adds a request with long values.
    pub(in crate::service) fn push_stored(&mut self, from: Requester, pending: PendingRequest) {
        self.stored.push(pending);
        self.push_text(from, Form::Stored, 0, &[]);
    }

    /// Returns true if there is room for another request of the client with `part`.
    #[inline]
    fn has_room_after(&self, part: &BatchPart) -> bool {
        self.text.len() - part.text < MAX_TEXT && self.requests.len() - part.requests < MAX_REQUESTS
    }

    /// Returns true if the batch has no room for another client.
    #[inline]
    fn is_full(&self) -> bool {
        self.text.len() >= MAX_TEXT || self.requests.len() >= MAX_REQUESTS
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.text.clear();
        self.text.shrink_to(2 * MAX_TEXT);
        self.stored.clear();
        self.sources.clear();
        self.replies.clear();
        self.long.clear();
        self.moved.clear();
        self.done = 0;
    }
}
