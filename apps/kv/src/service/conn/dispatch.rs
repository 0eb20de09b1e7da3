//! Requests are read, and run where their shards are.

use crate::commands::{self, Request, Session};
use crate::memcached::{self, Data, Flow};
use crate::resp::{self, OwnedArgs};
use crate::service::Kv;
use crate::service::conn::input::Stop;
use crate::service::conn::{Asked, Client, Speech};
use crate::service::fast_path::fast_parse::Known;
use crate::service::workers::shard_borrow::Job;
use crate::shards::{ShardSet, Shards, shard_of};
use crate::sink::Sink;
use crate::store::{LONG_THRESHOLD, Long};
use linerate_bypass::Transport;

/// What a client is told whose value there is no memory for.
const NO_ROOM: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";

/// Bytes of one client's requests that are read before others have their turn.
const TURN: u64 = 64 << 10;

impl Kv {
    /// Does what the client has asked for, as far as it can be done.
    pub(in crate::service) fn serve(&mut self, net: &mut impl Transport, client: &mut Client) {
        client.heard = self.now;
        client.has_more = false;
        if client.is_closing() {
            // Its input waits until all replies are sent, and closes its window. The lingering close then discards it.
            return client.close_if_done(net);
        }
        let before = self.host.tally.input;
        loop {
            if client.ahead.is_empty() {
                if !client.is_ready() || net.peek(client.conn).is_empty() {
                    break;
                }
                if self.host.tally.input - before > TURN {
                    client.has_more = true;
                    self.unfinished.push(client.conn);
                    break;
                }
                self.look_further(net, client);
            }
            if client.ahead.is_empty() || !self.serve_ahead(net, client) {
                self.serve_slice(net, client);
                self.reply(net, client);
            }
        }
        self.settle(net, client);
    }

    /// Goes on with what the client has asked for, for which something was to be waited for.
    pub(in crate::service) fn resume(&mut self, net: &mut impl Transport, client: &mut Client) {
        if let Some(asked) = client.next_asked() {
            self.ask_again(client, asked);
            self.reply(net, client);
        }
        if client.is_ready() && client.incoming.is_none() && !client.input.is_empty() {
            self.serve_input(client);
        }
        self.reply(net, client);
        self.serve(net, client);
    }

    /// Goes on with `client` after others have had their turn: with its request that has been done in part, if it has one.
    pub(in crate::service) fn take_turn(&mut self, net: &mut impl Transport, client: &mut Client) {
        if let Some(asked) = client.paused.take().filter(|_| !client.is_closing()) {
            self.ask_again(client, asked);
            self.reply(net, client);
            return self.resume(net, client);
        }
        self.serve(net, client);
    }

    /// Who sends more than is kept for it is disconnected, as Redis does.
    fn limit_input(&mut self, net: &mut impl Transport, client: &mut Client) {
        let queued = client.session().map_or(0, Session::queued_bytes);
        if (client.input.len() + queued) as u64 > self.settings().query {
            client.input = Vec::new();
            Self::disconnect_now(net, client);
        }
    }

    /// What the client is to be told has been; it may be all.
    fn settle(&mut self, net: &mut impl Transport, client: &mut Client) {
        self.limit_input(net, client);
        if client.errand.take().is_some() {
            client.awaits += 1;
        }
        client.close_if_done(net);
    }

    /// Sends what has been replied.
    #[inline]
    pub(in crate::service) fn reply(&mut self, net: &mut impl Transport, client: &mut Client) {
        if self.replies.is_cut() {
            // What is left of them makes no sense.
            self.replies.clear();
            if client.is_http {
                self.host.warn_of_http(net.peer_addr(client.conn), self.now);
            }
            return Self::disconnect_now(net, client);
        }
        if self.replies.is_empty() {
            return;
        }
        let is_late = !client.output.is_empty();
        self.host.wrote(self.replies.len());
        client.send(net, &mut self.replies);
        if is_late {
            self.limit_output(net, client);
        }
    }

    /// Who does not take its replies is disconnected. A value, however long, may wait for who has taken all before it.
    #[cold]
    fn limit_output(&mut self, net: &mut impl Transport, client: &mut Client) {
        let most = self.settings().output;
        if most > 0 && client.output.bytes() as u64 > most {
            Self::disconnect_now(net, client);
        }
    }

    fn disconnect_now(net: &mut impl Transport, client: &mut Client) {
        client.finish();
        net.abort(client.conn);
    }

    /// Runs the requests in `data` that begin before `end`. Returns how many bytes they were, and why it were no more.
    pub(in crate::service) fn run_all(&mut self, client: &mut Client, data: &[u8], end: usize) -> (usize, Stop) {
        match client.speech {
            Speech::Resp { .. } => self.run_resp(client, data, end),
            Speech::Memcached { .. } => self.run_memcached(client, data, end),
        }
    }

    fn run_resp(&mut self, client: &mut Client, data: &[u8], end: usize) -> (usize, Stop) {
        let mut used = 0;
        let bulk = self.settings().bulk as usize;
        while client.is_ready() && used < end && !self.replies.are_many() {
            let Speech::Resp { session, parser, has_no_room } = &mut client.speech else { break };
            let rest = &data[used..];
            if (used > 0 || self.stores.len() > 1)
                && session.is_plain()
                && !parser.is_within()
                && let Some((known, key)) = Known::of(rest)
            {
                let redis = Some((session.space(), session.protocol()));
                if let Some(worker) = self.elsewhere(session.space(), key, client.errand) {
                    if let Some(errand) = self.errand_to(worker, &mut client.errand, client.conn, redis) {
                        let len = known.len;
                        errand.text.extend_from_slice(&rest[..len]);
                        used += len;
                        continue;
                    }
                } else if used > 0 && client.errand.is_none() {
                    // What is recognised behind another request is fetched ahead.
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
                    self.refuse(client, format!("-ERR {error}\r\n").as_bytes(), true);
                    return (data.len(), Stop::Pause);
                }
            };
            let text = &data[used..used + len];
            let args = parser.args(text);
            let whole = Request::materialized(args);
            let args = whole.as_ref().map_or(args, OwnedArgs::args);
            used += len;
            if std::mem::take(has_no_room) && !args.get(0).is_some_and(commands::is_http) {
                session.fail_transaction();
                parser.forget();
                self.refuse(client, NO_ROOM, false);
                continue;
            }
            if args.is_empty() {
                continue;
            }
            let request = Request::new(args, session.space(), &self.hasher);
            let needs = self.needed_shards(&request, session);
            if client.errand.is_none() && self.has(&needs) {
                if request.needs_clients(session) && !self.list_for(client.conn, session.client(self.now)) {
                    // It is under way.
                    client.asked = Some(Asked::Resp(args.to_owned()));
                    client.awaits += 1;
                } else {
                    self.run(&request, session);
                    if session.is_paused() {
                        client.paused = Some(Asked::Resp(args.to_owned()));
                        self.unfinished.push(client.conn);
                    }
                }
                let is_closing = session.is_closing();
                parser.forget();
                if is_closing {
                    self.finish_session(client);
                }
                continue;
            }
            let is_portable = request.can_run_remotely();
            if is_portable && args.longs().len() == 0 && whole.is_none() {
                let redis = Some((session.space(), session.protocol()));
                if let Some(errand) = self.errand_for(&mut client.errand, client.conn, redis, &needs) {
                    errand.text.extend_from_slice(text);
                    continue;
                }
            }
            let asked = Asked::Resp(args.to_owned());
            parser.forget();
            self.ask(client, asked, needs, is_portable);
        }
        (used, Stop::Pause)
    }

    fn run_memcached(&mut self, client: &mut Client, data: &[u8], end: usize) -> (usize, Stop) {
        let mut used = 0;
        let limits = self.host.memcached_limits();
        while client.is_ready() && used < end && !self.replies.are_many() {
            let Speech::Memcached { parser } = &mut client.speech else { break };
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
                Err(memcached::LongLine) => {
                    self.refuse(client, b"", true);
                    return (data.len(), Stop::Pause);
                }
            };
            used += len;
            let needs = self.memcached_needs(&request);
            if client.errand.is_none() && self.has(&needs) {
                let flow = self.run_text(&request, value);
                self.follow(client, flow);
                continue;
            }
            let (text, is_portable) = (&rest[..len], !request.needs_all());
            let value = match value {
                Data::Long(long) => Data::Long(long),
                Data::Full => Data::Full,
                // It was received apart, too.
                Data::Unended if memchr::memchr(b'\n', text) == Some(len - 1) => Data::Unended,
                _ => {
                    if is_portable && let Some(errand) = self.errand_for(&mut client.errand, client.conn, None, &needs)
                    {
                        errand.text.extend_from_slice(text);
                        continue;
                    }
                    Data::Short(b"")
                }
            };
            self.ask(client, Asked::Memcached(text.to_vec(), value), needs, is_portable);
        }
        (used, Stop::Pause)
    }

    /// Says `what` to a request of `client`, behind what its requests before it are answered with.
    fn refuse(&mut self, client: &mut Client, what: &[u8], closes: bool) {
        if client.errand.is_some() {
            client.asked = Some(Asked::CommandError(what.to_vec(), closes));
            return;
        }
        self.replies.put(what);
        if closes {
            client.finish();
        }
    }

    /// Reads no more requests of `client`, whose session is closing.
    #[cold]
    fn finish_session(&mut self, client: &mut Client) {
        let is_http = client.session().is_some_and(Session::is_http);
        self.follow(client, if is_http { Flow::Reset } else { Flow::Close });
    }

    /// Does with the connection of `client` what comes of a request.
    #[inline]
    fn follow(&mut self, client: &mut Client, flow: Flow) {
        match flow {
            Flow::On => {}
            Flow::Close => client.finish(),
            Flow::Reset => {
                client.is_http = true;
                client.finish();
                self.replies.cut();
            }
        }
    }

    /// The shards that a request needs.
    fn needed_shards(&self, request: &Request<'_>, session: &Session) -> ShardSet {
        // One worker never lends its shard; and who has not said the password is refused before any shard is looked at.
        if self.stores.len() == 1 || !session.is_authenticated() {
            return ShardSet::NONE;
        }
        request.needed_shards(session, &self.hasher, self.stores.len())
    }

    /// The shards that a request of a memcached client needs.
    pub(in crate::service) fn memcached_needs(&self, request: &memcached::Request<'_>) -> ShardSet {
        let count = self.stores.len();
        if count == 1 {
            return ShardSet::NONE;
        }
        if request.needs_all() {
            return ShardSet::all(count);
        }
        let mut needs = ShardSet::NONE;
        request.each_key(|key| needs.add(shard_of(self.hasher.key(memcached::SPACE, key).hash(), count)));
        needs
    }

    /// The worker that does what is asked for under `key`, if that is another: it is unless its shard is here, and no request
    /// before it is on its way to the worker `open`.
    #[inline]
    fn elsewhere(&self, space: u8, key: &[u8], open: Option<usize>) -> Option<usize> {
        if self.stores.len() == 1 {
            return None;
        }
        let shard = shard_of(self.hasher.key(space, key).hash(), self.stores.len());
        (shard != self.worker && (open.is_some() || self.stores[shard].is_none())).then_some(shard)
    }

    /// Whether all shards of `needed_shards` are there.
    #[inline]
    pub(in crate::service) fn has(&self, needs: &ShardSet) -> bool {
        needs.iter().all(|shard| self.stores[shard].is_some())
    }

    /// Runs `request`, whose shards are there.
    #[inline]
    pub(in crate::service) fn run_untimed(&mut self, request: &Request<'_>, session: &mut Session) {
        let mut cx = commands::Context {
            shards: &mut Shards::new(&mut self.stores),
            hasher: &self.hasher,
            session,
            server: &mut self.host,
            stats: &mut self.stats,
            now: self.now,
        };
        request.run(&mut cx, &mut self.replies);
    }

    /// Runs `request` of a memcached client, whose shards are there.
    #[inline]
    pub(in crate::service) fn run_text_untimed(&mut self, request: &memcached::Request<'_>, value: Data<'_>) -> Flow {
        if self.host.flush.1.is_some_and(|at| at <= self.now) {
            self.tend_shard();
        }
        let mut cx = memcached::Context {
            limits: self.host.memcached_limits(),
            shards: &mut Shards::new(&mut self.stores),
            server: &mut self.host,
            counts: &mut self.counts,
            now: self.now,
        };
        memcached::execute(request, value, &mut cx, &mut self.replies)
    }

    /// Runs a request that was kept, whose shards are there, for `client`.
    pub(in crate::service) fn run_asked(&mut self, client: &mut Client, asked: Asked) {
        match (asked, &mut client.speech) {
            (Asked::Resp(args), Speech::Resp { session, .. }) => {
                if let Some(list) = client.list.take() {
                    self.host.show(list);
                }
                self.run(&Request::new(args.args(), session.space(), &self.hasher), session);
                if session.is_paused() {
                    client.paused = Some(Asked::Resp(args));
                    self.unfinished.push(client.conn);
                } else if session.is_closing() {
                    self.finish_session(client);
                }
            }
            (Asked::Memcached(bytes, value), _) => {
                if let Some((_, flow)) = self.run_bytes(&bytes, value) {
                    self.follow(client, flow);
                }
            }
            (Asked::CommandError(what, closes), _) => self.refuse(client, &what, closes),
            (Asked::Resp(_), Speech::Memcached { .. }) => {}
        }
    }

    /// Runs the request of a memcached client that `bytes` begin with, but for data received apart. Returns how long it is, and
    /// whether the connection goes on.
    pub(in crate::service) fn run_bytes(&mut self, bytes: &[u8], apart: Data<'static>) -> Option<(usize, Flow)> {
        let mut parser = memcached::Parser::default();
        match apart {
            Data::Long(long) => parser.give(long, *b"\r\n"),
            Data::Unended => parser.give(Long::empty(), [0; 2]),
            Data::Full => parser.refuse(0),
            Data::Short(_) | Data::TooLarge => {}
        }
        match parser.parse(bytes, &self.host.memcached_limits()) {
            Ok(memcached::Parsed::Request { request, data, len }) => Some((len, self.run_text(&request, data))),
            _ => None,
        }
    }

    /// Runs a request that was kept, or sees to it that it can be run.
    fn ask_again(&mut self, client: &mut Client, asked: Asked) {
        let (needs, is_portable) = match (&asked, &client.speech) {
            (Asked::Resp(args), Speech::Resp { session, .. }) => {
                let request = Request::new(args.args(), session.space(), &self.hasher);
                if client.list.is_none()
                    && request.needs_clients(session)
                    && !self.list_for(client.conn, session.client(self.now))
                {
                    client.asked = Some(asked);
                    client.awaits += 1;
                    return;
                }
                // What has been done in part here goes on here.
                (self.needed_shards(&request, session), request.can_run_remotely() && !session.is_paused())
            }
            (Asked::Memcached(bytes, _), _) => {
                let mut needs = ShardSet::NONE;
                let mut is_portable = false;
                // Without its long data it goes on; its line is all that counts.
                if let Ok(memcached::Parsed::Request { request, .. } | memcached::Parsed::Long { request, .. }) =
                    memcached::Parser::default()
                        .parse(bytes, &memcached::Limits { long: 0, ..self.host.memcached_limits() })
                {
                    (needs, is_portable) = (self.memcached_needs(&request), !request.needs_all());
                }
                (needs, is_portable)
            }
            (Asked::CommandError(..), _) => (ShardSet::NONE, false),
            _ => return,
        };
        if self.has(&needs) {
            self.run_asked(client, asked);
        } else {
            self.ask(client, asked, needs, is_portable);
        }
    }

    /// Sees to a request of `client` that needs shards which are not here. Only one that `can_run_remotely` can be run elsewhere.
    fn ask(&mut self, client: &mut Client, mut asked: Asked, needs: ShardSet, is_portable: bool) {
        let redis = client.redis();
        if is_portable && self.errand_for(&mut client.errand, client.conn, redis, &needs).is_some() {
            // Long values lie in our shard's memory, and stay there.
            if let Some(store) = &mut self.stores[self.worker] {
                asked.longs_mut().for_each(|long| store.lend(long));
            }
            if let Some(errand) = client.errand.and_then(|worker| self.errands[worker].as_mut()) {
                errand.last = Some(asked);
            }
            return;
        }
        client.asked = Some(asked);
        // If there is an errand, it comes first.
        if client.errand.is_none() {
            client.awaits += 1;
            self.lending.queue(needs, Job::Ask(client.conn));
        }
    }
}
