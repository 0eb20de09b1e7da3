//! Key-value servers under load, two processes pinned to a core each: Linerate over its own link and on a kernel
//! interface, and the servers that it is compared with.

mod fill;
pub mod interleaved;
mod memory;
mod redis_benchmark;
mod servers;
pub mod service;
pub mod workers;

pub use memory::{Beside, answer_to_get};

use crate::echo_pair::{self, Network, StackEngine};
use linerate_harness::Error;
use linerate_harness::namespace::Host;
use linerate_harness::process::Process;
use redis_benchmark::Benchmark;
use serde::{Deserialize, Serialize};
use servers::{MEMCACHED, REDIS, Server};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// Connections of each load.
pub const CONNECTIONS: u32 = 64;
/// Requests in flight per connection: one.
pub const ALONE: u32 = 1;
/// Requests in flight per connection with a pipeline.
pub const PIPELINED: u32 = 16;
/// Fraction of GETs.
pub const GETS: f64 = 0.9;
/// Size of a long value in bytes, and number of long values.
pub const LONG: u32 = 64 << 10;
const LONG_KEYS: u32 = 1000;
/// Memory of a linerate server per key in addition to its value, and in total. The ports need the remaining hugepages.
const BESIDE: u32 = 96;
const MEMORY: u64 = 96 << 20;
/// Zipf exponent of key popularity; redis-benchmark has a uniform distribution.
const ZIPF: &str = "0.99";
/// Time of a load in addition to its measurement: opening its port and connections and closing them; and per million
/// keys to set.
const AROUND: Duration = Duration::from_secs(30);
const PER_MILLION: Duration = Duration::from_secs(60);

/// Server, transport and client of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// `linerate echo` over virtio-user and vhost: the link and the stack without keys and values.
    Echo,
    /// `linerate kv` over the same link.
    Virtio,
    /// redis-server over loopback, with `linerate kv load`.
    Redis,
    /// redis-server over loopback, with redis-benchmark.
    RedisByBenchmark,
    /// memcached over loopback, with `linerate kv load`.
    Memcached,
    /// `linerate kv serve` at the far end of a veth pair through AF_XDP, with redis-benchmark at the near end.
    AfXdp,
    /// The same over a TAP device, if AF_XDP is unavailable.
    Tap,
    /// redis-server at the far end of such a veth pair, with redis-benchmark.
    RedisOverVeth,
}

impl Contender {
    /// All contenders except the replacement.
    pub const ALL: [Contender; 7] = [
        Contender::Echo,
        Contender::Virtio,
        Contender::Redis,
        Contender::RedisByBenchmark,
        Contender::Memcached,
        Contender::AfXdp,
        Contender::RedisOverVeth,
    ];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Echo => "echo over virtio",
            Contender::Virtio => "kv over virtio",
            Contender::Redis => "redis-server, kv load",
            Contender::RedisByBenchmark => "redis-server, redis-benchmark",
            Contender::Memcached => "memcached, kv load",
            Contender::AfXdp => "kv over AF_XDP on veth, redis-benchmark",
            Contender::Tap => "kv over TAP, redis-benchmark",
            Contender::RedisOverVeth => "redis-server over veth, redis-benchmark",
        }
    }
}

/// Kind of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestKind {
    /// Echoes.
    Echoes,
    /// GETs and SETs in the ratio of [`GETS`].
    Both,
    /// GETs only.
    Gets,
    /// SETs only.
    Sets,
}

impl RequestKind {
    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Echoes => "echoes",
            RequestKind::Both => "90 % GET",
            RequestKind::Gets => "GET",
            RequestKind::Sets => "SET",
        }
    }
}

/// Parameters common to all measurements.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Parameters shared with the echo pair: the cores, and the size of a value.
    pub pair: echo_pair::Setting,
    /// Number of keys.
    pub keys: u64,
}

/// Result of one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Server, transport and client.
    pub contender: Contender,
    /// Kind of requests.
    pub requests: RequestKind,
    /// Requests in flight per connection.
    pub depth: u32,
    /// Requests per second.
    pub rate: f64,
    /// Errors of any kind, and missing keys.
    pub errors: u64,
    /// Median round trip in microseconds; of a whole pipeline with redis-benchmark.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

/// Fields used from the output of `linerate kv load --json`.
#[derive(Deserialize)]
struct Loaded {
    rate: f64,
    errors: u64,
    misses: u64,
    rtt_us: echo_pair::Rtt,
    get: Side,
}

/// GETs.
#[derive(Deserialize)]
struct Side {
    requests: u64,
}

/// Starts a server, fills it, measures it with successive loads, and stops it.
pub fn measure(setting: &Setting, contender: Contender) -> Result<Vec<Row>, Error> {
    match contender {
        Contender::Echo => {
            let network = Network::Virtio(StackEngine::Native);
            let measured = echo_pair::measure(&setting.pair, network, &[CONNECTIONS])?;
            let row = |one: &echo_pair::Measured| Row {
                contender,
                requests: RequestKind::Echoes,
                depth: ALONE,
                rate: one.rate,
                errors: one.errors,
                p50_us: one.rtt_us.p50,
                p99_us: one.rtt_us.p99,
            };
            Ok(measured.iter().map(row).collect())
        }
        Contender::Virtio => {
            let link = setting.link();
            let server = Server::linerate(setting.serve(&link.server))?;
            setting.loads(contender, &link.load, server.address, &[ALONE, PIPELINED])
        }
        Contender::Redis => {
            let server = Server::redis(setting)?;
            let kernel = ["--via", "kernel"].map(str::to_owned);
            setting.loads(contender, &kernel, server.address, &[ALONE, PIPELINED])
        }
        Contender::Memcached => {
            let server = Server::memcached(setting)?;
            let kernel = ["--via", "kernel", "--protocol", "memcached"].map(str::to_owned);
            setting.loads(contender, &kernel, server.address, &[ALONE])
        }
        Contender::RedisByBenchmark => {
            let server = Server::redis(setting)?;
            setting.benchmarks(contender, None, server.address)
        }
        Contender::AfXdp | Contender::Tap | Contender::RedisOverVeth => {
            let (hosts, server) = Server::on_a_host(setting, contender)?;
            setting.benchmarks(contender, hosts.first(), server.address)
        }
    }
}

/// Bytes copied by a server that sent long values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Copied {
    /// GETs of [`LONG`] bytes answered during the measurement.
    pub gets: u64,
    /// Payload bytes copied by the server's stack and port, including the setting of the values.
    pub bytes: u64,
}

/// Fetches long values over virtio-user and vhost and returns the copied bytes.
pub fn copied(setting: &Setting) -> Result<Copied, Error> {
    #[derive(Deserialize)]
    struct Summary {
        copied_bytes: u64,
    }
    let link = setting.link();
    let mut serve = setting.serve(&link.server);
    serve.arg("--json");
    let server = Server::linerate(serve)?;
    let mut load = setting.load(&link.load, server.address, ALONE);
    load.args([
        "--keys",
        &LONG_KEYS.to_string(),
        "--value-size",
        &LONG.to_string(),
        "--get-ratio",
        "1",
        "--fail-on-miss",
    ]);
    let gets = setting.loaded(load)?.get.requests;
    let (command, printed) = server.stop()?;
    match serde_json::from_str(&printed) {
        Ok(Summary { copied_bytes }) => Ok(Copied { gets, bytes: copied_bytes }),
        Err(_) => Err(Error::Unexpected { command, printed }),
    }
}

/// Arguments for the two ends of a link.
struct Link {
    server: [String; 6],
    load: [String; 4],
}

impl Setting {
    fn link(&self) -> Link {
        let socket = self.pair.scratch.join("link.sock");
        let socket = socket.display();
        let server = ["--via", &format!("vhost:{socket}"), "--ip", "10.0.0.2/24", "--listen", "10.0.0.2"];
        let load = ["--via", &format!("virtio-user:{socket}"), "--ip", "10.0.0.1/24"];
        Link { server: server.map(str::to_owned), load: load.map(str::to_owned) }
    }

    fn serve(&self, words: &[String]) -> Command {
        self.served_by(Command::new(&self.pair.linerate), words)
    }

    /// Completes `command`, which runs linerate, to a key-value server.
    fn served_by(&self, mut command: Command, words: &[String]) -> Command {
        let memory = self.keys * u64::from(self.pair.size + BESIDE) + MEMORY;
        command.args(["kv", "serve", "--memory", &memory.to_string()]);
        command.args(["--cores", &self.pair.server_core.to_string()]).args(words);
        command
    }

    fn load(&self, words: &[String], address: SocketAddr, depth: u32) -> Command {
        let mut command = Command::new(&self.pair.linerate);
        command.args(["kv", "load", "--json", "--cores", &self.pair.load_core.to_string()]).args(words);
        command.args(["--connect", &address.to_string(), "--connections", &CONNECTIONS.to_string()]);
        command.args(["--depth", &depth.to_string(), "--zipf", ZIPF]);
        command.args(["--duration", &format!("{}ms", self.pair.duration.as_millis())]);
        command
    }

    /// Returns a load of GETs and SETs on all keys, which sets them first.
    fn load_both(&self, words: &[String], address: SocketAddr, depth: u32) -> Command {
        let mut load = self.load(words, address, depth);
        load.args(["--keys", &self.keys.to_string(), "--value-size", &self.pair.size.to_string()]);
        load.args(["--get-ratio", &GETS.to_string()]);
        load
    }

    fn loaded(&self, load: Command) -> Result<Loaded, Error> {
        let load = Process::start(load)?;
        let command = load.command().to_owned();
        let limit = self.pair.duration + AROUND + PER_MILLION.mul_f64(self.keys as f64 / 1e6);
        let printed = load.output(limit)?;
        serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command, printed })
    }

    /// Measures `linerate kv load` at each depth; the first one sets all keys.
    fn loads(
        &self,
        contender: Contender,
        words: &[String],
        address: SocketAddr,
        depths: &[u32],
    ) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for depth in depths {
            let mut load = self.load_both(words, address, *depth);
            // Later loads reuse the keys.
            load.args((!rows.is_empty()).then_some("--no-fill"));
            let Loaded { rate, errors, misses, rtt_us, .. } = self.loaded(load)?;
            let (p50_us, p99_us) = (rtt_us.p50, rtt_us.p99);
            rows.push(Row {
                contender,
                requests: RequestKind::Both,
                depth: *depth,
                rate,
                errors: errors + misses,
                p50_us,
                p99_us,
            });
        }
        Ok(rows)
    }

    /// Measures redis-benchmark on `client` or on this host, after setting all its keys.
    fn benchmarks(&self, contender: Contender, client: Option<&Host>, address: SocketAddr) -> Result<Vec<Row>, Error> {
        let fill = || fill::fill(address, self.keys, self.pair.size as usize);
        let filled = client.map_or_else(fill, |client| client.within(fill));
        filled.map_err(fill::failed)?;
        let mut rows = Vec::new();
        for depth in [ALONE, PIPELINED] {
            let benchmark = Benchmark { client, core: self.pair.load_core, address, depth };
            let sizes = (self.keys, self.pair.size);
            for (requests, measured) in benchmark.measure(sizes, self.pair.duration)? {
                let redis_benchmark::Measured { rate, p50_us, p99_us } = measured;
                rows.push(Row { contender, requests, depth, rate, errors: 0, p50_us, p99_us });
            }
        }
        Ok(rows)
    }
}

/// Returns the reason why this machine cannot measure `contender`, if any.
pub fn obstacle(setting: &Setting, contender: Contender) -> Result<Option<String>, Error> {
    let redis = [(REDIS, "redis-server"), (redis_benchmark::PROGRAM, "redis-tools")];
    let needed = match contender {
        Contender::Echo | Contender::Virtio => &[][..],
        Contender::Redis => &redis[..1],
        Contender::Memcached => &[(MEMCACHED, "memcached")],
        Contender::AfXdp | Contender::Tap => &redis[1..],
        Contender::RedisByBenchmark | Contender::RedisOverVeth => &redis,
    };
    if let Some(lacking) = needed.iter().copied().find_map(lacking) {
        return Ok(Some(lacking));
    }
    if !matches!(contender, Contender::AfXdp | Contender::Tap | Contender::RedisOverVeth) {
        return Ok(None);
    }
    match Server::on_a_host(setting, contender) {
        Ok(_) => Ok(None),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => Ok(Some(error.to_string().trim().replace('\n', " "))),
    }
}

fn lacking((program, package): (&str, &str)) -> Option<String> {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    (!is_there).then(|| format!("{program} is not installed: apt-get install {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_reported_with_its_package() {
        let message = lacking(("linerate-no-such-program", "some-package")).unwrap();
        assert_eq!(message, "linerate-no-such-program is not installed: apt-get install some-package");
        assert_eq!(lacking(("sh", "dash")), None);
    }

    #[test]
    fn report_of_load_is_parsed() {
        let printed = r#"{"requests":10,"seconds":1.0,"rate":10.0,"bytes":640,"errors":1,
            "rtt_us":{"p50":1.5,"p90":2.0,"p99":3.0,"p999":4.0,"max":5.0},
            "get":{"requests":9,"rate":9.0,"bytes":576,"rtt_us":{}},"set":{},"misses":2,"filled":7}"#;
        let Loaded { rate, errors, misses, rtt_us, get } = serde_json::from_str(printed).unwrap();
        assert_eq!((rate, errors, misses, rtt_us.p99, get.requests), (10.0, 1, 2, 3.0, 9));
    }
}
