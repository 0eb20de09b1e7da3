//! What all workers of a service have in common.

use crate::commands::{Change, RejectedSetting, Settings, Stats, Totals};
use crate::counters::Names;
use crate::export::{Export, Layout};
use crate::memcached::Counts;
use crate::service::slow_log::SlowLog;
use crate::service::workers::access::PasswordConflict;
use crate::store::{self, KeyHasher, LONG_THRESHOLD, ShardStats, Store};
use linerate_bypass::arena::Arena;
use linerate_bypass::{RemoteAddr, RemoteAddrCell};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes that it may be told to take at least, so that there is room for something.
const LEAST_MEMORY: u64 = 4 << 20;

/// Milliseconds between two log entries of HTTP requests.
const WARNED: u64 = 60_000;

/// What a service is made of.
#[derive(Debug, Clone)]
pub struct Config {
    /// What can be changed later.
    pub settings: Settings,
    /// Workers, and shards.
    pub workers: usize,
    /// The port of memcached clients; all others are Redis'.
    pub memcached: Option<u16>,
    /// Where items and values lie: as much of it as [`Settings::memory`] says. Long values are sent from there, without a copy where
    /// the transport reaches it.
    pub arena: Arena,
    /// Where short strings are for peers to read, if they may: laid out for as many shards as there are workers; and where peers find
    /// it, when that is known.
    pub export: Option<(Arc<Export>, RemoteAddrCell)>,
    /// What peers may count with, if they may, and where they find it, when that is known.
    pub counters: Option<(Arc<Names>, RemoteAddrCell)>,
}

/// What all workers of a service have in common. What is asked of it on the way of every request is copied by each worker and
/// looked at again now and then.
pub struct Hub {
    workers: usize,
    memcached: Option<u16>,
    /// Whether memcached's clients may come with datagrams.
    datagrams: AtomicBool,
    store: store::Config,
    export: Option<(Arc<Export>, RemoteAddrCell)>,
    counters: Option<(Arc<Names>, RemoteAddrCell)>,
    /// Bytes that it may take at most, for so many are mapped.
    most: u64,
    since: u64,
    settings: Mutex<Arc<Settings>>,
    /// Counts how often they have changed.
    version: AtomicU64,
    next_client: AtomicU64,
    clients: AtomicU32,
    tallies: Vec<Mutex<Counted>>,
    /// Counters of the shards.
    shards: Vec<Arc<ShardStats>>,
    /// Expired and evicted keys at the last reset.
    removed_before: Mutex<store::Counts>,
    /// Time of the last log entry of an HTTP request, in milliseconds since 1970.
    warned: AtomicU64,
    slow_log: SlowLog,
    /// When memcached clients' keys are flushed, 0 if never, and how often that was said.
    flush: Mutex<(u64, Option<u64>)>,
    flushes: AtomicU64,
}

/// Figures of one worker.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    /// Since the worker began. They never decrease.
    now: Tally,
    /// At the last reset.
    before: Tally,
}

/// What is counted.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::service) struct Tally {
    pub stats: Stats,
    pub counts: Counts,
    pub accepted: u64,
    pub rejected: u64,
    pub input: u64,
    pub output: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.stats.commands += other.stats.commands;
        self.stats.errors += other.stats.errors;
        self.stats.hits += other.stats.hits;
        self.stats.misses += other.stats.misses;
        self.stats.slow += other.stats.slow;
        self.counts += other.counts;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.input += other.input;
        self.output += other.output;
    }
}

/// Milliseconds since 1970.
pub(in crate::service) fn wall_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A key that nobody can guess who may choose what is hashed with it: made of what the system has that is random.
fn random_key() -> [u8; 16] {
    let halves = [(); 2].map(|()| RandomState::new().build_hasher().finish().to_ne_bytes());
    std::array::from_fn(|at| halves[at / 8][at % 8])
}

/// What a lock protects is whole after every step.
pub(in crate::service) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// The middle of a service.
    pub fn new(config: Config) -> Arc<Self> {
        Hub::with_key(config, random_key())
    }

    /// The same, with a key of the hash that is known, so that two runs do exactly the same: for measurements. Clients who know it can
    /// choose keys that are all in one place.
    pub fn with_key(config: Config, key: [u8; 16]) -> Arc<Self> {
        let Config { settings, workers, memcached, arena, export, counters } = config;
        let store = store::Config {
            memory: settings.memory as usize / workers.max(1),
            evict: settings.evict,
            key,
            long: LONG_THRESHOLD,
            arena,
        };
        Arc::new(Hub {
            workers,
            memcached,
            datagrams: AtomicBool::new(false),
            store,
            export,
            counters,
            most: settings.memory,
            since: wall_millis(),
            settings: Mutex::new(Arc::new(settings)),
            version: AtomicU64::new(0),
            next_client: AtomicU64::new(1),
            clients: AtomicU32::new(0),
            tallies: (0..workers).map(|_| Mutex::default()).collect(),
            shards: (0..workers).map(|_| Arc::default()).collect(),
            removed_before: Mutex::default(),
            warned: AtomicU64::new(0),
            slow_log: SlowLog::new(workers),
            flush: Mutex::default(),
            flushes: AtomicU64::new(0),
        })
    }

    /// Workers that it was made for.
    pub fn workers(&self) -> usize {
        self.workers
    }

    pub(in crate::service) fn hasher(&self) -> KeyHasher {
        KeyHasher::new(&self.store.key)
    }

    /// What peers may count with, and where the first is.
    pub(in crate::service) fn counters(&self) -> Option<(&Names, RemoteAddr)> {
        let (names, place) = self.counters.as_ref()?;
        Some((names, *place.get()?))
    }

    /// Whether there is an export.
    pub(in crate::service) fn exports(&self) -> bool {
        self.export.is_some()
    }

    /// Where peers may read strings by themselves, and how they lie there.
    pub(in crate::service) fn export(&self) -> Option<(RemoteAddr, Layout)> {
        let (export, place) = self.export.as_ref()?;
        Some((*place.get()?, *export.layout()))
    }

    pub(in crate::service) fn store(&self, worker: usize, now: u64) -> Store {
        let mut store = Store::with_stats(&self.store, now, self.shards[worker].clone());
        if let Some((export, _)) = &self.export {
            store.export_to(export.writer(worker));
        }
        store
    }

    pub(in crate::service) fn is_memcached(&self, port: u16) -> bool {
        self.memcached == Some(port)
    }

    pub(in crate::service) fn slow_log(&self) -> &SlowLog {
        &self.slow_log
    }

    pub(in crate::service) fn memcached(&self) -> u16 {
        self.memcached.unwrap_or_default()
    }

    /// Lets workers that are made from now on answer datagrams, too, which come to memcached's port: without a password, and whoever
    /// seems to have sent them. Otherwise they take no notice of them.
    pub fn answer_datagrams(&self) {
        self.datagrams.store(true, Ordering::Relaxed);
    }

    /// Where datagrams are answered, if they are.
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

    /// Applies `change` to the settings. No other change comes between, so all that are made at the same time are kept.
    pub(in crate::service) fn update(&self, change: &mut Change<'_>) -> Result<(), RejectedSetting> {
        let mut current = lock(&self.settings);
        let mut settings = Settings::clone(&current);
        change(&mut settings)?;
        self.check(&settings, &current)?;
        *current = Arc::new(settings);
        self.version.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Checks the changes from `current` to `settings`.
    fn check(&self, settings: &Settings, current: &Settings) -> Result<(), RejectedSetting> {
        let rejected = |parameter, reason| Err(RejectedSetting { parameter, reason });
        let range = LEAST_MEMORY..=self.most;
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

    /// Whether one client more may come, of `most`.
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

    /// Takes down what `worker` has counted.
    pub(in crate::service) fn count(&self, worker: usize, tally: Tally) {
        lock(&self.tallies[worker]).now = tally;
    }

    /// Returns the counters of all workers since the last reset.
    fn tally(&self) -> Tally {
        let mut all = Tally::default();
        for counted in &self.tallies {
            let Counted { mut now, before } = *lock(counted);
            now.subtract(&before);
            all.add(&now);
        }
        all
    }

    /// Restarts the counters at 0, as far as workers have published their counts.
    pub(in crate::service) fn reset_tally(&self) {
        for counted in &self.tallies {
            let mut counted = lock(counted);
            counted.before = counted.now;
        }
        *lock(&self.removed_before) = self.removed();
    }

    /// The same of `worker`, which has counted `tally`.
    pub(in crate::service) fn reset_tally_of(&self, worker: usize, tally: Tally) {
        *lock(&self.tallies[worker]) = Counted { now: tally, before: tally };
    }

    /// Number of keys in `space`, in all shards.
    pub(in crate::service) fn keys_in(&self, space: u8) -> u64 {
        self.shards.iter().map(|shard| shard.keys(space)).sum()
    }

    /// Keys that have expired and that were evicted, in all shards.
    fn removed(&self) -> store::Counts {
        self.shards.iter().map(|shard| shard.counts()).fold(store::Counts::default(), |all, shard| store::Counts {
            expired: all.expired + shard.expired,
            evicted: all.evicted + shard.evicted,
        })
    }

    /// Returns true and records the time if no HTTP request was logged in the minute before `now`, in milliseconds since 1970.
    pub(in crate::service) fn may_warn(&self, now: u64) -> bool {
        let due = |last: u64| (now.saturating_sub(last) >= WARNED).then_some(now);
        self.warned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }

    /// What has been counted since it was last 0.
    pub(in crate::service) fn totals(&self) -> (Totals, Counts) {
        let (all, removed, before) = (self.tally(), self.removed(), *lock(&self.removed_before));
        let totals = Totals {
            stats: all.stats,
            clients: self.clients.load(Ordering::Relaxed).into(),
            accepted: all.accepted,
            rejected: all.rejected,
            input: all.input,
            output: all.output,
            since: self.since,
            workers: self.workers,
            used: self.shards.iter().map(|shard| shard.used()).sum(),
            expired: removed.expired.saturating_sub(before.expired),
            evicted: removed.evicted.saturating_sub(before.evicted),
            databases: std::array::from_fn(|space| {
                let expiring = self.shards.iter().map(|shard| shard.expiring(space as u8)).sum();
                (self.keys_in(space as u8), expiring)
            }),
        };
        (totals, all.counts)
    }

    /// All workers flush memcached clients' keys at this time, or not at all.
    pub(in crate::service) fn flush_at(&self, at: Option<u64>) {
        let mut flush = lock(&self.flush);
        *flush = (flush.0 + 1, at);
        self.flushes.store(flush.0, Ordering::Release);
    }

    /// When that is, if it was said more often than `known` times; how often it was.
    pub(in crate::service) fn flush_since(&self, known: u64) -> Option<(u64, Option<u64>)> {
        (self.flushes.load(Ordering::Acquire) != known).then(|| *lock(&self.flush))
    }
}

impl Tally {
    fn subtract(&mut self, other: &Tally) {
        let less = |count: &mut u64, other: u64| *count = count.saturating_sub(other);
        less(&mut self.stats.commands, other.stats.commands);
        less(&mut self.stats.errors, other.stats.errors);
        less(&mut self.stats.hits, other.stats.hits);
        less(&mut self.stats.misses, other.stats.misses);
        less(&mut self.stats.slow, other.stats.slow);
        self.counts -= other.counts;
        less(&mut self.accepted, other.accepted);
        less(&mut self.rejected, other.rejected);
        less(&mut self.input, other.input);
        less(&mut self.output, other.output);
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
        Config { settings, workers: 1, memcached: None, arena, export: None, counters: None }
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
    fn update_lets_no_other_change_come_between() {
        let hub = Hub::new(config());
        let mut change = |_: &mut Settings| {
            assert!(hub.settings.try_lock().is_err(), "the settings are locked from the copy to the replacement");
            Ok(())
        };
        assert_eq!(hub.update(&mut change), Ok(()));
    }

    #[test]
    fn update_that_is_rejected_changes_nothing() {
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
    fn password_is_rejected_with_each_option_that_gives_access_without_one() {
        let udp = Hub::new(Config { memcached: Some(1), ..config() });
        udp.answer_datagrams();
        let (exported, _) = export(Layout::new(SEED, 1, 100, 1 << 12).unwrap());
        let export = Hub::new(Config { export: Some((Arc::new(exported), RemoteAddrCell::default())), ..config() });
        let names = Arc::new(Names::new(1).unwrap());
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
