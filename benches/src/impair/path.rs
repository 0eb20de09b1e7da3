//! Path between two hosts, each a network namespace, through a bridge in a third.
//!
//! ```text
//! near: lr0 ── lra ┐
//!                  impair
//! far:  lr1 ── lrb ┘
//! ```
//!
//! A host is the kernel of its namespace ([`Host::address`]) or a program that takes over the interface. Both need
//! root. Dropping the [`Path`] removes the namespaces, and creating the next one removes those of an interrupted run.

use hdrhistogram::Histogram;
use linerate_harness::Error;
use linerate_harness::namespace::{Host, Namespace, TIMEOUT};
use linerate_harness::process::{Process, sibling};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;

/// Configuration of a [`Path`].
#[derive(Debug, Clone)]
pub struct PathConfig {
    /// `impair` executable.
    pub impair: PathBuf,
    /// Impairments from near to far, in the syntax of `impair`.
    pub forth: String,
    /// Impairments from far to near.
    pub back: String,
    /// Random seed.
    pub seed: u64,
    /// Core of the bridge.
    pub core: Option<usize>,
}

/// Two hosts and the bridge between them.
#[derive(Debug)]
pub struct Path {
    // Dropped before its namespace.
    bridge: Option<Process>,
    near: Host,
    far: Host,
    middle: Namespace,
    /// Frames dropped by the interfaces before the bridge was ready.
    dropped_before: u64,
}

/// Statistics of the bridge, which `impair` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PathStats {
    /// From near to far.
    #[serde(rename = "a_to_b")]
    pub forth: Direction,
    /// From far to near.
    #[serde(rename = "b_to_a")]
    pub back: Direction,
    /// Intervals between two polls of the ports, which bound the time until the bridge sees a frame.
    pub pauses_us: Percentiles,
    /// Frames lost unintentionally by interfaces, rings and pools, added by [`Path::stop`].
    pub stray: u64,
}

/// Statistics of one direction, in frames.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Direction {
    pub received: u64,
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped by the queue of the rate limit.
    pub queue_full: u64,
    /// Dropped because too many frames were in flight.
    pub no_room: u64,
    /// Dropped because the port could not send the frame.
    pub not_sendable: u64,
    /// Dropped by the receiving port.
    pub not_received: u64,
    /// Lateness of sent frames.
    pub late_us: Percentiles,
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Percentiles {
    /// Returns the percentiles of nanoseconds.
    pub fn from_nanos(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles { p50: at(0.5), p99: at(0.99), max: histogram.max() as f64 / 1e3 }
    }
}

impl Path {
    /// Creates the namespaces and starts the bridge between them. The hosts have no addresses yet.
    pub fn new(config: &PathConfig) -> Result<Path, Error> {
        let [near, middle, far] = Namespace::all(["near", "middle", "far"])?;
        // The middle has no address and must not solicit one.
        middle.run("sysctl", &["-q", "-w", "net.ipv6.conf.default.disable_ipv6=1"])?;
        for (host, outer, inner) in [(&near, "lr0", "lra"), (&far, "lr1", "lrb")] {
            host.connect(outer, &middle, inner)?;
            host.disable_offloads(outer)?;
            middle.up(inner)?;
            host.up(outer)?;
        }
        let (near, far) = (Host::new(near, "lr0", 1), Host::new(far, "lr1", 2));
        let mut bridge = middle.command(&config.impair);
        bridge.args(["--a", "af_xdp:lra", "--b", "af_xdp:lrb", "--seed", &config.seed.to_string()]);
        bridge.args(["--a-to-b", &config.forth, "--b-to-a", &config.back]);
        bridge.args(config.core.map(|core| format!("--core={core}")));
        let mut bridge = Process::start(bridge)?;
        bridge.wait_for_line("ready")?;
        // Real-time priority, because other work on the core of the bridge would lengthen the path. DPDK's start must
        // precede it: it spins until other threads have run, which this priority would prevent.
        let mut first = Command::new("chrt");
        first.args(["--fifo", "--pid", "1", &bridge.id().to_string()]);
        Process::start(first)?.output(TIMEOUT)?;
        let mut path = Path { bridge: Some(bridge), near, far, middle, dropped_before: 0 };
        path.dropped_before = path.dropped()?;
        Ok(path)
    }

    pub fn near(&self) -> &Host {
        &self.near
    }

    pub fn far(&self) -> &Host {
        &self.far
    }

    /// Stops the bridge and returns its statistics.
    pub fn stop(mut self) -> Result<PathStats, Error> {
        let dropped = self.dropped()? - self.dropped_before;
        let Some(bridge) = self.bridge.take() else { return Err(Error::Interrupted) };
        let command = bridge.command().to_owned();
        let printed = bridge.stop()?;
        let mut crossing: PathStats =
            serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command, printed })?;
        let by_bridge = |direction: &Direction| direction.no_room + direction.not_sendable + direction.not_received;
        crossing.stray = dropped + by_bridge(&crossing.forth) + by_bridge(&crossing.back);
        Ok(crossing)
    }

    /// Returns the frames that the four interfaces have dropped.
    fn dropped(&self) -> Result<u64, Error> {
        let mut all = 0;
        for (namespace, interface) in [
            (self.near.namespace(), self.near.interface()),
            (&self.middle, "lra"),
            (&self.middle, "lrb"),
            (self.far.namespace(), self.far.interface()),
        ] {
            let counters = ["rx_dropped", "rx_errors", "tx_dropped", "tx_errors"]
                .map(|counter| format!("/sys/class/net/{interface}/statistics/{counter}"));
            let printed = namespace.run("cat", &counters.each_ref().map(String::as_str))?;
            all += printed.split_whitespace().filter_map(|count| count.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(all)
    }
}

/// Returns the path of the `impair` in the directory of this program.
pub fn impair() -> Result<PathBuf, Error> {
    sibling("impair", "cargo build --release -p linerate-benches --features linerate-bypass/dpdk")
}
