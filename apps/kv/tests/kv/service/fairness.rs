//! Long requests run in steps, and other clients are served between the steps.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines};
use crate::request;
use linerate_kv::commands::Settings;
use linerate_service::time::Duration;

/// Number of keys in the tests: several steps of work.
const KEYS: usize = 40_000;

/// Returns the names `k0`, `k1`, … of keys or fields.
fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("k{n}")).collect()
}

/// Returns a request to set `names` after the words `before`.
fn set_all(before: &[&str], names: &[String]) -> Vec<u8> {
    let pairs = names.iter().flat_map(|name| [name.as_str(), "v"]);
    request(&before.iter().copied().chain(pairs).collect::<Vec<_>>())
}

/// Sets the keys `k0`, `k1`, … in database 0.
fn fill(server: &mut TestServer, client: Client) {
    for names in names(KEYS).chunks(1000) {
        assert_eq!(server.call(client, &set_all(&["mset"], names)), "+OK\r\n");
    }
}

/// Sets `count` fields `k0`, `k1`, … of the hash `key`.
fn fill_hash(server: &mut TestServer, client: Client, key: &str, count: usize) {
    for names in names(count).chunks(1000) {
        assert_eq!(server.call(client, &set_all(&["hset", key], names)), ":1000\r\n");
    }
}

/// Runs turns of all workers until `client` gets a reply. `other` must get a reply in each turn. Returns the reply of
/// `client` and the number of turns.
fn answered_between(server: &mut TestServer, client: Client, other: Client) -> (Vec<u8>, usize) {
    for turns in 1..10_000 {
        server.send(other, &line("ping"));
        server.turn();
        assert_eq!(server.received(other), b"+PONG\r\n", "turn {turns}");
        let reply = server.received(client);
        if !reply.is_empty() {
            return (reply, turns);
        }
    }
    panic!("no reply");
}

fn keys_in(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8(reply.to_vec()).unwrap();
    let mut keys: Vec<String> = text.split("\r\n").filter(|word| word.starts_with('k')).map(str::to_owned).collect();
    keys.sort();
    keys
}

#[test]
fn keys_serves_other_clients_between_steps() {
    for workers in [1, 2, 5] {
        let mut server = TestServer::new(workers);
        let (client, other) = (server.connect(0), server.connect(0));
        fill(&mut server, client);
        server.send(client, &line("keys *"));
        let (reply, turns) = answered_between(&mut server, client, other);
        assert!(turns > KEYS / (1 << 14), "{turns} turns");
        let mut expected = names(KEYS);
        expected.sort();
        assert!(keys_in(&reply) == expected);
        assert!(reply.starts_with(format!("*{KEYS}\r\n").as_bytes()));
    }
}

#[test]
fn hgetall_hkeys_and_hvals_serve_other_clients_between_steps() {
    let mut server = TestServer::new(1);
    let (client, other) = (server.connect(0), server.connect(0));
    fill_hash(&mut server, client, "h", KEYS);
    let mut expected = names(KEYS);
    expected.sort();
    for (command, elements) in [("hgetall h", 2 * KEYS), ("hkeys h", KEYS)] {
        server.send(client, &line(command));
        let (reply, turns) = answered_between(&mut server, client, other);
        assert!(turns > 2, "{turns} turns");
        assert!(keys_in(&reply) == expected);
        assert!(reply.starts_with(format!("*{elements}\r\n").as_bytes()));
    }
    server.send(client, &lines(&["hvals h", "multi", "hkeys h", "exec", "ping"]));
    server.settle();
    let reply = String::from_utf8(server.received(client)).unwrap();
    assert_eq!(reply.matches("$1\r\nv\r\n").count(), KEYS);
    assert!(reply.contains(&format!("*1\r\n*{KEYS}\r\n")) && reply.ends_with("\r\n+PONG\r\n"));
}

#[test]
fn hash_of_another_worker_is_read_in_steps_and_in_order() {
    let mut server = TestServer::new(2);
    let (client, third, other) = (server.connect(0), server.connect(0), server.connect(1));
    let names = ["h0", "h1", "h2", "h3"];
    for name in names {
        fill_hash(&mut server, client, name, 20_000);
    }
    let value = "x".repeat(5000);
    for name in names {
        // The reads of another client in the same turn do not wait.
        let keys: Vec<String> = (0..8).map(|n| format!("get none{n}")).collect();
        server.send(third, &lines(&keys));
        let mut requests = lines(&["get none", &format!("hgetall {name}"), &format!("hset {name} long {value}")]);
        requests.extend(lines(&[&format!("hget {name} long"), &format!("hkeys {name}"), "ping"]));
        server.send(client, &requests);
        let (mut reply, mut turns, mut early) = (Vec::new(), 0, Vec::new());
        while !reply.ends_with(b"+PONG\r\n") {
            let (more, passed) = answered_between(&mut server, client, other);
            reply.extend(more);
            turns += passed;
            early.extend(server.received(third));
        }
        assert!(turns > 4, "{turns} turns");
        assert_eq!(early, b"$-1\r\n".repeat(8));
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with("$-1\r\n*40000\r\n$"), "{name}");
        let (all, keys) = reply.split_once(&format!(":1\r\n$5000\r\n{value}\r\n*20001\r\n$")).unwrap();
        assert_eq!((keys_in(all.as_bytes()).len(), keys_in(keys.as_bytes()).len()), (20_000, 20_000));
    }
}

#[test]
fn hgetall_of_another_worker_ends_with_its_connection_and_with_the_limit() {
    let mut server = TestServer::with(2, |settings: &mut Settings| settings.output = 100_000);
    let other = server.connect(1);
    fill_hash(&mut server, other, "h", KEYS);
    for worker in [0, 1] {
        let client = server.connect(worker);
        server.send(client, &line("hgetall h"));
        server.settle();
        assert!(server.end(client).is_aborted);
        let gone = server.connect(worker);
        server.send(gone, &line("hkeys h"));
        server.turn();
        server.turn();
        server.lose(gone);
        server.settle();
        expect_reply(&mut server, other, "hlen h", &format!(":{KEYS}\r\n"));
    }
}

#[test]
fn turn_of_client_ends_by_its_work() {
    let keys: String = (0..500).map(|n| format!(" k{n}")).collect();
    for workers in [1, 2] {
        for (data, least) in [
            (b"\r\n".repeat(1 << 15), 100),
            (b"*0\r\n".repeat(1 << 14), 50),
            (b"PING\r\n".repeat(10_000), 30),
            (line("get key").repeat(3000), 2),
            (line(&format!("mget{keys}")).repeat(20), 15),
            // An incomplete request.
            ([&b"*1000000\r\n$4\r\nmget\r\n"[..], &b"$1\r\nx\r\n".repeat(100_000)].concat(), 30),
        ] {
            let mut server = TestServer::new(workers);
            let (client, other) = (server.connect(0), server.connect(0));
            data.chunks(64 << 10).for_each(|slice| server.send(client, slice));
            let mut turns = 0;
            while server.unread(client) > 0 {
                server.send(other, &line("ping"));
                server.turn();
                assert_eq!(server.received(other), b"+PONG\r\n");
                turns += 1;
                assert!(turns < 10_000, "{workers} workers: {} is not read", data[..20].escape_ascii());
            }
            assert!(turns > least, "{}: {turns} turns", data[..20].escape_ascii());
        }
    }
}

#[test]
fn client_yields_to_others_after_a_long_request() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let (client, other) = (server.connect(0), server.connect(0));
        server.send(client, &set_all(&["mset"], &names(20_000)));
        answered_between(&mut server, client, other);
        server.send(client, &line("ping"));
        let (_, turns) = answered_between(&mut server, client, other);
        assert!(turns > 1, "the next request waits for its turn");
        // The client is one of many again.
        server.send(client, &line("ping"));
        assert_eq!(answered_between(&mut server, client, other).1, 1);
    }
}

#[test]
fn client_list_and_kill_of_many_clients_serve_others_between_steps() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let (client, other) = (server.connect(0), server.connect(0));
        let many: Vec<Client> = (0..1200).map(|n| server.connect(n % workers)).collect();
        server.send(client, &line("client list"));
        let (reply, turns) = answered_between(&mut server, client, other);
        assert!(turns > 4, "{turns} turns");
        assert_eq!(String::from_utf8(reply).unwrap().matches("\nid=").count(), 1202);
        expect_reply(&mut server, client, "client kill type normal", ":1201\r\n");
        server.settle();
        assert!(many.iter().chain([&other]).all(|client| server.end(*client).is_aborted));
        assert!(!server.end(client).is_aborted);
    }
}

#[test]
fn fields_read_in_steps_are_a_consistent_snapshot() {
    // The hash changes once while it is read, changes all the time, or is removed.
    for (change, changes) in
        [("hset h new v", 1), ("hincrby h new 1", 1000), ("hdel h k0", 1), ("del h", 1), ("set h x", 1)]
    {
        let mut server = TestServer::new(1);
        let (client, other) = (server.connect(0), server.connect(0));
        fill_hash(&mut server, other, "h", KEYS);
        server.send(client, &line("hgetall h"));
        server.turn();
        let mut reply = server.received(client);
        assert!(reply.is_empty());
        for n in 0..1000 {
            if n < changes {
                server.send(other, &line(change));
            }
            server.turn();
            reply = server.received(client);
            if !reply.is_empty() {
                break;
            }
        }
        let text = String::from_utf8(reply).unwrap();
        let (elements, fields) = match change {
            "hset h new v" => (2 * (KEYS + 1), KEYS),
            "hincrby h new 1" => (2 * (KEYS + 1), KEYS),
            "hdel h k0" => (2 * (KEYS - 1), KEYS - 1),
            "del h" => (0, 0),
            _ => {
                assert!(text.starts_with("-WRONGTYPE "), "{text}");
                continue;
            }
        };
        assert!(text.starts_with(&format!("*{elements}\r\n")), "{change}");
        assert_eq!(keys_in(text.as_bytes()).len(), fields, "{change}");
        expect_reply(&mut server, client, "ping", "+PONG\r\n");
    }
}

#[test]
fn requests_after_keys_are_answered_after_it() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let client = server.connect(0);
        fill(&mut server, client);
        let commands = |server: &mut TestServer| {
            // Counters of the other worker are published after this time.
            server.pass(Duration::from_millis(10));
            let info = server.call(client, &line("info stats"));
            let count = info.split("\r\n").find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
            count.parse::<u64>().unwrap()
        };
        let before = commands(&mut server);
        server.send(client, &lines(&["get k7", "keys k39?", "set k7 new", "get k7", "keys nosuch", "ping"]));
        server.settle();
        let reply = String::from_utf8(server.received(client)).unwrap();
        assert!(reply.starts_with("$1\r\nv\r\n*10\r\n$4\r\nk39"), "{reply}");
        assert!(reply.ends_with("\r\n+OK\r\n$3\r\nnew\r\n*0\r\n+PONG\r\n"), "{reply}");
        assert_eq!(commands(&mut server), before + 7, "each command counts once");
    }
}

#[test]
fn keys_replies_after_half_close_and_is_dropped_with_its_connection() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let client = server.connect(0);
        fill(&mut server, client);
        server.send(client, &line("keys *"));
        server.finish(client);
        server.settle();
        assert_eq!(keys_in(&server.received(client)).len(), KEYS);
        assert!(server.end(client).is_closed);
        let gone = server.connect(0);
        server.send(gone, &line("keys *"));
        server.turn();
        server.turn();
        server.lose(gone);
        server.settle();
        let other = server.connect(0);
        expect_reply(&mut server, other, "dbsize", &format!(":{KEYS}\r\n"));
    }
}

#[test]
fn keys_in_transaction_runs_in_one_step() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let client = server.connect(0);
        fill(&mut server, client);
        server.send(client, &lines(&["multi", "keys *", "set k0 x", "exec"]));
        server.settle();
        let reply = String::from_utf8(server.received(client)).unwrap();
        assert!(reply.starts_with(&format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n*{KEYS}\r\n")));
        assert!(reply.ends_with("\r\n+OK\r\n"));
    }
}

#[test]
fn keys_ends_early_if_reply_exceeds_output_limit() {
    let mut server = TestServer::with(1, |settings: &mut Settings| settings.output = 100_000);
    let (client, other) = (server.connect(0), server.connect(0));
    fill(&mut server, other);
    server.send(client, &line("keys *"));
    server.settle();
    assert!(server.end(client).is_aborted);
    assert!(server.received(client).is_empty());
}

#[test]
fn flush_that_waits_for_earlier_ones_serves_other_clients() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let (client, other) = (server.connect(0), server.connect(0));
        fill(&mut server, client);
        expect_reply(&mut server, client, "select 1", "+OK\r\n");
        // Each flush leaves dead keys until background work removes them, after one or many turns.
        const FLUSHES: usize = 1000;
        server.send(client, &lines(&["set a 1", "set b 1", "set c 1", "set d 1", "flushall"]).repeat(FLUSHES));
        let mut replies = Vec::new();
        let mut turns = 0;
        while replies.len() < "+OK\r\n".len() * 5 * FLUSHES {
            let (more, passed) = answered_between(&mut server, client, other);
            replies.extend(more);
            turns = turns.max(passed);
        }
        assert_eq!(replies, "+OK\r\n".repeat(5 * FLUSHES).as_bytes());
        assert!(turns > 3, "{turns} turns");
        expect_reply(&mut server, client, "dbsize", ":0\r\n");
        expect_reply(&mut server, client, "keys *", "*0\r\n");
    }
}

#[test]
fn scan_examines_bounded_number_of_keys_for_any_count() {
    let mut server = TestServer::new(1);
    let client = server.connect(0);
    fill(&mut server, client);
    let (mut cursor, mut found, mut calls) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let reply = server.call(client, &line(&format!("scan {cursor} count 1000000000")));
        let keys = keys_in(reply.as_bytes());
        assert!(keys.len() < KEYS / 2, "{} keys", keys.len());
        found.extend(keys);
        calls += 1;
        cursor = reply.split("\r\n").nth(2).unwrap().to_owned();
        if cursor == "0" {
            break;
        }
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), KEYS);
    assert!(calls > 4, "{calls} calls");
}

#[test]
fn pattern_beyond_limit_is_rejected() {
    let mut server = TestServer::new(1);
    let client = server.connect(0);
    let pattern = "*".repeat(257);
    for words in [format!("keys {pattern}"), format!("scan 0 match {pattern}")] {
        expect_reply(&mut server, client, &words, "-ERR pattern is too long: 256 bytes at most\r\n");
    }
    expect_reply(&mut server, client, &format!("config get {pattern}"), "*0\r\n");
    expect_reply(&mut server, client, &format!("keys {}", &pattern[1..]), "*0\r\n");
}

#[test]
fn watch_of_many_keys_serves_other_clients_between_steps() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let (client, other) = (server.connect(0), server.connect(0));
        let names = names(60_000);
        let words: Vec<&str> = ["watch"].into_iter().chain(names.iter().map(String::as_str)).collect();
        for end in ["unwatch", "discard", "exec"] {
            server.send(client, &request(&words));
            let (reply, turns) = answered_between(&mut server, client, other);
            assert_eq!((&reply[..], turns > 20), (&b"+OK\r\n"[..], true), "{turns} turns");
            if end == "exec" {
                // The last of the keys is watched like the first.
                expect_reply(&mut server, other, "set k59999 x", "+OK\r\n");
            }
            if end != "unwatch" {
                expect_reply(&mut server, client, "multi", "+OK\r\n");
            }
            server.send(client, &line(end));
            let (reply, turns) = answered_between(&mut server, client, other);
            let (expected, is_in_parts) = if end == "exec" { ("*-1\r\n", false) } else { ("+OK\r\n", true) };
            assert_eq!((&reply[..], turns > 20), (expected.as_bytes(), is_in_parts), "{end}: {turns} turns");
            expect_reply(&mut server, client, "discard", "-ERR DISCARD without MULTI\r\n");
        }
        let many = request(&["watch"].into_iter().chain(std::iter::repeat_n("k", (1 << 16) + 1)).collect::<Vec<_>>());
        assert_eq!(server.call(client, &many), "-ERR too many watched keys: 65536 at most\r\n");
    }
}

#[test]
fn client_whose_watched_keys_exceed_memory_limit_is_disconnected() {
    for workers in [1, 2] {
        let mut server = TestServer::with(workers, |settings: &mut Settings| settings.query = 1 << 20);
        let client = server.connect(0);
        let key = "k".repeat(3900);
        for from in (0..250).step_by(10) {
            let names: String = (from..from + 10).map(|n| format!(" {key}{n:03}")).collect();
            let watch = line(&format!("watch{names}"));
            assert!(server.call(client, &watch.repeat(2)) == "+OK\r\n+OK\r\n", "{from}");
            assert!(!server.end(client).is_aborted, "{from}");
        }
        expect_reply(&mut server, client, "unwatch", "+OK\r\n");
        for from in (0..300).step_by(10) {
            let names: String = (from..from + 10).map(|n| format!(" {key}{n:03}")).collect();
            server.call(client, &line(&format!("watch{names}")));
        }
        assert!(server.end(client).is_aborted);
    }
}

#[test]
fn slow_log_has_requests_of_all_workers() {
    for workers in [1, 3] {
        let mut server = TestServer::with(workers, |settings: &mut Settings| settings.slow_micros = 0);
        let clients: Vec<Client> = (0..workers).map(|worker| server.connect(worker)).collect();
        for (n, client) in clients.iter().enumerate() {
            expect_reply(&mut server, *client, &format!("client setname c{n}"), "+OK\r\n");
            expect_reply(&mut server, *client, &format!("rename nosuch k{n}"), "-ERR no such key\r\n");
            // The run time of these commands does not depend on the size of the data.
            server.call(*client, &lines(&["set a 1", "get a", "incr a", "mget a b"]));
        }
        let client = clients[0];
        expect_reply(&mut server, client, "slowlog len", &format!(":{workers}\r\n"));
        let entries = server.call(client, &line("slowlog get"));
        let shown = |n: usize| format!("*3\r\n$6\r\nrename\r\n$6\r\nnosuch\r\n$2\r\nk{n}\r\n");
        let offsets: Vec<usize> = (0..workers).map(|n| entries.find(&shown(n)).unwrap()).collect();
        assert!(offsets.is_sorted_by(|before, after| before > after), "the newest is first: {entries}");
        expect_reply(&mut server, client, "config set slowlog-max-len 1", "+OK\r\n");
        expect_reply(&mut server, client, "slowlog len", ":1\r\n");
        expect_reply(&mut server, client, "slowlog reset", "+OK\r\n");
        expect_reply(&mut server, client, "slowlog get", "*0\r\n");
        expect_reply(&mut server, client, "config set slowlog-log-slower-than -1", "+OK\r\n");
        server.call(client, &line("keys *"));
        expect_reply(&mut server, client, "slowlog len", ":0\r\n");
        assert!(server.call(client, &line("info stats")).contains("\r\nslow_requests:"));
    }
}

#[test]
fn requests_of_many_clients_that_do_not_read_wait_for_their_replies() {
    // Each client stays below the limit of its own, and all together exceed twice the limit.
    let mut server = TestServer::with(1, |settings| settings.output = 200_000);
    let other = server.connect(0);
    let value = "x".repeat(3000);
    assert_eq!(server.call(other, &request(&["set", "key", &value])), "+OK\r\n");
    let clients: Vec<Client> = (0..8).map(|_| server.connect(0)).collect();
    clients.iter().for_each(|client| server.set_room(*client, 100));
    for _ in 0..4 {
        for client in &clients {
            (0..25).for_each(|_| server.send(*client, &line("get key")));
        }
        server.settle();
    }
    for client in &clients {
        assert!(!server.end(*client).is_aborted);
        assert!(server.unread(*client) > 0, "all requests were executed");
    }
    assert_eq!(server.call(other, &line("strlen key")), ":3000\r\n");
    let replies = format!("$3000\r\n{value}\r\n").repeat(100);
    for client in &clients {
        server.set_room(*client, usize::MAX);
    }
    server.settle();
    for client in &clients {
        assert!(server.received(*client) == replies.as_bytes());
    }
}
