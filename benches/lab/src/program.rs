//! Running program, on the host or in a guest: waits for its output and its end.

use crate::error::{Context, Error, Result, failed};
use crate::log::Log;
use crate::process::{Event, Process};
use rustix::process::Signal;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of all waits: emulated machines are slow, and share two cores.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Interval of checks for interruption.
const TICK: Duration = Duration::from_millis(20);

/// Set by a signal to the lab.
pub static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Returns true if the lab was interrupted.
pub fn is_interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Calls `done` until it returns true.
pub fn wait_for(what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_within(PATIENCE, what, done)
}

/// Like [`wait_for`], with a time limit.
pub fn wait_within(patience: Duration, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + patience;
    while !done()? {
        if is_interrupted() {
            return Err(Error::Interrupted);
        }
        if Instant::now() > end {
            return failed(format!("{what}: not reached in {patience:?}"));
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// Receiver of signals.
pub trait Target {
    /// Sends a signal.
    fn signal(&self, signal: Signal);
}

impl Target for Process {
    fn signal(&self, signal: Signal) {
        Process::signal(self, signal);
    }
}

/// Running program, killed on drop.
pub struct Program {
    /// Name in messages.
    name: String,
    events: Receiver<Event>,
    target: Box<dyn Target>,
    ended: Ended,
    is_over: bool,
}

/// Output and status of a program.
#[derive(Debug, Default, Clone)]
pub struct Ended {
    /// Exit status, as in a shell.
    pub status: i32,
    /// Lines on standard output.
    pub out: Vec<String>,
    /// Lines on standard error.
    pub err: Vec<String>,
}

impl Program {
    /// Creates a program from its events and its receiver of signals.
    pub fn new(name: impl Into<String>, events: Receiver<Event>, target: Box<dyn Target>) -> Program {
        Program { name: name.into(), events, target, ended: Ended::default(), is_over: false }
    }

    /// Starts `command` on the host. It is killed together with the lab.
    pub fn start(name: impl Into<String>, command: &Command, log: &Log) -> Result<Program> {
        let (name, log) = (name.into(), log.clone());
        let mut outlived = Command::new("setpriv");
        outlived.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            outlived.current_dir(directory);
        }
        outlived.stdin(Stdio::null());
        let (sender, events) = channel();
        log.line(&name, &format!("$ {}", words(command)));
        let label = name.clone();
        let tell = move |event: Event| {
            log.event(&label, &event);
            // The receiver may be gone.
            let _ = sender.send(event);
        };
        let process = Process::spawn(outlived, tell).context(name.clone())?;
        Ok(Program::new(name, events, Box::new(process)))
    }

    /// Returns the next event, or `None` if there is none before `end`.
    fn next(&mut self, end: Instant) -> Result<Option<Event>> {
        loop {
            if is_interrupted() {
                return Err(Error::Interrupted);
            }
            match self.events.recv_timeout(TICK) {
                Ok(event) => {
                    match &event {
                        Event::Out(line) => self.ended.out.push(line.clone()),
                        Event::Err(line) => self.ended.err.push(line.clone()),
                        Event::Ended(status) => {
                            self.ended.status = *status;
                            self.is_over = true;
                        }
                    }
                    return Ok(Some(event));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > end => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return failed(format!("{}: its machine has ended", self.name)),
            }
        }
    }

    /// Waits for a line on either stream that contains `part`.
    pub fn wait_for_line(&mut self, part: &str) -> Result<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.next(end)? {
                Some(Event::Out(line) | Event::Err(line)) if line.contains(part) => return Ok(line),
                Some(Event::Ended(status)) => {
                    return failed(format!("{} ended with {status} without printing '{part}'", self.name));
                }
                Some(_) => {}
                None => return failed(format!("{} did not print '{part}' in {PATIENCE:?}", self.name)),
            }
        }
    }

    /// Waits for its end, with a time limit.
    fn wait_within(mut self, patience: Duration) -> Result<Ended> {
        let end = Instant::now() + patience;
        while !self.is_over {
            if self.next(end)?.is_none() {
                return failed(format!("{} did not end in {patience:?}", self.name));
            }
        }
        Ok(std::mem::take(&mut self.ended))
    }

    /// Waits for its successful end.
    pub fn succeed(self) -> Result<Ended> {
        self.succeed_within(PATIENCE)
    }

    /// Waits for its successful end, with a time limit.
    pub fn succeed_within(self, patience: Duration) -> Result<Ended> {
        let name = self.name.clone();
        match self.wait_within(patience)? {
            ended if ended.status == 0 => Ok(ended),
            ended => failed(format!("{name} ended with {}: {}", ended.status, ended.err.join("; "))),
        }
    }

    /// Waits for its end.
    pub fn end(self) -> Result<Ended> {
        self.wait_within(PATIENCE)
    }

    /// Kills it and waits for its end.
    pub fn kill(self) -> Result<Ended> {
        self.target.signal(Signal::KILL);
        self.end()
    }

    /// Terminates it and waits for its successful end.
    pub fn stop(self) -> Result<Ended> {
        self.target.signal(Signal::INT);
        self.succeed()
    }
}

/// Returns a command as it would be typed.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.is_over {
            self.target.signal(Signal::KILL);
        }
    }
}

impl Ended {
    /// Parses the JSON object in the last line of standard output.
    pub fn json(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(self.out.last().map_or("", String::as_str))?)
    }
}
