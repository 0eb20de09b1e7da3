//! Over the kernel's sockets, on the loopback interface.

use super::clients::{Client, Server};
use super::program::{Program, linerate, turn, wait_for};
use super::unused_address::unused_address;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

const PASSWORD: &str = "open sesame";

/// On one worker with a password, and on two without.
fn serves(test: &str, client: Client) {
    if !client.is_installed(test) {
        return;
    }
    let _turn = turn();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{PASSWORD}").unwrap();
    let password = format!("--password-file {}", file.path().display());
    for (workers, password, more) in [(1, Some(PASSWORD), &password[..]), (2, None, "")] {
        if std::thread::available_parallelism().unwrap().get() < workers {
            eprintln!("skipped: {test} needs {workers} cores for {workers} workers");
            continue;
        }
        let [redis, memcached] = [unused_address(), unused_address()];
        let serve = format!("kv serve --via kernel --listen {redis} --memcached {memcached} --memory 256m --json");
        let program = Program::serve(linerate(&format!("{serve} --workers {workers} {more}")));
        client.try_on(&Server { redis, memcached, password });
        let ended = program.stop();
        assert!(ended.status.success() && ended.json()["accepted"].as_u64() > Some(0), "{ended:?}");
    }
}

#[test]
fn redis_cli_works() {
    serves("redis_cli_works", Client::RedisCli);
}

#[test]
fn redis_benchmark_works() {
    serves("redis_benchmark_works", Client::RedisBenchmark);
}

#[test]
fn redis_py_works() {
    serves("redis_py_works", Client::RedisPy);
}

#[test]
fn node_redis_works() {
    serves("node_redis_works", Client::NodeRedis);
}

#[test]
fn pymemcache_works() {
    serves("pymemcache_works", Client::Pymemcache);
}

/// Starts `program`, a server of others on `address`; says so if it is not installed.
fn theirs(program: &str, args: &str, address: SocketAddr) -> Option<Program> {
    if Command::new(program).arg("--version").output().is_err() {
        eprintln!("skipped: it needs {program}: apt-get install {program}");
        return None;
    }
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    let program = Program::start(command);
    wait_for("its port", || TcpStream::connect(address).is_ok());
    Some(program)
}

#[test]
fn what_is_relied_on_holds_of_redis_and_memcached() {
    let test = "what_is_relied_on_holds_of_redis_and_memcached";
    let _turn = turn();
    let [redis, memcached] = [unused_address(), unused_address()];
    let server = Server { redis, memcached, password: Some("sesame") };
    let args = format!("--bind {} --port {} --requirepass sesame --appendonly no --save", redis.ip(), redis.port());
    if let Some(_redis) = theirs("redis-server", &args, redis) {
        for client in [Client::RedisPy, Client::NodeRedis, Client::RedisCli, Client::RedisBenchmark] {
            if client.is_installed(test) {
                client.try_on(&server);
            }
        }
    }
    let args = format!("-l {} -p {} -U 0 -u root", memcached.ip(), memcached.port());
    if let Some(_memcached) = theirs("memcached", &args, memcached).filter(|_| Client::Pymemcache.is_installed(test)) {
        Client::Pymemcache.try_on(&server);
    }
}
