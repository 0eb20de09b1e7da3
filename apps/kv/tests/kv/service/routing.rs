//! Requests for keys of several workers.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines};
use crate::request;
use linerate_kv::commands::Settings;

/// Returns a random request on few keys, so that requests for the same key and for all workers interleave.
fn any_request(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut key = || format!("k{}", random.u32(..12));
    let (a, b, c) = (key(), key(), key());
    let value = "v".repeat(random.usize(..40) + if random.u32(..20) == 0 { 5000 } else { 0 });
    match random.u32(..24) {
        0..4 => request(&["set", &a, &value]),
        4..9 => line(&format!("get {a}")),
        9 => line(&format!("incr n{a}")),
        10 => line(&format!("append {a} x")),
        11 => line(&format!("mget {a} {b} {c} {a} h{b} nothing")),
        12 => line(&format!("exists {a} {b} {a} {c}")),
        13 => line(&format!("del {a} {b}")),
        14 => line(&format!("unlink {a} {b} {c}")),
        15 => line(&format!("touch {a} {b}")),
        16 => request(&["mset", &a, &value, &b, "2", &c, "3"]),
        17 => line(&format!("rename {a} {b}")),
        18 => lines(&["multi", &format!("set {a} 1"), &format!("get {b}"), &format!("incr n{c}"), "exec"]),
        19 => lines(&[&format!("watch {a}"), &format!("set {b} w"), "multi", &format!("get {a}"), "exec"]),
        20 => line("ping"),
        21 => line(&format!("hset h{a} f {b}")),
        22 => lines(&[&format!("hgetall h{a}"), &format!("get h{a}"), &format!("nothing {a}")]),
        _ => lines(&["select 1", &format!("set {a} other"), &format!("get {b}"), "select 0"]),
    }
}

#[test]
fn replies_equal_those_of_one_worker() {
    let mut random = fastrand::Rng::with_seed(37);
    for workers in [2, 3, 5] {
        let (mut one, mut several) = (TestServer::new(1), TestServer::new(workers));
        let (expected, client) = (one.connect(0), several.connect(workers - 1));
        for round in 0..400 {
            let count = 1 + random.usize(..40);
            let requests: Vec<u8> = (0..count).flat_map(|_| any_request(&mut random)).collect();
            let reply = one.call(expected, &requests);
            several.send(client, &requests);
            several.settle();
            let got = several.received(client);
            assert!(
                got == reply.as_bytes(),
                "{workers} workers, round {round}: {}\n{reply}\n{}",
                requests.escape_ascii(),
                got.escape_ascii()
            );
        }
    }
}

#[test]
fn replies_equal_those_of_one_worker_in_any_parts() {
    let mut random = fastrand::Rng::with_seed(38);
    let (mut one, mut several) = (TestServer::new(1), TestServer::new(3));
    let (expected, client) = (one.connect(0), several.connect(0));
    for _ in 0..200 {
        let requests: Vec<u8> = (0..30).flat_map(|_| any_request(&mut random)).collect();
        let reply = one.call(expected, &requests);
        let mut rest = &requests[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(1 + random.usize(..100)));
            several.send(client, now);
            // Replies and further requests arrive in any order.
            (0..random.usize(..3)).for_each(|_| several.turn_of(random.usize(..3)));
            rest = later;
        }
        several.settle();
        assert!(several.received(client) == reply.as_bytes(), "{}", requests.escape_ascii());
    }
}

/// Requests with keys of all workers, and their replies.
fn pipeline() -> (Vec<u8>, String) {
    let requests = (0..60).flat_map(|n| lines(&[&format!("set key{n} {n}"), &format!("get key{n}")])).collect();
    (requests, (0..60).map(|n| format!("+OK\r\n${}\r\n{n}\r\n", n.to_string().len())).collect())
}

#[test]
fn pipeline_for_all_workers_takes_one_turn_of_each() {
    let mut server = TestServer::new(3);
    let client = server.connect(0);
    let (requests, replies) = pipeline();
    server.send(client, &requests);
    [0, 1, 2].into_iter().for_each(|worker| server.turn_of(worker));
    assert_eq!(server.received(client), b"");
    server.turn_of(0);
    assert_eq!(server.received(client), replies.as_bytes());
}

#[test]
fn replies_of_faster_worker_wait_for_slower_one() {
    let mut server = TestServer::new(3);
    let client = server.connect(0);
    let (requests, replies) = pipeline();
    server.send(client, &requests);
    [0, 2, 0, 0, 2, 0].into_iter().for_each(|worker| server.turn_of(worker));
    // The requests after are not lost.
    server.send(client, &lines(&["mget key1 key2 key3 none", "exists key1 key2 key3 key4 none"]));
    server.turn_of(0);
    assert_eq!(server.received(client), b"");
    server.settle();
    let mget = "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$-1\r\n";
    assert_eq!(String::from_utf8(server.received(client)).unwrap(), format!("{replies}{mget}:4\r\n"));
}

#[test]
fn request_after_one_that_waits_for_another_worker_keeps_order() {
    let mut server = TestServer::new(2);
    let client = server.connect(0);
    for n in 0..40 {
        server.send(client, &line(&format!("set key{n} a")));
        server.turn_of(0);
        server.send(client, &line(&format!("append key{n} b")));
        server.turn_of(0);
        server.send(client, &lines(&[&format!("get key{n}"), "ping"]));
        server.settle();
        assert_eq!(server.received(client), b"+OK\r\n:2\r\n$2\r\nab\r\n+PONG\r\n");
    }
}

/// Sets twenty keys with their numbers as values.
fn fill(server: &mut TestServer, client: Client) {
    let names: Vec<String> = (0..20).map(|n| format!(" key{n} {}", n % 10)).collect();
    expect_reply(server, client, &format!("mset{}", names.concat()), "+OK\r\n");
}

const MGET: &str = "mget key0 key1 key2 key3 key4 key5 key6 key7 key8 key9";

fn values() -> String {
    let values: String = (0..10).map(|n| format!("$1\r\n{n}\r\n")).collect();
    format!("*10\r\n{values}")
}

#[test]
fn mget_waits_for_shard_that_is_lent() {
    for worker in [0, 1] {
        let mut server = TestServer::new(2);
        let (borrower, client) = (server.connect(0), server.connect(worker));
        fill(&mut server, client);
        server.lend_shard_of_worker_1(borrower, &line("flushdb"));
        // The shard of worker 1 is on its way to worker 0, which will flush both.
        server.send(client, &line(MGET));
        server.turn_of(worker);
        assert_eq!(server.received(client), b"", "worker {worker}");
        server.settle();
        assert_eq!(server.received(borrower), b"+OK\r\n");
        assert_eq!(server.received(client).iter().filter(|byte| **byte == b'$').count(), 10);
        fill(&mut server, client);
        expect_reply(&mut server, client, MGET, &values());
    }
}

#[test]
fn commands_that_are_split_do_not_borrow_shards() {
    let mut server = TestServer::new(2);
    let client = server.connect(0);
    fill(&mut server, client);
    for (words, reply) in [
        (MGET, values()),
        ("exists key0 key1 key2 key3 key4 key5 none", ":6\r\n".to_owned()),
        ("touch key0 key1 key2 key3 key4 key5 none", ":6\r\n".to_owned()),
        ("unlink key0 key1 key2 key3 none", ":4\r\n".to_owned()),
        ("del key0 key4 key5 key6 key7 key7", ":4\r\n".to_owned()),
    ] {
        server.send(client, &line(words));
        // One turn of each is enough. Borrowing takes two of the borrower before the shard is requested.
        [0, 1, 0].into_iter().for_each(|worker| server.turn_of(worker));
        assert_eq!(String::from_utf8(server.received(client)).unwrap(), reply, "{words}");
    }
    let other = server.connect(0);
    let list = server.call(other, &line("client list"));
    assert!(list.contains(" cmd=del "), "{list}");
    expect_reply(&mut server, other, "dbsize", ":12\r\n");
}

#[test]
fn split_command_counts_once_and_its_keys_as_lookups() {
    for workers in [1, 3] {
        let mut server = TestServer::new(workers);
        let client = server.connect(0);
        fill(&mut server, client);
        let requests = |server: &TestServer| (0..workers).map(|worker| server.requests(worker)).sum::<u64>();
        let before = requests(&server);
        server.call(client, &line(&format!("{MGET} none")));
        server.call(client, &line("exists key1 key2 key3 key4"));
        assert_eq!(requests(&server) - before, 2, "{workers}");
        server.pass(linerate_service::time::Duration::from_millis(10));
        let info = server.call(client, &line("info stats"));
        assert!(info.contains("keyspace_hits:10\r\nkeyspace_misses:1\r\n"), "{workers}: {info}");
    }
}

#[test]
fn connection_closed_with_outstanding_batches_leaves_nothing() {
    for requests in [line("get key1"), line("get key2"), pipeline().0, line(MGET), lines(&["incr n1", "incr n2"])] {
        for early in [false, true] {
            let mut server = TestServer::new(3);
            let client = server.connect(0);
            server.send(client, &requests);
            server.turn_of(0);
            if early {
                server.turn_of(1);
                server.turn_of(0);
            }
            server.received(client);
            server.lose(client);
            // The next connection has the same slot.
            let next = server.connect(0);
            server.settle();
            assert_eq!(server.received(next), b"");
            let (requests, replies) = pipeline();
            assert_eq!(server.call(next, &requests), replies);
        }
    }
}

#[test]
fn half_closed_client_gets_replies_of_all_workers() {
    for (requests, replies) in [pipeline(), (line("get none"), "$-1\r\n".to_owned())] {
        for worker in 0..3 {
            let mut server = TestServer::new(3);
            let client = server.connect(worker);
            server.send(client, &requests);
            server.finish(client);
            server.turn_of(worker);
            server.settle();
            assert_eq!(String::from_utf8(server.received(client)).unwrap(), replies);
            assert!(server.end(client).is_closed);
        }
    }
}

#[test]
fn replies_of_several_workers_wait_for_room_and_obey_output_limit() {
    let mut server = TestServer::with(3, |settings: &mut Settings| settings.output = 100_000);
    let client = server.connect(0);
    let value = "x".repeat(900);
    let sets: Vec<u8> = (0..20).flat_map(|n| request(&["set", &format!("key{n}"), &value])).collect();
    assert_eq!(server.call(client, &sets), "+OK\r\n".repeat(20));
    server.set_room(client, 100);
    let gets: Vec<u8> = (0..20).flat_map(|n| line(&format!("get key{n}"))).collect();
    server.send(client, &gets);
    server.settle();
    assert_eq!(server.received(client).len(), 100);
    server.set_room(client, usize::MAX);
    server.settle();
    let reply = format!("$900\r\n{value}\r\n");
    assert_eq!(server.received(client).len(), 20 * reply.len() - 100);
    server.set_room(client, 0);
    (0..20).for_each(|_| server.send(client, &gets));
    server.settle();
    assert!(server.end(client).is_aborted);
    let other = server.connect(0);
    assert_eq!(server.call(other, &gets), reply.repeat(20));
}

#[test]
fn memcached_pipeline_for_all_workers_takes_one_turn_of_each() {
    let mut server = TestServer::new(3);
    let client = server.connect_to_memcached(0);
    let requests: String = (0..40).map(|n| format!("set key{n} 0 0 2\r\n{:02}\r\nget key{n}\r\n", n)).collect();
    let replies: String = (0..40).map(|n| format!("STORED\r\nVALUE key{n} 0 2\r\n{:02}\r\nEND\r\n", n)).collect();
    server.send(client, requests.as_bytes());
    [0, 1, 2, 0].into_iter().for_each(|worker| server.turn_of(worker));
    assert_eq!(String::from_utf8(server.received(client)).unwrap(), replies);
    assert_eq!(server.call(client, b"get key1\r\nversion\r\nget key2\r\nquit\r\n").matches("END\r\n").count(), 2);
    assert!(server.end(client).is_closed);
}

#[test]
fn requests_that_borrow_shards_never_wait_for_each_other() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let workers = 2 + random.usize(..3);
        let mut server = TestServer::new(workers);
        let clients: Vec<_> = (0..2 * workers).map(|n| server.connect(n % workers)).collect();
        let mut sent = vec![0; clients.len()];
        for _ in 0..40 {
            let n = random.usize(..clients.len());
            let (a, b) = (random.u32(..12), random.u32(..12));
            server.send(clients[n], &line(&format!("mset k{a} x k{b} x")));
            sent[n] += 1;
            (0..random.usize(..4)).for_each(|_| server.turn_of(random.usize(..workers)));
        }
        server.settle();
        for (client, requests) in clients.into_iter().zip(sent) {
            assert_eq!(server.received(client), b"+OK\r\n".repeat(requests), "seed {seed}");
        }
    }
}

#[test]
fn workers_with_memcached_ports_keep_their_keys() {
    for workers in [1, 2, 5] {
        let mut server = TestServer::with_sharded_memcached(workers);
        let redis = server.connect(0);
        let clients: Vec<Client> =
            (0..workers).map(|worker| server.connect_to(worker, 11211 + worker as u16)).collect();
        for (worker, client) in clients.iter().enumerate() {
            for n in 0..50 {
                let set = format!("set key{n} 0 0 1\r\n{worker}\r\n");
                assert_eq!(server.call(*client, set.as_bytes()), "STORED\r\n");
            }
        }
        for (worker, client) in clients.iter().enumerate() {
            let keys: Vec<String> = (0..50).map(|n| format!("key{n}")).collect();
            let values: String = keys.iter().map(|key| format!("VALUE {key} 0 1\r\n{worker}\r\n")).collect();
            assert_eq!(server.call(*client, format!("get {}\r\n", keys.join(" ")).as_bytes()), values + "END\r\n");
            assert_eq!(server.call(*client, b"mg key1 v\r\n"), format!("VA 1\r\n{worker}\r\n"));
        }
        assert_eq!(server.call(clients[0], b"flush_all\r\n"), "OK\r\n");
        let left = if workers == 1 { "END\r\n".to_owned() } else { "VALUE key1 0 1\r\n1\r\nEND\r\n".to_owned() };
        assert_eq!(server.call(clients[workers.min(2) - 1], b"get key1\r\n"), left);
        // While a shard is lent, its worker waits for it.
        if workers > 1 {
            server.lend_shard_of_worker_1(redis, &line("keys *"));
            server.send(clients[1], b"get key1\r\n");
            server.settle();
            assert_eq!(server.received(clients[1]), left.as_bytes());
        }
    }
}
