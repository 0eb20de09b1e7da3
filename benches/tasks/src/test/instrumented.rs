//! Tests under loom, Miri and AddressSanitizer. Each has a target directory of its own, as all flags differ.

use crate::cargo::{cargo, command, target};
use crate::error::Error;
use crate::machine::Machine;
use crate::output::say;
use crate::process::{self, capture, succeeds};
use std::fs;
use std::process::Command;

/// Checks that a nightly compiler is installed, and installs it if it is missing.
pub fn require_nightly() -> Result<(), Error> {
    let install = || process::run(command("rustup", "toolchain install nightly --profile minimal"));
    if succeeds(cargo("+nightly --version")) {
        return Ok(());
    }
    required(install(), "it needs a nightly compiler, which rustup could not install")
}

/// Replaces a failure by a skip for the reason `why`.
pub fn required(result: Result<(), Error>, why: &str) -> Result<(), Error> {
    result.map_err(|error| match error {
        Error::Failed(_) => Error::skipped(why),
        error => error,
    })
}

/// Returns the test of the lock-free protocols of `bypass` and `service`, with every order of their threads and stores.
pub fn loom() -> Command {
    let mut command = cargo("test -p linerate-bypass --no-default-features --test loom");
    command.env("CARGO_TARGET_DIR", target().join("loom")).env("RUSTFLAGS", "--cfg loom");
    command
}

/// Runs the tests of lock-free and unsafe code in Miri, which reports undefined behaviour and data races.
///
/// Miri runs no foreign code, and therefore no DPDK. Modules are left out that wait, use system calls, or have no
/// unsafe code.
pub fn miri(_: &Machine) -> Result<(), Error> {
    require_nightly()?;
    if !succeeds(cargo("+nightly miri --version")) {
        let add = process::run(command("rustup", "component add miri rust-src --toolchain nightly"));
        required(add, "Miri is a component of the nightly compiler, which rustup could not install")?;
    }
    let mut command = cargo(
        "+nightly miri test -p linerate-service -p linerate-bypass --no-default-features --lib -- arena:: \
         buffer_pool:: bytes:: host::conn_slab:: host::linger:: memory_nic::nic memory_nic::packet memory_nic::ring \
         one_sided::published:: stop:: sync::",
    );
    command.env("CARGO_TARGET_DIR", target().join("miri"));
    command.env("MIRIFLAGS", "-Zmiri-strict-provenance -Zmiri-isolation-error=hide");
    announce_and_run(command)
}

/// Runs the tests over DPDK ports and over the simulated RDMA device with AddressSanitizer, which reports accesses
/// beyond objects of the heap and the stack and after their end.
///
/// AddressSanitizer does not cover DPDK's own memory. Leaks are not reported: EAL keeps its memory until the process
/// exits.
pub fn address_sanitizer(machine: &Machine) -> Result<(), Error> {
    let (version, _) = capture(command("rustc", "-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned();
    let (sysroot, _) = capture(command("rustc", "--print sysroot"))?;
    let libraries = fs::read_dir(format!("{}/lib/rustlib/{host}/lib", sysroot.trim())).into_iter().flatten().flatten();
    if !libraries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().ends_with("_rt.asan.a")) {
        return Err(Error::skipped(format!("this compiler has no AddressSanitizer for {host}")));
    }
    let dpdk = if machine.dpdk() { "--features linerate-bypass/dpdk" } else { "" };
    let rdma = if machine.rdma() { "--features linerate-rdma/native" } else { "" };
    let mut command = cargo(&format!(
        "test --target {host} -p linerate-service -p linerate-bypass -p linerate-rdma -p linerate-rdma-sim {dpdk} {rdma} \
         --no-fail-fast --lib --test dpdk"
    ));
    let flags = format!("-Zsanitizer=address {}", std::env::var("RUSTFLAGS").unwrap_or_default());
    command.env("CARGO_TARGET_DIR", target().join("asan")).env("RUSTC_BOOTSTRAP", "1");
    command.env("ASAN_OPTIONS", "detect_leaks=0").env("RUSTFLAGS", flags);
    announce_and_run(command)
}

fn announce_and_run(command: Command) -> Result<(), Error> {
    say(&process::line(&command));
    process::run(command)
}
