//! Runs the program, and ends it with the test.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program, not started yet.
pub fn linerate(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG").stdin(Stdio::null());
    // What can be looked into has its socket there.
    command.env("RUNTIME_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program, running.
pub struct Program(Option<Child>);

impl Program {
    pub fn start(args: &str) -> Self {
        Self::of(linerate(args).spawn().unwrap())
    }

    pub fn of(child: Child) -> Self {
        Program(Some(child))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.0.as_ref().unwrap()), signal).unwrap();
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// Waits for it to end, and kills it if it does not.
    pub fn wait(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("it did not end: {:?}", child.wait_with_output());
            }
            thread::sleep(Duration::from_millis(5));
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// A server that has said that it is ready.
pub struct Server {
    pub program: Program,
    /// The line that said so.
    pub ready: String,
}

impl Server {
    /// `linerate SERVICE serve ARGS`.
    pub fn start(service: &str, args: &str) -> Self {
        Self::of(linerate(&format!("{service} serve {args}")))
    }

    /// The server that `command` starts.
    pub fn of(mut command: Command) -> Self {
        let mut program = Program::of(command.spawn().unwrap());
        let mut ready = String::new();
        // One byte at a time, so that what follows the line stays for `wait`.
        let stdout = program.0.as_mut().unwrap().stdout.as_mut().unwrap();
        BufReader::with_capacity(1, stdout).read_line(&mut ready).unwrap();
        if ready.is_empty() {
            panic!("{command:?}: {:?}", program.wait());
        }
        Server { program, ready }
    }

    /// Has it stop, as Ctrl-C does.
    pub fn stop(self) -> Output {
        self.program.signal(Signal::INT);
        self.program.wait()
    }
}

pub fn run(args: &str) -> Output {
    Program::start(args).wait()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
