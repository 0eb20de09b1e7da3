//! The commands of Redis: from a request's arguments to its reply.
//!
//! Whoever serves a connection keeps a [`Session`] for it, and for each request of its client
//!
//! 1. makes the arguments [whole](Request::whole), if there are long ones that have to be,
//! 2. makes a [`Request`] of them: its key is hashed, so that what it leads to can be fetched ahead,
//! 3. sees to it that the shards are there that the request [needs](Request::needs); before it the requests that came before it
//!    have run, for a transaction or another database changes what is needed,
//! 4. [runs](Request::run) it, and closes the connection if the session is [closing](Session::is_closing) then.
//!
//! In the end it lets the session's [watched keys go](Session::unwatch).

mod admin;
mod data;
mod error;
mod options;
mod server;
mod session;
mod table;

#[cfg(test)]
mod testing;

pub use admin::slowlog::SlowRequest;
pub use error::Refused;
pub use server::{Change, Rejected, Server, Settings, Stats, Totals};
pub use session::{Client, Session};
pub use table::{Command, Quick};

use crate::resp::{Args, OwnedArgs, Reply};
use crate::shards::{ShardSet, Shards, shard_of};
use crate::sink::Sink;
use crate::store::{Key, KeyHasher, Value};
use error::{NO_AUTH, TOO_LONG};
use session::{Paused, Queued};
use table::{Flags, Touch};

/// Databases, of which each client has one.
pub const DATABASES: u8 = 16;

/// What there is to run a command with.
pub struct Context<'a, 's> {
    /// The shards that it needs; others may be there, too.
    pub shards: &'a mut Shards<'s>,
    /// Makes keys.
    pub hasher: &'a KeyHasher,
    /// The client.
    pub session: &'a mut Session,
    /// The server around.
    pub server: &'a mut dyn Server,
    /// What is counted.
    pub stats: &'a mut Stats,
    /// Milliseconds since 1970.
    pub now: u64,
}

/// What a client asks for.
#[derive(Debug)]
pub struct Request<'a> {
    /// The command, if there is such a one with so many arguments.
    command: Result<&'static Command, Refused>,
    args: Args<'a>,
    /// Its first key.
    key: Option<Key<'a>>,
    /// It is one of a transaction, which is done at one go.
    is_queued: bool,
}

impl<'a> Request<'a> {
    /// A copy of the arguments to make a request of instead, if a long one was received apart of which that command wants the
    /// bytes: most but `SET` and its like do.
    pub fn whole(args: Args<'_>) -> Option<OwnedArgs> {
        (args.longs().len() > 0 && !takes_longs(table::find(args).ok(), args)).then(|| args.to_whole())
    }

    /// What a client asks for by `args`, of which there is one at least. Its keys are expected to be of the keyspace `space`,
    /// the [client's](Session::space) when the commands before it have run. Long arguments are [whole](Self::whole) where they
    /// have to be; otherwise it is refused.
    #[inline]
    pub fn new(args: Args<'a>, space: u8, hasher: &KeyHasher) -> Self {
        let mut command = table::find(args);
        if args.longs().len() > 0 && command.is_ok() && !takes_longs(command.as_ref().ok().copied(), args) {
            command = Err(TOO_LONG);
        }
        let key = match &command {
            Ok(command) if command.first > 0 => Some(hasher.key(space, args.at(command.first.into()))),
            _ => None,
        };
        Request { command, args, key, is_queued: false }
    }

    /// The command of a transaction, which was found before.
    fn queued(queued: &'a Queued) -> Self {
        Request { command: Ok(queued.command), args: queued.args.args(), key: None, is_queued: true }
    }

    /// Bytes of the names that are every other argument from `first` on, and of the values behind them that are to be stored. A
    /// long value that was received apart is stored already, but perhaps in another of the stores, if there are several.
    fn sizes(&self, first: usize, has_several: bool) -> impl Iterator<Item = (usize, usize)> {
        (first..self.args.len()).step_by(2).map(move |at| {
            let value = match self.args.value(at + 1) {
                Value::Short(value) => value.len(),
                Value::Long(long) if has_several => long.len(),
                Value::Long(_) => 0,
            };
            (self.args.at(at).len(), value)
        })
    }

    /// The command.
    pub fn command(&self) -> Option<&'static Command> {
        self.command.as_ref().ok().copied()
    }

    /// Which of `count` shards have to be there when it is run for `session`.
    pub fn needs(&self, session: &Session, hasher: &KeyHasher, count: usize) -> ShardSet {
        match &self.command {
            Ok(command) if session.transaction.is_none() || command.flags.has(Flags::AT_ONCE) => {
                let mut needed = ShardSet::NONE;
                let mut space = session.space;
                self.touches(command, session, &mut space, hasher, count, &mut needed);
                needed
            }
            // It is queued, or refused.
            _ => ShardSet::NONE,
        }
    }

    /// Adds to `needed` the shards that it needs in the database `space`, which it may change.
    fn touches(
        &self,
        command: &Command,
        session: &Session,
        space: &mut u8,
        hasher: &KeyHasher,
        count: usize,
        needed: &mut ShardSet,
    ) {
        let mut add = |space: u8, bytes: &[u8]| needed.add(shard_of(hasher.key(space, bytes).hash(), count));
        match command.touch {
            Touch::Nothing => {}
            Touch::Keys => match &self.key {
                Some(key) if command.last == command.first as i8 && key.space == *space => {
                    needed.add(shard_of(key.hash(), count));
                }
                _ => table::key_places(command, self.args.len()).for_each(|at| add(*space, &self.args[at])),
            },
            Touch::Copy => {
                add(*space, &self.args[1]);
                add(data::keys::copy_space(self.args, *space).unwrap_or(*space), &self.args[2]);
            }
            Touch::Cursor => needed.add(data::scan::shard(&self.args[1], count).unwrap_or(0)),
            // The handler looks at one shard after the other.
            Touch::EachShard if self.is_done_in_pieces(session) => needed.add(match &session.paused {
                Some(Paused::Keys(progress)) => progress.shard,
                _ => 0,
            }),
            Touch::All | Touch::EachShard => *needed = ShardSet::all(count),
            Touch::Select => *space = session::connection::selected(&self.args[1]).unwrap_or(*space),
            Touch::Watched => needed.extend(session.watches(count)),
            Touch::Queue => {
                needed.extend(session.watches(count));
                // Nothing of a spoiled one is done.
                let transaction = session.transaction.iter().filter(|transaction| !transaction.is_spoiled);
                for queued in transaction.flat_map(|transaction| &transaction.queue) {
                    Request::queued(queued).touches(queued.command, session, space, hasher, count, needed);
                }
            }
        }
    }

    /// Whether it may be run for another session in the same database: it is about its keys alone.
    #[inline]
    pub fn is_portable(&self) -> bool {
        self.command().is_some_and(|command| command.touch == Touch::Keys && !command.flags.has(Flags::TRANSACTION))
    }

    /// Returns true if its handler may [pause](Session::is_paused) the session.
    fn is_done_in_pieces(&self, session: &Session) -> bool {
        session.may_pause && !self.is_queued
    }

    /// Whether it asks for the [list of connections](Server::clients).
    pub fn needs_clients(&self, session: &Session) -> bool {
        let asks = |command: &Command| command.flags.has(Flags::CLIENTS);
        match &self.command {
            Ok(command) if command.touch == Touch::Queue => {
                session.transaction.iter().flat_map(|transaction| &transaction.queue).any(|queued| asks(queued.command))
            }
            Ok(command) => asks(command),
            Err(_) => false,
        }
    }

    /// Runs it, and replies.
    pub fn run(&self, cx: &mut Context<'_, '_>, sink: &mut dyn Sink) {
        let mut reply = Reply::new(sink, cx.session.protocol);
        let command = match &self.command {
            Ok(command) => *command,
            Err(_) if is_http(self.args.at(0)) => {
                (cx.session.is_closing, cx.session.is_http) = (true, true);
                return;
            }
            Err(refused) => {
                cx.session.spoil();
                return cx.refuse(refused, &mut reply);
            }
        };
        cx.session.used = cx.now;
        cx.session.last = Some(command);
        if !cx.session.is_authenticated && !command.flags.has(Flags::NO_AUTH) {
            cx.session.spoil();
            return cx.refuse(&NO_AUTH, &mut reply);
        }
        if let Some(transaction) = &mut cx.session.transaction
            && !command.flags.has(Flags::AT_ONCE)
        {
            transaction.push(Queued { command, args: self.args.to_owned() });
            return reply.simple("QUEUED");
        }
        self.execute(command, cx, &mut reply);
    }

    fn execute(&self, command: &'static Command, cx: &mut Context<'_, '_>, reply: &mut Reply<'_>) {
        cx.stats.commands += u64::from(!cx.session.is_paused());
        if command.last != command.first as i8 && command.touch == Touch::Keys {
            let places = table::key_places(command, self.args.len());
            let hash = |at| cx.hasher.key(cx.session.space, self.args.at(at)).hash();
            cx.shards.fetch_ahead(places.map(hash));
        }
        if let Err(refused) = (command.run)(cx, self, reply) {
            cx.refuse(&refused, reply);
        }
    }

    /// The number of its arguments is not what the command takes.
    fn arity(&self) -> Refused {
        Refused::arity(self.command.as_ref().map_or("", |command| command.name))
    }
}

/// Returns true if `name` starts a line of an HTTP request instead of a command (`securityWarningCommand` of Redis).
///
/// A web page can have a browser send such a request to any port. Its lines are unknown commands up to the body, whose commands
/// would be run. Redis compares C strings, which end at a zero.
pub(crate) fn is_http(name: &[u8]) -> bool {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Whether `command`, if there is one, takes the long ones of `args` as they are; what is unknown is only shown.
fn takes_longs(command: Option<&Command>, args: Args<'_>) -> bool {
    command.is_none_or(|command| args.longs().all(|at| command.takes_long(at)))
}

impl Context<'_, '_> {
    /// The argument at `at` as a key.
    #[inline]
    fn key<'k>(&self, request: &Request<'k>, at: usize) -> Key<'k> {
        match (&request.key, &request.command) {
            (Some(key), Ok(command)) if at == usize::from(command.first) && key.space == self.session.space => *key,
            _ => self.hasher.key(self.session.space, request.args.at(at)),
        }
    }

    /// Counts a key that was looked for.
    #[inline]
    fn looked(&mut self, is_found: bool) {
        self.stats.hits += u64::from(is_found);
        self.stats.misses += u64::from(!is_found);
    }

    #[cold]
    fn refuse(&mut self, refused: &Refused, reply: &mut Reply<'_>) {
        self.stats.errors += 1;
        reply.error(refused.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Limits, Parsed, Parser};
    use crate::store::{Config, Store};

    /// What `f` makes of the arguments `words`, the last of which is received apart.
    fn with_long<T>(words: &[&str], f: impl FnOnce(Args<'_>, &KeyHasher) -> T) -> T {
        let config = Config::new(4 << 20);
        let mut store = Store::new(&config, 0);
        let (last, words) = words.split_last().unwrap();
        let mut data = format!("*{}\r\n", words.len() + 1);
        words.iter().for_each(|word| data += &format!("${}\r\n{word}\r\n", word.len()));
        data += &format!("${}\r\n", last.len());
        let mut parser = Parser::default();
        let limits = Limits { bulk: 1 << 20, long: 1, apart: false, authenticated: true };
        assert_eq!(parser.parse(data.as_bytes(), limits), Ok(Parsed::Long { at: data.len(), len: last.len() }));
        let mut writer = store.long(last.len(), 0).unwrap();
        writer.fill(last.as_bytes());
        parser.give(writer.finish());
        assert_eq!(parser.parse(data.as_bytes(), limits), Ok(Parsed::Request(data.len())));
        f(parser.args(data.as_bytes()), &KeyHasher::new(&config.key))
    }

    #[test]
    fn a_long_value_stays_where_it_is_and_another_argument_is_made_whole() {
        for words in [&["set", "a", "value"][..], &["mset", "a", "1", "b", "value"], &["hset", "h", "f", "value"]] {
            assert!(with_long(words, |args, _| Request::whole(args).is_none()));
            assert!(with_long(words, |args, hasher| Request::new(args, 0, hasher).command().is_some()));
        }
        for words in [&["get", "key"][..], &["mset", "a", "1", "key"], &["set", "a", "1", "nx"], &["echo", "text"]] {
            let whole = with_long(words, |args, _| Request::whole(args)).unwrap();
            assert_eq!(whole.args().iter().last().unwrap(), words[words.len() - 1].as_bytes());
            assert!(with_long(words, |args, hasher| Request::new(args, 0, hasher).command().is_none()));
        }
    }
}
