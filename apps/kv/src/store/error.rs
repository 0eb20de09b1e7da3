//! Errors of store operations.

use thiserror::Error;

/// Reason for refusing an operation, in the words of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    /// The value has another type.
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    /// Memory is full and nothing can be evicted.
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    Full,
    /// The key or field name is longer than [`Store::LONGEST_KEY`](crate::store::Store::LONGEST_KEY).
    #[error("ERR key or field is too long")]
    TooLong,
}
