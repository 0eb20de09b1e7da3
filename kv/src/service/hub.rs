//! What all workers of a service have in common.

use crate::commands::{Settings, Stats, Totals};
use crate::counters::Names;
use crate::export::{Export, Layout};
use crate::memcached::Counts;
use crate::store::{self, Keys, LONG, Store};
use linerate_bypass::arena::Arena;
use linerate_bypass::{LaterPlace, RemotePlace};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes that it may be told to take at least, so that there is room for something.
const LEAST_MEMORY: u64 = 4 << 20;

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
    pub export: Option<(Arc<Export>, LaterPlace)>,
    /// What peers may count with, if they may, and where they find it, when that is known.
    pub counters: Option<(Arc<Names>, LaterPlace)>,
}

/// What all workers of a service have in common. What is asked of it on the way of every request is copied by each worker and
/// looked at again now and then.
pub struct Hub {
    workers: usize,
    memcached: Option<u16>,
    /// Whether memcached's clients may come with datagrams.
    datagrams: AtomicBool,
    store: store::Config,
    export: Option<(Arc<Export>, LaterPlace)>,
    counters: Option<(Arc<Names>, LaterPlace)>,
    /// Bytes that it may take at most, for so many are mapped.
    most: u64,
    since: u64,
    settings: Mutex<Arc<Settings>>,
    /// Counts how often they have changed.
    version: AtomicU64,
    next_client: AtomicU64,
    clients: AtomicU32,
    tallies: Vec<Mutex<Tally>>,
    /// What was counted when it was last said to be 0.
    before: Mutex<Tally>,
    /// When memcached clients' keys are flushed, 0 if never, and how often that was said.
    flush: Mutex<(u64, Option<u64>)>,
    flushes: AtomicU64,
}

/// What is counted.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
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
        self.counts += other.counts;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.input += other.input;
        self.output += other.output;
    }
}

/// Milliseconds since 1970.
pub(super) fn wall_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A key that nobody can guess who may choose what is hashed with it: made of what the system has that is random.
fn random_key() -> [u8; 16] {
    let halves = [(); 2].map(|()| RandomState::new().build_hasher().finish().to_ne_bytes());
    std::array::from_fn(|at| halves[at / 8][at % 8])
}

/// What a lock protects is whole after every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
            long: LONG,
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
            before: Mutex::default(),
            flush: Mutex::default(),
            flushes: AtomicU64::new(0),
        })
    }

    /// Workers that it was made for.
    pub fn workers(&self) -> usize {
        self.workers
    }

    pub(super) fn keys(&self) -> Keys {
        Keys::new(&self.store.key)
    }

    /// What peers may count with, and where the first is.
    pub(super) fn counters(&self) -> Option<(&Names, RemotePlace)> {
        let (names, place) = self.counters.as_ref()?;
        Some((names, *place.get()?))
    }

    /// Whether there is an export.
    pub(super) fn exports(&self) -> bool {
        self.export.is_some()
    }

    /// Where peers may read strings by themselves, and how they lie there.
    pub(super) fn export(&self) -> Option<(RemotePlace, Layout)> {
        let (export, place) = self.export.as_ref()?;
        Some((*place.get()?, *export.layout()))
    }

    pub(super) fn store(&self, worker: usize, now: u64) -> Store {
        let mut store = Store::new(&self.store, now);
        if let Some((export, _)) = &self.export {
            store.export_to(export.writer(worker));
        }
        store
    }

    pub(super) fn is_memcached(&self, port: u16) -> bool {
        self.memcached == Some(port)
    }

    pub(super) fn memcached(&self) -> u16 {
        self.memcached.unwrap_or_default()
    }

    /// Lets workers that are made from now on answer datagrams, too, which come to memcached's port: without a password, and whoever
    /// seems to have sent them. Otherwise they take no notice of them.
    pub fn answer_datagrams(&self) {
        self.datagrams.store(true, Ordering::Relaxed);
    }

    /// Where datagrams are answered, if they are.
    pub(super) fn datagrams(&self) -> Option<u16> {
        self.memcached.filter(|_| self.datagrams.load(Ordering::Relaxed))
    }

    pub(super) fn next_client(&self) -> u64 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        lock(&self.settings).clone()
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, settings: Settings) -> Result<(), String> {
        let range = LEAST_MEMORY..=self.most;
        let mut current = lock(&self.settings);
        if settings.memory != current.memory && !range.contains(&settings.memory) {
            return Err(format!("argument must be between {} and {} inclusive", range.start(), range.end()));
        }
        *current = Arc::new(settings);
        self.version.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether one client more may come, of `most`.
    pub(super) fn admit(&self, most: u32) -> bool {
        let is_admitted = self.clients.fetch_add(1, Ordering::Relaxed) < most;
        if !is_admitted {
            self.dismiss();
        }
        is_admitted
    }

    pub(super) fn dismiss(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes down what `worker` has counted.
    pub(super) fn count(&self, worker: usize, tally: Tally) {
        *lock(&self.tallies[worker]) = tally;
    }

    /// What all have counted.
    pub(super) fn tally(&self) -> Tally {
        let mut all = Tally::default();
        self.tallies.iter().for_each(|tally| all.add(&lock(tally)));
        all
    }

    /// What is counted from now on is counted from 0.
    pub(super) fn reset_tally(&self) {
        *lock(&self.before) = self.tally();
    }

    /// What has been counted since it was last 0.
    pub(super) fn totals(&self) -> (Totals, Counts) {
        let (mut all, before) = (self.tally(), *lock(&self.before));
        all.subtract(&before);
        let totals = Totals {
            stats: all.stats,
            clients: self.clients.load(Ordering::Relaxed).into(),
            accepted: all.accepted,
            rejected: all.rejected,
            input: all.input,
            output: all.output,
            since: self.since,
            workers: self.workers,
        };
        (totals, all.counts)
    }

    /// All workers flush memcached clients' keys at this time, or not at all.
    pub(super) fn flush_at(&self, at: Option<u64>) {
        let mut flush = lock(&self.flush);
        *flush = (flush.0 + 1, at);
        self.flushes.store(flush.0, Ordering::Release);
    }

    /// When that is, if it was said more often than `known` times; how often it was.
    pub(super) fn flush_since(&self, known: u64) -> Option<(u64, Option<u64>)> {
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
        self.counts -= other.counts;
        less(&mut self.accepted, other.accepted);
        less(&mut self.rejected, other.rejected);
        less(&mut self.input, other.input);
        less(&mut self.output, other.output);
    }
}
