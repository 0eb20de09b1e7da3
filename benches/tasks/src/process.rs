//! Programs with inherited output, and their end by signals.
//!
//! This process adopts orphaned descendants, so that the end of a command includes the processes that its programs
//! started.

use crate::{Error, UNABLE};
use linerate_harness::interrupt;
use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::HashSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Interval of checks for the end of a program and for an interruption.
const TICK: Duration = Duration::from_millis(20);
/// Time that programs of the terminal have to end by themselves after Ctrl-C, which reaches all of them.
const AFTER_CTRL_C: Duration = Duration::from_secs(2);
/// Time between SIGTERM and SIGKILL.
const AFTER_TERM: Duration = Duration::from_secs(10);
/// Script with the steps that are more than one command.
pub const STEPS: &str = "benches/tasks/steps.sh";

/// Exit status due to the first signal; 0 without one.
static SIGNAL_STATUS: AtomicU8 = AtomicU8::new(0);

/// Adopts orphaned descendants and begins to handle signals.
///
/// The first SIGINT, SIGTERM or SIGHUP interrupts the command, which releases its resources. Each further signal kills
/// all descendants, so that no wait for their end remains.
pub fn supervise() -> Result<(), Error> {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let status = if signal == SIGINT { 130 } else { 143 };
            let first = SIGNAL_STATUS.compare_exchange(0, status, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            interrupt::flag().store(true, Ordering::Relaxed);
            if !first {
                signal_all(&descendants(std::process::id()), Signal::KILL);
            }
        }
    });
    Ok(())
}

pub fn signal_status() -> Option<u8> {
    Some(SIGNAL_STATUS.load(Ordering::Relaxed)).filter(|status| *status != 0)
}

pub fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

pub fn cargo(arguments: &str) -> Command {
    command(&format!("cargo {arguments}"))
}

/// Creates a command that runs the step `arguments` of [`STEPS`].
pub fn script(arguments: &str) -> Command {
    command(&format!("{STEPS} {arguments}"))
}

/// Returns the path of a program in the directory `profile` of cargo's target directory.
pub fn built(profile: &str, program: &str) -> String {
    format!("{}/{profile}/{program}", env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into()))
}

/// Returns the command line, with changed environment variables.
pub fn line(command: &Command) -> String {
    let environment = command.get_envs().filter_map(|(name, value)| Some((name, value?.to_string_lossy())));
    let environment = environment.map(|(name, value)| {
        let quote = if value.contains(' ') { "'" } else { "" };
        format!("{}={quote}{value}{quote}", name.to_string_lossy())
    });
    environment.chain(linerate_harness::child::words(command)).collect::<Vec<_>>().join(" ")
}

/// Runs `command` until it succeeds. The exit status [`UNABLE`] skips it, for the reason that it has written.
pub fn run(mut command: Command) -> Result<(), Error> {
    let (line, reason) = (line(&command), tempfile::NamedTempFile::new()?);
    command.env("LINERATE_SKIPPED", reason.path());
    match status(command)? {
        status if status.success() => Ok(()),
        status if status.code() == Some(UNABLE.into()) => match fs::read_to_string(&reason)?.trim() {
            "" => Err(Error::Skipped(format!("{line} printed the reason"))),
            reason => Err(Error::Skipped(reason.to_owned())),
        },
        status => Err(Error::Failed(format!("{line}: {status}"))),
    }
}

/// Runs `command` and returns its exit status. An interruption ends all descendants.
fn status(mut command: Command) -> Result<ExitStatus, Error> {
    let mut child = command.spawn().map_err(|error| Error::Failed(format!("{}: {error}", line(&command))))?;
    loop {
        let status = child.try_wait()?;
        if status.is_some_and(|status| status.signal().is_some()) {
            // The signal of a terminal may reach the program earlier than this process.
            thread::sleep(TICK);
        }
        match status {
            _ if interrupt::is_interrupted() => {
                end_descendants();
                let _ = child.try_wait();
                return Err(Error::Interrupted);
            }
            Some(status) => return Ok(status),
            None => thread::sleep(TICK),
        }
    }
}

/// Ends all descendants: by SIGTERM, children first, and after a while by SIGKILL.
pub fn end_descendants() {
    let own = std::process::id();
    if signal_status() == Some(130) {
        wait_until(AFTER_CTRL_C, || descendants(own).is_empty());
    }
    // Orphans become children. Others are ended by their parents, and get no second signal.
    let mut signalled = HashSet::new();
    let ended = wait_until(AFTER_TERM, || {
        let children = processes().into_iter().filter(|(_, parent)| *parent == own).map(|(child, _)| child);
        let new: Vec<u32> = children.filter(|child| signalled.insert(*child)).collect();
        signal_all(&new, Signal::TERM);
        descendants(own).is_empty()
    });
    if !ended {
        wait_until(AFTER_TERM, || {
            let left = descendants(own);
            signal_all(&left, Signal::KILL);
            left.is_empty()
        });
    }
}

fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(TICK);
    }
    true
}

fn signal_all(processes: &[u32], signal: Signal) {
    for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
        // The process may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Returns the running descendants of a process.
fn descendants(of: u32) -> Vec<u32> {
    let processes = processes();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(processes.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// Returns the running processes with their parents.
fn processes() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter_map(|pid| Some((pid, parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))).collect()
}

/// Returns the parent in a line of `/proc/PID/stat`, unless the process has ended.
fn parent(stat: &str) -> Option<u32> {
    // The name in parentheses may contain any character.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn descendants_include_grandchildren() {
        let mut child = sh("sleep 100 & echo $!; wait").stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        let grandchild = line.trim().parse().unwrap();
        assert!(descendants(std::process::id()).contains(&child.id()));
        assert_eq!(descendants(child.id()), [grandchild]);
        signal_all(&[grandchild], Signal::KILL);
        child.wait().unwrap();
        assert!(descendants(child.id()).is_empty());
        assert_eq!(parent("12 (a) Z (b) S 7 12 12 0"), Some(7));
    }

    #[test]
    fn outcome_of_a_program_is_its_exit_status_and_its_reason() {
        let outcome = |script| run(sh(script)).unwrap_err().to_string();
        assert_eq!(outcome("exit 3"), "sh -c exit 3: exit status: 3");
        assert_eq!(outcome("echo no root >$LINERATE_SKIPPED; exit 77"), "skipped: no root");
        assert_eq!(outcome("exit 77"), "skipped: sh -c exit 77 printed the reason");
    }
}
