//! The servers, each on its core until it is dropped.

use super::{Setting, Way};
use crate::external::loopback;
use crate::external::process::{Error, Process, pinned};
use crate::hosts::Host;
use crate::unused_address::unused_address;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The programs of others.
pub(super) const REDIS: &str = "redis-server";
pub(super) const MEMCACHED: &str = "memcached";
/// How long redis-server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(20);
/// The port of Redis, on hosts of our own.
const PORT: u16 = 6379;

/// A server that is ready.
pub(super) struct Server {
    pub process: Process,
    /// Where.
    pub address: SocketAddr,
}

impl Server {
    /// `linerate kv serve`.
    pub fn linerate(command: Command, interrupted: &AtomicBool) -> Result<Server, Error> {
        let mut process = Process::start(command)?;
        let ready = process.wait_for_line("ready ", interrupted)?;
        match ready.split([' ', ',']).nth(3).unwrap_or_default().parse() {
            Ok(address) => Ok(Server { process, address }),
            Err(_) => Err(Error::Unexpected { command: process.command().to_owned(), printed: ready }),
        }
    }

    /// redis-server on loopback.
    pub fn redis(setting: &Setting, interrupted: &AtomicBool) -> Result<Server, Error> {
        let command = pinned(setting.pair.server_core, REDIS);
        Server::redis_at(command, unused_address(), setting, interrupted)
    }

    /// `command`, which runs redis-server.
    fn redis_at(
        mut command: Command,
        address: SocketAddr,
        setting: &Setting,
        interrupted: &AtomicBool,
    ) -> Result<Server, Error> {
        // A cache: nothing goes to the disk.
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(&setting.pair.scratch);
        command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
        command.args(["--protected-mode", "no"]);
        let mut process = Process::start(command)?;
        process.read_until(PATIENCE, interrupted, |line| line.contains("Ready to accept connections"))?;
        Ok(Server { process, address })
    }

    /// memcached on loopback, with one thread.
    pub fn memcached(setting: &Setting, interrupted: &AtomicBool) -> Result<Server, Error> {
        let address = unused_address();
        let mut command = pinned(setting.pair.server_core, MEMCACHED);
        command.args(["-t", "1", "-m", "1024", "-U", "0", "-l", &address.ip().to_string()]);
        // It does not run as root unless told to.
        command.args(["-p", &address.port().to_string(), "-u", "root"]);
        let process = Process::start(command)?;
        loopback::wait_for(address, MEMCACHED, interrupted)?;
        Ok(Server { process, address })
    }

    /// A server that a host reaches by its only interface, whatever is behind that. The first of the hosts is that one; they
    /// are to be dropped after the server.
    pub fn on_a_host(setting: &Setting, way: Way, interrupted: &AtomicBool) -> Result<(Vec<Host>, Server), Error> {
        let linerate = |host: &Host, network: &[String], at: SocketAddr| {
            let words = [network, &["--listen".to_owned(), at.to_string()]].concat();
            Server::linerate(setting.served_by(host.command(&setting.pair.linerate), &words), interrupted)
        };
        if way == Way::Tap {
            let near = Host::alone(interrupted)?;
            let far = "10.99.0.2";
            let network = ["--via", &format!("tap:{}", near.interface()), "--ip", &format!("{far}/24")];
            let at = SocketAddr::new(far.parse().expect("an address"), PORT);
            let server = linerate(&near, &network.map(str::to_owned), at)?;
            near.plug(interrupted)?;
            near.address(interrupted)?;
            return Ok((vec![near], server));
        }
        let [near, far] = Host::pair(interrupted)?;
        near.address(interrupted)?;
        let at = SocketAddr::new(far.ip(false), PORT);
        let server = if way == Way::AfXdp {
            linerate(&far, &far.taken_over(), at)?
        } else {
            far.address(interrupted)?;
            let mut redis = far.command(Path::new("taskset"));
            redis.args(["-c", &setting.pair.server_core.to_string(), REDIS]);
            Server::redis_at(redis, at, setting, interrupted)?
        };
        Ok((vec![near, far], server))
    }

    /// Stops it, and returns its command line and what it printed at the end.
    pub fn stop(self) -> Result<(String, String), Error> {
        let command = self.process.command().to_owned();
        Ok((command, self.process.stop()?))
    }
}
