//! Supervised programs.
//!
//! A wait fails with [`Error::Failed`] at its time limit or if the program fails, and with [`Error::Interrupted`] after
//! a signal to this process.

use crate::child::{Child, Event, Target, ends_with_parent, words};
use crate::error::Error;
use crate::interrupt::is_interrupted;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Returns a command that runs `program` on one core.
pub fn pinned(core: usize, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

/// Returns the path of the program `name` in the directory of this one. `build` is the command that builds it.
pub fn sibling(name: &str, build: &str) -> Result<PathBuf, Error> {
    let missing = |error| Error::Start { program: name.to_owned(), error };
    let path = std::env::current_exe().map_err(missing)?.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    Err(missing(io::Error::other(format!("{} is missing: {build}", path.display()))))
}

/// Timeout for a server to be ready, and for any program to stop.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of checks for an interruption.
const TICK: Duration = Duration::from_millis(10);

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// Standard output after the lines that were read while it ran.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ended {
    /// Parses standard output as one JSON value.
    ///
    /// # Panics
    /// If it is not one.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Parses the last line of standard output as JSON.
    pub fn last_json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::from_str(self.stdout.lines().last().unwrap_or_default())
    }
}

/// A running program. Dropping it stops it.
pub struct Process {
    command: String,
    id: u32,
    target: Box<dyn Target>,
    events: Receiver<Event>,
    /// Standard input of a [supervised](Self::supervised) program.
    input: Option<ChildStdin>,
    /// Timeout to be ready, and to stop.
    timeout: Duration,
    /// Lines of standard output that were not read.
    stdout: VecDeque<String>,
    /// All lines of standard error, and the number of those that were read.
    stderr: (Vec<String>, usize),
    status: Option<ExitStatus>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("command", &self.command).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Process {
    /// Starts `command` without standard input.
    pub fn start(command: Command) -> Result<Self, Error> {
        Process::spawn(words(&command), command, Stdio::null(), TIMEOUT)
    }

    /// Starts `command` without standard input. It is killed when the calling thread ends, however it ends.
    pub fn dependent(command: &Command) -> Result<Self, Error> {
        Process::spawn(words(command), ends_with_parent(command), Stdio::null(), TIMEOUT)
    }

    /// Starts a `linerate --supervised` on another machine, which ends when its standard input closes, with the timeout
    /// `timeout` to be ready and to stop.
    pub fn supervised(command: Command, timeout: Duration) -> Result<Self, Error> {
        Process::spawn(words(&command), command, Stdio::piped(), timeout)
    }

    /// Starts `command`, which errors describe by `words`.
    fn spawn(words: Vec<String>, mut command: Command, input: Stdio, timeout: Duration) -> Result<Self, Error> {
        let line = words.join(" ");
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(input);
        let (sender, events) = channel();
        // The receiver ends before the program if the program is killed.
        let forward = move |event| drop(sender.send(event));
        let mut child = Child::spawn(command, forward).map_err(|error| Error::Start { program, error })?;
        tracing::info!("started {line}");
        let (id, input) = (child.id(), child.take_stdin());
        let mut process = Process::from_events(line, events, Box::new(child)).with_timeout(timeout);
        (process.id, process.input) = (id, input);
        Ok(process)
    }

    /// Creates a program named `command` from its events and its receiver of signals.
    pub fn from_events(command: String, events: Receiver<Event>, target: Box<dyn Target>) -> Self {
        Process {
            command,
            id: 0,
            target,
            events,
            input: None,
            timeout: TIMEOUT,
            stdout: VecDeque::new(),
            stderr: (Vec::new(), 0),
            status: None,
        }
    }

    /// Sets the timeout to be ready and to stop.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns whether closing its standard input ends the program.
    pub fn is_supervised(&self) -> bool {
        self.input.is_some()
    }

    /// Sends a line to a supervised program and returns its answer.
    pub fn query(&mut self) -> Result<String, Error> {
        let written = self.input.as_mut().map(|input| input.write_all(b"\n").and_then(|()| input.flush()));
        if !matches!(written, Some(Ok(()))) {
            return Err(self.failed("does not accept input"));
        }
        match self.next_line(Instant::now() + self.timeout)? {
            Some(line) => Ok(line),
            None => Err(self.failed("answers nothing")),
        }
    }

    /// Requests the program to end.
    fn request_exit(&mut self) {
        if self.input.take().is_some() {
            return;
        }
        self.signal(Signal::TERM);
        // A paused program cannot end before it is resumed.
        self.resume();
    }

    /// Pauses the program until it is [resumed](Self::resume) or stopped.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a paused program.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal, if the program still exists.
    pub fn signal(&self, signal: Signal) {
        self.target.signal(signal);
    }

    /// Returns its process ID; 0 if it runs in a guest.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns its command line.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Returns whether the program runs.
    pub fn is_running(&mut self) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        self.status.is_none()
    }

    /// Stores an event.
    fn take(&mut self, event: Event) {
        match event {
            Event::Out(line) => self.stdout.push_back(line),
            Event::Err(line) => self.stderr.0.push(line),
            Event::Ended(status) => self.status = Some(ExitStatus::from_raw(status)),
        }
    }

    /// Waits for an event and stores it. Returns `false` if there is none before `until`, or after the end.
    fn next(&mut self, until: Instant) -> Result<bool, Error> {
        loop {
            if self.status.is_some() {
                return Ok(false);
            }
            match self.events.recv_timeout(TICK.min(until.saturating_duration_since(Instant::now()))) {
                Ok(event) => {
                    self.take(event);
                    // Ctrl-C interrupts every process of the terminal.
                    let failed = self.status.is_some_and(|status| !status.success());
                    return if failed && is_interrupted() { Err(Error::Interrupted) } else { Ok(true) };
                }
                Err(_) if is_interrupted() => return Err(Error::Interrupted),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failed("ended without an exit status")),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => return Ok(false),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the next line of its standard output; `None` if there is none before `until`.
    fn next_line(&mut self, until: Instant) -> Result<Option<String>, Error> {
        loop {
            if let Some(line) = self.stdout.pop_front() {
                return Ok(Some(line));
            }
            if !self.next(until)? {
                return if self.status.is_some() { Err(self.failed("ended too early")) } else { Ok(None) };
            }
        }
    }

    /// Returns the next line of its standard error that has arrived.
    fn unread_stderr_line(&mut self) -> Option<String> {
        let (lines, read) = &mut self.stderr;
        let line = lines.get(*read)?;
        *read += 1;
        Some(line.clone())
    }

    /// Returns the next line of its standard error; `None` if there is none before `until` or the end of the program.
    fn next_stderr_line(&mut self, until: Instant) -> Result<Option<String>, Error> {
        loop {
            if let Some(line) = self.unread_stderr_line() {
                return Ok(Some(line));
            }
            if !self.next(until)? {
                return Ok(None);
            }
        }
    }

    /// Waits for the next line of its standard output, which must begin with `begin`, and returns it.
    pub fn wait_for_line(&mut self, begin: &str) -> Result<String, Error> {
        match self.next_line(Instant::now() + self.timeout)? {
            Some(line) if line.starts_with(begin) => Ok(line),
            Some(printed) => Err(Error::Unexpected { command: self.command.clone(), printed }),
            None => Err(self.failed(&format!("was not ready within {} s", self.timeout.as_secs()))),
        }
    }

    /// Passes lines of its standard output to `done` until that returns `true`, for up to `limit`.
    pub fn read_until(&mut self, limit: Duration, mut done: impl FnMut(&str) -> bool) -> Result<(), Error> {
        let until = Instant::now() + limit;
        while let Some(line) = self.next_line(until)? {
            if done(&line) {
                return Ok(());
            }
        }
        Err(self.failed(&format!("did not print the expected lines within {} s", limit.as_secs())))
    }

    /// Waits up to `limit` for a line of its standard error that contains one of the `words`, and returns it;
    /// `None` if the program ends before. Lines up to that one count as read.
    pub fn wait_for_stderr(&mut self, words: &[&str], limit: Duration) -> Result<Option<String>, Error> {
        let until = Instant::now() + limit;
        while let Some(line) = self.next_stderr_line(until)? {
            if words.iter().any(|word| line.contains(word)) {
                return Ok(Some(line));
            }
        }
        match self.status {
            Some(_) => Ok(None),
            None => Err(self.failed(&format!("did not begin within {} s", limit.as_secs()))),
        }
    }

    /// Waits for a line on either stream that contains `part`, and returns it.
    pub fn wait_for_output(&mut self, part: &str) -> Result<String, Error> {
        let until = Instant::now() + self.timeout;
        loop {
            while let Some(line) = self.stdout.pop_front().or_else(|| self.unread_stderr_line()) {
                if line.contains(part) {
                    return Ok(line);
                }
            }
            if !self.next(until)? {
                return Err(self.failed(&format!("did not print '{part}'")));
            }
        }
    }

    /// Waits up to `limit` for the program to succeed, and returns its standard output.
    pub fn output(self, limit: Duration) -> Result<String, Error> {
        Ok(self.succeed(limit)?.stdout)
    }

    /// Waits up to `limit` for the program to succeed.
    pub fn succeed(mut self, limit: Duration) -> Result<Ended, Error> {
        let status = self.exit_within(limit)?;
        if status.success() { Ok(self.ended(status)) } else { Err(self.failed(&format!("failed ({status})"))) }
    }

    /// Waits up to `limit` for the program to end, successfully or not.
    pub fn end(mut self, limit: Duration) -> Result<Ended, Error> {
        let status = self.exit_within(limit)?;
        Ok(self.ended(status))
    }

    fn exit_within(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        let until = Instant::now() + limit;
        while self.next(until)? {}
        self.status.ok_or_else(|| self.failed(&format!("did not end within {} s", limit.as_secs())))
    }

    fn ended(&mut self, status: ExitStatus) -> Ended {
        Ended { status, stdout: text(self.stdout.drain(..)), stderr: text(self.stderr.0.drain(..)) }
    }

    /// Requests the program to end, waits for it without interruption, and returns its output after the lines that were
    /// read.
    pub fn stop(mut self) -> Result<String, Error> {
        self.request_exit();
        self.wait_uninterrupted();
        match self.status {
            Some(status) if status.success() => Ok(self.ended(status).stdout),
            Some(status) => Err(self.failed(&format!("failed ({status})"))),
            None => Err(self.failed("did not end when requested")),
        }
    }

    /// Waits for the end within its timeout.
    fn wait_uninterrupted(&mut self) {
        let until = Instant::now() + self.timeout;
        while self.status.is_none()
            && let Ok(event) = self.events.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.take(event);
        }
    }

    /// Creates an error with the description `failure` and the standard error so far.
    pub fn failed(&mut self, failure: &str) -> Error {
        self.is_running();
        let output = if self.stderr.0.is_empty() { "(no output)".to_owned() } else { self.stderr.0.join("\n") };
        Error::Failed { command: self.command.clone(), failure: failure.to_owned(), output }
    }
}

fn text(lines: impl Iterator<Item = String>) -> String {
    lines.flat_map(|line| [line, "\n".to_owned()]).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        // If closing the input has no effect, the command prefix itself gets a signal. A program that still runs is
        // killed.
        for _ in 0..if self.is_supervised() { 2 } else { 1 } {
            if self.is_running() {
                self.request_exit();
                self.wait_uninterrupted();
            }
        }
        if self.status.is_none() {
            self.signal(Signal::KILL);
        }
    }
}
