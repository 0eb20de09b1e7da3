//! memcached protocol of version 1.6: text commands and meta commands
//! (<https://github.com/memcached/memcached/blob/1.6.18/doc/protocol.txt>).
//!
//! Differences from memcached:
//! - Times are exact to the millisecond, and an item that expires at once is invisible from then on.
//! - A value in the arena is not a number, even if it starts with digits.
//! - A request with an invalid key or flag does nothing. memcached runs the part before it.
//! - `ma` applies a new time to live also if it makes the number longer.
//! - Memory for a new item is requested only once it is clear that the item will be stored.
//! - A line of more than 2 KB that does not list keys, or of more than 1 MB, closes the connection, regardless of the
//!   number of segments in which it arrives.
//! - `stats` reports nothing about memcached's internals: slabs, their classes and the crawler.

mod binary_key;
mod counts;
mod execute;
mod flags;
mod line;
mod meta;
mod parse;
mod put;
mod request;
mod stats;
pub mod udp;
mod words;

pub use counts::{Count, Counts, WorkerCounts};
pub use execute::{Context, Flow, execute};
pub use parse::{Data, InvalidInput, Limits, Parsed, Parser};
pub use request::Request;
pub use stats::{Server, ServerState};
pub use words::Time;

use crate::store::DATABASES;

/// Keyspace of memcached clients, after the databases of Redis clients.
pub const SPACE: u8 = DATABASES;
/// Length limit of a key, encoded or not.
const KEY: usize = 250;
/// Version of memcached reported to clients.
const VERSION_NUMBER: &str = "1.6.18";
const VERSION: &str = "VERSION 1.6.18\r\n";
