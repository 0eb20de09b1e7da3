//! Child processes that end with this process.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{io, thread};

/// Timeout for a server to be ready, and for any program to stop.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Polling interval of process exit.
const TICK: Duration = Duration::from_millis(10);
/// Polling interval of a program's standard error.
const GLANCE: Duration = Duration::from_millis(2);

/// Failure of a child process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program could not be started.
    #[error("{program} could not be started: {error}")]
    Start {
        /// The program.
        program: String,
        /// Reason.
        error: io::Error,
    },
    /// The program failed or ended early.
    #[error("{command} {what}:\n{said}")]
    Failed {
        /// The command line.
        command: String,
        /// Description of the failure.
        what: String,
        /// Its standard error.
        said: String,
    },
    /// The output has an unexpected form.
    #[error("{command} printed something unexpected: {printed}")]
    Unexpected {
        /// The command line.
        command: String,
        /// The output.
        printed: String,
    },
    /// Interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub printed: String,
    /// Its standard error.
    pub said: String,
}

/// A running program. Dropping it stops it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Standard input of a [supervised](Self::supervised) program.
    input: Option<ChildStdin>,
    /// Timeout to be ready, and to stop.
    patience: Duration,
    command: String,
    /// Lines of its standard output, once a caller waits for lines.
    lines: Option<mpsc::Receiver<String>>,
    /// Anonymous file with its standard error.
    said: File,
}

impl Process {
    /// Starts `command` with its standard output in a pipe.
    pub fn start(command: Command) -> Result<Self, Error> {
        Process::spawn(command, Stdio::null(), PATIENCE)
    }

    /// Starts a `linerate --supervised` on another machine, which ends when its standard input closes, with the timeout
    /// `patience` to be ready and to stop.
    pub fn supervised(command: Command, patience: Duration) -> Result<Self, Error> {
        Process::spawn(command, Stdio::piped(), patience)
    }

    fn spawn(mut command: Command, input: Stdio, patience: Duration) -> Result<Self, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let line = format!("{command:?}").replace('"', "");
        let fail = |error| Error::Start { program: program.clone(), error };
        let said = tempfile::tempfile().map_err(fail)?;
        command.stdin(input).stdout(Stdio::piped()).stderr(said.try_clone().map_err(fail)?);
        let mut child = command.spawn().map_err(fail)?;
        tracing::info!("started {line}");
        Ok(Process { input: child.stdin.take(), child, patience, command: line, lines: None, said })
    }

    /// Returns whether closing its standard input ends the program.
    pub fn is_supervised(&self) -> bool {
        self.input.is_some()
    }

    /// Sends a line to a supervised program and returns its answer.
    pub fn ask(&mut self, interrupted: &AtomicBool) -> Result<String, Error> {
        let asked = self.input.as_mut().map(|input| input.write_all(b"\n").and_then(|()| input.flush()));
        if !matches!(asked, Some(Ok(()))) {
            return Err(self.failed("does not accept input"));
        }
        match self.next_line(Instant::now() + self.patience, interrupted)? {
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

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // The program may have ended; it has not been waited for, so its process ID is still its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the first line of its standard output, which must begin with `begin`, and returns it.
    pub fn wait_for_line(&mut self, begin: &str, interrupted: &AtomicBool) -> Result<String, Error> {
        match self.next_line(Instant::now() + self.patience, interrupted)? {
            Some(line) if line.starts_with(begin) => Ok(line),
            Some(printed) => Err(Error::Unexpected { command: self.command.clone(), printed }),
            None => Err(self.failed(&format!("was not ready within {} s", self.patience.as_secs()))),
        }
    }

    /// Passes lines of its standard output to `done` until that returns `true`, for up to `limit`.
    pub fn read_until(
        &mut self,
        limit: Duration,
        interrupted: &AtomicBool,
        mut done: impl FnMut(&str) -> bool,
    ) -> Result<(), Error> {
        let until = Instant::now() + limit;
        while let Some(line) = self.next_line(until, interrupted)? {
            if done(&line) {
                return Ok(());
            }
        }
        Err(self.failed(&format!("did not print what was expected within {} s", limit.as_secs())))
    }

    /// Returns the next line of its standard output; `None` if there is none before `until`.
    fn next_line(&mut self, until: Instant, interrupted: &AtomicBool) -> Result<Option<String>, Error> {
        if self.lines.is_none() {
            let output = self.child.stdout.take().ok_or_else(|| self.failed("has no output left to wait for"))?;
            let (sender, lines) = mpsc::channel();
            // Read until the program ends, so that it never blocks on the pipe.
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
            self.lines = Some(lines);
        }
        loop {
            let lines = self.lines.as_ref().expect("made above");
            match lines.recv_timeout(TICK.min(until.saturating_duration_since(Instant::now()))) {
                Ok(line) => return Ok(Some(line)),
                Err(_) if interrupted.load(Ordering::Relaxed) => return Err(Error::Interrupted),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.failed("ended too early")),
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() >= until => return Ok(None),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits up to `limit` until its standard error contains one of the `words`; returns `false` if it ends before.
    pub fn wait_until_said(
        &mut self,
        words: &[&str],
        limit: Duration,
        interrupted: &AtomicBool,
    ) -> Result<bool, Error> {
        let until = Instant::now() + limit;
        loop {
            // `read_at` keeps the file position, at which the program writes next.
            let mut bytes = [0; 4096];
            let length = self.said.read_at(&mut bytes, 0).unwrap_or(0);
            let said = String::from_utf8_lossy(&bytes[..length]);
            if words.iter().any(|word| said.contains(word)) {
                return Ok(true);
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match self.child.try_wait() {
                Ok(None) if Instant::now() > until => {
                    return Err(self.failed(&format!("did not begin within {} s", limit.as_secs())));
                }
                Ok(None) => thread::sleep(GLANCE),
                _ => return Ok(false),
            }
        }
    }

    /// Waits up to `limit` for the program to end, and returns its output.
    pub fn output(self, limit: Duration, interrupted: &AtomicBool) -> Result<String, Error> {
        let command = self.command.clone();
        let Ended { status, printed, said } = self.end(limit, interrupted)?;
        if status.success() {
            return Ok(printed);
        }
        Err(Error::Failed { command, what: format!("failed ({status})"), said })
    }

    /// Waits up to `limit` for the program to end, successfully or not.
    pub fn end(mut self, limit: Duration, interrupted: &AtomicBool) -> Result<Ended, Error> {
        let mut output = self.child.stdout.take().ok_or_else(|| self.failed("has no output left"))?;
        let reader = thread::spawn(move || {
            let mut printed = String::new();
            output.read_to_string(&mut printed).map(|_| printed)
        });
        let status = match self.wait(limit, Some(interrupted))? {
            // Ctrl-C interrupts every process of the terminal.
            Some(status) if !status.success() && interrupted.load(Ordering::Relaxed) => return Err(Error::Interrupted),
            Some(status) => status,
            None => return Err(self.failed(&format!("did not end within {} s", limit.as_secs()))),
        };
        match reader.join() {
            Ok(Ok(printed)) => Ok(Ended { status, printed, said: self.said() }),
            _ => Err(self.failed("printed invalid text")),
        }
    }

    /// Requests the program to end, waits for it, and returns its output after the line that was waited for.
    pub fn stop(mut self) -> Result<String, Error> {
        self.request_exit();
        match self.wait(self.patience, None)? {
            Some(status) if status.success() => {}
            Some(status) => return Err(self.failed(&format!("failed ({status})"))),
            None => return Err(self.failed("did not end when requested")),
        }
        let printed = self.lines.take().into_iter().flatten();
        Ok(printed.collect::<Vec<_>>().join("\n"))
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its command line.
    pub fn command(&self) -> &str {
        &self.command
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn wait(&mut self, limit: Duration, interrupted: Option<&AtomicBool>) -> Result<Option<ExitStatus>, Error> {
        let until = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(Some(status)),
                Ok(None) if interrupted.is_some_and(|flag| flag.load(Ordering::Relaxed)) => {
                    return Err(Error::Interrupted);
                }
                Ok(None) if Instant::now() > until => return Ok(None),
                Ok(None) => thread::sleep(TICK),
                Err(error) => return Err(self.failed(&format!("cannot be waited for ({error})"))),
            }
        }
    }

    /// Creates an error with the description `what` and the standard error so far.
    pub fn failed(&mut self, what: &str) -> Error {
        Error::Failed { command: self.command.clone(), what: what.to_owned(), said: self.said() }
    }

    /// Returns its standard error so far.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let read = self.said.rewind().and_then(|()| self.said.read_to_string(&mut said));
        if read.is_err() || said.is_empty() {
            said = "(no output)".to_owned();
        }
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        // If closing the input has no effect, the command prefix itself gets a signal.
        for _ in 0..if self.is_supervised() { 2 } else { 1 } {
            self.request_exit();
            if matches!(self.wait(self.patience, None), Ok(Some(_))) {
                return;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command).unwrap()
    }

    #[test]
    fn output_is_returned() {
        let printed = shell("echo one; echo two").output(PATIENCE, &AtomicBool::new(false)).unwrap();
        assert_eq!(printed, "one\ntwo\n");
    }

    #[test]
    fn paused_program_resumes_and_stops() {
        let never = AtomicBool::new(false);
        let mut process = shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        process.wait_for_line("ready", &never).unwrap();
        let stat = format!("/proc/{}/stat", process.id());
        let await_stopped = |is_stopped| {
            let until = Instant::now() + PATIENCE;
            while std::fs::read_to_string(&stat).unwrap().contains(") T ") != is_stopped {
                assert!(Instant::now() < until, "stopped: {is_stopped}");
            }
        };
        process.pause();
        await_stopped(true);
        process.resume();
        await_stopped(false);
        process.pause();
        await_stopped(true);
        process.stop().unwrap();
    }

    #[test]
    fn failure_includes_standard_error() {
        let error = shell("echo reason >&2; exit 3").output(PATIENCE, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("reason"), "{error}");
    }

    #[test]
    fn failed_program_returns_its_output() {
        let ended = shell("echo some; echo reason >&2; exit 3").end(PATIENCE, &AtomicBool::new(false)).unwrap();
        assert_eq!((ended.status.code(), &*ended.printed, &*ended.said), (Some(3), "some\n", "reason\n"));
    }

    #[test]
    fn standard_error_is_read_while_running() {
        let never = AtomicBool::new(false);
        let mut program = shell("echo first >&2; sleep 0.05; echo measuring >&2; exec sleep 1000");
        assert!(program.wait_until_said(&["warming", "measuring"], PATIENCE, &never).unwrap());
        drop(program);
        assert!(!shell("echo other >&2").wait_until_said(&["measuring"], PATIENCE, &never).unwrap());
        let error = shell("exec sleep 1000").wait_until_said(&["measuring"], TICK, &never).unwrap_err();
        assert!(error.to_string().contains("did not begin"), "{error}");
    }

    #[test]
    fn server_is_awaited_and_stopped() {
        let mut server = shell("echo ready on 7; exec sleep 1000");
        assert_eq!(server.wait_for_line("ready", &AtomicBool::new(false)).unwrap(), "ready on 7");
        let pid = server.child.id();
        drop(server);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn output_after_a_stop_request_is_returned() {
        let script = "trap 'echo one; echo two; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
        let mut server = shell(script);
        server.wait_for_line("ready", &AtomicBool::new(false)).unwrap();
        assert_eq!(server.stop().unwrap(), "one\ntwo");
    }

    fn supervised(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::supervised(command, PATIENCE).unwrap()
    }

    #[test]
    fn supervised_program_answers_and_ends_with_its_input() {
        let mut server = supervised("echo ready; while read line; do echo asked; done; echo over");
        let never = AtomicBool::new(false);
        server.wait_for_line("ready", &never).unwrap();
        assert_eq!(server.ask(&never).unwrap(), "asked");
        assert_eq!(server.stop().unwrap(), "over");
        assert!(shell("exec sleep 1000").ask(&never).is_err());
    }

    #[test]
    fn supervised_program_that_ignores_its_input_gets_a_signal() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let server = Process::supervised(command, TICK).unwrap();
        let pid = server.child.id();
        drop(server);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn server_that_ends_before_ready_is_an_error() {
        let error = shell("echo no memory >&2").wait_for_line("ready", &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("no memory"), "{error}");
    }

    #[test]
    fn lines_are_read_until_done() {
        let mut program = shell("echo banner; echo ready now; echo 1; echo 2; exec sleep 1000");
        program.read_until(PATIENCE, &AtomicBool::new(false), |line| line.contains("ready")).unwrap();
        let mut lines = Vec::new();
        let all = |line: &str| {
            lines.push(line.to_owned());
            lines.len() == 2
        };
        program.read_until(PATIENCE, &AtomicBool::new(false), all).unwrap();
        assert_eq!(lines, ["1", "2"]);
        let error = program.read_until(TICK, &AtomicBool::new(false), |_| true).unwrap_err();
        assert!(error.to_string().contains("did not print"), "{error}");
    }

    #[test]
    fn program_that_ends_while_being_read_is_an_error() {
        let error = shell("echo 1; echo broken >&2").read_until(PATIENCE, &AtomicBool::new(false), |_| false);
        assert!(error.unwrap_err().to_string().contains("broken"));
    }

    #[test]
    fn failure_after_an_interruption_is_the_interruption() {
        let error = shell("exit 3").output(PATIENCE, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, Error::Interrupted));
        let error = shell("exit 3").wait_for_line("ready", &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, Error::Interrupted));
    }

    #[test]
    fn interruption_ends_a_wait() {
        let error = shell("exec sleep 1000").output(PATIENCE, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, Error::Interrupted));
    }
}
