//! Command execution in this process and by Redis.

use crate::reply::Value;
use linerate_harness::program::Program;
use linerate_harness::rerun::is_installed;
use linerate_harness::wait_for;
use linerate_kv::cluster::ClusterMap;
use linerate_kv::commands::{
    ClientInfo, Context, PauseMode, RejectedSetting, Request, Server, Session, Settings, SettingsChange, Stats, Totals,
};
use linerate_kv::resp::{Limits, Parsed, Parser};
use linerate_kv::shards::{Placement, Shards};
use linerate_kv::store::{Config, KeyHasher, ShardStats, Store};
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// Command and arguments.
pub type Args = Vec<Vec<u8>>;

/// Connections to each server.
pub const CLIENTS: usize = 2;

/// Encodes `args` in RESP.
fn encoded(args: &Args) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Returns the milliseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_millis() as u64
}

struct TestServer {
    settings: Settings,
    sessions: Vec<ClientInfo>,
    shards: Vec<Arc<ShardStats>>,
}

impl Server for TestServer {
    fn cluster(&self) -> Option<(&ClusterMap, usize)> {
        None
    }

    fn export(&self) -> Option<(linerate_service::RemoteAddr, linerate_kv::export::Layout)> {
        None
    }

    fn counters(&self) -> Option<(&linerate_kv::counters::CounterNames, linerate_service::RemoteAddr)> {
        None
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn update(&mut self, change: &mut SettingsChange<'_>) -> Result<(), RejectedSetting> {
        let mut settings = self.settings.clone();
        change(&mut settings)?;
        self.settings = settings;
        Ok(())
    }

    fn clients(&mut self) -> Vec<ClientInfo> {
        self.sessions.clone()
    }

    fn kill(&mut self, _: u64) {}

    fn totals(&mut self, _: &Stats) -> Totals {
        let sum = |of: fn(&ShardStats, u8) -> u64, space| self.shards.iter().map(|shard| of(shard, space)).sum();
        let of = |space| (sum(ShardStats::keys, space), sum(ShardStats::expiring, space));
        Totals { databases: std::array::from_fn(|space| of(space as u8)), ..Totals::default() }
    }

    fn reset_totals(&mut self, _: &Stats) {}

    fn slow_log(&self) -> Vec<linerate_kv::commands::SlowRequest> {
        Vec::new()
    }

    fn reset_slow_log(&mut self) {}

    fn pause(&mut self, _: PauseMode, _: u64, _: u64) -> u64 {
        0
    }

    fn unpause(&mut self) -> u64 {
        0
    }

    fn is_pause_obeyed(&self, _: u64) -> bool {
        true
    }

    fn keys(&self, space: u8) -> u64 {
        self.shards.iter().map(|shard| shard.keys(space)).sum()
    }
}

/// Commands on shards in this process.
pub struct LinerateServer {
    stores: Vec<Option<Box<Store>>>,
    hasher: KeyHasher,
    sessions: Vec<Session>,
    server: TestServer,
    stats: Stats,
    parser: Parser,
}

impl LinerateServer {
    pub fn with_shards(count: usize) -> Self {
        let config = Config::new(64 << 20);
        let address = "127.0.0.1:6379".parse().expect("an address");
        let session = |id| Session::new(id, address, address, true, now());
        let sessions: Vec<Session> = (0..CLIENTS as u64).map(|at| session(at + 1)).collect();
        let stores: Vec<_> = (0..count).map(|_| Some(Box::new(Store::new(&config, now())))).collect();
        LinerateServer {
            hasher: KeyHasher::new(&config.key),
            server: TestServer {
                settings: Settings::default(),
                sessions: sessions.iter().map(|session| session.client(now())).collect(),
                shards: stores.iter().flatten().map(|store| store.stats().clone()).collect(),
            },
            stores,
            sessions,
            stats: Stats::default(),
            parser: Parser::default(),
        }
    }

    /// Returns the reply to `client`. If `apart`, a long last argument is received as a long value. Only the shards
    /// that the command requests are present.
    pub fn run(&mut self, client: usize, command: &Args, apart: bool) -> Value {
        let mut data = encoded(command);
        let limits = Limits { bulk: 512 << 20, long: 4096, apart: false, authenticated: true };
        // At first all but the last byte have arrived.
        let mut come = if apart { data.len() - 1 } else { data.len() };
        let end = loop {
            match self.parser.parse(&data[..come], limits).expect("a request") {
                Parsed::Request(end) => break end,
                Parsed::Partial(_) => come = data.len(),
                Parsed::Long { at, len } => {
                    let store = self.stores[0].as_mut().expect("a shard");
                    let mut writer = store.long(len, now()).expect("memory for a value");
                    assert_eq!(writer.fill(&data[at..at + len]), len);
                    data.drain(at..at + len + 2);
                    self.parser.give(writer.finish());
                    come = data.len();
                }
            }
        };
        let session = &mut self.sessions[client];
        let args = self.parser.args(&data[..end]);
        let whole = Request::materialized(args);
        let args = whole.as_ref().map_or(args, |whole| whole.args());
        let request = Request::new(args, session.space(), &self.hasher);
        let count = self.stores.len();
        let placement = Placement::new(count);
        let needed = request.needed_shards(session, &self.hasher, &placement);
        let mut lent: Vec<_> = (0..count).map(|_| None).collect();
        needed.iter().for_each(|at| lent[at] = self.stores[at].take());
        let mut out = Vec::new();
        let mut cx = Context {
            shards: &mut Shards::new(&mut lent, &placement),
            hasher: &self.hasher,
            session,
            server: &mut self.server,
            stats: &mut self.stats,
            now: now(),
            wall_ahead: 0,
        };
        request.run(&mut cx, &mut out);
        needed.iter().for_each(|at| self.stores[at] = lent[at].take());
        self.parser.forget();
        let mut rest = &out[..];
        let value = Value::read(&mut rest).expect("a reply");
        assert!(rest.is_empty(), "more than one reply to {command:?}");
        value
    }

    /// Does a little background work.
    pub fn tick(&mut self) {
        for store in self.stores.iter_mut().flatten() {
            store.tick(now(), 10);
        }
    }
}

/// `redis-server` process. Dropping it ends the process.
pub struct Redis {
    connections: Vec<BufReader<UnixStream>>,
    _program: Program,
    _directory: TempDir,
}

impl Redis {
    /// Starts a server without data.
    ///
    /// # Panics
    /// Panics if it is not installed.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the socket");
        let socket = directory.path().join("redis.sock");
        assert!(
            is_installed("redis-server", &["--version"], "redis-server"),
            "redis-server is not installed: install it with `apt-get install redis-server`, as ./run does"
        );
        let mut redis = Command::new("redis-server");
        redis.args(["--save", "", "--appendonly", "no", "--port", "0", "--unixsocket"]);
        let program = Program::start(redis.arg(&socket).current_dir(directory.path()));
        wait_for("redis-server's socket", || UnixStream::connect(&socket).is_ok());
        let connect = |_| BufReader::new(UnixStream::connect(&socket).expect("redis-server listens"));
        Redis { connections: (0..CLIENTS).map(connect).collect(), _program: program, _directory: directory }
    }

    /// Returns the replies to `commands` of `client`.
    pub fn run(&mut self, client: usize, commands: &[Args]) -> Vec<Value> {
        let bytes: Vec<u8> = commands.iter().flat_map(encoded).collect();
        let connection = &mut self.connections[client];
        connection.get_mut().write_all(&bytes).expect("redis-server takes requests");
        commands.iter().map(|_| Value::read(connection).expect("redis-server replies")).collect()
    }
}
