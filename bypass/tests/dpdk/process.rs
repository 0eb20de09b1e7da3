//! Tests in their own processes: the test binary runs itself again.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Variable with the role of a process that a test started.
const ROLE: &str = "LINERATE_TEST_ROLE";
/// Role of the test itself.
const MAIN: &str = "main";

/// Output of a process that has completed its role.
const DONE: &str = "the part was played";

/// Timeout of every wait, to detect hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `body` of the test `name` in its own process, and fails if it does.
pub fn alone(name: &str, body: impl FnOnce()) {
    parts(name, |role| {
        assert_eq!(role, MAIN);
        body();
    });
}

/// Runs `body` of the test `name` in its own process, as `main`. [`Peer::start`] runs the test again in another
/// process, in another role.
pub fn parts(name: &str, body: impl FnOnce(&str)) {
    match std::env::var(ROLE) {
        Ok(role) => {
            if role != MAIN {
                end_with_parent();
            }
            body(&role);
            println!("{DONE}");
        }
        Err(_) => Peer::start(name, MAIN, &[]).finish(),
    }
}

/// Makes the kernel kill this process when the thread that started it ends (`PR_SET_PDEATHSIG`), even while it is
/// stopped.
fn end_with_parent() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
}

/// Runs `body` like [`alone`], in a new network namespace.
pub fn alone_in_a_namespace(name: &str, body: impl FnOnce()) {
    match std::env::var(ROLE) {
        Err(_) if !is_root() => skipped(name, "needs root"),
        Err(_) => Peer::start_by(Command::new("unshare").arg("--net").arg(exe()), name, MAIN, &[]).finish(),
        Ok(_) => {
            ip("link set lo up");
            alone(name, body);
        }
    }
}

/// Runs `ip` with `arguments`.
#[track_caller]
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}: {status}");
}

/// Reports that `what` was not tested and why, on standard error, because the harness hides output of passing tests.
pub fn skipped(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what} {why}");
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| line == "Uid:\t0\t0\t0\t0")
}

fn exe() -> std::path::PathBuf {
    std::env::current_exe().unwrap()
}

/// Another process of this test, killed on drop.
pub struct Peer {
    child: Child,
    what: String,
}

impl Peer {
    /// Runs the test `name` in another process, in `role`, with `variables` in its environment.
    pub fn start(name: &str, role: &str, variables: &[(&str, &str)]) -> Peer {
        Peer::start_by(&mut Command::new(exe()), name, role, variables)
    }

    fn start_by(command: &mut Command, name: &str, role: &str, variables: &[(&str, &str)]) -> Peer {
        let child = command
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Peer { child, what: format!("{name} as {role}") }
    }

    /// Waits for the process to end successfully.
    pub fn finish(mut self) {
        let end = Instant::now() + DEADLINE + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{}: {status}", self.what);
                let mut said = String::new();
                self.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
                assert!(said.contains(DONE), "{} is no test", self.what);
                return;
            }
            assert!(Instant::now() < end, "{} hangs", self.what);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the process identifier.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process (SIGSTOP).
    pub fn stop(&self) {
        let status = Command::new("kill").args(["-STOP", &self.pid().to_string()]).status().unwrap();
        assert!(status.success(), "kill -STOP: {status}");
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether the parent process has ended.
pub fn is_orphan() -> bool {
    static PARENT: OnceLock<u32> = OnceLock::new();
    std::os::unix::process::parent_id() != *PARENT.get_or_init(std::os::unix::process::parent_id)
}

/// Calls `done` until it returns `true`.
#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "{what} did not come about in {DEADLINE:?}");
        std::thread::yield_now();
    }
}

/// Returns a path for a socket of this test.
pub fn socket(name: &str) -> String {
    std::env::temp_dir().join(format!("lr-{name}-{}.sock", std::process::id())).to_str().unwrap().to_owned()
}
