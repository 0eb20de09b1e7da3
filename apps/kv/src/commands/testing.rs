//! Client and server for tests.

use crate::cluster::ClusterMap;
use crate::commands::session::ClientInfo;
use crate::commands::{
    Context, PauseMode, RejectedSetting, Request, Server, Session, Settings, SettingsChange, SlowRequest, Stats, Totals,
};
use crate::counters::CounterNames;
use crate::export::tests::{SEED, export, find};
use crate::export::{Export, Layout};
use crate::resp::{Limits, Parsed, Parser};
use crate::shards::{Placement, Shards};
use crate::store::{Config, DATABASES, KeyHasher, ShardStats, Store};
use linerate_service::RemoteAddr;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// Time at which the client connects.
pub(super) const START: u64 = 1_700_000_000_000;

/// Server with one worker.
pub(super) struct TestServer {
    pub settings: Settings,
    pub killed: Vec<u64>,
    pub totals: Totals,
    pub counters: Option<CounterNames>,
    pub slow: Vec<SlowRequest>,
    pub cluster: Option<ClusterMap>,
    /// Pauses, with their ends.
    pub pauses: Vec<Option<(PauseMode, u64)>>,
    shards: Vec<Arc<ShardStats>>,
    /// Counters at the last reset.
    reset_at: Stats,
}

impl Server for TestServer {
    fn export(&self) -> Option<(RemoteAddr, Layout)> {
        None
    }

    fn counters(&self) -> Option<(&CounterNames, RemoteAddr)> {
        self.counters.as_ref().map(|names| (names, RemoteAddr { address: 4096, key: 7 }))
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn update(&mut self, change: &mut SettingsChange<'_>) -> Result<(), RejectedSetting> {
        let mut settings = self.settings.clone();
        change(&mut settings)?;
        if settings.clients > 50_000 {
            return Err(RejectedSetting { parameter: "maxclients", reason: "too many connections".to_owned() });
        }
        self.settings = settings;
        Ok(())
    }

    fn clients(&mut self) -> Vec<ClientInfo> {
        vec![session(8).client(START)]
    }

    fn kill(&mut self, id: u64) {
        self.killed.push(id);
    }

    fn totals(&mut self, stats: &Stats) -> Totals {
        let mut databases = [(0, 0); DATABASES as usize];
        for (space, (keys, expiring)) in (0..).zip(&mut databases) {
            *keys = self.keys(space);
            *expiring = self.shards.iter().map(|shard| shard.expiring(space)).sum();
        }
        let stats = Stats {
            commands: stats.commands - self.reset_at.commands,
            misses: stats.misses - self.reset_at.misses,
            ..*stats
        };
        Totals { databases, stats, ..self.totals }
    }

    fn reset_totals(&mut self, stats: &Stats) {
        self.reset_at = *stats;
    }

    fn slow_log(&self) -> Vec<SlowRequest> {
        self.slow.clone()
    }

    fn reset_slow_log(&mut self) {
        self.slow.clear();
    }

    fn cluster(&self) -> Option<(&ClusterMap, usize)> {
        self.cluster.as_ref().map(|map| (map, 0))
    }

    fn pause(&mut self, mode: PauseMode, _: u64, end: u64) -> u64 {
        self.pauses.push(Some((mode, end)));
        self.pauses.len() as u64
    }

    fn unpause(&mut self) -> u64 {
        self.pauses.push(None);
        self.pauses.len() as u64
    }

    fn is_pause_obeyed(&self, version: u64) -> bool {
        self.pauses.len() as u64 >= version
    }

    fn keys(&self, space: u8) -> u64 {
        self.shards.iter().map(|shard| shard.keys(space)).sum()
    }
}

fn session(id: u64) -> Session {
    let address = |text: String| text.parse::<SocketAddr>().unwrap();
    Session::new(id, address(format!("192.0.2.1:{}", 993 + id)), address("192.0.2.9:6380".to_owned()), true, START)
}

/// Client with its own server.
pub(super) struct TestClient {
    pub session: Session,
    pub server: TestServer,
    pub stores: Vec<Option<Box<Store>>>,
    pub stats: Stats,
    hasher: KeyHasher,
    placement: Placement,
    now: u64,
    wall_ahead: i64,
    export: Export,
    /// All words of its commands.
    words: BTreeSet<Vec<u8>>,
}

impl TestClient {
    /// Returns a client of a server with one shard, and one of a server with four.
    pub fn each() -> impl Iterator<Item = TestClient> {
        [1, 4].into_iter().map(TestClient::with_shards)
    }

    fn with_shards(count: usize) -> TestClient {
        let config = Config::new(8 << 20);
        let (export, writers) = export(Layout::new(SEED, count as u32, 5000, 1 << 16).unwrap());
        let store = |writer| {
            let mut store = Store::new(&config, START);
            store.export_to(writer);
            Some(Box::new(store))
        };
        let stores: Vec<Option<Box<Store>>> = writers.into_iter().map(store).collect();
        TestClient {
            session: session(7),
            server: TestServer {
                settings: Settings::default(),
                killed: Vec::new(),
                totals: Totals::default(),
                counters: None,
                slow: Vec::new(),
                cluster: None,
                pauses: Vec::new(),
                shards: stores.iter().flatten().map(|store| store.stats().clone()).collect(),
                reset_at: Stats::default(),
            },
            stores,
            stats: Stats::default(),
            hasher: KeyHasher::new(&config.key),
            placement: Placement::new(count),
            now: START,
            wall_ahead: 0,
            export,
            words: BTreeSet::new(),
        }
    }

    pub fn count(&mut self, counters: usize) {
        self.server.counters = Some(CounterNames::new(counters).unwrap());
    }

    pub fn wait(&mut self, millis: u64) {
        self.now += millis;
    }

    pub fn set_wall_ahead(&mut self, millis: i64) {
        self.wall_ahead = millis;
    }

    /// Runs the line `command` and returns the reply, with spaces for its inner line ends. Only the shards that the
    /// command requests are present.
    pub fn run(&mut self, command: &str) -> String {
        let line = format!("{command}\n").into_bytes();
        let mut parser = Parser::default();
        let limits = Limits { bulk: 512 << 20, long: usize::MAX, apart: false, authenticated: true };
        assert_eq!(parser.parse(&line, limits), Ok(Parsed::Request(line.len())));
        let request = Request::new(parser.args(&line), self.session.space(), &self.hasher);
        let count = self.stores.len();
        let placement = self.placement.clone();
        let needed = request.needed_shards(&self.session, &self.hasher, &placement);
        let mut lent: Vec<_> = (0..count).map(|_| None).collect();
        needed.iter().for_each(|at| lent[at] = self.stores[at].take());
        let mut out = Vec::new();
        let mut cx = Context {
            shards: &mut Shards::new(&mut lent, &placement),
            hasher: &self.hasher,
            session: &mut self.session,
            server: &mut self.server,
            stats: &mut self.stats,
            now: self.now,
            wall_ahead: self.wall_ahead,
        };
        request.run(&mut cx, &mut out);
        needed.iter().for_each(|at| self.stores[at] = lent[at].take());
        self.compare_export(command);
        String::from_utf8_lossy(&out).trim_end_matches("\r\n").replace("\r\n", " ")
    }

    /// Checks that exported strings equal the strings in the stores. As long as there were few keys, every short string
    /// must be exported.
    fn compare_export(&mut self, command: &str) {
        const FEW: usize = 300;
        let words: Vec<Vec<u8>> = command.split_ascii_whitespace().map(|word| word.trim_matches('"').into()).collect();
        let has_few = self.words.len() < FEW;
        if has_few {
            self.words.extend(words.iter().cloned());
        }
        for word in self.words.iter().filter(|_| has_few).chain(&words) {
            let key = self.hasher.key(0, word);
            let found = find(&self.export, word, self.now);
            let there = Shards::new(&mut self.stores, &self.placement).store(&key).peek_untouched(&key, self.now);
            let fits = there.as_ref().is_some_and(|value| word.len() + value.len() <= self.export.layout().longest());
            if found.is_some() || fits && has_few {
                assert_eq!(found, there, "{command} of {:?}", word.escape_ascii().to_string());
            }
        }
    }

    /// Sets values of 900 bytes until all shards refuse them, then removes some.
    pub fn fill(&mut self) {
        let value = "v".repeat(900);
        let mut refused = 0;
        let mut n = 0;
        while refused < 100 {
            refused = if self.run(&format!("set fill{n} {value}")) == "+OK" { 0 } else { refused + 1 };
            n += 1;
        }
        (0..20 * self.stores.len()).for_each(|n| _ = self.run(&format!("del fill{n}")));
    }

    #[track_caller]
    pub fn expect(&mut self, command: &str, expected: &str) {
        assert_eq!(self.run(command), expected.trim_end_matches("\r\n"), "{command}, {} shards", self.stores.len());
    }
}
