//! Requests and replies of both protocols on one connection.

mod numbers;
mod query;
mod reply;
mod request;
mod request_queue;
mod stream;

pub use numbers::{Malformed, NumbersReply, parse as parse_numbers};
pub use query::Query;
pub use reply::{Expected, Reply, RequestResult, Wrong, check, shown};
pub use request::{Op, Protocol, Request};
pub use stream::{Stream, first_byte_sent};
