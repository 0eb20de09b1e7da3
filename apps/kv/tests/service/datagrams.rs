//! memcached's clients without connections.

use crate::net::Host;
use linerate_bypass::Datagram;
use linerate_kv::memcached::udp::{ANSWER, DATAGRAM, Frame, HEADER, MOST};
use proptest::prelude::*;

const FROM: u16 = 5000;

fn hosts() -> impl Iterator<Item = Host> {
    [1, 2, 5].into_iter().map(|workers| Host::with_datagrams(workers, |_| {}))
}

fn datagram(id: u16, requests: &[u8]) -> Vec<u8> {
    [&Frame::request(id).bytes()[..], requests].concat()
}

/// The answer that `datagrams` are, which are one message with this name.
#[track_caller]
fn message(id: u16, datagrams: &[Datagram]) -> Vec<u8> {
    assert!(datagrams.len() <= MOST, "{}", datagrams.len());
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

/// What `worker` answers to `requests` in one datagram.
#[track_caller]
fn ask(host: &mut Host, worker: usize, requests: &[u8]) -> String {
    let id = requests.len() as u16 ^ 0xabcd;
    host.datagram(worker, FROM, &datagram(id, requests));
    host.settle();
    String::from_utf8(message(id, &host.datagrams(worker))).unwrap()
}

fn stat(host: &mut Host, name: &str) -> u64 {
    // What was counted is known a little later.
    host.pass(linerate_bypass::time::Duration::from_millis(2));
    let client = host.connect_to_memcached(0);
    let stats = host.ask(client, b"stats\r\n");
    host.lose(client);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("{name}: {stats}")).parse().unwrap()
}

#[test]
fn requests_are_answered_under_their_names_wherever_their_keys_are() {
    for mut host in hosts() {
        for n in 0..50 {
            assert_eq!(ask(&mut host, 0, format!("set key{n} {n} 0 2\r\n{n:02}\r\n").as_bytes()), "STORED\r\n");
        }
        for n in 0..50 {
            assert_eq!(
                ask(&mut host, 0, format!("get key{n}\r\n").as_bytes()),
                format!("VALUE key{n} {n} 2\r\n{n:02}\r\nEND\r\n")
            );
        }
        assert_eq!(ask(&mut host, 0, b"mg key7 v\r\nmn\r\n"), "VA 2\r\n07\r\nMN\r\n");
        assert_eq!(stat(&mut host, "udp_requests"), 101);
        assert_eq!((stat(&mut host, "udp_ignored"), stat(&mut host, "udp_dropped")), (0, 0));
        // They are those of memcached's clients with connections.
        let client = host.connect_to_memcached(0);
        assert_eq!(host.ask(client, b"incr key7 1\r\n"), "8\r\n");
        assert!(host.ask(client, b"stats settings\r\n").contains("STAT udpport 11211\r\n"));
    }
}

#[test]
fn several_requests_in_one_datagram_have_one_answer_and_keys_of_all_shards() {
    for mut host in hosts() {
        let sets: String = (0..20).map(|n| format!("set key{n} 0 0 1\r\nx\r\n")).collect();
        assert_eq!(ask(&mut host, 0, sets.as_bytes()), "STORED\r\n".repeat(20));
        let names: String = (0..20).map(|n| format!(" key{n}")).collect();
        let values: String = (0..20).map(|n| format!("VALUE key{n} 0 1\r\nx\r\n")).collect();
        assert_eq!(ask(&mut host, 0, format!("get{names}\r\n").as_bytes()), format!("{values}END\r\n"));
        assert_eq!(ask(&mut host, 0, b"flush_all\r\nget key1 key2\r\n"), "OK\r\nEND\r\n");
        // Nothing is said to whom nothing is to be said.
        for silent in ["set a 0 0 1 noreply\r\nx\r\n", "quit\r\n", "mg none q\r\n"] {
            assert_eq!(ask(&mut host, 0, silent.as_bytes()), "");
        }
        assert_eq!(ask(&mut host, 0, b"quit\r\nget a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n", "there is nothing to quit");
    }
}

#[test]
fn what_is_no_request_in_one_datagram_is_not_answered() {
    for mut host in hosts() {
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
            host.datagram(0, FROM, datagram);
        }
        host.datagram(0, 0, &request(Frame::request(1)));
        // That is where Redis' clients come.
        host.datagram_to(6379, 0, FROM, &request(Frame::request(1)));
        host.settle();
        assert_eq!(host.datagrams(0), []);
        assert_eq!(stat(&mut host, "udp_ignored"), strange.len() as u64 + 1);
        assert_eq!(stat(&mut host, "udp_requests"), 0);
        // What else the header says is no matter to memcached.
        host.datagram(0, FROM, &[0, 9, 0, 5, 0, 1, 7, 7, b'm', b'n', b'\r', b'\n']);
        host.settle();
        assert_eq!(message(9, &host.datagrams(0)), b"MN\r\n");
    }
}

#[test]
fn no_answer_is_a_request_that_is_answered() {
    let mut host = Host::with_datagrams(2, |_| {});
    ask(&mut host, 0, b"set trap 0 0 23\r\n\r\nget trap\r\nmn\r\nget \r\n\r\n");
    ask(&mut host, 0, format!("set long 0 0 6000\r\n{}\r\n", "get trap\r\n".repeat(600)).as_bytes());
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
        host.datagram(0, FROM, &datagram(3, requests.as_bytes()));
        host.settle();
        let answers = host.datagrams(0);
        assert!(!answers.is_empty(), "{requests}");
        // As if another server had said it.
        for answer in answers {
            host.datagram(0, FROM, &answer.payload);
            host.settle();
            assert_eq!(host.datagrams(0), [], "{requests}");
        }
    }
}

#[test]
fn a_request_that_goes_on_beyond_its_datagram_is_refused_and_stores_nothing() {
    for mut host in hosts() {
        let cut = "CLIENT_ERROR the request does not end in its datagram\r\n";
        assert_eq!(ask(&mut host, 0, b"set a 0 0 10\r\nabc\r\n"), cut);
        assert_eq!(ask(&mut host, 0, b"get a\r\nset a 0 0 500000\r\nabc\r\n"), format!("END\r\n{cut}"));
        assert_eq!(ask(&mut host, 0, b"mn\r\nget a"), format!("MN\r\n{cut}"));
        // What follows is no part of it.
        assert_eq!(ask(&mut host, 0, b"get a\r\n"), "END\r\n");
        let large = "SERVER_ERROR object too large for cache\r\n";
        assert_eq!(ask(&mut host, 0, b"set a 0 0 2000000\r\nset b 0 0 1\r\nx\r\n"), large);
        assert_eq!(ask(&mut host, 0, b"get b\r\n"), "END\r\n");
    }
}

#[test]
fn a_long_answer_is_several_datagrams_and_one_that_is_too_long_an_error() {
    let error = "SERVER_ERROR the answer takes more than 8 datagrams: ask over a connection\r\n";
    for mut host in hosts() {
        let client = host.connect_to_memcached(0);
        // Just one datagram, one byte more, all that there may be, one byte more, and very much.
        let line = |len: usize| format!("VALUE key 0 {len}\r\n").len() + 7;
        let fits = |answer: usize| answer - line(answer - 25);
        for len in [1, fits(1392), fits(1392) + 1, 5000, fits(ANSWER), fits(ANSWER) + 1, 500_000] {
            let value: String = (0..len).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
            assert_eq!(host.ask(client, format!("set key 0 0 {len}\r\n{value}\r\n").as_bytes()), "STORED\r\n");
            let answer = host.ask(client, b"get key\r\n");
            host.datagram(0, FROM, &datagram(7, b"get key\r\n"));
            host.settle();
            let datagrams = host.datagrams(0);
            let whole = answer.len() <= ANSWER;
            assert_eq!(datagrams.len(), if whole { answer.len().div_ceil(1392) } else { 1 }, "{len}");
            assert_eq!(message(7, &datagrams), if whole { answer.as_bytes() } else { error.as_bytes() }, "{len}");
        }
        // Many short ones, and more than are ever kept.
        host.ask(client, format!("set key 0 0 1000\r\n{}\r\n", "x".repeat(1000)).as_bytes());
        for count in [12, 5000] {
            assert_eq!(ask(&mut host, 0, format!("get{}\r\n", " key".repeat(count)).as_bytes()), error);
        }
        assert_eq!(ask(&mut host, 0, b"mn\r\n"), "MN\r\n");
    }
}

#[test]
fn datagrams_and_connections_are_served_in_the_same_turn() {
    for mut host in hosts() {
        let clients: Vec<_> = (0..20).flat_map(|_| [host.connect(0), host.connect_to_memcached(0)]).collect();
        for count in 0..100 {
            for n in 0..count {
                host.datagram(0, FROM, &datagram(n, format!("set key{n} 0 0 1\r\nx\r\n").as_bytes()));
            }
            for (n, client) in clients.iter().enumerate() {
                host.send(*client, if n % 2 == 0 { b"GET key\r\n" } else { b"get k\r\n" });
            }
            host.settle();
            let said: Vec<_> = clients.iter().map(|client| host.received(*client)).collect();
            assert!(said.chunks(2).all(|pair| pair == [&b"$-1\r\n"[..], b"END\r\n"]), "{said:?}");
            assert_eq!(host.datagrams(0).len(), usize::from(count));
        }
    }
}

#[test]
fn a_server_that_was_not_told_to_answers_no_datagrams() {
    let mut host = Host::new(1);
    host.datagram(0, FROM, &datagram(1, b"mn\r\n"));
    host.settle();
    assert_eq!(host.datagrams(0), []);
    let client = host.connect_to_memcached(0);
    assert!(host.ask(client, b"stats settings\r\n").contains("STAT udpport 0\r\n"));
}

#[test]
fn what_there_is_no_room_for_is_dropped_and_counted_and_the_rest_is_served() {
    const FLOOD: u64 = 10_000;
    for workers in [1, 2] {
        let mut host = Host::with_datagrams(workers, |_| {});
        // All at once, of keys of both workers.
        for n in 0..FLOOD {
            host.datagram(0, FROM, &datagram(n as u16, format!("get key{n}\r\n").as_bytes()));
        }
        host.settle();
        let answered = host.datagrams(0).len() as u64;
        let dropped = stat(&mut host, "udp_dropped");
        assert_eq!(answered + dropped, FLOOD);
        assert_eq!(dropped > 0, workers > 1, "only what another worker runs is kept: {dropped}");
        assert_eq!(ask(&mut host, 0, b"mn\r\n"), "MN\r\n");

        let before = stat(&mut host, "udp_dropped");
        ask(&mut host, 0, format!("set key 0 0 5000\r\n{}\r\n", "x".repeat(5000)).as_bytes());
        host.set_datagram_room(0, 2);
        host.datagram(0, FROM, &datagram(1, b"get key\r\n"));
        host.datagram(0, FROM, &datagram(2, b"mn\r\n"));
        host.settle();
        assert_eq!(host.datagrams(0).len(), 2);
        // An answer of another worker's shard comes last, and what is short has gone.
        let dropped = stat(&mut host, "udp_dropped") - before;
        assert!(dropped == 2 || workers > 1 && dropped == 1, "{dropped}");
        host.set_datagram_room(0, usize::MAX);
        assert_eq!(ask(&mut host, 0, b"mn\r\n"), "MN\r\n");
    }
}

/// A request of those that mean the same to every connection.
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
    fn datagrams_are_answered_as_a_connection_is(
        workers in 1..4usize,
        datagrams in proptest::collection::vec(proptest::collection::vec(request(), 1..6), 1..20),
    ) {
        let (mut one, mut other) = (Host::with_datagrams(workers, |_| {}), Host::new(workers));
        let client = other.connect_to_memcached(0);
        for requests in datagrams {
            let requests = requests.concat();
            prop_assert_eq!(ask(&mut one, 0, requests.as_bytes()), other.ask(client, requests.as_bytes()));
        }
    }
}
