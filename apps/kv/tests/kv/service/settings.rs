//! `CONFIG SET` on one of several workers.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines};
use crate::request;
use linerate_service::time::Duration;

#[track_caller]
fn parameter(server: &mut TestServer, client: Client, name: &str) -> String {
    let reply = server.call(client, &line(&format!("config get {name}")));
    reply.lines().last().unwrap().to_owned()
}

#[test]
fn concurrent_changes_of_two_workers_are_both_kept() {
    let mut server = TestServer::new(2);
    let clients = [server.connect(0), server.connect(1)];
    for n in 1..20 {
        server.send(clients[0], &lines(&[&format!("config set timeout {n}"), "config set requirepass secret"]));
        server.send(clients[1], &line(&format!("config set maxclients {}", 100 + n)));
        server.settle();
        assert_eq!(server.received(clients[0]), b"+OK\r\n+OK\r\n");
        assert_eq!(server.received(clients[1]), b"+OK\r\n");
        for client in clients {
            assert_eq!(parameter(&mut server, client, "timeout"), n.to_string());
            assert_eq!(parameter(&mut server, client, "maxclients"), (100 + n).to_string());
            assert_eq!(parameter(&mut server, client, "requirepass"), "secret");
        }
        assert_eq!(server.call(clients[1], &request(&["config", "set", "requirepass", ""])), "+OK\r\n");
        let other = server.connect(0);
        expect_reply(&mut server, other, "ping", "+PONG\r\n");
        server.lose(other);
    }
}

#[test]
fn password_applies_on_all_workers_after_the_reply() {
    let mut server = TestServer::new(3);
    let client = server.connect(0);
    // In the next turns no worker refreshes its settings unprompted.
    expect_reply(&mut server, client, "ping", "+PONG\r\n");
    expect_reply(&mut server, client, "config set requirepass secret", "+OK\r\n");
    for worker in 0..3 {
        let late = server.connect(worker);
        expect_reply(&mut server, late, "ping", "-NOAUTH Authentication required.\r\n");
        expect_reply(&mut server, late, "auth secret", "+OK\r\n");
    }
}

#[test]
fn password_is_rejected_where_datagrams_are_answered() {
    let mut server = TestServer::with_datagrams(1, |_| {});
    let client = server.connect(0);
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'requirepass') - --udp: a datagram carries no password, \
                   and its source address can be forged\r\n";
    expect_reply(&mut server, client, "config set timeout 5 requirepass secret", refused);
    assert_eq!(parameter(&mut server, client, "timeout"), "0");
    assert_eq!(server.call(client, &request(&["config", "set", "requirepass", "", "timeout", "6"])), "+OK\r\n");
    assert_eq!(parameter(&mut server, client, "timeout"), "6");
}

/// Fills all shards and checks that they take at most 4 MB.
#[track_caller]
fn check_memory(server: &mut TestServer, client: Client) {
    let value = "x".repeat(900);
    for n in 0..8000 {
        server.send(client, &request(&["set", &format!("k{n}"), &value]));
    }
    server.settle();
    server.pass(Duration::from_millis(20));
    let replies = String::from_utf8(server.received(client)).unwrap();
    assert!(replies.contains("-OOM"));
    let info = server.call(client, &line("info memory"));
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    assert!(used.parse::<u64>().unwrap() <= 4 << 20, "{used} bytes");
}

#[test]
fn memory_limit_applies_to_all_shards_for_later_requests() {
    for workers in [1, 2, 4] {
        let mut server = TestServer::new(workers);
        let client = server.connect(0);
        server.send(client, &line("config set maxmemory 4mb"));
        check_memory(&mut server, client);
        let again = server.call(client, &line("config set maxmemory 64mb maxmemory-policy allkeys-lru"));
        assert_eq!(again, "+OK\r\n");
        assert_eq!(server.call(client, &request(&["set", "one", &"x".repeat(900)])), "+OK\r\n");
    }
}

#[test]
fn memory_limit_applies_to_shard_lent_at_the_time() {
    let mut server = TestServer::new(2);
    let (borrower, client) = (server.connect(0), server.connect(1));
    expect_reply(&mut server, borrower, "set a 1", "+OK\r\n");
    server.lend_shard_of_worker_1(borrower, &line("keys *"));
    server.send(client, &line("config set maxmemory 4mb"));
    server.turn_of(1);
    assert_eq!(server.received(client), b"+OK\r\n");
    server.settle();
    server.received(borrower);
    check_memory(&mut server, client);
}
