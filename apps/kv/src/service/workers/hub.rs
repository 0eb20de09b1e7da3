//! State shared by all workers of a service.

use crate::cluster::ClusterMap;
use crate::commands::{RejectedSetting, Settings, SettingsChange, Stats, Totals};
use crate::counters::CounterNames;
use crate::export::{Export, Layout};
use crate::memcached::{Counts, WorkerCounts};
use crate::service::client_memory::ClientMemoryBoard;
use crate::service::clock::Start;
use crate::service::lock;
use crate::service::monitoring::slow_log::{SlowLog, Warnings};
use crate::service::pause::PauseBoard;
use crate::service::workers::access::PasswordConflict;
use crate::service::workers::map_change::Cluster;
use crate::shards::Placement;
use crate::store::{self, KeyHasher, LONG_THRESHOLD, ShardStats, Store};
use linerate_bypass::arena::Arena;
use linerate_service::{RemoteAddr, RemoteAddrCell};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Lower bound of the memory limit in bytes.
const LEAST_MEMORY: u64 = 4 << 20;

/// Configuration of a service.
#[derive(Debug, Clone)]
pub struct Config {
    /// Initial settings, which can change at run time.
    pub settings: Settings,
    /// Number of workers, and of shards.
    pub workers: usize,
    /// Port of memcached clients. All other ports are for Redis clients.
    pub memcached: Option<u16>,
    /// Port of memcached clients with TLS.
    pub memcached_tls: Option<u16>,
    /// Arena of items and values, which use up to [`Settings::memory`] bytes. Long values are sent without a copy if
    /// the transport can read the arena.
    pub arena: Arena,
    /// Export of short strings for RDMA READ, laid out for as many shards as workers, and its remote address once that
    /// is known.
    pub export: Option<(Arc<Export>, RemoteAddrCell)>,
    /// Counters for RDMA atomics, and their remote address once that is known.
    pub counters: Option<(Arc<CounterNames>, RemoteAddrCell)>,
}

/// State shared by all workers. Workers copy the values that every request needs, and refresh the copies periodically.
pub struct Hub {
    workers: usize,
    memcached: Option<u16>,
    memcached_tls: Option<u16>,
    /// True if memcached clients may use datagrams.
    datagrams: AtomicBool,
    /// True if each worker has a memcached port and keys of its own.
    shards_memcached: AtomicBool,
    store: store::Config,
    export: Option<(Arc<Export>, RemoteAddrCell)>,
    counters: Option<(Arc<CounterNames>, RemoteAddrCell)>,
    /// Upper bound of the memory limit: the mapped bytes.
    max_memory: u64,
    start: Start,
    settings: Mutex<Arc<Settings>>,
    /// Number of changes of the settings.
    version: AtomicU64,
    next_client: AtomicU64,
    clients: AtomicU32,
    tallies: Vec<Mutex<Counted>>,
    /// Counters of memcached requests, of each worker.
    counts: Vec<Arc<WorkerCounts>>,
    /// Sum of these counters at the last reset.
    counts_before: Mutex<Counts>,
    shards: Vec<Arc<ShardStats>>,
    /// Expired and evicted keys at the last reset.
    removed_before: Mutex<store::Counts>,
    pub(in crate::service) foreign_warnings: Warnings,
    pub(in crate::service) memory_warnings: Warnings,
    client_memory: ClientMemoryBoard,
    slow_log: SlowLog,
    /// Number of `flush_all` commands, and the time of the next flush of the memcached keyspace.
    flush: Mutex<(u64, Option<u64>)>,
    flushes: AtomicU64,
    cluster: Option<Cluster>,
    pauses: PauseBoard,
}

/// Counters of one worker.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    /// Since the start of the worker. They never decrease.
    now: Tally,
    /// At the last reset.
    before: Tally,
}

/// Counters of a worker.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::service) struct Tally {
    pub stats: Stats,
    pub accepted: u64,
    pub rejected: u64,
    /// Clients disconnected because of the limit of their memory.
    pub evicted: u64,
    pub input: u64,
    pub output: u64,
}

impl Tally {
    /// Combines each counter with that of `other`.
    fn combine(&mut self, other: &Tally, by: fn(u64, u64) -> u64) {
        let pairs = [
            (&mut self.stats.commands, other.stats.commands),
            (&mut self.stats.errors, other.stats.errors),
            (&mut self.stats.hits, other.stats.hits),
            (&mut self.stats.misses, other.stats.misses),
            (&mut self.stats.slow, other.stats.slow),
            (&mut self.accepted, other.accepted),
            (&mut self.rejected, other.rejected),
            (&mut self.evicted, other.evicted),
            (&mut self.input, other.input),
            (&mut self.output, other.output),
        ];
        pairs.into_iter().for_each(|(count, other)| *count = by(*count, other));
    }
}

/// Returns a hash secret from the system's randomness. Clients that choose keys cannot guess it.
fn random_key() -> [u8; 16] {
    let halves = [(); 2].map(|()| RandomState::new().build_hasher().finish().to_ne_bytes());
    std::array::from_fn(|at| halves[at / 8][at % 8])
}

impl Hub {
    /// Creates the shared state with a random hash secret.
    pub fn new(config: Config) -> Arc<Self> {
        Hub::with_key(config, random_key())
    }

    /// Creates the shared state of the nodes of a cluster, which has one node for each worker.
    ///
    /// # Panics
    /// Panics if `map` has been made for another number of workers.
    pub fn in_cluster(config: Config, map: ClusterMap) -> Arc<Self> {
        assert_eq!(map.workers(), config.workers, "the map has another number of workers");
        Hub::build(config, random_key(), Some(map))
    }

    /// Replaces the map of the cluster. Keys in slots that go to other machines are removed in the background, and
    /// until that is done the next map waits. Slots that go from one worker to another one of this process stay in
    /// their shards. Returns false if `map` has to wait.
    ///
    /// # Panics
    /// Panics if this server is not in a cluster, or if `map` has been made for another number of workers.
    pub fn replace_map(&self, map: ClusterMap) -> bool {
        assert_eq!(map.workers(), self.workers, "the map has another number of workers");
        self.cluster.as_ref().expect("the server is in a cluster").replace(map)
    }

    /// Creates the shared state with the hash secret `key`, so that two runs behave identically: for measurements.
    /// Clients that know the secret can choose colliding keys.
    pub fn with_key(config: Config, key: [u8; 16]) -> Arc<Self> {
        Hub::build(config, key, None)
    }

    fn build(config: Config, key: [u8; 16], map: Option<ClusterMap>) -> Arc<Self> {
        let Config { mut settings, workers, memcached, memcached_tls, arena, export, counters } = config;
        settings.is_cluster = map.is_some();
        let store = store::Config {
            memory: settings.memory as usize / workers.max(1),
            evict: settings.evict,
            key,
            long: LONG_THRESHOLD,
            has_slots: map.is_some(),
            arena,
        };
        Arc::new(Hub {
            workers,
            memcached,
            memcached_tls,
            datagrams: AtomicBool::new(false),
            shards_memcached: AtomicBool::new(false),
            store,
            export,
            counters,
            max_memory: settings.memory,
            start: Start::now(),
            settings: Mutex::new(Arc::new(settings)),
            version: AtomicU64::new(0),
            next_client: AtomicU64::new(1),
            clients: AtomicU32::new(0),
            tallies: (0..workers).map(|_| Mutex::default()).collect(),
            counts: (0..workers).map(|_| Arc::default()).collect(),
            counts_before: Mutex::default(),
            shards: (0..workers).map(|_| Arc::default()).collect(),
            removed_before: Mutex::default(),
            foreign_warnings: Warnings::default(),
            memory_warnings: Warnings::default(),
            client_memory: ClientMemoryBoard::new(workers),
            slow_log: SlowLog::new(workers),
            flush: Mutex::default(),
            flushes: AtomicU64::new(0),
            pauses: PauseBoard::new(workers),
            cluster: map.map(Cluster::new),
        })
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    pub(in crate::service) fn hasher(&self) -> KeyHasher {
        KeyHasher::new(&self.store.key).with_slots(self.is_cluster())
    }

    /// Returns true in cluster mode.
    pub(in crate::service) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Returns the placement of keys as `worker` sees it.
    pub(in crate::service) fn placement(&self, worker: usize) -> Placement {
        match &self.cluster {
            Some(cluster) => Placement::by_slot(self.workers, worker, cluster.of_slots.clone()),
            None => Placement::new(self.workers),
        }
    }

    /// Returns the map of the cluster and its replacement, in cluster mode.
    pub(in crate::service) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Returns the RDMA counters and the remote address of the first one.
    pub(in crate::service) fn counters(&self) -> Option<(&CounterNames, RemoteAddr)> {
        let (names, addr) = self.counters.as_ref()?;
        Some((names, *addr.get()?))
    }

    /// Returns true if strings are exported.
    pub(in crate::service) fn exports(&self) -> bool {
        self.export.is_some()
    }

    pub(in crate::service) fn export(&self) -> Option<(RemoteAddr, Layout)> {
        let (export, addr) = self.export.as_ref()?;
        Some((*addr.get()?, *export.layout()))
    }

    pub(in crate::service) fn start_time(&self) -> Start {
        self.start
    }

    pub(in crate::service) fn store(&self, worker: usize, now: u64) -> Store {
        let mut store = Store::with_stats(&self.store, now, self.shards[worker].clone());
        if let Some((export, _)) = &self.export {
            store.export_to(export.writer(worker));
        }
        store
    }

    pub(in crate::service) fn is_memcached(&self, port: u16) -> bool {
        let ports = if self.shards_memcached() { self.workers } else { 1 };
        let mut first = self.memcached.into_iter().chain(self.memcached_tls).map(usize::from);
        first.any(|first| (first..first + ports).contains(&port.into()))
    }

    /// Makes workers created from now on keep the keys of memcached clients to themselves. The clients of worker *n*
    /// use the memcached port plus *n*, and see the keys of this worker only.
    pub fn shard_memcached(&self) {
        self.shards_memcached.store(true, Ordering::Relaxed);
    }

    /// Returns true if each worker keeps the keys of its memcached clients to itself.
    pub(in crate::service) fn shards_memcached(&self) -> bool {
        self.shards_memcached.load(Ordering::Relaxed)
    }

    pub(in crate::service) fn pauses(&self) -> &PauseBoard {
        &self.pauses
    }

    pub(in crate::service) fn slow_log(&self) -> &SlowLog {
        &self.slow_log
    }

    pub(in crate::service) fn memcached(&self) -> u16 {
        self.memcached.or(self.memcached_tls).unwrap_or_default()
    }

    /// Makes workers created from now on answer datagrams on the memcached port. Datagrams carry no password, and their
    /// source can be forged. Without this call, datagrams are ignored.
    pub fn answer_datagrams(&self) {
        self.datagrams.store(true, Ordering::Relaxed);
    }

    /// Returns the port on which datagrams are answered.
    pub(in crate::service) fn datagrams(&self) -> Option<u16> {
        self.memcached.filter(|_| self.datagrams.load(Ordering::Relaxed))
    }

    pub(in crate::service) fn next_client(&self) -> u64 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    pub(in crate::service) fn settings(&self) -> Arc<Settings> {
        lock(&self.settings).clone()
    }

    pub(in crate::service) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Applies `change` to the settings. The lock is held throughout, so concurrent changes are all kept.
    pub(in crate::service) fn update(&self, change: &mut SettingsChange<'_>) -> Result<(), RejectedSetting> {
        let mut current = lock(&self.settings);
        let mut settings = Settings::clone(&current);
        change(&mut settings)?;
        self.check(&settings, &current)?;
        *current = Arc::new(settings);
        self.version.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self, settings: &Settings, current: &Settings) -> Result<(), RejectedSetting> {
        let rejected = |parameter, reason| Err(RejectedSetting { parameter, reason });
        let range = LEAST_MEMORY..=self.max_memory;
        if settings.memory != current.memory && !range.contains(&settings.memory) {
            let reason = format!("argument must be between {} and {} inclusive", range.start(), range.end());
            return rejected("maxmemory", reason);
        }
        let udp = self.datagrams.load(Ordering::Relaxed);
        if settings.password.is_some()
            && let Some(conflict) = PasswordConflict::find(udp, self.export.is_some(), self.counters.is_some())
        {
            return rejected("requirepass", conflict.to_string());
        }
        Ok(())
    }

    /// Counts a new client. Returns false if there are `most` clients already.
    pub(in crate::service) fn admit(&self, most: u32) -> bool {
        let is_admitted = self.clients.fetch_add(1, Ordering::Relaxed) < most;
        if !is_admitted {
            self.dismiss();
        }
        is_admitted
    }

    pub(in crate::service) fn dismiss(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Publishes the counters of `worker`.
    pub(in crate::service) fn count(&self, worker: usize, tally: Tally) {
        lock(&self.tallies[worker]).now = tally;
    }

    /// Returns the counters of all workers since the last reset.
    fn tally(&self) -> Tally {
        let mut all = Tally::default();
        for counted in &self.tallies {
            let Counted { mut now, before } = *lock(counted);
            now.combine(&before, u64::saturating_sub);
            all.combine(&now, |all, more| all + more);
        }
        all
    }

    /// Resets the published counters of all workers.
    pub(in crate::service) fn reset_tally(&self) {
        for counted in &self.tallies {
            let mut counted = lock(counted);
            counted.before = counted.now;
        }
        *lock(&self.counts_before) = self.all_counts();
        *lock(&self.removed_before) = self.removed();
    }

    pub(in crate::service) fn reset_tally_of(&self, worker: usize, tally: Tally) {
        *lock(&self.tallies[worker]) = Counted { now: tally, before: tally };
    }

    pub(in crate::service) fn shard_stats(&self, worker: usize) -> &ShardStats {
        &self.shards[worker]
    }

    /// Returns the number of keys in `space`, and of those with an expiry time, in the shard of `worker`.
    pub(in crate::service) fn keys_of(&self, worker: usize, space: u8) -> (u64, u64) {
        (self.shards[worker].keys(space), self.shards[worker].expiring(space))
    }

    pub(in crate::service) fn keys_in(&self, space: u8) -> u64 {
        self.shards.iter().map(|shard| shard.keys(space)).sum()
    }

    /// Returns the counters of memcached requests that `worker` increments.
    pub(in crate::service) fn counts(&self, worker: usize) -> Arc<WorkerCounts> {
        self.counts[worker].clone()
    }

    /// Returns the counters of memcached requests of all workers since the start.
    fn all_counts(&self) -> Counts {
        let mut all = Counts::default();
        self.counts.iter().for_each(|counts| all += counts.values());
        all
    }

    /// Returns the numbers of expired and evicted keys in all shards.
    fn removed(&self) -> store::Counts {
        self.shards.iter().map(|shard| shard.counts()).fold(store::Counts::default(), |all, shard| store::Counts {
            expired: all.expired + shard.expired,
            evicted: all.evicted + shard.evicted,
        })
    }

    pub(in crate::service) fn client_memory(&self) -> &ClientMemoryBoard {
        &self.client_memory
    }

    /// Returns the totals since the last reset.
    pub(in crate::service) fn totals(&self) -> (Totals, Counts) {
        let (all, removed, before) = (self.tally(), self.removed(), *lock(&self.removed_before));
        let mut counts = self.all_counts();
        counts -= *lock(&self.counts_before);
        let totals = Totals {
            stats: all.stats,
            clients: self.clients.load(Ordering::Relaxed).into(),
            held: self.pauses.held(),
            accepted: all.accepted,
            rejected: all.rejected,
            evicted_clients: all.evicted,
            input: all.input,
            output: all.output,
            since: self.start.millis(),
            workers: self.workers,
            used: self.shards.iter().map(|shard| shard.used()).sum(),
            expired: removed.expired.saturating_sub(before.expired),
            evicted: removed.evicted.saturating_sub(before.evicted),
            databases: std::array::from_fn(|space| {
                let expiring = self.shards.iter().map(|shard| shard.expiring(space as u8)).sum();
                (self.keys_in(space as u8), expiring)
            }),
        };
        (totals, counts)
    }

    /// Schedules a flush of the memcached keyspace on all workers, or cancels it.
    pub(in crate::service) fn flush_at(&self, at: Option<u64>) {
        let mut flush = lock(&self.flush);
        *flush = (flush.0 + 1, at);
        self.flushes.store(flush.0, Ordering::Release);
    }

    /// Returns the scheduled flush and the number of `flush_all` commands, if that number differs from `seen`.
    pub(in crate::service) fn flush_since(&self, seen: u64) -> Option<(u64, Option<u64>)> {
        (self.flushes.load(Ordering::Acquire) != seen).then(|| *lock(&self.flush))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::{SEED, export};
    use linerate_bypass::arena::ArenaConfig;

    fn config() -> Config {
        let arena = Arena::new(ArenaConfig { bytes: 4 << 20, hugepages: false }).unwrap();
        let settings = Settings { memory: 8 << 20, ..Settings::default() };
        let (export, counters) = (None, None);
        Config { settings, workers: 1, memcached: None, memcached_tls: None, arena, export, counters }
    }

    fn set_password(hub: &Hub, password: Option<&[u8]>) -> Result<(), RejectedSetting> {
        hub.update(&mut |settings| {
            settings.password = password.map(<[u8]>::to_vec);
            Ok(())
        })
    }

    #[test]
    fn update_loses_no_change_of_another_thread() {
        const TIMES: u32 = 10_000;
        let hub = Hub::new(config());
        let before = hub.settings();
        std::thread::scope(|scope| {
            let hub = &hub;
            let change = |add: fn(&mut Settings)| {
                move || {
                    for _ in 0..TIMES {
                        let mut change = |settings: &mut Settings| {
                            add(settings);
                            Ok(())
                        };
                        hub.update(&mut change).unwrap();
                    }
                }
            };
            scope.spawn(change(|settings| settings.timeout += 1));
            scope.spawn(change(|settings| settings.clients += 1));
        });
        let after = hub.settings();
        assert_eq!((after.timeout, after.clients), (before.timeout + TIMES, before.clients + TIMES));
    }

    #[test]
    fn update_holds_lock_from_copy_to_replacement() {
        let hub = Hub::new(config());
        let mut change = |_: &mut Settings| {
            assert!(hub.settings.try_lock().is_err(), "the settings are locked from the copy to the replacement");
            Ok(())
        };
        assert_eq!(hub.update(&mut change), Ok(()));
    }

    #[test]
    fn rejected_update_changes_nothing() {
        let hub = Hub::new(config());
        let (before, version) = (hub.settings(), hub.version());
        let rejected = |memory| {
            let change = &mut |settings: &mut Settings| {
                (settings.memory, settings.timeout) = (memory, 9);
                Ok(())
            };
            hub.update(change).unwrap_err()
        };
        for memory in [0, (4 << 20) - 1, (8 << 20) + 1] {
            let reason = "argument must be between 4194304 and 8388608 inclusive".to_owned();
            assert_eq!(rejected(memory), RejectedSetting { parameter: "maxmemory", reason });
        }
        assert_eq!((hub.settings(), hub.version()), (before, version));
    }

    #[test]
    fn password_is_rejected_with_options_that_need_none() {
        let udp = Hub::new(Config { memcached: Some(1), ..config() });
        udp.answer_datagrams();
        let (exported, _) = export(Layout::new(SEED, 1, 100, 1 << 12).unwrap());
        let export = Hub::new(Config { export: Some((Arc::new(exported), RemoteAddrCell::default())), ..config() });
        let names = Arc::new(CounterNames::new(1).unwrap());
        let counters = Hub::new(Config { counters: Some((names, RemoteAddrCell::default())), ..config() });
        for (hub, option) in [(udp, "--udp: "), (export, "--export: "), (counters, "--counters: ")] {
            let RejectedSetting { parameter, reason } = set_password(&hub, Some(b"secret")).unwrap_err();
            assert!(parameter == "requirepass" && reason.starts_with(option), "{reason}");
            assert_eq!((set_password(&hub, None), &hub.settings().password), (Ok(()), &None));
        }
        let hub = Hub::new(config());
        assert_eq!(set_password(&hub, Some(b"secret")), Ok(()));
    }
}
