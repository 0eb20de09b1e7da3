//! Rates over a pair of virtual interfaces between two hosts, each of which is a network namespace: of a server that
//! has its interface to itself or shares it with the kernel, and of the kernel with such a server beside it.

mod pass_program;

use crate::distance::Cores;
use crate::external::testpmd;
use crate::paired::{Bound, Figures, Measure, Paired};
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
    /// Echo over the kernel's TCP, without a program on the interface and with one that passes all frames.
    PassedEcho,
    /// Echo over the kernel's TCP, with such a program and with a shared server.
    KernelEcho,
    /// Bulk data over the kernel's TCP, without a program on the interface and with one that passes all frames.
    PassedBulk,
    /// Bulk data over the kernel's TCP, with such a program and with a shared server.
    KernelBulk,
    /// Frames that testpmd bounces, and echo.
    Bounces,
}

impl Comparison {
    /// All comparisons.
    pub const ALL: [Comparison; 7] = [
        Comparison::Echo,
        Comparison::Kv,
        Comparison::PassedEcho,
        Comparison::KernelEcho,
        Comparison::PassedBulk,
        Comparison::KernelBulk,
        Comparison::Bounces,
    ];

    /// Returns the measurements in `setting`. Comparisons of no program with one that passes all frames have no limit,
    /// because the driver causes this cost for any program.
    pub fn paired(self, setting: &Setting) -> Paired<'_> {
        let equal = Some(Bound::AtLeast(0.95));
        let (names, unit, required) = match self {
            Comparison::Echo => (["echo, `af_xdp:lr1`", "echo, `af_xdp:lr1,share`"], "requests/s", equal),
            Comparison::Kv => (["kv, `af_xdp:lr1`", "kv, `af_xdp:lr1,share`"], "requests/s", equal),
            Comparison::PassedEcho => {
                (["echo of the kernel", "with a program that passes all frames"], "requests/s", None)
            }
            Comparison::KernelEcho => {
                (["echo of the kernel with this program", "beside a shared server"], "requests/s", equal)
            }
            Comparison::PassedBulk => {
                (["bulk data of the kernel", "with a program that passes all frames"], "Mbit/s", None)
            }
            Comparison::KernelBulk => {
                (["bulk data of the kernel with this program", "beside a shared server"], "Mbit/s", equal)
            }
            Comparison::Bounces => {
                let half = Some(Bound::AtLeast(0.5));
                (["frames that testpmd bounces", "echo, `af_xdp:lr1`"], "frames/s, requests/s", half)
            }
        };
        let rate = |is_second| -> Measure<'_, f64> { Box::new(move || self.rate(setting, is_second)) };
        Paired { names, unit, required, figures: Figures::Apart([rate(false), rate(true)]) }
    }

    /// Measures the first or second rate.
    fn rate(self, setting: &Setting, is_second: bool) -> Result<f64, Error> {
        setting.await_hugepages()?;
        match self {
            Comparison::Echo => setting.over_af_xdp("echo", "", "", is_second),
            Comparison::Kv => {
                let load = format!("--keys {KEYS} --value-size 64 --get-ratio 0.9");
                setting.over_af_xdp("kv", "--memory 96m", &load, is_second)
            }
            Comparison::PassedEcho => setting.over_kernel("echo", CONNECTIONS, is_second.then_some(Beside::Program)),
            Comparison::KernelEcho => setting.over_kernel("echo", CONNECTIONS, Some(Beside::of(is_second))),
            Comparison::PassedBulk => setting.over_kernel("discard", STREAMS, is_second.then_some(Beside::Program)),
            Comparison::KernelBulk => setting.over_kernel("discard", STREAMS, Some(Beside::of(is_second))),
            Comparison::Bounces if is_second => setting.over_af_xdp("echo", "", "", false),
            Comparison::Bounces => {
                let hosts = Host::pair()?;
                let Setting { scratch, cores, duration, .. } = setting;
                testpmd::bounces_between(&hosts, scratch, cores.server, cores.load, *duration)
            }
        }
    }
}

/// User of the interface of a kernel's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// XDP program that passes all frames.
    Program,
    /// Linerate server that shares the interface and has no clients.
    Server,
}

impl Beside {
    fn of(is_second: bool) -> Self {
        if is_second { Beside::Server } else { Beside::Program }
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

    /// Returns the rate of a load against a server, both over the kernel.
    fn over_kernel(&self, service: &str, connections: u32, beside: Option<Beside>) -> Result<f64, Error> {
        let [near, far] = Host::pair()?;
        near.address()?;
        far.address()?;
        let shared = format!("echo serve --via af_xdp:{},share --idle backoff --listen {}:7", far.interface(), far.v4);
        let other = match beside {
            None => None,
            Some(Beside::Server) => Some(self.serve(&far, &shared)?),
            Some(Beside::Program) => {
                let file = self.scratch.join("pass.o");
                let written = fs::write(&file, pass_program::elf());
                written.map_err(|error| Error::Start { program: file.display().to_string(), error })?;
                let (interface, section) = (far.interface(), pass_program::SECTION);
                far.namespace().ip(&format!("link set dev {interface} xdpdrv obj {} sec {section}", file.display()))?;
                None
            }
        };
        let server = self.serve(&far, &format!("{service} serve --via kernel --listen {}:8", far.v4))?;
        let load = format!("{service} load --via kernel --connect {}:8 --connections {connections}", far.v4);
        let rate = self.load(&near, &load)?;
        server.stop()?;
        other.map(Process::stop).transpose()?;
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
