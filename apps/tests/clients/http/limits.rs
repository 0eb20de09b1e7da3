//! Limits of clients: slow and idle ones, long heads, many connections.

use super::clients::{VERSIONS, fetch};
use crate::common::{ANY_PORT, client, serve};
use linerate_harness::TIMEOUT;
use linerate_harness::program::Program;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// First bytes of a connection with HTTP/2, and an empty SETTINGS frame.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Fields `:method POST`, `:scheme http`, `:path /` and `:authority a` (RFC 7541).
const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

/// Returns a frame of HTTP/2 of a type, with flags and a stream.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// Returns frames by name that a client may send on a connection without progress of a request. Stream 1 has begun a
/// request.
fn idle_frames() -> Vec<(&'static str, Vec<u8>)> {
    let settings = |window: u32| frame(4, 0, 0, &[&[0, 4], &window.to_be_bytes()[..]].concat());
    vec![
        ("SETTINGS", [settings(100), settings(60_000)].concat()),
        ("PING", frame(6, 0, 0, &[7; 8])),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 0, 7])),
        ("WINDOW_UPDATE of the connection", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("WINDOW_UPDATE of a stream", frame(8, 0, 1, &[0, 0, 0, 1])),
        ("empty DATA", frame(0, 0, 1, b"")),
        ("unknown type", frame(77, 0, 0, b"")),
    ]
}

/// Connects with HTTP/2 and begins `requests` that have a body.
fn connect_http2(server: &Program, requests: u32) -> TcpStream {
    let mut stream = connect(server);
    let begun: Vec<u8> = (0..requests).flat_map(|i| frame(1, 4, 2 * i + 1, POST)).collect();
    stream.write_all(&[HTTP2, &begun].concat()).unwrap();
    stream
}

fn connect(server: &Program) -> TcpStream {
    client::connect(server.address())
}

/// Returns whether the server answers a request on a new connection, which it may reset before `connect` returns.
fn is_served(server: &Program) -> bool {
    let Ok(mut stream) = TcpStream::connect(server.address()) else { return false };
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_ok() && stream.read(&mut [0; 1000]).is_ok_and(|n| n > 0)
}

/// Reads until the connection ends. Returns the bytes, and the time that it took.
fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, Duration) {
    let (started, mut received) = (Instant::now(), Vec::new());
    match stream.read_to_end(&mut received) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    (received, started.elapsed())
}

#[test]
fn client_that_sends_no_request_is_closed_after_the_timeout() {
    let server = serve("http", &format!("{ANY_PORT} --client-timeout 400ms"));
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let half_second_request = [&request[..], b"GET / HTTP/1.1\r\nHo"].concat();
    for (sent, is_answered) in
        [(&b""[..], false), (b"PRI", false), (&request[..20], false), (request, true), (&half_second_request, true)]
    {
        let mut stream = connect(&server);
        stream.write_all(sent).unwrap();
        let (received, took) = read_to_end(&mut stream);
        assert!(took >= Duration::from_millis(350) && took < TIMEOUT / 2, "{took:?}");
        assert_eq!(received.starts_with(b"HTTP/1.1 200 OK\r\n"), is_answered, "{}", sent.escape_ascii());
    }
    let mut stream = connect(&server);
    stream.write_all(HTTP2).unwrap();
    let (received, took) = read_to_end(&mut stream);
    assert!(received.len() > 9 && received[3] == 4, "no SETTINGS frame: {received:?}");
    assert!(took >= Duration::from_millis(350) && took < TIMEOUT / 2, "{took:?}");
}

#[test]
fn http2_client_without_progress_of_a_request_is_closed_after_the_timeout() {
    let server = serve("http", &format!("{ANY_PORT} --client-timeout 500ms"));
    for (name, idle) in idle_frames() {
        let mut stream = connect_http2(&server, 100);
        let started = Instant::now();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        loop {
            match stream.read(&mut [0; 1000]) {
                Ok(0) => break,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Ok(_) => continue,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            assert!(started.elapsed() < TIMEOUT, "{name}: the connection stays open");
            if stream.write_all(&idle).is_err() {
                break;
            }
        }
        assert!(started.elapsed() >= Duration::from_millis(450), "{name}");
    }
}

#[test]
fn http2_client_that_receives_responses_is_not_closed() {
    let server = serve("http", &format!("{ANY_PORT} --client-timeout 1s"));
    let mut stream = connect_http2(&server, 0);
    let started = Instant::now();
    let mut requests = 0;
    while started.elapsed() < Duration::from_secs(2) {
        requests += 1;
        let [_, rest @ ..] = POST else { unreachable!() };
        // `:method GET`, and the end of the stream.
        stream.write_all(&frame(1, 5, 2 * requests - 1, &[&[0x82], rest].concat())).unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"hello\n") {
            let mut part = [0; 1000];
            let n = stream.read(&mut part).unwrap();
            assert!(n > 0, "closed after {requests} requests");
            received.extend_from_slice(&part[..n]);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn http2_client_that_floods_the_connection_with_frames_is_closed() {
    let server = serve("http", &format!("{ANY_PORT} --client-timeout 10m"));
    let begun_and_reset = |i: u32| [frame(1, 4, 2 * i + 1001, POST), frame(3, 0, 2 * i + 1001, &[0, 0, 0, 8])].concat();
    let reset = ("RST_STREAM", (0..5000).flat_map(begun_and_reset).collect());
    let continued = ("CONTINUATION", [frame(1, 0, 1001, POST), frame(9, 0, 1001, b"").repeat(5000)].concat());
    let repeated = idle_frames().into_iter().map(|(name, frame)| (name, frame.repeat(5000)));
    for (name, flood) in repeated.chain([reset, continued]) {
        let mut stream = connect_http2(&server, 100);
        let mut writer = stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            let _ = writer.write_all(&flood);
        });
        let (received, _) = read_to_end(&mut stream);
        // GOAWAY of this server or of h2, with ENHANCE_YOUR_CALM.
        let is_goaway = |bytes: &[u8]| bytes[0] == 7 && bytes[10..] == [0, 0, 0, 0xb];
        assert!(received.windows(14).any(is_goaway), "{name}: {received:?}");
        writer.join().unwrap();
        assert!(is_served(&server), "{name}");
    }
}

#[test]
fn client_that_trickles_its_request_is_closed() {
    let server = serve("http", &format!("{ANY_PORT} --client-timeout 300ms"));
    let mut stream = connect(&server);
    let started = Instant::now();
    stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    loop {
        match stream.read(&mut [0]) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => panic!("{result:?}"),
        }
        assert!(started.elapsed() < TIMEOUT, "the connection stays open");
        if stream.write_all(b"a: b\r\n").is_err() {
            break;
        }
    }
    assert!(started.elapsed() >= Duration::from_millis(250));
}

#[test]
fn client_that_does_not_receive_its_response_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("longer"), vec![7; 30_000_000]).unwrap();
    std::fs::write(directory.path().join("index.html"), "home").unwrap();
    let dir = directory.path().display();
    let server = serve("http", &format!("{ANY_PORT} --client-timeout 400ms --max-clients 1 --dir {dir}"));
    let mut stuck = connect(&server);
    stuck.write_all(b"GET /longer HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(stuck.read(&mut [0; 100]).unwrap() > 0);
    // The only connection of the server is the stuck one, until it is closed.
    linerate_harness::wait_for("room for a client", || is_served(&server));
    let (received, _) = read_to_end(&mut stuck);
    assert!(received.len() < 30_000_000, "{} bytes", received.len());
}

#[test]
fn client_that_receives_slowly_is_not_closed() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("long"), vec![7; 10_000_000]).unwrap();
    let server = serve("http", &format!("{ANY_PORT} --client-timeout 400ms --dir {}", directory.path().display()));
    let mut slow = connect(&server);
    slow.write_all(b"GET /long HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let (mut received, mut part, started) = (0, vec![0; 100_000], Instant::now());
    loop {
        match slow.read(&mut part).unwrap() {
            0 => break,
            n => received += n,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(received > 10_000_000 && started.elapsed() > Duration::from_millis(800), "{received}");
}

#[test]
fn long_head_is_refused() {
    let server = serve("http", &format!("{ANY_PORT} --header-size 1k"));
    let url = format!("http://{}/", server.address());
    let field = |len: usize| format!("--header a:{}", "x".repeat(len));
    for option in VERSIONS {
        assert_eq!(fetch(&format!("{option} {}", field(500)), &url), b"hello\n", "{option}");
    }
    for len in [1100, 30_000] {
        let status = fetch(&format!("--http1.1 -o /dev/null -w %{{http_code}} {}", field(len)), &url);
        assert_eq!(String::from_utf8(status).unwrap(), "431", "{len}");
    }
    // The number of fields is limited, too.
    for (fields, expected) in [(90, "200"), (100, "431")] {
        let many = format!("--http1.1 -o /dev/null -w %{{http_code}}{}", " --header a:b".repeat(fields));
        assert_eq!(String::from_utf8(fetch(&many, &url)).unwrap(), expected, "{fields} fields");
    }
    // A client of HTTP/2 knows the limit from the settings, and may receive the status or a reset of the stream.
    let output = super::clients::curl(&format!("--http2-prior-knowledge {}", field(30_000)), &url);
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn connections_beyond_the_limit_are_reset() {
    let mut server = serve("http", &format!("{ANY_PORT} --max-clients 2"));
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut open: Vec<TcpStream> = (0..2).map(|_| connect(&server)).collect();
    for stream in &mut open {
        stream.write_all(request).unwrap();
        assert!(stream.read(&mut [0; 1000]).unwrap() > 0);
    }
    assert!(!is_served(&server));
    server.wait_for_log("2 clients: further ones are refused: raise --max-clients");
    // The end of one makes room.
    drop(open.pop());
    linerate_harness::wait_for("room for a client", || is_served(&server));
}
