//! Fuzz targets of the key-value service. The fuzzer calls them with generated inputs.

#[path = "../../tests/kv/service/net.rs"]
#[allow(dead_code, reason = "the tests of the service use the rest")]
mod net;
#[path = "../../tests/kv/redis/reply.rs"]
#[allow(dead_code, reason = "the comparison with Redis uses the rest")]
mod reply;
mod targets;

pub use targets::{Target, datagrams, memcached, resp, sessions};
