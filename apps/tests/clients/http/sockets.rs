//! Servers and loads over kernel sockets.

use super::clients::{self, curl, fetch, fill, has};
use crate::common::{ANY_PORT, client, run, serve, stop};
use linerate_harness::metrics::await_metric;
use linerate_harness::program::Program;
use linerate_harness::rerun::has_cores;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;

fn serve_json(more: &str) -> Program {
    serve("http", &format!("{ANY_PORT} --json {more}"))
}

#[test]
fn curl_gets_a_greeting_from_either_version() {
    let server = serve_json("");
    for option in clients::VERSIONS {
        assert_eq!(fetch(option, &format!("http://{}/any/path", server.address())), b"hello\n", "{option}");
    }
    stop(server);
}

#[test]
fn curl_gets_files_from_two_workers_and_from_service_threads() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    for more in ["--workers 2", "--threading split"] {
        if has_cores(2) {
            let server = serve_json(&format!("{more} --dir {}", directory.path().display()));
            clients::curl_gets_files(server.address());
            stop(server);
        }
    }
}

#[test]
fn request_with_a_body_is_refused_without_a_stream_error() {
    let server = serve_json("");
    let url = format!("http://{}/", server.address());
    for _ in 0..30 {
        assert!(clients::status("--http2-prior-knowledge --data a=b", &url).starts_with("405/2/"));
    }
    stop(server);
}

#[test]
fn h2load_reports_no_error() {
    if !has("h2load", "nghttp2-client") {
        return;
    }
    let server = serve_json("");
    clients::h2load_gets_everything(server.address());
    stop(server);
}

#[test]
fn load_reports_requests_and_their_bytes() {
    // A service on a thread of its own reports no requests.
    let server = serve_json("--threading inline --metrics 127.0.0.1:0");
    for more in ["--connections 8", "--depth 4 --histogram", "--connections 4 --rate 1000 --path /a%20b"] {
        let load = format!("http load --connect {} --duration 300ms --json {more}", server.address());
        let ended = run(&load);
        let report = ended.json();
        let requests = report["requests"].as_u64().unwrap();
        assert!(ended.status.success() && requests > 100 && report["errors"] == 0, "{more}: {ended:?}");
        assert_eq!(report["bytes"].as_u64(), Some(requests * 6), "{more}: {report}");
        assert_eq!(report["histogram"].is_array(), more.contains("--histogram"), "{report}");
    }
    // The server counts the requests that its tasks serve.
    await_metric(&server.ready, "linerate_requests_total", 300);
    stop(server);
}

#[test]
fn load_reports_the_status_of_errors() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_json(&format!("--dir {}", directory.path().display()));
    let ended = run(&format!("http load --connect {} --duration 100ms", server.address()));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("error replies; the first: status 404"), "{ended:?}");
    let ended = run("http load --path index.html");
    assert!(ended.status.code() == Some(2) && ended.stderr.contains("--path index.html"), "{ended:?}");
}

#[test]
fn directory_that_cannot_be_loaded_is_named() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    for (options, part) in [
        ("--dir-memory 4m".to_owned(), "more than 4194304 bytes of memory: raise --dir-memory"),
        (format!("--dir {}/missing", directory.path().display()), "/missing: No such file"),
    ] {
        let dir =
            if options.contains("--dir ") { String::new() } else { format!("--dir {}", directory.path().display()) };
        let ended = run(&format!("http serve {ANY_PORT} {dir} {options}"));
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.starts_with("linerate: --dir ") && ended.stderr.contains(part), "{ended:?}");
    }
}

#[test]
fn files_that_are_not_served_are_named_without_an_option() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc/hostname", directory.path().join("out")).unwrap();
    let ended = serve_json(&format!("--dir {}", directory.path().display())).stop();
    for part in ["/out: not served: a link that leads out of --dir", "no files: every path is answered with 404"] {
        assert!(ended.stderr.contains(part), "{ended:?}");
    }
}

#[test]
fn drain_ends_idle_connections_and_completes_requests() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let mut server = serve_json(&format!("--drain 1m --metrics 127.0.0.1:0 --dir {}", directory.path().display()));
    let address = server.address();
    let connect = |text: &str| {
        let mut stream = client::connect(address);
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let to_end = |mut stream: TcpStream| {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).map(|_| received).unwrap()
    };
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let (idle, mut used) = (connect(""), connect(request));
    assert!(used.read(&mut [0; 1000]).unwrap() > 0);
    let long = connect("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(long.peek(&mut [0]).unwrap() > 0);
    let mut partial = connect(&request[..20]);
    await_metric(&server.ready, "linerate_connections_accepted_total", 4);
    server.signal(Signal::TERM);
    assert_eq!(server.wait_for_log("draining"), "draining: 4 connections");
    let long = to_end(long);
    assert!(long.len() > clients::LONG, "{} bytes of the response", long.len());
    assert_eq!((to_end(idle), to_end(used)), (Vec::new(), Vec::new()));
    partial.write_all(&request.as_bytes()[20..]).unwrap();
    let last = String::from_utf8(to_end(partial)).unwrap();
    assert!(last.contains("connection: close\r\n") && last.ends_with("<p>home"), "{last}");
    assert!(server.wait().status.success());
    assert!(!curl("", &format!("http://{address}/")).status.success());
}
