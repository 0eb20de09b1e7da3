//! The clients, and what they are told.

use super::{redis_benchmark, redis_cli};
use std::net::SocketAddr;
use std::process::{Command, Output};

/// Seconds that a client may take.
const PATIENCE: &str = "60";
/// Debian's, which finds Debian's libraries.
const PYTHON: &str = "/usr/bin/python3";
/// Where Debian's libraries of Node.js are, for a Node.js that is not Debian's.
const NODE_PATH: &str = "/usr/share/nodejs";

/// A server, as a client is told of it.
pub struct Server {
    pub redis: SocketAddr,
    pub memcached: SocketAddr,
    pub password: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
pub enum Client {
    RedisCli,
    RedisBenchmark,
    RedisPy,
    NodeRedis,
    Pymemcache,
}

impl Client {
    /// Debian's package, and how to find out whether it is there.
    fn package(self) -> (&'static str, Command) {
        let command = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args).env("NODE_PATH", NODE_PATH);
            command
        };
        match self {
            Client::RedisCli => ("redis-tools", command("redis-cli", &["--version"])),
            Client::RedisBenchmark => ("redis-tools", command("redis-benchmark", &["--version"])),
            Client::RedisPy => ("python3-redis", command(PYTHON, &["-c", "import redis"])),
            Client::NodeRedis => ("nodejs node-redis", command("node", &["-e", "require('redis')"])),
            Client::Pymemcache => ("python3-pymemcache", command(PYTHON, &["-c", "import pymemcache"])),
        }
    }

    /// Whether it is there; says so if not.
    pub fn is_installed(self, test: &str) -> bool {
        let (package, mut command) = self.package();
        let found = command.output().is_ok_and(|output| output.status.success());
        if !found {
            eprintln!("skipped: {test} needs {self:?}: apt-get install {package}");
        }
        found
    }

    /// Has it do all that it is relied on for.
    #[track_caller]
    pub fn try_on(self, server: &Server) {
        match self {
            Client::RedisCli => redis_cli::try_on(server),
            Client::RedisBenchmark => redis_benchmark::try_on(server),
            Client::RedisPy => script(PYTHON, "redis_py.py", server.redis, server.password),
            Client::NodeRedis => script("node", "node_redis.js", server.redis, server.password),
            Client::Pymemcache => script(PYTHON, "pymemcache_py.py", server.memcached, None),
        }
    }
}

/// `program`, which is killed if it takes too long.
pub fn bounded(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args([PATIENCE, program]);
    command
}

/// Runs the script `name` beside this file.
#[track_caller]
fn script(program: &str, name: &str, server: SocketAddr, password: Option<&str>) {
    let mut command = bounded(program);
    command.arg(format!("{}/tests/kv_clients/{name}", env!("CARGO_MANIFEST_DIR")));
    command.args([server.ip().to_string(), server.port().to_string()]).args(password).env("NODE_PATH", NODE_PATH);
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stdout == b"all is well\n", "{name} of {server}: {}", said(&output));
}

/// What a program said, to be read by whoever looks into a failure.
pub fn said(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{stdout}\n{stderr}", output.status)
}
