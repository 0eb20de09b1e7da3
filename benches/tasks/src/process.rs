//! Programs with inherited output, and their end by signals.
//!
//! This process adopts orphaned descendants, so that the end of a step includes the processes that its program started.

use crate::error::Error;
use linerate_harness::interrupt;
use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval of checks for the end of a program and for an interruption.
const TICK: Duration = Duration::from_millis(20);
/// Time that programs of the terminal have to end by themselves after Ctrl-C, which reaches all of them.
const AFTER_CTRL_C: Duration = Duration::from_secs(2);
/// Time between SIGTERM and SIGKILL.
const AFTER_TERM: Duration = Duration::from_secs(10);

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

/// Returns the exit status due to a received signal.
pub fn signal_status() -> Option<u8> {
    Some(SIGNAL_STATUS.load(Ordering::Relaxed)).filter(|status| *status != 0)
}

/// Returns the command line, with changed environment variables.
pub fn line(command: &Command) -> String {
    let environment = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let environment = environment.map(|(name, value)| {
        let value = value.to_string_lossy();
        let quote = if value.contains(' ') { "'" } else { "" };
        format!("{}={quote}{value}{quote}", name.to_string_lossy())
    });
    let words = linerate_harness::child::words(command);
    environment.chain(words).collect::<Vec<_>>().join(" ")
}

/// Program in the background, which is ended together with this process.
pub struct Background {
    line: String,
    child: Child,
}

impl Background {
    /// Starts `command`.
    pub fn start(mut command: Command) -> Result<Background, Error> {
        let line = line(&command);
        let child = command.spawn().map_err(|error| Error::failed(format!("{line}: {error}")))?;
        Ok(Background { line, child })
    }

    /// Waits until the program ends and returns its exit status.
    pub fn status(mut self) -> Result<ExitStatus, Error> {
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
            thread::sleep(TICK);
        }
    }

    /// Waits until the program succeeds.
    pub fn success(self) -> Result<(), Error> {
        let line = self.line.clone();
        match self.status()? {
            status if status.success() => Ok(()),
            status => Err(Error::failed(format!("{line}: {status}"))),
        }
    }

    /// Returns the exit status if the program has ended. On an interruption it ends all descendants first.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>, Error> {
        let status = self.child.try_wait()?;
        if status.is_some_and(|status| status.signal().is_some()) {
            // The signal of a terminal may reach the program earlier than this process.
            thread::sleep(TICK);
        }
        if interrupt::is_interrupted() {
            end_descendants();
            let _ = self.child.try_wait();
            return Err(Error::Interrupted);
        }
        Ok(status)
    }
}

/// Runs `command` until it succeeds.
pub fn run(command: Command) -> Result<(), Error> {
    Background::start(command)?.success()
}

/// Runs `command`, and returns its standard output and whether it succeeded.
pub fn capture(mut command: Command) -> Result<(String, bool), Error> {
    command.stdout(Stdio::piped());
    let mut program = Background::start(command)?;
    let mut pipe = program.child.stdout.take().expect("a pipe");
    let reader = thread::spawn(move || {
        let mut output = Vec::new();
        pipe.read_to_end(&mut output).map(|_| String::from_utf8_lossy(&output).into_owned())
    });
    let status = program.status()?;
    let output = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok((output, status.success()))
}

/// Returns whether `command` succeeds, without its output.
pub fn succeeds(mut command: Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
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
        let new: Vec<u32> = children(own).into_iter().filter(|child| signalled.insert(*child)).collect();
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
    loop {
        if done() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        thread::sleep(TICK);
    }
}

fn signal_all(processes: &[u32], signal: Signal) {
    for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
        // The process may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Returns the running children of a process.
fn children(of: u32) -> Vec<u32> {
    processes().into_iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| pid).collect()
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

    #[test]
    fn parent_is_read_after_any_name() {
        assert_eq!(parent("12 (a) Z (b) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (sh) Z 7 12 12 0"), None);
        assert_eq!(parent(""), None);
    }

    #[test]
    fn descendants_include_grandchildren() {
        let mut child =
            Command::new("sh").args(["-c", "sleep 100 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        let grandchild = line.trim().parse().unwrap();
        assert!(descendants(std::process::id()).contains(&child.id()));
        assert_eq!(descendants(child.id()), [grandchild]);
        signal_all(&[grandchild], Signal::KILL);
        child.wait().unwrap();
        assert!(descendants(child.id()).is_empty());
    }

    #[test]
    fn output_is_captured_with_the_outcome() {
        let script = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(capture(script("echo a; echo b")).unwrap(), ("a\nb\n".into(), true));
        assert_eq!(capture(script("echo a; exit 3")).unwrap(), ("a\n".into(), false));
        let error = run(script("exit 3")).unwrap_err().to_string();
        assert_eq!(error, "sh -c exit 3: exit status: 3");
    }

    #[test]
    fn line_has_environment_and_words() {
        let mut command = Command::new("cargo");
        command.args(["test", "-q"]).env("A", "b c").env("N", "1").env_remove("GONE");
        assert_eq!(line(&command), "A='b c' N=1 cargo test -q");
    }
}
