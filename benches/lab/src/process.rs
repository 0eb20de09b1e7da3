//! Child process whose output is reported as it arrives.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;

/// Time limit for the end of a killed process.
const GONE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Event of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// Line on standard output.
    Out(String),
    /// Line on standard error.
    Err(String),
    /// Exit status, as in a shell. The last event.
    Ended(i32),
}

/// Child process, killed on drop. It has its own process group, so that terminal signals reach only the lab, which
/// ends its children.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts `command`. `tell` receives each line, and finally the exit.
    pub fn spawn(mut command: Command, tell: impl Fn(Event) + Send + Sync + 'static) -> io::Result<Process> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let tell = Arc::new(tell);
        let out = child.stdout.take().map(|out| lines(out, tell.clone(), Event::Out));
        let err = child.stderr.take().map(|err| lines(err, tell.clone(), Event::Err));
        let stdin = child.stdin.take();
        thread::spawn(move || {
            // A panic of a reader is one of `tell`; the exit is reported nevertheless.
            for lines in [out, err].into_iter().flatten() {
                let _ = lines.join();
            }
            let ended = child.wait().map_or(-1, status);
            tell(Event::Ended(ended));
        });
        Ok(Process { pidfd, stdin })
    }

    /// Returns the pipe to standard input, if one was requested.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// Sends a signal, if the process still exists.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&GONE));
    }
}

/// Returns the exit status as in a shell.
fn status(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn lines(
    from: impl Read + Send + 'static,
    tell: Arc<impl Fn(Event) + Send + Sync + 'static>,
    event: fn(String) -> Event,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(io::Result::ok) {
            tell(event(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn bash(script: &str) -> (Process, std::sync::mpsc::Receiver<Event>) {
        let mut command = Command::new("bash");
        command.args(["-c", script]).stdin(Stdio::null());
        let (sender, events) = channel();
        (Process::spawn(command, move |event| drop(sender.send(event))).unwrap(), events)
    }

    #[test]
    fn lines_precede_exit() {
        let (_process, events) = bash("echo one; echo two >&2; printf three; exit 7");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = loop {
            match events.recv().unwrap() {
                Event::Out(line) => out.push(line),
                Event::Err(line) => err.push(line),
                Event::Ended(status) => break status,
            }
        };
        assert_eq!((out, err, status), (vec!["one".into(), "three".into()], vec!["two".to_owned()], 7));
        assert!(events.recv().is_err(), "an event follows the exit");
    }

    #[test]
    fn process_is_killed_on_drop() {
        let (process, events) = bash("echo $$; exec sleep 1000");
        let Event::Out(pid) = events.recv().unwrap() else { panic!("no pid") };
        drop(process);
        assert!(matches!(events.recv().unwrap(), Event::Ended(137)));
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
