//! Invocations of cargo, with the features that the machine can build.

use crate::machine::Machine;
use std::path::PathBuf;
use std::process::Command;

/// Creates a command of `program` with the words of `arguments`.
pub fn command(program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    command
}

/// Creates a command of cargo with the words of `arguments`.
pub fn cargo(arguments: &str) -> Command {
    command("cargo", arguments)
}

/// Creates a command of cargo that compiles packages of the workspace with the lints of Clippy, and denies warnings.
///
/// `cargo clippy` sets the same variables for `cargo check`, whose results serve no other command. With them one
/// compilation serves for the lints and the tests.
pub fn linted(arguments: &str) -> Command {
    let mut command = cargo(arguments);
    command.env("RUSTC_WORKSPACE_WRAPPER", CLIPPY).envs([DENY_WARNINGS]);
    command
}

/// Compiler with the lints of Clippy.
pub const CLIPPY: &str = "clippy-driver";

/// Variable with arguments of [`CLIPPY`], as `cargo clippy` passes those after `--`.
pub const DENY_WARNINGS: (&str, &str) = ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");

/// Returns cargo's target directory.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// Returns the path of a program built by [`build`].
pub fn release(program: &str) -> PathBuf {
    target().join("release").join(program)
}

/// Returns the path of `linerate` built by [`build_demo`].
pub fn demo_linerate() -> PathBuf {
    target().join("demo/linerate")
}

/// Packages that build without DPDK, root or a network.
pub const PORTABLE: &str = "--workspace --exclude linerate-dpdk-sys --no-default-features";

/// Returns the features of `linerate-apps` that the machine can build.
pub fn apps(machine: &Machine) -> String {
    let mut words = String::from("--no-default-features --features linerate-apps/smoltcp-engine");
    if machine.dpdk() {
        words += " --features linerate-apps/dpdk";
    }
    if machine.rdma() {
        words += " --features linerate-apps/rdma";
    }
    words
}

/// Returns the selection of all packages and features that the machine can build.
pub fn everything(machine: &Machine) -> String {
    let excluded = if machine.dpdk() { "" } else { " --exclude linerate-dpdk-sys" };
    let mut words = format!("--workspace{excluded} {}", apps(machine));
    if machine.dpdk() {
        words += " --features linerate-bypass/dpdk";
    }
    if machine.rdma() {
        words += " --features linerate-rdma/native";
    }
    words
}

/// Creates a command that builds `linerate` and the packages and features in `more` in release mode.
pub fn build(machine: &Machine, more: &str) -> Command {
    cargo(&format!("build --release -p linerate-apps {more} {}", apps(machine)))
}

/// Creates a command that builds `linerate` in the profile `demo` with the features that the demonstration shows. It
/// compiles in a fraction of the time of [`build`].
pub fn build_demo(machine: &Machine) -> Command {
    let features = if machine.dpdk() { "--features linerate-apps/dpdk" } else { "" };
    cargo(&format!("build --profile demo -p linerate-apps --bin linerate --no-default-features {features}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_follow_the_installed_packages() {
        let all = everything(&Machine::with_missing(&[]));
        assert!(all.starts_with("--workspace --no-default-features --features linerate-apps/smoltcp-engine"), "{all}");
        assert!(all.contains("linerate-apps/dpdk") && all.contains("linerate-bypass/dpdk"), "{all}");
        assert!(all.contains("linerate-apps/rdma") && all.contains("linerate-rdma/native"), "{all}");
        let without_dpdk = everything(&Machine::with_missing(&["libdpdk-dev"]));
        assert!(
            without_dpdk.contains("--exclude linerate-dpdk-sys") && !without_dpdk.contains("/dpdk "),
            "{without_dpdk}"
        );
        assert!(without_dpdk.contains("linerate-apps/rdma"), "{without_dpdk}");
        let neither = everything(&Machine::with_missing(&["libclang-dev"]));
        assert_eq!(
            neither,
            "--workspace --exclude linerate-dpdk-sys --no-default-features --features linerate-apps/smoltcp-engine"
        );
    }
}
