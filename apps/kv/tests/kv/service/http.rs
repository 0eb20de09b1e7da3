//! HTTP requests, which a web page can make a browser send to any port.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines};
use crate::request;
use linerate_kv::commands::Settings;
use linerate_service::time::Duration;
use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;
use tracing::Level;

/// Returns requests at which Redis 7.0 disconnects, independent of the bytes around them.
fn http_on_redis_port() -> Vec<Vec<u8>> {
    vec![
        b"POST / HTTP/1.1\r\n".to_vec(),
        b"post\r\n".to_vec(),
        b" \"PoSt\" x\r\n".to_vec(),
        b"Host: 10.0.0.2:6379\r\n".to_vec(),
        b"hOST:\r\n".to_vec(),
        request(&["POST"]),
        request(&["host:", "a", "b"]),
        request(&["post\0a"]),
    ]
}

#[track_caller]
fn assert_reset(server: &mut TestServer, client: Client, sent: &[u8]) {
    assert!(server.end(client).is_aborted, "{}", sent.escape_ascii());
    server.received(client);
    assert_eq!(server.call(client, &line("ping")), "", "{}", sent.escape_ascii());
}

#[test]
fn http_request_on_redis_port_resets_connection_and_runs_nothing() {
    for workers in [1, 3] {
        let mut server = server(workers);
        let other = server.connect(0);
        for http in http_on_redis_port() {
            // Some keys are in the shards of other workers, and GET and SET use the fast parser.
            for before in
                [vec![], line("ping"), lines(&["set a 1", "get a", "set b 2", "get c", "get d"]), line("multi")]
            {
                let client = server.connect(0);
                let all = [&before[..], &http, b"\r\nset evil 1\r\n", &line("set evil 1")].concat();
                server.send(client, &all);
                server.settle();
                assert_reset(&mut server, client, &all);
                expect_reply(&mut server, other, "exists evil", ":0\r\n");
            }
        }
    }
}

#[test]
fn http_request_in_any_parts_resets_connection() {
    for http in http_on_redis_port() {
        for cut in 1..http.len() {
            let mut server = server(2);
            let client = server.connect(0);
            server.send(client, &http[..cut]);
            server.settle();
            assert!(!server.end(client).is_aborted, "{cut} of {}", http.escape_ascii());
            server.send(client, &http[cut..]);
            server.settle();
            assert_reset(&mut server, client, &http);
        }
    }
}

#[test]
fn http_request_resets_unauthenticated_connection() {
    let mut server = host_with(1, |settings| settings.password = Some(b"secret".to_vec()));
    let client = server.connect(0);
    expect_reply(&mut server, client, "ping", "-NOAUTH Authentication required.\r\n");
    server.send(client, b"POST / HTTP/1.1\r\n");
    server.settle();
    assert_reset(&mut server, client, b"POST");
}

#[test]
fn http_request_with_long_argument_beyond_memory_resets_connection() {
    let mut server = host_with(1, |settings| settings.memory = 4 << 20);
    let client = server.connect(0);
    let bytes = request(&["POST", &"x".repeat(5 << 20)]);
    bytes.chunks(100_000).for_each(|part| server.send(client, part));
    server.settle();
    assert!(server.end(client).is_aborted);
}

#[test]
fn http_request_line_that_is_a_command_gets_its_reply() {
    let mut server = server(1);
    let client = server.connect(0);
    // As in Redis: the header line that follows reveals HTTP.
    let error = "-ERR wrong number of arguments for 'get' command\r\n";
    assert_eq!(server.call(client, b"GET / HTTP/1.1\r\n"), error);
    assert!(server.call(client, b"PUT / HTTP/1.1\r\n").starts_with("-ERR unknown command 'PUT'"));
    for name in ["pos", "posts", "host", "host::", "postx"] {
        assert!(server.call(client, &line(name)).starts_with("-ERR unknown command"), "{name}");
    }
    expect_reply(&mut server, client, "echo POST", "$4\r\nPOST\r\n");
    assert!(!server.end(client).is_aborted);
}

#[test]
fn http_request_line_on_memcached_port_closes_connection() {
    for workers in [1, 3] {
        let mut server = server(workers);
        // Replies as of memcached 1.6.18.
        for (line, is_http) in [
            ("GET / HTTP/1.1".to_owned(), true),
            ("POST / HTTP/1.0".to_owned(), true),
            ("foo HTTP/".to_owned(), true),
            ("HTTP/1.1".to_owned(), true),
            (format!("POST {}HTTP/1", "a ".repeat(21)), true),
            (format!("POST {}HTTP/1 x y", "a ".repeat(21)), true),
            (format!("POST {}HTTP/1", "a ".repeat(22)), false),
            ("foo http/1.1".to_owned(), false),
            ("POST a b".to_owned(), false),
            ("POST / HTTP/1.1 x".to_owned(), false),
            ("Host: x".to_owned(), false),
            ("POST\t/\tHTTP/1.1".to_owned(), false),
        ] {
            for end in ["\n", "\r\n"] {
                let bytes = format!("{line}{end}");
                for cut in 0..bytes.len() {
                    let client = server.connect_to_memcached(0);
                    server.send(client, format!("get a b c d\r\n{}", &bytes[..cut]).as_bytes());
                    server.settle();
                    assert_eq!(server.received(client), b"END\r\n");
                    server.send(client, format!("{}set evil 0 0 1\r\n1\r\n", &bytes[cut..]).as_bytes());
                    server.settle();
                    assert_eq!(server.end(client).is_lingering, is_http, "{line}");
                    assert!(!server.end(client).is_aborted);
                    let reply: &[u8] = if is_http { b"" } else { b"ERROR\r\nSTORED\r\n" };
                    assert_eq!(server.received(client), reply, "{line}");
                }
            }
            let other = server.connect_to_memcached(0);
            assert_eq!(server.call(other, b"delete evil\r\n"), if is_http { "NOT_FOUND\r\n" } else { "DELETED\r\n" });
        }
        let client = server.connect_to_memcached(0);
        assert_eq!(server.call(client, b"get / HTTP/1.1\r\n"), "END\r\n");
    }
}

#[test]
fn http_request_in_datagram_gets_no_reply() {
    collect_warnings();
    let mut server = TestServer::with_datagrams(2, |_| {});
    server.datagram(0, 1, b"\0\x01\0\0\0\x01\0\0GET / HTTP/1.1\r\n");
    server.settle();
    assert!(server.datagrams(0).is_empty());
}

#[test]
fn binary_memcached_request_closes_connection_and_is_logged() {
    for workers in [1, 3] {
        let mut server = server(workers);
        // NOOP, and the first byte of any request.
        for binary in [&b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], b"\x80"] {
            let client = server.connect_to_memcached(0);
            assert_eq!(server.call(client, &[b"get a b c d\r\n", binary].concat()), "END\r\n");
            assert!(server.end(client).is_lingering && !server.end(client).is_aborted);
        }
        let [warning] = &WARNINGS.take()[..] else { panic!("not one warning") };
        assert!(warning.contains("10.0.0.1:40000 sent a request of memcached's binary protocol"), "{warning}");
        let client = server.connect_to_memcached(0);
        assert_eq!(server.call(client, b"set a 0 0 1\r\n\x80\r\nget \x80\r\n"), "STORED\r\nEND\r\n");
    }
}

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Writer of the warnings logged by the calling thread.
struct Warnings;

impl Write for Warnings {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        WARNINGS.with_borrow_mut(|warnings| warnings.push(String::from_utf8_lossy(line).into_owned()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Installs the writer for all threads. Must precede all HTTP requests, because tracing caches the interest in an event
/// for the whole process when any thread first reaches it.
fn collect_warnings() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing_subscriber::fmt().with_max_level(Level::WARN).with_writer(|| Warnings).init());
}

fn server(workers: usize) -> TestServer {
    host_with(workers, |_| {})
}

fn host_with(workers: usize, set: impl FnOnce(&mut Settings)) -> TestServer {
    collect_warnings();
    TestServer::with(workers, set)
}

#[test]
fn http_requests_are_logged_with_peer_once_a_minute() {
    let mut server = server(2);
    let send = |server: &mut TestServer, worker| {
        let client = if worker == 0 { server.connect(0) } else { server.connect_to_memcached(worker) };
        server.send(client, b"POST / HTTP/1.1\r\n");
        server.settle();
        assert!(server.end(client).is_aborted || server.end(client).is_lingering);
    };
    send(&mut server, 0);
    let [warning] = &WARNINGS.take()[..] else { panic!("not one warning") };
    assert!(warning.contains("10.0.0.1:40000 sent an HTTP request"), "{warning}");
    send(&mut server, 0);
    send(&mut server, 1);
    server.pass(Duration::from_secs(59));
    send(&mut server, 1);
    assert!(WARNINGS.take().is_empty());
    server.pass(Duration::from_secs(2));
    send(&mut server, 1);
    send(&mut server, 0);
    assert_eq!(WARNINGS.take().len(), 1);
}
