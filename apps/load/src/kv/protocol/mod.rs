//! Requests and replies of both protocols.

mod numbers;
mod query;
mod reply;
mod request;
mod request_queue;

pub use numbers::{Malformed, NumbersReply, parse as parse_numbers};
pub use query::Query;
pub use reply::{Expected, Reply, RequestResult, Wrong, check, shown};
pub use request::{Op, Protocol, Request};
pub use request_queue::RequestQueue;
