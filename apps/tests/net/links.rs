//! Two processes over a link in shared memory: either end first, either end killed, and what is left behind.

use super::metrics::await_metric;
use super::program::{Ended, Program, linerate, turn};
use std::path::Path;
use std::process::Command;

/// Counter of the frames that a server received, and more of them than handshakes of a load of 64 connections take.
const FRAMES: (&str, u64) = ("linerate_rx_frames_total", 1_000);

/// The path of a link's socket, in a directory of the test.
pub fn socket(directory: &tempfile::TempDir) -> String {
    directory.path().join("link.sock").to_str().unwrap().to_owned()
}

/// An echo load that prints JSON, on `via` and with `more` arguments.
pub fn load(via: &str, more: &str) -> Command {
    let ours = "--ip 10.9.0.1/24 --connect 10.9.0.2:7 --idle backoff --json";
    linerate(&format!("-v echo load --via {via} {ours} {more}"))
}

/// A load that went well, and said so as promised.
#[track_caller]
pub fn assert_no_errors(ended: &Ended) {
    assert!(ended.status.success(), "{ended:?}");
    let report = ended.json();
    let number = |name: &str| report[name].as_f64().unwrap();
    assert_eq!(number("errors"), 0.0, "{report}");
    assert!(number("requests") > 0.0 && number("bytes") == number("requests") * 64.0, "{report}");
    assert!((number("rate") - number("requests") / number("seconds")).abs() < 1.0, "{report}");
    let rtt = ["p50", "p90", "p99", "p999", "max"].map(|name| report["rtt_us"][name].as_f64().unwrap());
    assert!(rtt[0] > 0.0 && rtt.is_sorted(), "{report}");
}

/// The two ends of a kind of link.
struct Link {
    serve: String,
    load: String,
    socket: String,
    directory: tempfile::TempDir,
}

impl Link {
    fn new(serve: fn(&str) -> String, load: fn(&str) -> String) -> Link {
        let directory = tempfile::tempdir().unwrap();
        let socket = socket(&directory);
        Link { serve: serve(&socket), load: load(&socket), socket, directory }
    }

    fn vhost() -> Link {
        Link::new(|socket| format!("vhost:{socket}"), |socket| format!("virtio-user:{socket}"))
    }

    fn memif() -> Link {
        Link::new(|socket| format!("memif:{socket},server"), |socket| format!("memif:{socket}"))
    }

    /// A memif link whose server end has the load.
    fn memif_turned() -> Link {
        Link::new(|socket| format!("memif:{socket}"), |socket| format!("memif:{socket},server"))
    }

    /// A virtio-user link whose device end has the load.
    fn vhost_turned() -> Link {
        Link::new(|socket| format!("virtio-user:{socket}"), |socket| format!("vhost:{socket}"))
    }

    fn server(&self) -> Command {
        let ours = "--ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle backoff --json";
        linerate(&format!("-v echo serve --via {} {ours}", self.serve))
    }

    fn load(&self, duration: &str) -> Command {
        load(&self.load, &format!("--connections 64 --duration {duration}"))
    }

    /// Ends the server, which tells what it did, and leaves nothing behind.
    #[track_caller]
    fn stop(self, server: Program) -> serde_json::Value {
        let pid = server.pid();
        let ended = server.stop();
        assert!(ended.status.success(), "{ended:?}");
        assert_nothing_left(pid);
        assert!(!Path::new(&self.socket).exists(), "the socket is left behind");
        let left = std::fs::read_dir(self.directory.path()).unwrap().count();
        assert_eq!(left, 0, "something is left beside the socket");
        ended.json()
    }
}

/// Nothing that the process `pid` made is left: no directory of EAL's, no huge file.
#[track_caller]
pub fn assert_nothing_left(pid: u32) {
    let prefix = format!("linerate-{pid}");
    // A process whose number begins with these digits is another one.
    let is_ours =
        |name: &str| name.strip_prefix(&prefix).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    for directory in ["/var/run/dpdk", "/tmp/dpdk", "/dev/hugepages", "/mnt/huge"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let left: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        assert!(!left.iter().any(|name| is_ours(name)), "{directory}: {left:?}");
    }
}

fn server_first(link: Link) {
    let _turn = turn();
    let server = Program::serve(link.server());
    assert_no_errors(&Program::start(link.load("500ms")).wait());
    let summary = link.stop(server);
    assert_eq!(summary["accepted"], 64, "{summary}");
    assert_eq!(summary["finished"], 64, "{summary}");
}

#[test]
fn a_load_over_virtio_user_has_no_errors() {
    server_first(Link::vhost());
}

#[test]
fn a_load_over_memif_has_no_errors() {
    server_first(Link::memif());
}

fn load_first(link: Link) {
    let _turn = turn();
    let load = Program::start(link.load("500ms"));
    let server = Program::serve(link.server());
    assert_no_errors(&load.wait());
    link.stop(server);
}

#[test]
fn a_load_waits_for_the_vhost_end() {
    load_first(Link::vhost());
}

#[test]
fn a_load_at_the_vhost_end_waits_for_the_virtio_user_end() {
    load_first(Link::vhost_turned());
}

#[test]
fn a_load_waits_for_the_memif_server() {
    load_first(Link::memif());
}

#[test]
fn a_load_at_the_memif_server_waits_for_the_client() {
    load_first(Link::memif_turned());
}

/// The server is killed under a load and comes back: the load goes on, and the next one notices nothing.
fn server_killed(link: Link) {
    let _turn = turn();
    let serve = || {
        let mut server = link.server();
        server.args(["--metrics", "127.0.0.1:0"]);
        Program::serve(server)
    };
    let server = serve();
    let load = Program::start(link.load("1m"));
    await_metric(&server.ready, FRAMES.0, FRAMES.1);
    server.kill();
    let server = serve();
    await_metric(&server.ready, FRAMES.0, FRAMES.1);
    let ended = load.stop();
    // What the old server had is lost, which is an error of each connection.
    let report = ended.json();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(report["errors"].as_u64() >= Some(64) && report["requests"].as_u64() > Some(0), "{report}");
    assert_no_errors(&Program::start(link.load("500ms")).wait());
    link.stop(server);
}

#[test]
fn a_load_over_virtio_user_survives_the_death_of_its_server() {
    server_killed(Link::vhost());
}

#[test]
fn a_load_over_memif_survives_the_death_of_its_server() {
    server_killed(Link::memif());
}

/// A load is killed, twice; the server serves the next one.
fn load_killed(link: Link) {
    let _turn = turn();
    let server = Program::serve(link.server());
    for _ in 0..2 {
        let load = Program::start(link.load("1m"));
        load.wait_for_log("measuring");
        load.kill();
    }
    assert_no_errors(&Program::start(link.load("500ms")).wait());
    let summary = link.stop(server);
    assert_eq!(summary["accepted"], 3 * 64, "{summary}");
}

#[test]
fn a_vhost_server_survives_the_death_of_its_load() {
    load_killed(Link::vhost());
}

#[test]
fn a_memif_server_survives_the_death_of_its_load() {
    load_killed(Link::memif());
}

#[test]
fn a_load_of_datagrams_over_virtio_user_has_no_errors() {
    let _turn = turn();
    let link = Link::vhost();
    let server = Program::serve(link.server());
    let more = "--udp --connections 8 --depth 4 --duration 500ms";
    assert_no_errors(&Program::start(load(&link.load, more)).wait());
    let summary = link.stop(server);
    assert_eq!(summary["accepted"], 0, "{summary}");
    assert!(summary["rx_frames"].as_u64() > Some(100), "{summary}");
}
