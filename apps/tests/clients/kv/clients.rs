//! Clients under test.

use super::{redis_benchmark, redis_cli};
use linerate_harness::rerun::skip;
use std::net::SocketAddr;
use std::process::{Command, Output};

/// Time limit of a client in seconds.
const TIME_LIMIT: &str = "60";
/// Debian's Python, which finds the modules packaged by Debian.
pub const PYTHON: &str = "/usr/bin/python3";
/// Path of the Node.js modules packaged by Debian, for other builds of Node.js.
const NODE_PATH: &str = "/usr/share/nodejs";

/// Server addresses and password for a client.
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
    /// Returns the Debian package and a command that succeeds if it is installed.
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

    /// Returns whether the client is installed. Prints a message if not.
    pub fn is_installed(self) -> bool {
        let (package, mut command) = self.package();
        let found = command.output().is_ok_and(|output| output.status.success());
        if !found {
            skip(&format!("needs {self:?}: apt-get install {package}"));
        }
        found
    }

    /// Runs all checks with the client.
    #[track_caller]
    pub fn try_on(self, server: &Server) {
        match self {
            Client::RedisCli => redis_cli::try_on(server),
            Client::RedisBenchmark => redis_benchmark::try_on(server),
            _ => self.run_script(server, None),
        }
    }

    /// Runs the checks of a client with a script, over TLS if `ca` is the file of an authority.
    #[track_caller]
    pub fn run_script(self, server: &Server, ca: Option<&str>) {
        let (program, name, address, password) = match self {
            Client::NodeRedis => ("node", "node_redis.js", server.redis, server.password),
            Client::Pymemcache => (PYTHON, "pymemcache_py.py", server.memcached, None),
            _ => (PYTHON, "redis_py.py", server.redis, server.password),
        };
        let mut command = script_command(program, name, address);
        let output = command.args(password).envs(ca.map(|ca| ("TLS_CA", ca))).output().unwrap();
        let is_well = output.status.success() && output.stdout == b"all is well\n";
        assert!(is_well, "{name} with {address}: {}", output_of(&output));
    }
}

/// Returns the command of `program` with a time limit.
pub fn bounded(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args([TIME_LIMIT, program]);
    command
}

/// Returns the command of the script that uses a cluster with `client`.
pub fn cluster_script(client: Client, node: SocketAddr) -> Command {
    match client {
        Client::NodeRedis => script_command("node", "cluster_node.js", node),
        _ => script_command(PYTHON, "cluster_py.py", node),
    }
}

/// Returns the command of the script `name` in this directory.
fn script_command(program: &str, name: &str, server: SocketAddr) -> Command {
    let mut command = bounded(program);
    command.arg(format!("{}/tests/clients/kv/{name}", env!("CARGO_MANIFEST_DIR")));
    command.args([server.ip().to_string(), server.port().to_string()]).env("NODE_PATH", NODE_PATH);
    command
}

/// Formats the output of a program for a failure message.
pub fn output_of(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{stdout}\n{stderr}", output.status)
}
