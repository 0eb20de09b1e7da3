//! What commands ask of the server as a whole, and what a worker counts.

use crate::commands::{Change, ClientInfo, RejectedSetting, Server, Settings, SlowRequest, Stats, Totals};
use crate::counters::Names;
use crate::export::Layout;
use crate::memcached;
use crate::service::Kv;
use crate::service::conn::Speech;
use crate::service::workers::hub::{Hub, Tally};
use crate::service::workers::messages::{Message, Outbox};
use crate::store::{EvictionPolicy, LONG_THRESHOLD};
use linerate_bypass::{ConnId, RemoteAddr, Transport};
use std::net::SocketAddr;
use std::sync::Arc;

/// Bytes of a memcached item at most.
const ITEM: usize = 1 << 20;

/// A worker's view of the server.
pub(in crate::service) struct Host {
    hub: Arc<Hub>,
    worker: usize,
    settings: Arc<Settings>,
    version: u64,
    pub outbox: Outbox,
    /// What this worker has counted by itself.
    pub tally: Tally,
    /// The clients of all workers, where a command wants to know.
    clients: Vec<ClientInfo>,
    /// Clients that are to be disconnected.
    pub killed: Vec<u64>,
    /// When memcached clients' keys are flushed here, and how often that was said.
    pub flush: (u64, Option<u64>),
    /// Lists of clients that are being put together: for which connection, for how many workers they are missing.
    lists: Vec<(ConnId, usize, Vec<ClientInfo>)>,
}

impl Host {
    pub fn new(hub: Arc<Hub>, worker: usize, outbox: Outbox) -> Self {
        Host {
            settings: hub.settings(),
            version: hub.version(),
            outbox,
            worker,
            hub,
            tally: Tally::default(),
            clients: Vec::new(),
            killed: Vec::new(),
            flush: (0, None),
            lists: Vec::new(),
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

    /// Whether one client more may come.
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

    /// These are all clients, for the command that is run next.
    pub fn show(&mut self, clients: Vec<ClientInfo>) {
        self.clients = clients;
    }

    /// Goes by what is set now, and says what was counted. Returns whether the settings have changed.
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

    /// Lets the figures of this worker count from 0.
    pub fn reset_own_tally(&mut self) {
        self.hub.reset_tally_of(self.worker, self.tally);
    }

    /// Has all workers let their figures count from 0.
    fn reset_tallies(&mut self) {
        self.hub.count(self.worker, self.tally);
        self.hub.reset_tally();
        // Counts that the other workers have not published yet precede the reset, too.
        self.tell_others(|| Message::StatsReset);
    }

    fn tell_others(&mut self, message: impl Fn() -> Message) {
        for worker in self.outbox.others(self.hub.workers()) {
            self.outbox.send(worker, message());
        }
    }

    /// Logs that a client at `peer` has sent an HTTP request, once a minute as Redis does, for each log entry costs more than the
    /// request.
    pub fn warn_of_http(&self, peer: Option<SocketAddr>, now: u64) {
        if self.hub.may_warn(now) {
            let peer = peer.map_or_else(|| "a client".to_owned(), |peer| peer.to_string());
            tracing::warn!(
                "possible attack: {peer} sent an HTTP request to the port of the key-value service, as a browser does that a web \
                 page made to (cross-protocol scripting); the connection was reset"
            );
        }
    }
}

impl Server for Host {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn update(&mut self, change: &mut Change<'_>) -> Result<(), RejectedSetting> {
        self.hub.update(change)?;
        self.refresh();
        self.tell_others(|| Message::SettingsChanged);
        Ok(())
    }

    fn clients(&mut self) -> Vec<ClientInfo> {
        std::mem::take(&mut self.clients)
    }

    fn export(&self) -> Option<(RemoteAddr, Layout)> {
        self.hub.export()
    }

    fn counters(&self) -> Option<(&Names, RemoteAddr)> {
        self.hub.counters()
    }

    fn kill(&mut self, id: u64) {
        self.killed.push(id);
    }

    fn totals(&mut self, stats: &Stats) -> Totals {
        self.tally.stats = *stats;
        self.hub.count(self.worker, self.tally);
        self.hub.totals().0
    }

    fn reset_totals(&mut self, stats: &Stats) {
        self.tally.stats = *stats;
        self.reset_tallies();
    }

    fn keys(&self, space: u8) -> u64 {
        self.hub.keys_in(space)
    }

    fn slow_log(&self) -> Vec<SlowRequest> {
        self.hub.slow_log().list(usize::try_from(self.settings.slow_entries).unwrap_or(usize::MAX))
    }

    fn reset_slow_log(&mut self) {
        self.hub.slow_log().clear();
    }
}

impl memcached::Server for Host {
    fn facts(&mut self, counts: &memcached::Counts) -> memcached::Facts {
        self.tally.counts = *counts;
        self.hub.count(self.worker, self.tally);
        let (totals, counts) = self.hub.totals();
        memcached::Facts {
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

    fn reset(&mut self, counts: &memcached::Counts) {
        self.tally.counts = *counts;
        self.reset_tallies();
    }

    fn flush_at(&mut self, at: Option<u64>) {
        self.hub.flush_at(at);
        self.refresh();
    }
}

impl Kv {
    /// The clients of this worker as others see them.
    pub(in crate::service) fn listed(&mut self) -> Vec<ClientInfo> {
        let clients = self.clients.iter_mut().zip(&mut self.lanes);
        let clients = clients.filter_map(|(client, lane)| client.as_mut().map(|client| (client, lane)));
        let clients = clients.map(|(client, lane)| {
            lane.tell(client);
            client
        });
        clients.filter_map(|client| client.session()).map(|session| session.client(self.now)).collect()
    }

    /// The client of `conn`, which is being worked with, wants the list of all. Returns whether it is there.
    pub(in crate::service) fn list_for(&mut self, conn: ConnId, own: ClientInfo) -> bool {
        let mut clients = self.listed();
        clients.push(own);
        let others: Vec<usize> = self.host.outbox.others(self.stores.len()).collect();
        if others.is_empty() {
            self.host.show(sorted(clients));
            return true;
        }
        self.host.lists.push((conn, others.len(), clients));
        for worker in others {
            self.host.outbox.send(worker, Message::WhoIsThere(self.worker, conn));
        }
        false
    }

    /// The clients of another worker are known, for the list that `conn` wants.
    pub(in crate::service) fn list(&mut self, net: &mut impl Transport, conn: ConnId, clients: Vec<ClientInfo>) {
        let Some(at) = self.host.lists.iter().position(|(list, ..)| *list == conn) else { return };
        let (_, missing, list) = &mut self.host.lists[at];
        list.extend(clients);
        *missing -= 1;
        if *missing > 0 {
            return;
        }
        let (_, _, list) = self.host.lists.swap_remove(at);
        self.with_client(net, conn, |kv, net, client| {
            client.list = Some(sorted(list));
            client.awaits -= 1;
            kv.resume(net, client);
        });
    }

    /// Disconnects the client with the number `id`, if it is here.
    pub(in crate::service) fn disconnect(&mut self, net: &mut impl Transport, id: u64) {
        for client in self.clients.iter_mut().flatten() {
            if let Speech::Resp { session, .. } = &client.speech
                && session.id() == id
            {
                net.abort(client.conn);
            }
        }
    }
}

/// In the order in which they came.
fn sorted(mut clients: Vec<ClientInfo>) -> Vec<ClientInfo> {
    clients.sort_by_key(|client| client.id);
    clients
}
