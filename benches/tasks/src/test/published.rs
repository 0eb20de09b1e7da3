//! Checks of the crates that are published.

use super::plan::Action;
use crate::cargo::{cargo, command, target};
use crate::error::Error;
use crate::machine::Machine;
use crate::process;
use std::process::Command;

/// Published crates, each after those on which it depends.
const PUBLISHED: [&str; 11] = [
    "linerate-dpdk-sys",
    "linerate-hugepages",
    "linerate-service",
    "linerate-bypass",
    "linerate-kernel",
    "linerate-rdma-provider",
    "linerate-rdma",
    "linerate-split",
    "linerate-stack",
    "linerate-async",
    "linerate",
];

/// Version of `cargo-semver-checks`, which reads the documentation format of few versions of the compiler.
const SEMVER_CHECKS: &str = "0.51.0";

/// Returns the step that packages each published crate and builds it from its package.
pub fn packages(machine: &Machine) -> Action {
    if !machine.dpdk() {
        return Action::Skip("linerate-dpdk-sys needs DPDK".to_owned());
    }
    // The tree of a contributor may have changes that are not committed.
    Action::Run(cargo(&format!("package --quiet --allow-dirty {}", selection())))
}

/// Compares the public items of the published crates with those of the last tagged version.
pub fn api(_: &Machine) -> Result<(), Error> {
    let tag = Command::new("git").args(["describe", "--tags", "--abbrev=0", "--match", "v*"]).output()?;
    let Some(tag) = tag.status.success().then(|| String::from_utf8_lossy(&tag.stdout).trim().to_owned()) else {
        return Err(Error::skipped("there is no tagged version to compare with"));
    };
    let tools = target().join("tools");
    let root = tools.display();
    process::run(cargo(&format!(
        "install --quiet --locked --root {root} --version {SEMVER_CHECKS} cargo-semver-checks"
    )))?;
    let checks = tools.join("bin/cargo-semver-checks");
    process::run(command(
        &checks.to_string_lossy(),
        &format!("semver-checks --baseline-rev {tag} --only-explicit-features {}", selection()),
    ))
}

/// Returns the arguments that select the published crates.
fn selection() -> String {
    PUBLISHED.map(|name| format!("-p {name}")).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    #[test]
    fn published_crates_are_those_with_a_version_in_the_workspace() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        let members = manifest.lines().filter(|line| line.contains("path = \"") && line.contains("version = \""));
        let path =
            |line: &str| line.split("path = \"").nth(1).and_then(|rest| rest.split('"').next()).map(String::from);
        let mut names = BTreeSet::new();
        for path in members.filter_map(path) {
            let manifest = fs::read_to_string(root.join(&path).join("Cargo.toml")).unwrap();
            assert!(!manifest.contains("publish = false"), "{path}");
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
            names.insert(name.unwrap().to_owned());
        }
        assert_eq!(names, PUBLISHED.map(String::from).into());
    }
}
