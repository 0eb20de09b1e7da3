//! `linerate rdma` with the devices of this machine.

use crate::common::{assert_refusal, linerate, run};
use linerate_harness::process::Ended;
use linerate_harness::program;
use std::path::Path;
use std::process::{Command, Stdio};

fn assert_refused(output: &Ended, part: &str) {
    assert_refusal(output, 1, &[part]);
}

#[test]
fn devices_or_the_obstacle_are_shown() {
    let output = run("rdma info --json");
    if output.status.success() {
        let report = output.json();
        let devices = report["devices"].as_array().unwrap();
        assert!(!devices.is_empty());
        for device in devices {
            let name = device["name"].as_str().unwrap();
            assert!(Path::new("/sys/class/infiniband").join(name).exists());
            assert_eq!(device["calls"], "classic");
            assert!(!device["ports"].as_array().unwrap().is_empty());
        }
        assert!(run("rdma info").stdout.contains("port 1"));
    } else if !Path::new("/sys/class/infiniband_verbs/abi_version").exists() {
        let stderr = &output.stderr;
        let part = match (stderr.contains("rdma-core"), Path::new("/proc/modules").exists()) {
            (true, _) => "apt-get install",
            (false, true) => "modprobe ib_uverbs rdma_ucm",
            (false, false) => "this kernel cannot load modules",
        };
        assert_refused(&output, part);
    } else {
        assert_refused(&output, "there is no RDMA device: ");
    }
}

/// Returns the paths of the libraries in the loader's cache.
fn libraries() -> Vec<String> {
    let output = program::run(Command::new("/sbin/ldconfig").arg("-p"));
    let names = ["libibverbs.so.1", "librdmacm.so.1"];
    let path = |line: &str| {
        let (name, path) = line.split_once(" => ")?;
        names.contains(&name.split_whitespace().next()?).then(|| path.trim().to_owned())
    };
    output.stdout.lines().filter_map(path).collect()
}

/// Runs the program with `hidden` libraries covered by empty files in a mount namespace. Returns `None` without root.
fn without(hidden: &[String], args: &str) -> Option<Ended> {
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
    Some(program::run(command.env_remove("RUST_LOG")))
}

#[test]
fn missing_rdma_core_names_the_packages() {
    let libraries = libraries();
    let remedy = "apt-get install ibverbs-providers librdmacm1";
    let Some(output) = without(&libraries, "rdma info") else { return };
    assert_refused(&output, remedy);
    let device_is_there = Path::new("/sys/class/infiniband_verbs/abi_version").exists();
    // Each library is needed. Without a device, missing kernel support is reported before the second library.
    for library in libraries.iter().filter(|library| device_is_there || library.contains("libibverbs")) {
        let output = without(std::slice::from_ref(library), "rdma info").unwrap();
        assert_refused(&output, remedy);
    }
}

#[test]
fn other_commands_run_without_rdma_core() {
    let libraries = libraries();
    for args in ["--version", "doctor", "echo load --help"] {
        let Some(output) = without(&libraries, args) else { return };
        assert!(output.status.success() && !output.stdout.is_empty(), "{args}: {output:?}");
    }
}
