//! A child process and what it says, told as it happens: on the host to the lab, in a guest to the agent.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;

/// How long a process that was killed may take to be gone.
const GONE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What becomes of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// A line on its standard output.
    Out(String),
    /// A line on its standard error.
    Err(String),
    /// Its exit status, as a shell gives it. Nothing follows.
    Ended(i32),
}

/// A child process, killed when it is dropped. It is in a process group of its own: what is typed at the terminal
/// reaches the lab, and the lab ends what it started.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts `command`; `tell` hears of each line, and at last of the end.
    pub fn spawn(mut command: Command, tell: impl Fn(Event) + Send + Sync + 'static) -> io::Result<Process> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let tell = Arc::new(tell);
        let out = child.stdout.take().map(|out| lines(out, tell.clone(), Event::Out));
        let err = child.stderr.take().map(|err| lines(err, tell.clone(), Event::Err));
        let stdin = child.stdin.take();
        thread::spawn(move || {
            // A panic of theirs would be one of `tell`; the end is told all the same.
            for lines in [out, err].into_iter().flatten() {
                let _ = lines.join();
            }
            let ended = child.wait().map_or(-1, status);
            tell(Event::Ended(ended));
        });
        Ok(Process { pidfd, stdin })
    }

    /// What was piped to its standard input, if that was asked for.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// Sends a signal, if it is still there.
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

/// The exit status as a shell gives it.
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
    fn every_line_is_told_before_the_end() {
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
        assert!(events.recv().is_err(), "something was told after the end");
    }

    #[test]
    fn it_is_gone_when_it_is_dropped() {
        let (process, events) = bash("echo $$; exec sleep 1000");
        let Event::Out(pid) = events.recv().unwrap() else { panic!("no pid") };
        drop(process);
        assert!(matches!(events.recv().unwrap(), Event::Ended(137)));
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
