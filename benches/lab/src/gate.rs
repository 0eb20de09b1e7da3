//! Gate: a Unix socket through which processes outside the lab run programs in a guest. Each connection is one
//! program: its input lines are the program's standard input; the program's output and status are sent back. Closing
//! the connection ends the program.

use crate::error::{Context, Result};
use crate::machine::{InGuest, Starter};
use linerate_harness::child::Event;
use linerate_harness::child::Target;
use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::thread;

/// Gate into a guest, open until dropped.
pub struct Gate(UnixListener);

impl Gate {
    pub fn open(socket: &Path, guest: Starter) -> Result<Gate> {
        let listener = UnixListener::bind(socket).context(socket.to_string_lossy())?;
        let accepting = listener.try_clone().context(socket.to_string_lossy())?;
        thread::spawn(move || {
            for connection in accepting.incoming().map_while(io::Result::ok) {
                let guest = guest.clone();
                thread::spawn(move || {
                    let mut replies = connection.try_clone();
                    if let (Err(error), Ok(replies)) = (admit(connection, &guest), &mut replies) {
                        // A client that has disconnected needs no error.
                        let _ = send(replies, &Event::Err(error.to_string()))
                            .and_then(|()| send(replies, &Event::exited(1)));
                    }
                });
            }
        });
        Ok(Gate(listener))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Fails pending connects.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// Runs the program named by the first line, with the following lines as input.
fn admit(connection: UnixStream, guest: &Starter) -> Result<()> {
    let mut output = connection.try_clone().context("a connection")?;
    let mut lines = BufReader::new(connection).lines();
    let first = lines.next().transpose().context("a connection")?.unwrap_or_default();
    let words: Vec<String> = serde_json::from_str(&first)?;
    let name = words.iter().skip(1).filter(|word| !word.starts_with('-')).take(2).cloned().collect::<Vec<_>>();
    let (program, events) = guest.start(&name.join(" "), &script(&words))?;
    let forwarding = thread::spawn(move || {
        for event in events {
            if send(&mut output, &event).is_err() {
                break;
            }
        }
        // The client reads no further events.
        let _ = output.shutdown(std::net::Shutdown::Both);
    });
    feed(&program, lines);
    program.write_line(None);
    // The client is gone. A program that has ended ignores the signal.
    program.signal(Signal::TERM);
    let _ = forwarding.join();
    Ok(())
}

/// Feeds lines to the program until the connection ends.
fn feed(program: &InGuest, lines: impl Iterator<Item = io::Result<String>>) {
    for line in lines.map_while(io::Result::ok) {
        match serde_json::from_str::<Option<String>>(&line) {
            Ok(line) => program.write_line(line),
            Err(_) => return,
        }
    }
}

/// Quotes words as a shell command.
fn script(words: &[String]) -> String {
    let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    format!("exec {}", quoted.collect::<Vec<_>>().join(" "))
}

fn send(to: &mut UnixStream, message: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Runs `words` in the guest that `socket` leads to, connected to the standard streams of this process.
pub fn enter(socket: &Path, words: &[String]) -> io::Result<ExitCode> {
    let mut to = UnixStream::connect(socket)?;
    let from = to.try_clone()?;
    send(&mut to, &words)?;
    // This thread may block on input forever; it ends with the process.
    thread::spawn(move || {
        let lines = io::stdin().lock().lines().map_while(io::Result::ok);
        for line in lines.map(Some).chain([None]) {
            if send(&mut to, &line).is_err() {
                return;
            }
        }
    });
    for line in BufReader::new(from).lines() {
        match serde_json::from_str(&line?)? {
            Event::Out(line) => {
                let mut out = io::stdout().lock();
                writeln!(out, "{line}").and_then(|()| out.flush())?;
            }
            Event::Err(line) => eprintln!("{line}"),
            Event::Ended(status) => {
                let code = ExitStatus::from_raw(status).code().and_then(|code| u8::try_from(code).ok());
                return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
            }
        }
    }
    Err(io::Error::other("the guest has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_shell() {
        let words = ["a", "b c", "it's", "$x"].map(str::to_owned);
        assert_eq!(script(&words), r"exec 'a' 'b c' 'it'\''s' '$x'");
        assert_eq!(script(&["--via".to_owned()]), "exec '--via'");
    }
}
