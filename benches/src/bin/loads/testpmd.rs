//! `dpdk-testpmd`, which bounces frames over the same link as a bench without a protocol: the capacity of the link.
//!
//! One process sends 64-byte frames at the maximum rate (`flowgen`); the other returns each with swapped Ethernet
//! addresses (`macswap`). A bounce is a frame that returned to the first.

use linerate_harness::Error;
use linerate_harness::process::Process;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Maximum time until its port is open and its first report is printed, and per later report, which is due each second.
const TIMEOUT: Duration = Duration::from_secs(30);
const PER_REPORT: Duration = Duration::from_secs(3);
/// Initial reports to skip, while the link comes up and the rings fill.
const WARM_UP: usize = 2;

/// Returns true if testpmd is installed.
pub fn is_installed() -> bool {
    // Any unknown argument makes it exit.
    Command::new("dpdk-testpmd").arg("--is-it-there").output().is_ok()
}

/// Bounces frames between a vhost port on `server_core` and a virtio-user port on `load_core` for `duration`, in whole
/// seconds. Returns the median number of bounces per second.
pub fn bounces(scratch: &Path, server_core: usize, load_core: usize, duration: Duration) -> Result<f64, Error> {
    let socket = scratch.join("testpmd.sock");
    // The same devices as `linerate` creates for `vhost:` and `virtio-user:`.
    let vhost = format!("net_vhost0,iface={},queues=1,tso=1", socket.display());
    let virtio = format!("net_virtio_user0,path={},queues=1,queue_size=512", socket.display());
    let seconds = duration.as_secs().max(1) as usize;
    let wanted = WARM_UP + seconds;
    let reporting = TIMEOUT + PER_REPORT * wanted as u32;
    // Start of both processes.
    let limit = TIMEOUT + reporting;
    let start = |mode, device: &str, core, other| {
        let mut command = testpmd(mode, device, core, other, limit);
        // EAL leaves files in this directory.
        command.env("RUNTIME_DIRECTORY", scratch);
        Process::start(command)
    };
    let mut bouncing = start("macswap", &vhost, server_core, load_core)?;
    // Its first report shows that the port is open and served.
    bouncing.read_until(TIMEOUT, |line| Reports::default().read(line))?;
    let mut sending = start("flowgen", &virtio, load_core, server_core)?;
    let mut reports = Reports::default();
    let all = |line: &str| reports.read(line) && reports.received.len() == wanted;
    sending.read_until(reporting, all)?;
    let printed = format!("{:?}", reports.received);
    reports.median().ok_or_else(|| Error::Unexpected { command: sending.command().to_owned(), printed })
}

/// Returns a process whose forwarding thread is pinned to `core` and whose main thread, which prints and otherwise
/// sleeps, to `other`. `timeout` ends it after `limit`, in case this process dies.
fn testpmd(mode: &str, device: &str, core: usize, other: usize, limit: Duration) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &limit.as_secs().to_string(), "dpdk-testpmd"]);
    command.args(["--lcores", &format!("0@{other},1@{core}"), "--main-lcore", "0"]);
    command.args(["--in-memory", "--single-file-segments", "--no-pci", "--no-telemetry", "-m", "256"]);
    command.args(["--file-prefix", &format!("linerate-bench-{}-{mode}", std::process::id())]);
    command.args(["--vdev", device, "--"]);
    command.args([&format!("--forward-mode={mode}"), "--auto-start", "--stats-period=1"]);
    command.args(["--txpkts=64", "--total-num-mbufs=16384", "--no-mlockall"]);
    command
}

/// Rates printed so far.
#[derive(Debug, Default)]
struct Reports {
    received: Vec<f64>,
}

impl Reports {
    /// Parses a line of its output. Returns true if it is a report: `Rx-pps:   3619437   Rx-bps:   1737329936`.
    fn read(&mut self, line: &str) -> bool {
        let rest = line.trim().strip_prefix("Rx-pps:");
        let rate: Option<f64> = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        self.received.extend(rate);
        rate.is_some()
    }

    /// Returns the median of the reports after the first few, if frames returned.
    fn median(&self) -> Option<f64> {
        let mut measured = self.received.get(WARM_UP..)?.to_vec();
        measured.sort_by(f64::total_cmp);
        measured.get(measured.len() / 2).copied().filter(|rate| *rate > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(printed: &str) -> Reports {
        let mut reports = Reports::default();
        let taken = printed.lines().filter(|line| reports.read(line)).count();
        assert_eq!(taken, reports.received.len());
        reports
    }

    #[test]
    fn rate_is_median_after_warm_up() {
        let printed = "  RX-packets: 17448608   RX-missed: 0          RX-bytes:  1046916480\n\
                       \x20 Rx-pps:            0          Rx-bps:            0\n\
                       \x20 Rx-pps:      1000000          Rx-bps:   1569630704\n\
                       \x20 Rx-pps:      3734708          Rx-bps:   1792659960\n\
                       \x20 Tx-pps:      9999999          Tx-bps:   1795343000\n\
                       \x20 Rx-pps:      3619437          Rx-bps:   1737329936\n\
                       \x20 Rx-pps:      3270063          Rx-bps:   1737329936\n";
        assert_eq!(reports(printed).median(), Some(3_619_437.0));
    }

    #[test]
    fn link_without_bounces_has_no_rate() {
        assert_eq!(reports("").median(), None);
        assert_eq!(reports("Rx-pps: 5\nRx-pps: 5\n").median(), None);
        assert_eq!(reports("Rx-pps: 5\nRx-pps: 5\nRx-pps: 0\n").median(), None);
    }
}
