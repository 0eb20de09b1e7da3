//! A server and its load.

use linerate_benches::distance::Cores;
use linerate_benches::linerate;
use linerate_harness::Error;
use linerate_harness::address::unused_address;
use linerate_harness::process::{Ended, Process, TIMEOUT};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Heads of the values of a load, and their decimals.
pub const VALUES: &[(&str, usize)] = &[("requests/s", 0), ("RTT p50 µs", 1), ("p99 µs", 1), ("p99.9 µs", 1)];
/// Positions of values of a load.
pub const RATE: usize = 0;
pub const P50: usize = 1;
pub const P99: usize = 2;
pub const P999: usize = 3;

/// Maximum ratio of lost datagrams to replies: a host that stops a virtual machine for longer than the load waits for
/// replies makes it lose datagrams.
const MAX_LOSS: f64 = 1e-3;

/// Network between the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// A vhost port at the server and a virtio-user port at the load.
    Virtio,
    /// The same ports with RoCEv2.
    Roce,
    /// Shared memory.
    Memif,
    /// Kernel sockets over loopback, sleeping in `epoll_wait`.
    Sleeping,
    /// Kernel sockets over loopback, spinning.
    Spinning,
}

/// Fields used from the output of a load with `--json`.
#[derive(Deserialize)]
pub struct Loaded {
    rate: f64,
    seconds: f64,
    errors: u64,
    #[serde(default)]
    misses: u64,
    rtt_us: Rtt,
}

#[derive(Deserialize)]
struct Rtt {
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
}

impl Loaded {
    /// Returns the values in the order of [`VALUES`].
    pub fn values(&self) -> [f64; 4] {
        let Rtt { p50, p99, p999 } = self.rtt_us;
        [Some(self.rate), p50, p99, p999].map(|value| value.unwrap_or(f64::NAN))
    }
}

/// Cores and programs of a server and its load.
pub struct Pair {
    pub linerate: PathBuf,
    pub scratch: TempDir,
    pub cores: Cores,
    pub duration: Duration,
}

impl Pair {
    pub fn new(cores: Cores, duration: Duration) -> Result<Pair, Error> {
        let scratch = tempfile::tempdir().map_err(|error| Error::Start { program: "loads".to_owned(), error })?;
        Ok(Pair { linerate: linerate()?, scratch, cores, duration })
    }

    /// Measures `SERVICE serve` with `SERVICE load` over a network, each with further words. `raw` is the service
    /// without a protocol.
    pub fn run(&self, network: Network, service: &str, serve: &str, load: &str) -> Result<Loaded, Error> {
        let server = |words: &str| self.server(&format!("{service} serve {words} {serve}"));
        let client = |words: &str| self.load(&format!("{service} load {words} {load}"));
        let socket = self.scratch.path().join("link.sock");
        let socket = socket.display();
        let [server_via, load_via] = match network {
            Network::Virtio => [format!("vhost:{socket}"), format!("virtio-user:{socket}")],
            Network::Roce => [format!("roce:vhost:{socket}"), format!("roce:virtio-user:{socket}")],
            Network::Memif => [format!("memif:{socket},server"), format!("memif:{socket}")],
            Network::Sleeping | Network::Spinning => {
                let (address, spin) = (unused_address(), if network == Network::Spinning { "--spin" } else { "" });
                let mut server = server(&format!("--via kernel {spin} --listen {address}"))?;
                server.wait_for_line("ready")?;
                let loaded = client(&format!("--via kernel {spin} --connect {address}"))?;
                server.stop()?;
                return Ok(loaded);
            }
        };
        let (server, loaded) = if service == "raw" {
            let server = self.server(&format!("raw reflect --via {server_via} {serve}"))?;
            (server, self.load(&format!("raw load --via {load_via} {load}"))?)
        } else {
            let addresses = "--ip 10.0.0.2/24 --listen 10.0.0.2:7 --listen 10.0.0.2:8";
            let server = server(&format!("--no-inspect --via {server_via} {addresses}"))?;
            (server, client(&format!("--no-inspect --via {load_via} --ip 10.0.0.1/24 --connect 10.0.0.2:7"))?)
        };
        server.stop()?;
        Ok(loaded)
    }

    /// Starts a server by the words of a command of linerate.
    pub fn server(&self, words: &str) -> Result<Process, Error> {
        Process::start(self.command(Command::new(&self.linerate), words, self.cores.server))
    }

    /// Runs a load by the words of a command of linerate. It must have no errors.
    pub fn load(&self, words: &str) -> Result<Loaded, Error> {
        self.loaded(Command::new(&self.linerate), words)
    }

    /// Runs a load by `linerate`, a command without arguments.
    pub fn loaded(&self, linerate: Command, words: &str) -> Result<Loaded, Error> {
        Ok(self.loaded_while(linerate, words, |_| Ok(()))?.0)
    }

    /// As [`loaded`](Self::loaded), with `meanwhile` during the load.
    pub fn loaded_while<T>(
        &self,
        linerate: Command,
        words: &str,
        meanwhile: impl FnOnce(&mut Process) -> Result<T, Error>,
    ) -> Result<(Loaded, T), Error> {
        let time = self.duration.as_millis();
        let words = format!("{words} --warm-up 300ms --json --duration {time}ms");
        let mut load = Process::start(self.command(linerate, &words, self.cores.load))?;
        let value = meanwhile(&mut load)?;
        let command = load.command().to_owned();
        let Ended { status, stdout, stderr } = load.end(self.duration + 6 * TIMEOUT)?;
        let most = if words.contains("--udp") { MAX_LOSS } else { 0.0 };
        let loaded = serde_json::from_str::<Loaded>(&stdout).ok();
        let is_complete = |one: &Loaded| (one.errors + one.misses) as f64 <= one.rate * one.seconds * most;
        loaded.filter(is_complete).map(|loaded| (loaded, value)).ok_or_else(|| Error::Failed {
            command,
            failure: format!("failed, or had errors ({status})"),
            output: stdout + &stderr,
        })
    }

    /// Completes `linerate`, a command without arguments, by `words` and its core.
    pub fn command(&self, mut linerate: Command, words: &str, core: usize) -> Command {
        linerate.args(words.split_whitespace()).args(["--cores", &core.to_string()]);
        linerate
    }
}
