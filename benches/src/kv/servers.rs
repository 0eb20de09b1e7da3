//! Servers, each pinned to its core and stopped on drop.

use super::{Contender, Setting};
use linerate_harness::Error;
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::namespace::Host;
use linerate_harness::process::{Process, pinned};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// External programs.
pub(super) const REDIS: &str = "redis-server";
pub(super) const MEMCACHED: &str = "memcached";
/// Maximum time until redis-server is ready.
const PATIENCE: Duration = Duration::from_secs(20);
/// Port of Redis, on namespaced hosts.
const PORT: u16 = 6379;

/// Running server.
pub(super) struct Server {
    pub process: Process,
    /// Address.
    pub address: SocketAddr,
}

impl Server {
    /// Starts `linerate kv serve`.
    pub fn linerate(command: Command) -> Result<Server, Error> {
        let mut process = Process::start(command)?;
        let ready = process.wait_for_line("ready ")?;
        match ready.split([' ', ',']).nth(3).unwrap_or_default().parse() {
            Ok(address) => Ok(Server { process, address }),
            Err(_) => Err(Error::Unexpected { command: process.command().to_owned(), printed: ready }),
        }
    }

    /// Starts redis-server on loopback.
    pub fn redis(setting: &Setting) -> Result<Server, Error> {
        let command = pinned(setting.pair.server_core, REDIS);
        Server::redis_at(command, unused_address(), setting)
    }

    /// Starts `command`, which runs redis-server.
    fn redis_at(mut command: Command, address: SocketAddr, setting: &Setting) -> Result<Server, Error> {
        // Without persistence.
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(&setting.pair.scratch);
        command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
        command.args(["--protected-mode", "no"]);
        let mut process = Process::start(command)?;
        process.read_until(PATIENCE, |line| line.contains("Ready to accept connections"))?;
        Ok(Server { process, address })
    }

    /// Starts memcached on loopback, with one thread.
    pub fn memcached(setting: &Setting) -> Result<Server, Error> {
        let address = unused_address();
        let mut command = pinned(setting.pair.server_core, MEMCACHED);
        command.args(["-t", "1", "-m", "1024", "-U", "0", "-l", &address.ip().to_string()]);
        // memcached runs as root only with -u.
        command.args(["-p", &address.port().to_string(), "-u", "root"]);
        let process = Process::start(command)?;
        wait_until_listening(address, MEMCACHED)?;
        Ok(Server { process, address })
    }

    /// Starts a server that a host reaches by its only interface. The first of the returned hosts is the client; drop
    /// the hosts after the server.
    pub fn on_a_host(setting: &Setting, contender: Contender) -> Result<(Vec<Host>, Server), Error> {
        let linerate = |host: &Host, network: &[String], at: SocketAddr| {
            let words = [network, &["--listen".to_owned(), at.to_string()]].concat();
            Server::linerate(setting.served_by(host.command(&setting.pair.linerate), &words))
        };
        if contender == Contender::Tap {
            let near = Host::alone()?;
            let far = "10.99.0.2";
            let network = ["--via", &format!("tap:{}", near.interface()), "--ip", &format!("{far}/24")];
            let at = SocketAddr::new(far.parse().expect("an address"), PORT);
            let server = linerate(&near, &network.map(str::to_owned), at)?;
            near.plug()?;
            near.address()?;
            return Ok((vec![near], server));
        }
        let [near, far] = Host::pair()?;
        near.address()?;
        let at = SocketAddr::new(far.ip(false), PORT);
        let server = if contender == Contender::AfXdp {
            linerate(&far, &far.via_args(), at)?
        } else {
            far.address()?;
            let mut redis = far.command(Path::new("taskset"));
            redis.args(["-c", &setting.pair.server_core.to_string(), REDIS]);
            Server::redis_at(redis, at, setting)?
        };
        Ok((vec![near, far], server))
    }

    /// Stops the server and returns its command line and final output.
    pub fn stop(self) -> Result<(String, String), Error> {
        let command = self.process.command().to_owned();
        Ok((command, self.process.stop()?))
    }
}
