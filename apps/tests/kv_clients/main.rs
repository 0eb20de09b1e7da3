//! Common clients with `linerate kv serve` over kernel sockets and links: redis-cli, redis-benchmark, redis-py,
//! node-redis and pymemcache.
//!
//! The same checks run against Redis and memcached. Clients that are not installed are skipped with a message, as are
//! links without root.

#[path = "../net/program.rs"]
mod program;
#[cfg(feature = "dpdk")]
#[path = "../net/wire.rs"]
#[expect(dead_code, reason = "each test target uses a part of it")]
mod wire;

mod clients;
mod cluster;
#[cfg(feature = "dpdk")]
mod links;
mod redis_benchmark;
mod redis_cli;
mod sockets;
mod usage;
