//! Capabilities of this machine, the features that it can build, and hugepages for the duration of a command.

use crate::process::{cargo, command, script};
use crate::{note, say};
use linerate_harness::hugepages::Reserved;
use linerate_hugepages::{Host, PageSize};
use std::fs;
use std::process::Command;

/// Packages of the lab: the emulator, and the files that guests take from this machine.
const LAB: &str = "qemu-system-x86 busybox-static kmod make xz-utils rdma-core ibverbs-providers rdmacm-utils ethtool \
                   iproute2 iputils-ping";
/// Packages of the suites that the quick one leaves out: a program for guests, and checks of captures.
const WHOLE_LAB: &str = "gcc libibverbs-dev librdmacm-dev tshark";

/// Feature without which the library of `linerate run` passes all calls to the kernel.
const PRELOAD: &str = " --features linerate-preload/dpdk";

/// Capabilities that decide which steps can run.
#[derive(Debug)]
pub struct Machine {
    missing: Vec<String>,
    /// True if network namespaces can be created.
    pub has_namespaces: bool,
}

impl Machine {
    /// Detects the capabilities and prints the missing ones.
    pub fn detect() -> Machine {
        say("machine");
        let missing = std::env::var("LINERATE_MISSING_PACKAGES").unwrap_or_default();
        let machine = Machine {
            missing: missing.split_whitespace().map(str::to_owned).collect(),
            has_namespaces: is_root() && command("unshare --net true").status().is_ok_and(|status| status.success()),
        };
        if !machine.dpdk() {
            note("without DPDK: everything that needs a DPDK port is left out");
        }
        if !machine.rdma() {
            note("without cmake, make and libclang: everything that needs an RDMA device is left out");
        }
        machine
    }

    /// Creates a machine on which only the packages `missing` are missing.
    #[cfg(test)]
    pub fn with_missing(missing: &[&str]) -> Machine {
        Machine { missing: missing.iter().map(|package| (*package).to_owned()).collect(), has_namespaces: true }
    }

    /// Returns whether the packages are installed. `run` installs them for the command.
    pub fn has(&self, packages: &str) -> bool {
        packages.split_whitespace().all(|package| self.missing.iter().all(|missing| missing != package))
    }

    /// Returns whether the build dependencies of the feature `dpdk` are installed.
    pub fn dpdk(&self) -> bool {
        self.has("libdpdk-dev libpcap-dev libclang-dev pkg-config")
    }

    /// Returns whether the build dependencies of the feature `rdma` are installed.
    pub fn rdma(&self) -> bool {
        self.has("libclang-dev cmake make")
    }

    /// Returns the features of `linerate-apps` that the machine can build.
    fn apps(&self) -> String {
        let dpdk = if self.dpdk() { " --features linerate-apps/dpdk" } else { "" };
        let rdma = if self.rdma() { " --features linerate-apps/rdma" } else { "" };
        format!("--no-default-features --features linerate-apps/smoltcp-engine{dpdk}{rdma}")
    }

    /// Returns the selection of all packages and features that the machine can build.
    pub fn everything(&self) -> String {
        let excluded = if self.dpdk() { "" } else { " --exclude linerate-dpdk-sys" };
        let preload = if self.dpdk() { PRELOAD } else { "" };
        format!("--workspace{excluded} {}{preload}{}", self.apps(), self.devices())
    }

    /// Returns the selection of the library of `linerate run`, if the machine can build it.
    pub fn preload(&self) -> String {
        if self.dpdk() { format!(" -p linerate-preload{PRELOAD}") } else { String::new() }
    }

    /// Returns the features of libraries with devices that the machine can build.
    pub fn devices(&self) -> String {
        let dpdk = if self.dpdk() { " --features linerate-bypass/dpdk" } else { "" };
        format!("{dpdk}{}", if self.rdma() { " --features linerate-rdma/native" } else { "" })
    }

    /// Creates a command that builds `linerate` and the packages and features in `more` in release mode.
    pub fn build(&self, more: &str) -> Command {
        cargo(&format!("build --release -p linerate-apps {more} {}", self.apps()))
    }

    /// Returns the reason the lab cannot run here, or its quick suite.
    pub fn lab_obstacle(&self, is_quick: bool) -> Option<String> {
        if !self.has_namespaces {
            return Some("it needs root, for network namespaces and to read the files that guests run".to_owned());
        }
        if !self.dpdk() || !self.rdma() {
            return Some("it needs DPDK, cmake, make and libclang".to_owned());
        }
        let more = if is_quick { "" } else { WHOLE_LAB };
        let mut packages = LAB.split_whitespace().chain(more.split_whitespace());
        packages.find(|package| !self.has(package)).map(|package| format!("{package} is missing"))
    }

    /// Creates a command that builds the lab in release mode, with the tests of devices from the packages `selection`,
    /// and runs `suites`.
    pub fn lab(&self, selection: &str, suites: &[&str]) -> Command {
        let mut lab = script("lab");
        lab.args(suites).env("BUILD", format!("-p linerate-lab {}", self.apps())).env("DEVICE_TESTS", selection);
        lab
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub struct Hugepages(Reserved);

impl Drop for Hugepages {
    fn drop(&mut self) {
        if self.0.pages() > 0 {
            note(&format!("releasing {} hugepages", self.0.pages()));
        }
    }
}

/// Reserves hugepages of 2 MB until `wanted` are free, of a quarter of the available memory at most.
pub fn reserve_hugepages(wanted: u64) -> Option<Hugepages> {
    let Ok(pool) = Host::default().pool(PageSize::MB_2) else {
        note("this kernel has no hugepages of 2 MB: DPDK will use ordinary pages");
        return None;
    };
    let free = pool.available();
    let target = target(wanted, free, &fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let reserved = match Reserved::top_up(target) {
        Ok(reserved) => reserved,
        Err(error) => {
            note(&format!("hugepages: {free} are free of {target} wanted, and no more can be reserved: {error}"));
            note(&format!("root can reserve them: linerate hugepages reserve --memory {}M --top-up", 2 * target));
            return None;
        }
    };
    if reserved.pages() > 0 {
        note(&format!("reserved {} hugepages of 2 MB until the end", reserved.pages()));
    }
    note(&format!("hugepages of 2 MB: {} are free", free + reserved.pages()));
    Some(Hugepages(reserved))
}

/// Returns the number of free pages to reach: `wanted`, but not more than `free` and a quarter of the available memory.
fn target(wanted: u64, free: u64, meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0);
    wanted.min(free + kilobytes / 4 / 2048).max(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_need_all_of_their_packages() {
        let all = "--workspace --no-default-features --features linerate-apps/smoltcp-engine --features \
                   linerate-apps/dpdk --features linerate-apps/rdma --features linerate-preload/dpdk --features \
                   linerate-bypass/dpdk --features linerate-rdma/native";
        assert_eq!(Machine::with_missing(&["valgrind"]).everything(), all);
        assert!(!Machine::with_missing(&["cmake"]).everything().contains("rdma"));
        let neither = Machine::with_missing(&["libclang-dev"]).everything();
        assert!(
            neither.ends_with(
                "--exclude linerate-dpdk-sys --no-default-features --features \
                                   linerate-apps/smoltcp-engine"
            ),
            "{neither}"
        );
    }

    #[test]
    fn hugepages_take_at_most_a_quarter_of_the_available_memory() {
        let meminfo = "MemTotal:       16000000 kB\nMemAvailable:    8388608 kB\n";
        assert_eq!([target(512, 0, meminfo), target(2048, 0, meminfo), target(2048, 100, meminfo)], [512, 1024, 1124]);
        assert_eq!([target(512, 600, meminfo), target(512, 100, "")], [600, 100], "free pages suffice");
    }

    #[test]
    fn lab_needs_root_and_packages() {
        assert_eq!(Machine::with_missing(&["valgrind"]).lab_obstacle(false), None);
        assert_eq!(Machine::with_missing(&["kmod"]).lab_obstacle(true).unwrap(), "kmod is missing");
        let without_tshark = Machine::with_missing(&["tshark"]);
        assert_eq!(without_tshark.lab_obstacle(true), None, "the quick suite needs no captures");
        assert_eq!(without_tshark.lab_obstacle(false).unwrap(), "tshark is missing");
        let user = Machine { has_namespaces: false, missing: Vec::new() };
        assert!(user.lab_obstacle(true).unwrap().contains("root"));
    }
}
