//! Copies of short strings, which workers read in place of requests to each other.

use crate::net::{Client, TestServer};
use crate::{expect_reply, line, lines, request};
use linerate_kv::store::{Evictable, EvictionPolicy};
use linerate_service::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sends `bytes` to worker 0 and returns the reply of its next turn. The other worker has no turn in between.
fn at_once(server: &mut TestServer, client: Client, bytes: &[u8]) -> String {
    server.send(client, bytes);
    server.turn_of(0);
    String::from_utf8(server.received(client)).unwrap()
}

/// Returns a key of worker 1, which the client of worker 0 has set to `value`.
fn key_of_worker_1(server: &mut TestServer, client: Client, value: &str) -> String {
    let key = (0..).map(|n| format!("key{n}")).find(|key| {
        let is_remote = at_once(server, client, &line(&format!("set {key} {value}"))).is_empty();
        server.settle();
        server.received(client);
        is_remote
    });
    key.unwrap()
}

/// Returns two workers, a client of each, and a key of worker 1 with the value `old` and a copy.
fn with_copy() -> (TestServer, [Client; 2], String) {
    let mut server = TestServer::new(2);
    let clients = [server.connect(0), server.connect(1)];
    let key = key_of_worker_1(&mut server, clients[0], "old");
    expect_reply(&mut server, clients[0], &format!("get {key}"), "$3\r\nold\r\n");
    assert_eq!(at_once(&mut server, clients[0], &line(&format!("get {key}"))), "$3\r\nold\r\n");
    (server, clients, key)
}

#[test]
fn repeated_reads_take_no_turn_of_other_workers() {
    let mut server = TestServer::new(2);
    let client = server.connect(0);
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let values: Vec<String> = (0..20).map(|n| "v".repeat(n * n)).collect();
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(server.call(client, &request(&["set", key, value])), "+OK\r\n");
        let reply = format!("${}\r\n{value}\r\n", value.len());
        expect_reply(&mut server, client, &format!("get {key}"), &reply);
        assert_eq!(at_once(&mut server, client, &line(&format!("get {key}"))), reply);
    }
    let replies: String = values.iter().map(|value| format!("${}\r\n{value}\r\n", value.len())).collect();
    let gets: Vec<u8> = keys.iter().flat_map(|key| line(&format!("get {key}"))).collect();
    assert_eq!(at_once(&mut server, client, &gets), replies);
    let mget = line(&format!("mget {}", keys.join(" ")));
    assert_eq!(at_once(&mut server, client, &mget), format!("*20\r\n{replies}"));
    // Another database has other keys.
    let key = &keys[1];
    assert_eq!(server.call(client, &lines(&["select 1", &format!("get {key}")])), "+OK\r\n$-1\r\n");
}

#[test]
fn reads_and_copies_are_counted() {
    let (mut server, clients, key) = with_copy();
    let reads = |server: &TestServer, result| server.figure(0, "copy reads", result).unwrap();
    let made = server.figure(1, "copies made", "").unwrap();
    assert_eq!((reads(&server, "hit"), reads(&server, "miss"), reads(&server, "paused")), (1, 1, 0));
    assert!(made == 1 && server.figure(1, "copies bytes", "").unwrap() > 0);
    expect_reply(&mut server, clients[0], &format!("get {key}"), "$3\r\nold\r\n");
    expect_reply(&mut server, clients[0], &format!("append {key} er"), ":5\r\n");
    expect_reply(&mut server, clients[0], &format!("get {key}"), "$5\r\nolder\r\n");
    assert_eq!((reads(&server, "hit"), reads(&server, "miss")), (2, 2));
    assert_eq!(server.figure(1, "copies made", ""), Some(2));
    assert_eq!(server.figure(1, "copies evicted bytes", ""), Some(0));
    let alone = TestServer::new(1);
    assert_eq!((alone.figure(0, "copy reads", "hit"), alone.figure(0, "copies made", "")), (None, None));
}

#[test]
fn change_of_any_kind_is_seen_by_the_next_read() {
    let long = "y".repeat(5000);
    let long_reply = format!("$5000\r\n{long}\r\n");
    for (change, reply) in [
        ("set KEY new", "$3\r\nnew\r\n"),
        ("set KEY longer-than-before", "$18\r\nlonger-than-before\r\n"),
        (&format!("set KEY {long}")[..], &long_reply[..]),
        ("append KEY er", "$5\r\nolder\r\n"),
        ("setrange KEY 0 b", "$3\r\nbld\r\n"),
        ("del KEY", "$-1\r\n"),
        ("getdel KEY", "$-1\r\n"),
        ("unlink KEY", "$-1\r\n"),
        ("pexpire KEY -1", "$-1\r\n"),
        ("rename KEY other", "$-1\r\n"),
        ("flushdb", "$-1\r\n"),
        ("flushall", "$-1\r\n"),
        ("mset KEY both other both", "$4\r\nboth\r\n"),
    ] {
        for changer in [0, 1] {
            let (mut server, clients, key) = with_copy();
            let reply_to_change = server.call(clients[changer], &line(&change.replace("KEY", &key)));
            assert!(!reply_to_change.starts_with('-'), "{change}: {reply_to_change}");
            expect_reply(&mut server, clients[0], &format!("get {key}"), reply);
            let mget = format!("*2\r\n{reply}$-1\r\n");
            assert_eq!(server.call(clients[0], &lines(&[&format!("mget {key} nothing")])), mget, "{change}");
        }
    }
    for hash in [&["hset src f v", "rename src KEY"][..], &["set src v", "rename src KEY"]] {
        let (mut server, clients, key) = with_copy();
        hash.iter().for_each(|step| _ = server.call(clients[1], &line(&step.replace("KEY", &key))));
        let reply = server.call(clients[0], &line(&format!("get {key}")));
        assert!(reply.starts_with("-WRONGTYPE") || reply == "$1\r\nv\r\n", "{hash:?}: {reply}");
    }
}

#[test]
fn read_behind_a_write_of_its_pipeline_sees_the_write() {
    let (mut server, [client, _], key) = with_copy();
    let requests = lines(&[
        &format!("get {key}"),
        &format!("set {key} new"),
        &format!("get {key}"),
        &format!("mget {key}"),
        "ping",
        &format!("get {key}"),
    ]);
    let new = "$3\r\nnew\r\n";
    let replies = format!("$3\r\nold\r\n+OK\r\n{new}*1\r\n{new}+PONG\r\n{new}");
    assert_eq!(server.call(client, &requests), replies);
}

#[test]
fn copy_expires_with_its_value() {
    let (mut server, [client, _], key) = with_copy();
    expect_reply(&mut server, client, &format!("set {key} brief px 50"), "+OK\r\n");
    let get = line(&format!("get {key}"));
    assert_eq!(server.call(client, &get), "$5\r\nbrief\r\n");
    server.pass(Duration::from_millis(40));
    assert_eq!(server.call(client, &get), "$5\r\nbrief\r\n");
    server.pass(Duration::from_millis(20));
    assert_eq!(server.call(client, &get), "$-1\r\n");
}

#[test]
fn reads_of_copies_are_uses_for_lru() {
    let (mut server, [client, _], key) = with_copy();
    for _ in 0..5 {
        server.pass(Duration::from_millis(4096));
        assert_eq!(server.call(client, &line(&format!("get {key}"))), "$3\r\nold\r\n");
        expect_reply(&mut server, client, &format!("object idletime {key}"), ":0\r\n");
    }
}

#[test]
fn there_are_no_copies_under_lfu() {
    let lfu = EvictionPolicy::Lfu(Evictable::AllKeys);
    let mut server = TestServer::with(2, |settings| settings.evict = lfu);
    let client = server.connect(0);
    let key = key_of_worker_1(&mut server, client, "old");
    let get = line(&format!("get {key}"));
    for _ in 0..3 {
        assert_eq!(at_once(&mut server, client, &get), "");
        server.settle();
        assert_eq!(server.received(client), b"$3\r\nold\r\n");
    }
}

#[test]
fn reads_on_other_threads_are_linearizable() {
    const ROUNDS: u64 = 3000;
    let (mut server, clients, key) = with_copy();
    expect_reply(&mut server, clients[1], &format!("set {key} 0"), "+OK\r\n");
    let written = AtomicU64::new(0);
    server.run_on_threads(|worker, call| {
        if worker == 1 {
            for n in 1..=ROUNDS {
                assert_eq!(call(clients[1], &line(&format!("set {key} {n}")), 1), "+OK\r\n");
                written.store(n, Ordering::Release);
            }
            return;
        }
        let mut last = 0;
        while last < ROUNDS {
            let known = written.load(Ordering::Acquire);
            let reply = call(clients[0], &line(&format!("get {key}")), 2);
            let value: u64 = reply.lines().nth(1).unwrap().parse().unwrap();
            assert!(value >= known.max(last), "{value} after {known} was written and {last} read");
            last = value;
        }
    });
}
