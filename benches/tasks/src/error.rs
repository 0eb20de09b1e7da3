use std::io;

/// End of a step or of a command other than success.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Stopped by a signal.
    #[error("interrupted")]
    Interrupted,
    /// A requirement is missing on this machine.
    #[error("skipped: {0}")]
    Skipped(String),
    /// Wrong argument, with the right ones.
    #[error("{0}")]
    Usage(String),
    /// Failure, with its description.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// Creates a [`Error::Failed`].
    pub fn failed(why: impl Into<String>) -> Error {
        Error::Failed(why.into())
    }

    /// Creates a [`Error::Skipped`].
    pub fn skipped(why: impl Into<String>) -> Error {
        Error::Skipped(why.into())
    }
}

impl From<linerate_harness::Error> for Error {
    fn from(error: linerate_harness::Error) -> Error {
        match error {
            linerate_harness::Error::Interrupted => Error::Interrupted,
            error => Error::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Failed(error.to_string())
    }
}
