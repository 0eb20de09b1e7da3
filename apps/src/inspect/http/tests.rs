use super::super::answering::{self, CONNECTIONS, Listener, PATIENCE, Post, Server};
use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long anything in a test may take: longer than clients are waited for.
const DEADLINE: Duration = Duration::from_secs(20);

fn server() -> (Server, SocketAddr) {
    server_with(PATIENCE, b"the page\n")
}

/// A server of `page` whose clients may be silent for `idle`.
fn server_with(idle: Duration, page: &[u8]) -> (Server, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = String::from_utf8(page.to_vec()).unwrap();
    let post = Post::new(Listener::Tcp(listener), idle, move |heard| react(heard, || page.clone()));
    (answering::answer(vec![post.unwrap()]).unwrap(), address)
}

fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn told(mut stream: TcpStream) -> String {
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = client(address);
    stream.write_all(request).unwrap();
    told(stream)
}

#[test]
fn the_page_comes_whole_with_its_type_and_length() {
    let (_server, address) = server();
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                  Content-Length: 9\r\nConnection: close\r\n\r\nthe page\n";
    for request in [
        "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n",
        "GET /metrics HTTP/1.0\r\n\r\n",
        "GET /metrics?of=all HTTP/1.1\r\nHost: here\r\n\r\n",
        "GET /metrics HTTP/1.1\nHost: here\n\n",
    ] {
        assert_eq!(ask(address, request.as_bytes()), answer, "{request}");
    }
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let (_server, address) = server();
    let mut stream = client(address);
    stream.set_nodelay(true).unwrap();
    for byte in b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    assert!(told(stream).ends_with("the page\n"));
}

#[test]
fn whatever_else_is_asked_is_refused_by_its_status() {
    let (_server, address) = server();
    let long = format!("GET /metrics HTTP/1.1\r\nCookie: {}\r\n\r\n", "x".repeat(2 * HEAD));
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
        let answer = ask(address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40}: {answer}");
        assert!(!answer.contains("the page"), "{request:.40}: {answer}");
    }
    assert!(ask(address, b"\x16\x03\x01\xff\x00\n\n").starts_with("HTTP/1.1 400 "));
}

#[test]
fn head_response_has_the_fields_of_get_and_no_content() {
    let (_server, address) = server();
    for (target, status) in [("/metrics", "200"), ("/metrics?of=all", "200"), ("/", "404")] {
        let get = ask(address, format!("GET {target} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes());
        let head = ask(address, format!("HEAD {target} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes());
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {head}");
        let (fields, content) = get.split_at(get.find("\r\n\r\n").unwrap() + 4);
        assert!(!content.is_empty(), "{target}: {get}");
        assert_eq!(head, fields, "{target}");
    }
}

#[test]
fn method_not_allowed_names_the_allowed_methods() {
    let (_server, address) = server();
    assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET, HEAD\r\n"));
}

#[test]
fn a_head_has_its_longest_length_and_no_more() {
    let head = |length: usize| {
        let mut head = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        head.resize(length - 4, b'a');
        head.extend_from_slice(b"\r\n\r\n");
        head
    };
    assert_eq!(parse(&head(HEAD)), Some(Response::Page.into()));
    assert_eq!(parse(&head(HEAD + 1)), Some(Response::TooLong.into()));
    assert_eq!(parse(&head(HEAD)[..HEAD - 1]), None);
}

#[test]
fn a_client_that_sends_nothing_is_disconnected_in_time() {
    let (_server, address) = server();
    let began = Instant::now();
    assert_eq!(client(address).read(&mut [0; 1]).unwrap(), 0);
    assert!(began.elapsed() >= PATIENCE);
}

#[test]
fn a_complete_request_is_answered_before_half_open_ones() {
    let (_server, address) = server_with(DEADLINE * 10, b"the page\n");
    for request in ["", "GET /metrics HTTP/1.1\r\n"] {
        let half_open: Vec<_> = (0..4 * CONNECTIONS).map(|_| client(address)).collect();
        for mut stream in &half_open {
            // The server may have ended the connection in favour of another.
            let _ = stream.write_all(request.as_bytes());
        }
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("the page\n"));
    }
}

#[test]
fn a_complete_request_is_answered_before_clients_that_do_not_read() {
    let page = vec![b'x'; 64 << 20];
    let (_server, address) = server_with(DEADLINE * 10, &page);
    let unread: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = client(address);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    assert!(ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    drop(unread);
}

#[test]
fn who_goes_in_the_middle_leaves_its_place() {
    let (_server, address) = server();
    for request in ["", "GET /met", "GET /metrics HTTP/1.1\r\n\r\n"] {
        for _ in 0..3 * CONNECTIONS {
            client(address).write_all(request.as_bytes()).unwrap();
        }
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("the page\n"));
    }
}

#[test]
fn it_ends_with_who_holds_it() {
    let (server, address) = server();
    let _silent = client(address);
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}
