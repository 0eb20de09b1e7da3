//! Clients that people use, of `linerate kv serve`: redis-cli, redis-benchmark, redis-py, node-redis and pymemcache, on the
//! kernel's sockets and over links.
//!
//! What they rely on holds of Redis and memcached as well, which is tested in the same way. A client that is not installed
//! is skipped, and so are links without root; the tests say so.

#[cfg(feature = "dpdk")]
#[path = "../net/namespace.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod namespace;
#[path = "../net/program.rs"]
#[allow(dead_code, reason = "each target of tests uses a part of it")]
mod program;
#[path = "../../../benches/src/unused_address.rs"]
mod unused_address;
#[cfg(feature = "dpdk")]
#[path = "../net/wire.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod wire;

mod clients;
#[cfg(feature = "dpdk")]
mod links;
mod redis_benchmark;
mod redis_cli;
mod sockets;
mod usage;
