//! The servers `http` and `https`, with curl as their client.

use super::https::{self, http};
use linerate::{Network, Stop};
use std::future::Future;
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

fn curl(args: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]).args(args);
    let output = curl.output().expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Calls `check` with the address of a server. Its connections then end by themselves.
fn with_server<F: Future<Output = ()> + 'static>(
    serve: impl Fn(SocketAddr) -> F + Clone + Send + Sync + 'static,
    check: impl FnOnce(SocketAddr),
) {
    let stop = Stop::default();
    let network = Network::builder().listen("127.0.0.1:0".parse().unwrap());
    let (address, running) = http::start(network, &stop, serve).unwrap();
    check(address);
    http::finish(running, &stop, Duration::from_secs(60)).unwrap();
    assert_eq!(stop.remaining(), Some(0));
}

#[test]
fn curl_gets_and_posts() {
    with_server(http::serve, |address| {
        let url = format!("http://{address}/");
        // Two requests on one connection.
        let output = curl(&["--write-out", "%{num_connects}\n", &url, &url]);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "hello 1\n1\nhello 2\n0\n");
        let missing = curl(&["--output", "/dev/null", "--write-out", "%{http_code}", &format!("{url}missing")]);
        assert_eq!(missing.stdout, b"404");
        let directory = tempfile::tempdir().unwrap();
        let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i ^ (i >> 8)) as u8).collect();
        let file = directory.path().join("body");
        std::fs::write(&file, &body).unwrap();
        let data = format!("@{}", file.display());
        assert!(curl(&["--data-binary", &data, &format!("{url}echo")]).stdout == body);
    });
}

#[test]
fn curl_gets_over_tls() {
    let certified = rcgen::generate_simple_self_signed(["server.test".to_owned()]).unwrap();
    let key = certified.signing_key.serialize_der();
    let acceptor = https::acceptor(vec![certified.cert.der().clone()], key.try_into().unwrap()).unwrap();
    let serve = move |address| https::serve(acceptor.clone(), address);
    with_server(serve, |address| {
        let url = format!("https://{address}/");
        assert_eq!(curl(&["--insecure", &url, &url]).stdout, b"hello 1\nhello 2\n");
        // The handshake of a client without TLS fails.
        let mut plain = Command::new("curl");
        plain.args(["--silent", "--noproxy", "*", &format!("http://{address}/")]);
        assert!(!plain.output().unwrap().status.success());
    });
}
