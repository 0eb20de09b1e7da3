//! The service as seen by its clients, on one worker and on several.

mod bits;
mod cluster;
mod cuts;
mod datagrams;
mod fairness;
mod http;
mod memory;
pub mod net;
mod pause;
mod routing;
mod settings;
mod silence;
mod totals;

use crate::request;
use linerate_service::time::Duration;
use net::{Client, TestServer};

fn line(words: &str) -> Vec<u8> {
    request(&words.split(' ').collect::<Vec<_>>())
}

fn lines<T: AsRef<str>>(requests: &[T]) -> Vec<u8> {
    requests.iter().flat_map(|words| line(words.as_ref())).collect()
}

#[track_caller]
fn expect_reply(server: &mut TestServer, client: Client, words: &str, reply: &str) {
    assert_eq!(server.call(client, &line(words)), reply, "{words}");
}

/// Returns servers with one shard and with several.
fn servers() -> impl Iterator<Item = TestServer> {
    [1, 2, 5].into_iter().map(TestServer::new)
}

#[test]
fn replies_keep_request_order_across_shards() {
    for mut server in servers() {
        let client = server.connect(0);
        let mut requests = Vec::new();
        let mut replies = String::new();
        for n in 0..200 {
            requests.extend(lines(&[format!("set key{n} {n}"), format!("get key{n}"), format!("incr key{n}")]));
            requests.extend(line("ping"));
            let value = n.to_string();
            replies += &format!("+OK\r\n${}\r\n{value}\r\n:{}\r\n+PONG\r\n", value.len(), n + 1);
        }
        assert_eq!(server.call(client, &requests), replies);
        assert_eq!(server.call(client, &line("dbsize")), ":200\r\n");
        // Another client sees the same keys.
        let other = server.connect(0);
        expect_reply(
            &mut server,
            other,
            "mget key0 key100 key199 none",
            "*4\r\n$1\r\n1\r\n$3\r\n101\r\n$3\r\n200\r\n$-1\r\n",
        );
    }
}

#[test]
fn transactions_are_atomic_across_clients_and_workers() {
    for workers in [1, 2, 4] {
        let mut server = TestServer::new(workers);
        let clients: Vec<Client> = (0..8).map(|n| server.connect(n % workers)).collect();
        for round in 0..50 {
            for client in &clients {
                // The increments of ten keys are visible together or not at all.
                let adds: Vec<String> = (0..10).map(|n| format!("incr k{n}")).collect();
                let mut bytes = line("multi");
                bytes.extend(lines(&adds));
                bytes.extend(lines(&["exec", "multi", "mget k0 k1 k2 k3 k4 k5 k6 k7 k8 k9", "exec"]));
                server.send(*client, &bytes);
            }
            server.settle();
            for client in &clients {
                let replies = String::from_utf8(server.received(*client)).unwrap();
                let numbers: Vec<&str> = replies.split("\r\n").filter_map(|line| line.strip_prefix(':')).collect();
                assert_eq!(numbers.len(), 10, "{replies}");
                assert!(numbers.iter().all(|number| *number == numbers[0]), "{round}: {replies}");
                let (_, mget) = replies.rsplit_once("*10\r\n").unwrap();
                let seen: Vec<&str> = mget.split("\r\n").skip(1).step_by(2).collect();
                assert!(seen.iter().all(|value| *value == seen[0]), "{replies}");
            }
        }
        expect_reply(&mut server, clients[0], "get k9", "$3\r\n400\r\n");
    }
}

#[test]
fn change_of_watched_key_by_another_client_aborts_transaction() {
    for workers in [1, 3] {
        let mut server = TestServer::new(workers);
        let (one, other) = (server.connect(0), server.connect(workers - 1));
        for key in ["a", "b", "c", "d"] {
            expect_reply(&mut server, one, &format!("watch {key} z"), "+OK\r\n");
            expect_reply(&mut server, other, &format!("set {key} 1"), "+OK\r\n");
            assert_eq!(server.call(one, &lines(&["multi", "set z 1", "exec"])), "+OK\r\n+QUEUED\r\n*-1\r\n");
        }
        // A closed connection watches nothing.
        expect_reply(&mut server, one, "watch a b c", "+OK\r\n");
        server.lose(one);
        server.settle();
        expect_reply(&mut server, other, "set a 2", "+OK\r\n");
    }
}

#[test]
fn long_value_is_sent_without_copy_and_survives_overwriting() {
    for mut server in servers() {
        let (one, other) = (server.connect(0), server.connect(0));
        let value = "0123456789abcdef".repeat(6000);
        assert_eq!(server.call(one, &request(&["set", "key", &value])), "+OK\r\n");
        server.set_room(one, 1000);
        server.send(one, &line("get key"));
        server.settle();
        let mut received = server.received(one);
        assert_eq!(received.len(), 1000);
        expect_reply(&mut server, other, "set key short", "+OK\r\n");
        server.set_room(one, usize::MAX);
        server.settle();
        received.extend(server.received(one));
        assert!(received == format!("${}\r\n{value}\r\n", value.len()).as_bytes());
        assert!(server.end(one).attached + 64 >= value.len(), "{} bytes", server.end(one).attached);
    }
}

#[test]
fn client_that_does_not_read_is_disconnected_at_output_limit() {
    for workers in [1, 2] {
        let mut server = TestServer::with(workers, |settings| settings.output = 10_000);
        let (idle, other) = (server.connect(0), server.connect(0));
        assert_eq!(server.call(other, &request(&["set", "key", &"x".repeat(3000)])), "+OK\r\n");
        server.set_room(idle, 100);
        server.send(idle, &line("get key").repeat(100));
        server.settle();
        assert!(server.end(idle).is_aborted);
        assert!(!server.end(other).is_aborted);
        expect_reply(&mut server, other, "strlen key", ":3000\r\n");
    }
}

#[test]
fn client_with_much_input_does_not_delay_others() {
    let mut server = TestServer::new(1);
    let (busy, other) = (server.connect(0), server.connect(0));
    for _ in 0..100 {
        server.send(busy, &line("ping").repeat(1000));
    }
    server.send(other, &line("ping"));
    server.finish(busy);
    server.turn();
    assert_eq!(server.received(other), b"+PONG\r\n");
    let first = server.received(busy).len();
    assert!((1..350_000).contains(&first), "{first} bytes");
    server.settle();
    assert_eq!(first + server.received(busy).len(), 700_000);
    assert!(server.end(busy).is_closed);
}

#[test]
fn excessive_replies_of_one_client_leave_other_replies_in_batch_intact() {
    let mut server = TestServer::with(2, |settings| settings.output = 10_000);
    let mut aborted = 0;
    for n in 0..20 {
        // Both requests are in the same turn, and so in the same batch.
        let (greedy, other) = (server.connect(0), server.connect(0));
        let value = format!("{n:03000}");
        assert_eq!(server.call(other, &request(&["set", &format!("key:{n}"), &value])), "+OK\r\n");
        server.send(greedy, &line(&format!("get key:{n}")).repeat(30));
        server.send(other, &line(&format!("get key:{n}")));
        server.settle();
        let reply = format!("$3000\r\n{value}\r\n");
        assert_eq!(server.received(other), reply.as_bytes());
        let greedys = server.received(greedy);
        let is_aborted = server.end(greedy).is_aborted;
        assert!(greedys == if is_aborted { Vec::new() } else { reply.repeat(30).into_bytes() }, "key:{n}");
        aborted += usize::from(is_aborted);
    }
    assert!((1..20).contains(&aborted), "{aborted}");
}

#[test]
fn output_limit_applies_to_each_client_of_a_batch() {
    let mut server = TestServer::with(2, |settings| settings.output = 10_000);
    let clients: Vec<Client> = (0..4).map(|_| server.connect(0)).collect();
    for n in 0..20 {
        // All requests are in the same turn. The reply of a single client is assembled even beyond the limit.
        let value = format!("{n:03000}");
        assert_eq!(server.call(clients[0], &request(&["set", &format!("key:{n}"), &value])), "+OK\r\n");
        clients.iter().for_each(|client| server.send(*client, &line(&format!("get key:{n}")).repeat(20)));
        server.settle();
        let replies = format!("$3000\r\n{value}\r\n").repeat(20);
        assert!(clients.iter().all(|client| server.received(*client) == replies.as_bytes()), "key:{n}");
    }
}

#[test]
fn pipelining_client_gets_all_replies_when_it_reads() {
    for workers in [1, 2] {
        let mut server = TestServer::with(workers, |settings| settings.output = 8 << 20);
        let client = server.connect(0);
        assert_eq!(server.call(client, &request(&["set", "key", &"x".repeat(3000)])), "+OK\r\n");
        server.set_room(client, 0);
        for part in line("get key").repeat(1000).chunks(1000) {
            server.send(client, part);
            server.settle();
        }
        assert!(server.received(client).is_empty());
        server.set_room(client, usize::MAX);
        server.settle();
        assert!(server.received(client) == format!("$3000\r\n{}\r\n", "x".repeat(3000)).repeat(1000).as_bytes());
    }
}

#[test]
fn replies_beyond_limit_are_not_assembled() {
    for workers in [1, 2] {
        let mut server = TestServer::with(workers, |settings| settings.output = 1 << 20);
        let (greedy, other) = (server.connect(0), server.connect(0));
        for n in 0..100 {
            assert_eq!(server.call(greedy, &request(&["hset", "h", &format!("f{n}"), &"x".repeat(1000)])), ":1\r\n");
        }
        server.send(greedy, &line("multi"));
        server.send(greedy, &line("hgetall h").repeat(100));
        server.send(greedy, &line("exec"));
        server.settle();
        assert!(server.end(greedy).is_aborted);
        assert_eq!(server.received(greedy), [&b"+OK\r\n"[..], &b"+QUEUED\r\n".repeat(100)].concat());
        expect_reply(&mut server, other, "hlen h", ":100\r\n");
    }
}

#[test]
fn rejected_client_gets_error_reply_and_lingering_close() {
    for (bytes, reply) in [
        (&b"*1\r\n$-1\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"get 'a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        (b"quit\r\n", "+OK\r\n"),
    ] {
        let mut server = TestServer::new(1);
        let client = server.connect(0);
        assert_eq!(server.call(client, &[&line("ping"), bytes, &line("ping")].concat()), format!("+PONG\r\n{reply}"));
        assert!(server.end(client).is_closed && server.end(client).is_lingering);
        assert_eq!((server.unread(client), server.call(client, &line("ping"))), (0, String::new()));
    }
    let mut server = TestServer::with(1, |settings| settings.clients = 0);
    let client = server.connect(0);
    assert!(server.end(client).is_lingering);
    // No input can follow a half-close.
    let mut server = TestServer::new(1);
    let client = server.connect(0);
    server.finish(client);
    assert_eq!(server.call(client, &line("ping")), "+PONG\r\n");
    assert!(server.end(client).is_closed && !server.end(client).is_lingering);
}

#[test]
fn input_of_rejected_client_stays_unread_until_replies_are_sent() {
    let mut server = TestServer::new(1);
    let client = server.connect(0);
    server.set_room(client, 3);
    server.send(client, b"*1\r\n$-1\r\n");
    for _ in 0..10 {
        server.send(client, &line("ping").repeat(1000));
        server.settle();
    }
    assert!(!server.end(client).is_closed);
    assert_eq!(server.unread(client), 10 * 1000 * line("ping").len());
    server.set_room(client, 1000);
    server.settle();
    assert_eq!(server.received(client), b"-ERR Protocol error: invalid bulk length\r\n");
    assert!(server.end(client).is_lingering);
    assert_eq!(server.unread(client), 0);
}

#[test]
fn client_beyond_maxclients_gets_error() {
    let mut server = TestServer::with(2, |settings| settings.clients = 2);
    let (one, two, three) = (server.connect(0), server.connect(1), server.connect(0));
    assert_eq!(server.received(three), b"-ERR max number of clients reached\r\n");
    assert!(server.end(three).is_closed);
    server.lose(three);
    server.lose(two);
    let four = server.connect(1);
    expect_reply(&mut server, one, "ping", "+PONG\r\n");
    expect_reply(&mut server, four, "ping", "+PONG\r\n");
}

#[test]
fn idle_client_is_disconnected_after_timeout() {
    let mut server = TestServer::with(1, |settings| settings.timeout = 5);
    let (silent, lively, brief) = (server.connect(0), server.connect(0), server.connect(0));
    expect_reply(&mut server, lively, "set key value", "+OK\r\n");
    for _ in 0..8 {
        server.pass(Duration::from_secs(1));
        expect_reply(&mut server, lively, "ping", "+PONG\r\n");
        expect_reply(&mut server, brief, "get key", "$5\r\nvalue\r\n");
    }
    assert!(server.end(silent).is_aborted);
    assert!(!server.end(lively).is_aborted && !server.end(brief).is_aborted);
}

#[test]
fn client_list_shows_last_command_and_its_time_for_every_path() {
    let mut server = TestServer::new(1);
    let (one, other) = (server.connect(0), server.connect(0));
    expect_reply(&mut server, one, "set key value", "+OK\r\n");
    for (words, reply, name) in
        [("ping", "+PONG\r\n", "ping"), ("get key", "$5\r\nvalue\r\n", "get"), ("set key other", "+OK\r\n", "set")]
    {
        server.pass(Duration::from_secs(60));
        expect_reply(&mut server, one, words, reply);
        server.pass(Duration::from_secs(7));
        let list = server.call(other, &line("client list"));
        let own = list.lines().find(|line| line.starts_with("id=1 ")).unwrap();
        assert!(own.contains(" idle=7 ") && own.contains(&format!(" cmd={name} ")), "{own}");
        expect_reply(&mut server, one, "set key value", "+OK\r\n");
    }
}

#[test]
fn reply_does_not_overtake_queued_one() {
    let mut server = TestServer::new(1);
    let client = server.connect(0);
    expect_reply(&mut server, client, "mset a 1 b 2 c 3", "+OK\r\n");
    server.set_room(client, 0);
    assert_eq!(server.call(client, &line("get a")), "");
    // Room becomes available, and the next request arrives before the queued reply is sent.
    server.set_room(client, 1000);
    assert_eq!(server.call(client, &line("get b")), "$1\r\n1\r\n$1\r\n2\r\n");
    expect_reply(&mut server, client, "get c", "$1\r\n3\r\n");
}

#[test]
fn client_whose_input_exceeds_limit_is_disconnected() {
    for endless in ["*1000000\r\n$4\r\nMSET\r\n", "*1\r\n$5\r\nMULTI\r\n"] {
        let mut server = TestServer::with(1, |settings| settings.query = 1 << 20);
        let (endless_one, other) = (server.connect(0), server.connect(0));
        server.send(endless_one, endless.as_bytes());
        let more = match endless.contains("MSET") {
            true => format!("$1000\r\n{}\r\n", "x".repeat(1000)).into_bytes(),
            false => request(&["set", "key", &"x".repeat(1000)]),
        };
        for n in 0..1200 {
            assert!(n < 1100 || server.end(endless_one).is_aborted, "{n}");
            server.send(endless_one, &more);
            server.settle();
        }
        expect_reply(&mut server, other, "dbsize", ":0\r\n");
    }
}

#[test]
fn client_list_and_kill_cover_all_workers() {
    for workers in [1, 3] {
        let mut server = TestServer::new(workers);
        let clients: Vec<Client> = (0..6).map(|n| server.connect(n % workers)).collect();
        for (n, client) in clients.iter().enumerate() {
            expect_reply(&mut server, *client, &format!("client setname c{n}"), "+OK\r\n");
        }
        let list = server.call(clients[0], &line("client list"));
        assert_eq!(list.matches("id=").count(), 6, "{list}");
        assert!((0..6).all(|n| list.contains(&format!("name=c{n} "))), "{list}");
        expect_reply(&mut server, clients[0], "client id", ":1\r\n");
        expect_reply(&mut server, clients[0], "client kill id 5", ":1\r\n");
        assert!(server.end(clients[4]).is_aborted && !server.end(clients[3]).is_aborted);
    }
}

#[test]
fn memcached_keys_are_separate_and_in_all_shards() {
    for mut server in servers() {
        let (memcached, redis) = (server.connect_to_memcached(0), server.connect(0));
        for n in 0..20 {
            let set = format!("set key{n} {n} 0 5\r\nvalue\r\n");
            assert_eq!(server.call(memcached, set.as_bytes()), "STORED\r\n");
        }
        assert_eq!(
            server.call(memcached, b"get key3 none key4\r\n"),
            "VALUE key3 3 5\r\nvalue\r\nVALUE key4 4 5\r\nvalue\r\nEND\r\n"
        );
        let pipelined: String = (0..20).map(|n| format!("mg key{n} v\r\n")).collect();
        assert_eq!(server.call(memcached, pipelined.as_bytes()), "VA 5\r\nvalue\r\n".repeat(20));
        expect_reply(&mut server, redis, "dbsize", ":0\r\n");
        assert_eq!(server.call(memcached, b"flush_all\r\nget key3 key4\r\nquit\r\n"), "OK\r\nEND\r\n");
        assert!(server.end(memcached).is_closed);
    }
}

#[test]
fn password_is_required_first() {
    let mut server = TestServer::with(2, |settings| settings.password = Some(b"secret".to_vec()));
    let client = server.connect(0);
    for n in 0..8 {
        expect_reply(&mut server, client, &format!("get k{n}"), "-NOAUTH Authentication required.\r\n");
    }
    expect_reply(
        &mut server,
        client,
        "auth wrong",
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    expect_reply(&mut server, client, "auth secret", "+OK\r\n");
    expect_reply(&mut server, client, "get k1", "$-1\r\n");
}
