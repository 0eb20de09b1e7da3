//! Table of commands.

use crate::commands::admin::{absent, command_docs, config, dataset, info, slowlog};
use crate::commands::cluster;
use crate::commands::data::{bits, expiry, hashes, keys, numbers, scan, strings};
use crate::commands::error::{CommandError, CommandResult};
use crate::commands::session::transactions;
use crate::commands::session::{clients, connection};
use crate::commands::{CommandType, Context, Request};
use crate::resp::{Args, Reply};
use std::fmt;

/// Function that runs a command. The number of arguments is valid. A handler that returns an error has not replied.
pub(super) type Handler = fn(&mut Context<'_, '_>, &Request<'_>, &mut Reply<'_>) -> CommandResult;

/// Command or subcommand.
pub struct Command {
    /// Name in lower case. The name of a subcommand is `parent|name`.
    pub name: &'static str,
    /// Number of arguments including the name. If negative, the minimum.
    pub(super) arity: i8,
    pub(super) flags: Flags,
    /// First and last key argument, and the step between keys. A negative last key counts from the end.
    pub(super) first: u8,
    pub(super) last: i8,
    pub(super) step: u8,
    /// Access flags of the keys in the reply of `COMMAND`, comma-separated per key if they differ.
    pub(super) access: &'static str,
    pub(super) shard_use: ShardUse,
    pub(super) long: LongArgs,
    pub(super) subcommands: &'static [Command],
    pub(super) run: Handler,
}

/// Commands of the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastCommand {
    Get,
    Set,
}

impl FastCommand {
    #[inline]
    pub(super) fn command(self) -> &'static Command {
        &COMMANDS[self as usize]
    }
}

/// Shards that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardUse {
    Nothing,
    /// Shards of its keys.
    Keys,
    /// Shards of its keys, the second of which may be in another database.
    Copy,
    /// Shard of its cursor.
    Cursor,
    All,
    /// In cluster mode, the shard of the node.
    Node,
    /// All shards: one at a time, or all at once in a transaction.
    EachShard,
    /// No shard; the command changes the database of later commands.
    Select,
    /// Shards of the watched keys.
    Watched,
    /// Shards of the watched keys and of all queued commands.
    Queue,
}

/// Arguments that may be long values in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LongArgs {
    None,
    At(usize),
    /// Every second argument from this one on.
    From(usize),
}

/// Flags of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flags(pub u32);

impl Flags {
    pub const WRITE: u32 = 1;
    pub const READ: u32 = 1 << 1;
    pub const DENY_OOM: u32 = 1 << 2;
    pub const ADMIN: u32 = 1 << 3;
    pub const NO_SCRIPT: u32 = 1 << 4;
    pub const LOADING: u32 = 1 << 5;
    pub const STALE: u32 = 1 << 6;
    pub const SKIP_SLOWLOG: u32 = 1 << 7;
    pub const FAST: u32 = 1 << 8;
    /// Allowed without authentication.
    pub const NO_AUTH: u32 = 1 << 9;
    pub const ALLOW_BUSY: u32 = 1 << 10;
    pub const BITMAP: u32 = 1 << 22;
    pub const SCRIPTING: u32 = 1 << 23;
    pub const STRING: u32 = 1 << 16;
    pub const HASH: u32 = 1 << 17;
    pub const KEYSPACE: u32 = 1 << 18;
    pub const CONNECTION: u32 = 1 << 19;
    pub const TRANSACTION: u32 = 1 << 20;
    pub const DANGEROUS: u32 = 1 << 21;
    /// Runs inside `MULTI` instead of being queued.
    pub const NOT_QUEUED: u32 = 1 << 24;
    /// Runs in steps, and so on the worker of its client.
    pub const IN_STEPS: u32 = 1 << 27;
    /// Needs the list of connections.
    pub const CLIENTS: u32 = 1 << 25;
    /// Runs during a pause of all clients: a client has to send it before `CLIENT UNPAUSE`.
    pub const NOT_PAUSED: u32 = 1 << 28;
    /// Run time depends on the size of the data, not only on the arguments.
    pub const SIZED: u32 = 1 << 26;

    #[inline]
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

impl Command {
    const fn new(name: &'static str, arity: i8, flags: u32, run: Handler) -> Self {
        Command {
            name,
            arity,
            flags: Flags(flags),
            first: 0,
            last: 0,
            step: 0,
            access: "",
            shard_use: ShardUse::Nothing,
            long: LongArgs::None,
            subcommands: &[],
            run,
        }
    }

    /// Returns the type for metrics, or `None` for `GET`.
    pub(super) fn command_type(&self) -> Option<CommandType> {
        match self.name {
            "get" => None,
            "set" => Some(CommandType::Set),
            _ if self.flags.has(Flags::WRITE) => Some(CommandType::Write),
            _ if self.flags.has(Flags::READ) => Some(CommandType::Read),
            _ => Some(CommandType::Other),
        }
    }

    const fn keys(mut self, first: u8, last: i8, step: u8, access: &'static str) -> Self {
        (self.first, self.last, self.step) = (first, last, step);
        self.access = access;
        self.shard_use = ShardUse::Keys;
        self
    }

    const fn key(self, access: &'static str) -> Self {
        self.keys(1, 1, 1, access)
    }

    const fn shard_use(mut self, shard_use: ShardUse) -> Self {
        self.shard_use = shard_use;
        self
    }

    const fn long(mut self, long: LongArgs) -> Self {
        self.long = long;
        self
    }

    const fn subcommands(mut self, subcommands: &'static [Command]) -> Self {
        self.subcommands = subcommands;
        self
    }

    /// Returns true if the command accepts `len` arguments including its name.
    #[inline]
    pub(super) fn takes(&self, len: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { len >= arity } else { len == arity }
    }

    /// Returns true if the run time depends on the size of the data.
    #[inline]
    pub(super) fn depends_on_size(&self) -> bool {
        self.flags.has(Flags::SIZED)
    }

    /// Returns true if the argument at `at` may be a long value in parts.
    pub(super) fn takes_long(&self, at: usize) -> bool {
        match self.long {
            LongArgs::None => false,
            LongArgs::At(position) => at == position,
            LongArgs::From(first) => at >= first && (at - first).is_multiple_of(2),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({})", self.name)
    }
}

const WRITE: u32 = Flags::WRITE;
const MORE: u32 = Flags::WRITE | Flags::DENY_OOM;
const READ: u32 = Flags::READ;
const FAST: u32 = Flags::FAST;
const LIVE: u32 = Flags::LOADING | Flags::STALE;
const SIZED: u32 = Flags::SIZED;
const STALE: u32 = Flags::STALE;
const STRING: u32 = Flags::STRING;
const HASH: u32 = Flags::HASH;
const BITMAP: u32 = Flags::BITMAP;
const SCRIPT: u32 = Flags::NO_SCRIPT | Flags::SCRIPTING;
const IN_STEPS: u32 = Flags::SIZED | Flags::IN_STEPS;
const KEY: u32 = Flags::KEYSPACE;
const CLIENT: u32 = Flags::CONNECTION;
const FIRST: u32 = LIVE | FAST | Flags::NO_SCRIPT | Flags::NO_AUTH | Flags::ALLOW_BUSY | CLIENT;
const BATCH: u32 = LIVE | FAST | Flags::NO_SCRIPT | Flags::ALLOW_BUSY | Flags::TRANSACTION;
const OF_CLIENT: u32 = LIVE | Flags::NO_SCRIPT | CLIENT;
const ADMIN: u32 = LIVE | Flags::NO_SCRIPT | Flags::ADMIN;

use Command as C;

/// All commands. [`find`] requires GET and SET to be the first two.
pub(super) static COMMANDS: &[Command] = &[
    // Strings.
    C::new("get", 2, READ | FAST | STRING, strings::get).key("RO access"),
    C::new("set", -3, MORE | STRING, strings::set).key("RW access update variable_flags").long(LongArgs::At(2)),
    C::new("setnx", 3, MORE | FAST | STRING, strings::setnx).key("OW insert").long(LongArgs::At(2)),
    C::new("setex", 4, MORE | STRING, strings::setex).key("OW update").long(LongArgs::At(3)),
    C::new("psetex", 4, MORE | STRING, strings::psetex).key("OW update").long(LongArgs::At(3)),
    C::new("getset", 3, MORE | FAST | STRING, strings::getset).key("RW access update").long(LongArgs::At(2)),
    C::new("getdel", 2, WRITE | FAST | STRING, strings::getdel).key("RW access delete"),
    C::new("getex", -2, WRITE | FAST | STRING, strings::getex).key("RW access update"),
    C::new("mget", -2, READ | FAST | STRING, strings::mget).keys(1, -1, 1, "RO access"),
    C::new("mset", -3, MORE | STRING, strings::mset).keys(1, -1, 2, "OW update").long(LongArgs::From(2)),
    C::new("msetnx", -3, MORE | STRING, strings::msetnx).keys(1, -1, 2, "OW insert").long(LongArgs::From(2)),
    C::new("append", 3, MORE | FAST | STRING, strings::append).key("RW insert"),
    C::new("strlen", 2, READ | FAST | STRING, strings::strlen).key("RO"),
    C::new("getrange", 4, READ | STRING, strings::getrange).key("RO access"),
    C::new("setrange", 4, MORE | STRING | SIZED, strings::setrange).key("RW update"),
    C::new("incr", 2, MORE | FAST | STRING, numbers::incr).key("RW access update"),
    C::new("decr", 2, MORE | FAST | STRING, numbers::decr).key("RW access update"),
    C::new("incrby", 3, MORE | FAST | STRING, numbers::incrby).key("RW access update"),
    C::new("decrby", 3, MORE | FAST | STRING, numbers::decrby).key("RW access update"),
    C::new("incrbyfloat", 3, MORE | FAST | STRING, numbers::incrbyfloat).key("RW access update"),
    // Bits.
    C::new("setbit", 4, MORE | BITMAP | SIZED, bits::setbit).key("RW access update"),
    C::new("getbit", 3, READ | FAST | BITMAP, bits::getbit).key("RO access"),
    C::new("bitcount", -2, READ | BITMAP | IN_STEPS, bits::bitcount).key("RO access"),
    C::new("bitpos", -3, READ | BITMAP | IN_STEPS, bits::bitpos).key("RO access"),
    C::new("bitop", -4, MORE | BITMAP | IN_STEPS, bits::bitop).keys(2, -1, 1, "OW update,RO access"),
    C::new("bitfield", -2, MORE | BITMAP | SIZED, bits::bitfield).key("RW access update variable_flags"),
    C::new("bitfield_ro", -2, READ | FAST | BITMAP, bits::bitfield_ro).key("RO access"),
    // Keys.
    C::new("del", -2, WRITE | KEY, keys::del).keys(1, -1, 1, "RM delete"),
    C::new("unlink", -2, WRITE | FAST | KEY, keys::del).keys(1, -1, 1, "RM delete"),
    C::new("exists", -2, READ | FAST | KEY, keys::exists).keys(1, -1, 1, "RO"),
    C::new("touch", -2, READ | FAST | KEY, keys::touch).keys(1, -1, 1, "RO"),
    C::new("type", 2, READ | FAST | KEY, keys::value_type).key("RO"),
    C::new("rename", 3, WRITE | KEY | SIZED, keys::rename).keys(1, 2, 1, "RW access delete,OW update"),
    C::new("renamenx", 3, WRITE | FAST | KEY | SIZED, keys::renamenx).keys(1, 2, 1, "RW access delete,OW insert"),
    C::new("copy", -3, MORE | KEY | SIZED, keys::copy).keys(1, 2, 1, "RO access,OW update").shard_use(ShardUse::Copy),
    C::new("object", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("object|encoding", 3, READ | KEY, keys::encoding).keys(2, 2, 1, "RO"),
        C::new("object|freq", 3, READ | KEY, keys::frequency).keys(2, 2, 1, "RO"),
        C::new("object|refcount", 3, READ | KEY, keys::reference_count).keys(2, 2, 1, "RO"),
        C::new("object|idletime", 3, READ | KEY, keys::idle).keys(2, 2, 1, "RO"),
    ]),
    C::new("keys", 2, READ | KEY | Flags::DANGEROUS | SIZED, scan::keys).shard_use(ShardUse::EachShard),
    C::new("scan", -2, READ | KEY | SIZED, scan::scan).shard_use(ShardUse::Cursor),
    C::new("randomkey", 1, READ | KEY | SIZED, scan::randomkey).shard_use(ShardUse::All),
    C::new("dbsize", 1, READ | FAST | KEY, dataset::dbsize),
    C::new("flushdb", -1, WRITE | KEY | Flags::DANGEROUS | SIZED, dataset::flushdb).shard_use(ShardUse::All),
    C::new("flushall", -1, WRITE | KEY | Flags::DANGEROUS | SIZED, dataset::flushall).shard_use(ShardUse::All),
    C::new("expire", -3, WRITE | FAST | KEY, expiry::expire).key("RW update"),
    C::new("pexpire", -3, WRITE | FAST | KEY, expiry::pexpire).key("RW update"),
    C::new("expireat", -3, WRITE | FAST | KEY, expiry::expireat).key("RW update"),
    C::new("pexpireat", -3, WRITE | FAST | KEY, expiry::pexpireat).key("RW update"),
    C::new("expiretime", 2, READ | FAST | KEY, expiry::expiretime).key("RO access"),
    C::new("pexpiretime", 2, READ | FAST | KEY, expiry::pexpiretime).key("RO access"),
    C::new("ttl", 2, READ | FAST | KEY, expiry::ttl).key("RO access"),
    C::new("pttl", 2, READ | FAST | KEY, expiry::pttl).key("RO access"),
    C::new("persist", 2, WRITE | FAST | KEY, expiry::persist).key("RW update"),
    // Hashes.
    C::new("hset", -4, MORE | FAST | HASH, hashes::hset).key("RW update").long(LongArgs::From(3)),
    C::new("hmset", -4, MORE | FAST | HASH, hashes::hmset).key("RW update").long(LongArgs::From(3)),
    C::new("hsetnx", 4, MORE | FAST | HASH, hashes::hsetnx).key("RW insert").long(LongArgs::At(3)),
    C::new("hget", 3, READ | FAST | HASH, hashes::hget).key("RO access"),
    C::new("hmget", -3, READ | FAST | HASH, hashes::hmget).key("RO access"),
    C::new("hdel", -3, WRITE | FAST | HASH, hashes::hdel).key("RW delete"),
    C::new("hgetall", 2, READ | HASH | SIZED, hashes::hgetall).key("RO access"),
    C::new("hkeys", 2, READ | HASH | SIZED, hashes::hkeys).key("RO access"),
    C::new("hvals", 2, READ | HASH | SIZED, hashes::hvals).key("RO access"),
    C::new("hexists", 3, READ | FAST | HASH, hashes::hexists).key("RO"),
    C::new("hlen", 2, READ | FAST | HASH, hashes::hlen).key("RO"),
    C::new("hstrlen", 3, READ | FAST | HASH, hashes::hstrlen).key("RO"),
    C::new("hincrby", 4, MORE | FAST | HASH, hashes::hincrby).key("RW access update"),
    C::new("hscan", -3, READ | HASH | SIZED, scan::hscan).key("RO access"),
    // Connection.
    C::new("ping", -1, FAST | CLIENT, connection::ping),
    C::new("echo", 2, LIVE | FAST | CLIENT, connection::echo),
    C::new("quit", -1, FIRST | Flags::NOT_QUEUED, connection::quit),
    C::new("reset", 1, FIRST | Flags::NOT_QUEUED | SIZED, connection::reset).shard_use(ShardUse::Watched),
    C::new("select", 2, LIVE | FAST | CLIENT, connection::select).shard_use(ShardUse::Select),
    C::new("auth", -2, FIRST | Flags::NOT_PAUSED, connection::auth),
    C::new("hello", -1, FIRST | Flags::NOT_PAUSED, connection::hello),
    C::new("client", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("client|id", 2, OF_CLIENT, clients::id),
        C::new("client|info", 2, OF_CLIENT, clients::info),
        C::new("client|list", -2, ADMIN | CLIENT | Flags::CLIENTS | SIZED, clients::list),
        C::new("client|setname", 3, OF_CLIENT | Flags::NOT_PAUSED, clients::setname),
        C::new("client|getname", 2, OF_CLIENT, clients::getname),
        C::new("client|setinfo", 4, OF_CLIENT | Flags::NOT_PAUSED, clients::setinfo),
        C::new("client|no-evict", 3, ADMIN | CLIENT, clients::set_switch),
        C::new("client|no-touch", 3, OF_CLIENT, clients::set_switch),
        C::new("client|reply", 3, OF_CLIENT, clients::reply),
        C::new("client|pause", -3, ADMIN | CLIENT, clients::pause),
        C::new("client|unpause", 2, ADMIN | CLIENT | Flags::NOT_PAUSED, clients::unpause),
        C::new("client|kill", -3, ADMIN | CLIENT | Flags::CLIENTS | SIZED, clients::kill),
    ]),
    // Server.
    C::new("command", -1, LIVE | CLIENT, command_docs::command).subcommands(&[
        C::new("command|count", 2, LIVE | CLIENT, command_docs::count),
        C::new("command|info", -2, LIVE | CLIENT, command_docs::info),
    ]),
    C::new("config", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("config|get", -3, ADMIN, config::get),
        C::new("config|set", -4, ADMIN, config::set),
        C::new("config|resetstat", 2, ADMIN, config::resetstat),
    ]),
    C::new("info", -1, LIVE | Flags::DANGEROUS | SIZED, info::info),
    C::new("slowlog", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("slowlog|get", -2, LIVE | Flags::ADMIN, slowlog::get),
        C::new("slowlog|len", 2, LIVE | Flags::ADMIN, slowlog::len),
        C::new("slowlog|reset", 2, LIVE | Flags::ADMIN, slowlog::reset),
    ]),
    C::new("cluster", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("cluster|countkeysinslot", 3, STALE | SIZED, cluster::count_keys_in_slot).shard_use(ShardUse::Node),
        C::new("cluster|getkeysinslot", 4, STALE | SIZED, cluster::get_keys_in_slot).shard_use(ShardUse::Node),
        C::new("cluster|info", 2, STALE, cluster::info),
        C::new("cluster|keyslot", 3, STALE, cluster::keyslot),
        C::new("cluster|links", 2, STALE, cluster::links),
        C::new("cluster|myid", 2, STALE, cluster::my_id),
        C::new("cluster|myshardid", 2, STALE, cluster::my_shard_id),
        C::new("cluster|nodes", 2, STALE, cluster::nodes),
        C::new("cluster|shards", 2, STALE, cluster::shards),
        C::new("cluster|slots", 2, STALE, cluster::slots),
    ]),
    C::new("readonly", 1, LIVE | FAST | CLIENT, cluster::change_nothing),
    C::new("readwrite", 1, LIVE | FAST | CLIENT, cluster::change_nothing),
    C::new("asking", 1, FAST | CLIENT, cluster::change_nothing),
    C::new("time", 1, LIVE | FAST, dataset::time),
    C::new("linerate.export", 1, LIVE | FAST, dataset::export),
    C::new("linerate.counter", -1, LIVE | FAST, dataset::counter),
    C::new("memory", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("memory|usage", -3, READ, keys::memory_usage).keys(2, 2, 1, "RO"),
        C::new("memory|stats", 2, 0, absent::memory_stats),
    ]),
    // Features that this server does not have.
    C::new("function", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("function|flush", -2, WRITE | SCRIPT, absent::function_flush),
        C::new("function|list", -2, SCRIPT, absent::function_list),
        C::new("function|stats", 2, SCRIPT | Flags::ALLOW_BUSY, absent::function_stats),
    ]),
    C::new("script", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("script|flush", -2, SCRIPT, absent::script_flush),
        C::new("script|exists", -3, SCRIPT, absent::script_exists),
    ]),
    C::new("latency", -2, 0, dataset::needs_subcommand).subcommands(&[
        C::new("latency|latest", 2, ADMIN, absent::no_events),
        C::new("latency|history", 3, ADMIN, absent::no_events),
        C::new("latency|reset", -2, ADMIN, absent::latency_reset),
        C::new("latency|doctor", 2, ADMIN, absent::latency_doctor),
        C::new("latency|histogram", -2, ADMIN, absent::latency_histogram),
    ]),
    // Transactions.
    C::new("multi", 1, BATCH | Flags::NOT_QUEUED, transactions::multi),
    C::new(
        "exec",
        1,
        LIVE | Flags::NO_SCRIPT | Flags::SKIP_SLOWLOG | Flags::TRANSACTION | Flags::NOT_QUEUED | SIZED,
        transactions::exec,
    )
    .shard_use(ShardUse::Queue),
    C::new("discard", 1, BATCH | Flags::NOT_QUEUED | SIZED, transactions::discard).shard_use(ShardUse::Watched),
    C::new("watch", -2, BATCH | Flags::NOT_QUEUED, transactions::watch).keys(1, -1, 1, "RO"),
    C::new("unwatch", 1, BATCH | SIZED, transactions::unwatch).shard_use(ShardUse::Watched),
];

/// Size of the name table, several times the number of commands.
const TABLE_SIZE: usize = 256;
const NONE: u8 = u8::MAX;

/// Name of each command as a [`word`].
static WORDS: [u128; COMMANDS.len()] = {
    let mut words = [0; COMMANDS.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = word(COMMANDS[at].name.as_bytes());
        at += 1;
    }
    words
};

/// Hash table with linear probing from names to commands.
static NAMES: [u8; TABLE_SIZE] = {
    let mut names = [NONE; TABLE_SIZE];
    let mut at = 0;
    while at < WORDS.len() {
        let mut slot = slot_of(WORDS[at]);
        while names[slot] != NONE {
            slot = (slot + 1) % TABLE_SIZE;
        }
        names[slot] = at as u8;
        at += 1;
    }
    names
};

/// Returns a name of up to 16 bytes as a number, ignoring case.
const fn word(name: &[u8]) -> u128 {
    let mut word = 0;
    let mut at = 0;
    while at < name.len() {
        // No other byte turns into a letter.
        word = word << 8 | (name[at] | 0x20) as u128;
        at += 1;
    }
    word
}

const fn slot_of(word: u128) -> usize {
    let mixed = (word as u64 ^ (word >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % TABLE_SIZE
}

fn by_name(name: &[u8]) -> Option<&'static Command> {
    if let [a, b, c] = name {
        match [a | 0x20, b | 0x20, c | 0x20] {
            [b'g', b'e', b't'] => return Some(&COMMANDS[0]),
            [b's', b'e', b't'] => return Some(&COMMANDS[1]),
            _ => {}
        }
    }
    if name.len() > 16 {
        return None;
    }
    let word = word(name);
    let mut slot = slot_of(word);
    while NAMES[slot] != NONE {
        let at = usize::from(NAMES[slot]);
        if WORDS[at] == word && COMMANDS[at].name.len() == name.len() {
            return Some(&COMMANDS[at]);
        }
        slot = (slot + 1) % TABLE_SIZE;
    }
    None
}

fn subcommand(command: &'static Command, name: &[u8]) -> Option<&'static Command> {
    let last = |part: &Command| part.name.as_bytes()[command.name.len() + 1..].eq_ignore_ascii_case(name);
    command.subcommands.iter().find(|part| last(part))
}

/// Returns the command of a request, or the error for an unknown command or a wrong number of arguments.
#[inline]
pub(super) fn find(args: Args<'_>) -> Result<&'static Command, CommandError> {
    let Some(mut command) = by_name(args.at(0)) else {
        return Err(CommandError::unknown(args));
    };
    if !command.subcommands.is_empty()
        && let Some(name) = args.get(1)
    {
        command = subcommand(command, name).ok_or_else(|| CommandError::unknown_subcommand(command.name, name))?;
    }
    if !command.takes(args.len()) {
        return Err(CommandError::arity(command.name));
    }
    Ok(command)
}

/// Returns the command or subcommand (`parent|name`) with this name.
pub(super) fn by_full_name(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|byte| *byte == b'|') {
        None => by_name(name),
        Some(bar) => subcommand(by_name(&name[..bar])?, &name[bar + 1..]),
    }
}

/// Returns the positions of the keys among `len` arguments of `command`.
pub(super) fn key_positions(command: &Command, len: usize) -> impl Iterator<Item = usize> + use<> {
    let last = if command.last < 0 { len } else { usize::from(command.last.unsigned_abs()) + 1 };
    let first = if command.first == 0 { last } else { command.first.into() };
    (first..last.min(len)).step_by(usize::from(command.step).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_found_by_name_in_any_case() {
        for command in COMMANDS {
            assert!(std::ptr::eq(by_name(command.name.as_bytes()).unwrap(), command), "{}", command.name);
            assert!(std::ptr::eq(by_name(command.name.to_ascii_uppercase().as_bytes()).unwrap(), command));
            for part in command.subcommands {
                assert!(std::ptr::eq(by_full_name(part.name.to_ascii_uppercase().as_bytes()).unwrap(), part));
            }
        }
        for name in
            ["", "ge", "gett", "g\x05t", "get\0", "get ", "GEU", "client|", "client|nothing", "0123456789abcdefg"]
        {
            assert!(by_full_name(name.as_bytes()).is_none(), "{name:?}");
        }
        assert!(COMMANDS.len() < usize::from(NONE));
    }

    #[test]
    fn key_positions_follow_the_table() {
        let positions =
            |name: &str, len| key_positions(by_full_name(name.as_bytes()).unwrap(), len).collect::<Vec<_>>();
        assert_eq!(positions("get", 2), [1]);
        assert_eq!(positions("set", 7), [1]);
        assert_eq!(positions("mset", 6), [1, 3, 5]);
        assert_eq!(positions("mset", 5), [1, 3]);
        assert_eq!(positions("del", 4), [1, 2, 3]);
        assert_eq!(positions("rename", 3), [1, 2]);
        assert_eq!(positions("object|encoding", 3), [2]);
        assert_eq!(positions("ping", 2), []);
    }
}
