//! Hostile input, and the properties that hold for any input. Each target is a function of bytes.
//!
//! A test (`apps/kv/tests/kv/corpus.rs`, which includes this module) calls the targets with the stored corpora and
//! seeded mutations of them.

#[path = "../../../../../stack/fuzz/src/corpus.rs"]
mod corpus;
mod cuts;
mod datagrams;
mod memcached;
mod resp;
mod sessions;

pub use corpus::Target;
pub use datagrams::datagrams;
pub use memcached::memcached;
pub use resp::resp;
pub use sessions::sessions;
