//! Host for one script: separate namespaces in which its commands run.

use super::page::{Block, Step, missing, only_lost, shortened};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a command to end or to be ready.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// PATH on the host: `linerate` first, then Debian's directories.
const PATH: &str = "/run/book:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Script that sets up a host in new namespaces. $1 is the program, $2 the directory of the examples. Its file system
/// is the machine's, mounted read-only.
const SET_UP: &str = r#"
set -eu
mount -t tmpfs none /run
mkdir /run/book /run/home
for program in "$1" "$2/count" "$2/ask"; do
    if [ -e "$program" ]; then
        touch "/run/book/${program##*/}"
        mount --bind "$program" "/run/book/${program##*/}"
    fi
done
mount -o remount,bind,ro /
mount -t tmpfs none /tmp
mount -t sysfs none /sys
mount -t bpf none /sys/fs/bpf || true
ip link set lo up
"#;

/// Returns the command that runs `program` on a new host, in namespaces that end with all their processes.
pub fn command(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", program]);
    command
}

/// Returns the directory of the built examples, next to the program.
pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_linerate")).with_file_name("examples")
}

/// Running server.
struct Server {
    child: Child,
    command: String,
    /// File with its output.
    out: String,
    /// Length of the output compared so far.
    seen: usize,
}

/// Runs the blocks in a process started by [`command`]. An error names the line of its block.
pub fn run(blocks: &[Block]) -> Result<(), String> {
    let mut set_up = Command::new("bash");
    set_up.args(["-c", SET_UP, "bash", env!("CARGO_BIN_EXE_linerate")]).arg(examples());
    let set_up = set_up.output().unwrap();
    if !set_up.status.success() {
        return Err(format!("the host: {}", String::from_utf8_lossy(&set_up.stderr)));
    }
    fs::create_dir("/tmp/book").unwrap();
    let mut servers = Vec::new();
    for block in blocks {
        for step in &block.steps {
            self::step(step, &mut servers).map_err(|error| format!("line {}: {error}", block.line))?;
        }
    }
    while let Some(server) = servers.pop() {
        stop(server, Signal::TERM, &[])?;
    }
    Ok(())
}

fn step(step: &Step, servers: &mut Vec<Server>) -> Result<(), String> {
    match step {
        Step::Interrupt { shown } => {
            let server = servers.pop().ok_or("^C: no server runs")?;
            stop(server, Signal::INT, shown)
        }
        Step::Run { command, shown } => {
            let mut started = start(command);
            let deadline = Instant::now() + STEP_TIMEOUT;
            loop {
                let printed = |started: &Server| String::from_utf8_lossy(&fs::read(&started.out).unwrap()).into_owned();
                if let Some(status) = started.child.try_wait().unwrap() {
                    return check(&started, status, shown, &printed(&started));
                }
                let now = printed(&started);
                // Compare whole lines only: the rest of a line may still follow.
                if now.lines().any(|line| line.starts_with("ready "))
                    && missing(shown, &now).is_none()
                    && now.ends_with('\n')
                {
                    started.seen = now.len();
                    servers.push(started);
                    return Ok(());
                }
                if Instant::now() > deadline {
                    // The process ends with the host.
                    return Err(format!(
                        "{command}\nneither ended nor was ready with {shown:#?} within {STEP_TIMEOUT:?}; output:\n{now}"
                    ));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Starts a command through bash, which execs a single command, so that signals reach it.
fn start(command: &str) -> Server {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let out = format!("/run/home/{}", NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let file = File::create(&out).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-o", "pipefail", "-c", &shortened(command)]).current_dir("/tmp/book");
    bash.env_clear().env("PATH", PATH).env("HOME", "/run/home").env("LC_ALL", "C.UTF-8");
    // Makes redis-cli print as on a terminal.
    bash.env("FAKETTY", "1");
    bash.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    Server { child: bash.spawn().unwrap(), command: command.to_owned(), out, seen: 0 }
}

/// Ends a server and compares its remaining output with `shown`.
fn stop(mut server: Server, signal: Signal, shown: &[String]) -> Result<(), String> {
    // The server may have ended already, which its status shows.
    let _ = kill_process(Pid::from_child(&server.child), signal);
    let deadline = Instant::now() + STEP_TIMEOUT;
    loop {
        let printed = fs::read(&server.out).unwrap();
        let printed = String::from_utf8_lossy(&printed[server.seen..]).into_owned();
        match server.child.try_wait().unwrap() {
            Some(status) => return check(&server, status, shown, &printed),
            None if Instant::now() > deadline => {
                return Err(format!("{}\ndid not end within {STEP_TIMEOUT:?}; output:\n{printed}", server.command));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Compares exit status and output with the page.
fn check(ended: &Server, status: ExitStatus, shown: &[String], printed: &str) -> Result<(), String> {
    let command = &ended.command;
    let fails = shown.first().is_some_and(|line| line.starts_with("linerate: "));
    if status.success() == fails && !only_lost(command, printed) {
        return Err(format!("{command}\nended with {status}; output:\n{printed}"));
    }
    match missing(shown, printed) {
        None => Ok(()),
        Some(line) => Err(format!("{command}\ndid not print '{line}' in this order; output:\n{printed}")),
    }
}
