//! Child process with events for its output and its end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread;

/// Time limit for the end of a killed process.
const GONE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Event of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Line on standard output.
    Out(String),
    /// Line on standard error.
    Err(String),
    /// Exit, as a wait status of the kernel. The last event.
    Ended(i32),
}

impl Event {
    pub fn exited(code: u8) -> Event {
        Event::Ended(i32::from(code) << 8)
    }
}

/// Receiver of signals.
pub trait Target: Send {
    /// Sends a signal, if the program still exists.
    fn signal(&self, signal: Signal);
}

/// Child process, killed on drop.
#[derive(Debug)]
pub struct Child {
    pidfd: OwnedFd,
    id: u32,
    stdin: Option<ChildStdin>,
}

impl Child {
    /// Starts `command`. `on_event` receives each line, and finally the exit.
    pub fn spawn(mut command: Command, on_event: impl Fn(Event) + Send + Sync + 'static) -> io::Result<Child> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let on_event = Arc::new(on_event);
        let out = child.stdout.take().map(|out| lines(out, on_event.clone(), Event::Out));
        let err = child.stderr.take().map(|err| lines(err, on_event.clone(), Event::Err));
        let (id, stdin) = (child.id(), child.stdin.take());
        thread::spawn(move || {
            // A panic of a reader is one of `on_event`; the exit is reported nevertheless.
            for lines in [out, err].into_iter().flatten() {
                let _ = lines.join();
            }
            let status = child.wait();
            on_event(Event::Ended(status.map_or(-1, ExitStatusExt::into_raw)));
        });
        Ok(Child { pidfd, id, stdin })
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the pipe to standard input, if one was requested.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }
}

impl Target for Child {
    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&GONE));
    }
}

fn lines(
    from: impl Read + Send + 'static,
    on_event: Arc<impl Fn(Event) + Send + Sync + 'static>,
    event: fn(String) -> Event,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(io::Result::ok) {
            on_event(event(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()));
        }
    })
}

/// Returns the command with a kill of the program when the calling thread ends, however it ends.
///
/// The programs `setpriv` and `sh` replace themselves by the program. Changing the user clears the setting
/// (`PR_SET_PDEATHSIG`). If this process ends before `setpriv` has set it, the program has another parent and does not
/// start.
pub fn ends_with_parent(command: &Command) -> Command {
    const START: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;
    let parent = std::process::id().to_string();
    wrapped("setpriv", &["--pdeathsig", "KILL", "--", "sh", "-c", START, &parent], command)
}

/// Returns the command that runs `command` by a program that takes its words after `arguments`.
pub fn wrapped(program: &str, arguments: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(program);
    outer.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        outer.current_dir(directory);
    }
    outer
}

/// Returns the program and the arguments of a command.
pub fn words(command: &Command) -> Vec<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;
    use std::sync::mpsc::{Receiver, channel};

    fn sh(script: &str) -> (Child, Receiver<Event>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        let (sender, events) = channel();
        (Child::spawn(command, move |event| drop(sender.send(event))).unwrap(), events)
    }

    #[test]
    fn lines_precede_exit() {
        let (_child, events) = sh("echo one; echo two >&2; printf three; exit 7");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = loop {
            match events.recv().unwrap() {
                Event::Out(line) => out.push(line),
                Event::Err(line) => err.push(line),
                Event::Ended(status) => break ExitStatus::from_raw(status).code(),
            }
        };
        assert_eq!((out, err, status), (vec!["one".into(), "three".into()], vec!["two".to_owned()], Some(7)));
        assert!(events.recv().is_err(), "an event follows the exit");
    }

    #[test]
    fn child_is_killed_on_drop() {
        let (child, events) = sh("echo $$; exec sleep 1000");
        let Event::Out(pid) = events.recv().unwrap() else { panic!("no pid") };
        assert_eq!(pid, child.id().to_string());
        drop(child);
        let Event::Ended(status) = events.recv().unwrap() else { panic!("a line") };
        assert_eq!(ExitStatus::from_raw(status).signal(), Some(9));
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn program_ends_with_its_parent() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ $NAME; exec sleep 1000"]).env("NAME", "value");
        let command = ends_with_parent(&command);
        let (sender, events) = channel();
        let start = || Child::spawn(command, move |event| drop(sender.send(event))).unwrap();
        // The starting thread is the parent. It ends after the first line.
        let (release, released) = channel::<()>();
        let parent = thread::spawn(move || {
            let child = start();
            let _ = released.recv();
            child
        });
        let Event::Out(line) = events.recv().unwrap() else { panic!("no line") };
        assert!(line.ends_with(" value"), "{line}");
        drop(release);
        let child = parent.join().unwrap();
        assert_eq!(line, format!("{} value", child.id()));
        let Event::Ended(status) = events.recv().unwrap() else { panic!("a line") };
        assert_eq!(ExitStatus::from_raw(status).signal(), Some(9));
    }

    #[test]
    fn program_does_not_start_after_the_end_of_its_parent() {
        let mut command = Command::new("echo");
        command.arg("started");
        let mut command = ends_with_parent(&command);
        let printed = |command: &mut Command| String::from_utf8(command.output().unwrap().stdout).unwrap();
        // The parent of the program is this shell, as if this process had ended.
        assert_eq!(printed(&mut wrapped("sh", &["-c", "\"$@\"; true", "sh"], &command)), "");
        assert_eq!(printed(&mut command), "started\n");
    }
}
