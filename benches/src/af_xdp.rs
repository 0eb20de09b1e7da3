//! Rates over a pair of virtual interfaces between two hosts, each of which is a network namespace: of a server that
//! has its interface to itself or shares it with the kernel, and of the kernel with such a server beside it.

use crate::distance::Cores;
use crate::external::testpmd;
use linerate_harness::Error;
use linerate_harness::namespace::Host;
use linerate_harness::process::{PATIENCE, Process};
use linerate_harness::until;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

/// Connections of each load of requests.
pub const CONNECTIONS: u32 = 64;
/// Connections of a load of bulk data.
const STREAMS: u32 = 4;
/// Number of keys, each with a value of 64 bytes.
pub const KEYS: u32 = 100_000;
/// Free pages of 2 MB.
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Parameters common to all measurements.
#[derive(Debug, Clone)]
pub struct Setting {
    /// `linerate` executable.
    pub linerate: PathBuf,
    /// Private directory.
    pub scratch: PathBuf,
    /// Cores of servers and loads.
    pub cores: Cores,
    /// Duration of a measurement.
    pub duration: Duration,
    /// Hugepages that are free before the first measurement.
    pub hugepages: u32,
}

/// Two measurements whose rates are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// Echo on an interface of its own, and on a shared one.
    Echo,
    /// The key-value service on an interface of its own, and on a shared one.
    Kv,
    /// Echo over the kernel's TCP, without and with a shared server.
    KernelEcho,
    /// Bulk data over the kernel's TCP, without and with a shared server.
    KernelBulk,
    /// Frames that testpmd bounces, and echo.
    Bounces,
}

impl Comparison {
    /// All comparisons.
    pub const ALL: [Comparison; 5] =
        [Comparison::Echo, Comparison::Kv, Comparison::KernelEcho, Comparison::KernelBulk, Comparison::Bounces];

    /// Returns the names of both measurements for tables.
    pub fn names(self) -> [&'static str; 2] {
        match self {
            Comparison::Echo => ["echo, `af_xdp:lr1`", "echo, `af_xdp:lr1,share`"],
            Comparison::Kv => ["kv, `af_xdp:lr1`", "kv, `af_xdp:lr1,share`"],
            Comparison::KernelEcho => ["echo of the kernel", "beside a shared server"],
            Comparison::KernelBulk => ["bulk data of the kernel", "beside a shared server"],
            Comparison::Bounces => ["frames that testpmd bounces", "echo, `af_xdp:lr1`"],
        }
    }

    /// Returns the unit of the rates.
    pub fn unit(self) -> &'static str {
        match self {
            Comparison::KernelBulk => "Mbit/s",
            Comparison::Bounces => "frames/s, requests/s",
            _ => "requests/s",
        }
    }

    /// Returns the required ratio of the second rate to the first.
    pub fn required(self) -> f64 {
        if self == Comparison::Bounces { 0.5 } else { 0.95 }
    }

    /// Measures both rates, the second one first if `is_reversed`, so that a steady drift favours neither.
    pub fn measure(self, setting: &Setting, is_reversed: bool) -> Result<[f64; 2], Error> {
        let mut rates = [0.0; 2];
        let order = if is_reversed { [1, 0] } else { [0, 1] };
        for at in order {
            setting.await_hugepages()?;
            rates[at] = self.rate(setting, at == 1)?;
        }
        Ok(rates)
    }

    fn rate(self, setting: &Setting, is_second: bool) -> Result<f64, Error> {
        match self {
            Comparison::Echo => setting.over_af_xdp("echo", "", "", is_second),
            Comparison::Kv => {
                let load = format!("--keys {KEYS} --value-size 64 --get-ratio 0.9");
                setting.over_af_xdp("kv", "--memory 96m", &load, is_second)
            }
            Comparison::KernelEcho => setting.over_kernel("echo", CONNECTIONS, is_second),
            Comparison::KernelBulk => setting.over_kernel("discard", STREAMS, is_second),
            Comparison::Bounces if is_second => setting.over_af_xdp("echo", "", "", false),
            Comparison::Bounces => {
                let hosts = Host::pair()?;
                let Setting { scratch, cores, duration, .. } = setting;
                testpmd::bounces_between(&hosts, scratch, cores.server, cores.load, *duration)
            }
        }
    }
}

/// Fields used from the reports of loads.
#[derive(Deserialize)]
struct Loaded {
    rate: Option<f64>,
    gbit_per_s_up: Option<f64>,
    errors: u64,
}

impl Setting {
    /// Returns the rate of a load against a server, both over AF_XDP.
    fn over_af_xdp(&self, service: &str, serve: &str, load: &str, is_shared: bool) -> Result<f64, Error> {
        let [near, far] = Host::pair()?;
        let network = if is_shared {
            far.address()?;
            format!("--via af_xdp:{},share", far.interface())
        } else {
            format!("--via af_xdp:{} --ip {}/24", far.interface(), far.v4)
        };
        let server = self.serve(&far, &format!("{service} serve {network} --listen {}:7 {serve}", far.v4))?;
        let network = format!("--via af_xdp:{} --ip {}/24", near.interface(), near.v4);
        let load = format!("{service} load {network} --connect {}:7 --connections {CONNECTIONS} {load}", far.v4);
        let rate = self.load(&near, &load)?;
        server.stop()?;
        Ok(rate)
    }

    /// Returns the rate of a load against a server, both over the kernel, beside a shared server if `is_beside`.
    fn over_kernel(&self, service: &str, connections: u32, is_beside: bool) -> Result<f64, Error> {
        let [near, far] = Host::pair()?;
        near.address()?;
        far.address()?;
        let beside = format!("echo serve --via af_xdp:{},share --idle backoff --listen {}:7", far.interface(), far.v4);
        let beside = is_beside.then(|| self.serve(&far, &beside)).transpose()?;
        let server = self.serve(&far, &format!("{service} serve --via kernel --listen {}:8", far.v4))?;
        let load = format!("{service} load --via kernel --connect {}:8 --connections {connections}", far.v4);
        let rate = self.load(&near, &load)?;
        server.stop()?;
        beside.map(Process::stop).transpose()?;
        Ok(rate)
    }

    fn serve(&self, host: &Host, arguments: &str) -> Result<Process, Error> {
        let mut command = host.command(&self.linerate);
        command.args(arguments.split_whitespace()).args(["--cores", &self.cores.server.to_string()]);
        let mut server = Process::start(command)?;
        server.wait_for_line("ready ")?;
        Ok(server)
    }

    fn load(&self, host: &Host, arguments: &str) -> Result<f64, Error> {
        let mut command = host.command(&self.linerate);
        command.args(arguments.split_whitespace()).args(["--cores", &self.cores.load.to_string(), "--json"]);
        command.args(["--warm-up", "500ms", "--duration", &format!("{}ms", self.duration.as_millis())]);
        let load = Process::start(command)?;
        let command = load.command().to_owned();
        let printed = load.output(self.duration + 2 * PATIENCE)?;
        let loaded = serde_json::from_str::<Loaded>(&printed).ok().filter(|loaded| loaded.errors == 0);
        match loaded.and_then(|loaded| loaded.rate.or(loaded.gbit_per_s_up.map(|rate| rate * 1e3))) {
            Some(rate) if rate > 0.0 => Ok(rate),
            _ => Err(Error::Unexpected { command, printed }),
        }
    }

    /// Waits for the hugepages of ended programs: the kernel releases those of AF_XDP sockets some time later.
    fn await_hugepages(&self) -> Result<(), Error> {
        until("hugepages of ended programs", PATIENCE, || Ok(free_hugepages() >= self.hugepages / 4 * 3))
    }
}

/// Returns the number of free hugepages.
pub fn free_hugepages() -> u32 {
    let free = fs::read_to_string(FREE).map_err(|_: io::Error| ());
    free.ok().and_then(|free| free.trim().parse().ok()).unwrap_or(0)
}
