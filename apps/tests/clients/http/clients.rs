//! Clients, and the checks that every link passes.

use linerate_harness::rerun::is_installed;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

/// Versions of HTTP, as options of curl.
pub const VERSIONS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];
/// Length of the long file.
pub const LONG: usize = 5_000_000;

/// Returns whether `program` is installed, and prints a message if not.
pub fn has(program: &str, package: &str) -> bool {
    is_installed(program, &["--version"], package)
}

/// Runs curl with the words of `options` for `url`.
#[track_caller]
pub fn curl(options: &str, url: &str) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "--path-as-is"]);
    curl.args(options.split_whitespace()).arg(url).output().expect("curl is installed")
}

/// Returns standard output of a request that succeeds.
#[track_caller]
pub fn fetch(options: &str, url: &str) -> Vec<u8> {
    let output = curl(options, url);
    assert!(output.status.success(), "{options} {url}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns the status code, the version of HTTP and the content type of a response.
#[track_caller]
pub fn status(options: &str, url: &str) -> String {
    let format = ["--output", "/dev/null", "--write-out", "%{http_code}/%{http_version}/%{content_type}"].join(" ");
    String::from_utf8(fetch(&format!("{format} {options}"), url)).unwrap()
}

/// Fills a directory with files to serve.
pub fn fill(directory: &Path) {
    fs::create_dir(directory.join("docs")).unwrap();
    fs::write(directory.join("index.html"), "<p>home").unwrap();
    fs::write(directory.join("docs/a b.css"), "p {}").unwrap();
    fs::write(directory.join("long"), long()).unwrap();
    fs::write(directory.join(".secret"), "secret").unwrap();
}

fn long() -> Vec<u8> {
    (0..LONG as u32).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// Tests requests by curl to a server of the files of [`fill`].
#[track_caller]
pub fn curl_gets_files(server: SocketAddr) {
    let url = |path: &str| format!("http://{server}{path}");
    for (option, version) in VERSIONS.into_iter().zip(["1.1", "2"]) {
        assert_eq!(fetch(option, &url("/")), b"<p>home", "{option}");
        assert_eq!(status(option, &url("/")), format!("200/{version}/text/html; charset=utf-8"));
        assert_eq!(fetch(option, &url("/docs/a%20b.css")), b"p {}", "{option}");
        assert!(fetch(option, &url("/long")) == long(), "{option}: the long file differs");
        let head = String::from_utf8(fetch(&format!("{option} --head"), &url("/long"))).unwrap().to_lowercase();
        assert!(head.contains(&format!("content-length: {LONG}\r\n")), "{option}: {head}");
        for path in ["/missing", "/../Cargo.toml", "/%2e%2e/Cargo.toml", "/.secret", "/docs", "/docs/"] {
            assert_eq!(status(option, &url(path)), format!("404/{version}/text/plain; charset=utf-8"), "{path}");
        }
        assert!(status(&format!("{option} --data a=b"), &url("/")).starts_with("405/"), "{option}");
    }
    // Two requests on one connection.
    let again = url("/");
    assert_eq!(fetch(&format!("--http1.1 --write-out %{{num_connects}} {again}"), &again), b"<p>home1<p>home0");
}

/// Tests 2000 requests on 32 connections by h2load, with both versions of HTTP.
#[track_caller]
pub fn h2load_gets_everything(server: SocketAddr) {
    for options in ["--h1 -c 32 -m 1", "-c 8 -m 16"] {
        let mut h2load = Command::new("h2load");
        h2load.args(options.split(' ')).args(["-n", "2000", &format!("http://{server}/")]);
        let output = h2load.output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        let expected = "2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout";
        assert!(output.status.success() && report.contains(expected), "{options}: {report}");
    }
}
