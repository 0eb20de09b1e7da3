//! Echo server and its load, two processes pinned to a core each, over one of the compared networks.

use linerate_compare::results::{App, Design, Point, Threading};
use linerate_compare::run::cores::Cores;
use linerate_compare::run::link::Link;
use linerate_compare::run::link_spec::LinkSpec;
use linerate_compare::run::load::{self, LoadReport, Measure};
use linerate_compare::run::plan::Planned;
use linerate_compare::run::server::{Server, ServiceKind, Values};
use linerate_compare::run::{self, GETS, ZIPF};
use linerate_harness::Error;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

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
    /// `--engine native`.
    Native,
    /// `--engine smoltcp`.
    Smoltcp,
}

impl StackEngine {
    /// Returns the value of `--engine`.
    pub fn value(self) -> &'static str {
        match self {
            StackEngine::Native => "native",
            StackEngine::Smoltcp => "smoltcp",
        }
    }
}

impl Network {
    /// All networks, with each engine for the stack.
    pub const ALL: [Network; 4] = [
        Network::Virtio(StackEngine::Native),
        Network::Virtio(StackEngine::Smoltcp),
        Network::Sleeping,
        Network::Spinning,
    ];

    /// Returns the name for tables.
    pub fn name(self) -> String {
        match self {
            Network::Virtio(engine) => format!("virtio-user to vhost, {}", engine.value()),
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
    let pair = Pair::new(setting, network);
    let server = pair.start_server()?;
    connections.iter().map(|connections| pair.measure(&server, *connections)).collect()
}

/// A row of a comparison: an echo server and its load on one network.
pub(crate) struct Pair {
    setting: run::Setting,
    link: Link,
    row: Planned,
    values: Values,
    duration: Duration,
}

impl Pair {
    pub(crate) fn new(setting: &Setting, network: Network) -> Pair {
        let Setting { linerate, scratch, server_core, load_core, size, duration } = setting;
        let (link, spec) = match network {
            Network::Virtio(_) => (Link::VirtioUser(scratch.join("link.sock")), LinkSpec::VirtioUser),
            Network::Sleeping | Network::Spinning => (Link::Loopback(None), LinkSpec::Kernel),
        };
        let (design, words) = match network {
            Network::Virtio(StackEngine::Native) => (Design::Native, vec!["--engine", "native"]),
            Network::Virtio(StackEngine::Smoltcp) => (Design::Smoltcp, vec!["--engine", "smoltcp"]),
            Network::Sleeping => (Design::KernelSleeping, Vec::new()),
            Network::Spinning => (Design::KernelSpinning, vec!["--spin"]),
        };
        let cores = Cores { worker: *server_core, service: *server_core, load: *load_core, two_machines: false };
        Pair {
            setting: run::Setting {
                linerate: linerate.clone(),
                cores,
                get_ratio: GETS,
                zipf: ZIPF,
                many_clients: false,
            },
            link,
            row: Planned {
                id: network.name(),
                app: App::Echo,
                design,
                spec,
                threading: Some(Threading::Inline),
                server: words.clone(),
                load: words,
                co_scheduled: false,
                obstacle: None,
            },
            values: Values { keys: 0, size: *size },
            duration: *duration,
        }
    }

    /// Starts the server and waits until it is ready.
    pub(crate) fn start_server(&self) -> Result<Server, Error> {
        Server::start(&self.setting, &self.link, &self.row, (ServiceKind::PLAIN, self.values), 1)
    }

    fn parameters(&self, connections: u32) -> Measure {
        Measure {
            point: Point { connections, depth: 1 },
            size: self.values.size,
            served: ServiceKind::PLAIN,
            time: self.duration,
            warm_up: Duration::ZERO,
            rate: None,
            reconnect: false,
            values: self.values,
            fill: false,
        }
    }

    /// Returns a load of the server.
    pub(crate) fn load(&self, server: &Server, connections: u32) -> Command {
        let address = (&*server.address, server.ports);
        load::command(&self.setting, &self.link, &self.row, address, self.parameters(connections))
    }

    /// Measures the server with a load, which must have no errors.
    fn measure(&self, server: &Server, connections: u32) -> Result<Measured, Error> {
        let parameters = self.parameters(connections);
        let done = load::run_unwatched(&self.setting, &self.link, &self.row, server, parameters)?;
        if done.loaded.errors > 0 {
            let failure = format!("had {} errors", done.loaded.errors);
            return Err(Error::Failed { command: done.command.join(" "), failure, output: String::new() });
        }
        Ok(done.loaded.into())
    }
}

impl From<LoadReport> for Measured {
    fn from(LoadReport { rate, errors, rtt_us, .. }: LoadReport) -> Measured {
        Measured { rate, errors, rtt_us: Rtt { p50: rtt_us.p50, p99: rtt_us.p99, p999: rtt_us.p999 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
