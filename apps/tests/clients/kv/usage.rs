//! Usage errors and operation of `linerate kv serve`.

use crate::common::{ANY_PORT, client, linerate, serve, start};
use linerate_harness::program::Program;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

#[track_caller]
fn assert_refused(args: &str, status: i32, parts: &[&str]) {
    crate::common::assert_refused(linerate(&format!("kv serve --via kernel {args}")), status, parts);
}

/// Starts a server on an unused port.
fn serve_json(more: &str) -> Program {
    serve("kv", &format!("{ANY_PORT} --json {more}"))
}

/// Sends requests that end with QUIT on a new connection and returns the replies.
pub fn replies(server: &Program, requests: &str) -> String {
    let mut client = client::connect(server.address());
    client.write_all(requests.as_bytes()).unwrap();
    let mut replies = String::new();
    client.read_to_string(&mut replies).unwrap();
    replies
}

#[test]
fn wrong_arguments_name_the_correct_ones() {
    for (args, parts) in [
        ("--listen here", &["--listen", "such as 10.0.0.2:6379"][..]),
        ("--memcached here", &["--memcached", "such as 10.0.0.2:11211"]),
        ("--memcached 127.0.0.1:0", &["--memcached", "such as 11211"]),
        ("--listen 127.0.0.1:11211 --memcached 127.0.0.1", &["--memcached", "give another"]),
        ("--memcached 127.0.0.1 --password-file x", &["--password-file", "--listen"]),
        ("--listen 127.0.0.1 --memory much", &["--memory", "such as 512m or 4g"]),
        ("--listen 127.0.0.1 --memory 1m", &["--memory", "at least 4m"]),
        ("--listen 127.0.0.1 --memory 1025g", &["--memory", "at most 1024g"]),
        ("--listen 127.0.0.1:0 --memory 33g", &["--memory 33g", "at most 32g", "--workers 2"]),
        ("--listen 127.0.0.1:0 --memory 65g --workers 2", &["--memory 65g", "--workers 3", "--cluster-map"]),
        ("--listen 127.0.0.1 --evict fifo", &["--evict", "lru"]),
        ("--listen 127.0.0.1 --client-output-limit x", &["--client-output-limit", "64k"]),
        ("--listen 127.0.0.1 --timeout 300", &["--timeout", "such as 500ms, 5s or 2m"]),
        ("--listen 127.0.0.1 --timeout 1500ms", &["--timeout", "such as 30s or 5m"]),
        ("--listen 127.0.0.1 --max-clients 0", &["--max-clients", "1.."]),
        ("--listen 127.0.0.1 --export 16m --password-file x", &["--export", "password"]),
        ("--listen 127.0.0.1 --counters 9 --password-file x", &["--counters", "password"]),
        ("--memcached 127.0.0.1 --counters 9", &["--counters", "--listen"]),
        ("--listen 127.0.0.1 --counters 2000000", &["--counters", "1048576"]),
        ("--listen 127.0.0.1:0 --export 16m", &["--export", "--via rdma:DEVICE"]),
        ("--listen 127.0.0.1:0 --counters 9", &["--counters", "--via rdma:DEVICE"]),
        ("--listen 127.0.0.1 --cluster-announce here", &["--cluster-announce", "--cluster: add it"]),
        ("--memcached 127.0.0.1 --cluster", &["--cluster", "add --listen"]),
        ("--listen 127.0.0.1:0 --cluster", &["--cluster", "such as 6379"]),
        ("--listen 127.0.0.1:7000 --listen [::1]:7001 --cluster", &["--cluster", "the same port"]),
        ("--listen 0.0.0.0 --cluster-map x", &["--cluster-map", "--cluster-announce"]),
        ("--listen 127.0.0.1:65535 --cluster --workers 2", &["worker 1 has no port"]),
    ] {
        assert_refused(args, 2, parts);
    }
}

#[test]
fn port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for option in ["--listen", "--memcached"] {
        assert_refused(&format!("{option} {address}"), 1, &[&address, "already taken", "choose another port"]);
    }
}

#[test]
fn wrong_map_of_a_cluster_has_one_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map.toml").display().to_string();
    let node =
        |port: u16, slots: &str| format!("[[node]]\nhost = \"127.0.0.1\"\nport = {port}\nslots = [\"{slots}\"]\n");
    let missing = ["--cluster-map", "No such file", "name the file of the map"];
    assert_refused(&format!("--listen 127.0.0.1:7000 --cluster-map {path}"), 1, &missing);
    for (text, part) in [
        (node(7000, "0-16384"), "slots from 0 to 16383"),
        (node(7000, "0-16382"), "slots 16383-16383 belong to no node"),
        (node(7000, "0-16383") + &node(7001, "5"), "slot 5 belongs to node 127.0.0.1:7000 and to node 127.0.0.1:7001"),
        (node(7001, "0-16383"), "no node 127.0.0.1:7000 for worker 0"),
        (node(7000, "0-16383") + "replica = true", "line 5: unknown field `replica`"),
        (node(7000, "all"), "line 4"),
        ("nodes".to_owned(), "line 1"),
    ] {
        fs::write(&path, text).unwrap();
        let args = format!("--listen 127.0.0.1:7000 --cluster-map {path}");
        assert_refused(&args, 1, &["--cluster-map", &path, part]);
    }
}

#[test]
fn file_without_a_password_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("blank"), "\r\nsecond line").unwrap();
    fs::write(path("endless"), "x".repeat(5000)).unwrap();
    let write = "write the password into its first line";
    for (name, part, remedy) in [
        ("absent", "No such file", "create it with the password in its first line"),
        ("empty", "is empty", write),
        ("blank", "is empty", write),
        ("endless", "too long", write),
        ("", "directory", "give a file with the password in its first line"),
    ] {
        let path = path(name);
        let args = format!("--listen 127.0.0.1:0 --password-file {path}");
        assert_refused(&args, 1, &["--password-file", &path, part, remedy]);
    }
}

#[test]
fn password_is_required_and_a_readable_file_is_warned_of() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "sesame\r\nanything").unwrap();
    for (mode, warns) in [(0o600, false), (0o640, true), (0o604, true)] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let args = format!("--memory 4m --client-output-limit 0 --password-file {}", file.path().display());
        let server = serve_json(&args);
        let replies = replies(&server, "GET x\r\nAUTH sesame\r\nGET x\r\nQUIT\r\n");
        assert_eq!(replies, "-NOAUTH Authentication required.\r\n+OK\r\n$-1\r\n+OK\r\n");
        let ended = server.stop();
        let warned =
            ended.stderr.lines().any(|line| line.contains("readable by other users") && line.contains("chmod 600"));
        assert!(ended.status.success() && warned == warns, "{mode:o}: {ended:?}");
    }
}

#[test]
fn memory_is_set_between_the_minimum_and_the_initial_size() {
    let server = serve_json("--memory 16m");
    // Refused: 0 (unlimited in Redis), less than the minimum, and more than was mapped. Accepted: less, and the initial
    // size.
    let requests = ["0", "1mb", "17mb", "8mb", "16mb"].map(|memory| format!("CONFIG SET maxmemory {memory}\r\n"));
    let replies = replies(&server, &(requests.concat() + "CONFIG GET maxmemory\r\nQUIT\r\n"));
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be between \
                   4194304 and 16777216 inclusive\r\n";
    let expected =
        format!("{refused}{refused}{refused}+OK\r\n+OK\r\n*2\r\n$9\r\nmaxmemory\r\n$8\r\n16777216\r\n+OK\r\n");
    assert_eq!(replies, expected);
    assert!(server.stop().status.success());
}

#[test]
fn sigint_during_requests_ends_the_server_with_a_summary() {
    let server = serve_json("--memory 16m");
    let address = server.address();
    let load = format!("kv load --via kernel --connect {address} --keys 100 --connections 4 --depth 16 --duration 10m");
    let load = start(&load);
    // Half a request is pending on one connection, while others are answered.
    let mut half = client::connect(address);
    half.write_all(b"*2\r\n$3\r\nGET\r\n$1000\r\nhalf").unwrap();
    let mut other = client::connect(address);
    let mut answer = [0; 4];
    while answer != *b":1\r\n" {
        other.write_all(b"EXISTS key:000000000007\r\n").unwrap();
        other.read_exact(&mut answer).unwrap();
    }
    let ended = server.stop();
    assert!(ended.status.success() && ended.json()["accepted"] == 6, "{ended:?}");
    let ended = load.wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let line = ended.stderr.lines().find(|line| line.contains(" lost")).expect("lost connections");
    let number = |label: &str| {
        let (before, _) = line.split_once(label)?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    };
    let [all, lost, refused] = [" errors: ", " lost", " refused"].map(number);
    // A connection that was reopened before the end is lost again.
    assert!(lost >= Some(4), "{ended:?}");
    // No other errors.
    assert_eq!(all, lost.zip(refused).map(|(lost, refused)| lost + refused), "{ended:?}");
}
