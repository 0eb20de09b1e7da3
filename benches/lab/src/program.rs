//! Running program, on the host or in a guest: waits for its output and its end.

use crate::error::{Context, Error, Result, failed};
use crate::log::Log;
use linerate_harness::child::{Child, Event, Target, ends_with_parent, words};
use linerate_harness::process::{Ended, Process};
use linerate_harness::until;
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Time limit of all waits: emulated machines are slow, and share two cores.
pub const TIMEOUT: Duration = Duration::from_secs(180);
/// Time limit for the end of a killed program.
const GONE: Duration = Duration::from_secs(5);

/// Calls `done` until it returns true.
pub fn wait_for(condition: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
    until(condition, TIMEOUT, done)
}

/// Running program, killed on drop.
pub struct Program(Option<Process>);

impl Program {
    /// Creates a program from its events and its receiver of signals. `name` is its name in messages.
    pub fn new(name: impl Into<String>, events: Receiver<Event>, target: Box<dyn Target>) -> Program {
        Program(Some(Process::from_events(name.into(), events, target).with_timeout(TIMEOUT)))
    }

    /// Starts `command` on the host. It is killed together with the lab.
    ///
    /// It has its own process group, so that terminal signals reach only the lab, which ends its programs.
    pub fn start(name: impl Into<String>, command: &Command, log: &Log) -> Result<Program> {
        let (name, log) = (name.into(), log.clone());
        let mut outlived = ends_with_parent(command);
        outlived.stdin(Stdio::null()).process_group(0);
        let (sender, events) = channel();
        log.line(&name, &format!("$ {}", words(command).join(" ")));
        let label = name.clone();
        let forward = move |event: Event| {
            log.event(&label, &event);
            // The receiver may be gone.
            let _ = sender.send(event);
        };
        let child = Child::spawn(outlived, forward).context(name.clone())?;
        Ok(Program::new(name, events, Box::new(child)))
    }

    fn take(&mut self) -> Result<Process> {
        self.0.take().map_or_else(|| failed("the program has ended"), Ok)
    }

    /// Waits for a line on either stream that contains `part`.
    pub fn wait_for_line(&mut self, part: &str) -> Result<String> {
        let Some(process) = &mut self.0 else { return failed("the program has ended") };
        Ok(process.wait_for_output(part)?)
    }

    /// Waits for its successful end.
    pub fn succeed(self) -> Result<Ended> {
        self.succeed_within(TIMEOUT)
    }

    /// Waits for its successful end, with a time limit.
    pub fn succeed_within(mut self, timeout: Duration) -> Result<Ended> {
        Ok(self.take()?.succeed(timeout)?)
    }

    /// Waits for its end.
    pub fn end(mut self) -> Result<Ended> {
        Ok(self.take()?.end(TIMEOUT)?)
    }

    /// Sends a signal.
    fn signal(&self, signal: Signal) {
        self.0.iter().for_each(|process| process.signal(signal));
    }

    /// Kills it and waits for its end.
    pub fn kill(self) -> Result<Ended> {
        self.signal(Signal::KILL);
        self.end()
    }

    /// Terminates it and waits for its successful end.
    pub fn stop(self) -> Result<Ended> {
        self.signal(Signal::INT);
        self.succeed()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            process.signal(Signal::KILL);
            drop(process.with_timeout(GONE));
        }
    }
}

impl From<linerate_harness::Error> for Error {
    fn from(error: linerate_harness::Error) -> Error {
        match error {
            linerate_harness::Error::Interrupted => Error::Interrupted,
            error => Error::Failed(error.to_string()),
        }
    }
}
