//! `linerate rdma` on whatever this machine has.

#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod common;

use common::{linerate, run, text};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn assert_refused(output: &Output, part: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty() && said.lines().count() == 1 && said.contains(part), "{output:?}");
}

#[test]
fn the_devices_are_shown_or_what_stands_in_the_way() {
    let output = run("rdma info --json");
    if output.status.success() {
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let devices = report["devices"].as_array().unwrap();
        assert!(!devices.is_empty());
        for device in devices {
            let name = device["name"].as_str().unwrap();
            assert!(Path::new("/sys/class/infiniband").join(name).exists());
            assert_eq!(device["calls"], "classic");
            assert!(!device["ports"].as_array().unwrap().is_empty());
        }
        assert!(text(&run("rdma info").stdout).contains("port 1"));
    } else if !Path::new("/sys/class/infiniband_verbs/abi_version").exists() {
        let said = text(&output.stderr);
        let part = if said.contains("rdma-core") { "apt-get install" } else { "modprobe ib_uverbs rdma_ucm" };
        assert_refused(&output, part);
    } else {
        assert_refused(&output, "there is no RDMA device: modprobe");
    }
}

/// The libraries' names as the loader finds them.
fn libraries() -> Vec<String> {
    let output = Command::new("/sbin/ldconfig").arg("-p").output().unwrap();
    let names = ["libibverbs.so.1", "librdmacm.so.1"];
    let of = |line: &str| {
        let (name, path) = line.split_once(" => ")?;
        names.contains(&name.split_whitespace().next()?).then(|| path.trim().to_owned())
    };
    text(&output.stdout).lines().filter_map(of).collect()
}

/// The program with `hidden` libraries lying under an empty file, which only it sees; `None` where that needs more rights.
fn without(hidden: &[String], args: &str) -> Option<Output> {
    let mut script = String::from("set -e\n");
    for library in hidden {
        script += &format!("mount --bind /dev/null {library}\n");
    }
    script += "exec \"$@\"\n";
    let can = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: hiding libraries needs root, to make a mount namespace");
        return None;
    }
    let program = linerate(args);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(program.get_program()).args(program.get_args());
    Some(command.env_remove("RUST_LOG").output().unwrap())
}

#[test]
fn without_rdma_core_it_is_said_what_to_install() {
    let libraries = libraries();
    let remedy = "apt-get install ibverbs-providers librdmacm1";
    let Some(output) = without(&libraries, "rdma info") else { return };
    assert_refused(&output, remedy);
    let device_is_there = Path::new("/sys/class/infiniband_verbs/abi_version").exists();
    // Each is needed; without a device, the kernel's lack is said before the second is missed.
    for library in libraries.iter().filter(|library| device_is_there || library.contains("libibverbs")) {
        let output = without(std::slice::from_ref(library), "rdma info").unwrap();
        assert_refused(&output, remedy);
    }
}

#[test]
fn without_rdma_core_everything_else_runs() {
    let libraries = libraries();
    for args in ["--version", "doctor", "echo load --help"] {
        let Some(output) = without(&libraries, args) else { return };
        assert!(output.status.success() && !output.stdout.is_empty(), "{args}: {output:?}");
    }
}
