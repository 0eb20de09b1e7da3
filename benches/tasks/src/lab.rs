//! `./run lab`: suites in virtual machines.

use crate::UNABLE;
use crate::cargo::{self, build, cargo, target};
use crate::error::Error;
use crate::machine::{Machine, reserve_hugepages};
use crate::output::{note, say};
use crate::process::{self, Background};
use std::fs;
use std::process::Command;

/// Packages with the emulator, and with the files that guests take from this machine.
const PACKAGES: [&str; 11] = [
    "qemu-system-x86",
    "busybox-static",
    "kmod",
    "make",
    "xz-utils",
    "rdma-core",
    "ibverbs-providers",
    "rdmacm-utils",
    "ethtool",
    "iproute2",
    "iputils-ping",
];

/// Build of the programs that run in guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// Release mode.
    Release,
    /// Release mode. The tests of devices use the build of all packages, which exists already.
    ReleaseOfEverything,
    /// Test profile, whose programs are built already.
    Tests,
}

/// Runs suites, or all if `arguments` names none.
pub fn run(machine: &Machine, arguments: &[String]) -> Result<(), Error> {
    let _hugepages = reserve_hugepages(512);
    say("lab");
    let result = suites(machine, Build::Release, arguments);
    if let Err(Error::Skipped(_)) = result {
        note("SKIPPED: THE LAB");
    }
    result
}

/// Runs suites with the programs of a build.
pub fn suites(machine: &Machine, with: Build, arguments: &[String]) -> Result<(), Error> {
    if let Some(reason) = obstacle(machine) {
        return Err(Error::skipped(reason));
    }
    let profile = if with == Build::Tests { "debug" } else { "release" };
    if with != Build::Tests {
        say("building in release mode");
        process::run(build(machine, "-p linerate-lab"))?;
        let everything = cargo::everything(machine);
        let selection = if with == Build::Release { "-p linerate-rdma --features native" } else { &everything };
        build_device_tests(selection)?;
    }
    let mut lab = Command::new(target().join(profile).join("lab"));
    lab.args(arguments);
    match Background::start(lab)?.status()? {
        status if status.success() => Ok(()),
        status if status.code() == Some(UNABLE.into()) => Err(Error::skipped("the lab printed the reason")),
        status => Err(Error::failed(format!("lab: {status}"))),
    }
}

/// Returns the reason why the lab cannot run here.
fn obstacle(machine: &Machine) -> Option<String> {
    if !machine.has_namespaces() {
        return Some("it needs root, for network namespaces and to read the files that guests run".to_owned());
    }
    if !machine.dpdk() || !machine.rdma() {
        return Some("it needs DPDK, cmake, make and libclang".to_owned());
    }
    PACKAGES.iter().find(|package| !machine.has(package)).map(|package| format!("{package} is missing"))
}

/// Builds the tests that require an RDMA device, and copies them beside the lab.
fn build_device_tests(selection: &str) -> Result<(), Error> {
    let words = format!("test {selection} --test device --no-run --message-format json-render-diagnostics");
    let (messages, built) = process::capture(cargo(&words))?;
    match executable(&messages) {
        Some(path) if built => {
            fs::copy(path, cargo::release("rdma-device-tests"))?;
            Ok(())
        }
        _ => Err(Error::failed(format!("cargo {words}"))),
    }
}

/// Returns the last executable in messages of cargo.
fn executable(messages: &str) -> Option<&str> {
    let mut paths = messages.lines().filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next());
    paths.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_needs_root_and_packages() {
        assert_eq!(obstacle(&Machine::with_missing(&["valgrind"])), None);
        assert!(obstacle(&Machine::without_root()).unwrap().contains("root"));
        assert!(obstacle(&Machine::with_missing(&["libdpdk-dev"])).unwrap().contains("DPDK"));
        assert_eq!(obstacle(&Machine::with_missing(&["kmod"])).unwrap(), "kmod is missing");
    }

    #[test]
    fn executable_is_read_from_messages() {
        let messages =
            "{\"executable\":null}\n{\"a\":1,\"executable\":\"/t/device-1\",\"fresh\":true}\n{\"success\":true}\n";
        assert_eq!(executable(messages), Some("/t/device-1"));
        assert_eq!(executable("{\"success\":false}"), None);
    }
}
