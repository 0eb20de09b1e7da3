//! `CONFIG SET` on one of several workers.

use super::net::{Client, Host};
use super::{line, lines, request, says};
use linerate_bypass::time::Duration;

#[track_caller]
fn parameter(host: &mut Host, client: Client, name: &str) -> String {
    let reply = host.ask(client, &line(&format!("config get {name}")));
    reply.lines().last().unwrap().to_owned()
}

#[test]
fn parameters_that_two_workers_set_at_the_same_time_are_both_kept() {
    let mut host = Host::new(2);
    let clients = [host.connect(0), host.connect(1)];
    for n in 1..20 {
        host.send(clients[0], &lines(&[&format!("config set timeout {n}"), "config set requirepass secret"]));
        host.send(clients[1], &line(&format!("config set maxclients {}", 100 + n)));
        host.settle();
        assert_eq!(host.received(clients[0]), b"+OK\r\n+OK\r\n");
        assert_eq!(host.received(clients[1]), b"+OK\r\n");
        for client in clients {
            assert_eq!(parameter(&mut host, client, "timeout"), n.to_string());
            assert_eq!(parameter(&mut host, client, "maxclients"), (100 + n).to_string());
            assert_eq!(parameter(&mut host, client, "requirepass"), "secret");
        }
        assert_eq!(host.ask(clients[1], &request(&["config", "set", "requirepass", ""])), "+OK\r\n");
        let other = host.connect(0);
        says(&mut host, other, "ping", "+PONG\r\n");
        host.lose(other);
    }
}

#[test]
fn a_password_counts_on_all_workers_for_who_comes_after_the_reply() {
    let mut host = Host::new(3);
    let client = host.connect(0);
    // No worker looks for new settings by itself in the next turns.
    says(&mut host, client, "ping", "+PONG\r\n");
    says(&mut host, client, "config set requirepass secret", "+OK\r\n");
    for worker in 0..3 {
        let late = host.connect(worker);
        says(&mut host, late, "ping", "-NOAUTH Authentication required.\r\n");
        says(&mut host, late, "auth secret", "+OK\r\n");
    }
}

#[test]
fn a_password_is_refused_where_datagrams_are_answered() {
    let mut host = Host::with_datagrams(1, |_| {});
    let client = host.connect(0);
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'requirepass') - --udp: a datagram carries no password, \
                   and its source address can be forged\r\n";
    says(&mut host, client, "config set timeout 5 requirepass secret", refused);
    assert_eq!(parameter(&mut host, client, "timeout"), "0");
    assert_eq!(host.ask(client, &request(&["config", "set", "requirepass", "", "timeout", "6"])), "+OK\r\n");
    assert_eq!(parameter(&mut host, client, "timeout"), "6");
}

/// Fills all shards, and checks that they take no more than 4 MB.
#[track_caller]
fn check_memory(host: &mut Host, client: Client) {
    let value = "x".repeat(900);
    for n in 0..8000 {
        host.send(client, &request(&["set", &format!("k{n}"), &value]));
    }
    host.settle();
    host.pass(Duration::from_millis(20));
    let replies = String::from_utf8(host.received(client)).unwrap();
    assert!(replies.contains("-OOM"));
    let info = host.ask(client, &line("info memory"));
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    assert!(used.parse::<u64>().unwrap() <= 4 << 20, "{used} bytes");
}

#[test]
fn a_memory_limit_binds_the_shards_of_all_workers_for_the_requests_behind_it() {
    for workers in [1, 2, 4] {
        let mut host = Host::new(workers);
        let client = host.connect(0);
        host.send(client, &line("config set maxmemory 4mb"));
        check_memory(&mut host, client);
        let again = host.ask(client, &line("config set maxmemory 64mb maxmemory-policy allkeys-lru"));
        assert_eq!(again, "+OK\r\n");
        assert_eq!(host.ask(client, &request(&["set", "one", &"x".repeat(900)])), "+OK\r\n");
    }
}

#[test]
fn a_memory_limit_binds_a_shard_that_was_lent_when_it_was_set() {
    let mut host = Host::new(2);
    let (borrower, client) = (host.connect(0), host.connect(1));
    says(&mut host, borrower, "set a 1", "+OK\r\n");
    host.lend_shard_of_worker_1(borrower, &line("keys *"));
    host.send(client, &line("config set maxmemory 4mb"));
    host.turn_of(1);
    assert_eq!(host.received(client), b"+OK\r\n");
    host.settle();
    host.received(borrower);
    check_memory(&mut host, client);
}
