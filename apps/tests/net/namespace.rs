//! Network namespaces, and tests that run in them.

use super::program::{self, Program};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Environment variable with the role of a process started by a test: [`MAIN`], or the argument of [`role`].
const ROLE: &str = "LINERATE_TEST_ROLE";
/// Role of the test itself, in the namespace of the client.
const MAIN: &str = "main";
/// Environment variable with the name of the server's namespace.
const SERVER: &str = "LINERATE_TEST_SERVER_NAMESPACE";
/// Output of a process that has completed its role.
const DONE: &str = "role completed";
/// Time limit of a test.
const DEADLINE: Duration = Duration::from_secs(300);

/// Defines tests that call a function with their path, by which a test starts itself in a further process.
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
pub(crate) use named_tests;

/// Network namespace, deleted on drop with all its processes.
struct Namespace(String);

impl Namespace {
    fn new(suffix: &str) -> Namespace {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace(format!("lrtest-{}-{number}-{suffix}", std::process::id()));
        ip(&format!("netns add {}", namespace.0));
        ip(&format!("-n {} link set lo up", namespace.0));
        namespace
    }

    /// Deletes the namespaces of test processes that were killed or interrupted.
    fn sweep() {
        for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix("lrtest-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                drop(Namespace(name));
            }
        }
    }

    fn processes(&self) -> Vec<i32> {
        let output = Command::new("ip").args(["netns", "pids", &self.0]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for pid in self.processes().into_iter().filter_map(rustix::process::Pid::from_raw) {
            // The process may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let removed = Command::new("ip").args(["netns", "del", &self.0]).status();
        assert!(std::thread::panicking() || removed.unwrap().success(), "{} remains", self.0);
    }
}

/// Runs `body` of the test `name` in a separate process in a new client namespace. `body` receives the name of a new
/// server namespace. Checks that no process remains in them.
pub fn in_namespaces(name: &str, body: impl FnOnce(&str)) {
    run(name, true, body);
}

/// Like [`in_namespaces`], for tests whose programs are mostly idle: they run concurrently.
pub fn beside_others(name: &str, body: impl FnOnce(&str)) {
    run(name, false, body);
}

fn run(name: &str, alone: bool, body: impl FnOnce(&str)) {
    match std::env::var(ROLE) {
        Ok(role) if role == MAIN => {
            body(&std::env::var(SERVER).unwrap());
            println!("{DONE}");
        }
        Ok(role) => panic!("{name} has no role '{role}'"),
        Err(_) if !is_root() => eprintln!("skipped: {name} needs root, to make network namespaces"),
        Err(_) => {
            let _turn = alone.then(program::turn);
            run_in_namespaces(name);
        }
    }
}

fn run_in_namespaces(name: &str) {
    Namespace::sweep();
    let (client, server) = (Namespace::new("client"), Namespace::new("server"));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &client.0]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(ROLE, MAIN).env(SERVER, &server.0);
    let mut test = Program::start(command);
    let end = Instant::now() + DEADLINE;
    while test.is_running() {
        assert!(Instant::now() < end, "{name} timed out");
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = test.wait();
    let output = format!("{}\n{}", ended.stdout.join("\n"), ended.stderr.join("\n"));
    assert!(ended.status.success(), "{output}");
    assert!(output.contains(DONE), "{name} is not a test: {output}");
    let left: Vec<_> = [&client, &server].into_iter().flat_map(Namespace::processes).collect();
    assert!(left.is_empty(), "processes {left:?} remain");
}

/// Returns the command that runs the test `name` with `role` in a further process in the same namespace.
pub fn role(name: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Returns whether this process has `role`.
pub fn plays(role: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|played| played == role)
}

/// Runs `ip` with the words of `arguments`.
#[track_caller]
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs several commands of `ip` in one process.
pub fn ip_batch(commands: &[&str]) {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ip {commands:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
