//! What is refused.

use thiserror::Error;

/// Why something was not done, in Redis' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    /// What is under the key is of another kind.
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    /// There is no memory for it, and nothing may go.
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    Full,
    /// A key or the name of a field longer than [`Store::LONGEST_KEY`](crate::store::Store::LONGEST_KEY).
    #[error("ERR key or field is too long")]
    TooLong,
}
