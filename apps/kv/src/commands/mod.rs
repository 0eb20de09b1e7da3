//! Redis commands: from the arguments of a request to its reply.
//!
//! The owner of a connection keeps a [`Session`] for it and handles each request as follows:
//!
//! 1. Copy long arguments that the command needs [whole](Request::materialized).
//! 2. Create a [`Request`], which hashes the key, so that the item can be prefetched.
//! 3. Obtain the shards that the request [needs](Request::needed_shards). All earlier requests must have run before,
//!    because a transaction or a change of the database affects the result.
//! 4. [Run](Request::run) the request. Close the connection if the session is [closing](Session::is_closing).
//!
//! When the connection closes, the owner ends the session's [watches](Session::unwatch).

mod admin;
mod cluster;
mod data;
mod error;
mod options;
mod scatter;
mod server;
mod session;
mod table;

#[cfg(test)]
mod testing;

pub use admin::slowlog::SlowRequest;
pub use cluster::redirection;
pub use error::CommandError;
pub use scatter::Scatter;
pub use server::{
    CommandType, PauseMode, RejectedSetting, Server, Settings, SettingsChange, Stats, TlsSettings, Totals,
};
pub use session::{ClientInfo, Session};
pub use table::{Command, FastCommand};

use crate::resp::{Args, OwnedArgs, Reply};
use crate::shards::{Placement, ShardSet, Shards};
use crate::store::{Key, KeyHasher, Value};
use crate::value::Sink;
use error::{NO_AUTH, TOO_LONG};
use session::{Paused, Queued};
use table::{Flags, ShardUse};

/// Environment of a command.
pub struct Context<'a, 's> {
    /// Shards that the command needs, and possibly others.
    pub shards: &'a mut Shards<'s>,
    pub hasher: &'a KeyHasher,
    pub session: &'a mut Session,
    /// Settings, connections and counters of the server.
    pub server: &'a mut dyn Server,
    pub stats: &'a mut Stats,
    /// Time of the server's clock in milliseconds: that of the wall clock when the server started, and the time since.
    pub now: u64,
    /// Milliseconds that the wall clock is ahead of `now`.
    pub wall_ahead: i64,
}

impl Context<'_, '_> {
    /// Returns the time of the wall clock in milliseconds since 1970.
    fn wall(&self) -> u64 {
        self.now.saturating_add_signed(self.wall_ahead)
    }
}

/// Request of a client.
#[derive(Debug)]
pub struct Request<'a> {
    /// Command, or the error for an unknown command or a wrong number of arguments.
    command: Result<&'static Command, CommandError>,
    args: Args<'a>,
    key: Option<Key<'a>>,
    /// The command is part of a transaction and must not pause.
    is_queued: bool,
}

impl<'a> Request<'a> {
    /// Returns a copy of the arguments with contiguous bytes if a long argument is stored in parts and the command
    /// cannot take it in that form. Only `SET` and similar commands can.
    pub fn materialized(args: Args<'_>) -> Option<OwnedArgs> {
        (args.longs().len() > 0 && !takes_long_args(table::find(args).ok(), args)).then(|| args.to_whole())
    }

    /// Creates a request from `args`, which has at least one argument. The keys are hashed for the keyspace `space`,
    /// the [session's](Session::space) after the commands before it. A long argument that should be
    /// [whole](Self::materialized) makes the command fail.
    #[inline]
    pub fn new(args: Args<'a>, space: u8, hasher: &KeyHasher) -> Self {
        Request::with_key(args, |bytes| hasher.key(space, bytes))
    }

    /// Creates a request whose [first key](Self::key_hash) has the hash `hash`.
    #[inline]
    pub fn with_hash(args: Args<'a>, space: u8, hasher: &KeyHasher, hash: u64) -> Self {
        Request::with_key(args, |bytes| hasher.key_with_hash(space, bytes, hash))
    }

    #[inline]
    fn with_key(args: Args<'a>, to_key: impl FnOnce(&'a [u8]) -> Key<'a>) -> Self {
        let mut command = table::find(args);
        if args.longs().len() > 0 && command.is_ok() && !takes_long_args(command.as_ref().ok().copied(), args) {
            command = Err(TOO_LONG);
        }
        let key = match &command {
            Ok(command) if command.first > 0 => Some(to_key(args.at(command.first.into()))),
            _ => None,
        };
        Request { command, args, key, is_queued: false }
    }

    /// Creates a request from a queued command of a transaction.
    fn queued(queued: &'a Queued) -> Self {
        Request { command: Ok(queued.command), args: queued.args.args(), key: None, is_queued: true }
    }

    /// Returns the lengths of every second argument from `first` on and of the value after it. A long value is in the
    /// arena already and counts as 0, unless there are several stores: it may then be in the memory of another one.
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

    /// Returns the command, if it is known and has a valid number of arguments.
    pub fn command(&self) -> Option<&'static Command> {
        self.command.as_ref().ok().copied()
    }

    pub fn key_hash(&self) -> Option<u64> {
        self.key.as_ref().map(Key::hash)
    }

    pub fn needed_shards(&self, session: &Session, hasher: &KeyHasher, placement: &Placement) -> ShardSet {
        match &self.command {
            Ok(command) if session.transaction.is_none() || command.flags.has(Flags::NOT_QUEUED) => {
                let mut needed = ShardSet::NONE;
                let mut space = session.space;
                self.add_needed_shards(command, session, &mut space, hasher, placement, &mut needed);
                needed
            }
            // The command is queued or fails.
            _ => ShardSet::NONE,
        }
    }

    /// Adds the needed shards to `needed`. `SELECT` changes `space`.
    fn add_needed_shards(
        &self,
        command: &Command,
        session: &Session,
        space: &mut u8,
        hasher: &KeyHasher,
        placement: &Placement,
        needed: &mut ShardSet,
    ) {
        let mut add = |space: u8, bytes: &[u8]| needed.add(placement.shard_of(hasher.key(space, bytes).hash()));
        match command.shard_use {
            ShardUse::Nothing => {}
            // The values have been taken. `BITOP` stores its result.
            ShardUse::Keys if matches!(session.paused, Some(Paused::Bits(_))) => {}
            ShardUse::Keys if matches!(session.paused, Some(Paused::BitOp(_))) => add(*space, &self.args[2]),
            ShardUse::Keys => match &self.key {
                Some(key) if command.last == command.first as i8 && key.space == *space => {
                    needed.add(placement.shard_of(key.hash()));
                }
                _ => table::key_positions(command, self.args.len()).for_each(|at| add(*space, &self.args[at])),
            },
            ShardUse::Copy => {
                add(*space, &self.args[1]);
                add(data::keys::copy_space(self.args, *space).unwrap_or(*space), &self.args[2]);
            }
            ShardUse::Cursor => needed.add(data::scan::shard(&self.args[1], placement.of_node()).unwrap_or(0)),
            // The handler visits one shard per step.
            ShardUse::EachShard if self.may_run_in_steps(session) => needed.add(match &session.paused {
                Some(Paused::Keys(progress)) => placement.of_node().start + progress.visited,
                _ => placement.of_node().start,
            }),
            ShardUse::Node => needed.add(placement.of_node().start),
            ShardUse::All | ShardUse::EachShard => needed.extend(placement.of_node().collect()),
            ShardUse::Select => *space = session::connection::selected(&self.args[1]).unwrap_or(*space),
            ShardUse::Watched => needed.extend(session.watched_shards(placement)),
            ShardUse::Queue => {
                needed.extend(session.watched_shards(placement));
                // `EXEC` runs no command of a failed transaction.
                let transaction = session.transaction.iter().filter(|transaction| !transaction.is_failed);
                for queued in transaction.flat_map(|transaction| &transaction.queue) {
                    Request::queued(queued).add_needed_shards(
                        queued.command,
                        session,
                        space,
                        hasher,
                        placement,
                        needed,
                    );
                }
            }
        }
    }

    /// Returns true if the request can run in another session with the same database: it depends on nothing but its
    /// keys.
    #[inline]
    pub fn can_run_remotely(&self) -> bool {
        self.command().is_some_and(|command| {
            command.shard_use == ShardUse::Keys && !command.flags.has(Flags::TRANSACTION | Flags::IN_STEPS)
        })
    }

    /// Returns true if the request waits for the end of a pause of the clients. A request that has run in part does
    /// not.
    #[cold]
    pub fn waits_in(&self, mode: PauseMode, session: &Session) -> bool {
        let Ok(command) = &self.command else { return false };
        if !session.is_authenticated || session.is_paused() {
            return false;
        }
        let transaction = session.transaction.iter().filter(|_| command.shard_use == ShardUse::Queue);
        let mut queued = transaction.flat_map(|transaction| &transaction.queue);
        match mode {
            PauseMode::All => !command.flags.has(Flags::NOT_PAUSED),
            PauseMode::Write => {
                command.flags.has(Flags::WRITE) || queued.any(|queued| queued.command.flags.has(Flags::WRITE))
            }
        }
    }

    /// Returns true if the handler may [pause](Session::is_paused) the session.
    fn may_run_in_steps(&self, session: &Session) -> bool {
        session.may_pause && !self.is_queued
    }

    /// Returns true if the request needs the [list of connections](Server::clients). A request that has run in part has
    /// it already.
    pub fn needs_clients(&self, session: &Session) -> bool {
        if session.is_paused() {
            return false;
        }
        let needs_clients = |command: &Command| command.flags.has(Flags::CLIENTS);
        match &self.command {
            Ok(command) if command.shard_use == ShardUse::Queue => session
                .transaction
                .iter()
                .flat_map(|transaction| &transaction.queue)
                .any(|queued| needs_clients(queued.command)),
            Ok(command) => needs_clients(command),
            Err(_) => false,
        }
    }

    pub fn run(&self, cx: &mut Context<'_, '_>, sink: &mut dyn Sink) {
        let mut reply = Reply::new(sink, cx.session.protocol);
        let command = match &self.command {
            Ok(command) => *command,
            Err(_) if is_http(self.args.at(0)) => {
                (cx.session.is_closing, cx.session.is_http) = (true, true);
                return;
            }
            Err(refused) => {
                cx.session.reject_command();
                return cx.reply_error(refused, &mut reply);
            }
        };
        cx.session.used = cx.now;
        cx.session.last = Some(command);
        if !cx.session.is_authenticated && !command.flags.has(Flags::NO_AUTH) {
            cx.session.reject_command();
            return cx.reply_error(&NO_AUTH, &mut reply);
        }
        if let Some(transaction) = &mut cx.session.transaction
            && !command.flags.has(Flags::NOT_QUEUED)
        {
            transaction.push(Queued { command, args: self.args.to_owned() });
            return reply.simple("QUEUED");
        }
        self.execute(command, cx, &mut reply);
    }

    fn execute(&self, command: &'static Command, cx: &mut Context<'_, '_>, reply: &mut Reply<'_>) {
        if !cx.session.is_paused() {
            cx.stats.commands += 1;
            if let Some(command_type) = command.command_type() {
                cx.stats.count_type(command_type);
            }
        }
        if command.last != command.first as i8 && command.shard_use == ShardUse::Keys {
            let positions = table::key_positions(command, self.args.len());
            let hash = |at| cx.hasher.key(cx.session.space, self.args.at(at)).hash();
            cx.shards.prefetch_items(positions.map(hash));
        }
        if let Err(refused) = (command.run)(cx, self, reply) {
            cx.reply_error(&refused, reply);
        }
    }

    fn arity(&self) -> CommandError {
        CommandError::arity(self.command.as_ref().map_or("", |command| command.name))
    }
}

/// Returns true if `name` starts a line of an HTTP request instead of a command (`securityWarningCommand` of Redis).
///
/// A web page can make a browser send such a request to any port. Its lines are unknown commands up to the body, whose
/// commands would run. Redis compares C strings, which end at a NUL byte.
pub(crate) fn is_http(name: &[u8]) -> bool {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Returns true if `command` accepts the long arguments of `args` in parts. For an unknown command they only appear in
/// the error.
fn takes_long_args(command: Option<&Command>, args: Args<'_>) -> bool {
    command.is_none_or(|command| args.longs().all(|at| command.takes_long(at)))
}

impl Context<'_, '_> {
    #[inline]
    fn key<'k>(&self, request: &Request<'k>, at: usize) -> Key<'k> {
        match (&request.key, &request.command) {
            (Some(key), Ok(command)) if at == usize::from(command.first) && key.space == self.session.space => *key,
            _ => self.hasher.key(self.session.space, request.args.at(at)),
        }
    }

    #[cold]
    fn reply_error(&mut self, refused: &CommandError, reply: &mut Reply<'_>) {
        self.stats.errors += 1;
        reply.error(refused.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Limits, Parsed, Parser, encoded};
    use crate::store::{Config, Store};

    /// Calls `f` with the arguments `words`, the last of which is a long value.
    fn with_long<T>(words: &[&str], f: impl FnOnce(Args<'_>, &KeyHasher) -> T) -> T {
        let config = Config::new(4 << 20);
        let mut store = Store::new(&config, 0);
        let last = words.last().unwrap();
        let mut data = encoded(words);
        data.truncate(data.len() - last.len() - 2);
        let mut parser = Parser::default();
        let limits = Limits { bulk: 1 << 20, long: 1, apart: false, authenticated: true };
        assert_eq!(parser.parse(&data, limits), Ok(Parsed::Long { at: data.len(), len: last.len() }));
        let mut writer = store.long(last.len(), 0).unwrap();
        writer.fill(last.as_bytes());
        parser.give(writer.finish());
        assert_eq!(parser.parse(&data, limits), Ok(Parsed::Request(data.len())));
        f(parser.args(&data), &KeyHasher::new(&config.key))
    }

    #[test]
    fn value_stays_in_parts_and_other_long_arguments_are_copied() {
        for words in [&["set", "a", "value"][..], &["mset", "a", "1", "b", "value"], &["hset", "h", "f", "value"]] {
            assert!(with_long(words, |args, _| Request::materialized(args).is_none()));
            assert!(with_long(words, |args, hasher| Request::new(args, 0, hasher).command().is_some()));
        }
        for words in [&["get", "key"][..], &["mset", "a", "1", "key"], &["set", "a", "1", "nx"], &["echo", "text"]] {
            let whole = with_long(words, |args, _| Request::materialized(args)).unwrap();
            assert_eq!(whole.args().iter().last().unwrap(), words[words.len() - 1].as_bytes());
            assert!(with_long(words, |args, hasher| Request::new(args, 0, hasher).command().is_none()));
        }
    }
}
