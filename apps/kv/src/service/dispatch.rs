//! Parsing of requests, and their dispatch to the workers that hold their shards.

use crate::cluster::slot_of_hash;
use crate::commands::{self, Request, Scatter, Session};
use crate::memcached::{self, Data, Flow};
use crate::resp::{self, OwnedArgs, Protocol};
use crate::service::Kv;
use crate::service::conn::gather::{BatchPart, ReplyUse};
use crate::service::conn::output::MANY;
use crate::service::conn::{Client, Foreign, PendingRequest, ProtocolState, Requester};
use crate::service::fast_path::FastRequest;
use crate::service::input::Stop;
use crate::service::scatter::Splitting;
use crate::service::workers::remote_batch::Form;
use crate::service::workers::shard_borrow::Job;
use crate::shards::{Placement, ShardSet, Shards};
use crate::store::{Key, LONG_THRESHOLD, Long};
use crate::value::Sink;
use linerate_service::Transport;

/// Error for a value that does not fit into memory.
const NO_ROOM: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";

impl Kv {
    /// Serves the client as far as its requests can run now.
    pub(in crate::service) fn serve(&mut self, net: &mut impl Transport, client: &mut Client) {
        client.last_input = self.now;
        if client.is_closing() {
            // The input stays unread until all replies are sent, which closes the receive window. The lingering close
            // discards it.
            return client.close_if_done(net);
        }
        if client.is_queued || self.is_backlogged(client) {
            client.ahead = 0..0;
        }
        while client.round.is_none() || !self.replies.is_large() {
            if client.ahead.is_empty() {
                if !client.is_ready() || self.is_backlogged(client) || net.peek(client.conn).is_empty() {
                    break;
                }
                if self.is_turn_over() {
                    break;
                }
                self.parse_more(net, client);
            }
            if client.ahead.is_empty() || !self.execute_ahead(net, client) {
                self.serve_slice(net, client);
                self.reply(net, client);
            }
        }
        self.finish_turn(net, client);
    }

    /// Continues with a client after a pending request got its reply or its shards.
    pub(in crate::service) fn resume(&mut self, net: &mut impl Transport, client: &mut Client) {
        if let Some(pending) = client.take_pending() {
            self.retry(client, pending);
            self.reply(net, client);
        }
        if client.is_ready() && client.incoming.is_none() && !client.input.is_empty() {
            self.serve_input(client);
        }
        self.reply(net, client);
        self.serve(net, client);
    }

    /// Serves `client`, which was queued, starting with its paused request if it has one.
    pub(in crate::service) fn take_turn(&mut self, net: &mut impl Transport, client: &mut Client) {
        client.is_queued = false;
        if let Some(pending) = client.paused.take().filter(|_| !client.is_closing()) {
            self.retry(client, pending);
            self.reply(net, client);
        }
        self.resume(net, client);
    }

    /// Disconnects a client whose buffered input exceeds the limit, as Redis does.
    fn limit_input(&mut self, net: &mut impl Transport, client: &mut Client) {
        if let ProtocolState::Resp { parser, .. } = &mut client.protocol_state {
            parser.trim();
        }
        let queued = client.session().map_or(0, Session::queued_bytes);
        if (client.input.len() + queued) as u64 > self.settings().query {
            client.input = Vec::new();
            Self::disconnect_now(net, client);
        }
    }

    /// Ends a turn of the client: checks its limits, and closes the connection if everything is done.
    fn finish_turn(&mut self, net: &mut impl Transport, client: &mut Client) {
        self.end_turn(client);
        self.limit_input(net, client);
        if client.seal_round()
            && let Some(round) = &mut client.round
        {
            let sent =
                |part: &BatchPart| self.batches[part.owner].as_ref().map_or(0, |batch| batch.text.len() - part.text);
            round.sent += round.parts.iter().map(sent).sum::<usize>();
            std::mem::swap(&mut self.replies, &mut round.held.replies);
            self.replies.set_limit(self.server.settings().output);
        }
        client.close_if_done(net);
    }

    #[inline]
    pub(in crate::service) fn reply(&mut self, net: &mut impl Transport, client: &mut Client) {
        if let Some(foreign) = client.foreign.take() {
            self.server.warn_of(foreign, net.peer_addr(client.conn), self.now);
        }
        if self.replies.is_discarded() {
            // The rest of a truncated reply is useless.
            self.replies.clear();
            // Its batches will return without effect.
            client.seal_round();
            if let Some(round) = client.round.take() {
                self.end_round(round);
            }
            return Self::disconnect_now(net, client);
        }
        // The replies of a round are written together.
        if self.replies.is_empty() || client.round.is_some() {
            return;
        }
        let is_late = !client.output.is_empty();
        self.server.wrote(self.replies.len());
        client.send(net, &mut self.replies);
        if is_late {
            self.limit_output(net, client);
        }
    }

    /// Disconnects a client that does not read its replies. A reply of any length may follow an empty queue.
    #[cold]
    fn limit_output(&mut self, net: &mut impl Transport, client: &mut Client) {
        let most = self.settings().output;
        if most > 0 && client.output.bytes() as u64 > most {
            Self::disconnect_now(net, client);
        }
    }

    /// Returns true if the client must read replies before its next request starts: many are queued for it, and the
    /// replies queued for all clients exceed twice the limit of one client. The limit of one client alone does not
    /// bound the memory for many clients that do not read.
    fn is_backlogged(&self, client: &Client) -> bool {
        let most = self.settings().output as usize;
        client.output.bytes() >= MANY && most > 0 && self.queued_output / 2 >= most
    }

    fn disconnect_now(net: &mut impl Transport, client: &mut Client) {
        client.finish();
        net.abort(client.conn);
    }

    /// Runs the requests in `data` that start before `end`. Returns the number of bytes consumed and the reason for
    /// stopping.
    pub(in crate::service) fn run_all(&mut self, client: &mut Client, data: &[u8], end: usize) -> (usize, Stop) {
        match client.protocol_state {
            ProtocolState::Resp { .. } => self.run_resp(client, data, end),
            ProtocolState::Memcached { .. } => self.run_memcached(client, data, end),
        }
    }

    fn run_resp(&mut self, client: &mut Client, data: &[u8], end: usize) -> (usize, Stop) {
        let mut used = 0;
        let bulk = self.settings().bulk as usize;
        while client.is_ready() && used < end && !self.replies.is_large() && !self.is_turn_over() {
            let ProtocolState::Resp { session, parser, has_no_room } = &mut client.protocol_state else { break };
            let rest = &data[used..];
            if (used > 0 || self.is_routed)
                && session.is_plain()
                && !parser.is_within()
                && let Some((fast, key)) = FastRequest::parse(rest)
            {
                if self.is_routed
                    && let key = self.hasher.key(session.space(), key)
                    && let Some(owner) = self.remote_owner(&key)
                {
                    if let Some(batch) = self.batch_to(owner, &mut client.round, ReplyUse::Text) {
                        batch.push(client.conn, &fast.routed(key, session.protocol(), rest));
                        used += fast.len;
                        continue;
                    }
                } else if used > 0 {
                    // The fast path takes over, with prefetching.
                    return (used, Stop::Pause);
                }
            }
            let parsed = parser.parse(&data[used..], session.limits(bulk, LONG_THRESHOLD));
            let len = match parsed {
                Ok(resp::Parsed::Request(len)) => len,
                Ok(resp::Parsed::Partial(_)) => return (used, Stop::Empty),
                Ok(resp::Parsed::Long { at, len }) => {
                    return (used, Stop::Long { at, len });
                }
                Err(error) => {
                    session.begin_request();
                    self.reply_error(client, format!("-ERR {error}\r\n").as_bytes(), true);
                    return (data.len(), Stop::Pause);
                }
            };
            let text = &data[used..used + len];
            let args = parser.args(text);
            let whole = Request::materialized(args);
            let args = whole.as_ref().map_or(args, OwnedArgs::args);
            used += len;
            self.long_work.parsed += 1 + args.len() as u64 / 2;
            session.begin_request();
            if std::mem::take(has_no_room) && !args.get(0).is_some_and(commands::is_http) {
                session.reject_command();
                parser.forget();
                self.reply_error(client, NO_ROOM, false);
                continue;
            }
            if args.is_empty() {
                continue;
            }
            if let Some(map) = self.server.map()
                && let Some(error) = commands::redirection(args, session, map)
            {
                session.reject_command();
                parser.forget();
                self.stats.errors += 1;
                self.reply_error(client, &error, false);
                continue;
            }
            if whole.is_none()
                && args.longs().len() == 0
                && session.is_plain()
                && let Some(scatter) = Scatter::split(args)
            {
                let to = Splitting { conn: client.conn, session, round: &mut client.round };
                if self.scatter(to, scatter, args) {
                    continue;
                }
            }
            let request = Request::new(args, session.space(), &self.hasher);
            if self.must_wait(&request, session) {
                let pending = PendingRequest::Resp(args.to_owned());
                parser.forget();
                self.hold(client, pending);
                continue;
            }
            let needs = self.needed_shards(&request, session);
            let can_run_remotely = request.can_run_remotely();
            // In an open round only a short request for this worker's shard runs at once.
            let is_next = client.round.is_none()
                || can_run_remotely && !request.may_take_long() && needs == ShardSet::from_iter([self.worker]);
            if is_next && self.has(&needs) {
                if request.needs_clients(session)
                    && !self.list_for(client.conn, session.client(self.now), &mut client.list)
                {
                    // The list of clients is requested from the other workers.
                    client.pending = Some(PendingRequest::Resp(args.to_owned()));
                    client.pending_replies += 1;
                } else {
                    self.run(&request, session);
                    if session.is_paused() {
                        client.paused = Some(PendingRequest::Resp(args.to_owned()));
                        client.is_queued = true;
                        self.long_work.push(client.conn);
                    }
                }
                if let Some(round) = &mut client.round {
                    round.hold(self.worker, self.replies.mark(), ReplyUse::Text);
                }
                let is_closing = session.is_closing();
                parser.forget();
                if is_closing {
                    self.finish_session(client);
                }
                continue;
            }
            if can_run_remotely
                && args.longs().len() == 0
                && whole.is_none()
                && let Some(hash) = request.key_hash()
                && let Some(batch) = self.batch_for(&needs, &mut client.round, ReplyUse::in_session(session))
            {
                let from = Requester { conn: client.conn, space: session.space(), protocol: session.protocol() };
                batch.push_text(from, Form::Redis, hash, text);
                continue;
            }
            let pending = PendingRequest::Resp(args.to_owned());
            parser.forget();
            self.forward_or_wait(client, pending, needs, can_run_remotely);
        }
        (used, Stop::Pause)
    }

    fn run_memcached(&mut self, client: &mut Client, data: &[u8], end: usize) -> (usize, Stop) {
        let mut used = 0;
        let limits = self.server.memcached_limits();
        while client.is_ready() && used < end && !self.replies.is_large() && !self.is_turn_over() {
            let ProtocolState::Memcached { parser } = &mut client.protocol_state else { break };
            let rest = &data[used..];
            let (request, value, len) = match parser.parse(rest, &limits) {
                Ok(memcached::Parsed::Request { request, data, len }) => (request, data, len),
                Ok(memcached::Parsed::Skip(len)) => {
                    used += len;
                    continue;
                }
                Ok(memcached::Parsed::Partial(_)) => return (used, Stop::Empty),
                Ok(memcached::Parsed::Long { at, len, .. }) => {
                    return (used, Stop::Long { at, len });
                }
                Err(error) => {
                    client.foreign = (error == memcached::InvalidInput::Binary).then_some(Foreign::Binary);
                    self.reply_error(client, b"", true);
                    return (data.len(), Stop::Pause);
                }
            };
            used += len;
            let (needs, hash) = self.memcached_needs(&request);
            let is_held = self.must_text_wait(&request);
            let is_next = !is_held
                && (client.round.is_none() || !request.may_take_long() && needs == ShardSet::from_iter([self.worker]));
            if is_next && self.has(&needs) {
                let flow = self.run_text(&request, value);
                if let Some(round) = &mut client.round {
                    round.hold(self.worker, self.replies.mark(), ReplyUse::Text);
                }
                self.follow_flow(client, flow);
                continue;
            }
            let (text, can_run_remotely) = (&rest[..len], !is_held && !request.needs_all());
            let value = match value {
                Data::Long(long) => Data::Long(long),
                Data::Full => Data::Full,
                // Its data block arrived as a long value.
                Data::Unended if memchr::memchr(b'\n', text) == Some(len - 1) => Data::Unended,
                _ => {
                    if can_run_remotely && let Some(batch) = self.batch_for(&needs, &mut client.round, ReplyUse::Text) {
                        let from = Requester { conn: client.conn, space: memcached::SPACE, protocol: Protocol::Resp2 };
                        batch.push_text(from, Form::Memcached, hash, text);
                        continue;
                    }
                    Data::Short(b"")
                }
            };
            let pending = PendingRequest::Memcached(text.to_vec(), value);
            if is_held {
                self.hold(client, pending);
                continue;
            }
            self.forward_or_wait(client, pending, needs, can_run_remotely);
        }
        (used, Stop::Pause)
    }

    /// Replies with `error` to a request of `client`, after the replies to its earlier requests.
    pub(in crate::service) fn reply_error(&mut self, client: &mut Client, error: &[u8], closes: bool) {
        if client.round.is_some() {
            client.pending = Some(PendingRequest::CommandError(error.to_vec(), closes));
            return;
        }
        if !client.session().is_some_and(Session::is_silent) {
            self.replies.put(error);
        }
        if closes {
            client.finish();
        }
    }

    /// Stops reading requests of `client`, whose session is closing.
    #[cold]
    fn finish_session(&mut self, client: &mut Client) {
        if client.session().is_some_and(Session::is_http) {
            client.foreign = Some(Foreign::Http);
            self.replies.discard();
        }
        client.finish();
    }

    /// Applies the outcome of a request to the connection.
    #[inline]
    fn follow_flow(&mut self, client: &mut Client, flow: Flow) {
        match flow {
            Flow::On => {}
            Flow::Close => client.finish(),
            Flow::Http => {
                client.foreign = Some(Foreign::Http);
                client.finish();
            }
        }
    }

    fn needed_shards(&self, request: &Request<'_>, session: &Session) -> ShardSet {
        // A single worker never lends its shard. An unauthenticated request fails before it touches a shard.
        if self.stores.len() == 1 || !session.is_authenticated() {
            return ShardSet::NONE;
        }
        request.needed_shards(session, &self.hasher, &self.placement)
    }

    /// Returns the shards that a memcached request needs, and the hash of its last key.
    pub(in crate::service) fn memcached_needs(&self, request: &memcached::Request<'_>) -> (ShardSet, u64) {
        let count = self.stores.len();
        if count == 1 {
            return (ShardSet::NONE, 0);
        }
        if self.keeps_memcached {
            return ([self.worker].into_iter().collect(), 0);
        }
        if request.needs_all() {
            return (ShardSet::all(count), 0);
        }
        let (mut needs, mut hash) = (ShardSet::NONE, 0);
        request.each_key(|key| {
            hash = self.hasher.key(memcached::SPACE, key).hash();
            needs.add(self.placement.shard_of(hash));
        });
        (needs, hash)
    }

    /// Returns the worker to which a request for `key` is sent, unless it runs here.
    #[inline]
    fn remote_owner(&self, key: &Key<'_>) -> Option<usize> {
        let owner = self.placement.shard_of(key.hash());
        (owner != self.worker && self.is_here(key.hash())).then_some(owner)
    }

    /// Returns true unless keys with the hash `hash` belong to another machine.
    #[inline]
    pub(in crate::service) fn is_here(&self, hash: u64) -> bool {
        self.server.map().is_none_or(|map| map.is_here(slot_of_hash(hash)))
    }

    /// Returns true if all shards in `needs` are present.
    #[inline]
    pub(in crate::service) fn has(&self, needs: &ShardSet) -> bool {
        needs.iter().all(|shard| self.stores[shard].is_some())
    }

    /// Runs `request`, whose shards are present.
    #[inline]
    pub(in crate::service) fn run_untimed(&mut self, request: &Request<'_>, session: &mut Session) {
        let mut cx = commands::Context {
            shards: &mut Shards::new(&mut self.stores, &self.placement),
            hasher: &self.hasher,
            session,
            server: &mut self.server,
            stats: &mut self.stats,
            now: self.now,
            wall_ahead: self.clock.wall_ahead(),
        };
        let before = self.replies.mark();
        request.run(&mut cx, &mut self.replies);
        if session.is_silent() {
            self.replies.rollback(before);
        }
    }

    /// Runs a memcached `request`, whose shards are present.
    #[inline]
    pub(in crate::service) fn run_text_untimed(&mut self, request: &memcached::Request<'_>, value: Data<'_>) -> Flow {
        if self.server.flush.1.is_some_and(|at| at <= self.now) {
            self.shard_tick();
        }
        static ALONE: Placement = Placement::new(1);
        let own = self.worker;
        let mut shards = match self.keeps_memcached {
            true => Shards::new(&mut self.stores[own..=own], &ALONE),
            false => Shards::new(&mut self.stores, &self.placement),
        };
        let mut cx = memcached::Context {
            limits: self.server.memcached_limits(),
            shards: &mut shards,
            server: &mut self.server,
            counts: &self.counts,
            time: memcached::Time { now: self.now, wall_ahead: self.clock.wall_ahead() },
        };
        memcached::execute(request, value, &mut cx, &mut self.replies)
    }

    /// Runs a stored request of `client`, whose shards are present.
    pub(in crate::service) fn run_pending(&mut self, client: &mut Client, pending: PendingRequest) {
        match (pending, &mut client.protocol_state) {
            (PendingRequest::Resp(args), ProtocolState::Resp { session, .. }) => {
                if let Some(list) = client.list.take() {
                    self.server.show(list);
                }
                self.run(&Request::new(args.args(), session.space(), &self.hasher), session);
                if session.is_paused() {
                    client.paused = Some(PendingRequest::Resp(args));
                    client.is_queued = true;
                    self.long_work.push(client.conn);
                } else if session.is_closing() {
                    self.finish_session(client);
                }
            }
            (PendingRequest::Memcached(bytes, value), _) => {
                if let Some((_, flow)) = self.run_bytes(&bytes, value) {
                    self.follow_flow(client, flow);
                }
            }
            (PendingRequest::CommandError(error, closes), _) => self.reply_error(client, &error, closes),
            (PendingRequest::Resp(_), ProtocolState::Memcached { .. }) => {}
        }
    }

    /// Runs the memcached request at the start of `bytes`, with its data block in `apart` if that was received as a
    /// long value. Returns its length and the outcome for the connection.
    pub(in crate::service) fn run_bytes(&mut self, bytes: &[u8], apart: Data<'static>) -> Option<(usize, Flow)> {
        let mut parser = memcached::Parser::default();
        match apart {
            Data::Long(long) => parser.give(long, *b"\r\n"),
            Data::Unended => parser.give(Long::empty(), [0; 2]),
            Data::Full => parser.refuse(0),
            Data::Short(_) | Data::TooLarge => {}
        }
        match parser.parse(bytes, &self.server.memcached_limits()) {
            Ok(memcached::Parsed::Request { request, data, len }) => Some((len, self.run_text(&request, data))),
            _ => None,
        }
    }

    /// Parses the line at the start of a memcached request, without its long value.
    pub(in crate::service) fn memcached_line<'a>(&self, bytes: &'a [u8]) -> Option<memcached::Request<'a>> {
        let limits = memcached::Limits { long: 0, ..self.server.memcached_limits() };
        match memcached::Parser::default().parse(bytes, &limits) {
            Ok(memcached::Parsed::Request { request, .. } | memcached::Parsed::Long { request, .. }) => Some(request),
            _ => None,
        }
    }

    /// Runs a stored request, or arranges for the shards it needs.
    fn retry(&mut self, client: &mut Client, pending: PendingRequest) {
        if self.must_pending_wait(client, &pending) {
            return self.hold(client, pending);
        }
        if self.redirect_pending(client, &pending) {
            return;
        }
        let (needs, can_run_remotely) = match (&pending, &client.protocol_state) {
            (PendingRequest::Resp(args), ProtocolState::Resp { session, .. }) => {
                let request = Request::new(args.args(), session.space(), &self.hasher);
                if client.list.is_none()
                    && request.needs_clients(session)
                    && !self.list_for(client.conn, session.client(self.now), &mut client.list)
                {
                    client.pending = Some(pending);
                    client.pending_replies += 1;
                    return;
                }
                // A request that paused here continues here.
                (self.needed_shards(&request, session), request.can_run_remotely() && !session.is_paused())
            }
            (PendingRequest::Memcached(bytes, _), _) => self
                .memcached_line(bytes)
                .map_or((ShardSet::NONE, false), |line| (self.memcached_needs(&line).0, !line.needs_all())),
            (PendingRequest::CommandError(..), _) => (ShardSet::NONE, false),
            _ => return,
        };
        if self.has(&needs) {
            self.run_pending(client, pending);
        } else {
            self.forward_or_wait(client, pending, needs, can_run_remotely);
        }
    }

    /// Handles a request of `client` that needs absent shards. Only a request that `can_run_remotely` is sent to
    /// another worker.
    fn forward_or_wait(
        &mut self,
        client: &mut Client,
        mut pending: PendingRequest,
        needs: ShardSet,
        can_run_remotely: bool,
    ) {
        let mut shards = needs.iter();
        if can_run_remotely
            && let (Some(owner), None) = (shards.next(), shards.next())
            && owner != self.worker
            && self.has_room_at(owner, client.round.as_deref())
        {
            // Long values stay in the memory of this worker's shard.
            if let Some(store) = &mut self.stores[self.worker] {
                pending.longs_mut().for_each(|long| store.lend(long));
            }
            let from = client.requester();
            let reply_use = client.session().map_or(ReplyUse::Text, ReplyUse::in_session);
            let memory = pending.memory();
            if let Some(batch) = self.batch_to(owner, &mut client.round, reply_use) {
                batch.push_stored(from, pending);
            }
            client.round.iter_mut().for_each(|round| round.sent += memory);
            return;
        }
        client.pending = Some(pending);
        // The requests of the round precede.
        if client.round.is_none() {
            client.pending_replies += 1;
            self.shard_borrow.queue(needs, Job::Request(client.conn));
        }
    }
}
