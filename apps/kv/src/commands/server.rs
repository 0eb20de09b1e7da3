//! What the commands ask of the server as a whole.

use crate::commands::DATABASES;
use crate::commands::admin::slowlog::SlowRequest;
use crate::commands::session::Client;
use crate::counters::Names;
use crate::export::Layout;
use crate::store::EvictionPolicy;
use linerate_bypass::RemoteAddr;

/// The server around the worker that runs a command: its settings, its connections, and what was counted.
///
/// Whatever is asked here concerns all workers; the calls come from commands that are rare. What such a command needs beside
/// is said [before it runs](crate::commands::Request::needs): the shards of all workers, or the list of connections.
pub trait Server {
    /// How the server is set at present.
    fn settings(&self) -> &Settings;

    /// Changes the settings of all workers, but not those of shards that the command has at hand.
    ///
    /// `change` gets a copy of the current settings, which replaces them unless the change is rejected. Changes that workers make at
    /// the same time are applied one after the other, so none is lost.
    fn update(&mut self, change: &mut Change<'_>) -> Result<(), Rejected>;

    /// All connections. The one whose command it is may be as it was when the command came.
    fn clients(&mut self) -> Vec<Client>;

    /// Closes the connection `id`, which is not the one whose command it is.
    fn kill(&mut self, id: u64);

    /// Returns the figures of all workers. `stats` are the current ones of this worker; those of others may be some
    /// milliseconds old.
    fn totals(&mut self, stats: &Stats) -> Totals;

    /// Lets the figures of all workers count from 0, except those of the present state. `stats` are the current ones of this
    /// worker, and stay as they are: they never decrease.
    fn reset_totals(&mut self, stats: &Stats);

    /// Returns the number of keys in the database `space`, in all shards.
    fn keys(&self, space: u8) -> u64;

    /// Returns the slow requests of all workers, the newest first, at most [`Settings::slow_entries`].
    fn slow_log(&self) -> Vec<SlowRequest>;

    /// Removes all requests from the slow log.
    fn reset_slow_log(&mut self);

    /// Where clients may read strings by themselves, and how they lie there, if they may.
    fn export(&self) -> Option<(RemoteAddr, Layout)>;

    /// The counters that clients may count with by themselves, if there are any, and where the first of them is.
    fn counters(&self) -> Option<(&Names, RemoteAddr)>;
}

/// Change of the settings.
pub type Change<'a> = dyn FnMut(&mut Settings) -> Result<(), Rejected> + 'a;

/// Reason why a parameter was not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Name of the parameter.
    pub parameter: &'static str,
    /// Reason, as `CONFIG SET` reports it.
    pub reason: String,
}

/// What `CONFIG` shows and sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Without it whoever comes may do all.
    pub password: Option<Vec<u8>>,
    /// Bytes that all shards may take.
    pub memory: u64,
    /// What goes when they are taken.
    pub evict: EvictionPolicy,
    /// Seconds after which who is silent is disconnected; 0 is never.
    pub timeout: u32,
    /// Connections at most.
    pub clients: u32,
    /// Bytes of replies that wait for a client at most; 0 is any.
    pub output: u64,
    /// Bytes of an argument at most.
    pub bulk: u64,
    /// Bytes of requests that are kept for a client at most: of one that has not come whole, but for long values, and of those
    /// that wait for `EXEC`.
    pub query: u64,
    /// Microseconds for which a request holds a worker before it is in the slow log (`slowlog-log-slower-than`). If negative, none is.
    pub slow_micros: i64,
    /// Maximum number of requests in the slow log (`slowlog-max-len`).
    pub slow_entries: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            password: None,
            memory: 1 << 30,
            evict: EvictionPolicy::None,
            timeout: 0,
            clients: 10_000,
            output: 0,
            bulk: 512 << 20,
            query: 64 << 20,
            slow_micros: 10_000,
            slow_entries: 128,
        }
    }
}

/// What a worker counts while it runs commands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Commands, those refused among them.
    pub commands: u64,
    /// Replies that were errors.
    pub errors: u64,
    /// Keys that were looked for and found.
    pub hits: u64,
    /// Keys that were looked for and not found.
    pub misses: u64,
    /// Requests that held a worker for more than 10 ms.
    pub slow: u64,
}

/// What `INFO` says of the server.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// What all workers counted.
    pub stats: Stats,
    /// Connections at present.
    pub clients: u64,
    /// Connections that came.
    pub accepted: u64,
    /// Connections that were refused.
    pub rejected: u64,
    /// Bytes of requests.
    pub input: u64,
    /// Bytes of replies.
    pub output: u64,
    /// When the server began, in milliseconds since 1970.
    pub since: u64,
    /// Workers.
    pub workers: usize,
    /// Bytes that all shards take.
    pub used: u64,
    /// Keys that expired.
    pub expired: u64,
    /// Keys that were evicted.
    pub evicted: u64,
    /// Number of keys, and of those that have an expiry time, of each database.
    pub databases: [(u64, u64); DATABASES as usize],
}
