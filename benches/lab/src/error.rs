//! Errors of the lab.

use std::io;

/// Error of a case or of the lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lab was interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
    /// The machine does not meet the lab's requirements.
    #[error("{0}")]
    Unable(String),
    /// A check failed.
    #[error("{0}")]
    Failed(String),
    /// A system call failed.
    #[error("{operation}: {error}")]
    Io {
        /// Failed operation.
        operation: String,
        /// Error of the system.
        error: io::Error,
    },
    /// A report is malformed.
    #[error("no report: {0}")]
    Json(#[from] serde_json::Error),
}

/// Result with the lab's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns a failure with this text.
pub fn failed<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Failed(text.into()))
}

/// Adds the operation to an I/O error.
pub trait Context<T> {
    /// Adds `operation` to the error.
    fn context(self, operation: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, operation: impl Into<String>) -> Result<T> {
        self.map_err(|error| Error::Io { operation: operation.into(), error: error.into() })
    }
}
