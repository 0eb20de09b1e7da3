//! Fuzz targets of the key-value service: hostile input, and the properties that hold for any input.
//!
//! Each target is a function of bytes. The fuzzer calls it with generated inputs. A test (`apps/kv/tests/kv/corpus.rs`,
//! which includes this file) calls it with the stored corpora and seeded mutations of them.

#[path = "../../../../stack/fuzz/src/corpus.rs"]
mod corpus;
mod cuts;
mod datagrams;
mod memcached;
#[path = "../../tests/kv/service/net.rs"]
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
