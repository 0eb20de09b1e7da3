//! RESP, the protocol of Redis: requests and replies (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

mod inline;
pub mod number;
mod parse;

pub use parse::{Args, Limits, Parsed, Parser, ProtocolError};
