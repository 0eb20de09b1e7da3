//! HTTP server of the example `http`, with curl as its client.

#[path = "../examples/http.rs"]
mod http;

use linerate_bypass::Stop;
use linerate_kernel::Config;
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn curl(args: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]).args(args);
    let output = curl.output().expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn curl_gets_and_posts() {
    let stop = Stop::default();
    let (sender, receiver) = channel();
    let server = std::thread::spawn({
        let stop = stop.clone();
        stop.set_workers(1);
        let config = Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() };
        move || http::run(&config, stop, |address| sender.send(address).unwrap()).unwrap()
    });
    let url = format!("http://{}/", receiver.recv().unwrap());

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

    stop.drain();
    let start = Instant::now();
    while stop.remaining() != Some(0) {
        assert!(start.elapsed() < Duration::from_secs(60), "connections remain: {:?}", stop.remaining());
        std::thread::yield_now();
    }
    stop.stop();
    server.join().unwrap();
}
