//! RESP, the protocol of Redis: requests and replies (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

mod args;
pub mod bulk;
mod inline;
pub mod number;
mod parse;
mod reply;

pub use args::{Args, OwnedArgs};
pub use parse::{Limits, Parsed, Parser, ProtocolError};
pub use reply::{OK, Protocol, Reply};
