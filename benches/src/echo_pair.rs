//! Echo server and its load, two processes pinned to a core each, over one of the compared networks.

use linerate_harness::Error;
use linerate_harness::process::Process;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time of a load in addition to its measurement: opening its port and connections, and closing them.
const AROUND: Duration = Duration::from_secs(30);

/// Network between the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// A virtio-user port at the load and a vhost port at the server, with the TCP stack and this engine at both ends.
    Virtio(StackEngine),
    /// Kernel sockets over loopback, sleeping in `epoll_wait`.
    Sleeping,
    /// Kernel sockets over loopback, spinning.
    Spinning,
}

/// TCP engine of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackEngine {
    /// The only engine of a `linerate` without a choice.
    Only,
    /// `--engine native`.
    Native,
    /// `--engine smoltcp`.
    Smoltcp,
}

impl StackEngine {
    /// Returns the engines that the `help` of `echo serve` lists, the primary one first.
    pub fn offered(help: &str) -> Vec<StackEngine> {
        let Some((_, after)) = help.split_once("--engine") else { return vec![StackEngine::Only] };
        // Up to the next option.
        let about = after.split("\n      --").next().unwrap_or(after);
        let known = |engine: &StackEngine| engine.value().is_some_and(|value| about.contains(value));
        [StackEngine::Native, StackEngine::Smoltcp].into_iter().filter(known).collect()
    }

    /// Returns the value of `--engine`.
    pub fn value(self) -> Option<&'static str> {
        match self {
            StackEngine::Only => None,
            StackEngine::Native => Some("native"),
            StackEngine::Smoltcp => Some("smoltcp"),
        }
    }
}

impl Network {
    /// Returns all networks, with each of `engines` for the stack.
    pub fn all(engines: &[StackEngine]) -> Vec<Network> {
        let stack = engines.iter().map(|engine| Network::Virtio(*engine));
        stack.chain([Network::Sleeping, Network::Spinning]).collect()
    }

    /// Returns the name for tables.
    pub fn name(self) -> String {
        match self {
            Network::Virtio(engine) => match engine.value() {
                Some(engine) => format!("virtio-user to vhost, {engine}"),
                None => "virtio-user to vhost".to_owned(),
            },
            Network::Sleeping => "kernel, sleeping".to_owned(),
            Network::Spinning => "kernel, spinning".to_owned(),
        }
    }

    /// Returns the stack's engine, if the network uses the stack.
    pub fn engine(self) -> Option<StackEngine> {
        match self {
            Network::Virtio(engine) => Some(engine),
            Network::Sleeping | Network::Spinning => None,
        }
    }
}

/// Parameters common to all measurements.
#[derive(Debug, Clone)]
pub struct Setting {
    /// `linerate` executable.
    pub linerate: PathBuf,
    /// Private directory for sockets.
    pub scratch: PathBuf,
    /// Core of the servers.
    pub server_core: usize,
    /// Core of the loads.
    pub load_core: usize,
    /// Size of a request in bytes.
    pub size: u32,
    /// Duration of a measurement.
    pub duration: Duration,
}

/// Fields used from the output of `linerate echo load --json`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct Measured {
    /// Requests per second.
    pub rate: f64,
    /// Number of errors of any kind.
    pub errors: u64,
    /// Round-trip times in microseconds.
    pub rtt_us: Rtt,
}

/// Percentiles of round-trip times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct Rtt {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Measured {
    /// Returns the median of each figure.
    ///
    /// # Panics
    /// If there are no measurements.
    pub fn median(all: &[Measured]) -> Measured {
        let median = |figure: fn(&Measured) -> f64| {
            let mut figures: Vec<f64> = all.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Measured {
            rate: median(|one| one.rate),
            errors: all.iter().map(|one| one.errors).sum(),
            rtt_us: Rtt {
                p50: median(|one| one.rtt_us.p50),
                p99: median(|one| one.rtt_us.p99),
                p999: median(|one| one.rtt_us.p999),
            },
        }
    }
}

/// Starts a server on `network`, measures it with a load of each number of `connections`, and stops it.
pub fn measure(setting: &Setting, network: Network, connections: &[u32]) -> Result<Vec<Measured>, Error> {
    let (_server, address) = start_server(setting, network)?;
    connections.iter().map(|n| load(setting, network, &address, *n)).collect()
}

/// Starts a server on `network` and returns it, ready, with its address.
pub(crate) fn start_server(setting: &Setting, network: Network) -> Result<(Process, String), Error> {
    let mut server = Process::start(serve(setting, network))?;
    let ready = server.wait_for_line("ready ")?;
    let address = ready.split(' ').nth(3).unwrap_or_default().to_owned();
    Ok((server, address))
}

/// Returns the path of the virtio link's socket.
fn socket(setting: &Setting) -> PathBuf {
    setting.scratch.join("link.sock")
}

fn serve(setting: &Setting, network: Network) -> Command {
    let mut command = Command::new(&setting.linerate);
    command.args(["echo", "serve", "--cores", &setting.server_core.to_string(), "--via"]);
    match network {
        Network::Virtio(engine) => {
            command.arg(format!("vhost:{}", socket(setting).display())).args(choice(engine));
            command.args(["--ip", "10.0.0.2/24", "--listen", "10.0.0.2:7"]);
        }
        Network::Sleeping => {
            command.args(["kernel", "--listen", "127.0.0.1:0"]);
        }
        Network::Spinning => {
            command.args(["kernel", "--spin", "--listen", "127.0.0.1:0"]);
        }
    }
    command
}

fn load(setting: &Setting, network: Network, address: &str, connections: u32) -> Result<Measured, Error> {
    let load = Process::start(load_command(setting, network, address, connections))?;
    let line = load.command().to_owned();
    let printed = load.output(setting.duration + AROUND)?;
    serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command: line, printed })
}

/// Returns a load of the server at `address`.
pub(crate) fn load_command(setting: &Setting, network: Network, address: &str, connections: u32) -> Command {
    let mut command = Command::new(&setting.linerate);
    command.args(["echo", "load", "--json", "--cores", &setting.load_core.to_string(), "--connect", address]);
    command.args(["--connections", &connections.to_string(), "--size", &setting.size.to_string(), "--depth", "1"]);
    command.args(["--duration", &format!("{}ms", setting.duration.as_millis()), "--via"]);
    match network {
        Network::Virtio(engine) => {
            command.arg(format!("virtio-user:{}", socket(setting).display())).args(["--ip", "10.0.0.1/24"]);
            command.args(choice(engine));
        }
        Network::Sleeping => {
            command.arg("kernel");
        }
        Network::Spinning => {
            command.args(["kernel", "--spin"]);
        }
    }
    command
}

fn choice(engine: StackEngine) -> impl Iterator<Item = &'static str> {
    engine.value().into_iter().flat_map(|value| ["--engine", value])
}

/// Returns the engines that the `linerate` at `path` offers.
pub fn engines_of(path: &Path) -> Result<Vec<StackEngine>, Error> {
    let mut command = Command::new(path);
    command.args(["echo", "serve", "--help"]);
    let help = Process::start(command)?.output(AROUND)?;
    Ok(StackEngine::offered(&help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_engines_are_parsed_from_help() {
        let help = "Options:\n      --via <NET>\n          The network\n\n      --engine <ENGINE>\n          The TCP \
                    engine\n\n          Possible values:\n          - native:  ours\n          - smoltcp: sockets\n\n\
                    \x20     --force\n          smoltcp\n";
        assert_eq!(StackEngine::offered(help), [StackEngine::Native, StackEngine::Smoltcp]);
        assert_eq!(StackEngine::offered("      --via <NET>\n"), [StackEngine::Only]);
        assert_eq!(StackEngine::offered("--engine <E>  native\n      --force  smoltcp"), [StackEngine::Native]);
    }

    #[test]
    fn report_of_load_is_parsed() {
        let printed = r#"{"requests":10,"seconds":1.0,"rate":10.0,"bytes":640,"errors":0,
            "rtt_us":{"p50":1.5,"p90":2.0,"p99":3.0,"p999":4.0,"max":5.0}}"#;
        let measured: Measured = serde_json::from_str(printed).unwrap();
        assert_eq!(measured, Measured { rate: 10.0, errors: 0, rtt_us: Rtt { p50: 1.5, p99: 3.0, p999: 4.0 } });
    }

    #[test]
    fn medians_are_taken_per_figure_and_errors_summed() {
        let one = |rate, p50| Measured { rate, errors: 1, rtt_us: Rtt { p50, p99: 9.0, p999: 9.9 } };
        let median = Measured::median(&[one(3.0, 1.0), one(1.0, 3.0), one(2.0, 2.0)]);
        assert_eq!((median.rate, median.rtt_us.p50, median.errors), (2.0, 2.0, 3));
    }
}
