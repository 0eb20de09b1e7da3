//! `linerate kv` with redis-cli, redis-benchmark, redis-py, node-redis and pymemcache, which pass the same checks with
//! Redis and memcached, and with its own load.

pub mod clients;
mod cluster;
#[cfg(feature = "dpdk")]
mod links;
mod load;
mod load_udp;
mod redis_benchmark;
mod redis_cli;
mod sockets;
mod usage;
