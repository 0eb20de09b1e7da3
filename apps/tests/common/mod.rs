//! Programs under test and their clients over kernel sockets.
#![allow(dead_code, reason = "each test target uses a part of it")]

pub mod client;
#[cfg(feature = "dpdk")]
pub mod wire;

use linerate_harness::process::Ended;
use linerate_harness::program::{self, Program};
use std::borrow::Borrow;
use std::process::Command;

/// Options of a server over kernel sockets on an unused loopback port.
pub const ANY_PORT: &str = "--via kernel --listen 127.0.0.1:0";

/// Returns the command of the program with the words of `args`.
pub fn linerate(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG");
    command
}

/// Like [`linerate`], with the introspection socket below the target directory.
fn isolated(args: &str) -> Command {
    let mut command = linerate(args);
    command.env("RUNTIME_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    command
}

#[track_caller]
pub fn start(args: &str) -> Program {
    Program::start(isolated(args))
}

/// Starts `linerate SERVICE serve ARGS` and waits until it is ready.
#[track_caller]
pub fn serve(service: &str, args: &str) -> Program {
    Program::serve(isolated(&format!("{service} serve {args}")))
}

/// Runs the program to its end.
#[track_caller]
pub fn run(args: &str) -> Ended {
    program::run(isolated(args))
}

/// Runs a program to its end and applies [`assert_refusal`].
#[track_caller]
pub fn assert_refused(command: impl Borrow<Command>, status: i32, parts: &[&str]) {
    assert_refusal(&program::run(command), status, parts);
}

/// Asserts exit status `status`, one line on standard error with the program's name and all `parts`, and no standard
/// output.
#[track_caller]
pub fn assert_refusal(ended: &Ended, status: i32, parts: &[&str]) {
    assert_eq!(ended.status.code(), Some(status), "{ended:?}");
    let [line] = ended.stderr.lines().collect::<Vec<_>>()[..] else { panic!("not one line: {ended:?}") };
    assert!(line.starts_with("linerate: ") && parts.iter().all(|part| line.contains(part)), "{line}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
}

/// Returns the JSON summary or report of a program that succeeded.
#[track_caller]
pub fn summary(ended: &Ended) -> serde_json::Value {
    assert!(ended.status.success(), "{ended:?}");
    ended.json()
}

/// Stops a server. Returns its summary, which has connections and no damaged frame.
#[track_caller]
pub fn stop(server: Program) -> serde_json::Value {
    let summary = summary(&server.stop());
    for cause in ["bad TCP or UDP checksum", "bad IPv4 checksum", "truncated frame", "too long for the port"] {
        assert!(summary["drops"].get(cause).is_none(), "{summary}");
    }
    assert!(summary["accepted"].as_u64() > Some(0), "{summary}");
    summary
}

/// Returns the first field of `name`, such as `VmRSS:`, in the kernel's status of process `pid`.
pub fn process_status(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().unwrap_or_default().to_owned()
}
