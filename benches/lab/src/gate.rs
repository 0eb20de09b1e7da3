//! A way into a guest from outside the lab: a socket, at which each connection is a program that runs there. What comes in on it are lines
//! for the program to read, what goes out is what it says and how it ends. When the connection ends, so does the program.

use crate::error::{Context, Result};
use crate::machine::{InGuest, Starter};
use crate::process::Event;
use crate::program::Target;
use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

/// A socket that leads into a guest, until it is dropped.
pub struct Gate(UnixListener);

impl Gate {
    /// Opens one at `socket`.
    pub fn open(socket: &Path, guest: Starter) -> Result<Gate> {
        let listener = UnixListener::bind(socket).context(socket.to_string_lossy())?;
        let accepting = listener.try_clone().context(socket.to_string_lossy())?;
        thread::spawn(move || {
            for connection in accepting.incoming().map_while(io::Result::ok) {
                let guest = guest.clone();
                thread::spawn(move || {
                    let mut told = connection.try_clone();
                    if let (Err(error), Ok(told)) = (admit(connection, &guest), &mut told) {
                        // Who has gone needs to know nothing.
                        let _ = send(told, &Event::Err(error.to_string())).and_then(|()| send(told, &Event::Ended(1)));
                    }
                });
            }
        });
        Ok(Gate(listener))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Who waits for a connection is told that there will be none.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// Runs what the first line says, and gives it the lines that follow.
fn admit(connection: UnixStream, guest: &Starter) -> Result<()> {
    let mut output = connection.try_clone().context("a connection")?;
    let mut lines = BufReader::new(connection).lines();
    let first = lines.next().transpose().context("a connection")?.unwrap_or_default();
    let words: Vec<String> = serde_json::from_str(&first)?;
    let name = words.iter().skip(1).filter(|word| !word.starts_with('-')).take(2).cloned().collect::<Vec<_>>();
    let (program, events) = guest.start(&name.join(" "), &script(&words))?;
    let telling = thread::spawn(move || {
        for event in events {
            if send(&mut output, &event).is_err() {
                break;
            }
        }
        // Whoever reads below has nothing to wait for any more.
        let _ = output.shutdown(std::net::Shutdown::Both);
    });
    feed(&program, lines);
    program.tell(None);
    // Its reader is gone, and so is what it was run for; one that has ended does not hear it.
    program.signal(Signal::TERM);
    let _ = telling.join();
    Ok(())
}

/// Gives it the lines, until the connection ends.
fn feed(program: &InGuest, lines: impl Iterator<Item = io::Result<String>>) {
    for line in lines.map_while(io::Result::ok) {
        match serde_json::from_str::<Option<String>>(&line) {
            Ok(line) => program.tell(line),
            Err(_) => return,
        }
    }
}

/// Words as a command of a shell.
fn script(words: &[String]) -> String {
    let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    format!("exec {}", quoted.collect::<Vec<_>>().join(" "))
}

fn send(to: &mut UnixStream, what: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// The other end: runs `words` in the guest behind `socket`, and says and reads here what they say and read there.
pub fn enter(socket: &Path, words: &[String]) -> io::Result<ExitCode> {
    let mut to = UnixStream::connect(socket)?;
    let from = to.try_clone()?;
    send(&mut to, &words)?;
    // It waits for lines that may never come, and ends with this process.
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
            Event::Ended(status) => return Ok(u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from)),
        }
    }
    Err(io::Error::other("the guest has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_stays_one() {
        let words = ["a", "b c", "it's", "$x"].map(str::to_owned);
        assert_eq!(script(&words), r"exec 'a' 'b c' 'it'\''s' '$x'");
        assert_eq!(script(&["--via".to_owned()]), "exec '--via'");
    }
}
