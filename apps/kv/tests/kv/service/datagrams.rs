//! memcached over UDP.

use super::net::TestServer;
use linerate_kv::memcached::udp::{DATAGRAM, Frame, HEADER, MAX_DATAGRAMS, MAX_REPLY};
use linerate_service::Datagram;
use proptest::prelude::*;

const FROM: u16 = 5000;

fn servers() -> impl Iterator<Item = TestServer> {
    [1, 2, 5].into_iter().map(|workers| TestServer::with_datagrams(workers, |_| {}))
}

fn datagram(id: u16, requests: &[u8]) -> Vec<u8> {
    [&Frame::request(id).bytes()[..], requests].concat()
}

/// Returns the reply in `datagrams`, which must be one message with this id.
#[track_caller]
fn message(id: u16, datagrams: &[Datagram]) -> Vec<u8> {
    assert!(datagrams.len() <= MAX_DATAGRAMS, "{}", datagrams.len());
    let mut all = Vec::new();
    for (sequence, datagram) in datagrams.iter().enumerate() {
        assert!(datagram.payload.len() <= DATAGRAM);
        assert_eq!((datagram.local.port(), datagram.remote.port()), (11211, FROM));
        let (frame, rest) = Frame::read(&datagram.payload).unwrap();
        assert_eq!(frame, Frame { id, sequence: sequence as u16, total: datagrams.len() as u16 });
        assert_eq!(datagram.payload[6..HEADER], [0, 0], "it is reserved");
        assert!(!rest.is_empty());
        all.extend_from_slice(rest);
    }
    all
}

/// Returns the reply of `worker` to `requests` in one datagram.
#[track_caller]
fn call(server: &mut TestServer, worker: usize, requests: &[u8]) -> String {
    let id = requests.len() as u16 ^ 0xabcd;
    server.datagram(worker, FROM, &datagram(id, requests));
    server.settle();
    String::from_utf8(message(id, &server.datagrams(worker))).unwrap()
}

fn stat(server: &mut TestServer, name: &str) -> u64 {
    // Counters are published periodically.
    server.pass(linerate_service::time::Duration::from_millis(2));
    let client = server.connect_to_memcached(0);
    let stats = server.call(client, b"stats\r\n");
    server.lose(client);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("{name}: {stats}")).parse().unwrap()
}

#[test]
fn datagram_requests_reach_keys_of_all_shards() {
    for mut server in servers() {
        for n in 0..50 {
            assert_eq!(call(&mut server, 0, format!("set key{n} {n} 0 2\r\n{n:02}\r\n").as_bytes()), "STORED\r\n");
        }
        for n in 0..50 {
            assert_eq!(
                call(&mut server, 0, format!("get key{n}\r\n").as_bytes()),
                format!("VALUE key{n} {n} 2\r\n{n:02}\r\nEND\r\n")
            );
        }
        assert_eq!(call(&mut server, 0, b"mg key7 v\r\nmn\r\n"), "VA 2\r\n07\r\nMN\r\n");
        assert_eq!(stat(&mut server, "udp_requests"), 101);
        assert_eq!((stat(&mut server, "udp_ignored"), stat(&mut server, "udp_dropped")), (0, 0));
        // Keys are the same as over connections.
        let client = server.connect_to_memcached(0);
        assert_eq!(server.call(client, b"incr key7 1\r\n"), "8\r\n");
        assert!(server.call(client, b"stats settings\r\n").contains("STAT udpport 11211\r\n"));
    }
}

#[test]
fn requests_of_one_datagram_have_one_reply() {
    for mut server in servers() {
        let sets: String = (0..20).map(|n| format!("set key{n} 0 0 1\r\nx\r\n")).collect();
        assert_eq!(call(&mut server, 0, sets.as_bytes()), "STORED\r\n".repeat(20));
        let names: String = (0..20).map(|n| format!(" key{n}")).collect();
        let values: String = (0..20).map(|n| format!("VALUE key{n} 0 1\r\nx\r\n")).collect();
        assert_eq!(call(&mut server, 0, format!("get{names}\r\n").as_bytes()), format!("{values}END\r\n"));
        assert_eq!(call(&mut server, 0, b"flush_all\r\nget key1 key2\r\n"), "OK\r\nEND\r\n");
        // Quiet requests get no reply.
        for silent in ["set a 0 0 1 noreply\r\nx\r\n", "quit\r\n", "mg none q\r\n"] {
            assert_eq!(call(&mut server, 0, silent.as_bytes()), "");
        }
        assert_eq!(call(&mut server, 0, b"quit\r\nget a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n", "quit has no effect");
    }
}

#[test]
fn datagram_without_request_gets_no_reply() {
    for mut server in servers() {
        let request = |frame: Frame| [&frame.bytes()[..], b"mn\r\n"].concat();
        let mut strange = vec![
            Vec::new(),
            b"mn\r\n".to_vec(),
            datagram(1, b""),
            datagram(1, b"mn"),
            datagram(1, b"\r\n"),
            datagram(1, b"get\r\n"),
            datagram(1, b"nonsense\r\nmn\r\n"),
            datagram(1, &[b'x'; 3000]),
            datagram(1, &[b"get ".repeat(1000), b"\n".to_vec()].concat()[1..]),
        ];
        strange.extend([0, 2, 256, u16::MAX].map(|total| request(Frame { id: 1, sequence: 0, total })));
        for datagram in &strange {
            server.datagram(0, FROM, datagram);
        }
        server.datagram(0, 0, &request(Frame::request(1)));
        // Port of Redis clients.
        server.datagram_to(6379, 0, FROM, &request(Frame::request(1)));
        server.settle();
        assert_eq!(server.datagrams(0), []);
        assert_eq!(stat(&mut server, "udp_ignored"), strange.len() as u64 + 1);
        assert_eq!(stat(&mut server, "udp_requests"), 0);
        // Like memcached, the server ignores the rest of the header.
        server.datagram(0, FROM, &[0, 9, 0, 5, 0, 1, 7, 7, b'm', b'n', b'\r', b'\n']);
        server.settle();
        assert_eq!(message(9, &server.datagrams(0)), b"MN\r\n");
    }
}

#[test]
fn no_reply_is_a_request_that_gets_a_reply() {
    let mut server = TestServer::with_datagrams(2, |_| {});
    call(&mut server, 0, b"set trap 0 0 23\r\n\r\nget trap\r\nmn\r\nget \r\n\r\n");
    call(&mut server, 0, format!("set long 0 0 6000\r\n{}\r\n", "get trap\r\n".repeat(600)).as_bytes());
    for requests in [
        "get trap\r\n",
        "gets trap none\r\n",
        "mg trap v\r\n",
        "mg none v\r\n",
        "me trap\r\n",
        "mn\r\n",
        "version\r\n",
        "stats\r\n",
        "set n 0 0 1\r\n1\r\n",
        "incr n 1\r\n",
        "delete n\r\n",
        "touch none 1\r\n",
        "set n 0 0 9\r\nshort\r\n",
        "set n 0 0 2\r\nlonger\r\n",
        "incr trap 1\r\n",
        "verbosity 1\r\n",
        "get long\r\n",
        "get long long\r\n",
    ] {
        server.datagram(0, FROM, &datagram(3, requests.as_bytes()));
        server.settle();
        let answers = server.datagrams(0);
        assert!(!answers.is_empty(), "{requests}");
        // As if another server had sent it.
        for answer in answers {
            server.datagram(0, FROM, &answer.payload);
            server.settle();
            assert_eq!(server.datagrams(0), [], "{requests}");
        }
    }
}

#[test]
fn request_beyond_its_datagram_is_rejected_and_stores_nothing() {
    for mut server in servers() {
        let cut = "CLIENT_ERROR the request does not end in its datagram\r\n";
        assert_eq!(call(&mut server, 0, b"set a 0 0 10\r\nabc\r\n"), cut);
        assert_eq!(call(&mut server, 0, b"get a\r\nset a 0 0 500000\r\nabc\r\n"), format!("END\r\n{cut}"));
        assert_eq!(call(&mut server, 0, b"mn\r\nget a"), format!("MN\r\n{cut}"));
        // The next datagram is not part of it.
        assert_eq!(call(&mut server, 0, b"get a\r\n"), "END\r\n");
        let large = "SERVER_ERROR object too large for cache\r\n";
        assert_eq!(call(&mut server, 0, b"set a 0 0 2000000\r\nset b 0 0 1\r\nx\r\n"), large);
        assert_eq!(call(&mut server, 0, b"get b\r\n"), "END\r\n");
    }
}

#[test]
fn long_reply_takes_several_datagrams_up_to_limit() {
    let error = "SERVER_ERROR the reply needs more than 8 datagrams: use a connection\r\n";
    for mut server in servers() {
        let client = server.connect_to_memcached(0);
        // Exactly one datagram, one byte more, the maximum, one byte more, and far more.
        let line = |len: usize| format!("VALUE key 0 {len}\r\n").len() + 7;
        let fits = |answer: usize| answer - line(answer - 25);
        for len in [1, fits(1392), fits(1392) + 1, 5000, fits(MAX_REPLY), fits(MAX_REPLY) + 1, 500_000] {
            let value: String = (0..len).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
            assert_eq!(server.call(client, format!("set key 0 0 {len}\r\n{value}\r\n").as_bytes()), "STORED\r\n");
            let answer = server.call(client, b"get key\r\n");
            server.datagram(0, FROM, &datagram(7, b"get key\r\n"));
            server.settle();
            let datagrams = server.datagrams(0);
            let whole = answer.len() <= MAX_REPLY;
            assert_eq!(datagrams.len(), if whole { answer.len().div_ceil(1392) } else { 1 }, "{len}");
            assert_eq!(message(7, &datagrams), if whole { answer.as_bytes() } else { error.as_bytes() }, "{len}");
        }
        // Many short values, and more than are ever kept.
        server.call(client, format!("set key 0 0 1000\r\n{}\r\n", "x".repeat(1000)).as_bytes());
        for count in [12, 5000] {
            assert_eq!(call(&mut server, 0, format!("get{}\r\n", " key".repeat(count)).as_bytes()), error);
        }
        assert_eq!(call(&mut server, 0, b"mn\r\n"), "MN\r\n");
    }
}

#[test]
fn datagrams_and_connections_are_served_in_same_turn() {
    for mut server in servers() {
        let clients: Vec<_> = (0..20).flat_map(|_| [server.connect(0), server.connect_to_memcached(0)]).collect();
        for count in 0..100 {
            for n in 0..count {
                server.datagram(0, FROM, &datagram(n, format!("set key{n} 0 0 1\r\nx\r\n").as_bytes()));
            }
            for (n, client) in clients.iter().enumerate() {
                server.send(*client, if n % 2 == 0 { b"GET key\r\n" } else { b"get k\r\n" });
            }
            server.settle();
            let replies: Vec<_> = clients.iter().map(|client| server.received(*client)).collect();
            assert!(replies.chunks(2).all(|pair| pair == [&b"$-1\r\n"[..], b"END\r\n"]), "{replies:?}");
            assert_eq!(server.datagrams(0).len(), usize::from(count));
        }
    }
}

#[test]
fn server_ignores_datagrams_unless_enabled() {
    let mut server = TestServer::new(1);
    server.datagram(0, FROM, &datagram(1, b"mn\r\n"));
    server.settle();
    assert_eq!(server.datagrams(0), []);
    let client = server.connect_to_memcached(0);
    assert!(server.call(client, b"stats settings\r\n").contains("STAT udpport 0\r\n"));
}

#[test]
fn datagrams_without_room_are_dropped_and_counted() {
    const FLOOD: u64 = 10_000;
    for workers in [1, 2] {
        let mut server = TestServer::with_datagrams(workers, |_| {});
        // All at once, for keys of both workers.
        for n in 0..FLOOD {
            server.datagram(0, FROM, &datagram(n as u16, format!("get key{n}\r\n").as_bytes()));
        }
        server.settle();
        let answered = server.datagrams(0).len() as u64;
        let dropped = stat(&mut server, "udp_dropped");
        assert_eq!(answered + dropped, FLOOD);
        assert_eq!(dropped > 0, workers > 1, "only requests for another worker are queued: {dropped}");
        assert_eq!(call(&mut server, 0, b"mn\r\n"), "MN\r\n");

        let before = stat(&mut server, "udp_dropped");
        call(&mut server, 0, format!("set key 0 0 5000\r\n{}\r\n", "x".repeat(5000)).as_bytes());
        server.set_datagram_room(0, 2);
        server.datagram(0, FROM, &datagram(1, b"get key\r\n"));
        server.datagram(0, FROM, &datagram(2, b"mn\r\n"));
        server.settle();
        assert_eq!(server.datagrams(0).len(), 2);
        // The reply from another worker comes last. The short reply was sent before.
        let dropped = stat(&mut server, "udp_dropped") - before;
        assert!(dropped == 2 || workers > 1 && dropped == 1, "{dropped}");
        server.set_datagram_room(0, usize::MAX);
        assert_eq!(call(&mut server, 0, b"mn\r\n"), "MN\r\n");
    }
}

/// Returns a request that means the same on every connection.
fn request() -> impl Strategy<Value = String> {
    let key = (0..6u8).prop_map(|n| format!("k{n}"));
    let value = proptest::collection::vec(b'0'..=b'9', 0..40).prop_map(|bytes| String::from_utf8(bytes).unwrap());
    prop_oneof![
        proptest::collection::vec(key.clone(), 1..5).prop_map(|keys| format!("get {}\r\n", keys.join(" "))),
        (key.clone(), value.clone()).prop_map(|(key, v)| format!("set {key} 5 0 {}\r\n{v}\r\n", v.len())),
        (key.clone(), value.clone()).prop_map(|(key, v)| format!("add {key} 0 0 {} noreply\r\n{v}\r\n", v.len())),
        (key.clone(), value).prop_map(|(key, v)| format!("ms {key} {} T0\r\n{v}\r\n", v.len())),
        (key.clone(), 0..99u8).prop_map(|(key, by)| format!("incr {key} {by}\r\n")),
        key.clone().prop_map(|key| format!("delete {key}\r\n")),
        key.clone().prop_map(|key| format!("mg {key} s v f\r\n")),
        Just("flush_all\r\n".to_owned()),
        Just("version\r\n".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn datagram_replies_equal_those_of_a_connection(
        workers in 1..4usize,
        datagrams in proptest::collection::vec(proptest::collection::vec(request(), 1..6), 1..20),
    ) {
        let (mut one, mut other) = (TestServer::with_datagrams(workers, |_| {}), TestServer::new(workers));
        let client = other.connect_to_memcached(0);
        for requests in datagrams {
            let requests = requests.concat();
            prop_assert_eq!(call(&mut one, 0, requests.as_bytes()), other.call(client, requests.as_bytes()));
        }
    }
}

#[test]
fn datagram_that_waits_for_shards_when_a_pause_begins_is_dropped() {
    let mut server = TestServer::with_datagrams(3, |_| {});
    let [admin, client] = [server.connect(0), server.connect_to_memcached(1)];
    let keys: Vec<String> = (0..30).map(|n| format!("key{n}")).collect();
    // Worker 1 borrows the shard of worker 0, and waits for that of worker 2.
    server.send(client, format!("get {}\r\n", keys.join(" ")).as_bytes());
    [1, 1, 0, 1].into_iter().for_each(|worker| server.turn_of(worker));
    let sets: String = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")).collect();
    server.datagram(0, FROM, &datagram(1, sets.as_bytes()));
    server.turn_of(0);
    server.send(admin, b"client pause 100000 write\r\n");
    // The admin's request yields to the others before its last step.
    [0, 1, 2, 0, 0].into_iter().for_each(|worker| server.turn_of(worker));
    assert_eq!(server.received(admin), b"+OK\r\n");
    server.settle();
    assert_eq!(server.received(client), b"END\r\n");
    assert_eq!(server.call(client, format!("get {}\r\n", keys.join(" ")).as_bytes()), "END\r\n");
    assert!(server.datagrams(0).is_empty());
    assert_eq!(stat(&mut server, "udp_dropped"), 1);
}
