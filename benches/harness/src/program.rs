//! Programs of tests. All waits panic after [`TIMEOUT`].

use crate::namespace;
use crate::process::{Ended, Process};
use crate::wait::TIMEOUT;
use rustix::process::Signal;
use std::borrow::Borrow;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time limit for the end of a killed program.
const GONE: Duration = Duration::from_secs(5);

/// Lock of tests whose programs poll: two cores suffice for two programs.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Running program, killed on drop and when the thread that started it ends.
#[derive(Debug)]
pub struct Program {
    process: Option<Process>,
    /// Ready line of a server.
    pub ready: String,
}

impl Program {
    /// Starts `command` without standard input.
    #[track_caller]
    pub fn start(command: impl Borrow<Command>) -> Program {
        let process = Process::dependent(command.borrow()).unwrap_or_else(|error| panic!("{error}"));
        Program { process: Some(process.with_timeout(TIMEOUT)), ready: String::new() }
    }

    /// Starts a server and waits until it is ready.
    #[track_caller]
    pub fn serve(command: impl Borrow<Command>) -> Program {
        let mut server = Program::start(command);
        server.ready = server.process().wait_for_line("ready ").unwrap_or_else(|error| panic!("{error}"));
        server
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("a running program")
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::id)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.iter().for_each(|process| process.signal(signal));
    }

    /// Returns whether the program runs.
    pub fn is_running(&mut self) -> bool {
        self.process().is_running()
    }

    /// Waits for a line on standard output that contains `part`, and returns it.
    #[track_caller]
    pub fn wait_for_line(&mut self, part: &str) -> String {
        let mut found = String::new();
        let read = self.process().read_until(TIMEOUT, |line| {
            found = line.to_owned();
            line.contains(part)
        });
        read.unwrap_or_else(|error| panic!("no line with '{part}': {error}"));
        found
    }

    /// Waits for a line on standard error that contains `part`, and returns it.
    #[track_caller]
    pub fn wait_for_log(&mut self, part: &str) -> String {
        match self.process().wait_for_stderr(&[part], TIMEOUT) {
            Ok(Some(line)) => line,
            result => panic!("no line with '{part}': {result:?}"),
        }
    }

    /// Returns the address of a server with one address, from its ready line.
    #[track_caller]
    pub fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    /// Returns the addresses of a server, from its ready line.
    #[track_caller]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let rest = self.ready.split_once(" on ").and_then(|(_, rest)| rest.split_once(" via "));
        let (addresses, _) = rest.unwrap_or_else(|| panic!("{}", self.ready));
        addresses.split(", ").map(|address| address.parse().expect("an address")).collect()
    }

    /// Waits for the program to end.
    #[track_caller]
    pub fn wait(self) -> Ended {
        self.wait_within(TIMEOUT)
    }

    /// Waits up to `limit` for the program to end.
    #[track_caller]
    pub fn wait_within(mut self, limit: Duration) -> Ended {
        let process = self.process.take().expect("a running program");
        process.end(limit).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Stops the program with SIGINT and waits for its end.
    #[track_caller]
    pub fn stop(self) -> Ended {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Kills the program and removes EAL's directory, which a later process with the same id would find.
    pub fn kill(self) {
        let pid = self.pid();
        self.signal(Signal::KILL);
        self.wait();
        let _ = std::fs::remove_dir_all(format!("/var/run/dpdk/linerate-{pid}"));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal(Signal::KILL);
            drop(process.with_timeout(GONE));
        }
    }
}

/// Runs `ip` with the words of `arguments`.
#[track_caller]
pub fn ip(arguments: &str) {
    namespace::ip(arguments).unwrap_or_else(|error| panic!("{error}"));
}

/// Runs `command` to its end.
#[track_caller]
pub fn run(command: impl Borrow<Command>) -> Ended {
    Program::start(command).wait()
}
