//! Operations on one key whose worker is known, and the requests of other workers.

use crate::commands::{CommandType, Request, Session, Stats};
use crate::memcached::{Data, udp};
use crate::resp::{self, OK, OwnedArgs, Protocol, Reply};
use crate::service::Kv;
use crate::service::conn::PendingRequest;
use crate::service::conn::output::{Mark, Replies};
use crate::service::workers::messages::Message;
use crate::service::workers::remote_batch::{Form, RemoteBatch, RemoteRequest};
use crate::store::{Expiry, Key, LONG_THRESHOLD, LocationHint, Store};
use crate::value::Sink;
use linerate_bypass::{BURST, prefetch};

/// Number of requests whose items are prefetched before the first is executed. More would evict prefetched lines from
/// the cache. A port's burst with one request per segment has as many requests.
pub(in crate::service) const GROUP: usize = BURST;

/// Operation on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Operation {
    Get,
    /// `SET` of a short value without options.
    Set,
    /// Element of `MGET`, which is nil for values of other types.
    Element,
    /// Key of `EXISTS`. The reply to this operation and to `Touch` and `Remove` is a digit.
    Exists,
    /// Key of `TOUCH`.
    Touch,
    /// Key of `DEL` or `UNLINK`.
    Remove,
}

/// Operation on one key, whose hash is known.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct Routed<'a> {
    pub operation: Operation,
    pub key: Key<'a>,
    pub value: &'a [u8],
    pub protocol: Protocol,
}

impl Routed<'_> {
    /// Returns the request as a client would send it.
    fn to_args(self) -> OwnedArgs {
        match self.operation {
            Operation::Set => [&b"set"[..], self.key.bytes, self.value].into_iter().collect(),
            _ => [&b"get"[..], self.key.bytes].into_iter().collect(),
        }
    }
}

/// Replies with the string under `key`, or null. Returns false, without any effect, if the value has another type.
#[inline(always)]
pub(in crate::service) fn get(
    store: &mut Store,
    replies: &mut Replies,
    stats: &mut Stats,
    key: &Key<'_>,
    hint: LocationHint,
    protocol: Protocol,
    now: u64,
) -> bool {
    match store.get_with_hint(key, hint, now) {
        Some(value) => {
            replies.bulk(value);
            stats.hits += 1;
            true
        }
        None => get_without_hint(store, replies, stats, key, protocol, now),
    }
}

/// [`get`] of a value that is not short or not where the hint leads.
#[inline(never)]
fn get_without_hint(
    store: &mut Store,
    replies: &mut Replies,
    stats: &mut Stats,
    key: &Key<'_>,
    protocol: Protocol,
    now: u64,
) -> bool {
    match store.get(key, now) {
        Ok(Some(value)) => Reply::new(replies, protocol).value(&value),
        Ok(None) => {
            stats.misses += 1;
            Reply::new(replies, protocol).null();
            return true;
        }
        Err(_) => return false,
    }
    stats.hits += 1;
    true
}

/// Stores `value` under `key`. Returns false if memory is full, and changes nothing then.
#[inline(always)]
pub(in crate::service) fn set(store: &mut Store, key: &Key<'_>, hint: LocationHint, value: &[u8], now: u64) -> bool {
    store.set_with_hint(key, hint, value, now) || store.set(key, value, Expiry::Never, now).is_ok()
}

impl Kv {
    /// Runs an operation on a key of this worker's shard. Returns false, without any effect, if the shard is absent or
    /// the request fails, in which case it has to be run in full.
    #[inline]
    pub(in crate::service) fn run_routed(&mut self, routed: &Routed<'_>, hint: LocationHint) -> bool {
        let Some(store) = &mut self.stores[self.worker] else { return false };
        let Routed { operation, key, value, protocol } = routed;
        match operation {
            Operation::Get | Operation::Element => {
                let is_get = *operation == Operation::Get;
                if !get(store, &mut self.replies, &mut self.stats, key, hint, *protocol, self.now) {
                    if is_get {
                        return false;
                    }
                    self.stats.misses += 1;
                    Reply::new(&mut self.replies, *protocol).null();
                }
                self.stats.commands += u64::from(is_get);
            }
            Operation::Set => {
                if !set(store, key, hint, value, self.now) {
                    return false;
                }
                self.stats.commands += 1;
                self.stats.count_type(CommandType::Set);
                self.replies.put(OK);
            }
            Operation::Exists | Operation::Touch | Operation::Remove => {
                let is_one = match operation {
                    Operation::Exists => store.exists(key, self.now),
                    Operation::Touch => store.touch(key, self.now),
                    _ => store.remove(key, self.now),
                };
                self.replies.put(if is_one { b"1" } else { b"0" });
            }
        }
        true
    }

    /// Returns true if received batches can run.
    pub(in crate::service) fn has_batches(&self) -> bool {
        self.stores[self.worker].is_some() && !self.shard_borrow.batches.is_empty()
    }

    /// Runs the received batches while this worker's shard is present, up to the first that takes long.
    pub(in crate::service) fn run_batches(&mut self) {
        while self.has_batches()
            && let Some(batch) = self.shard_borrow.batches.pop_front()
        {
            self.run_batch(batch);
            if self.long_work.has_worked() {
                break;
            }
        }
    }

    /// Runs the requests of a batch. If a request runs in steps, it and the other requests of its client are queued
    /// after its first step, as a batch of their own: other clients need not wait for them.
    pub(in crate::service) fn run_batch(&mut self, mut batch: Box<RemoteBatch>) {
        let session = batch.session.take().map(|session| *session).or_else(|| self.remote_session.take());
        let Some(mut session) = session else { return };
        let RemoteBatch { sender, number, requests, text, stored, replies, done, moved, .. } = &mut *batch;
        text.chunks(64).take(GROUP).for_each(|line| prefetch(&line[0]));
        // The pending replies of this worker continue after the batch.
        std::mem::swap(&mut self.replies, &mut replies.replies);
        let most = self.settings().output;
        self.replies.set_limit_after(Mark::default(), most);
        let mut stored = std::mem::take(stored).into_iter();
        let mut first_of_client = 0;
        let (mut before, mut start) = (Mark::default(), 0);
        'requests: for (group, of_group) in requests.chunks(GROUP).enumerate() {
            let hints = self.prefetch_group(of_group);
            for (at, (request, hint)) in of_group.iter().zip(hints).enumerate() {
                let at = group * GROUP + at;
                let bytes = &text[start..request.end as usize];
                start = request.end as usize;
                if at < *done {
                    continue;
                }
                let is_datagram = request.form == Form::Datagram;
                let is_same = |before: &RemoteRequest| before.conn == request.conn && before.form != Form::Datagram;
                if is_datagram || at.checked_sub(1).is_none_or(|before| !is_same(&requests[before])) {
                    before = self.end_client(&mut replies.ends, first_of_client, before);
                    first_of_client = at;
                    self.replies.set_limit_after(before, if is_datagram { udp::MAX_REPLY as u64 } else { most });
                }
                if !is_datagram && moved.last() == Some(&request.conn) {
                    replies.ends.push(before);
                    continue;
                }
                self.run_remote(request, bytes, hint, &mut stored, &mut session);
                if session.is_paused() {
                    let unfinished = self.long_work.unfinished.take().into_iter();
                    let rest = requests[at..].iter().take_while(|request| is_same(request)).count();
                    let of_client = first_of_client..at + rest;
                    let paused = std::mem::replace(&mut session, Kv::remote_session(self.now));
                    if of_client.len() == requests.len() {
                        *done = at;
                        batch.stored = unfinished.chain(stored.by_ref()).collect();
                        batch.session = Some(Box::new(paused));
                        break 'requests;
                    }
                    let mut part = RemoteBatch::part(requests, text, of_client);
                    (part.sender, part.number, part.done) = (*sender, *number, at - first_of_client);
                    let count = requests[at + 1..at + rest].iter().filter(|next| next.form == Form::Stored).count();
                    part.stored = unfinished.chain(stored.by_ref().take(count)).collect();
                    part.session = Some(Box::new(paused));
                    let end = Some(self.replies.mark()).filter(|_| !self.replies.is_discarded());
                    part.replies.replies.append(&mut self.replies, before, end);
                    part.replies.ends = replies.ends[first_of_client..].iter().map(|end| end.since(before)).collect();
                    self.long_work.push_batch(part);
                    self.replies.rollback(before);
                    replies.ends[first_of_client..].fill(before);
                    moved.push(request.conn);
                }
                replies.ends.push(self.replies.mark());
            }
        }
        batch.long.append(&mut self.long_work.remote);
        self.remote_session = Some(session);
        if batch.session.is_some() {
            std::mem::swap(&mut self.replies, &mut batch.replies.replies);
            return self.long_work.push_batch(batch);
        }
        self.end_client(&mut batch.replies.ends, first_of_client, before);
        std::mem::swap(&mut self.replies, &mut batch.replies.replies);
        let sender = batch.sender;
        self.server.outbox.send(sender, Message::BatchDone(self.worker, batch));
    }

    /// Ends the replies to a client, which start at `before` and have the ends from number `first` on. Removes them if
    /// they exceed the limit. Returns the position of the next reply.
    #[inline]
    fn end_client(&mut self, ends: &mut [Mark], first: usize, before: Mark) -> Mark {
        match self.replies.mark_or_rollback(before) {
            Some(end) => end,
            None => {
                ends[first..].fill(Mark::EXCEEDED);
                before
            }
        }
    }

    /// Prefetches the items of up to [`GROUP`] requests: all index lines before the first item.
    #[inline]
    fn prefetch_group(&self, requests: &[RemoteRequest]) -> [LocationHint; GROUP] {
        let mut hints = [LocationHint::default(); GROUP];
        let Some(store) = &self.stores[self.worker] else { return hints };
        for request in requests {
            store.prefetch_index(request.hash);
        }
        for (hint, request) in hints.iter_mut().zip(requests) {
            *hint = store.location_hint(request.hash);
            store.prefetch_item(*hint);
        }
        hints
    }

    #[inline]
    fn run_remote(
        &mut self,
        request: &RemoteRequest,
        bytes: &[u8],
        hint: LocationHint,
        stored: &mut impl Iterator<Item = PendingRequest>,
        session: &mut Session,
    ) {
        let RemoteRequest { hash, key, form, space, protocol, .. } = *request;
        if let Form::Routed(operation) = form {
            let (key, value) = bytes.split_at(usize::from(key));
            let key = self.hasher.key_with_hash(space, key, hash);
            let routed = Routed { operation, key, value, protocol };
            if !self.run_routed(&routed, hint) {
                self.run_in_full(&routed, session);
            }
            return;
        }
        session.act_for(space, protocol);
        self.account_remote(request.conn, |kv| match form {
            Form::Redis => {
                let mut parser = std::mem::take(&mut kv.remote_parser);
                // The sender has parsed it already, with its limits, so this succeeds.
                let limits = session.limits(usize::MAX, LONG_THRESHOLD);
                if let Ok(resp::Parsed::Request(_)) = parser.parse(bytes, limits) {
                    let request = Request::with_hash(parser.args(bytes), space, &kv.hasher, hash);
                    kv.run(&request, session);
                }
                kv.remote_parser = parser;
            }
            Form::Memcached => _ = kv.run_bytes(bytes, Data::Short(b"")),
            Form::Stored => match stored.next() {
                Some(PendingRequest::Resp(args)) => {
                    kv.run(&Request::new(args.args(), space, &kv.hasher), session);
                    if session.is_paused() {
                        kv.long_work.unfinished = Some(PendingRequest::Resp(args));
                    }
                }
                Some(PendingRequest::Memcached(bytes, value)) => _ = kv.run_bytes(&bytes, value),
                Some(PendingRequest::CommandError(..)) | None => {}
            },
            Form::Datagram => kv.run_datagram(bytes),
            Form::Routed(_) => {}
        });
    }

    /// Runs an operation that fails, for its error reply.
    #[cold]
    fn run_in_full(&mut self, routed: &Routed<'_>, session: &mut Session) {
        session.act_for(routed.key.space, routed.protocol);
        let args = routed.to_args();
        self.run(&Request::new(args.args(), routed.key.space, &self.hasher), session);
    }
}
