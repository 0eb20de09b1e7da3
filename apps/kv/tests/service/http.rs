//! HTTP requests, which a web page can have a browser send to any port.

use super::net::{Client, Host};
use super::{line, lines, request, says};
use linerate_bypass::time::Duration;
use linerate_kv::commands::Settings;
use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Requests that Redis 7.0 disconnects at, whatever comes before and behind them.
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
fn assert_reset(host: &mut Host, client: Client, sent: &[u8]) {
    assert!(host.end(client).is_aborted, "{}", sent.escape_ascii());
    host.received(client);
    assert_eq!(host.ask(client, &line("ping")), "", "{}", sent.escape_ascii());
}

#[test]
fn http_request_on_the_redis_port_resets_the_connection_and_its_body_is_not_run() {
    for workers in [1, 3] {
        let mut host = host(workers);
        let other = host.connect(0);
        for http in http_on_redis_port() {
            // Some of these keys are in the shards of other workers, and GET and SET go through the fast parser.
            for before in
                [vec![], line("ping"), lines(&["set a 1", "get a", "set b 2", "get c", "get d"]), line("multi")]
            {
                let client = host.connect(0);
                let all = [&before[..], &http, b"\r\nset evil 1\r\n", &line("set evil 1")].concat();
                host.send(client, &all);
                host.settle();
                assert_reset(&mut host, client, &all);
                says(&mut host, other, "exists evil", ":0\r\n");
            }
        }
    }
}

#[test]
fn http_request_resets_the_connection_in_whatever_pieces_it_comes() {
    for http in http_on_redis_port() {
        for cut in 1..http.len() {
            let mut host = host(2);
            let client = host.connect(0);
            host.send(client, &http[..cut]);
            host.settle();
            assert!(!host.end(client).is_aborted, "{cut} of {}", http.escape_ascii());
            host.send(client, &http[cut..]);
            host.settle();
            assert_reset(&mut host, client, &http);
        }
    }
}

#[test]
fn http_request_resets_the_connection_of_a_client_without_the_password() {
    let mut host = host_with(1, |settings| settings.password = Some(b"secret".to_vec()));
    let client = host.connect(0);
    says(&mut host, client, "ping", "-NOAUTH Authentication required.\r\n");
    host.send(client, b"POST / HTTP/1.1\r\n");
    host.settle();
    assert_reset(&mut host, client, b"POST");
}

#[test]
fn http_request_resets_the_connection_if_a_long_argument_has_no_room() {
    let mut host = host_with(1, |settings| settings.memory = 4 << 20);
    let client = host.connect(0);
    let bytes = request(&["POST", &"x".repeat(5 << 20)]);
    bytes.chunks(100_000).for_each(|piece| host.send(client, piece));
    host.settle();
    assert!(host.end(client).is_aborted);
}

#[test]
fn http_request_line_that_is_another_command_is_answered_as_that() {
    let mut host = host(1);
    let client = host.connect(0);
    // As Redis does: the header that follows gives it away.
    let error = "-ERR wrong number of arguments for 'get' command\r\n";
    assert_eq!(host.ask(client, b"GET / HTTP/1.1\r\n"), error);
    assert!(host.ask(client, b"PUT / HTTP/1.1\r\n").starts_with("-ERR unknown command 'PUT'"));
    for name in ["pos", "posts", "host", "host::", "postx"] {
        assert!(host.ask(client, &line(name)).starts_with("-ERR unknown command"), "{name}");
    }
    says(&mut host, client, "echo POST", "$4\r\nPOST\r\n");
    assert!(!host.end(client).is_aborted);
}

#[test]
fn http_request_line_on_the_memcached_port_resets_the_connection() {
    for workers in [1, 3] {
        let mut host = host(workers);
        // Replies of memcached 1.6.18.
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
                    let client = host.connect_to_memcached(0);
                    host.send(client, format!("get a b c d\r\n{}", &bytes[..cut]).as_bytes());
                    host.settle();
                    assert_eq!(host.received(client), b"END\r\n");
                    host.send(client, format!("{}set evil 0 0 1\r\n1\r\n", &bytes[cut..]).as_bytes());
                    host.settle();
                    assert_eq!(host.end(client).is_aborted, is_http, "{line}");
                    let reply: &[u8] = if is_http { b"" } else { b"ERROR\r\nSTORED\r\n" };
                    assert_eq!(host.received(client), reply, "{line}");
                }
            }
            let other = host.connect_to_memcached(0);
            assert_eq!(host.ask(other, b"delete evil\r\n"), if is_http { "NOT_FOUND\r\n" } else { "DELETED\r\n" });
        }
        let client = host.connect_to_memcached(0);
        assert_eq!(host.ask(client, b"get / HTTP/1.1\r\n"), "END\r\n");
    }
}

#[test]
fn http_request_in_a_datagram_is_not_answered() {
    collect_warnings();
    let mut host = Host::with_datagrams(2, |_| {});
    host.datagram(0, 1, b"\0\x01\0\0\0\x01\0\0GET / HTTP/1.1\r\n");
    host.settle();
    assert!(host.datagrams(0).is_empty());
}

/// Log of the warnings of the thread that reads it. It is the subscriber of the whole process from the first host on: the
/// interest in an event is cached process-wide when any thread first reaches it, without the subscribers of other threads.
struct Warnings;

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Lets the warnings of each thread be read there. Precedes all HTTP requests.
fn collect_warnings() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Warnings).unwrap());
}

fn host(workers: usize) -> Host {
    host_with(workers, |_| {})
}

fn host_with(workers: usize, set: impl FnOnce(&mut Settings)) -> Host {
    collect_warnings();
    Host::with(workers, set)
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            WARNINGS.with_borrow_mut(|warnings| warnings.push(format!("{value:?}")));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Warnings);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn http_requests_are_logged_with_the_peer_once_a_minute() {
    let mut host = host(2);
    let send = |host: &mut Host, worker| {
        let client = if worker == 0 { host.connect(0) } else { host.connect_to_memcached(worker) };
        host.send(client, b"POST / HTTP/1.1\r\n");
        host.settle();
        assert!(host.end(client).is_aborted);
    };
    let logged = || WARNINGS.take();
    send(&mut host, 0);
    let [warning] = &logged()[..] else { panic!("not one warning") };
    assert!(warning.contains("10.0.0.1:40000 sent an HTTP request"), "{warning}");
    send(&mut host, 0);
    send(&mut host, 1);
    host.pass(Duration::from_secs(59));
    send(&mut host, 1);
    assert!(logged().is_empty());
    host.pass(Duration::from_secs(2));
    send(&mut host, 1);
    send(&mut host, 0);
    assert_eq!(logged().len(), 1);
}
