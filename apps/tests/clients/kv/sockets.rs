//! Clients over kernel sockets on the loopback interface.

use super::clients::{Client, Server};
use crate::common::{serve, stop};
use crate::tls::certificates::Certificates;
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::program::Program;
use linerate_harness::rerun::{has_cores, is_installed};
use linerate_harness::tests;
use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;

const PASSWORD: &str = "open sesame";

/// Tests one worker with a password, and two workers without.
fn serves(client: Client) {
    if !client.is_installed() {
        return;
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{PASSWORD}").unwrap();
    let password = format!("--password-file {}", file.path().display());
    for (workers, password, more) in [(1, Some(PASSWORD), &password[..]), (2, None, "")] {
        if !has_cores(workers) {
            continue;
        }
        let [redis, memcached] = [unused_address(), unused_address()];
        let args = format!("--via kernel --listen {redis} --memcached {memcached} --memory 256m --json");
        let program = serve("kv", &format!("{args} --workers {workers} {more}"));
        client.try_on(&Server { redis, memcached, password });
        stop(program);
    }
}

/// Tests ports with TLS, next to plain ones.
fn serves_tls(client: Client) {
    let Some(certificates) = Certificates::new().filter(|_| client.is_installed()) else { return };
    let [redis, memcached, plain, plain_memcached] = [(); 4].map(|()| unused_address());
    let tls = format!("--listen-tls {redis} --memcached-tls {memcached} {}", certificates.server());
    let args = format!("--via kernel --listen {plain} --memcached {plain_memcached} --memory 256m --json");
    let program = serve("kv", &format!("{args} {tls}"));
    client.run_script(&Server { redis, memcached, password: None }, Some(&certificates.file("ca.pem")));
    client.run_script(&Server { redis: plain, memcached: plain_memcached, password: None }, None);
    stop(program);
}

tests! {
    redis_py_works_over_tls => serves_tls(Client::RedisPy);
    node_redis_works_over_tls => serves_tls(Client::NodeRedis);
    pymemcache_works_over_tls => serves_tls(Client::Pymemcache);
    redis_cli_works => serves(Client::RedisCli);
    redis_benchmark_works => serves(Client::RedisBenchmark);
    redis_py_works => serves(Client::RedisPy);
    node_redis_works => serves(Client::NodeRedis);
    pymemcache_works => serves(Client::Pymemcache);
}

/// Starts `program`, a server to compare with, on `address`. Prints a message and returns `None` if it is not
/// installed.
pub fn external_server(program: &str, args: &str, address: SocketAddr) -> Option<Program> {
    if !is_installed(program, &["--version"], program) {
        return None;
    }
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    let server = Program::start(command);
    wait_until_listening(address, program).unwrap();
    Some(server)
}

/// Checks the tests themselves against Redis and memcached.
#[test]
#[ignore = "tests Redis and memcached, not Linerate: ./run test --all"]
fn clients_work_with_redis_and_memcached() {
    let [redis, memcached] = [unused_address(), unused_address()];
    let server = Server { redis, memcached, password: Some("sesame") };
    let args = format!("--bind {} --port {} --requirepass sesame --appendonly no --save", redis.ip(), redis.port());
    if let Some(_redis) = external_server("redis-server", &args, redis) {
        for client in [Client::RedisPy, Client::NodeRedis, Client::RedisCli, Client::RedisBenchmark] {
            if client.is_installed() {
                client.try_on(&server);
            }
        }
    }
    let args = format!("-l {} -p {} -U 0 -u root", memcached.ip(), memcached.port());
    if let Some(_memcached) =
        external_server("memcached", &args, memcached).filter(|_| Client::Pymemcache.is_installed())
    {
        Client::Pymemcache.try_on(&server);
    }
}
