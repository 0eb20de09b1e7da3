use super::super::server::{self, ClientServer, Endpoint, Listener, MAX_CLIENTS, REQUEST_TIMEOUT};
use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Time limit of every test, longer than the timeouts of the server.
const DEADLINE: Duration = Duration::from_secs(20);

fn server() -> (ClientServer, SocketAddr) {
    server_with(REQUEST_TIMEOUT, b"the page\n")
}

/// Starts a server of `page` with the given idle timeout.
fn server_with(idle_timeout: Duration, page: &[u8]) -> (ClientServer, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = String::from_utf8(page.to_vec()).unwrap();
    let endpoint =
        Endpoint::new(Listener::Tcp(listener), idle_timeout, move |received| react(received, || page.clone()));
    (server::spawn(vec![endpoint.unwrap()]).unwrap(), address)
}

fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn read_response(mut stream: TcpStream) -> String {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn fetch(address: SocketAddr, content: &[u8]) -> String {
    let mut stream = client(address);
    stream.write_all(content).unwrap();
    read_response(stream)
}

#[test]
fn page_has_content_type_and_length() {
    let (_server, address) = server();
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                  Content-Length: 9\r\nConnection: close\r\n\r\nthe page\n";
    for request in [
        "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n",
        "GET /metrics HTTP/1.0\r\n\r\n",
        "GET /metrics?of=all HTTP/1.1\r\nHost: here\r\n\r\n",
        "GET /metrics HTTP/1.1\nHost: here\n\n",
    ] {
        assert_eq!(fetch(address, request.as_bytes()), answer, "{request}");
    }
}

#[test]
fn request_may_arrive_byte_by_byte() {
    let (_server, address) = server();
    let mut stream = client(address);
    stream.set_nodelay(true).unwrap();
    for byte in b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    assert!(read_response(stream).ends_with("the page\n"));
}

#[test]
fn other_requests_get_an_error_status() {
    let (_server, address) = server();
    let long = format!("GET /metrics HTTP/1.1\r\nCookie: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
        ("GET /metricsandmore HTTP/1.1\r\n\r\n", "404"),
        ("POST / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("GET /metrics HTTP/2.0\r\n\r\n", "400"),
        ("GET  /metrics HTTP/1.1\r\n\r\n", "400"),
        ("GET /metrics\r\n\r\n", "400"),
        ("get /metrics HTTP/1.1\r\n\r\n", "400"),
        ("\r\n\r\n", "400"),
        (&long, "431"),
    ] {
        let answer = fetch(address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40}: {answer}");
        assert!(!answer.contains("the page"), "{request:.40}: {answer}");
    }
    assert!(fetch(address, b"\x16\x03\x01\xff\x00\n\n").starts_with("HTTP/1.1 400 "));
}

#[test]
fn head_response_has_the_fields_of_get_and_no_content() {
    let (_server, address) = server();
    for (target, status) in [("/metrics", "200"), ("/metrics?of=all", "200"), ("/", "404")] {
        let get = fetch(address, format!("GET {target} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes());
        let head = fetch(address, format!("HEAD {target} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes());
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {head}");
        let (fields, content) = get.split_at(get.find("\r\n\r\n").unwrap() + 4);
        assert!(!content.is_empty(), "{target}: {get}");
        assert_eq!(head, fields, "{target}");
    }
}

#[test]
fn method_not_allowed_names_the_allowed_methods() {
    let (_server, address) = server();
    assert!(fetch(address, b"POST /metrics HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET, HEAD\r\n"));
}

#[test]
fn request_head_is_limited_to_max_head() {
    let head = |length: usize| {
        let mut head = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        head.resize(length - 4, b'a');
        head.extend_from_slice(b"\r\n\r\n");
        head
    };
    assert_eq!(parse(&head(MAX_HEAD)), Some(Response::Page.into()));
    assert_eq!(parse(&head(MAX_HEAD + 1)), Some(Response::TooLong.into()));
    assert_eq!(parse(&head(MAX_HEAD)[..MAX_HEAD - 1]), None);
}

#[test]
fn silent_client_is_disconnected_after_the_idle_timeout() {
    let (_server, address) = server();
    let began = Instant::now();
    assert_eq!(client(address).read(&mut [0; 1]).unwrap(), 0);
    assert!(began.elapsed() >= REQUEST_TIMEOUT);
}

#[test]
fn complete_request_is_answered_before_incomplete_ones() {
    let (_server, address) = server_with(DEADLINE * 10, b"the page\n");
    for request in ["", "GET /metrics HTTP/1.1\r\n"] {
        let incomplete: Vec<_> = (0..4 * MAX_CLIENTS).map(|_| client(address)).collect();
        for mut stream in &incomplete {
            // The server may have evicted the client.
            let _ = stream.write_all(request.as_bytes());
        }
        assert!(fetch(address, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("the page\n"));
    }
}

#[test]
fn complete_request_is_answered_despite_clients_that_do_not_read() {
    let page = vec![b'x'; 64 << 20];
    let (_server, address) = server_with(DEADLINE * 10, &page);
    let unread: Vec<_> = (0..MAX_CLIENTS)
        .map(|_| {
            let mut stream = client(address);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    assert!(fetch(address, b"HEAD /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    drop(unread);
}

#[test]
fn client_that_disconnects_early_frees_its_slot() {
    let (_server, address) = server();
    for request in ["", "GET /met", "GET /metrics HTTP/1.1\r\n\r\n"] {
        for _ in 0..3 * MAX_CLIENTS {
            client(address).write_all(request.as_bytes()).unwrap();
        }
        assert!(fetch(address, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("the page\n"));
    }
}

#[test]
fn server_stops_when_dropped() {
    let (server, address) = server();
    let _silent = client(address);
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}
