//! Checks of the Debian package, and of the ports on the next release of Debian.

use super::plan::Action;
use crate::cargo::command;
use crate::error::Error;
use crate::machine::Machine;
use crate::output::note;
use crate::package;
use crate::process;
use std::fs;
use std::path::Path;

/// Returns the step, or the reason why it is skipped.
pub fn step(machine: &Machine) -> Action {
    let tools = ["debhelper", "dpkg-dev", "lintian", "man-db"].iter().find(|tool| !machine.has(tool));
    match tools {
        _ if !machine.dpdk() => Action::Skip("a package needs DPDK".to_owned()),
        _ if !machine.rdma() => Action::Skip("a package needs cmake, make and libclang".to_owned()),
        Some(tool) => Action::Skip(format!("a package needs {tool}")),
        None => Action::Call(check),
    }
}

/// Returns the step that builds and tests the ports on Debian 13, or the reason why it is skipped.
pub fn debian_13(machine: &Machine) -> Action {
    if !machine.has_namespaces() {
        return Action::Skip("a root file system of Debian 13 needs root".to_owned());
    }
    if !machine.has("mmdebstrap") {
        return Action::Skip("a root file system of Debian 13 needs mmdebstrap".to_owned());
    }
    Action::Run(command("benches/debian13.sh", ""))
}

/// Builds the package twice with the same result, runs lintian, and installs, upgrades and purges it: on this
/// machine's Debian, on a new one that has only the dependencies, and under systemd.
fn check(machine: &Machine) -> Result<(), Error> {
    let first = package::build()?;
    let again = package::directory().join("again");
    fs::create_dir_all(&again)?;
    // The time zone and the permissions of new files must not matter.
    let mut umask = command("sh", "-c");
    umask.arg("umask 077; exec \"$@\"").arg("sh").args(package::deb_words(&again)).env("TZ", "Asia/Tokyo");
    let second = package::deb(umask)?;
    if fs::read(&first)? != fs::read(&second)? {
        return Err(Error::failed(format!("{} and {} differ", first.display(), second.display())));
    }
    if !machine.is_root() || !process::succeeds(command("unshare", "--mount --pid --net --fork true")) {
        note("the package is not installed, which needs root");
        return Ok(());
    }
    let installed = |arguments: &str| {
        process::run(command("apps/packaging/checks/installed", &format!("{} {arguments}", first.display())))
    };
    installed("")?;
    if machine.has("mmdebstrap") {
        installed("clean")?;
    } else {
        note("a new Debian is not made, which needs mmdebstrap");
    }
    if !Path::new("/lib/systemd/systemd").exists() {
        note("the unit is not started, which needs systemd");
        return Ok(());
    }
    process::run(command("apps/packaging/checks/booted", &first.to_string_lossy()))
}
