//! Requests are read, and run where their shards are.

use super::Kv;
use super::client::{Asked, Client, Incoming, Speech};
use super::lending::Job;
use super::messages::Message;
use super::quick::Known;
use crate::commands::{self, Request, Session};
use crate::memcached::{self, Data, Flow};
use crate::resp::{self, OwnedArgs};
use crate::shards::{ShardSet, Shards, shard_of};
use crate::sink::Sink;
use crate::store::{LONG, Long, LongWriter};
use linerate_bypass::Transport;

/// What a client is told whose value there is no memory for.
const NO_ROOM: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";

/// Why no more requests of a client are read for now.
enum Stop {
    /// There are no more.
    Empty,
    /// One goes on with a long value, which begins so far behind the others.
    Long { at: usize, incoming: Incoming },
    /// Something is to be waited for, or the client is closed.
    Pause,
}

impl Kv {
    /// Does what the client has asked for, as far as it can be done.
    pub(super) fn serve(&mut self, net: &mut impl Transport, client: &mut Client) {
        client.heard = self.now;
        if client.is_closing() {
            // What it still sends is of no interest.
            net.consume(client.conn, usize::MAX);
            return client.close_if_done(net);
        }
        while client.is_ready() && !net.peek(client.conn).is_empty() {
            self.serve_slice(net, client);
            self.reply(net, client);
        }
        self.settle(net, client);
    }

    /// Goes on with what the client has asked for, for which something was to be waited for.
    pub(super) fn resume(&mut self, net: &mut impl Transport, client: &mut Client) {
        if let Some(asked) = client.next_asked() {
            self.ask_again(client, asked);
        }
        if client.is_ready() && client.incoming.is_none() && !client.input.is_empty() {
            self.serve_input(client);
        }
        self.reply(net, client);
        self.serve(net, client);
    }

    /// What the client is to be told has been; it may be all.
    fn settle(&mut self, net: &mut impl Transport, client: &mut Client) {
        if let Some(errand) = client.errand.take() {
            client.waits = true;
            self.outbox.send(errand.worker, Message::Errand(errand));
        }
        client.close_if_done(net);
    }

    /// Sends what has been replied.
    pub(super) fn reply(&mut self, net: &mut impl Transport, client: &mut Client) {
        if self.replies.is_empty() {
            return;
        }
        self.host.wrote(self.replies.len());
        client.send(net, &mut self.replies);
        let most = self.settings().output;
        if most > 0 && client.output.bytes() as u64 > most {
            net.abort(client.conn);
        }
    }

    /// Takes in the first slice of what `client` has sent.
    fn serve_slice(&mut self, net: &mut impl Transport, client: &mut Client) {
        let slice = net.peek(client.conn);
        let len = slice.len();
        if let Some(incoming) = &mut client.incoming {
            let taken = incoming.take(slice);
            if incoming.left == 0 {
                self.receive(client);
            }
            self.host.read(taken);
            return net.consume(client.conn, taken);
        }
        if client.input.is_empty() {
            let (used, stop) = self.run_all(client, slice);
            let taken = match stop {
                Stop::Empty => {
                    client.input.extend_from_slice(&slice[used..]);
                    len
                }
                Stop::Long { at, mut incoming } => {
                    let at = used + at;
                    client.input.extend_from_slice(&slice[used..at]);
                    let taken = at + incoming.take(&slice[at..]);
                    client.incoming = Some(incoming);
                    taken
                }
                Stop::Pause => used,
            };
            self.host.read(taken);
            return net.consume(client.conn, taken);
        }
        client.input.extend_from_slice(slice);
        self.host.read(len);
        net.consume(client.conn, len);
        self.serve_input(client);
    }

    /// Runs the requests that are kept.
    fn serve_input(&mut self, client: &mut Client) {
        let mut input = std::mem::take(&mut client.input);
        let (used, stop) = self.run_all(client, &input);
        if let Stop::Long { at, mut incoming } = stop {
            let taken = incoming.take(&input[used + at..]);
            input.drain(used + at..used + at + taken);
            client.incoming = Some(incoming);
        }
        input.drain(..used);
        input.shrink_to(2 * LONG);
        client.input = input;
    }

    /// The long value that was coming has come.
    fn receive(&mut self, client: &mut Client) {
        let Some(Incoming { writer, end, .. }) = client.incoming.take() else { return };
        let long = writer.map(LongWriter::finish);
        match (&mut client.speech, long) {
            (Speech::Resp { parser, has_no_room, .. }, long) => {
                *has_no_room |= long.is_none();
                parser.give(long.unwrap_or_else(Long::empty));
            }
            (Speech::Memcached { parser }, Some(long)) => parser.give(long, end),
            (Speech::Memcached { parser }, None) => parser.refuse(0),
        }
        self.serve_input(client);
    }

    /// A value of `len` bytes that goes on begins `at` so far. If no shard is here to ask for memory, as ours is lent, it is
    /// read like any other.
    fn long(&mut self, at: usize, len: usize) -> Stop {
        let Some(store) = self.stores.iter_mut().flatten().next() else { return Stop::Empty };
        let writer = store.long(len, self.now).ok();
        Stop::Long { at, incoming: Incoming { writer, left: len + 2, end: [0; 2] } }
    }

    /// Runs the requests in `data`. Returns how many bytes they were, and why it were no more.
    fn run_all(&mut self, client: &mut Client, data: &[u8]) -> (usize, Stop) {
        match client.speech {
            Speech::Resp { .. } => self.run_resp(client, data),
            Speech::Memcached { .. } => self.run_memcached(client, data),
        }
    }

    fn run_resp(&mut self, client: &mut Client, data: &[u8]) -> (usize, Stop) {
        let mut used = 0;
        let bulk = self.settings().bulk as usize;
        while client.is_ready() {
            let is_plain = self.is_plain(&client.speech);
            let Speech::Resp { session, parser, has_no_room } = &mut client.speech else { break };
            if is_plain {
                let rest = &data[used..];
                let found = match client.ahead.next() {
                    Some(at) => Some(self.ahead[at]),
                    None => {
                        Known::of(rest).map(|known| (known, self.keys.key(session.space(), known.key(rest)).hash()))
                    }
                };
                if let Some((known, hash)) = found {
                    let key = self.keys.known(session.space(), known.key(rest), hash);
                    if self.run_known(&known, &key, rest, session) {
                        used += known.len as usize;
                        continue;
                    }
                }
            }
            client.ahead = 0..0;
            let parsed = parser.parse(&data[used..], session.limits(bulk, LONG));
            let len = match parsed {
                Ok(resp::Parsed::Request(len)) => len,
                Ok(resp::Parsed::Partial(_)) => return (used, Stop::Empty),
                Ok(resp::Parsed::Long { at, len }) => return (used, self.long(at, len)),
                Err(error) => {
                    self.refuse(client, format!("-ERR {error}\r\n").as_bytes(), true);
                    return (data.len(), Stop::Pause);
                }
            };
            let args = parser.args(&data[used..]);
            let whole = Request::whole(args);
            let args = whole.as_ref().map_or(args, OwnedArgs::args);
            used += len;
            if std::mem::take(has_no_room) {
                session.spoil();
                parser.forget();
                self.refuse(client, NO_ROOM, false);
                continue;
            }
            if !args.is_empty() {
                let request = Request::new(args, session.space(), &self.keys);
                let needs = self.needs(&request, session);
                let has_all = client.errand.is_none() && self.has(&needs);
                if has_all && (!request.needs_clients(session) || self.list_for(client.conn, session.client(self.now)))
                {
                    self.run(&request, session);
                    let is_closing = session.is_closing();
                    parser.forget();
                    if is_closing {
                        client.finish();
                    }
                    continue;
                } else {
                    let is_portable = request.is_portable();
                    let asked = Asked::Resp(args.to_owned());
                    parser.forget();
                    if has_all {
                        // The list of clients is under way.
                        (client.asked, client.waits) = (Some(asked), true);
                    } else {
                        self.ask(client, asked, needs, is_portable);
                    }
                    continue;
                }
            }
            parser.forget();
        }
        (used, Stop::Pause)
    }

    fn run_memcached(&mut self, client: &mut Client, data: &[u8]) -> (usize, Stop) {
        let mut used = 0;
        let limits = self.host.memcached_limits();
        while client.is_ready() {
            let Speech::Memcached { parser } = &mut client.speech else { break };
            let rest = &data[used..];
            let (request, value, len) = match parser.parse(rest, &limits) {
                Ok(memcached::Parsed::Request { request, data, len }) => (request, data, len),
                Ok(memcached::Parsed::Skip(len)) => {
                    used += len;
                    continue;
                }
                Ok(memcached::Parsed::Partial(_)) => return (used, Stop::Empty),
                Ok(memcached::Parsed::Long { at, len, .. }) => return (used, self.long(at, len)),
                Err(memcached::LongLine) => {
                    self.refuse(client, b"", true);
                    return (data.len(), Stop::Pause);
                }
            };
            used += len;
            let needs = self.memcached_needs(&request);
            if client.errand.is_none() && self.has(&needs) {
                if self.run_text(&request, value) == Flow::Close {
                    client.finish();
                }
                continue;
            }
            let value = match value {
                Data::Short(_) => Data::Short(b""),
                Data::Long(long) => Data::Long(long),
                Data::Unended => Data::Unended,
                Data::TooLarge => Data::TooLarge,
                Data::Full => Data::Full,
            };
            let is_portable = !request.needs_all();
            self.ask(client, Asked::Memcached(rest[..len].to_vec(), value), needs, is_portable);
        }
        (used, Stop::Pause)
    }

    /// Says `what` to a request of `client`, behind what its requests before it are answered with.
    fn refuse(&mut self, client: &mut Client, what: &[u8], closes: bool) {
        if client.errand.is_some() {
            client.asked = Some(Asked::Refused(what.to_vec(), closes));
            return;
        }
        self.replies.put(what);
        if closes {
            client.finish();
        }
    }

    /// The shards that a request needs.
    fn needs(&self, request: &Request<'_>, session: &Session) -> ShardSet {
        // One worker never lends its shard; and who has not said the password is refused before any shard is looked at.
        if self.stores.len() == 1 || !session.is_authenticated() {
            return ShardSet::NONE;
        }
        request.needs(session, &self.keys, self.stores.len())
    }

    /// The shards that a request of a memcached client needs.
    fn memcached_needs(&self, request: &memcached::Request<'_>) -> ShardSet {
        let count = self.stores.len();
        if count == 1 {
            return ShardSet::NONE;
        }
        if request.needs_all() {
            return ShardSet::all(count);
        }
        let mut needs = ShardSet::NONE;
        request.each_key(|key| needs.add(shard_of(self.keys.key(memcached::SPACE, key).hash(), count)));
        needs
    }

    /// Whether all shards of `needs` are there.
    #[inline]
    fn has(&self, needs: &ShardSet) -> bool {
        needs.iter().all(|shard| self.stores[shard].is_some())
    }

    /// Runs `request`, whose shards are there.
    pub(super) fn run(&mut self, request: &Request<'_>, session: &mut Session) {
        let mut cx = commands::Context {
            shards: &mut Shards::new(&mut self.stores),
            keys: &self.keys,
            session,
            server: &mut self.host,
            stats: &mut self.stats,
            now: self.now,
        };
        request.run(&mut cx, &mut self.replies);
    }

    /// Runs `request` of a memcached client, whose shards are there.
    pub(super) fn run_text(&mut self, request: &memcached::Request<'_>, value: Data<'_>) -> Flow {
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
    pub(super) fn run_asked(&mut self, client: &mut Client, asked: Asked) {
        match (asked, &mut client.speech) {
            (Asked::Resp(args), Speech::Resp { session, .. }) => {
                if let Some(list) = client.list.take() {
                    self.host.show(list);
                }
                self.run(&Request::new(args.args(), session.space(), &self.keys), session);
                if session.is_closing() {
                    client.finish();
                }
            }
            (Asked::Memcached(bytes, value), _) => {
                if self.run_bytes(&bytes, value) == Flow::Close {
                    client.finish();
                }
            }
            (Asked::Refused(what, closes), _) => self.refuse(client, &what, closes),
            (Asked::Resp(_), Speech::Memcached { .. }) => {}
        }
    }

    /// Runs the request of a memcached client that `bytes` are, but for data received apart.
    pub(super) fn run_bytes(&mut self, bytes: &[u8], value: Data<'static>) -> Flow {
        let mut parser = memcached::Parser::default();
        match value {
            Data::Long(long) => parser.give(long, *b"\r\n"),
            Data::Unended => parser.give(Long::empty(), [0; 2]),
            Data::Full => parser.refuse(0),
            // They are in the bytes, or their length is.
            Data::Short(_) | Data::TooLarge => {}
        }
        match parser.parse(bytes, &self.host.memcached_limits()) {
            Ok(memcached::Parsed::Request { request, data, .. }) => self.run_text(&request, data),
            _ => Flow::On,
        }
    }

    /// Runs a request that was kept, or sees to it that it can be run.
    fn ask_again(&mut self, client: &mut Client, asked: Asked) {
        let (needs, is_portable) = match (&asked, &client.speech) {
            (Asked::Resp(args), Speech::Resp { session, .. }) => {
                let request = Request::new(args.args(), session.space(), &self.keys);
                if client.list.is_none()
                    && request.needs_clients(session)
                    && !self.list_for(client.conn, session.client(self.now))
                {
                    (client.asked, client.waits) = (Some(asked), true);
                    return;
                }
                (self.needs(&request, session), request.is_portable())
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
            (Asked::Refused(..), _) => (ShardSet::NONE, false),
            _ => return,
        };
        if self.has(&needs) {
            self.run_asked(client, asked);
        } else {
            self.ask(client, asked, needs, is_portable);
        }
    }

    /// Sees to a request of `client` that needs shards which are not here. Only one that `is_portable` can be run elsewhere.
    fn ask(&mut self, client: &mut Client, asked: Asked, needs: ShardSet, is_portable: bool) {
        let mut shards = needs.iter();
        let (first, others) = (shards.next(), shards.next());
        match (first, others, &mut client.errand) {
            // There is nothing to wait for but those before it.
            (Some(worker), None, errand) if is_portable && worker != self.worker => match errand {
                Some(errand) if errand.worker == worker && errand.has_room() => errand.requests.push(asked),
                Some(_) => client.asked = Some(asked),
                None => {
                    let mut new = self.idle_errands.pop().unwrap_or_default();
                    new.begin(client, self.worker, worker);
                    new.requests.push(asked);
                    client.errand = Some(new);
                }
            },
            (_, _, Some(_)) => client.asked = Some(asked),
            _ => {
                client.asked = Some(asked);
                client.waits = true;
                self.lending.queue(needs, Job::Ask(client.conn));
            }
        }
    }
}
