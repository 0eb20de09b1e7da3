//! What ends a command.

use crate::commands::doctor::DoctorError;
use crate::commands::hugepages::HugepagesError;
use crate::load::Errors;
use crate::net;
use linerate_bypass::ConnectError;
use std::io;
use std::net::SocketAddr;

/// Why a command failed, in one line that names the thing and says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network could not be opened, or failed.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// A load could open none of its connections.
    #[error("{remote}: {}: start a server there, or mend the way to it", reason(.why))]
    NoConnection {
        /// The server.
        remote: SocketAddr,
        /// Why the last of them could not be opened; `None` if nothing was heard in time.
        why: Option<ConnectError>,
    },
    /// A load was measured, and something went wrong in it.
    #[error(
        "{} errors: {} connections brought wrong bytes, {} were lost, {} refused, {} not opened in time: \
         the figures are of what remained; look at the server and the way to it",
        .0.total(), .0.corrupt, .0.lost, .0.refused, .0.unopened
    )]
    Load(Errors),
    /// `linerate doctor` failed.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// `linerate hugepages` failed.
    #[error(transparent)]
    Hugepages(#[from] HugepagesError),
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
            _ => 1,
        }
    }
}

fn reason(why: &Option<ConnectError>) -> String {
    why.unwrap_or(ConnectError::TimedOut).to_string()
}
