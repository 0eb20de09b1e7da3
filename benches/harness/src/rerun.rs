//! Requirements of tests, and tests in further processes: the test binary runs itself again, with a role.

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

/// Returns the path of the test of this thread, as the test harness expects it.
///
/// # Panics
/// On another thread than that of a test.
pub fn test_name() -> String {
    let thread = std::thread::current();
    let name = thread.name().filter(|name| *name != "main");
    name.expect("the test harness names the thread of a test by its path").to_owned()
}

/// Prints that this test is skipped, and the reason.
pub fn skip(reason: &str) {
    eprintln!("skipped: {} {reason}", test_name());
}

/// Returns the command that runs this test with `role` in a further process.
pub fn command(role: &str) -> Command {
    through(Command::new(exe()), role)
}

fn exe() -> std::path::PathBuf {
    std::env::current_exe().expect("this program")
}

fn through(mut command: Command, role: &str) -> Command {
    command.args(["--exact", &test_name(), "--include-ignored", "--nocapture", "--test-threads=1"]).env(ROLE, role);
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
pub fn finish(program: Program) {
    let name = test_name();
    let Ended { status, stdout, stderr } = program.wait_within(DEADLINE);
    assert!(status.success(), "{name}: {status}\n{stdout}\n{stderr}");
    assert!(stdout.contains(DONE), "{name} is not a test: {stdout}");
    // Not captured, so that messages of skipped parts are shown.
    let _ = io::stderr().write_all(stderr.as_bytes());
}

/// Runs `body` of this test in its own process.
pub fn alone(body: impl FnOnce()) {
    parts(|role| {
        assert_eq!(role, MAIN, "the test has no role '{role}'");
        body();
    });
}

/// Runs `body` of this test in its own process, as [`MAIN`]. A [`command`] runs it again in another process, in
/// another role.
pub fn parts(body: impl FnOnce(&str)) {
    match std::env::var(ROLE) {
        Ok(role) => play(|| body(&role)),
        Err(_) => finish(Program::start(command(MAIN))),
    }
}

fn play(body: impl FnOnce()) {
    // The kernel kills this process when the thread that started it ends, even while it is stopped.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
    body();
    println!("{DONE}");
}

/// Runs `body` like [`alone`], in a new network namespace.
pub fn alone_in_a_namespace(body: impl FnOnce()) {
    match std::env::var(ROLE) {
        Err(_) if !is_root() => {}
        Err(_) => {
            let mut unshare = Command::new("unshare");
            unshare.arg("--net").arg(exe());
            finish(Program::start(through(unshare, MAIN)));
        }
        Ok(_) => {
            ip("link set lo up").expect("the loopback interface");
            alone(body);
        }
    }
}

/// Runs `body` of this test in a separate process in a new client namespace. `body` receives the name of a new
/// server namespace. Checks that no process remains in them.
pub fn in_namespaces(body: impl FnOnce(&str)) {
    between_namespaces(true, body);
}

/// Like [`in_namespaces`], for tests whose programs are mostly idle: they run concurrently.
pub fn in_concurrent_namespaces(body: impl FnOnce(&str)) {
    between_namespaces(false, body);
}

fn between_namespaces(takes_turns: bool, body: impl FnOnce(&str)) {
    match std::env::var(ROLE) {
        Ok(role) if role == MAIN => play(|| body(&std::env::var(SERVER).expect("a namespace"))),
        Ok(role) => panic!("the test has no role '{role}'"),
        Err(_) if !is_root() => {}
        Err(_) => {
            let _turn = takes_turns.then(program::turn);
            let [client, server] = Namespace::all(["client", "server"]).unwrap_or_else(|error| panic!("{error}"));
            let mut test = through(client.command(exe()), MAIN);
            test.env(SERVER, server.name());
            finish(Program::start(test));
            let left: Vec<_> = [&client, &server].into_iter().flat_map(Namespace::processes).collect();
            assert!(left.is_empty(), "processes {left:?} remain");
        }
    }
}

/// Returns whether this process is privileged to create network namespaces. Prints a message if not.
pub fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        skip("needs root");
    }
    root
}

/// Returns whether this machine has this number of cores. Prints a message if not.
pub fn has_cores(needed: usize) -> bool {
    let has = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= needed);
    if !has {
        skip(&format!("needs {needed} cores"));
    }
    has
}

/// Returns whether `program` runs successfully with `arguments`. Prints the Debian package that contains it if not.
pub fn is_installed(program: &str, arguments: &[&str], package: &str) -> bool {
    let found = Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("needs {program}: apt-get install {package}"));
    }
    found
}

/// Defines tests that call a function, with attributes if any.
#[macro_export]
macro_rules! tests {
    ($($(#[$attribute:meta])* $name:ident => $function:ident($($arg:expr),*);)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            $function($($arg),*);
        }
    )*};
}
