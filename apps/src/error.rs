//! What ends a command.

use crate::commands::compare::CompareError;
use crate::commands::doctor::DoctorError;
use crate::commands::hugepages::HugepagesError;
use crate::inspect;
use linerate_bypass::arena::ArenaError;
use linerate_bypass::{ConnectError, Via};
use linerate_load::Errors;
use linerate_net as net;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why a command failed, in one line that names the thing and says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network could not be opened, or failed.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// Nobody can look in.
    #[error(transparent)]
    Inspect(#[from] inspect::Error),
    /// Another process cannot be looked into.
    #[error(transparent)]
    Ask(#[from] inspect::AskError),
    /// There can be no screen.
    #[error("the terminal: {0}: use --once")]
    Terminal(io::Error),
    /// A load could open none of its connections.
    #[error("{remote}: {}: start a server there, or mend the way to it", reason(.why))]
    NoConnection {
        /// The server.
        remote: SocketAddr,
        /// Why the last of them could not be opened; `None` if nothing was heard in time.
        why: Option<ConnectError>,
    },
    /// Nobody gives frames back.
    #[error("{0}: no frame came back in 10 s: run raw reflect at the other end, or mend the link")]
    NoReflector(Via),
    /// Frames did not come back as they were sent.
    #[error(
        "{lost} requests were lost, {corrupt} came back with wrong bytes: the figures are of the others; look at the way, or let fewer \
             be on their way with --depth"
    )]
    Frames {
        /// They did not come back in time.
        lost: u64,
        /// They came back with other bytes.
        corrupt: u64,
    },
    /// Requests to a key-value server in datagrams did not all go well.
    #[error("{}", astray(.lost, .corrupt, .refused, .missing, .first))]
    Datagrams {
        /// They were not answered in time.
        lost: u64,
        /// They were answered with other bytes than they had to be.
        corrupt: u64,
        /// They were answered with an error.
        refused: u64,
        /// They asked for something that was not there and had to be.
        missing: u64,
        /// What the first of it was, but for what was lost.
        first: Option<String>,
    },
    /// A server exports nothing.
    #[error("{0} exports nothing: start it with kv serve --export BYTES")]
    NoExport(SocketAddr),
    /// A server that is prepared for a load answers nothing.
    #[error("{remote}: nothing was answered for {limit:?} while the server was prepared: look at it and the way to it")]
    Stalled {
        /// The server.
        remote: SocketAddr,
        /// How long was waited.
        limit: Duration,
    },
    /// What a load is asked to do cannot be done.
    #[error("{0}")]
    Usage(String),
    /// A load was measured, and something went wrong in it.
    #[error("{}: the figures are of what remained; look at the server and the way to it", wrong(.errors, .first))]
    Load {
        /// What went wrong, in numbers.
        errors: Errors,
        /// What the first of it was, where that can be said.
        first: Option<String>,
    },
    /// There is no memory for keys and values.
    #[error("--memory: {0}")]
    Arena(#[from] ArenaError),
    /// A server has no counter.
    #[error("{remote} has no counter {name}: {said}")]
    NoCounter {
        /// The server.
        remote: SocketAddr,
        /// What it was to be called.
        name: String,
        /// What the server said.
        said: String,
    },
    /// Counters are not what operations made of them.
    #[error(
        "the counters grew by {grew}: operations that were answered added {added}, and {unknown} were not answered; something counted \
         wrong, or others counted meanwhile"
    )]
    Miscounted {
        /// By how much they grew.
        grew: u64,
        /// What operations added that were answered.
        added: u64,
        /// Operations that were not answered, because their connections were lost.
        unknown: u64,
    },
    /// There is no memory for counters.
    #[error("--counters {count}: {error}: let there be fewer, or give the machine more memory")]
    Counters {
        /// How many there were to be.
        count: u32,
        /// What was wrong.
        error: std::io::Error,
    },
    /// There is no memory to export strings in.
    #[error("--export {bytes}: {error}: give it less, or the machine more")]
    Export {
        /// How much it was to be.
        bytes: u64,
        /// What was wrong.
        error: io::Error,
    },
    /// There is no password to be had from a file.
    #[error("--password-file {}: {error}: write the password into its first line", path.display())]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        error: io::Error,
    },
    /// `linerate compare` failed.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// `linerate doctor` failed.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// `linerate hugepages` failed.
    #[error(transparent)]
    Hugepages(#[from] HugepagesError),
    /// `linerate rdma` failed.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Rdma(#[from] crate::commands::rdma::RdmaError),
    /// The signals could not be caught.
    #[error("signals: {0}")]
    Signals(io::Error),
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Output(io::Error),
}

impl Error {
    /// The program's exit status: 2 for what the arguments alone show to be wrong, 1 for the rest.
    pub fn status(&self) -> u8 {
        match self {
            Error::Net(error) if error.is_usage() => 2,
            Error::Usage(_) | Error::Compare(CompareError::Usage(_)) => 2,
            Error::Ask(inspect::AskError::Several(_)) => 2,
            #[cfg(feature = "rdma")]
            Error::Rdma(crate::commands::rdma::RdmaError::Usage(_)) => 2,
            _ => 1,
        }
    }
}

/// What went wrong in a load.
fn wrong(errors: &Errors, first: &Option<String>) -> String {
    let mut said = format!(
        "{} errors: {} connections brought wrong bytes, {} were lost, {} refused, {} not opened in time",
        errors.total(),
        errors.corrupt,
        errors.lost,
        errors.refused,
        errors.unopened
    );
    for (count, what) in [
        (errors.refusals, "requests were answered with an error"),
        (errors.missing, "found nothing where there had to be something"),
    ] {
        if count > 0 {
            said += &format!(", {count} {what}");
        }
    }
    if let Some(first) = first {
        said += &format!("; the first: {first}");
    }
    said
}

/// What went wrong with requests in datagrams.
fn astray(lost: &u64, corrupt: &u64, refused: &u64, missing: &u64, first: &Option<String>) -> String {
    let mut said = format!("{lost} requests were lost, {corrupt} were answered with wrong bytes");
    for (count, what) in [(refused, "with an error"), (missing, "that nothing is there, and had to be")] {
        if *count > 0 {
            said += &format!(", {count} {what}");
        }
    }
    if let Some(first) = first {
        said += &format!("; the first: {first}");
    }
    said + ": the figures are of the others; look at the server and the way to it, or let fewer be on their way with --depth"
}

fn reason(why: &Option<ConnectError>) -> String {
    why.unwrap_or(ConnectError::TimedOut).to_string()
}
