//! Programs that this one starts, and that end with it whatever happens.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{io, thread};

/// How long a server may take to be ready, and any program to stop when told to.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked whether a program has ended.
const TICK: Duration = Duration::from_millis(10);
/// How often it is looked whether a program has said something.
const GLANCE: Duration = Duration::from_millis(2);

/// Why a program did not do what it was started for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started.
    #[error("{program} could not be started: {error}")]
    Start {
        /// What was to be started.
        program: String,
        /// Why not.
        error: io::Error,
    },
    /// It failed, or ended before its time.
    #[error("{command} {what}:\n{said}")]
    Failed {
        /// The command line.
        command: String,
        /// What it did.
        what: String,
        /// What it wrote to standard error.
        said: String,
    },
    /// What it printed is not what it should print.
    #[error("{command} printed something unexpected: {printed}")]
    Unexpected {
        /// The command line.
        command: String,
        /// What it printed.
        printed: String,
    },
    /// A signal came.
    #[error("interrupted")]
    Interrupted,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub printed: String,
    /// What it wrote to standard error.
    pub said: String,
}

/// A running program. Dropping it stops it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Its standard input, if it is [supervised](Self::supervised).
    input: Option<ChildStdin>,
    /// How long it may take to be ready, and to stop.
    patience: Duration,
    command: String,
    /// Its standard output, once somebody waits for lines of it.
    lines: Option<mpsc::Receiver<String>>,
    /// A file without a name that holds its standard error.
    said: File,
}

impl Process {
    /// Starts `command` with its standard output in a pipe.
    pub fn start(command: Command) -> Result<Self, Error> {
        Process::spawn(command, Stdio::null(), PATIENCE)
    }

    /// The same for a `linerate --supervised` that runs on another machine: it is told to end by the end of its standard input, and may
    /// take so long to be ready, and to stop.
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

    /// Whether it is told to end by the end of its standard input.
    pub fn is_supervised(&self) -> bool {
        self.input.is_some()
    }

    /// What a supervised one answers to a line.
    pub fn ask(&mut self, interrupted: &AtomicBool) -> Result<String, Error> {
        let asked = self.input.as_mut().map(|input| input.write_all(b"\n").and_then(|()| input.flush()));
        if !matches!(asked, Some(Ok(()))) {
            return Err(self.failed("cannot be asked anything"));
        }
        match self.next_line(Instant::now() + self.patience, interrupted)? {
            Some(line) => Ok(line),
            None => Err(self.failed("answers nothing")),
        }
    }

    /// Asks it to end.
    fn tell_to_end(&mut self) {
        if self.input.take().is_some() {
            return;
        }
        self.signal(Signal::TERM);
        // Who is paused ends no sooner than it goes on.
        self.resume();
    }

    /// Stops it where it is, until it is told to [go on](Self::resume), or to end.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on, if it was paused.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended by itself; it has not been waited for, so the number is still its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the first line on its standard output, which begins with `begin`, and returns it.
    pub fn wait_for_line(&mut self, begin: &str, interrupted: &AtomicBool) -> Result<String, Error> {
        match self.next_line(Instant::now() + self.patience, interrupted)? {
            Some(line) if line.starts_with(begin) => Ok(line),
            Some(printed) => Err(Error::Unexpected { command: self.command.clone(), printed }),
            None => Err(self.failed(&format!("was not ready within {} s", self.patience.as_secs()))),
        }
    }

    /// Gives `done` the lines of its standard output until it says so, for `limit` at most.
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

    /// The next line on its standard output; `None` if there is none before `until`.
    fn next_line(&mut self, until: Instant, interrupted: &AtomicBool) -> Result<Option<String>, Error> {
        if self.lines.is_none() {
            let output = self.child.stdout.take().ok_or_else(|| self.failed("has no output left to wait for"))?;
            let (sender, lines) = mpsc::channel();
            // Reads on until the program ends, so that it never waits for a reader.
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

    /// Waits until one of the `words` is in what it writes to standard error, `limit` at most; `false` if it ends before.
    pub fn wait_until_said(
        &mut self,
        words: &[&str],
        limit: Duration,
        interrupted: &AtomicBool,
    ) -> Result<bool, Error> {
        let until = Instant::now() + limit;
        loop {
            // Read where it is: the place in the file is where the program writes next.
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

    /// Waits until it ends by itself, `limit` at most, and returns what it printed.
    pub fn output(self, limit: Duration, interrupted: &AtomicBool) -> Result<String, Error> {
        let command = self.command.clone();
        let Ended { status, printed, said } = self.end(limit, interrupted)?;
        if status.success() {
            return Ok(printed);
        }
        Err(Error::Failed { command, what: format!("failed ({status})"), said })
    }

    /// Waits until it ends by itself, `limit` at most, whether it fails or not.
    pub fn end(mut self, limit: Duration, interrupted: &AtomicBool) -> Result<Ended, Error> {
        let mut output = self.child.stdout.take().ok_or_else(|| self.failed("has no output left"))?;
        let reader = thread::spawn(move || {
            let mut printed = String::new();
            output.read_to_string(&mut printed).map(|_| printed)
        });
        let status = match self.wait(limit, Some(interrupted))? {
            // A terminal interrupts all of us.
            Some(status) if !status.success() && interrupted.load(Ordering::Relaxed) => return Err(Error::Interrupted),
            Some(status) => status,
            None => return Err(self.failed(&format!("did not end within {} s", limit.as_secs()))),
        };
        match reader.join() {
            Ok(Ok(printed)) => Ok(Ended { status, printed, said: self.said() }),
            _ => Err(self.failed("printed what is no text")),
        }
    }

    /// Asks it to end, waits until it has, and returns what it printed after the line that was waited for.
    pub fn stop(mut self) -> Result<String, Error> {
        self.tell_to_end();
        match self.wait(self.patience, None)? {
            Some(status) if status.success() => {}
            Some(status) => return Err(self.failed(&format!("failed ({status})"))),
            None => return Err(self.failed("did not end when it was asked to")),
        }
        let printed = self.lines.take().into_iter().flatten();
        Ok(printed.collect::<Vec<_>>().join("\n"))
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its command line, in one.
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

    /// That it `what`, with what it wrote to standard error so far.
    pub fn failed(&mut self, what: &str) -> Error {
        Error::Failed { command: self.command.clone(), what: what.to_owned(), said: self.said() }
    }

    /// What it wrote to standard error so far.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let read = self.said.rewind().and_then(|()| self.said.read_to_string(&mut said));
        if read.is_err() || said.is_empty() {
            said = "(it said nothing)".to_owned();
        }
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        // What leads to another machine is asked itself where the end of its input does nothing.
        for _ in 0..if self.is_supervised() { 2 } else { 1 } {
            self.tell_to_end();
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
    fn what_a_program_printed_comes_back() {
        let printed = shell("echo one; echo two").output(PATIENCE, &AtomicBool::new(false)).unwrap();
        assert_eq!(printed, "one\ntwo\n");
    }

    #[test]
    fn who_is_paused_goes_on_when_told_to_and_ends_when_told_to() {
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
    fn a_failure_tells_what_the_program_said() {
        let error = shell("echo reason >&2; exit 3").output(PATIENCE, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("reason"), "{error}");
    }

    #[test]
    fn one_that_fails_is_heard_all_the_same() {
        let ended = shell("echo some; echo reason >&2; exit 3").end(PATIENCE, &AtomicBool::new(false)).unwrap();
        assert_eq!((ended.status.code(), &*ended.printed, &*ended.said), (Some(3), "some\n", "reason\n"));
    }

    #[test]
    fn what_a_program_says_is_heard_while_it_runs() {
        let never = AtomicBool::new(false);
        let mut program = shell("echo first >&2; sleep 0.05; echo measuring >&2; exec sleep 1000");
        assert!(program.wait_until_said(&["warming", "measuring"], PATIENCE, &never).unwrap());
        drop(program);
        assert!(!shell("echo other >&2").wait_until_said(&["measuring"], PATIENCE, &never).unwrap());
        let error = shell("exec sleep 1000").wait_until_said(&["measuring"], TICK, &never).unwrap_err();
        assert!(error.to_string().contains("did not begin"), "{error}");
    }

    #[test]
    fn a_server_is_waited_for_and_stopped() {
        let mut server = shell("echo ready on 7; exec sleep 1000");
        assert_eq!(server.wait_for_line("ready", &AtomicBool::new(false)).unwrap(), "ready on 7");
        let pid = server.child.id();
        drop(server);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn what_a_server_prints_when_it_is_asked_to_end_comes_back() {
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
    fn one_that_is_supervised_answers_and_ends_with_its_standard_input() {
        let mut server = supervised("echo ready; while read line; do echo asked; done; echo over");
        let never = AtomicBool::new(false);
        server.wait_for_line("ready", &never).unwrap();
        assert_eq!(server.ask(&never).unwrap(), "asked");
        assert_eq!(server.stop().unwrap(), "over");
        assert!(shell("exec sleep 1000").ask(&never).is_err());
    }

    #[test]
    fn one_that_is_supervised_and_does_not_end_by_that_is_asked_by_a_signal() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let server = Process::supervised(command, TICK).unwrap();
        let pid = server.child.id();
        drop(server);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_server_that_ends_before_it_is_ready_is_a_failure() {
        let error = shell("echo no memory >&2").wait_for_line("ready", &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("no memory"), "{error}");
    }

    #[test]
    fn lines_are_read_until_there_are_enough() {
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
    fn a_program_that_ends_while_its_lines_are_read_is_a_failure() {
        let error = shell("echo 1; echo broken >&2").read_until(PATIENCE, &AtomicBool::new(false), |_| false);
        assert!(error.unwrap_err().to_string().contains("broken"));
    }

    #[test]
    fn what_fails_because_it_was_interrupted_is_no_failure() {
        let error = shell("exit 3").output(PATIENCE, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, Error::Interrupted));
        let error = shell("exit 3").wait_for_line("ready", &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, Error::Interrupted));
    }

    #[test]
    fn an_interruption_ends_the_wait() {
        let error = shell("exec sleep 1000").output(PATIENCE, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, Error::Interrupted));
    }
}
