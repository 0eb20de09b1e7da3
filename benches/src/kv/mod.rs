//! Key-value servers under load, two processes pinned to a core each: this project's over a link of its own and on an
//! interface of the kernel, and those that it is held against.

pub mod by_turns;
mod fill;
mod memory;
mod redis_benchmark;
mod servers;
pub mod turns;
pub mod workers;

pub use memory::answer_to_get;

use crate::echo_pair::{self, Network, StackEngine};
use crate::external::process::{Error, Process};
use crate::hosts::Host;
use redis_benchmark::Benchmark;
use serde::{Deserialize, Serialize};
use servers::{MEMCACHED, REDIS, Server};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Connections of each load.
pub const CONNECTIONS: u32 = 64;
/// Requests on the way on each: one, or a pipeline full of them.
pub const ALONE: u32 = 1;
/// The same with a pipeline.
pub const PIPELINED: u32 = 16;
/// How many of the requests are GETs.
pub const GETS: f64 = 0.9;
/// Bytes of a long value, and how many of them there are.
pub const LONG: u32 = 64 << 10;
const LONG_KEYS: u32 = 1000;
/// Bytes that a server of ours is given beside each value: for the key, and for all that is kept of it; and beside all. What it
/// leaves of the hugepages the ports need.
const BESIDE: u32 = 96;
const MEMORY: u64 = 96 << 20;
/// How much more popular some keys are than others; redis-benchmark knows no such thing.
const ZIPF: &str = "0.99";
/// What a load may need beside the time it measures: opening its port and connections, and closing them; and for each
/// million keys to be set before.
const AROUND: Duration = Duration::from_secs(30);
const PER_MILLION: Duration = Duration::from_secs(60);

/// Who is asked, over what, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// `linerate echo` over virtio-user and vhost: what the link and the stack do without keys and values.
    Echo,
    /// `linerate kv` over the same link.
    Virtio,
    /// redis-server over loopback, by `linerate kv load`.
    Redis,
    /// The same by redis-benchmark.
    RedisByBenchmark,
    /// memcached over loopback, by `linerate kv load`.
    Memcached,
    /// `linerate kv serve` at the far end of a veth pair through AF_XDP, by redis-benchmark at the near end.
    AfXdp,
    /// The same at the other end of a TAP device, where there is no AF_XDP.
    Tap,
    /// redis-server at the far end of such a veth pair, by redis-benchmark.
    RedisOverVeth,
}

impl Way {
    /// All of them but the one that stands in for another.
    pub const ALL: [Way; 7] =
        [Way::Echo, Way::Virtio, Way::Redis, Way::RedisByBenchmark, Way::Memcached, Way::AfXdp, Way::RedisOverVeth];

    /// What to call it in a table.
    pub fn name(self) -> &'static str {
        match self {
            Way::Echo => "echo over virtio",
            Way::Virtio => "kv over virtio",
            Way::Redis => "redis-server, kv load",
            Way::RedisByBenchmark => "redis-server, redis-benchmark",
            Way::Memcached => "memcached, kv load",
            Way::AfXdp => "kv over AF_XDP on veth, redis-benchmark",
            Way::Tap => "kv over TAP, redis-benchmark",
            Way::RedisOverVeth => "redis-server over veth, redis-benchmark",
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// Bytes, to be sent back.
    Echoes,
    /// GETs and SETs as [`GETS`] says.
    Both,
    /// GETs only.
    Gets,
    /// SETs only.
    Sets,
}

impl Asked {
    /// What to call it in a table.
    pub fn name(self) -> &'static str {
        match self {
            Asked::Echoes => "echoes",
            Asked::Both => "90 % GET",
            Asked::Gets => "GET",
            Asked::Sets => "SET",
        }
    }
}

/// What stays the same in all measurements.
#[derive(Debug, Clone)]
pub struct Setting {
    /// What the echo has, too: the cores, and the bytes of a value.
    pub pair: echo_pair::Setting,
    /// How many keys there are.
    pub keys: u64,
}

/// What one load measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Who was asked, over what, and by whom.
    pub way: Way,
    /// What for.
    pub asked: Asked,
    /// Requests on the way on each connection.
    pub depth: u32,
    /// Requests per second.
    pub rate: f64,
    /// Errors of any kind, and keys that were not there.
    pub errors: u64,
    /// The median round trip in microseconds; of a pipeline, by redis-benchmark, that of all of it.
    pub p50_us: f64,
    /// 99 of 100 are at most this.
    pub p99_us: f64,
}

/// What `linerate kv load --json` prints, as far as it is used here.
#[derive(Deserialize)]
struct Loaded {
    rate: f64,
    errors: u64,
    misses: u64,
    rtt_us: echo_pair::Rtt,
    get: Side,
}

/// The GETs.
#[derive(Deserialize)]
struct Side {
    requests: u64,
}

/// Starts a server, fills it, lets loads measure it one after the other, and stops it.
pub fn measure(setting: &Setting, way: Way, interrupted: &AtomicBool) -> Result<Vec<Row>, Error> {
    match way {
        Way::Echo => {
            let network = Network::Virtio(StackEngine::Native);
            let measured = echo_pair::measure(&setting.pair, network, &[CONNECTIONS], interrupted)?;
            let row = |one: &echo_pair::Measured| Row {
                way,
                asked: Asked::Echoes,
                depth: ALONE,
                rate: one.rate,
                errors: one.errors,
                p50_us: one.rtt_us.p50,
                p99_us: one.rtt_us.p99,
            };
            Ok(measured.iter().map(row).collect())
        }
        Way::Virtio => {
            let link = setting.link();
            let server = Server::linerate(setting.serve(&link.server), interrupted)?;
            setting.loads(way, &link.load, server.address, &[ALONE, PIPELINED], interrupted)
        }
        Way::Redis => {
            let server = Server::redis(setting, interrupted)?;
            let kernel = ["--via", "kernel"].map(str::to_owned);
            setting.loads(way, &kernel, server.address, &[ALONE, PIPELINED], interrupted)
        }
        Way::Memcached => {
            let server = Server::memcached(setting, interrupted)?;
            let kernel = ["--via", "kernel", "--protocol", "memcached"].map(str::to_owned);
            setting.loads(way, &kernel, server.address, &[ALONE], interrupted)
        }
        Way::RedisByBenchmark => {
            let server = Server::redis(setting, interrupted)?;
            setting.benchmarks(way, None, server.address, interrupted)
        }
        Way::AfXdp | Way::Tap | Way::RedisOverVeth => {
            let (hosts, server) = Server::on_a_host(setting, way, interrupted)?;
            setting.benchmarks(way, hosts.first(), server.address, interrupted)
        }
    }
}

/// What a server copied while it sent long values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Copied {
    /// GETs of [`LONG`] bytes that were answered while measuring.
    pub gets: u64,
    /// Payload bytes that the server's stack and port copied meanwhile and before, when the values were set.
    pub bytes: u64,
}

/// Has long values fetched over virtio-user and vhost, and tells what was copied for that.
pub fn copied(setting: &Setting, interrupted: &AtomicBool) -> Result<Copied, Error> {
    #[derive(Deserialize)]
    struct Summary {
        copied_bytes: u64,
    }
    let link = setting.link();
    let mut serve = setting.serve(&link.server);
    serve.arg("--json");
    let server = Server::linerate(serve, interrupted)?;
    let mut load = setting.load(&link.load, server.address, ALONE);
    load.args(["--keys", &LONG_KEYS.to_string(), "--value-size", &LONG.to_string(), "--get-ratio", "1", "--no-miss"]);
    let gets = setting.loaded(load, interrupted)?.get.requests;
    let (command, printed) = server.stop()?;
    match serde_json::from_str(&printed) {
        Ok(Summary { copied_bytes }) => Ok(Copied { gets, bytes: copied_bytes }),
        Err(_) => Err(Error::Unexpected { command, printed }),
    }
}

/// The two ends of a link: what each is told of it.
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

    /// `command`, which runs linerate, as one that serves keys and values.
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

    /// One that asks for all keys, GETs and SETs, and sets them first.
    fn load_both(&self, words: &[String], address: SocketAddr, depth: u32) -> Command {
        let mut load = self.load(words, address, depth);
        load.args(["--keys", &self.keys.to_string(), "--value-size", &self.pair.size.to_string()]);
        load.args(["--get-ratio", &GETS.to_string()]);
        load
    }

    fn loaded(&self, load: Command, interrupted: &AtomicBool) -> Result<Loaded, Error> {
        let load = Process::start(load)?;
        let command = load.command().to_owned();
        let limit = self.pair.duration + AROUND + PER_MILLION.mul_f64(self.keys as f64 / 1e6);
        let printed = load.output(limit, interrupted)?;
        serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command, printed })
    }

    /// What `linerate kv load` measures at each of these depths; it sets all keys first.
    fn loads(
        &self,
        way: Way,
        words: &[String],
        address: SocketAddr,
        depths: &[u32],
        interrupted: &AtomicBool,
    ) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for depth in depths {
            let mut load = self.load_both(words, address, *depth);
            // What is there for the first is there for the others.
            load.args((!rows.is_empty()).then_some("--no-fill"));
            let Loaded { rate, errors, misses, rtt_us, .. } = self.loaded(load, interrupted)?;
            let (p50_us, p99_us) = (rtt_us.p50, rtt_us.p99);
            rows.push(Row { way, asked: Asked::Both, depth: *depth, rate, errors: errors + misses, p50_us, p99_us });
        }
        Ok(rows)
    }

    /// What redis-benchmark measures on `client`, or on this host; all its keys are set first.
    fn benchmarks(
        &self,
        way: Way,
        client: Option<&Host>,
        address: SocketAddr,
        interrupted: &AtomicBool,
    ) -> Result<Vec<Row>, Error> {
        let fill = || fill::fill(address, self.keys, self.pair.size as usize, interrupted);
        let filled = client.map_or_else(fill, |client| client.within(fill));
        filled.map_err(|error| fill::failed(error, interrupted))?;
        let mut rows = Vec::new();
        for depth in [ALONE, PIPELINED] {
            let benchmark = Benchmark { client, core: self.pair.load_core, address, depth };
            let sizes = (self.keys, self.pair.size);
            for (asked, measured) in benchmark.measure(sizes, self.pair.duration, interrupted)? {
                let redis_benchmark::Measured { rate, p50_us, p99_us } = measured;
                rows.push(Row { way, asked, depth, rate, errors: 0, p50_us, p99_us });
            }
        }
        Ok(rows)
    }
}

/// Why `way` cannot be measured on this machine, if it cannot.
pub fn obstacle(setting: &Setting, way: Way, interrupted: &AtomicBool) -> Result<Option<String>, Error> {
    let redis = [(REDIS, "redis-server"), (redis_benchmark::PROGRAM, "redis-tools")];
    let needed = match way {
        Way::Echo | Way::Virtio => &[][..],
        Way::Redis => &redis[..1],
        Way::Memcached => &[(MEMCACHED, "memcached")],
        Way::AfXdp | Way::Tap => &redis[1..],
        Way::RedisByBenchmark | Way::RedisOverVeth => &redis,
    };
    if let Some(lacking) = needed.iter().copied().find_map(lacking) {
        return Ok(Some(lacking));
    }
    if !matches!(way, Way::AfXdp | Way::Tap | Way::RedisOverVeth) {
        return Ok(None);
    }
    match Server::on_a_host(setting, way, interrupted) {
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
    fn what_is_not_installed_is_told_with_its_package() {
        let told = lacking(("linerate-no-such-program", "some-package")).unwrap();
        assert_eq!(told, "linerate-no-such-program is not installed: apt-get install some-package");
        assert_eq!(lacking(("sh", "dash")), None);
    }

    #[test]
    fn the_report_of_a_load_is_read() {
        let printed = r#"{"requests":10,"seconds":1.0,"rate":10.0,"bytes":640,"errors":1,
            "rtt_us":{"p50":1.5,"p90":2.0,"p99":3.0,"p999":4.0,"max":5.0},
            "get":{"requests":9,"rate":9.0,"bytes":576,"rtt_us":{}},"set":{},"misses":2,"filled":7}"#;
        let Loaded { rate, errors, misses, rtt_us, get } = serde_json::from_str(printed).unwrap();
        assert_eq!((rate, errors, misses, rtt_us.p99, get.requests), (10.0, 1, 2, 3.0, 9));
    }
}
