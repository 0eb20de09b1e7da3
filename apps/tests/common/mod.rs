//! Runs the program and stops it at the end of the test.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of every wait in a test.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the command of the program with the words of `args`.
pub fn linerate(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG").stdin(Stdio::null());
    // Directory of the introspection socket.
    command.env("RUNTIME_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Running program, killed on drop.
pub struct Program(Option<Child>);

impl Program {
    pub fn start(args: &str) -> Self {
        Self::from_child(linerate(args).spawn().unwrap())
    }

    pub fn from_child(child: Child) -> Self {
        Program(Some(child))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.0.as_ref().unwrap()), signal).unwrap();
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// Waits for the program to end, and kills it at the time limit.
    pub fn wait(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("the program did not end: {:?}", child.wait_with_output());
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

/// Server that has printed its ready line.
pub struct Server {
    pub program: Program,
    /// Ready line.
    pub ready: String,
}

impl Server {
    /// Starts `linerate SERVICE serve ARGS`.
    pub fn start(service: &str, args: &str) -> Self {
        Self::from_command(linerate(&format!("{service} serve {args}")))
    }

    /// Starts `command` and waits until it is ready.
    pub fn from_command(mut command: Command) -> Self {
        let mut program = Program::from_child(command.spawn().unwrap());
        let mut ready = String::new();
        // One byte at a time, so that output after the line stays for `wait`.
        let stdout = program.0.as_mut().unwrap().stdout.as_mut().unwrap();
        BufReader::with_capacity(1, stdout).read_line(&mut ready).unwrap();
        if ready.is_empty() {
            panic!("{command:?}: {:?}", program.wait());
        }
        Server { program, ready }
    }

    /// Stops the server with SIGINT.
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
