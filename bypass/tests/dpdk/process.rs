//! Parts of a test in further processes.

use linerate_harness::program::Program;
use linerate_harness::rerun;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Timeout of every wait, to detect hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Runs this test in another process, in `role`, with `variables` in its environment.
pub fn peer(role: &str, variables: &[(&str, &str)]) -> Program {
    Program::start(rerun::command(role).envs(variables.iter().copied()))
}

/// Returns whether the parent process has ended.
pub fn is_orphan() -> bool {
    static PARENT: OnceLock<u32> = OnceLock::new();
    std::os::unix::process::parent_id() != *PARENT.get_or_init(std::os::unix::process::parent_id)
}

/// Calls `done`, which polls a port, until it returns `true`.
#[track_caller]
pub fn wait_for(condition: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "timed out after {DEADLINE:?}: {condition}");
        std::thread::yield_now();
    }
}

/// Returns a path for a socket of this test.
pub fn socket(name: &str) -> String {
    std::env::temp_dir().join(format!("lr-{name}-{}.sock", std::process::id())).to_str().unwrap().to_owned()
}
