//! Another process of the program, looked into from this one.

use super::place;
use super::wire::{About, Answer, Ask, Connections, Counters, Line, VERSION, Value};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take: a worker has a second, and others may be answered first.
const PATIENCE: Duration = Duration::from_secs(5);
/// Characters of a command that are shown in a list.
const COMMAND: usize = 60;
/// Bytes of an answer at most.
const LONGEST: u64 = 8 << 20;

/// Which process is looked into.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct WatchArgs {
    /// The process to look into, if there are several; without it they are listed
    #[arg(long, value_name = "PID", conflicts_with = "socket")]
    pid: Option<u32>,

    /// Its socket, where it is not in the usual place: /run/linerate/PID.sock
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
}

/// Why another process cannot be looked into.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is none.
    #[error(
        "no process of linerate to look into: start one without --no-inspect; only root sees those of other users{}", refused(.0)
    )]
    None(
        /// Why some that are there could not be reached.
        Vec<String>,
    ),
    /// There are several.
    #[error("there are several processes: say which with --pid: {}", list(.0))]
    Several(Vec<About>),
    /// This one is not there.
    #[error("--pid {pid}: {}", none_of(.others))]
    NotThere {
        /// Its number.
        pid: u32,
        /// What there is.
        others: Vec<About>,
    },
    /// It cannot be reached.
    #[error("{}: {error}: see that the process runs, and that you are its user or root", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It has ended.
    #[error("the process has ended")]
    Ended,
    /// It says nothing.
    #[error("the process has not answered for 5 s: it is stopped, or others look into it all the time")]
    Silent,
    /// It speaks otherwise.
    #[error("the process answers what this linerate does not understand: {0}: use the one that it was started by")]
    Strange(String),
    /// It refuses.
    #[error("the process answers: {0}")]
    Refused(String),
    /// Something is wrong with the socket.
    #[error("the process's socket: {0}")]
    Io(io::Error),
}

fn refused(why: &[String]) -> String {
    why.iter().fold(String::new(), |text, why| text + "; " + why)
}

fn list(processes: &[About]) -> String {
    let one = |about: &About| match about.command.char_indices().nth(COMMAND) {
        None => format!("{} ({})", about.pid, about.command),
        Some((end, _)) => format!("{} ({}…)", about.pid, &about.command[..end]),
    };
    processes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn none_of(others: &[About]) -> String {
    match others {
        [] => "no such process can be looked into, nor any other".to_owned(),
        others => format!("no such process can be looked into; there are {}", list(others)),
    }
}

/// The outcome of a question.
pub type Asked<T> = Result<T, AskError>;

/// A process that can be asked.
#[derive(Debug)]
pub struct Process {
    stream: BufReader<UnixStream>,
    about: About,
}

/// The process that is meant, or the only one that there is.
pub fn find(which: &WatchArgs) -> Asked<Process> {
    if let Some(socket) = &which.socket {
        return Process::at(socket);
    }
    find_in(&place::directories(), which.pid)
}

/// The process with this number.
pub fn with_pid(pid: u32) -> Asked<Process> {
    find_in(&place::directories(), Some(pid))
}

fn find_in(directories: &[PathBuf], pid: Option<u32>) -> Asked<Process> {
    let (mut sockets, mut found, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for directory in directories {
        match place::sockets(directory) {
            Ok(some) => sockets.extend(some),
            Err(error) => refused.push(format!("{}: {error}", directory.display())),
        }
    }
    // Others are not asked if the one that is meant is there.
    sockets.sort_by_key(|(named, _)| pid != Some(*named));
    for (named, path) in sockets {
        match Process::at(&path) {
            Ok(process) if pid == Some(named) => return Ok(process),
            Ok(process) => found.push(process),
            // It was left behind, or has just ended.
            Err(AskError::Ended) => {}
            Err(AskError::Unreachable { error, .. }) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) if pid == Some(named) => return Err(error),
            Err(error) => refused.push(error.to_string()),
        }
    }
    let abouts = |found: Vec<Process>| found.into_iter().map(|process| process.about).collect();
    match pid {
        Some(pid) => Err(AskError::NotThere { pid, others: abouts(found) }),
        None if found.len() > 1 => Err(AskError::Several(abouts(found))),
        None => found.pop().ok_or(AskError::None(refused)),
    }
}

impl Process {
    fn at(path: &Path) -> Asked<Process> {
        let unreachable = |error| AskError::Unreachable { path: path.to_owned(), error };
        let stream = UnixStream::connect(path).map_err(unreachable)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(unreachable)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(unreachable)?;
        let nobody = About { pid: 0, program: String::new(), command: String::new(), workers: 0 };
        let mut process = Process { stream: BufReader::new(stream), about: nobody };
        match process.ask(Ask::About)? {
            Answer::About(about) => process.about = About { command: shown(&about.command), ..about },
            other => return Err(unexpected(&other)),
        }
        Ok(process)
    }

    /// What it is.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// What its workers have counted.
    pub fn counters(&mut self) -> Asked<Counters> {
        match self.ask(Ask::Counters)? {
            Answer::Counters(mut counters) => {
                for value in counters.workers.iter_mut().flatten().flat_map(|worker| worker.values_mut()) {
                    if let Value::Each(each) = value {
                        *each = std::mem::take(each).into_iter().map(|(text, value)| (shown(&text), value)).collect();
                    }
                }
                Ok(counters)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The connections of `worker`, a page of them that begins with the slot `from`.
    pub fn connections(&mut self, worker: usize, from: usize) -> Asked<Connections> {
        match self.ask(Ask::Connections { worker, from })? {
            // One that never comes to an end is none of ours.
            Answer::Connections(page) if page.next.is_some_and(|next| next <= from) => {
                Err(AskError::Strange("pages that go back".to_owned()))
            }
            Answer::Connections(mut page) => {
                page.connections.iter_mut().for_each(|connection| connection.state = shown(&connection.state));
                Ok(page)
            }
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&mut self, ask: Ask) -> Asked<Answer> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => AskError::Silent,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => AskError::Ended,
            _ => AskError::Io(error),
        };
        self.stream.get_mut().write_all(&Line::of(ask)).map_err(failed)?;
        let mut line = Vec::new();
        Read::by_ref(&mut self.stream).take(LONGEST).read_until(b'\n', &mut line).map_err(failed)?;
        if line.last() != Some(&b'\n') {
            return Err(if (line.len() as u64) < LONGEST {
                AskError::Ended
            } else {
                AskError::Strange("too much".into())
            });
        }
        let line: Line<Answer> =
            serde_json::from_slice(&line).map_err(|error| AskError::Strange(shown(&error.to_string())))?;
        match line {
            Line { version, .. } if version != VERSION => Err(AskError::Strange(format!("version {version}"))),
            Line { said: Answer::Error(said), .. } => Err(AskError::Refused(shown(&said))),
            Line { said, .. } => Ok(said),
        }
    }
}

fn unexpected(answer: &Answer) -> AskError {
    let what = match answer {
        Answer::About(_) => "about",
        Answer::Counters(_) => "counters",
        Answer::Connections(_) => "connections",
        Answer::Error(_) => "error",
    };
    AskError::Strange(format!("{what}, which was not asked for"))
}

/// Text of another process, which may be another user's, without what a terminal would take for orders.
pub fn shown(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

#[cfg(test)]
mod tests;
