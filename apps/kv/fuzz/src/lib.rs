//! Hostile input for the key-value service: what is done with an input, and what must hold whatever the input.
//!
//! Each target is an ordinary function of bytes. The fuzzer calls it with what it makes up, and an ordinary test
//! (`apps/kv/tests/corpus.rs`, which includes this file) with the corpora that are kept and with seeded mutations of them.

#[path = "../../../../stack/fuzz/src/corpus.rs"]
mod corpus;
mod cuts;
mod datagrams;
mod memcached;
#[path = "../../tests/service/net.rs"]
#[allow(dead_code, reason = "the tests of the service use the rest")]
mod net;
mod replies;
mod resp;
mod sessions;

pub use corpus::Target;
pub use datagrams::datagrams;
pub use memcached::memcached;
pub use resp::resp;
pub use sessions::sessions;
