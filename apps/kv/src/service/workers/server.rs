//! Server interface of the commands, and the counters of a worker.

use crate::cluster::ClusterMap;
use crate::commands::{
    ClientInfo, PauseMode, RejectedSetting, Server, Settings, SettingsChange, SlowRequest, Stats, Totals,
};
use crate::counters::CounterNames;
use crate::export::Layout;
use crate::memcached;
use crate::service::Kv;
use crate::service::conn::{Foreign, ProtocolState};
use crate::service::pause::Pause;
use crate::service::workers::hub::{Hub, Tally};
use crate::service::workers::map_change::Cluster;
use crate::service::workers::messages::{Message, Outbox};
use crate::store::{EvictionPolicy, LONG_THRESHOLD};
use linerate_service::{ConnId, RemoteAddr, Transport};
use std::net::SocketAddr;
use std::sync::Arc;

/// Limit of a memcached item in bytes.
const ITEM: usize = 1 << 20;

/// View of the server on one worker.
pub(in crate::service) struct ServerView {
    hub: Arc<Hub>,
    worker: usize,
    settings: Arc<Settings>,
    version: u64,
    pub outbox: Outbox,
    /// Counters of this worker.
    pub tally: Tally,
    /// Clients of all workers, for the command that runs next.
    clients: Vec<ClientInfo>,
    /// Ids of clients to be disconnected.
    pub killed: Vec<u64>,
    /// Number of `flush_all` commands seen, and the time of the scheduled flush.
    pub flush: (u64, Option<u64>),
    /// Connections for which client lists are being collected, with the number of missing workers.
    lists: Vec<(ConnId, usize)>,
    /// Map of the cluster, in cluster mode, and the number of its replacements.
    map: Option<Arc<ClusterMap>>,
    map_version: u64,
    /// Pause of the clients that this worker obeys.
    pub pause: Pause,
}

impl ServerView {
    pub fn new(hub: Arc<Hub>, worker: usize, outbox: Outbox) -> Self {
        ServerView {
            settings: hub.settings(),
            version: hub.version(),
            map_version: hub.cluster().map_or(0, Cluster::version),
            map: hub.cluster().map(Cluster::map),
            outbox,
            worker,
            hub,
            tally: Tally::default(),
            clients: Vec::new(),
            killed: Vec::new(),
            flush: (0, None),
            lists: Vec::new(),
            pause: Pause::default(),
        }
    }

    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    #[inline]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn memcached_limits(&self) -> memcached::Limits {
        memcached::Limits { item: ITEM, long: LONG_THRESHOLD }
    }

    #[inline]
    pub fn read(&mut self, bytes: usize) {
        self.tally.input += bytes as u64;
    }

    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.tally.output += bytes as u64;
    }

    /// Counts a new client. Returns false if there are too many.
    pub fn admit(&mut self) -> bool {
        let is_admitted = self.hub.admit(self.settings.clients);
        *(if is_admitted { &mut self.tally.accepted } else { &mut self.tally.rejected }) += 1;
        is_admitted
    }

    pub fn dismiss(&self, was_admitted: bool) {
        if was_admitted {
            self.hub.dismiss();
        }
    }

    /// Stores the list of all clients for the command that runs next.
    pub fn show(&mut self, clients: Vec<ClientInfo>) {
        self.clients = clients;
    }

    /// Publishes the counters and refreshes the settings. Returns true if the settings changed.
    pub fn refresh(&mut self) -> bool {
        self.hub.count(self.worker, self.tally);
        let version = self.hub.version();
        let has_changed = version != self.version;
        if has_changed {
            (self.version, self.settings) = (version, self.hub.settings());
        }
        if let Some(flush) = self.hub.flush_since(self.flush.0) {
            self.flush = flush;
        }
        has_changed
    }

    /// Returns the map of the cluster, in cluster mode.
    #[inline]
    pub fn map(&self) -> Option<&ClusterMap> {
        self.map.as_deref()
    }

    /// Returns the number of replacements of the map in use.
    pub fn map_version(&self) -> u64 {
        self.map_version
    }

    /// Refreshes the map of the cluster. Returns the previous map if it was replaced.
    pub fn refresh_map(&mut self) -> Option<Arc<ClusterMap>> {
        let cluster = self.hub.cluster()?;
        let version = cluster.version();
        if version == self.map_version {
            return None;
        }
        self.map_version = version;
        self.map.replace(cluster.map())
    }

    pub fn reset_own_tally(&mut self) {
        self.hub.reset_tally_of(self.worker, self.tally);
    }

    fn reset_tallies(&mut self) {
        self.hub.count(self.worker, self.tally);
        self.hub.reset_tally();
        // Counts that other workers have not published yet belong to the time before the reset.
        self.send_to_others(|| Message::StatsReset);
    }

    fn send_to_others(&mut self, message: impl Fn() -> Message) {
        for worker in self.outbox.others(self.hub.workers()) {
            self.outbox.send(worker, message());
        }
    }

    /// Logs a request of another protocol from `peer`, at most once a minute as Redis does, because a log entry costs
    /// more than the request.
    #[cold]
    pub fn warn_of(&self, foreign: Foreign, peer: Option<SocketAddr>, now: u64) {
        if !self.hub.foreign_warnings.may_warn(now) {
            return;
        }
        let peer = peer.map_or_else(|| "a client".to_owned(), |peer| peer.to_string());
        match foreign {
            Foreign::Http => tracing::warn!(
                "possible attack: {peer} sent an HTTP request to the port of the key-value service, as a browser does \
                 for a malicious web page (cross-protocol scripting); it was disconnected"
            ),
            Foreign::Binary => tracing::warn!(
                "{peer} sent a request of memcached's binary protocol, which is not supported, and was disconnected: \
                 use the text protocol"
            ),
        }
    }

    /// Logs that the client `peer` with `bytes` of memory is disconnected, at most once a minute.
    pub fn warn_of_client_memory(&self, peer: Option<SocketAddr>, bytes: usize, now: u64) {
        if self.hub.memory_warnings.may_warn(now) {
            let peer = peer.map_or_else(|| "a client".to_owned(), |peer| peer.to_string());
            tracing::warn!(
                "the memory of the clients exceeds --max-client-memory (maxmemory-clients): {peer}, which had {bytes} \
                 bytes, was disconnected; evicted_clients of INFO stats counts such clients"
            );
        }
    }
}

impl Server for ServerView {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn update(&mut self, change: &mut SettingsChange<'_>) -> Result<(), RejectedSetting> {
        self.hub.update(change)?;
        self.refresh();
        self.send_to_others(|| Message::SettingsChanged);
        Ok(())
    }

    fn clients(&mut self) -> Vec<ClientInfo> {
        std::mem::take(&mut self.clients)
    }

    fn export(&self) -> Option<(RemoteAddr, Layout)> {
        self.hub.export()
    }

    fn counters(&self) -> Option<(&CounterNames, RemoteAddr)> {
        self.hub.counters()
    }

    fn kill(&mut self, id: u64) {
        self.killed.push(id);
    }

    fn pause(&mut self, mode: PauseMode, now: u64, end: u64) -> u64 {
        let version = self.hub.pauses().begin(mode, now, end);
        self.send_to_others(|| Message::PauseChanged);
        version
    }

    fn unpause(&mut self) -> u64 {
        let version = self.hub.pauses().end();
        self.send_to_others(|| Message::PauseChanged);
        version
    }

    fn is_pause_obeyed(&self, version: u64) -> bool {
        self.hub.pauses().is_obeyed(version)
    }

    fn totals(&mut self, stats: &Stats) -> Totals {
        self.tally.stats = *stats;
        self.hub.count(self.worker, self.tally);
        let mut totals = self.hub.totals().0;
        if self.map.is_some() {
            totals.databases = std::array::from_fn(|space| self.hub.keys_of(self.worker, space as u8));
        }
        totals
    }

    fn reset_totals(&mut self, stats: &Stats) {
        self.tally.stats = *stats;
        self.reset_tallies();
    }

    fn cluster(&self) -> Option<(&ClusterMap, usize)> {
        self.map.as_deref().map(|map| (map, self.worker))
    }

    fn keys(&self, space: u8) -> u64 {
        if self.map.is_some() { self.hub.keys_of(self.worker, space).0 } else { self.hub.keys_in(space) }
    }

    fn slow_log(&self) -> Vec<SlowRequest> {
        self.hub.slow_log().list(usize::try_from(self.settings.slow_entries).unwrap_or(usize::MAX))
    }

    fn reset_slow_log(&mut self) {
        self.hub.slow_log().clear();
    }
}

impl memcached::Server for ServerView {
    fn state(&mut self) -> memcached::ServerState {
        self.hub.count(self.worker, self.tally);
        let (totals, counts) = self.hub.totals();
        memcached::ServerState {
            since: totals.since,
            workers: totals.workers as u64,
            most_connections: self.settings.clients.into(),
            connections: totals.clients,
            accepted: totals.accepted,
            rejected: totals.rejected,
            input: totals.input,
            output: totals.output,
            port: self.hub.memcached(),
            udp: self.hub.datagrams().unwrap_or_default(),
            counts,
            memory: self.settings.memory,
            used: totals.used,
            evicts: self.settings.evict != EvictionPolicy::None,
            items: self.hub.keys_in(memcached::SPACE),
            expired: totals.expired,
            evicted: totals.evicted,
        }
    }

    fn reset(&mut self) {
        self.reset_tallies();
    }

    fn flush_at(&mut self, at: Option<u64>) {
        self.hub.flush_at(at);
        self.refresh();
    }
}

impl Kv {
    /// Returns the `CLIENT LIST` entries of this worker's clients.
    pub(in crate::service) fn listed(&mut self) -> Vec<ClientInfo> {
        let clients = self.clients.iter_mut().zip(&mut self.fast_states);
        let clients = clients.filter_map(|(client, fast_state)| client.as_mut().map(|client| (client, fast_state)));
        let clients = clients.map(|(client, fast_state)| {
            fast_state.sync_to(client);
            client
        });
        clients.filter_map(|client| client.session()).map(|session| session.client(self.now)).collect()
    }

    /// Collects the list of all clients for `conn`, whose own entry is `own`. Returns true if the list is complete at
    /// once. Otherwise it grows in `list`.
    pub(in crate::service) fn list_for(
        &mut self,
        conn: ConnId,
        own: ClientInfo,
        list: &mut Option<Vec<ClientInfo>>,
    ) -> bool {
        let since = self.stopwatch.now();
        let mut clients = self.listed();
        self.long_work.add(self.stopwatch.now().since(since));
        clients.push(own);
        let others: Vec<usize> = self.server.outbox.others(self.stores.len()).collect();
        if others.is_empty() {
            self.server.show(sorted(clients));
            return true;
        }
        self.server.lists.push((conn, others.len()));
        *list = Some(clients);
        for worker in others {
            self.server.outbox.send(worker, Message::ListClients(self.worker, conn));
        }
        false
    }

    /// Adds the clients of another worker to the list for `conn`.
    pub(in crate::service) fn list(&mut self, net: &mut impl Transport, conn: ConnId, clients: Vec<ClientInfo>) {
        let Some(at) = self.server.lists.iter().position(|(list, _)| *list == conn) else { return };
        let (_, missing) = &mut self.server.lists[at];
        *missing -= 1;
        let is_complete = *missing == 0;
        if is_complete {
            self.server.lists.swap_remove(at);
        }
        self.with_client(net, conn, |kv, net, client| {
            let list = client.list.get_or_insert_default();
            list.extend(clients);
            if !is_complete {
                return;
            }
            list.sort_by_key(|client| client.id);
            client.pending_replies -= 1;
            kv.resume(net, client);
        });
    }

    /// Disconnects the clients of this worker whose ids are in `ids`, which is sorted.
    pub(in crate::service) fn disconnect(&mut self, net: &mut impl Transport, ids: &[u64]) {
        for client in self.clients.iter_mut().flatten() {
            if let ProtocolState::Resp { session, .. } = &client.protocol_state
                && ids.binary_search(&session.id()).is_ok()
            {
                net.abort(client.conn);
            }
        }
    }
}

/// Sorts clients by id, which is the order of their connection.
fn sorted(mut clients: Vec<ClientInfo>) -> Vec<ClientInfo> {
    clients.sort_by_key(|client| client.id);
    clients
}
