//! A path between two hosts, each a network namespace, that leads through a bridge in a third.
//!
//! ```text
//! near: lr0 ── lra ┐
//!                  impair
//! far:  lr1 ── lrb ┘
//! ```
//!
//! A host can be the kernel of its namespace ([`Host::address`]) or a program that takes the interface over. Both need
//! root. What was set up goes when the [`Path`] does, and what an interrupted run left goes when the next one is made.

use crate::process::{Error, Process};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io};

/// What the names of the namespaces begin with; the number of their process follows.
const PREFIX: &str = "lrpath-";
/// How long a command of the set-up may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a kernel would leave to a network card, and the bridge would have to do.
const OFFLOADS: [&str; 8] = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];

/// How to make a [`Path`].
#[derive(Debug, Clone)]
pub struct PathConfig {
    /// The `impair` to start.
    pub impair: PathBuf,
    /// Impairments from near to far, as `impair` takes them.
    pub forth: String,
    /// Impairments from far to near.
    pub back: String,
    /// Where the randomness begins.
    pub seed: u64,
    /// The core that the bridge is to run on.
    pub core: Option<usize>,
}

/// Two hosts, and what is between them.
#[derive(Debug)]
pub struct Path {
    // Dropped before its namespace is.
    bridge: Option<Process>,
    near: Host,
    far: Host,
    middle: Namespace,
    /// Frames that the interfaces had dropped before the bridge was ready.
    dropped_before: u64,
}

/// One end of a path.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    interface: &'static str,
    /// Its IPv4 address, in a network of 24 bits.
    pub v4: Ipv4Addr,
    /// Its IPv6 address, in a network of 64 bits.
    pub v6: Ipv6Addr,
}

/// What the bridge of a path did, as `impair --json` prints it.
#[derive(Debug, Clone, Deserialize)]
pub struct Crossing {
    /// From near to far.
    #[serde(rename = "a_to_b")]
    pub forth: Direction,
    /// From far to near.
    #[serde(rename = "b_to_a")]
    pub back: Direction,
    /// The time from one look at the ports to the next: what a frame may wait before the bridge sees it.
    pub pauses_us: Percentiles,
    /// Frames that were lost without any intent: by interfaces, rings and pools.
    #[serde(default)]
    pub stray: u64,
}

/// What it did in one direction, in frames.
#[derive(Debug, Clone, Deserialize)]
pub struct Direction {
    /// Came in.
    pub received: u64,
    /// Went out.
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost to the queue in front of the rate limit.
    pub queue_full: u64,
    no_room: u64,
    not_sendable: u64,
    not_received: u64,
    /// By how much they went out too late.
    pub late_us: Percentiles,
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Path {
    /// Sets the namespaces up, and starts the bridge between them. The hosts have no addresses yet.
    pub fn new(config: &PathConfig, interrupted: &AtomicBool) -> Result<Path, Error> {
        sweep();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace =
            |what: &str| Namespace::new(format!("{PREFIX}{}-{number}-{what}", std::process::id()), interrupted);
        let [near, middle, far] = [namespace("near")?, namespace("middle")?, namespace("far")?];
        // It has no address, and would ask for one.
        middle.run(&["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6"], interrupted)?;
        for (host, outer, inner) in [(&near, "lr0", "lra"), (&far, "lr1", "lrb")] {
            let words = ["link", "add", outer, "netns", &host.0, "type", "veth", "peer", "name", inner];
            ip(&[&words[..], &["netns", &middle.0]].concat(), interrupted)?;
            host.run(&[&["ethtool", "-K", outer], &OFFLOADS[..]].concat(), interrupted)?;
            for (namespace, interface) in [(&middle, inner), (host, outer)] {
                ip(&["-n", &namespace.0, "link", "set", interface, "up"], interrupted)?;
            }
        }
        let host = |namespace, interface, number: u8| Host {
            namespace,
            interface,
            v4: Ipv4Addr::new(10, 99, 0, number),
            v6: Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, number.into()),
        };
        let (near, far) = (host(near, "lr0", 1), host(far, "lr1", 2));
        let mut bridge = middle.command(config.impair.as_os_str());
        bridge.args(["--json", "--a", "af_xdp:lra", "--b", "af_xdp:lrb", "--seed", &config.seed.to_string()]);
        bridge.args(["--a-to-b", &config.forth, "--b-to-a", &config.back]);
        bridge.args(config.core.map(|core| format!("--core={core}")));
        let mut bridge = Process::start(bridge)?;
        bridge.wait_for_line("ready", interrupted)?;
        // From now on before everything that is not real-time: what else ran on its core would lengthen the path.
        // Not before: DPDK's start spins for threads that would never run.
        let mut first = Command::new("chrt");
        first.args(["--fifo", "--pid", "1", &bridge.id().to_string()]);
        Process::start(first)?.output(PATIENCE, interrupted)?;
        let mut path = Path { bridge: Some(bridge), near, far, middle, dropped_before: 0 };
        path.dropped_before = path.dropped(interrupted)?;
        Ok(path)
    }

    /// The host that is called near.
    pub fn near(&self) -> &Host {
        &self.near
    }

    /// The host that is called far.
    pub fn far(&self) -> &Host {
        &self.far
    }

    /// Stops the bridge, and tells what it did.
    pub fn stop(mut self, interrupted: &AtomicBool) -> Result<Crossing, Error> {
        let dropped = self.dropped(interrupted)? - self.dropped_before;
        let Some(bridge) = self.bridge.take() else { return Err(Error::Interrupted) };
        let command = bridge.command().to_owned();
        let printed = bridge.stop()?;
        let mut crossing: Crossing =
            serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command, printed })?;
        let by_bridge = |direction: &Direction| direction.no_room + direction.not_sendable + direction.not_received;
        crossing.stray = dropped + by_bridge(&crossing.forth) + by_bridge(&crossing.back);
        Ok(crossing)
    }

    /// Frames that the four interfaces have dropped.
    fn dropped(&self, interrupted: &AtomicBool) -> Result<u64, Error> {
        let mut all = 0;
        for (namespace, interface) in [
            (&self.near.namespace, self.near.interface),
            (&self.middle, "lra"),
            (&self.middle, "lrb"),
            (&self.far.namespace, self.far.interface),
        ] {
            let counters = ["rx_dropped", "rx_errors", "tx_dropped", "tx_errors"]
                .map(|counter| format!("/sys/class/net/{interface}/statistics/{counter}"));
            let printed =
                namespace.run(&[&["cat"], &counters.each_ref().map(String::as_str)[..]].concat(), interrupted)?;
            all += printed.split_whitespace().filter_map(|count| count.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(all)
    }
}

impl Host {
    /// Gives the interface its addresses, for the kernel to use.
    pub fn address(&self, interrupted: &AtomicBool) -> Result<(), Error> {
        let Host { namespace, interface, v4, v6 } = self;
        let add = ["-n", &namespace.0, "addr", "add"];
        ip(&[&add[..], &[&format!("{v4}/24"), "dev", interface]].concat(), interrupted)?;
        ip(&[&add[..], &[&format!("{v6}/64"), "dev", interface, "nodad"]].concat(), interrupted)?;
        Ok(())
    }

    /// What `--via` and `--ip` tell a program that takes the interface over.
    pub fn taken_over(&self) -> [String; 6] {
        let Host { interface, v4, v6, .. } = self;
        let words = ["--via", &format!("af_xdp:{interface}"), "--ip", &format!("{v4}/24"), "--ip", &format!("{v6}/64")];
        words.map(str::to_owned)
    }

    /// An address that a service on `port` of this host has, for IPv4 or IPv6.
    pub fn ip(&self, v6: bool) -> IpAddr {
        if v6 { self.v6.into() } else { self.v4.into() }
    }

    /// A command that runs `program` on this host.
    pub fn command(&self, program: &FilePath) -> Command {
        self.namespace.command(program.as_os_str())
    }

    /// Has the calling thread use the network of this host from now on.
    pub fn enter(&self) -> io::Result<()> {
        let namespace = File::open(FilePath::new("/run/netns").join(&self.namespace.0))?;
        Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

/// The `impair` that was built beside this program.
pub fn impair() -> Result<PathBuf, Error> {
    let missing = |error| Error::Start { program: "impair".to_owned(), error };
    let path = std::env::current_exe().map_err(missing)?.with_file_name("impair");
    match fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(_) => Err(missing(io::Error::other(format!(
            "{} is not there: cargo build --release -p linerate-benches --features linerate-bypass/dpdk",
            path.display()
        )))),
    }
}

/// A network namespace. Nothing runs in it any more when it is dropped: what was started there was stopped before.
#[derive(Debug)]
struct Namespace(String);

impl Namespace {
    fn new(name: String, interrupted: &AtomicBool) -> Result<Namespace, Error> {
        ip(&["netns", "add", &name], interrupted)?;
        let namespace = Namespace(name);
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"], interrupted)?;
        Ok(namespace)
    }

    fn command(&self, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program).env_remove("RUST_LOG");
        command
    }

    fn processes(&self) -> Vec<Pid> {
        let listed = Command::new("ip").args(["netns", "pids", &self.0]).output();
        let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        listed.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    fn run(&self, words: &[&str], interrupted: &AtomicBool) -> Result<String, Error> {
        ip(&[&["netns", "exec", &self.0], words].concat(), interrupted)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        match Command::new("ip").args(["netns", "del", &self.0]).stderr(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            _ => eprintln!("the network namespace {} is left behind", self.0),
        }
    }
}

/// Removes what processes left that were killed.
fn sweep() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !FilePath::new(&format!("/proc/{pid}")).exists()) {
            let namespace = Namespace(name);
            for pid in namespace.processes() {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn ip(words: &[&str], interrupted: &AtomicBool) -> Result<String, Error> {
    let mut command = Command::new("ip");
    command.args(words);
    Process::start(command)?.output(PATIENCE, interrupted)
}
