//! State of a connection.

pub mod clients;
pub mod connection;
pub mod transactions;
pub mod watched_keys;

use crate::cluster::Node;
use crate::commands::cluster::SlotProgress;
use crate::commands::data::bits::{BitOpTask, BitSearch};
use crate::commands::data::hashes::Fields;
use crate::commands::data::scan::Progress;
use crate::commands::session::clients::ClientList;
use crate::commands::session::watched_keys::WatchedKeys;
use crate::commands::table::{Command, FastCommand};
use crate::resp::{Limits, OwnedArgs, Protocol};
use crate::shards::{Placement, ShardSet, Shards};
use std::net::SocketAddr;

/// State of a client.
#[derive(Debug)]
pub struct Session {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// True if the connection uses TLS.
    pub(super) is_tls: bool,
    /// Database, which is the keyspace of its keys.
    pub(super) space: u8,
    pub(super) protocol: Protocol,
    pub(super) is_authenticated: bool,
    pub(super) is_closing: bool,
    /// The client sent an HTTP request.
    pub(super) is_http: bool,
    pub(super) name: Vec<u8>,
    pub(super) library: Vec<u8>,
    pub(super) library_version: Vec<u8>,
    /// Commands queued since `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) watched: WatchedKeys,
    /// Commands may run in steps.
    pub(super) may_pause: bool,
    /// State of a command that has run in part.
    pub(super) paused: Option<Paused>,
    pub(super) since: u64,
    pub(super) used: u64,
    pub(super) last: Option<&'static Command>,
    /// Upcoming requests that get no reply.
    pub(super) silence: Silence,
    /// The current request has no reply.
    pub(super) is_silent: bool,
    /// The clients of the server are paused.
    pub(super) is_under_pause: bool,
}

/// Requests without a reply (`CLIENT REPLY`).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// No request.
    #[default]
    Off,
    /// The next request.
    Next,
    /// All requests.
    On,
}

/// State of a command between two steps.
#[derive(Debug)]
pub(super) enum Paused {
    Keys(Box<Progress>),
    /// `BITCOUNT` or `BITPOS`.
    Bits(Box<BitSearch>),
    /// `BITOP` with a long result.
    BitOp(Box<BitOpTask>),
    /// `CLUSTER COUNTKEYSINSLOT` or `CLUSTER GETKEYSINSLOT`.
    Slot(Box<SlotProgress>),
    /// `HGETALL`, `HKEYS` or `HVALS`.
    Fields(Box<Fields>),
    Clients(Box<ClientList>),
    /// `WATCH`, with the position of the next argument.
    Watch(usize),
    Unwatch,
    /// `CLIENT PAUSE` or `CLIENT UNPAUSE` that waits until all workers obey the change with this version.
    Pause(u64),
    /// `FLUSHDB` or `FLUSHALL` that waits for the removal of keys flushed before.
    Flush,
}

impl Paused {
    fn memory(&self) -> usize {
        match self {
            Paused::Keys(progress) => progress.memory(),
            Paused::Bits(search) => search.memory(),
            Paused::BitOp(task) => task.memory(),
            Paused::Slot(progress) => progress.memory(),
            Paused::Fields(fields) => fields.memory(),
            Paused::Clients(list) => list.memory(),
            Paused::Watch(_) | Paused::Unwatch | Paused::Pause(_) | Paused::Flush => 0,
        }
    }
}

/// Commands queued between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub queue: Vec<Queued>,
    /// A command was rejected, so `EXEC` fails.
    pub is_failed: bool,
    pub bytes: usize,
    /// Bytes of the arguments outside of the arena.
    pub args: usize,
}

#[derive(Debug)]
pub(super) struct Queued {
    pub command: &'static Command,
    pub args: OwnedArgs,
}

impl Session {
    /// Creates a session between `peer` and `local`. `id` is unique for all time and not 0.
    pub fn new(id: u64, peer: SocketAddr, local: SocketAddr, is_authenticated: bool, now: u64) -> Self {
        Session {
            id,
            peer,
            local,
            is_tls: false,
            space: 0,
            protocol: Protocol::default(),
            is_authenticated,
            is_closing: false,
            is_http: false,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            transaction: None,
            watched: WatchedKeys::default(),
            may_pause: false,
            paused: None,
            since: now,
            used: now,
            last: None,
            silence: Silence::Off,
            is_silent: false,
            is_under_pause: false,
        }
    }

    /// Sets whether the connection uses TLS.
    pub fn set_tls(&mut self, is_tls: bool) {
        self.is_tls = is_tls;
    }

    /// Returns the address of a node of the cluster, as in `MOVED`.
    pub(super) fn address_of(&self, node: &Node) -> String {
        node.address(self.local.ip(), self.is_tls)
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the keyspace of the keys.
    #[inline]
    pub fn space(&self) -> u8 {
        self.space
    }

    /// Returns the limits of its requests: arguments have at most `bulk` bytes and are long from `long` bytes on.
    /// Inside a transaction long arguments are stored in the arena in any case, so that a lack of memory is reported
    /// before they are queued.
    pub fn limits(&self, bulk: usize, long: usize) -> Limits {
        Limits { bulk, long, apart: self.transaction.is_some(), authenticated: self.is_authenticated }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns true if the connection is to be closed after the replies so far.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Returns true if the client sent an HTTP request. Its connection is reset without further replies.
    pub fn is_http(&self) -> bool {
        self.is_http
    }

    /// Returns the bytes of queued commands and watched keys.
    pub fn queued_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, |transaction| transaction.bytes) + self.watched.bytes()
    }

    /// Returns the memory of queued commands, watched keys, and a command that has run in part, without long values.
    pub fn memory(&self) -> usize {
        let transaction = self.transaction.as_ref().map_or(0, |transaction| transaction.memory());
        transaction + self.watched.bytes() + self.paused.as_ref().map_or(0, Paused::memory)
    }

    /// Allows long commands to run in steps. While the session [is paused](Self::is_paused) after
    /// [`Request::run`](crate::commands::Request::run), the same request has to run again, after the requests of other
    /// clients, until it replies.
    pub fn allow_pausing(&mut self) {
        self.may_pause = true;
    }

    /// Returns true if the last request has run in part and has not replied.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Returns true if the client is authenticated, not in a transaction, not under a pause, and gets replies.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.is_authenticated && self.transaction.is_none() && self.silence == Silence::Off && !self.is_under_pause
    }

    /// Sets whether the clients of the server are paused. During a pause each request is checked.
    pub fn set_under_pause(&mut self, is_under_pause: bool) {
        self.is_under_pause = is_under_pause;
    }

    /// Begins a request outside the fast path.
    #[inline]
    pub fn begin_request(&mut self) {
        self.is_silent = self.silence != Silence::Off;
        if self.silence == Silence::Next {
            self.silence = Silence::Off;
        }
    }

    /// Returns true if the current request has no reply.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    #[inline]
    pub fn note_command(&mut self, command: FastCommand, now: u64) {
        self.used = now;
        self.last = Some(command.command());
    }

    /// Returns true if the client is authenticated or there is no password.
    #[inline]
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Makes the session act for another, authenticated client with the database `space` and `protocol`.
    pub fn act_for(&mut self, space: u8, protocol: Protocol) {
        (self.space, self.protocol) = (space, protocol);
    }

    /// Returns the shards that hold watched keys. The owner of the connection [ends the watches](Self::unwatch) when it
    /// closes.
    pub fn watched_shards(&self, placement: &Placement) -> ShardSet {
        self.watched.shards(placement)
    }

    /// Ends all watches. The shards of the keys are among `shards`.
    pub fn unwatch(&mut self, shards: &mut Shards<'_>) {
        self.watched.clear(shards);
    }

    /// Ends a [paused](Self::is_paused) command and makes the current transaction fail, because a command was
    /// rejected.
    pub fn reject_command(&mut self) {
        self.paused = None;
        if let Some(transaction) = &mut self.transaction {
            transaction.is_failed = true;
        }
    }

    /// Returns the entry for `CLIENT LIST` at `now`.
    pub fn client(&self, now: u64) -> ClientInfo {
        ClientInfo {
            id: self.id,
            peer: self.peer,
            local: self.local,
            name: self.name.clone(),
            library: self.library.clone(),
            library_version: self.library_version.clone(),
            age: now.saturating_sub(self.since) / 1000,
            idle: now.saturating_sub(self.used) / 1000,
            database: self.space,
            queued: self.transaction.as_ref().map(|transaction| transaction.queue.len()),
            queued_bytes: self.queued_bytes(),
            watches: !self.watched.is_empty(),
            command: self.last.map_or("NULL", |command| command.name),
            protocol: self.protocol,
        }
    }
}

/// Entry of `CLIENT LIST`.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    pub id: u64,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    /// Seconds since it connected.
    pub age: u64,
    /// Seconds since its last command.
    pub idle: u64,
    pub database: u8,
    /// Number of queued commands, if in a transaction.
    pub queued: Option<usize>,
    /// Bytes of queued commands and watched keys.
    pub queued_bytes: usize,
    pub watches: bool,
    pub command: &'static str,
    pub protocol: Protocol,
}

impl ClientInfo {
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.library.len() + self.library_version.len()
    }

    /// Appends the line of `CLIENT LIST` without line end.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let ClientInfo { id, peer, local, age, idle, database, command, queued_bytes, .. } = self;
        let flags = if self.queued.is_some() { "x" } else { "N" };
        let queued = self.queued.map_or(-1, |queued| queued as i64);
        let protocol = if self.protocol == Protocol::Resp3 { 3 } else { 2 };
        out.extend(format!("id={id} addr={peer} laddr={local} fd=0 name=").bytes());
        out.extend(&self.name);
        out.extend(
            format!(
                " age={age} idle={idle} flags={flags} db={database} sub=0 psub=0 ssub=0 multi={queued} qbuf=0 \
                 qbuf-free=0 argv-mem=0 multi-mem={queued_bytes} rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r \
                 cmd={command} user=default redir=-1 resp={protocol} lib-name="
            )
            .bytes(),
        );
        out.extend(&self.library);
        out.extend(b" lib-ver=");
        out.extend(&self.library_version);
    }
}
