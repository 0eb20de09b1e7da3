//! The service as its clients see it, on one worker and on several.

mod datagrams;
mod fairness;
mod figures;
mod http;
mod net;
mod pieces;
mod settings;

use linerate_bypass::time::Duration;
use net::{Client, Host};

/// One request, as clients write it.
fn request(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n{arg}\r\n", arg.len()).bytes());
    }
    bytes
}

fn line(words: &str) -> Vec<u8> {
    request(&words.split(' ').collect::<Vec<_>>())
}

fn lines(requests: &[&str]) -> Vec<u8> {
    requests.iter().flat_map(|words| line(words)).collect()
}

#[track_caller]
fn says(host: &mut Host, client: Client, words: &str, reply: &str) {
    assert_eq!(host.ask(client, &line(words)), reply, "{words}");
}

/// Servers with one shard, and with more.
fn hosts() -> impl Iterator<Item = Host> {
    [1, 2, 5].into_iter().map(Host::new)
}

#[test]
fn replies_come_in_the_order_of_requests_wherever_their_keys_are() {
    for mut host in hosts() {
        let client = host.connect(0);
        let mut requests = Vec::new();
        let mut replies = String::new();
        for n in 0..200 {
            requests.extend(lines(&[
                &format!("set key{n} {n}"),
                &format!("get key{n}"),
                &format!("incr key{n}"),
                "ping",
            ]));
            let value = n.to_string();
            replies += &format!("+OK\r\n${}\r\n{value}\r\n:{}\r\n+PONG\r\n", value.len(), n + 1);
        }
        assert_eq!(host.ask(client, &requests), replies);
        assert_eq!(host.ask(client, &line("dbsize")), ":200\r\n");
        // Everybody sees the same.
        let other = host.connect(0);
        says(&mut host, other, "mget key0 key100 key199 none", "*4\r\n$1\r\n1\r\n$3\r\n101\r\n$3\r\n200\r\n$-1\r\n");
    }
}

#[test]
fn requests_may_come_in_any_pieces() {
    for mut host in hosts() {
        let long = "x".repeat(9000);
        let mut requests = lines(&["set a 1", "get a", "hset h f v"]);
        requests.extend(request(&["set", "long", &long]));
        requests.extend(lines(&["strlen long", "append long y", "get a"]));
        requests.extend(b"get a\r\nping\r\n");
        let replies = "+OK\r\n$1\r\n1\r\n:1\r\n+OK\r\n:9000\r\n:9001\r\n$1\r\n1\r\n$1\r\n1\r\n+PONG\r\n";
        for cut in (1..requests.len()).filter(|cut| *cut < 200 || *cut % 997 == 0 || *cut + 200 > requests.len()) {
            let client = host.connect(0);
            host.send(client, &requests[..cut]);
            if cut % 2 == 0 {
                host.settle();
            }
            let rest = host.ask(client, &requests[cut..]);
            assert_eq!(rest, replies, "{cut}");
            says(&mut host, client, "flushall", "+OK\r\n");
        }
        let client = host.connect(0);
        requests.chunks(7).for_each(|piece| host.send(client, piece));
        host.settle();
        assert_eq!(host.received(client), replies.as_bytes());
    }
}

#[test]
fn transactions_are_done_at_one_go_by_whoever_they_are() {
    for workers in [1, 2, 4] {
        let mut host = Host::new(workers);
        let clients: Vec<Client> = (0..8).map(|n| host.connect(n % workers)).collect();
        for round in 0..50 {
            for client in &clients {
                // What one adds to ten keys is seen together or not at all.
                let adds: Vec<String> = (0..10).map(|n| format!("incr k{n}")).collect();
                let adds: Vec<&str> = adds.iter().map(String::as_str).collect();
                let mut bytes = line("multi");
                bytes.extend(lines(&adds));
                bytes.extend(lines(&["exec", "mget k0 k1 k2 k3 k4 k5 k6 k7 k8 k9"]));
                host.send(*client, &bytes);
            }
            host.settle();
            for client in &clients {
                let replies = String::from_utf8(host.received(*client)).unwrap();
                let numbers: Vec<&str> = replies.split("\r\n").filter_map(|line| line.strip_prefix(':')).collect();
                assert_eq!(numbers.len(), 10, "{replies}");
                assert!(numbers.iter().all(|number| *number == numbers[0]), "{round}: {replies}");
                let (_, mget) = replies.rsplit_once("*10\r\n").unwrap();
                let seen: Vec<&str> = mget.split("\r\n").skip(1).step_by(2).collect();
                assert!(seen.iter().all(|value| *value == seen[0]), "{replies}");
            }
        }
        says(&mut host, clients[0], "get k9", "$3\r\n400\r\n");
    }
}

#[test]
fn a_watched_key_that_another_changes_lets_the_transaction_fail() {
    for workers in [1, 3] {
        let mut host = Host::new(workers);
        let (one, other) = (host.connect(0), host.connect(workers - 1));
        for key in ["a", "b", "c", "d"] {
            says(&mut host, one, &format!("watch {key} z"), "+OK\r\n");
            says(&mut host, other, &format!("set {key} 1"), "+OK\r\n");
            assert_eq!(host.ask(one, &lines(&["multi", "set z 1", "exec"])), "+OK\r\n+QUEUED\r\n*-1\r\n");
        }
        // Who has gone watches nothing.
        says(&mut host, one, "watch a b c", "+OK\r\n");
        host.lose(one);
        host.settle();
        says(&mut host, other, "set a 2", "+OK\r\n");
    }
}

#[test]
fn a_long_value_goes_out_from_where_it_lies_and_survives_being_overwritten() {
    for mut host in hosts() {
        let (one, other) = (host.connect(0), host.connect(0));
        let value = "0123456789abcdef".repeat(6000);
        assert_eq!(host.ask(one, &request(&["set", "key", &value])), "+OK\r\n");
        host.set_room(one, 1000);
        host.send(one, &line("get key"));
        host.settle();
        let mut received = host.received(one);
        assert_eq!(received.len(), 1000);
        says(&mut host, other, "set key short", "+OK\r\n");
        host.set_room(one, usize::MAX);
        host.settle();
        received.extend(host.received(one));
        assert!(received == format!("${}\r\n{value}\r\n", value.len()).as_bytes());
        assert!(host.end(one).attached + 64 >= value.len(), "{} bytes", host.end(one).attached);
    }
}

#[test]
fn who_does_not_read_is_disconnected_at_the_limit_and_nobody_else_notices() {
    for workers in [1, 2] {
        let mut host = Host::with(workers, |settings| settings.output = 10_000);
        let (idle, other) = (host.connect(0), host.connect(0));
        assert_eq!(host.ask(other, &request(&["set", "key", &"x".repeat(3000)])), "+OK\r\n");
        host.set_room(idle, 100);
        let requests: Vec<u8> = std::iter::repeat_n(line("get key"), 100).flatten().collect();
        host.send(idle, &requests);
        host.settle();
        assert!(host.end(idle).is_aborted);
        assert!(!host.end(other).is_aborted);
        says(&mut host, other, "strlen key", ":3000\r\n");
    }
}

#[test]
fn who_has_sent_much_does_not_keep_others_waiting() {
    let mut host = Host::new(1);
    let (busy, other) = (host.connect(0), host.connect(0));
    for _ in 0..100 {
        host.send(busy, &line("ping").repeat(1000));
    }
    host.send(other, &line("ping"));
    host.finish(busy);
    host.turn();
    assert_eq!(host.received(other), b"+PONG\r\n");
    let first = host.received(busy).len();
    assert!((1..350_000).contains(&first), "{first} bytes");
    host.settle();
    assert_eq!(first + host.received(busy).len(), 700_000);
    assert!(host.end(busy).is_closed);
}

#[test]
fn too_many_replies_of_one_client_leave_those_alone_that_come_with_them() {
    let mut host = Host::with(2, |settings| settings.output = 10_000);
    let mut aborted = 0;
    for n in 0..20 {
        // Whatever worker has the key, both ask for it in one turn.
        let (greedy, other) = (host.connect(0), host.connect(0));
        let value = format!("{n:03000}");
        assert_eq!(host.ask(other, &request(&["set", &format!("key:{n}"), &value])), "+OK\r\n");
        host.send(greedy, &line(&format!("get key:{n}")).repeat(30));
        host.send(other, &line(&format!("get key:{n}")));
        host.settle();
        let reply = format!("$3000\r\n{value}\r\n");
        assert_eq!(host.received(other), reply.as_bytes());
        let greedys = host.received(greedy);
        let is_aborted = host.end(greedy).is_aborted;
        assert!(greedys == if is_aborted { Vec::new() } else { reply.repeat(30).into_bytes() }, "key:{n}");
        aborted += usize::from(is_aborted);
    }
    assert!((1..20).contains(&aborted), "{aborted}");
}

#[test]
fn whose_replies_are_few_enough_alone_gets_them_in_company() {
    let mut host = Host::with(2, |settings| settings.output = 10_000);
    let clients: Vec<Client> = (0..4).map(|_| host.connect(0)).collect();
    for n in 0..20 {
        // Whatever worker has the key, all ask for it in one turn; what one of them gets is put together whatever the limit.
        let value = format!("{n:03000}");
        assert_eq!(host.ask(clients[0], &request(&["set", &format!("key:{n}"), &value])), "+OK\r\n");
        clients.iter().for_each(|client| host.send(*client, &line(&format!("get key:{n}")).repeat(20)));
        host.settle();
        let replies = format!("$3000\r\n{value}\r\n").repeat(20);
        assert!(clients.iter().all(|client| host.received(*client) == replies.as_bytes()), "key:{n}");
    }
}

#[test]
fn who_asks_for_much_before_reading_gets_all_of_it() {
    for workers in [1, 2] {
        let mut host = Host::with(workers, |settings| settings.output = 8 << 20);
        let client = host.connect(0);
        assert_eq!(host.ask(client, &request(&["set", "key", &"x".repeat(3000)])), "+OK\r\n");
        host.set_room(client, 0);
        let requests: Vec<u8> = std::iter::repeat_n(line("get key"), 1000).flatten().collect();
        for part in requests.chunks(1000) {
            host.send(client, part);
            host.settle();
        }
        assert!(host.received(client).is_empty());
        host.set_room(client, usize::MAX);
        host.settle();
        assert!(host.received(client) == format!("$3000\r\n{}\r\n", "x".repeat(3000)).repeat(1000).as_bytes());
    }
}

#[test]
fn replies_that_are_too_many_are_not_put_together() {
    for workers in [1, 2] {
        let mut host = Host::with(workers, |settings| settings.output = 1 << 20);
        let (greedy, other) = (host.connect(0), host.connect(0));
        for n in 0..100 {
            assert_eq!(host.ask(greedy, &request(&["hset", "h", &format!("f{n}"), &"x".repeat(1000)])), ":1\r\n");
        }
        host.send(greedy, &line("multi"));
        host.send(greedy, &line("hgetall h").repeat(100));
        host.send(greedy, &line("exec"));
        host.settle();
        assert!(host.end(greedy).is_aborted);
        assert_eq!(host.received(greedy), [&b"+OK\r\n"[..], &b"+QUEUED\r\n".repeat(100)].concat());
        says(&mut host, other, "hlen h", ":100\r\n");
    }
}

#[test]
fn what_is_no_request_is_refused_in_redis_words_and_the_connection_closed() {
    for (bytes, reply) in [
        (&b"*1\r\n$-1\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n$600000000\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*2147483648\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n*1\r\n", "-ERR Protocol error: expected '$', got '*'\r\n"),
        (b"get 'a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
    ] {
        let mut host = Host::new(1);
        let client = host.connect(0);
        let mut all = line("ping");
        all.extend(bytes);
        all.extend(line("ping"));
        assert_eq!(host.ask(client, &all), format!("+PONG\r\n{reply}"));
        assert!(host.end(client).is_closed);
        assert_eq!(host.ask(client, &line("ping")), "");
    }
}

#[test]
fn client_that_is_refused_is_closed_with_a_lingering_close() {
    for (bytes, reply) in
        [(&b"*1\r\n$-1\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"), (b"quit\r\n", "+OK\r\n")]
    {
        let mut host = Host::new(1);
        let client = host.connect(0);
        assert_eq!(host.ask(client, &[bytes, &line("ping")].concat()), reply);
        assert!(host.end(client).is_lingering);
        assert_eq!(host.unread(client), 0);
    }
    let mut host = Host::with(1, |settings| settings.clients = 0);
    let client = host.connect(0);
    assert!(host.end(client).is_lingering);
    // Nothing more can come of a client that has finished.
    let mut host = Host::new(1);
    let client = host.connect(0);
    host.finish(client);
    assert_eq!(host.ask(client, &line("ping")), "+PONG\r\n");
    assert!(host.end(client).is_closed && !host.end(client).is_lingering);
}

#[test]
fn input_of_a_refused_client_waits_until_it_has_taken_its_replies() {
    let mut host = Host::new(1);
    let client = host.connect(0);
    host.set_room(client, 3);
    host.send(client, b"*1\r\n$-1\r\n");
    for _ in 0..10 {
        host.send(client, &line("ping").repeat(1000));
        host.settle();
    }
    assert!(!host.end(client).is_closed);
    assert_eq!(host.unread(client), 10 * 1000 * line("ping").len());
    host.set_room(client, 1000);
    host.settle();
    assert_eq!(host.received(client), b"-ERR Protocol error: invalid bulk length\r\n");
    assert!(host.end(client).is_lingering);
    assert_eq!(host.unread(client), 0);
}

#[test]
fn one_client_too_many_is_told_so() {
    let mut host = Host::with(2, |settings| settings.clients = 2);
    let (one, two, three) = (host.connect(0), host.connect(1), host.connect(0));
    assert_eq!(host.received(three), b"-ERR max number of clients reached\r\n");
    assert!(host.end(three).is_closed);
    host.lose(three);
    host.lose(two);
    let four = host.connect(1);
    says(&mut host, one, "ping", "+PONG\r\n");
    says(&mut host, four, "ping", "+PONG\r\n");
}

#[test]
fn who_is_silent_for_too_long_is_disconnected() {
    let mut host = Host::with(1, |settings| settings.timeout = 5);
    let (silent, lively, brief) = (host.connect(0), host.connect(0), host.connect(0));
    says(&mut host, lively, "set key value", "+OK\r\n");
    for _ in 0..8 {
        host.pass(Duration::from_secs(1));
        says(&mut host, lively, "ping", "+PONG\r\n");
        says(&mut host, brief, "get key", "$5\r\nvalue\r\n");
    }
    assert!(host.end(silent).is_aborted);
    assert!(!host.end(lively).is_aborted && !host.end(brief).is_aborted);
}

#[test]
fn the_last_of_a_clients_requests_is_listed_with_its_time_however_it_was_answered() {
    let mut host = Host::new(1);
    let (one, other) = (host.connect(0), host.connect(0));
    says(&mut host, one, "set key value", "+OK\r\n");
    for (words, reply, name) in
        [("ping", "+PONG\r\n", "ping"), ("get key", "$5\r\nvalue\r\n", "get"), ("set key other", "+OK\r\n", "set")]
    {
        host.pass(Duration::from_secs(60));
        says(&mut host, one, words, reply);
        host.pass(Duration::from_secs(7));
        let list = host.ask(other, &line("client list"));
        let own = list.lines().find(|line| line.starts_with("id=1 ")).unwrap();
        assert!(own.contains(" idle=7 ") && own.contains(&format!(" cmd={name} ")), "{own}");
        says(&mut host, one, "set key value", "+OK\r\n");
    }
}

#[test]
fn no_answer_overtakes_one_that_waits() {
    let mut host = Host::new(1);
    let client = host.connect(0);
    says(&mut host, client, "mset a 1 b 2 c 3", "+OK\r\n");
    host.set_room(client, 0);
    assert_eq!(host.ask(client, &line("get a")), "");
    // There is room again, and the next request comes before anybody has made use of that.
    host.set_room(client, 1000);
    assert_eq!(host.ask(client, &line("get b")), "$1\r\n1\r\n$1\r\n2\r\n");
    says(&mut host, client, "get c", "$1\r\n3\r\n");
}

#[test]
fn who_sends_more_than_is_kept_is_disconnected_and_nobody_else() {
    for endless in ["*1000000\r\n$4\r\nMSET\r\n", "*1\r\n$5\r\nMULTI\r\n"] {
        let mut host = Host::with(1, |settings| settings.query = 1 << 20);
        let (endless_one, other) = (host.connect(0), host.connect(0));
        host.send(endless_one, endless.as_bytes());
        let more = match endless.contains("MSET") {
            true => format!("$1000\r\n{}\r\n", "x".repeat(1000)).into_bytes(),
            false => request(&["set", "key", &"x".repeat(1000)]),
        };
        for n in 0..1200 {
            assert!(n < 1100 || host.end(endless_one).is_aborted, "{n}");
            host.send(endless_one, &more);
            host.settle();
        }
        says(&mut host, other, "dbsize", ":0\r\n");
    }
}

#[test]
fn clients_of_all_workers_are_listed_and_can_be_disconnected() {
    for workers in [1, 3] {
        let mut host = Host::new(workers);
        let clients: Vec<Client> = (0..6).map(|n| host.connect(n % workers)).collect();
        for (n, client) in clients.iter().enumerate() {
            says(&mut host, *client, &format!("client setname c{n}"), "+OK\r\n");
        }
        let list = host.ask(clients[0], &line("client list"));
        assert_eq!(list.matches("id=").count(), 6, "{list}");
        assert!((0..6).all(|n| list.contains(&format!("name=c{n} "))), "{list}");
        says(&mut host, clients[0], "client id", ":1\r\n");
        says(&mut host, clients[0], "client kill id 5", ":1\r\n");
        assert!(host.end(clients[4]).is_aborted && !host.end(clients[3]).is_aborted);
    }
}

#[test]
fn a_client_that_has_finished_gets_its_replies_before_the_end() {
    for mut host in hosts() {
        let client = host.connect(0);
        let requests: Vec<u8> = (0..50).flat_map(|n| line(&format!("set k{n} v"))).collect();
        host.send(client, &requests);
        host.finish(client);
        host.settle();
        assert_eq!(host.received(client), b"+OK\r\n".repeat(50));
        assert!(host.end(client).is_closed);
    }
}

#[test]
fn memcached_clients_have_keys_of_their_own_in_all_shards() {
    for mut host in hosts() {
        let (memcached, redis) = (host.connect_to_memcached(0), host.connect(0));
        for n in 0..20 {
            let set = format!("set key{n} {n} 0 5\r\nvalue\r\n");
            assert_eq!(host.ask(memcached, set.as_bytes()), "STORED\r\n");
        }
        assert_eq!(
            host.ask(memcached, b"get key3 none key4\r\n"),
            "VALUE key3 3 5\r\nvalue\r\nVALUE key4 4 5\r\nvalue\r\nEND\r\n"
        );
        let pipelined: String = (0..20).map(|n| format!("mg key{n} v\r\n")).collect();
        assert_eq!(host.ask(memcached, pipelined.as_bytes()), "VA 5\r\nvalue\r\n".repeat(20));
        says(&mut host, redis, "dbsize", ":0\r\n");
        assert_eq!(host.ask(memcached, b"flush_all\r\nget key3 key4\r\nquit\r\n"), "OK\r\nEND\r\n");
        assert!(host.end(memcached).is_closed);
    }
}

#[test]
fn the_password_comes_first() {
    let mut host = Host::with(2, |settings| settings.password = Some(b"secret".to_vec()));
    let client = host.connect(0);
    for n in 0..8 {
        says(&mut host, client, &format!("get k{n}"), "-NOAUTH Authentication required.\r\n");
    }
    says(&mut host, client, "auth wrong", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    says(&mut host, client, "auth secret", "+OK\r\n");
    says(&mut host, client, "get k1", "$-1\r\n");
}
