//! Errors of store operations.

use thiserror::Error;

/// Reason for refusing an operation, in the words of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    Full,
    #[error("ERR key or field is too long")]
    TooLong,
}
