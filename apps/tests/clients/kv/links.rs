//! Clients over AF_XDP on a veth pair and over TAP, in namespaces.

use super::clients::{Client, Server};
use crate::common::stop;
use crate::common::wire::{Wire, servers};
use linerate_harness::program::ip;
use linerate_harness::rerun::in_namespaces;
use linerate_harness::tests;

const MEMCACHED: &str = "10.9.0.2:11211";

/// Tests one worker over IPv4 and two workers over IPv6.
fn serves(wire: Wire, client: Client) {
    if !client.is_installed() {
        return;
    }
    let cores = std::thread::available_parallelism().unwrap().get();
    in_namespaces(|namespace| {
        for (workers, redis) in (1..=cores).zip(servers()) {
            wire.connect_queues(namespace, workers);
            let more = format!("--memcached {MEMCACHED} --memory 256m --workers {workers}");
            let program = wire.serve(&format!("kv {more}"), namespace);
            client.try_on(&Server { redis, memcached: MEMCACHED.parse().unwrap(), password: None });
            stop(program);
            if let Wire::AfXdp = wire {
                ip("link del lr0");
            }
        }
    });
}

tests! {
    #[ignore = "over sockets by default: ./run test --all"]
    redis_cli_works_over_af_xdp => serves(Wire::AfXdp, Client::RedisCli);
    #[ignore = "over sockets by default: ./run test --all"]
    redis_benchmark_works_over_af_xdp => serves(Wire::AfXdp, Client::RedisBenchmark);
    redis_py_works_over_af_xdp => serves(Wire::AfXdp, Client::RedisPy);
    #[ignore = "over sockets by default: ./run test --all"]
    node_redis_works_over_af_xdp => serves(Wire::AfXdp, Client::NodeRedis);
    pymemcache_works_over_af_xdp => serves(Wire::AfXdp, Client::Pymemcache);
    redis_cli_works_over_tap => serves(Wire::Tap, Client::RedisCli);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    redis_benchmark_works_over_tap => serves(Wire::Tap, Client::RedisBenchmark);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    redis_py_works_over_tap => serves(Wire::Tap, Client::RedisPy);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    node_redis_works_over_tap => serves(Wire::Tap, Client::NodeRedis);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    pymemcache_works_over_tap => serves(Wire::Tap, Client::Pymemcache);
}
