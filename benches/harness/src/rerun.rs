//! Tests in further processes: the test binary runs itself again, with a role.

use crate::namespace::{Namespace, ip};
use crate::process::Ended;
use crate::program::{self, Program};
use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

/// Environment variable with the role of a process started by a test: [`MAIN`], or the argument of [`command`].
const ROLE: &str = "LINERATE_TEST_ROLE";
/// Role of the test itself.
pub const MAIN: &str = "main";
/// Environment variable with the name of the server's namespace.
const SERVER: &str = "LINERATE_TEST_SERVER_NAMESPACE";
/// Output of a process that has completed its role.
const DONE: &str = "role completed";

/// Time limit of a test.
const DEADLINE: Duration = Duration::from_secs(300);

/// Defines tests that call a function with their path, by which a test starts itself in a further process.
#[macro_export]
macro_rules! named_tests {
    ($($name:ident => $function:ident($($arg:expr),*);)*) => {$(
        #[test]
        fn $name() {
            // The path without the name of the crate, as the test harness expects it.
            let path = concat!(module_path!(), "::", stringify!($name));
            $function(path.split_once("::").unwrap().1, $($arg),*);
        }
    )*};
}

/// Returns the command that runs the test `name` with `role` in a further process.
pub fn command(name: &str, role: &str) -> Command {
    through(Command::new(exe()), name, role)
}

fn exe() -> std::path::PathBuf {
    std::env::current_exe().expect("this program")
}

fn through(mut command: Command, name: &str, role: &str) -> Command {
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Returns whether this process has `role`.
pub fn plays(role: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|played| played == role)
}

/// Waits until `program`, started by a [`command`], has completed its role.
///
/// # Panics
/// If it fails or is no test.
#[track_caller]
pub fn finish(name: &str, program: Program) {
    let Ended { status, stdout, stderr } = program.wait_within(DEADLINE);
    assert!(status.success(), "{name}: {status}\n{stdout}\n{stderr}");
    assert!(stdout.contains(DONE), "{name} is not a test: {stdout}");
    // Not captured, so that messages of skipped parts are shown.
    let _ = io::stderr().write_all(stderr.as_bytes());
}

/// Runs `body` of the test `name` in its own process.
pub fn alone(name: &str, body: impl FnOnce()) {
    parts(name, |role| {
        assert_eq!(role, MAIN, "{name} has no role '{role}'");
        body();
    });
}

/// Runs `body` of the test `name` in its own process, as [`MAIN`]. A [`command`] runs it again in another process, in
/// another role.
pub fn parts(name: &str, body: impl FnOnce(&str)) {
    match std::env::var(ROLE) {
        Ok(role) => play(|| body(&role)),
        Err(_) => finish(name, Program::start(command(name, MAIN))),
    }
}

fn play(body: impl FnOnce()) {
    // The kernel kills this process when the thread that started it ends, even while it is stopped.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
    body();
    println!("{DONE}");
}

/// Runs `body` like [`alone`], in a new network namespace.
pub fn alone_in_a_namespace(name: &str, body: impl FnOnce()) {
    match std::env::var(ROLE) {
        Err(_) if !is_root(name) => {}
        Err(_) => {
            let mut unshare = Command::new("unshare");
            unshare.arg("--net").arg(exe());
            finish(name, Program::start(through(unshare, name, MAIN)));
        }
        Ok(_) => {
            ip("link set lo up").expect("the loopback interface");
            alone(name, body);
        }
    }
}

/// Runs `body` of the test `name` in a separate process in a new client namespace. `body` receives the name of a new
/// server namespace. Checks that no process remains in them.
pub fn in_namespaces(name: &str, body: impl FnOnce(&str)) {
    between_namespaces(name, true, body);
}

/// Like [`in_namespaces`], for tests whose programs are mostly idle: they run concurrently.
pub fn beside_others(name: &str, body: impl FnOnce(&str)) {
    between_namespaces(name, false, body);
}

fn between_namespaces(name: &str, takes_turns: bool, body: impl FnOnce(&str)) {
    match std::env::var(ROLE) {
        Ok(role) if role == MAIN => play(|| body(&std::env::var(SERVER).expect("a namespace"))),
        Ok(role) => panic!("{name} has no role '{role}'"),
        Err(_) if !is_root(name) => {}
        Err(_) => {
            let _turn = takes_turns.then(program::turn);
            let [client, server] = Namespace::all(["client", "server"]).unwrap_or_else(|error| panic!("{error}"));
            let mut test = through(client.command(exe()), name, MAIN);
            test.env(SERVER, server.name());
            finish(name, Program::start(test));
            let left: Vec<_> = [&client, &server].into_iter().flat_map(Namespace::processes).collect();
            assert!(left.is_empty(), "processes {left:?} remain");
        }
    }
}

/// Returns whether this process is privileged to create network namespaces. Prints a message if not.
pub fn is_root(name: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("skipped: {name} needs root");
    }
    root
}
