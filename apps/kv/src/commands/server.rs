//! Interface of the commands to the server.

use crate::cluster::ClusterMap;
use crate::commands::admin::slowlog::SlowRequest;
use crate::commands::session::ClientInfo;
use crate::counters::CounterNames;
use crate::export::Layout;
use crate::store::{DATABASES, EvictionPolicy};
use linerate_service::RemoteAddr;

/// Server around the worker that runs a command: settings, connections and counters.
///
/// The methods concern all workers and are called by rare commands only. Shards of other workers, and the list of
/// connections, are requested [before the command runs](crate::commands::Request::needed_shards).
pub trait Server {
    fn settings(&self) -> &Settings;

    /// Changes the settings of all workers. The caller applies them to the shards it has borrowed.
    ///
    /// `change` gets a copy of the current settings, which replaces them unless the change is rejected. Concurrent
    /// changes are applied one after the other, so none is lost.
    fn update(&mut self, change: &mut SettingsChange<'_>) -> Result<(), RejectedSetting>;

    /// Returns all connections. The entry of the calling connection may be outdated.
    fn clients(&mut self) -> Vec<ClientInfo>;

    /// Closes the connection `id`, which is not the calling one.
    fn kill(&mut self, id: u64);

    /// Pauses the clients of all workers until `end`, in milliseconds since 1970, and returns the version of the pause.
    fn pause(&mut self, mode: PauseMode, now: u64, end: u64) -> u64;

    /// Ends the pause of the clients and returns the version of this change.
    fn unpause(&mut self) -> u64;

    /// Returns true if all workers obey the change of the pause with this version.
    fn is_pause_obeyed(&self, version: u64) -> bool;

    /// Returns the counters of all workers. `stats` are the current counters of this worker. The counters of other
    /// workers may be some milliseconds old.
    fn totals(&mut self, stats: &Stats) -> Totals;

    /// Restarts the totals at 0, except those that describe the present state. `stats` are the current counters of this
    /// worker, which stay as they are: they never decrease.
    fn reset_totals(&mut self, stats: &Stats);

    /// Returns the map of the cluster and the worker whose node answers, in cluster mode.
    fn cluster(&self) -> Option<(&ClusterMap, usize)>;

    /// Returns the number of keys in the database `space`, in all shards or, in cluster mode, in the shard of the node.
    fn keys(&self, space: u8) -> u64;

    /// Returns the slow requests of all workers, the newest first, at most [`Settings::slow_entries`].
    fn slow_log(&self) -> Vec<SlowRequest>;

    fn reset_slow_log(&mut self);

    /// Returns the memory and layout of the strings exported for RDMA READ, if there are any.
    fn export(&self) -> Option<(RemoteAddr, Layout)>;

    /// Returns the counters exported for RDMA atomics and the remote address of the first one, if there are any.
    fn counters(&self) -> Option<(&CounterNames, RemoteAddr)>;
}

/// Commands that wait during a pause of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PauseMode {
    /// Commands that change keys.
    Write,
    All,
}

/// Change of the settings.
pub type SettingsChange<'a> = dyn FnMut(&mut Settings) -> Result<(), RejectedSetting> + 'a;

/// Rejection of a change of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedSetting {
    pub parameter: &'static str,
    /// Reason, as `CONFIG SET` reports it.
    pub reason: String,
}

/// Settings of the server (`CONFIG`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Password. Without one, all clients are authenticated.
    pub password: Option<Vec<u8>>,
    /// Memory limit of all shards in bytes (`maxmemory`).
    pub memory: u64,
    /// Eviction policy at the memory limit (`maxmemory-policy`).
    pub evict: EvictionPolicy,
    /// Seconds after which an idle client is disconnected, or 0 for never (`timeout`).
    pub timeout: u32,
    /// Maximum number of connections (`maxclients`).
    pub clients: u32,
    /// Limit of reply bytes queued for a client, or 0 for none (`client-output-buffer-limit`).
    pub output: u64,
    /// Limit of an argument in bytes (`proto-max-bulk-len`).
    pub bulk: u64,
    /// Limit of the memory of all clients in bytes, or 0 for none (`maxmemory-clients`).
    pub client_memory: u64,
    /// Limit of request bytes kept for a client (`client-query-buffer-limit`): an incomplete request without its long
    /// values, and commands queued by `MULTI`.
    pub query: u64,
    /// Microseconds from which a request enters the slow log (`slowlog-log-slower-than`). Negative disables it.
    pub slow_micros: i64,
    /// Maximum number of requests in the slow log (`slowlog-max-len`).
    pub slow_entries: u64,
    /// The server is part of a cluster (`cluster-enabled`). The server sets this itself.
    pub is_cluster: bool,
    /// TLS of Redis clients, if there is any.
    pub tls: Option<TlsSettings>,
}

/// TLS of Redis clients as `CONFIG GET` reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// Port without TLS, or 0. In a cluster, that of the first worker.
    pub plain_port: u16,
    /// Port with TLS, likewise (`tls-port`).
    pub port: u16,
    /// Certificate chain (`tls-cert-file`).
    pub cert: String,
    /// Private key (`tls-key-file`).
    pub key: String,
    /// Authorities of the certificates of clients, or empty (`tls-ca-cert-file`).
    pub client_ca: String,
    /// Verification of clients: `no`, `optional` or `yes` (`tls-auth-clients`).
    pub client_auth: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            password: None,
            memory: 1 << 30,
            evict: EvictionPolicy::None,
            timeout: 0,
            clients: 10_000,
            output: 64 << 20,
            bulk: 512 << 20,
            client_memory: 512 << 20,
            query: 64 << 20,
            slow_micros: 10_000,
            slow_entries: 128,
            is_cluster: false,
            tls: None,
        }
    }
}

/// Counters of a worker.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Commands, including failed ones.
    pub commands: u64,
    pub errors: u64,
    /// Lookups that found the key.
    pub hits: u64,
    /// Lookups that did not find the key.
    pub misses: u64,
    /// Requests that held a worker for more than 10 ms.
    pub slow: u64,
    /// Commands that are not `GET`, by [`CommandType`].
    pub by_type: [u64; CommandType::ALL.len()],
    /// Batches of requests sent to other workers.
    pub batches: u64,
    /// Requests in these batches.
    pub batched: u64,
}

/// Type of a command, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandType {
    Set,
    /// Other command that changes keys.
    Write,
    /// Command that reads keys, except `GET`.
    Read,
    /// Command on connections or the server.
    Other,
}

impl CommandType {
    pub const ALL: [Self; 4] = [CommandType::Set, CommandType::Write, CommandType::Read, CommandType::Other];

    pub fn label(self) -> &'static str {
        match self {
            CommandType::Set => "set",
            CommandType::Write => "write",
            CommandType::Read => "read",
            CommandType::Other => "other",
        }
    }
}

impl Stats {
    /// Counts a command that is not `GET`. `GET` needs no counter of its own: its count is the rest of
    /// [`commands`](Self::commands).
    #[inline]
    pub fn count_type(&mut self, command_type: CommandType) {
        self.by_type[command_type as usize] += 1;
    }

    #[inline]
    pub(super) fn count_lookup(&mut self, is_found: bool) {
        self.hits += u64::from(is_found);
        self.misses += u64::from(!is_found);
    }
}

/// Totals of the server for `INFO`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Sums of the workers' counters.
    pub stats: Stats,
    pub clients: u64,
    /// Connections whose request waits for the end of a pause.
    pub held: u64,
    pub accepted: u64,
    pub rejected: u64,
    /// Clients disconnected because of [`Settings::client_memory`].
    pub evicted_clients: u64,
    pub input: u64,
    pub output: u64,
    /// Start of the server, in milliseconds since 1970.
    pub since: u64,
    pub workers: usize,
    /// Bytes in use by all shards.
    pub used: u64,
    pub expired: u64,
    pub evicted: u64,
    /// Number of keys, and of keys with an expiry time, in each database; in cluster mode, in the shard of the node.
    pub databases: [(u64, u64); DATABASES as usize],
}
