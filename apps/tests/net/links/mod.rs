//! Two processes over a shared-memory link: start order, killed ends, and cleanup.

mod capture;
mod raw;
mod zero_copy;

use crate::common::{linerate, summary};
use linerate_harness::metrics::await_metric;
use linerate_harness::process::Ended;
use linerate_harness::program::Program;
use linerate_harness::tests;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Counter of received frames, and a value above the handshakes of 64 connections.
const FRAMES: (&str, u64) = ("linerate_rx_frames_total", 1_000);

/// Arguments of a server.
const ADDRESSES: &str = "--ip 10.9.0.2/24 --ip fd09::2/64 --listen 10.9.0.2:7 --listen [fd09::2]:7 --idle wait --json";

/// Returns the path of a link's socket in the directory of the test.
pub fn socket(directory: &tempfile::TempDir) -> String {
    directory.path().join("link.sock").to_str().unwrap().to_owned()
}

/// Returns the command of an echo load with JSON output.
pub fn load(via: &str, more: &str) -> Command {
    load_to("10.9.0.2:7", via, more)
}

fn load_to(server: &str, via: &str, more: &str) -> Command {
    let args = "--ip 10.9.0.1/24 --ip fd09::1/64 --idle wait --json";
    linerate(&format!("-v echo load --via {via} {args} --connect {server} {more}"))
}

/// Asserts that a load succeeded with a consistent report.
#[track_caller]
pub fn assert_no_errors(ended: &Ended) {
    assert!(ended.status.success(), "{ended:?}");
    let report = ended.json();
    let number = |name: &str| report[name].as_f64().unwrap();
    assert_eq!(number("errors"), 0.0, "{report}");
    assert!(number("requests") > 0.0 && number("bytes") == number("requests") * 64.0, "{report}");
    assert!((number("rate") - number("requests") / number("seconds")).abs() < 1.0, "{report}");
    let rtt = ["p50", "p90", "p99", "p999", "p9999", "max"].map(|name| report["rtt_us"][name].as_f64());
    let rtt: Vec<f64> = rtt.into_iter().flatten().collect();
    assert!(rtt[0] > 0.0 && rtt.is_sorted(), "{report}");
}

/// Asserts that a load received datagrams, and only correct ones. One in a hundred may be lost, which the exit status
/// reports: a busy machine can stop a program for longer than the load waits.
#[track_caller]
pub fn assert_datagrams(ended: &Ended) {
    let report = ended.json();
    let (requests, lost) = (report["requests"].as_f64().unwrap(), report["datagrams"]["lost"].as_f64().unwrap());
    assert!(requests > 0.0 && report["bytes"].as_f64() == Some(requests * 64.0), "{ended:?}");
    assert!(lost <= requests / 100.0 && ended.status.success() == (lost == 0.0), "{ended:?}");
    assert!(report["errors"].as_f64() == Some(lost) && report["datagrams"]["corrupt"] == 0, "{ended:?}");
}

/// Ends of a link.
pub struct Link {
    pub serve: String,
    pub load: String,
    pub socket: String,
    directory: tempfile::TempDir,
}

impl Link {
    fn new(serve: fn(&str) -> String, load: fn(&str) -> String) -> Link {
        let directory = tempfile::tempdir().unwrap();
        let socket = socket(&directory);
        Link { serve: serve(&socket), load: load(&socket), socket, directory }
    }

    /// Returns the directory of the socket.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn vhost() -> Link {
        Link::new(|socket| format!("vhost:{socket}"), |socket| format!("virtio-user:{socket}"))
    }

    pub fn memif() -> Link {
        Link::new(|socket| format!("memif:{socket},server"), |socket| format!("memif:{socket}"))
    }

    /// memif link with the load at the server end.
    fn memif_swapped() -> Link {
        Link::new(|socket| format!("memif:{socket}"), |socket| format!("memif:{socket},server"))
    }

    /// virtio-user link with the load at the device end.
    fn vhost_swapped() -> Link {
        Link::new(|socket| format!("virtio-user:{socket}"), |socket| format!("vhost:{socket}"))
    }

    /// RoCEv2 in software on a vhost-user link.
    fn roce() -> Link {
        Link::new(|socket| format!("roce:vhost:{socket}"), |socket| format!("roce:virtio-user:{socket}"))
    }

    /// The same with queue pairs that are connected by an exchange over TCP.
    fn roce_by_tcp() -> Link {
        Link::roce().with("--rdma-connect tcp")
    }

    /// The same with sessions of datagrams.
    fn roce_ud() -> Link {
        Link::roce().with("--rdma-mode ud")
    }

    /// Adds arguments of both ends.
    fn with(self, args: &str) -> Link {
        Link { serve: format!("{} {args}", self.serve), load: format!("{} {args}", self.load), ..self }
    }

    pub fn server(&self) -> Command {
        linerate(&format!("-v echo serve --via {} {ADDRESSES}", self.serve))
    }

    pub fn load(&self, duration: &str) -> Command {
        load(&self.load, &format!("--connections 64 --duration {duration}"))
    }

    /// Stops the server, checks that nothing remains, and returns its summary.
    #[track_caller]
    pub fn stop(self, server: Program) -> serde_json::Value {
        let pid = server.pid();
        let summary = summary(&server.stop());
        assert_nothing_left(pid);
        assert!(!Path::new(&self.socket).exists(), "the socket remains");
        let left = std::fs::read_dir(self.directory.path()).unwrap().count();
        assert_eq!(left, 0, "files remain next to the socket");
        summary
    }
}

/// Asserts that no EAL directory and no huge file of process `pid` remains.
#[track_caller]
pub fn assert_nothing_left(pid: u32) {
    let prefix = format!("linerate-{pid}");
    // A longer id that begins with these digits belongs to another process.
    let belongs =
        |name: &str| name.strip_prefix(&prefix).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    for directory in ["/var/run/dpdk", "/tmp/dpdk", "/dev/hugepages", "/mnt/huge"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let left: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        assert!(!left.iter().any(|name| belongs(name)), "{directory}: {left:?}");
    }
}

#[test]
fn load_without_a_server_names_the_awaited_socket() {
    for link in [Link::vhost(), Link::memif()] {
        let mut load = Program::start(link.load("1s"));
        load.wait_for_log(&format!("WARN waiting for a process that serves the socket '{}'", link.socket));
        let ended = load.stop();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    }
}

fn consecutive_loads(link: Link) {
    let server = Program::serve(link.server());
    let via = link.serve.split(' ').next().unwrap();
    let ready = format!("ready echo on 10.9.0.2:7, [fd09::2]:7 via {via}, 1 worker");
    assert!(server.ready.starts_with(&ready), "{}", server.ready);
    assert_no_errors(&Program::start(link.load("500ms")).wait());
    // Requests of ten datagrams take several round trips, each of 100 ms if others use the processors.
    let over_ipv6 = "--connections 5 --size 10000 --depth 3 --duration 1500ms";
    let report = summary(&Program::start(load_to("[fd09::2]:7", &link.load, over_ipv6)).wait());
    assert!(report["errors"] == 0 && report["requests"].as_u64() > Some(0), "{report}");
    let closed = Program::start(load_to("10.9.0.2:9", &link.load, "")).wait();
    assert_eq!(closed.status.code(), Some(1), "{closed:?}");
    assert!(closed.stderr.contains("10.9.0.2:9: connection refused"), "{closed:?}");
    let summary = link.stop(server);
    assert_eq!((&summary["accepted"], &summary["finished"]), (&69.into(), &69.into()), "{summary}");
}

fn load_first(link: Link) {
    let load = Program::start(link.load("500ms"));
    let server = Program::serve(link.server());
    assert_no_errors(&load.wait());
    link.stop(server);
}

/// Kills and restarts the server during a load. The load continues, and the next one has no errors.
fn server_killed(link: Link) {
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
    // Requests at the old server are lost, which is an error of each connection.
    let report = ended.json();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(report["errors"].as_u64() >= Some(64) && report["requests"].as_u64() > Some(0), "{report}");
    assert_no_errors(&Program::start(link.load("500ms")).wait());
    link.stop(server);
}

/// Kills two loads. The server serves the next one.
fn load_killed(link: Link) {
    let server = Program::serve(link.server());
    for _ in 0..2 {
        let mut load = Program::start(link.load("1m"));
        load.wait_for_log("measuring");
        load.kill();
    }
    assert_no_errors(&Program::start(link.load("500ms")).wait());
    let summary = link.stop(server);
    // The last confirmations of a load may be lost when it is killed.
    assert!((64..=3 * 64).contains(&summary["accepted"].as_u64().unwrap()), "{summary}");
}

/// Verifies the values of a key-value server.
fn values_over(link: Link) {
    let server = Program::serve(linerate(&format!("-v kv serve --via {} {ADDRESSES}", link.serve)));
    let work = "--connections 8 --keys 1000 --value-size 8-3000 --verify --fail-on-miss --duration 500ms";
    let args = "--ip 10.9.0.1/24 --connect 10.9.0.2:7 --idle wait --json";
    let report = summary(&Program::start(linerate(&format!("-v kv load --via {} {args} {work}", link.load))).wait());
    assert!(report["errors"] == 0 && report["requests"].as_u64() > Some(100), "{report}");
    let summary = link.stop(server);
    assert_eq!((&summary["accepted"], &summary["finished"]), (&8.into(), &8.into()), "{summary}");
}

/// Drains the server during a load, which completes without errors.
fn load_outlasts_drain(engine: &str) {
    let link = Link::vhost();
    let mut server = link.server();
    server.args(["--engine", engine, "--drain", "1m", "--metrics", "127.0.0.1:0"]);
    let mut server = Program::serve(server);
    let load = Program::start(link.load("5s"));
    await_metric(&server.ready, "linerate_connections", 64);
    await_metric(&server.ready, FRAMES.0, FRAMES.1);
    server.signal(Signal::TERM);
    server.wait_for_log("draining: 64 connections");
    assert_no_errors(&load.wait());
    let summary = summary(&server.wait());
    assert_eq!((&summary["accepted"], &summary["broken"]), (&64.into(), &0.into()), "{summary}");
}

tests! {
    load_over_virtio_user_has_no_errors => consecutive_loads(Link::vhost());
    load_over_memif_has_no_errors => consecutive_loads(Link::memif());
    load_over_roce_has_no_errors => consecutive_loads(Link::roce());
    load_over_roce_connected_by_tcp_has_no_errors => consecutive_loads(Link::roce_by_tcp());
    load_over_roce_in_datagrams_has_no_errors => consecutive_loads(Link::roce_ud());
    values_over_roce_are_correct => values_over(Link::roce());
    values_over_roce_in_datagrams_are_correct => values_over(Link::roce_ud());
    load_waits_for_the_vhost_end => load_first(Link::vhost());
    load_at_the_vhost_end_waits_for_the_virtio_user_end => load_first(Link::vhost_swapped());
    load_waits_for_the_memif_server => load_first(Link::memif());
    load_at_the_memif_server_waits_for_the_client => load_first(Link::memif_swapped());
    load_over_virtio_user_survives_the_death_of_its_server => server_killed(Link::vhost());
    load_over_memif_survives_the_death_of_its_server => server_killed(Link::memif());
    vhost_server_survives_the_death_of_its_load => load_killed(Link::vhost());
    memif_server_survives_the_death_of_its_load => load_killed(Link::memif());
    roce_server_survives_the_death_of_its_load => load_killed(Link::roce());
    roce_server_survives_the_death_of_its_load_in_datagrams => load_killed(Link::roce_ud());
    load_over_a_link_outlasts_a_drain => load_outlasts_drain("native");
    load_over_a_link_outlasts_a_drain_with_smoltcp => load_outlasts_drain("smoltcp");
}

/// Returns the processor time of the threads of `pid`, and the number of their time slices (proc_pid_schedstat(5)).
pub fn activity(pid: u32) -> (Duration, u64) {
    let (mut time, mut slices) = (0, 0);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let numbers = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        let numbers: Vec<u64> = numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
        (time, slices) = (time + numbers[0], slices + numbers[2]);
    }
    (Duration::from_nanos(time), slices)
}

#[test]
fn server_without_work_sleeps() {
    let link = Link::vhost();
    let server = Program::serve(link.server());
    // Each thread wakes up once a second at most, and for a request. The start of both ends may last into a window.
    let slices = || {
        let (_, before) = activity(server.pid());
        std::thread::sleep(Duration::from_secs(1));
        activity(server.pid()).1 - before
    };
    let rests = || (0..5).any(|_| slices() < 20);
    assert!(rests(), "without a client");
    let mut load = Program::start(load(&link.load, "--connections 64 --rate 1 --duration 1m"));
    load.wait_for_log("measuring");
    assert!(rests(), "with a client that sends a request per second");
    load.kill();
    link.stop(server);
}

#[test]
fn roce_server_counts_frames_that_its_port_discards() {
    let link = Link::roce();
    let server = Program::serve(link.server());
    let ended = Program::start(load(&link.load, "--vlan 5 --connections 1 --duration 100ms")).wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let summary = link.stop(server);
    assert!(summary["drops"]["frame of another VLAN"].as_u64() > Some(0), "{summary}");
}

#[test]
fn udp_load_over_virtio_user_receives_correct_datagrams() {
    let link = Link::vhost();
    let server = Program::serve(link.server());
    let more = "--udp --connections 8 --depth 4 --duration 500ms";
    assert_datagrams(&Program::start(load(&link.load, more)).wait());
    let summary = link.stop(server);
    assert_eq!(summary["accepted"], 0, "{summary}");
    assert!(summary["rx_frames"].as_u64() > Some(100), "{summary}");
}
