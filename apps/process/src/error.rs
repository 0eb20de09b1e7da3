use std::io;
use std::time::Duration;

/// Failure of a program or of a wait.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program could not be started.
    #[error("{program} could not be started: {error}")]
    Start {
        program: String,
        /// Reason.
        error: io::Error,
    },
    /// The program failed or ended early.
    #[error("{command} {failure}:\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Description of the failure.
        failure: String,
        /// Its standard error.
        output: String,
    },
    /// The output has an unexpected form.
    #[error("{command} printed something unexpected: {printed}")]
    Unexpected {
        /// The command line.
        command: String,
        /// The output.
        printed: String,
    },
    /// A condition was not met in time.
    #[error("{condition}: not reached within {limit:?}")]
    Timeout {
        condition: String,
        /// Time limit.
        limit: Duration,
    },
    /// Interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
}
