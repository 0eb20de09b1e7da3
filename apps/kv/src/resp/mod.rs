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

/// Encodes a request.
#[cfg(test)]
pub(crate) fn encoded<T: AsRef<[u8]>>(args: &[T]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}
