//! `kv serve --udp` and `kv load --udp` over kernel sockets: against each other, a simulated client, and memcached,
//! where installed.

use crate::common::{assert_refused, linerate, run, start};
use linerate_harness::address::unused_address;
use linerate_harness::program::Program;
use linerate_harness::rerun::{has_cores, is_installed};
use linerate_harness::{TIMEOUT, wait_for};
use rustix::process::Signal;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// Starts a server over kernel sockets and returns it with its address.
fn serve(args: &str) -> (Program, SocketAddr) {
    let address = unused_address();
    let server = crate::common::serve("kv", &format!("--via kernel --memory 64m --memcached {address} --udp {args}"));
    assert!(server.ready.starts_with("ready kv on "), "{}", server.ready);
    (server, address)
}

/// UDP client of memcached's protocol.
struct Client(UdpSocket);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        Client(socket)
    }

    fn send(&self, id: u16, requests: &[u8]) {
        let header = [id.to_be_bytes(), [0, 0], [0, 1], [0, 0]].concat();
        self.0.send(&[&header, requests].concat()).unwrap();
    }

    /// Receives the reply to request `id`. Its datagrams must arrive in order.
    fn receive(&self, id: u16, limit: Duration) -> Option<Vec<u8>> {
        self.0.set_read_timeout(Some(limit)).unwrap();
        let (mut message, mut bytes) = (Vec::new(), [0; 2000]);
        for sequence in 0.. {
            let n = self.0.recv(&mut bytes).ok()?;
            let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            assert_eq!((number(0), number(2), number(6)), (id, sequence, 0), "{}", bytes[..n].escape_ascii());
            message.extend_from_slice(&bytes[8..n]);
            if sequence + 1 == number(4) {
                break;
            }
        }
        Some(message)
    }

    #[track_caller]
    fn call(&self, id: u16, requests: &[u8]) -> Vec<u8> {
        self.send(id, requests);
        self.receive(id, TIMEOUT).unwrap_or_else(|| panic!("no reply to {}", requests.escape_ascii()))
    }

    /// Returns the number of keys that the server looked up.
    fn gets(&self) -> u64 {
        let stats = self.call(1, b"stats\r\n");
        let stats = std::str::from_utf8(&stats).unwrap();
        stats.lines().find_map(|line| line.strip_prefix("STAT cmd_get ")).unwrap().parse().unwrap()
    }
}

#[test]
fn udp_client_is_served() {
    let (server, address) = serve("");
    let client = Client::connect(address);
    assert_eq!(client.call(1, b"set key 3 0 5\r\nvalue\r\n"), b"STORED\r\n");
    assert_eq!(client.call(0xfedc, b"get key none\r\n"), b"VALUE key 3 5\r\nvalue\r\nEND\r\n");
    let long = [&b"set long 0 0 5000\r\n"[..], &[b'x'; 5000], b"\r\n"].concat();
    assert_eq!(client.call(2, &long), b"STORED\r\n");
    assert_eq!(client.call(3, b"get long\r\n"), [b"VALUE long 0 5000\r\n", &[b'x'; 5000][..], b"\r\nEND\r\n"].concat());
    // The server ignores these two and answers the following request.
    client.send(4, b"nonsense\r\n");
    client.0.send(b"mn\r\n").unwrap();
    assert_eq!(client.call(5, b"mn\r\n"), b"MN\r\n");
    assert!(server.stop().status.success());
}

#[test]
fn server_without_udp_receives_no_datagrams() {
    let address = unused_address();
    let server = crate::common::serve("kv", &format!("--via kernel --memory 64m --memcached {address}"));
    let client = Client::connect(address);
    client.send(1, b"mn\r\n");
    // The kernel reports that the port is closed.
    assert_eq!(client.receive(1, Duration::from_secs(5)), None);
    assert!(server.stop().status.success());
}

/// Runs loads with various options against `address` and checks the reports.
fn loads(address: SocketAddr, more: &str) {
    for args in [
        "--connections 4 --depth 4 --keys 1000 --fail-on-miss --verify --value-size 8-1411 --get-ratio 0.5",
        "--connections 1 --depth 1 --keys 10 --fail-on-miss --zipf 0 --warm-up 100ms",
        "--connections 4 --depth 16 --keys 1000 --fail-on-miss --verify --rate 2000",
        "--connections 2 --keys 1000 --no-fill",
    ] {
        let args = format!("{args} {more}");
        let load = format!(
            "kv load --udp --protocol memcached --via kernel --connect {address} --duration 300ms --json {args}"
        );
        let output = run(&load);
        let report = output.json();
        let number = |of: &serde_json::Value, name: &str| of[name].as_f64().unwrap();
        // A socket buffer may overflow on a busy machine, but replies must be correct.
        let lost = output.stderr.contains(" requests were lost, 0 replies were corrupt: the figures");
        assert!(output.status.success() || lost && output.status.code() == Some(1), "{args}: {output:?}");
        assert_eq!(output.status.success(), number(&report, "errors") == 0.0);
        assert!(number(&report, "requests") > 0.0 && report["misses"] == 0, "{report}");
        let (get, set) = (&report["get"], &report["set"]);
        assert_eq!(number(&report, "requests"), number(get, "requests") + number(set, "requests"));
        assert_eq!(report.get("open").is_some(), args.contains("--rate"));
        assert!(report["rtt_us"]["max"].as_f64() > Some(0.0), "{report}");
        let filled = args.split(' ').skip_while(|arg| *arg != "--keys").nth(1).unwrap().parse().unwrap();
        assert_eq!(report["filled"], if args.contains("--no-fill") { 0u64 } else { filled });
    }
}

#[test]
fn udp_load_is_served() {
    let (server, address) = serve("--json");
    loads(address, "");
    let output = server.stop();
    let summary = output.json();
    assert_eq!(summary["accepted"], 0, "{summary}");
}

#[test]
fn udp_load_is_served_by_two_workers() {
    if !has_cores(2) {
        return;
    }
    let (server, address) = serve("--workers 2");
    loads(address, "");
    assert!(server.stop().status.success());
}

#[test]
fn udp_load_works_with_memcached() {
    let address = unused_address();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new("memcached");
    command.args(["-l", &ip, "-p", "0", "-U", &port, "-t", "1", "-u", "root"]);
    if !is_installed("memcached", &["--version"], "memcached") {
        return;
    }
    let _memcached = Program::start(command);
    let client = Client::connect(address);
    wait_for("memcached", || {
        // The kernel reports a closed port until memcached listens.
        _ = client.0.send(&[0, 0, 0, 0, 0, 1, 0, 0, b'm', b'n', b'\r', b'\n']);
        client.receive(0, Duration::from_millis(50)).is_some()
    });
    loads(address, "");
}

#[test]
fn udp_load_ends_without_replies_and_on_sigint() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let load = format!("kv load --udp --protocol memcached --via kernel --connect {address}");
    let output = run(&load);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
    assert!(output.stderr.contains(&format!("{address}: timed out")), "{output:?}");

    let (server, address) = serve("");
    let load =
        format!("kv load --udp --protocol memcached --via kernel --connect {address} --keys 10 --duration 10m --json");
    let load = start(&load);
    let client = Client::connect(address);
    // The measurement begins when all keys are set.
    wait_for("GETs", || client.gets() >= 20);
    load.signal(Signal::INT);
    let output = load.wait();
    let report = output.json();
    assert!(report["seconds"].as_f64().unwrap() < 60.0, "{report}");
    assert!(server.stop().status.success());
}

#[test]
fn udp_load_reports_losses_when_its_server_stops() {
    let (server, address) = serve("");
    let load = format!(
        "kv load --udp --protocol memcached --via kernel --connect {address} --keys 10 --depth 4 --duration 2s --json"
    );
    let load = start(&load);
    let client = Client::connect(address);
    // All keys are set before the first GET.
    wait_for("GETs", || client.gets() >= 20);
    assert!(server.stop().status.success());
    let output = load.wait();
    let report = output.json();
    assert!(report["errors"].as_u64() > Some(0), "{report}");
    assert!(output.status.code() == Some(1) && output.stderr.contains("requests were lost"), "{output:?}");
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    let load = "kv load --udp --via kernel --connect 127.0.0.1:7";
    let serve = "kv serve --udp --via kernel --memory 64m";
    for (args, part) in [
        (load.to_owned(), "--protocol memcached"),
        (format!("{load} --protocol memcached --value-size 1412"), "at most 1411 bytes"),
        (format!("{load} --protocol memcached --connections 257"), "257"),
        (format!("{load} --protocol memcached --one-sided"), "--one-sided"),
        ("kv load --udp --protocol memcached --via tap:lr0 --dhcp --connect 10.0.0.2:7".to_owned(), "--ip"),
        ("kv load --udp --protocol memcached --via rdma:rxe0 --connect 10.0.0.2:7".to_owned(), "--udp"),
        (format!("{serve} --listen 127.0.0.1:0"), "--memcached"),
        (format!("{serve} --listen 127.0.0.1:0 --memcached 127.0.0.1 --password-file /none"), "carries no password"),
        ("kv serve --udp --via rdma:rxe0 --memcached 10.0.0.2".to_owned(), "--udp"),
    ] {
        assert_refused(linerate(&args), 2, &[part]);
    }
}
