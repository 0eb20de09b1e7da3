//! memcached's protocol, as memcached 1.6 speaks it: the text commands and the meta commands
//! (<https://github.com/memcached/memcached/blob/1.6.18/doc/protocol.txt>).
//!
//! Where it differs from memcached itself:
//! - Times are exact to the millisecond, and what is to expire at once is not seen from then on.
//! - A value in the arena is no number, whatever it begins with.
//! - A request that is refused for one of its keys or flags does nothing, and not the part in front of it.
//! - `ma` with a new time to live gives it to the number also where that gets longer.
//! - What is new is not asked for memory before it is clear that it is stored.
//! - A line that is longer than 2 KB and not of keys, or than 1 MB, closes the connection in however few pieces it comes.
//! - Nothing is said of memcached's own insides: slabs, their classes and the crawler.

mod base64;
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

pub use counts::{Count, Counts};
pub use execute::{Context, Flow, execute};
pub use parse::{Data, Limits, LongLine, Parsed, Parser};
pub use request::Request;
pub use stats::{Facts, Server};

/// The keyspace of memcached clients.
pub const SPACE: u8 = 16;
/// Bytes of the longest key, in base64 or not.
const KEY: usize = 250;
/// The version of the memcached whose protocol this is, which clients look at.
const VERSION_NUMBER: &str = "1.6.18";
const VERSION: &str = "VERSION 1.6.18\r\n";
