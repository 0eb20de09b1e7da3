//! Unmodified programs under `linerate run`.

mod forks;
mod options;
mod programs;
mod robustness;

use crate::common::wire::linerate_in;
use crate::common::{assert_refused, linerate};
use crate::interfaces::shared::connect_kernels;
use crate::links::Link;
use linerate_compare::results::{Outcome, Results};
use linerate_harness::process::Ended;
use linerate_harness::program::{Program, run};
use linerate_harness::rerun::{in_namespaces, is_installed};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Addresses of the server's and of the client's end of a link.
const SERVER: &str = "10.9.0.2";
const CLIENT: &str = "10.9.0.1";

/// Returns the command that runs `program` at `ip` of the network `via`.
fn started(via: &str, ip: &str, program: &str) -> Command {
    linerate(&format!("run --via {via} --ip {ip}/24 --idle wait -- {program}"))
}

/// Compiles a program of this directory in `directory`, with the flags in `LINERATE_CASES_CFLAGS`.
fn compile(source: &str, directory: &Path) -> PathBuf {
    let program = directory.join(source.trim_end_matches(".c"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/net/run").join(source);
    let flags = std::env::var("LINERATE_CASES_CFLAGS").unwrap_or_default();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).args(flags.split_whitespace());
    assert!(compiler.status().unwrap().success());
    program
}

/// Runs both roles of the cases, as `command` starts a role, and returns their output.
fn outputs(mut command: impl FnMut(&str) -> Command) -> [String; 2] {
    let server = Program::start(command("server"));
    let client = Program::start(command("client"));
    [client.wait(), server.wait()].map(|Ended { status, stdout, stderr, .. }| {
        assert!(status.success() && stdout.ends_with("done\n"), "{stdout} {stderr}");
        stdout
    })
}

/// Asserts that the cases have the results of the kernel's sockets if `stack` starts the roles. It is called with the
/// role and the words of a command.
fn assert_as_kernel(address: &str, mut stack: impl FnMut(&str, &str) -> Command) {
    let directory = tempfile::tempdir().unwrap();
    let program = compile("cases.c", directory.path()).display().to_string();
    let words = |role: &str, address: &str, control: &str| {
        format!("{program} {role} {address} {}", directory.path().join(control).display())
    };
    let kernel = outputs(|role| {
        let mut command = Command::new("env");
        command.args(words(role, "127.0.0.1", "kernel").split(' '));
        command
    });
    let stack = outputs(|role| stack(role, &words(role, address, "stack")));
    for (kernel, stack) in kernel.iter().zip(&stack) {
        for (kernel, stack) in kernel.lines().zip(stack.lines()) {
            assert_eq!(stack, kernel, "on the stack and on the kernel");
        }
        assert_eq!(stack.lines().count(), kernel.lines().count());
    }
}

#[test]
fn sockets_behave_as_those_of_the_kernel() {
    let link = Link::vhost();
    assert_as_kernel(SERVER, |role, words| {
        let (via, ip) = if role == "server" { (&link.serve, SERVER) } else { (&link.load, CLIENT) };
        started(via, ip, words)
    });
}

#[test]
fn program_serves_the_kernel_at_shared_addresses() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        assert_as_kernel("10.9.0.4", |role, words| {
            if role == "server" {
                return linerate_in(namespace, &format!("run --via af_xdp:lr1,share --idle wait -- {words}"));
            }
            let mut command = Command::new("env");
            command.args(words.split(' '));
            command
        });
    });
}

#[test]
fn redis_is_compared_on_the_kernel_and_on_the_stack() {
    if !is_installed("redis-server", &["--version"], "redis-server") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let settings = "--rounds 1 --round-time 50ms --points 64x16 --keys 1000 --no-sweeps";
    let out = directory.path().display();
    let command = format!("compare --quick --apps redis --via virtio-user,kernel {settings} --out {out}");
    let ended = run(linerate(&command));
    assert!(ended.status.success(), "{ended:?}");
    let results = std::fs::read(directory.path().join("results.json")).unwrap();
    let Results { rows, .. } = serde_json::from_slice(&results).unwrap();
    assert_eq!(
        rows.iter().map(|row| &*row.id).collect::<Vec<_>>(),
        ["redis/virtio-user/native/inline", "redis/kernel/sleeping"]
    );
    for row in &rows {
        let Outcome::Ran(measured) = &row.outcome else { panic!("{row:?} {ended:?}") };
        let rounds: Vec<_> = measured.fixed.iter().flat_map(|fixed| &fixed.rounds).collect();
        assert!(!rounds.is_empty() && rounds.iter().all(|round| round.requests > 0 && round.errors == 0), "{row:?}");
    }
}

#[test]
fn programs_and_networks_that_cannot_work_are_refused_before_the_start() {
    for (args, status, parts) in [
        ("--via vhost:/tmp/lr.sock --ip 10.9.0.2/24 -- no-such-program", 1, &["no-such-program", "PATH"][..]),
        ("--via kernel -- true", 2, &["--via kernel", "af_xdp:INTERFACE,share"]),
        ("--via vhost:/tmp/lr.sock -- true", 2, &["--ip ADDRESS/PREFIX"]),
        ("--via vhost:/tmp/lr.sock --ip 10.9.0.2/24", 2, &["PROGRAM"]),
        ("--via vhost:/tmp/lr.sock --ip 10.9.0.2/24 --workers 2 -- true", 2, &["--workers", "one process"]),
    ] {
        assert_refused(linerate(&format!("run {args}")), status, parts);
    }
}
