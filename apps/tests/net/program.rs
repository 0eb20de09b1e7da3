//! Runs `linerate` and reads its output.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time limit of every wait.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Lock of tests whose programs poll: two cores suffice for two programs.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `done` until it returns true.
#[track_caller]
pub fn wait_for(event: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "timed out after {PATIENCE:?}: {event}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the command of `linerate` with the words of `args`.
pub fn linerate(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG");
    command
}

/// Returns the command of `linerate` with the words of `args` in the network namespace `namespace`.
pub fn linerate_in(namespace: &str, args: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_linerate")]);
    command.args(args.split_whitespace()).env_remove("RUST_LOG");
    command
}

/// Running program, killed on drop.
pub struct Program {
    child: Child,
    /// Ready line of a server.
    pub ready: String,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

/// Result of a program that has ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// Lines of output that were not read before.
    pub stdout: Vec<String>,
    pub stderr: Vec<String>,
}

impl Program {
    #[track_caller]
    pub fn start(mut command: Command) -> Program {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Program { child, ready: String::new(), stdout, stderr }
    }

    /// Starts a server and waits until it is ready.
    #[track_caller]
    pub fn serve(command: Command) -> Program {
        let mut server = Program::start(command);
        match server.stdout.recv_timeout(PATIENCE) {
            Ok(line) => {
                assert!(line.starts_with("ready "), "{line}");
                server.ready = line;
            }
            Err(_) => panic!("the server is not ready: {:?}", server.stderr.try_iter().collect::<Vec<_>>()),
        }
        server
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the program runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills the program and removes EAL's directory, which a later process with the same id would find.
    pub fn kill(mut self) {
        let pid = self.pid();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let _ = std::fs::remove_dir_all(format!("/var/run/dpdk/linerate-{pid}"));
    }

    /// Waits for a line on standard output that contains `part`.
    #[track_caller]
    pub fn wait_for_line(&self, part: &str) {
        wait_for_line(&self.stdout, part);
    }

    /// Waits for a line on standard error that contains `part`.
    #[track_caller]
    pub fn wait_for_log(&self, part: &str) {
        wait_for_line(&self.stderr, part);
    }

    /// Waits for the program to end.
    #[track_caller]
    pub fn wait(mut self) -> Ended {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > end => {
                    panic!("the program did not end: {:?}", self.stderr.try_iter().collect::<Vec<_>>())
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // The pipes are closed, so the iterators end.
        Ended { status, stdout: self.stdout.iter().collect(), stderr: self.stderr.iter().collect() }
    }

    /// Stops the program with SIGINT and waits for its end.
    #[track_caller]
    pub fn stop(self) -> Ended {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.wait()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Parses standard output, which must be one JSON object.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.stdout.len(), 1, "{self:?}");
        serde_json::from_str(&self.stdout[0]).unwrap()
    }
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Sending fails after the end of the test.
        BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

#[track_caller]
fn wait_for_line(lines: &Receiver<String>, part: &str) {
    let end = Instant::now() + PATIENCE;
    while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if line.contains(part) {
            return;
        }
    }
    panic!("no line with '{part}'");
}
