//! Client of the introspection socket of another process.

use super::runtime_dir;
use super::wire::{About, Connections, Counters, Line, Query, Reply, VERSION, Value};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for a reply: a worker has one second, and other clients may be served first.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of characters of a command in a list of processes.
const COMMAND_WIDTH: usize = 60;
/// Maximum length of a reply in bytes.
const MAX_REPLY: u64 = 8 << 20;

/// Selection of the process to inspect.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct TargetArgs {
    /// Process id [default: the only process; if there are several, they are listed]
    #[arg(long, value_name = "PID", conflicts_with = "socket")]
    pid: Option<u32>,

    /// Introspection socket of the process [default: /run/linerate/PID.sock]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
}

/// Error in querying another process.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// No process was found.
    #[error(
        "no linerate process found: start one without --no-inspect; only root sees processes of other users{}",
        reasons(.0)
    )]
    None(Vec<String>),
    /// Several processes were found.
    #[error("several processes: select one with --pid: {}", list(.0))]
    Several(Vec<About>),
    /// The process was not found.
    #[error("--pid {pid}: {}{}", not_found(.others), reasons(.unreachable))]
    NotFound { pid: u32, others: Vec<About>, unreachable: Vec<String> },
    /// The socket cannot be connected to.
    #[error("{}: {error}: check that the process runs and that you are its user or root", path.display())]
    Unreachable { path: PathBuf, error: io::Error },
    /// The process closed the connection.
    #[error("the process has ended")]
    Ended,
    /// The process did not reply within the time limit.
    #[error("no reply from the process within 5 s: it is stopped, or too many clients query it")]
    Timeout,
    /// The reply is invalid or of another version.
    #[error("invalid reply from the process: {0}: use the linerate that started it")]
    Invalid(String),
    /// The process replied with an error.
    #[error("the process replies: {0}")]
    Refused(String),
    /// Reading or writing the socket failed.
    #[error("socket of the process: {0}")]
    Io(io::Error),
}

fn reasons(unreachable: &[String]) -> String {
    unreachable.iter().fold(String::new(), |text, reason| text + "; " + reason)
}

fn list(processes: &[About]) -> String {
    let one = |about: &About| match about.command.char_indices().nth(COMMAND_WIDTH) {
        None => format!("{} ({})", about.pid, about.command),
        Some((end, _)) => format!("{} ({}…)", about.pid, &about.command[..end]),
    };
    processes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn not_found(others: &[About]) -> String {
    match others {
        [] => "no such linerate process, nor any other".to_owned(),
        others => format!("no such linerate process; found {}", list(others)),
    }
}

pub type QueryResult<T> = Result<T, QueryError>;

/// Connection to another process.
#[derive(Debug)]
pub struct Process {
    stream: BufReader<UnixStream>,
    about: About,
}

/// Connects to the selected process, or to the only one.
pub fn find(target: &TargetArgs) -> QueryResult<Process> {
    if let Some(socket) = &target.socket {
        return Process::connect(socket);
    }
    find_in(&runtime_dir::directories(), target.pid)
}

/// Connects to the process with this id.
pub fn with_pid(pid: u32) -> QueryResult<Process> {
    find_in(&runtime_dir::directories(), Some(pid))
}

fn find_in(directories: &[PathBuf], pid: Option<u32>) -> QueryResult<Process> {
    let (mut sockets, mut found, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
    if directories.is_empty() {
        unreachable.push(runtime_dir::SocketError::NoRuntimeDir.to_string());
    }
    for directory in directories {
        match runtime_dir::sockets(directory) {
            Ok(some) => sockets.extend(some),
            Err(error) => unreachable.push(format!("{}: {error}", directory.display())),
        }
    }
    // The requested process comes first, so that no other is queried.
    sockets.sort_by_key(|(named, _)| pid != Some(*named));
    for (named, path) in sockets {
        match Process::connect(&path) {
            Ok(process) if pid == Some(named) => return Ok(process),
            Ok(process) => found.push(process),
            // A stale socket, or a process that has just ended.
            Err(QueryError::Ended) => {}
            Err(QueryError::Unreachable { error, .. }) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) if pid == Some(named) => return Err(error),
            Err(error) => unreachable.push(error.to_string()),
        }
    }
    let abouts = |found: Vec<Process>| found.into_iter().map(|process| process.about).collect();
    match pid {
        Some(pid) => Err(QueryError::NotFound { pid, others: abouts(found), unreachable }),
        None if found.len() > 1 => Err(QueryError::Several(abouts(found))),
        None => found.pop().ok_or(QueryError::None(unreachable)),
    }
}

impl Process {
    fn connect(path: &Path) -> QueryResult<Process> {
        let unreachable = |error| QueryError::Unreachable { path: path.to_owned(), error };
        let stream = UnixStream::connect(path).map_err(unreachable)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(unreachable)?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(unreachable)?;
        let unknown = About { pid: 0, program: String::new(), command: String::new(), workers: 0 };
        let mut process = Process { stream: BufReader::new(stream), about: unknown };
        match process.query(Query::About)? {
            Reply::About(about) => process.about = About { command: printable(&about.command), ..about },
            other => return Err(unexpected(&other)),
        }
        Ok(process)
    }

    /// Removes the time limit of replies: a stopped process replies when it continues.
    pub fn wait_without_limit(&self) -> QueryResult<()> {
        self.stream.get_ref().set_read_timeout(None).map_err(QueryError::Io)
    }

    /// Returns the description of the process.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the counters of its workers.
    pub fn counters(&mut self) -> QueryResult<Counters> {
        match self.query(Query::Counters)? {
            Reply::Counters(mut counters) => {
                for value in counters.workers.iter_mut().flatten().flat_map(|worker| worker.values_mut()) {
                    if let Value::Each(each) = value {
                        *each =
                            std::mem::take(each).into_iter().map(|(text, value)| (printable(&text), value)).collect();
                    }
                }
                Ok(counters)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Returns a page of connections of `worker`, beginning with slot `from`.
    pub fn connections(&mut self, worker: usize, from: usize) -> QueryResult<Connections> {
        match self.query(Query::Connections { worker, from })? {
            // Pages must advance, or a faulty process would never end the list.
            Reply::Connections(page) if page.next.is_some_and(|next| next <= from) => {
                Err(QueryError::Invalid("pages that do not advance".to_owned()))
            }
            Reply::Connections(mut page) => {
                page.connections.iter_mut().for_each(|connection| connection.state = printable(&connection.state));
                Ok(page)
            }
            other => Err(unexpected(&other)),
        }
    }

    fn query(&mut self, query: Query) -> QueryResult<Reply> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => QueryError::Timeout,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => QueryError::Ended,
            _ => QueryError::Io(error),
        };
        self.stream.get_mut().write_all(&Line::encode(query)).map_err(failed)?;
        let mut line = Vec::new();
        Read::by_ref(&mut self.stream).take(MAX_REPLY).read_until(b'\n', &mut line).map_err(failed)?;
        if line.last() != Some(&b'\n') {
            return Err(if (line.len() as u64) < MAX_REPLY {
                QueryError::Ended
            } else {
                QueryError::Invalid("longer than 8 MB".into())
            });
        }
        let line: Line<Reply> =
            serde_json::from_slice(&line).map_err(|error| QueryError::Invalid(printable(&error.to_string())))?;
        match line {
            Line { version, .. } if version != VERSION => Err(QueryError::Invalid(format!("version {version}"))),
            Line { body: Reply::Error(error), .. } => Err(QueryError::Refused(printable(&error))),
            Line { body, .. } => Ok(body),
        }
    }
}

fn unexpected(reply: &Reply) -> QueryError {
    let kind = match reply {
        Reply::About(_) => "about",
        Reply::Counters(_) => "counters",
        Reply::Connections(_) => "connections",
        Reply::Error(_) => "error",
    };
    QueryError::Invalid(format!("unrequested {kind}"))
}

/// Replaces control characters, which could change the terminal, in text of a process that may belong to another user.
pub fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

#[cfg(test)]
mod tests;
