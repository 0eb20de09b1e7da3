//! What a connection is to the commands.

pub mod clients;
pub mod connection;
pub mod transactions;
pub mod watched_keys;

use crate::commands::data::hashes::Fields;
use crate::commands::data::scan::Progress;
use crate::commands::session::watched_keys::WatchedKeys;
use crate::commands::table::{Command, Quick};
use crate::resp::{Limits, OwnedArgs, Protocol};
use crate::shards::{ShardSet, Shards};
use std::net::SocketAddr;

/// One client's state.
#[derive(Debug)]
pub struct Session {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// The database, which is the keyspace of its keys.
    pub(super) space: u8,
    pub(super) protocol: Protocol,
    pub(super) is_authenticated: bool,
    pub(super) is_closing: bool,
    /// The client sent an HTTP request.
    pub(super) is_http: bool,
    pub(super) name: Vec<u8>,
    pub(super) library: Vec<u8>,
    pub(super) library_version: Vec<u8>,
    /// What follows `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) watched: WatchedKeys,
    /// Its commands may be done in pieces.
    pub(super) may_pause: bool,
    /// State of its command if that has been done in part.
    pub(super) paused: Option<Paused>,
    pub(super) since: u64,
    pub(super) used: u64,
    pub(super) last: Option<&'static Command>,
}

/// State of a command between two of its pieces.
#[derive(Debug)]
pub(super) enum Paused {
    /// `KEYS`.
    Keys(Box<Progress>),
    /// `HGETALL`, `HKEYS` or `HVALS`.
    Fields(Box<Fields>),
    /// `WATCH`, with the argument that is watched next.
    Watch(usize),
    /// `UNWATCH` or `DISCARD`.
    Unwatch,
    /// `FLUSHDB` or `FLUSHALL`, which waits for the removal of keys flushed before.
    Flush,
}

/// Commands that wait for `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub queue: Vec<Queued>,
    /// One was refused already: none is done.
    pub is_spoiled: bool,
    pub bytes: usize,
}

#[derive(Debug)]
pub(super) struct Queued {
    pub command: &'static Command,
    pub args: OwnedArgs,
}

impl Session {
    /// A connection between `peer` and `local`, from `now` on. No other has the number `id`, ever; it is no 0.
    pub fn new(id: u64, peer: SocketAddr, local: SocketAddr, is_authenticated: bool, now: u64) -> Self {
        Session {
            id,
            peer,
            local,
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
        }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The keyspace in which its keys are.
    #[inline]
    pub fn space(&self) -> u8 {
        self.space
    }

    /// What its requests may be, for a server where arguments are of `bulk` bytes at most and long from `long` bytes on. Those
    /// of a transaction go where they stay in any case: if there is no memory for one, it is refused before it waits.
    pub fn limits(&self, bulk: usize, long: usize) -> Limits {
        Limits { bulk, long, apart: self.transaction.is_some(), authenticated: self.is_authenticated }
    }

    /// The protocol of its replies.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether the connection is to be closed once what was replied has been sent.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Set if the client sent an HTTP request: its connection is reset without further replies.
    pub fn is_http(&self) -> bool {
        self.is_http
    }

    /// Bytes that its queued commands and its watched keys take.
    pub fn queued_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, |transaction| transaction.bytes) + self.watched.bytes()
    }

    /// Allows commands that take long to be done in pieces. While the session [is paused](Self::is_paused) after
    /// [`Request::run`](crate::commands::Request::run), the same request has to be run again, after others have had their turn, until it has
    /// replied.
    pub fn allow_pieces(&mut self) {
        self.may_pause = true;
    }

    /// Returns true if its last request has been done in part and has not replied.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Whether a request of it is just that: it may do all, and is not within a transaction.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.is_authenticated && self.transaction.is_none()
    }

    /// Its last command is this one, at `now`.
    #[inline]
    pub fn used_for(&mut self, command: Quick, now: u64) {
        self.used = now;
        self.last = Some(command.command());
    }

    /// Whether it has said the password, or there is none.
    #[inline]
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// It is that of somebody else from now on, who has the database `space`, speaks `protocol`, and may do all.
    pub fn visit(&mut self, space: u8, protocol: Protocol) {
        (self.space, self.protocol) = (space, protocol);
    }

    /// The shards, of `count`, in which keys are watched for it: whoever closes the connection [lets them go](Self::unwatch).
    pub fn watches(&self, count: usize) -> ShardSet {
        self.watched.shards(count)
    }

    /// Lets all keys go that are watched for it, whose shards are there.
    pub fn unwatch(&mut self, shards: &mut Shards<'_>) {
        self.watched.clear(shards);
    }

    /// A command was refused: one among those of a transaction lets all of it fail.
    pub fn spoil(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_spoiled = true;
        }
    }

    /// What `CLIENT LIST` says of it at `now`.
    pub fn client(&self, now: u64) -> Client {
        Client {
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

/// A connection as others see it.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its number.
    pub id: u64,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// Where it arrived.
    pub local: SocketAddr,
    /// What it calls itself.
    pub name: Vec<u8>,
    /// The library that it uses.
    pub library: Vec<u8>,
    /// That library's version.
    pub library_version: Vec<u8>,
    /// Seconds since it came.
    pub age: u64,
    /// Seconds since its last command.
    pub idle: u64,
    /// Its database.
    pub database: u8,
    /// Commands that wait for `EXEC`.
    pub queued: Option<usize>,
    /// Bytes that they and the watched keys take.
    pub queued_bytes: usize,
    /// Whether keys are watched for it.
    pub watches: bool,
    /// Its last command.
    pub command: &'static str,
    /// The protocol of its replies.
    pub protocol: Protocol,
}

impl Client {
    /// Appends its line, without the line's end.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Client { id, peer, local, age, idle, database, command, queued_bytes, .. } = self;
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
