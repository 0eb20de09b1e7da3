//! A program that was started, on the host or in a guest: waiting for what it says, and for its end.

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

/// Nothing in the lab takes longer, short of a hang: emulated machines are slow, and these have two cores to share.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// How often it is looked whether the lab is to end.
const TICK: Duration = Duration::from_millis(20);

/// The flag that a signal to the lab sets.
pub static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether a signal asked the lab to end.
pub fn is_interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Calls `done` until it says so.
pub fn wait_for(what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_within(PATIENCE, what, done)
}

/// The same, which may take so long.
pub fn wait_within(patience: Duration, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + patience;
    while !done()? {
        if is_interrupted() {
            return Err(Error::Interrupted);
        }
        if Instant::now() > end {
            return failed(format!("{what} did not come about in {patience:?}"));
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// What signals are sent to.
pub trait Target {
    /// Sends one.
    fn signal(&self, signal: Signal);
}

impl Target for Process {
    fn signal(&self, signal: Signal) {
        Process::signal(self, signal);
    }
}

/// A running program, killed when it is dropped.
pub struct Program {
    /// What it is called in messages.
    name: String,
    events: Receiver<Event>,
    target: Box<dyn Target>,
    ended: Ended,
    is_over: bool,
}

/// What a program has said, and how it ended.
#[derive(Debug, Default, Clone)]
pub struct Ended {
    /// Its exit status, as a shell gives it.
    pub status: i32,
    /// Its lines.
    pub out: Vec<String>,
    /// Its lines on standard error.
    pub err: Vec<String>,
}

impl Program {
    /// The program whose events and signals these are.
    pub fn new(name: impl Into<String>, events: Receiver<Event>, target: Box<dyn Target>) -> Program {
        Program { name: name.into(), events, target, ended: Ended::default(), is_over: false }
    }

    /// Starts `command` on the host. It is killed as soon as the lab is gone, however that ended.
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
            // Nobody waits for it any more.
            let _ = sender.send(event);
        };
        let process = Process::spawn(outlived, tell).context(name.clone())?;
        Ok(Program::new(name, events, Box::new(process)))
    }

    /// The next event; `None` when there will be none before `end`.
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

    /// Waits for a line, on either stream, that has `part` in it.
    pub fn wait_for_line(&mut self, part: &str) -> Result<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.next(end)? {
                Some(Event::Out(line) | Event::Err(line)) if line.contains(part) => return Ok(line),
                Some(Event::Ended(status)) => {
                    return failed(format!("{} ended with {status} and did not say '{part}'", self.name));
                }
                Some(_) => {}
                None => return failed(format!("{} did not say '{part}' in {PATIENCE:?}", self.name)),
            }
        }
    }

    /// Waits for its end, which may take so long.
    fn wait_within(mut self, patience: Duration) -> Result<Ended> {
        let end = Instant::now() + patience;
        while !self.is_over {
            if self.next(end)?.is_none() {
                return failed(format!("{} did not end in {patience:?}", self.name));
            }
        }
        Ok(std::mem::take(&mut self.ended))
    }

    /// Waits for its end, which must be a good one.
    pub fn succeed(self) -> Result<Ended> {
        self.succeed_within(PATIENCE)
    }

    /// Waits for its end, which must be a good one and may take so long.
    pub fn succeed_within(self, patience: Duration) -> Result<Ended> {
        let name = self.name.clone();
        match self.wait_within(patience)? {
            ended if ended.status == 0 => Ok(ended),
            ended => failed(format!("{name} ended with {}: {}", ended.status, ended.err.join("; "))),
        }
    }

    /// Waits for its end, whatever that is.
    pub fn end(self) -> Result<Ended> {
        self.wait_within(PATIENCE)
    }

    /// Ends it without asking, and waits until it is gone.
    pub fn kill(self) -> Result<Ended> {
        self.target.signal(Signal::KILL);
        self.end()
    }

    /// Asks it to end, and waits until it has, well.
    pub fn stop(self) -> Result<Ended> {
        self.target.signal(Signal::INT);
        self.succeed()
    }
}

/// A command as it would be typed.
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
    /// The JSON object that is the last line on standard output.
    pub fn json(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(self.out.last().map_or("", String::as_str))?)
    }
}
