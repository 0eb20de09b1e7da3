//! `./run package`: a Debian package with all features, for processors of level x86-64-v3.

use crate::cargo::{cargo, command, target};
use crate::error::Error;
use crate::machine::Machine;
use crate::output::{note, say};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the package and prints its path.
pub fn run(machine: &Machine) -> Result<(), Error> {
    if !machine.dpdk() || !machine.rdma() {
        return Err(Error::failed("a package has all features: it needs DPDK, cmake, make and libclang"));
    }
    say("package for x86-64-v3");
    build().map(drop)
}

/// Returns the directory of the package.
pub fn directory() -> PathBuf {
    target().join("package")
}

fn programs() -> PathBuf {
    target().join("x86_64-unknown-linux-gnu/release")
}

/// Builds the package, checks it by lintian, and returns its path.
pub fn build() -> Result<PathBuf, Error> {
    if directory().exists() {
        fs::remove_dir_all(directory())?;
    }
    fs::create_dir_all(directory())?;
    process::run(build_programs()?)?;
    let mut pages = Command::new(programs().join("linerate-pages"));
    pages.arg(directory().join("pages"));
    process::run(pages)?;
    let mut words = deb_words(&directory()).into_iter();
    let mut make = Command::new(words.next().expect("a program"));
    make.args(words);
    let package = deb(make)?;
    note(&package.display().to_string());
    let mut lintian = command("lintian", "--allow-root --fail-on error,warning --info");
    lintian.arg(&package);
    process::run(lintian)?;
    Ok(package)
}

/// Returns the command line that makes the package in `directory` from the built programs.
pub fn deb_words(into: &Path) -> [PathBuf; 4] {
    ["apps/packaging/deb".into(), programs(), directory().join("pages"), into.to_owned()]
}

/// Makes the package by `command` and returns its path.
pub fn deb(command: Command) -> Result<PathBuf, Error> {
    match process::capture(command)? {
        (output, true) => Ok(output.trim().into()),
        (_, false) => Err(Error::failed("apps/packaging/deb failed")),
    }
}

/// Returns the build of the programs. Paths of this machine are replaced, so that packages are reproducible. Build
/// scripts run on this processor and are not affected by the flags, as a target is given.
fn build_programs() -> Result<Command, Error> {
    let here = std::env::current_dir()?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo"))).unwrap_or_default();
    let map = |option: &str| {
        format!("{option}={}=/usr/src/linerate {option}={}=/usr/src/cargo", here.display(), home.display())
    };
    let mut build =
        cargo("build --locked --release --target x86_64-unknown-linux-gnu -p linerate-apps -p linerate-packaging");
    build.env("RUSTFLAGS", format!("-C target-cpu=x86-64-v3 {}", map("--remap-path-prefix")));
    build.env("CFLAGS", format!("-g -O2 -fstack-protector-strong {}", map("-ffile-prefix-map")));
    Ok(build)
}
