//! Command execution by the service in this process, and by Redis.

use super::reply::Value;
use crate::request;
use crate::service::net::{Client, TestServer};
use linerate_harness::program::Program;
use linerate_harness::rerun::is_installed;
use linerate_harness::wait_for;
use linerate_service::time::Duration;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// Command and arguments.
pub type Args = Vec<Vec<u8>>;

/// Connections to each server.
pub const CLIENTS: usize = 2;

/// Returns the milliseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_millis() as u64
}

/// Service in this process, whose clock follows that of the machine.
pub struct LinerateServer {
    server: TestServer,
    clients: Vec<Client>,
    started: Instant,
    /// Time that the service has been told.
    passed: Duration,
}

impl LinerateServer {
    pub fn with_workers(count: usize) -> Self {
        let mut server = TestServer::new(count);
        let clients = (0..CLIENTS).map(|at| server.connect(at % count)).collect();
        LinerateServer { server, clients, started: Instant::now(), passed: Duration::ZERO }
    }

    /// Returns the reply to `client`. If `apart`, the last byte arrives later, so that a long last argument is received
    /// as a long value.
    pub fn run(&mut self, client: usize, command: &Args, apart: bool) -> Value {
        let (client, now) = (self.clients[client], self.started.elapsed());
        self.server.advance(now - std::mem::replace(&mut self.passed, now));
        let bytes = request(command);
        let (first, last) = bytes.split_at(bytes.len() - usize::from(apart));
        self.server.send(client, first);
        if apart {
            self.server.settle();
            self.server.send(client, last);
        }
        self.server.settle();
        let replies = self.server.received(client);
        let mut rest = &replies[..];
        let value = Value::read(&mut rest).expect("a reply");
        assert!(rest.is_empty(), "more than one reply to {command:?}");
        value
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
        let bytes: Vec<u8> = commands.iter().flat_map(|command| request(command)).collect();
        let connection = &mut self.connections[client];
        connection.get_mut().write_all(&bytes).expect("redis-server takes requests");
        commands.iter().map(|_| Value::read(connection).expect("redis-server replies")).collect()
    }
}
