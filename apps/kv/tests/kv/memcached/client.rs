//! Connection to shards in this process, as a service holds it.

use linerate_kv::memcached::{
    Context, Data, Flow, Limits, Parsed, Parser, SPACE, Server, ServerState, Time, WorkerCounts, execute,
};
use linerate_kv::shards::{Placement, Shards, shard_of};
use linerate_kv::store::{Config, LongWriter, ShardStats, Store};
use std::sync::Arc;

pub const NOW: u64 = 1_700_000_000_000;
/// memcached's item limit, and the threshold of long values.
const LIMITS: Limits = Limits { item: 1 << 20, long: 4096 };

pub struct Client {
    stores: Vec<Option<Box<Store>>>,
    parser: Parser,
    server: TestServer,
    pub limits: Limits,
    pub now: u64,
    /// Every byte is processed before the next arrives.
    pub is_cut: bool,
    /// Received bytes without a reply yet.
    input: Vec<u8>,
    /// Long value being received: its writer, its offset in the input, and the two bytes after it.
    apart: Option<(LongWriter, usize, Vec<u8>)>,
    pub is_closed: bool,
}

#[derive(Default)]
struct TestServer {
    state: ServerState,
    counts: Arc<WorkerCounts>,
    flush_at: Option<u64>,
    shards: Vec<Arc<ShardStats>>,
}

impl Server for TestServer {
    fn state(&mut self) -> ServerState {
        let items = self.shards.iter().map(|shard| shard.keys(SPACE)).sum();
        ServerState { counts: self.counts.values(), items, ..self.state }
    }

    fn reset(&mut self) {
        self.counts = Arc::default();
    }

    fn flush_at(&mut self, at: Option<u64>) {
        self.flush_at = at;
    }
}

impl Client {
    pub fn new(shards: usize, memory: usize) -> Self {
        Self::with(shards, Config::new(memory))
    }

    pub fn with(shards: usize, config: Config) -> Self {
        // Fixed secret: keys are in the same shards in every run.
        let config = Config { key: *b"0123456789abcdef", ..config };
        let stores: Vec<_> = (0..shards).map(|_| Some(Box::new(Store::new(&config, NOW)))).collect();
        let stats = stores.iter().flatten().map(|store| store.stats().clone()).collect();
        Client {
            stores,
            parser: Parser::default(),
            server: TestServer {
                state: ServerState { since: NOW, workers: shards as u64, ..ServerState::default() },
                shards: stats,
                ..TestServer::default()
            },
            limits: LIMITS,
            now: NOW,
            is_cut: false,
            input: Vec::new(),
            apart: None,
            is_closed: false,
        }
    }

    /// Returns a client of one shard, and one of four shards.
    pub fn each() -> [Self; 2] {
        [1, 4].map(|shards| Self::new(shards, 16 << 20))
    }

    /// Sends `request` and compares the reply. `|` stands for a line end in both. A line end is added to the request,
    /// and to the reply unless it is empty.
    #[track_caller]
    pub fn expect(&mut self, request: &str, reply: &str) {
        let lines = |text: &str| format!("{text}\r\n").replace('|', "\r\n");
        let expected = if reply.is_empty() { String::new() } else { lines(reply) };
        let received = self.call(lines(request).as_bytes());
        assert_eq!(received.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string(), "{request}");
    }

    /// Returns the reply to `bytes`.
    pub fn call(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in bytes.chunks(if self.is_cut { 1 } else { bytes.len().max(1) }) {
            self.input.extend_from_slice(part);
            while !self.is_closed && self.step(&mut out) {}
        }
        out
    }

    /// Processes part of the input. Returns true if there may be more.
    fn step(&mut self, out: &mut Vec<u8>) -> bool {
        if let Some((writer, at, end)) = &mut self.apart {
            let filled = writer.fill(&self.input[*at..]);
            self.input.drain(*at..*at + filled);
            if writer.left() > 0 {
                return false;
            }
            let n = (2 - end.len()).min(self.input.len() - *at);
            end.extend(self.input.drain(*at..*at + n));
            let Ok(end) = <[u8; 2]>::try_from(&end[..]) else { return false };
            let (writer, ..) = self.apart.take().unwrap();
            self.parser.give(writer.finish(), end);
        }
        let input = std::mem::take(&mut self.input);
        let mut used = 0;
        let goes_on = match self.parser.parse(&input, &self.limits) {
            Err(_) => {
                self.is_closed = true;
                false
            }
            Ok(Parsed::Partial(needed)) => {
                assert!(needed > input.len() && (input.is_empty() || self.parser.is_within()));
                false
            }
            Ok(Parsed::Skip(n)) => {
                assert!(n > 0);
                used = n;
                true
            }
            Ok(Parsed::Long { request, at, len }) => {
                let mut shard = 0;
                let store = self.stores[0].as_ref().unwrap();
                request.each_key(|key| shard = shard_of(store.key(SPACE, key).hash(), self.stores.len()));
                match self.stores[shard].as_mut().unwrap().long(len, self.now) {
                    Ok(writer) => self.apart = Some((writer, at, Vec::new())),
                    Err(_) => self.parser.refuse(len + 2),
                }
                true
            }
            Ok(Parsed::Request { request, data, len }) => {
                used = len;
                self.run(&request, data, out);
                true
            }
        };
        self.input = input;
        self.input.drain(..used);
        goes_on
    }

    fn run(&mut self, request: &linerate_kv::memcached::Request<'_>, data: Data<'_>, out: &mut Vec<u8>) {
        let count = self.stores.len();
        if self.server.flush_at.is_some_and(|at| at <= self.now) {
            self.server.flush_at = None;
            self.stores.iter_mut().flatten().for_each(|store| store.flush(SPACE));
        }
        // Only the shards that the request needs.
        let mut needed: Vec<bool> = vec![request.needs_all(); count];
        let store = self.stores[0].as_ref().unwrap();
        request.each_key(|key| needed[shard_of(store.key(SPACE, key).hash(), count)] = true);
        let mut lent: Vec<_> = (0..count).map(|n| if needed[n] { self.stores[n].take() } else { None }).collect();
        let counts = self.server.counts.clone();
        let placement = Placement::new(count);
        let mut cx = Context {
            shards: &mut Shards::new(&mut lent, &placement),
            server: &mut self.server,
            counts: &counts,
            limits: self.limits,
            time: Time { now: self.now, wall_ahead: 0 },
        };
        self.is_closed = execute(request, data, &mut cx, out) != Flow::On;
        for (n, store) in lent.into_iter().enumerate().filter(|(_, store)| store.is_some()) {
            self.stores[n] = store;
        }
    }
}
