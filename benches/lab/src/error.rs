//! What ends a case.

use std::io;

/// Why something did not come about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A signal asked the lab to end.
    #[error("interrupted")]
    Interrupted,
    /// This machine lacks what the lab needs.
    #[error("{0}")]
    Unable(String),
    /// Something is not as it should be.
    #[error("{0}")]
    Failed(String),
    /// A system call failed.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// How it failed.
        error: io::Error,
    },
    /// A report is not what it should be.
    #[error("no report: {0}")]
    Json(#[from] serde_json::Error),
}

/// What most of the lab returns.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of which this is to be said.
pub fn failed<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Failed(text.into()))
}

/// Says of a system call what it was for.
pub trait Context<T> {
    /// The same, with `what` in its error.
    fn context(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| Error::Io { what: what.into(), error: error.into() })
    }
}
