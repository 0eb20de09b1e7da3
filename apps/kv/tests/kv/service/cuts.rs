//! Requests cut at every byte get the same replies, on any worker.

use super::net::{Client, TestServer};
use super::{line, lines};
use crate::request;
use linerate_kv::commands::Settings;

/// One worker, and two workers, of which the client's does not hold all keys.
const WORKERS: [usize; 2] = [1, 2];

/// Returns the reply to `parts`, and whether the connection is closed. If `rests`, each part is handled before the
/// next arrives.
fn replied(server: &mut TestServer, client: Client, parts: &[&[u8]], rests: bool) -> (String, bool) {
    for part in parts {
        server.send(client, part);
        if rests {
            server.settle();
        }
    }
    server.settle();
    (server.received(client).escape_ascii().to_string(), server.end(client).is_closed)
}

/// Checks that the replies to `session` do not depend on cuts and workers. Returns the replies.
fn check(session: &[u8], set: fn(&mut Settings), connect: fn(&mut TestServer, usize) -> Client) -> String {
    let mut expected = None;
    for workers in WORKERS {
        let mut server = TestServer::with(workers, set);
        let (other, memcached) = (server.connect(0), server.connect_to_memcached(0));
        let mut check = |parts: &[&[u8]], rests| {
            let client = connect(&mut server, 0);
            let replied = replied(&mut server, client, parts, rests);
            let expected = expected.get_or_insert_with(|| replied.clone());
            let cut = parts[0].len();
            assert!(replied == *expected, "{workers} workers, cut at {cut}: {}\n\n{}", replied.0, expected.0);
            server.lose(client);
            server.call(other, &line("flushall"));
            server.call(memcached, b"flush_all\r\n");
        };
        check(&[session], false);
        // Most cuts inside a value are equivalent.
        let is_within = |at: usize| session[at.saturating_sub(5)..].iter().take(10).all(u8::is_ascii_alphanumeric);
        for cut in (1..session.len()).filter(|at| !is_within(*at) || at % 97 == 0) {
            let (before, after) = session.split_at(cut);
            check(&[before, after], cut % 3 > 0);
        }
        let bytes: Vec<&[u8]> = session.chunks(1).collect();
        check(&bytes, false);
        check(&bytes, true);
    }
    expected.unwrap_or_default().0
}

/// All kinds of Redis requests, with long values.
#[test]
fn redis_replies_do_not_depend_on_cuts() {
    let long = "0123456789".repeat(450);
    let mut session = Vec::new();
    for words in ["set a 1", "get a", "mset b 2 c 3 d 4", "mget a b c d e", "hset h f v g w", "hget h g"] {
        session.extend(line(words));
    }
    session.extend(request(&["set", "long", &long]));
    session.extend(b"get a\r\nset \"x y\" 'z'\r\n\r\nget \"x y\"\r\n");
    session.extend(request(&["append", "a", &long]));
    session.extend(line("strlen a"));
    session.extend(request(&["mset", "m", &long, "n", "short"]));
    session.extend(request(&["hset", "h", "f", &long]));
    for words in ["hstrlen h f", "multi", "incr b", "getrange long 4490 -1"] {
        session.extend(line(words));
    }
    session.extend(request(&["set", "n", &long]));
    for words in ["exec", "getrange n 0 3", "foo bar", "get", "dbsize", "get b"] {
        session.extend(line(words));
    }
    session.extend(b"*2\r\n$3\r\nget\r\n$x\r\nping\r\n");
    let replies = check(&session, |_| {}, TestServer::connect);
    assert!(replies.ends_with("-ERR Protocol error: invalid bulk length\\r\\n"), "{replies}");
    assert!(replies.contains(":4501") && replies.contains("*3\\r\\n:3\\r\\n$10\\r\\n0123456789\\r\\n+OK"), "{replies}");
}

/// A value that exceeds memory is skipped, wherever it is cut.
#[test]
fn error_for_value_beyond_memory_does_not_depend_on_cuts() {
    let too_long = "x".repeat(3 << 20);
    let mut session = Vec::new();
    session.extend(line("set a 1"));
    session.extend(line("get b"));
    session.extend(request(&["set", "b", &too_long]));
    session.extend(line("get a"));
    session.extend(line("exists a b c d"));
    // A command to be queued fails at once, so the transaction does nothing.
    session.extend(lines(&["multi", "set a 2"]));
    session.extend(request(&["set", "b", &too_long]));
    session.extend(lines(&["exec", "get a"]));
    for workers in WORKERS {
        // The memory of one shard must not suffice.
        let mut server = TestServer::with(workers, |settings| settings.memory = 2 << 20);
        let last = session.len();
        let cuts = (1..last).filter(|at| (at % (too_long.len() + 100)) < 170 || at % 100_003 == 0 || at + 120 > last);
        for cut in cuts {
            let client = server.connect(0);
            let (before, after) = session.split_at(cut);
            let (replies, is_closed) = replied(&mut server, client, &[before, after], cut % 2 > 0);
            let refused = "-OOM command not allowed when used memory > 'maxmemory'.\\r\\n".replace('\'', "\\'");
            let aborted = "-EXECABORT Transaction discarded because of previous errors.\\r\\n$1\\r\\n1\\r\\n";
            let expected =
                format!("+OK\\r\\n$-1\\r\\n{refused}$1\\r\\n1\\r\\n:1\\r\\n+OK\\r\\n+QUEUED\\r\\n{refused}{aborted}");
            assert!((&replies, is_closed) == (&expected, false), "{workers} workers, cut at {cut}: {replies}");
            server.lose(client);
        }
    }
}

/// All kinds of memcached requests, with valid and invalid ends of data blocks.
#[test]
fn memcached_replies_do_not_depend_on_cuts() {
    let long = "0123456789".repeat(450);
    let mut session = String::from("set a 5 0 3\r\nabc\r\nget a b\r\nincr a 1\r\nbogus\r\n");
    for key in ["b", "c", "d"] {
        session += &format!("set {key} 0 0 4500\r\n{long}\r\nget {key}\r\n");
        // Two bytes that are no valid end. The bytes after them are another line.
        session += &format!("set {key} 0 0 4500\r\n{long}xyget {key}\r\nmg {key} s\r\n");
        session += &format!("ms {key} 4500 T0 k Oq\r\n{long}\n\r\r\nmn\r\n");
        session += &format!("append {key} 0 0 2 noreply\r\nxy\r\nmg {key} s\r\nms {key} 3 q\r\nabc\r\nmg {key} v\r\n");
    }
    session += "set a 0 0 5000 noreply\r\nget a\r\nms a 6000 S1\r\nmn\r\n";
    // Data block that includes the line.
    session += &"y".repeat(11_000);
    session += "\r\nget a\r\n";
    let replies = check(session.as_bytes(), |_| {}, TestServer::connect_to_memcached);
    assert_eq!(replies.matches("CLIENT_ERROR bad data chunk").count(), 6, "{replies}");
}

/// A data block beyond the item limit is skipped, wherever it is cut.
#[test]
fn error_for_too_large_item_does_not_depend_on_cuts() {
    let data = "x".repeat(1 << 20);
    let session = format!("get a\r\nset a 0 0 1048576\r\n{data}\r\nmn\r\nms b 1048576\r\n{data}\r\nget a b\r\n");
    for workers in WORKERS {
        let mut server = TestServer::new(workers);
        let cuts = (1..session.len()).filter(|at| at % (1 << 20) < 90 || at % 50_021 == 0);
        for cut in cuts {
            let client = server.connect_to_memcached(0);
            let (before, after) = session.as_bytes().split_at(cut);
            let replies = replied(&mut server, client, &[before, after], cut % 2 > 0);
            let refused = "SERVER_ERROR object too large for cache\\r\\n";
            assert_eq!(replies, (format!("END\\r\\n{refused}MN\\r\\n{refused}END\\r\\n"), false), "cut at {cut}");
            server.lose(client);
        }
    }
}

/// An error reply follows the earlier replies, and the connection closes after it.
#[test]
fn error_follows_earlier_replies() {
    for (wrong, error) in
        [(&b"*1\r\n$x\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"), (b"quit\r\n", "+OK\r\n")]
    {
        let mut server = TestServer::new(2);
        for n in 0..20 {
            let client = server.connect(0);
            let session = [&request(&["get", &format!("key{n}")])[..], wrong].concat();
            assert_eq!(server.call(client, &session), format!("$-1\r\n{error}"));
            assert!(server.end(client).is_closed);
        }
    }
    let mut server = TestServer::new(2);
    for n in 0..20 {
        let client = server.connect_to_memcached(0);
        let session = format!("get key{n}\r\n{}\r\n", " ".repeat(3000));
        assert_eq!(server.call(client, session.as_bytes()), "END\r\n");
        assert!(server.end(client).is_closed);
    }
}

/// A client that reads a few bytes at a time gets all replies, even after a half-close.
#[test]
fn slow_reader_gets_all_replies() {
    for (workers, finishes, rests) in [(1, false, true), (1, true, false), (2, false, false), (2, true, true)] {
        let mut server = TestServer::new(workers);
        let mut session = Vec::new();
        let mut expected = String::new();
        for n in 0..60 {
            let value = "v".repeat(n * 7);
            session.extend(request(&["set", &format!("key{n}"), &value]));
            session.extend(line(&format!("get key{n}")));
            expected += &format!("+OK\r\n${}\r\n{value}\r\n", value.len());
        }
        session.extend(b"*x\r\n");
        expected += "-ERR Protocol error: invalid multibulk length\r\n";
        for step in [1, 7, 100, 1000] {
            let client = server.connect(0);
            server.set_room(client, 3);
            for part in session.chunks(500) {
                server.send(client, part);
                if rests {
                    server.settle();
                }
            }
            if finishes {
                server.finish(client);
            }
            server.settle();
            let mut received = Vec::new();
            while !server.end(client).is_closed {
                let before = received.len();
                received.extend(server.received(client));
                assert!(received.len() > before || received.is_empty(), "{} of {}", received.len(), expected.len());
                server.set_room(client, step);
                server.settle();
            }
            received.extend(server.received(client));
            assert_eq!(String::from_utf8(received).unwrap(), expected);
            server.lose(client);
        }
    }
}
