//! Capabilities of this machine, and hugepages reserved for the duration of a command.

use crate::cargo::command;
use crate::output::{note, say};
use crate::process;
use linerate_harness::hugepages::Reserved;
use linerate_hugepages::{Host, PageSize};
use std::fs;

/// Variable in which `run` passes the packages that are missing.
const MISSING: &str = "LINERATE_MISSING_PACKAGES";

/// Capabilities that decide which steps can run.
#[derive(Debug)]
pub struct Machine {
    missing: Vec<String>,
    root: bool,
    namespaces: bool,
}

impl Machine {
    /// Detects the capabilities and prints the missing ones.
    pub fn detect() -> Machine {
        say("machine");
        let missing = std::env::var(MISSING).unwrap_or_default();
        let root = rustix::process::geteuid().is_root();
        let machine = Machine {
            missing: missing.split_whitespace().map(str::to_owned).collect(),
            root,
            namespaces: root && process::succeeds(command("unshare", "--net true")),
        };
        if !machine.dpdk() {
            note("without DPDK: everything that needs a DPDK port is left out");
        }
        if !machine.rdma() {
            note("without cmake, make and libclang: everything that needs an RDMA device is left out");
        }
        machine
    }

    /// Creates a machine with root on which only the packages `missing` are missing.
    #[cfg(test)]
    pub fn with_missing(missing: &[&str]) -> Machine {
        Machine { missing: missing.iter().map(|package| (*package).to_owned()).collect(), root: true, namespaces: true }
    }

    /// Creates a machine with all packages for a user without privileges.
    #[cfg(test)]
    pub fn without_root() -> Machine {
        Machine { missing: Vec::new(), root: false, namespaces: false }
    }

    /// Returns whether a package is installed. It must be among the packages that `run` installs for the command.
    pub fn has(&self, package: &str) -> bool {
        self.missing.iter().all(|missing| missing != package)
    }

    /// Returns whether the build dependencies of the feature `dpdk` are installed.
    pub fn dpdk(&self) -> bool {
        ["libdpdk-dev", "libpcap-dev", "libclang-dev", "pkg-config"].iter().all(|package| self.has(package))
    }

    /// Returns whether the build dependencies of the feature `rdma` are installed.
    pub fn rdma(&self) -> bool {
        ["libclang-dev", "cmake", "make"].iter().all(|package| self.has(package))
    }

    /// Returns whether this process runs as root.
    pub fn is_root(&self) -> bool {
        self.root
    }

    /// Returns whether network namespaces can be created.
    pub fn has_namespaces(&self) -> bool {
        self.namespaces
    }
}

/// Hugepages that are released on drop.
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
            let megabytes = (target * PageSize::MB_2.bytes()) >> 20;
            note(&format!("root can reserve them: linerate hugepages reserve --memory {megabytes}M --top-up"));
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
    wanted.min(free + kilobytes / 4 / (PageSize::MB_2.bytes() / 1024)).max(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_need_all_of_their_packages() {
        assert!(Machine::with_missing(&["valgrind"]).dpdk());
        let without_clang = Machine::with_missing(&["libclang-dev"]);
        assert!(!without_clang.dpdk() && !without_clang.rdma());
        let without_cmake = Machine::with_missing(&["cmake"]);
        assert!(without_cmake.dpdk() && !without_cmake.rdma());
    }

    #[test]
    fn hugepages_take_at_most_a_quarter_of_the_available_memory() {
        let meminfo = "MemTotal:       16000000 kB\nMemAvailable:    8388608 kB\n";
        assert_eq!(target(512, 0, meminfo), 512);
        assert_eq!(target(2048, 0, meminfo), 1024);
        assert_eq!(target(2048, 100, meminfo), 1124);
    }

    #[test]
    fn free_hugepages_suffice() {
        assert_eq!(target(512, 600, "MemAvailable: 8388608 kB\n"), 600);
        assert_eq!(target(512, 100, ""), 100);
    }
}
