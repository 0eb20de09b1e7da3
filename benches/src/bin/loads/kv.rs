//! Key-value servers under load: `linerate kv` over virtio-user and on a kernel interface, redis-server and memcached.

use crate::pair::{Network, Pair, RATE, VALUES};
use linerate_benches::rounds::{Bound, Job, Plan, Required, RoundRows, Row};
use linerate_harness::Error;
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::namespace::Host;
use linerate_harness::process::{Process, TIMEOUT, pinned};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const REDIS: &str = "redis-server";
const BENCHMARK: &str = "redis-benchmark";
const MEMCACHED: &str = "memcached";
/// Port of Redis, on namespaced hosts.
const PORT: u16 = 6379;
/// Size of a value in bytes, and fraction of GETs.
const VALUE: u64 = 64;
const GETS: f64 = 0.9;
/// Memory of a linerate server per key in addition to its value, and in total. The ports need the remaining hugepages.
const OVERHEAD: u64 = 96;
const MEMORY: u64 = 96 << 20;
/// Requests per pipeline slot in the trial of redis-benchmark, which determines the number of requests to measure.
const TRIAL: u64 = 20_000;
/// Maximum time of redis-benchmark in addition to its measurement.
const AROUND: Duration = Duration::from_secs(60);

/// Names of the servers with their clients.
const ECHO: &str = "echo over virtio";
const VIRTIO: &str = "kv over virtio";
const BY_LOAD: &str = "redis-server, kv load";
const BY_BENCHMARK: &str = "redis-server, redis-benchmark";
const MEMCACHED_BY_LOAD: &str = "memcached, kv load";
const AF_XDP: &str = "kv over AF_XDP on veth, redis-benchmark";
const OVER_VETH: &str = "redis-server over veth, redis-benchmark";
const MIX: &str = "90 % GET";

/// Returns the comparison, without what cannot be measured here.
pub fn plan(pair: &Pair, keys: u64) -> Plan<'_> {
    let bench = Bench { pair, keys };
    let mut jobs = vec![
        Job::new(ECHO, move |_| {
            let loaded = pair.run(Network::Virtio, "echo", "", "--size 64 --connections 64")?;
            Ok(vec![Row::new(&[ECHO, "echoes", "1"], &loaded.values())])
        }),
        Job::new(VIRTIO, move |_| bench.virtio()),
    ];
    let mut add = |name: &'static str, needed: &[(&str, &str)], measure: fn(Bench) -> Result<Vec<Row>, Error>| {
        let missing = needed.iter().find(|(program, _)| Command::new(program).arg("--version").output().is_err());
        match missing {
            Some((program, package)) => {
                eprintln!("not measured: {name}: {program} is not installed: apt-get install {package}");
            }
            None if name.contains("veth") && !rustix::process::geteuid().is_root() => {
                eprintln!("not measured: {name}: network namespaces need root");
            }
            None => jobs.push(Job::new(name, move |_| measure(bench))),
        }
    };
    let (redis, tools) = ((REDIS, "redis-server"), (BENCHMARK, "redis-tools"));
    add(BY_LOAD, &[redis], |bench| bench.redis_by_load());
    add(BY_BENCHMARK, &[redis, tools], |bench| {
        let at = unused_address();
        let _server = bench.redis(pinned(bench.pair.cores.server, REDIS), at)?;
        bench.benchmarks(BY_BENCHMARK, None, at)
    });
    add(MEMCACHED_BY_LOAD, &[(MEMCACHED, "memcached")], |bench| bench.memcached());
    add(AF_XDP, &[tools, ("ethtool", "ethtool")], |bench| bench.on_a_host(AF_XDP));
    add(OVER_VETH, &[redis, tools, ("ethtool", "ethtool")], |bench| bench.on_a_host(OVER_VETH));
    Plan {
        heads: &["server and client", "requests", "depth"],
        values: VALUES,
        jobs,
        required: required(),
        legend: format!(
            "64 connections, {keys} keys, values of {VALUE} bytes; round trips of redis-benchmark are \
                         those of a whole pipeline"
        ),
    }
}

fn required<'a>() -> Vec<Required<'a>> {
    let rate = |round: &RoundRows, names: [&str; 3]| round.value(&names, RATE);
    let of_echo = move |round: &RoundRows| Some(rate(round, [VIRTIO, MIX, "1"])? / rate(round, [ECHO, "echoes", "1"])?);
    let memcached =
        move |round: &RoundRows| Some(rate(round, [VIRTIO, MIX, "1"])? / rate(round, [MEMCACHED_BY_LOAD, MIX, "1"])?);
    let mut required = vec![
        Required::new("requests/s over virtio, to echo's", Bound::AtLeast(0.75), of_echo),
        Required::new("requests/s over virtio at depth 1, to memcached's", Bound::AtLeast(10.0), memcached),
    ];
    for (depth, least) in [("1", 15.0), ("16", 5.0)] {
        required.push(Required::new(
            format!("requests/s over virtio at depth {depth}, to redis-server's by the faster client"),
            Bound::AtLeast(least),
            move |round| {
                let benchmark = |requests| rate(round, [BY_BENCHMARK, requests, depth]);
                let redis = rate(round, [BY_LOAD, MIX, depth])?.max(mixed(benchmark("GET")?, benchmark("SET")?));
                Some(rate(round, [VIRTIO, MIX, depth])? / redis)
            },
        ));
        for requests in ["GET", "SET"] {
            let ratio = move |round: &RoundRows| {
                Some(rate(round, [AF_XDP, requests, depth])? / rate(round, [OVER_VETH, requests, depth])?)
            };
            let name = format!("{AF_XDP} -P {depth}, {requests}, to redis-server's over veth");
            required.push(Required::new(name, Bound::AtLeast(1.0), ratio));
        }
    }
    required
}

/// Returns the rate of GETs and SETs in the loads' proportion, from the time each takes alone.
fn mixed(gets: f64, sets: f64) -> f64 {
    1.0 / (GETS / gets + (1.0 - GETS) / sets)
}

/// Parameters of all measurements.
#[derive(Clone, Copy)]
struct Bench<'a> {
    pair: &'a Pair,
    keys: u64,
}

impl Bench<'_> {
    /// Returns the options of `linerate kv serve`.
    fn serve(&self) -> String {
        format!("--memory {}", self.keys * (VALUE + OVERHEAD) + MEMORY)
    }

    /// Returns the options of `linerate kv load` at this depth, which first sets all keys.
    fn mix(&self, depth: &str) -> String {
        let keys = self.keys;
        format!("--connections 64 --depth {depth} --zipf 0.99 --keys {keys} --value-size {VALUE} --get-ratio {GETS}")
    }

    fn virtio(&self) -> Result<Vec<Row>, Error> {
        let of = |depth| {
            let loaded = self.pair.run(Network::Virtio, "kv", &self.serve(), &self.mix(depth))?;
            Ok(Row::new(&[VIRTIO, MIX, depth], &loaded.values()))
        };
        ["1", "16"].into_iter().map(of).collect()
    }

    fn redis_by_load(&self) -> Result<Vec<Row>, Error> {
        let at = unused_address();
        let _server = self.redis(pinned(self.pair.cores.server, REDIS), at)?;
        let of = |depth, more| {
            let loaded = self.pair.load(&format!("kv load --via kernel --connect {at} {}{more}", self.mix(depth)))?;
            Ok(Row::new(&[BY_LOAD, MIX, depth], &loaded.values()))
        };
        [("1", ""), ("16", " --no-fill")].into_iter().map(|(depth, more)| of(depth, more)).collect()
    }

    /// Starts redis-server without persistence by `command`.
    fn redis(&self, mut command: Command, at: SocketAddr) -> Result<Process, Error> {
        command.args(["--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir"]);
        command.arg(self.pair.scratch.path());
        command.args(["--bind", &at.ip().to_string(), "--port", &at.port().to_string()]);
        let mut process = Process::start(command)?;
        process.read_until(TIMEOUT, |line| line.contains("Ready to accept connections"))?;
        Ok(process)
    }

    /// Measures memcached with one thread.
    fn memcached(&self) -> Result<Vec<Row>, Error> {
        let at = unused_address();
        let mut command = pinned(self.pair.cores.server, MEMCACHED);
        // memcached runs as root only with -u.
        command.args(["-t", "1", "-m", "1024", "-U", "0", "-u", "root"]);
        command.args(["-l", &at.ip().to_string(), "-p", &at.port().to_string()]);
        let _server = Process::start(command)?;
        wait_until_listening(at, MEMCACHED)?;
        let load = format!("kv load --via kernel --protocol memcached --connect {at} {}", self.mix("1"));
        Ok(vec![Row::new(&[MEMCACHED_BY_LOAD, MIX, "1"], &self.pair.load(&load)?.values())])
    }

    /// Measures a server at the far end of a veth pair with redis-benchmark at the near end.
    fn on_a_host(&self, name: &'static str) -> Result<Vec<Row>, Error> {
        let [near, far] = Host::pair()?;
        near.address()?;
        let (at, core) = (SocketAddr::new(far.ip(false), PORT), self.pair.cores.server);
        let server = if name == AF_XDP {
            let words = format!("kv serve {} {} --listen {at}", self.serve(), far.via_args().join(" "));
            let mut server = Process::start(self.pair.command(far.command(&self.pair.linerate), &words, core))?;
            server.wait_for_line("ready")?;
            server
        } else {
            far.address()?;
            let mut redis = far.command(Path::new("taskset"));
            redis.args(["-c", &core.to_string(), REDIS]);
            self.redis(redis, at)?
        };
        let rows = self.benchmarks(name, Some(&near), at);
        // Before its host.
        drop(server);
        rows
    }

    /// Measures redis-benchmark on `client` or on this host: GETs and SETs at both depths.
    fn benchmarks(&self, name: &str, client: Option<&Host>, at: SocketAddr) -> Result<Vec<Row>, Error> {
        // redis-benchmark sets random keys: this number of SETs leaves out one key of 50.
        self.benchmark(client, at, 64, "set", 4 * self.keys)?;
        let mut rows = Vec::new();
        for depth in [1, 16] {
            // It takes a number of requests instead of a duration.
            let trial = self.benchmark(client, at, depth, "get", TRIAL * depth)?;
            let requests = trial.first().map_or(0.0, |(_, [rate, ..])| rate * self.pair.duration.as_secs_f64());
            for (requests, values) in self.benchmark(client, at, depth, "set,get", (requests as u64).max(TRIAL))? {
                rows.push(Row::new(&[name, &requests, &depth.to_string()], &values));
            }
        }
        Ok(rows)
    }

    fn benchmark(
        &self,
        client: Option<&Host>,
        at: SocketAddr,
        depth: u64,
        commands: &str,
        requests: u64,
    ) -> Result<Vec<(String, [f64; 4])>, Error> {
        let mut command = match client {
            Some(host) => host.command(Path::new("taskset")),
            None => Command::new("taskset"),
        };
        command.args(["-c", &self.pair.cores.load.to_string(), BENCHMARK, "--csv", "-c", "64", "-t", commands]);
        command.args(["-h", &at.ip().to_string(), "-p", &at.port().to_string(), "-P", &depth.to_string()]);
        command.args(["-r", &self.keys.to_string(), "-d", &VALUE.to_string(), "-n", &requests.to_string()]);
        let running = Process::start(command)?;
        let command = running.command().to_owned();
        let printed = running.output(4 * self.pair.duration + AROUND)?;
        let measured = parse(&printed).filter(|measured| measured.len() == commands.split(',').count());
        measured.ok_or(Error::Unexpected { command, printed })
    }
}

/// Parses the lines of the CSV table of redis-benchmark by its header: kinds of requests with the values of a load.
fn parse(printed: &str) -> Option<Vec<(String, [f64; 4])>> {
    let words = |line: &str| line.split(',').map(|word| word.trim_matches('"').to_owned()).collect::<Vec<_>>();
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("\"test\"")).map(words);
    let names = lines.next()?;
    let row = |words: Vec<String>| {
        let number = |name: &str| words.get(names.iter().position(|other| other == name)?)?.parse::<f64>().ok();
        let microseconds = |name| Some(number(name)? * 1e3);
        let values = [number("rps")?, microseconds("p50_latency_ms")?, microseconds("p99_latency_ms")?, f64::NAN];
        Some((words.first()?.clone(), values))
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_table_is_parsed_by_header() {
        let printed = "WARNING: some\n\"test\",\"rps\",\"avg_latency_ms\",\"p50_latency_ms\",\"p99_latency_ms\"\n\
                       \"SET\",\"100.50\",\"9\",\"0.250\",\"0.500\"\n\"GET\",\"200.00\",\"9\",\"0.125\",\"0.375\"\n";
        let parsed = parse(printed).unwrap();
        assert_eq!((&*parsed[0].0, &parsed[0].1[..3]), ("SET", &[100.5, 250.0, 500.0][..]));
        assert_eq!((&*parsed[1].0, &parsed[1].1[..3]), ("GET", &[200.0, 125.0, 375.0][..]));
        assert_eq!(parse("Error: Connection refused\n"), None);
    }

    #[test]
    fn mixed_rate_weighs_nine_gets_per_set() {
        assert!((mixed(100.0, 100.0) - 100.0).abs() < 1e-9);
        assert!((mixed(90.0, 10.0) - 50.0).abs() < 1e-9);
    }
}
