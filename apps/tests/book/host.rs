//! A host for one script: namespaces of its own, in which its commands are run.

use super::page::{Block, Step, missing, only_lost, shortened};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a command may take to end or to be ready, short of a hang.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where `linerate` is on such a host, before what Debian installs.
const PATH: &str = "/run/book:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What makes a host of new namespaces; $1 is the program. The bridge to the machine are its files, which are only to be read.
const SET_UP: &str = r#"
set -eu
mount -t tmpfs none /run
mkdir /run/book /run/home
touch /run/book/linerate
mount --bind "$1" /run/book/linerate
mount -o remount,bind,ro /
mount -t tmpfs none /tmp
mount -t sysfs none /sys
mount -t bpf none /sys/fs/bpf || true
ip link set lo up
"#;

/// `command` on a new host: in namespaces of its own, with which all ends that it begins.
pub fn command(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", program]);
    command
}

/// A server that runs.
struct Server {
    child: Child,
    command: String,
    /// The file that has what it prints.
    out: String,
    /// How much of it has been compared.
    seen: usize,
}

/// Runs the blocks, in a process that [`command`] started; what is wrong is told with the line of its block.
pub fn run(blocks: &[Block]) -> Result<(), String> {
    let set_up = Command::new("bash").args(["-c", SET_UP, "bash", env!("CARGO_BIN_EXE_linerate")]).output().unwrap();
    if !set_up.status.success() {
        return Err(format!("the host: {}", String::from_utf8_lossy(&set_up.stderr)));
    }
    fs::create_dir("/tmp/book").unwrap();
    let mut servers = Vec::new();
    for block in blocks {
        for step in &block.steps {
            self::step(step, &mut servers).map_err(|why| format!("line {}: {why}", block.line))?;
        }
    }
    while let Some(server) = servers.pop() {
        end(server, Signal::TERM, &[])?;
    }
    Ok(())
}

fn step(step: &Step, servers: &mut Vec<Server>) -> Result<(), String> {
    match step {
        Step::Interrupt { shown } => {
            let server = servers.pop().ok_or("^C: no server runs")?;
            end(server, Signal::INT, shown)
        }
        Step::Run { command, shown } => {
            let mut started = start(command);
            let deadline = Instant::now() + PATIENCE;
            loop {
                let printed = |started: &Server| String::from_utf8_lossy(&fs::read(&started.out).unwrap()).into_owned();
                if let Some(status) = started.child.try_wait().unwrap() {
                    return check(&started, status, shown, &printed(&started));
                }
                let now = printed(&started);
                // A whole line: what follows it may come later.
                if now.lines().any(|line| line.starts_with("ready "))
                    && missing(shown, &now).is_none()
                    && now.ends_with('\n')
                {
                    started.seen = now.len();
                    servers.push(started);
                    return Ok(());
                }
                if Instant::now() > deadline {
                    // It goes with the host.
                    return Err(format!(
                        "{command}\nneither ended nor was ready with {shown:#?} in {PATIENCE:?}; it printed:\n{now}"
                    ));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Starts a command. Bash becomes it, if it is one, so that signals reach it.
fn start(command: &str) -> Server {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let out = format!("/run/home/{}", NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let file = File::create(&out).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-o", "pipefail", "-c", &shortened(command)]).current_dir("/tmp/book");
    bash.env_clear().env("PATH", PATH).env("HOME", "/run/home").env("LC_ALL", "C.UTF-8");
    // redis-cli prints then what it prints on a terminal.
    bash.env("FAKETTY", "1");
    bash.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    Server { child: bash.spawn().unwrap(), command: command.to_owned(), out, seen: 0 }
}

/// Ends a server, which then prints what is shown.
fn end(mut server: Server, signal: Signal, shown: &[String]) -> Result<(), String> {
    // It may have ended by itself, which its status tells.
    let _ = kill_process(Pid::from_child(&server.child), signal);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let printed = fs::read(&server.out).unwrap();
        let printed = String::from_utf8_lossy(&printed[server.seen..]).into_owned();
        match server.child.try_wait().unwrap() {
            Some(status) => return check(&server, status, shown, &printed),
            None if Instant::now() > deadline => {
                return Err(format!("{}\ndid not end in {PATIENCE:?}; it printed:\n{printed}", server.command));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Whether it ended, and printed, as it is shown.
fn check(ended: &Server, status: ExitStatus, shown: &[String], printed: &str) -> Result<(), String> {
    let command = &ended.command;
    let fails = shown.first().is_some_and(|line| line.starts_with("linerate: "));
    if status.success() == fails && !only_lost(command, printed) {
        return Err(format!("{command}\nended with {status}; it printed:\n{printed}"));
    }
    match missing(shown, printed) {
        None => Ok(()),
        Some(line) => Err(format!("{command}\ndid not print '{line}', or not at its place, but:\n{printed}")),
    }
}
