//! `kv load` against redis-server and memcached, where installed, and against simulated servers; and the port reported
//! by `kv serve`.

use super::sockets::external_server;
use super::usage::replies;
use crate::common::{ANY_PORT, assert_refused, client, linerate, process_status, run, serve, start};
use linerate_harness::address::unused_address;
use linerate_harness::program::Program;
use linerate_harness::wait_for;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Redis or memcached server, killed on drop.
struct ExternalServer {
    address: SocketAddr,
    _program: Program,
}

impl ExternalServer {
    fn redis() -> Option<Self> {
        let address = unused_address();
        let args = format!("--maxmemory 300mb --bind {} --port {} --save", address.ip(), address.port());
        Some(ExternalServer { address, _program: external_server("redis-server", &args, address)? })
    }

    fn memcached() -> Option<Self> {
        let address = unused_address();
        // memcached refuses to run as root without -u.
        let args = format!("-l {} -p {} -U 0 -t 1 -u root", address.ip(), address.port());
        Some(ExternalServer { address, _program: external_server("memcached", &args, address)? })
    }
}

/// Runs a load that must succeed and returns its report.
#[track_caller]
fn report(address: SocketAddr, args: &str) -> serde_json::Value {
    let output = run(&format!("kv load --via kernel --connect {address} --json --duration 300ms {args}"));
    assert!(output.status.success() && output.stderr.is_empty(), "{args}: {output:?}");
    output.json()
}

fn loads(server: Option<ExternalServer>, protocol: &str) {
    let Some(server) = server else { return };
    for args in [
        "--connections 8 --keys 1000",
        "--connections 3 --keys 1000 --depth 16 --verify --fail-on-miss --value-size 8-3000 --get-ratio 0.5",
        "--connections 2 --keys 10 --depth 4 --verify --fail-on-miss --value-size 100k-900k --zipf 0",
        "--connections 4 --keys 1 --depth 4 --verify --fail-on-miss --get-ratio 0.5",
        "--connections 4 --keys 1000 --rate 2000 --depth 8 --verify",
    ] {
        let report = report(server.address, &format!("{args} {protocol}"));
        let number = |of: &serde_json::Value, name: &str| of[name].as_f64().unwrap();
        let (get, set) = (&report["get"], &report["set"]);
        assert_eq!((&report["errors"], &report["misses"]), (&0.into(), &0.into()), "{args}: {report}");
        // On a busy machine few large values get through, possibly all of one kind.
        let both =
            number(&report, "requests") < 500.0 || (number(get, "requests") > 0.0 && number(set, "requests") > 0.0);
        assert!(both && number(&report, "requests") > 0.0, "{args}: {report}");
        assert_eq!(number(&report, "requests"), number(get, "requests") + number(set, "requests"));
        assert_eq!(number(&report, "bytes"), number(get, "bytes") + number(set, "bytes"));
        for side in [&report, get, set] {
            let rtt = ["p50", "p90", "p99", "p999", "p9999", "max"].map(|name| side["rtt_us"][name].as_f64());
            let rtt: Vec<f64> = rtt.into_iter().flatten().collect();
            assert!((rtt[0] > 0.0 || side["requests"] == 0) && rtt.is_sorted(), "{report}");
        }
        assert_eq!(report.get("open").is_some(), args.contains("--rate"));
        assert_eq!(
            report["filled"],
            args.split(' ').skip_while(|arg| *arg != "--keys").nth(1).unwrap().parse::<u64>().unwrap()
        );
    }
}

#[test]
fn load_works_with_redis() {
    loads(ExternalServer::redis(), "");
}

#[test]
fn load_works_with_memcached() {
    loads(ExternalServer::memcached(), "--protocol memcached");
}

#[test]
fn workers_fill_their_shares_and_verify_values_of_others() {
    let cores = thread::available_parallelism().unwrap().get();
    let Some(server) = ExternalServer::redis().filter(|_| cores > 1) else { return };
    let args = "--connections 5 --workers 2 --keys 3000 --verify --fail-on-miss --get-ratio 0.5 --zipf 1.2 --depth 2";
    assert_eq!(report(server.address, args)["filled"], 3000);
}

#[test]
fn load_prints_a_text_report() {
    let Some(server) = ExternalServer::redis() else { return };
    let args = format!("kv load --via kernel --connect {} --keys 10 --duration 100ms", server.address);
    for (more, parts) in
        [("", &["GETs/s", "SETs/s", "missed", "p99.9"][..]), ("--rate 100", &["offered/s", "sent late"])]
    {
        let output = run(&format!("{args} {more}"));
        assert!(output.status.success(), "{output:?}");
        assert!(parts.iter().all(|part| output.stdout.contains(part)), "{output:?}");
    }
}

#[test]
fn sigint_ends_a_load_while_measuring() {
    let Some(server) = ExternalServer::redis() else { return };
    let mut client = client::connect(server.address);
    let load = start(&format!("kv load --via kernel --connect {} --keys 10 --duration 10m --json", server.address));
    wait_for("a GET, which follows the last key", || {
        let mut reply = [0; 4096];
        client.write_all(b"INFO commandstats\r\n").unwrap();
        let len = client.read(&mut reply).unwrap();
        String::from_utf8_lossy(&reply[..len]).contains("cmdstat_get")
    });
    load.signal(Signal::INT);
    let output = load.wait();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = output.json();
    assert!(report["filled"] == 10 && report["seconds"].as_f64().unwrap() < 60.0, "{report}");
    assert!(output.stderr.starts_with("linerate: interrupted: the figures cover "), "{output:?}");
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    for (args, part) in [
        ("--via kernel --connect 127.0.0.1:7 --keys 0", "--keys"),
        ("--via kernel --connect 127.0.0.1:7 --depth 0", "--depth"),
        ("--via kernel --connect 127.0.0.1:7 --value-size 0", "--value-size"),
        ("--via kernel --connect 127.0.0.1:7 --value-size 65-64", "must not be larger"),
        ("--via kernel --connect 127.0.0.1:7 --value-size 7-64 --verify", "at least 8 bytes"),
        ("--via kernel --connect 127.0.0.1:7 --get-ratio 1.1", "--get-ratio"),
        ("--via kernel --connect 127.0.0.1:7 --zipf=-1", "--zipf"),
        ("--via kernel --connect 127.0.0.1:7 --rate 0", "--rate"),
        ("--via kernel --connect 127.0.0.1:7 --histogram", "--histogram"),
        ("--via kernel --connect 127.0.0.1:7 --protocol http", "--protocol"),
        ("--via kernel --connect 127.0.0.1:7 --verify --no-fill", "--no-fill"),
        ("--via kernel --connect 127.0.0.1:7 --one-sided-incr --rate 5", "--rate"),
        ("--via kernel --threading inline --connect 127.0.0.1:7 --one-sided-incr", "--via rdma:DEVICE"),
    ] {
        assert_refused(linerate(&format!("kv load {args}")), 2, &[part]);
    }
}

/// Serves every connection with `answer` to any request.
fn peer(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                while stream.read(&mut [0; 1000]).is_ok_and(|n| n > 0) && stream.write_all(answer).is_ok() {}
            });
        }
    });
    address
}

#[test]
fn unexpected_reply_is_reported() {
    let args = "--keys 1 --get-ratio 0 --duration 100ms";
    let run = |answer| run(&format!("kv load --via kernel --json --connect {} {args}", peer(answer)));
    let output = run(b"HTTP/1.1 400 Bad Request\r\n");
    let report = output.json();
    assert!(report["errors"].as_u64().unwrap() > 0, "{output:?}");
    let part = r#"the reply is "HTTP/1.1 400 Bad Request\r\n""#;
    assert!(output.status.code() == Some(1) && output.stderr.contains(part), "{output:?}");
    // Every key is refused.
    let output = run(b"-NOAUTH Authentication required.\r\n");
    let part = "refused 1 SET while keys were loaded; the first: SET key:000000000000: ";
    assert!(output.status.code() == Some(1) && output.stderr.contains(part), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.contains(r#"the reply is "NOAUTH "#), "{output:?}");
}

#[test]
fn echo_server_is_detected() {
    let server = serve("echo", ANY_PORT);
    let output = run(&format!("kv load --via kernel --connect {} --keys 10 --duration 1s", server.address()));
    assert!(output.stderr.contains(r#"the reply is "*3\r\n""#), "{output:?}");
    assert!(server.stop().status.success());
}

#[test]
fn missing_key_is_an_error_with_fail_on_miss() {
    let Some(server) = ExternalServer::memcached() else { return };
    // memcached refuses values of more than 1 MiB, so about half of the keys are missing.
    let args = "--keys 30 --value-size 1-2m --get-ratio 1 --duration 100ms --protocol memcached --fail-on-miss";
    let output = run(&format!("kv load --via kernel --json --connect {} {args}", server.address));
    let stderr = &output.stderr;
    assert!(output.status.code() == Some(1), "{output:?}");
    assert!(stderr.contains(" error replies") && stderr.contains("misses of existing keys"), "{stderr}");
    assert!(stderr.contains("object too large for cache"), "{stderr}");
}

#[test]
fn assigned_port_is_reported() {
    let server = serve("kv", &format!("{ANY_PORT} --memory 16m"));
    let port = server.address().port().to_string();
    let reply = replies(&server, "INFO server\r\nCONFIG GET port\r\nQUIT\r\n");
    let parameter = format!("\r\n*2\r\n$4\r\nport\r\n${}\r\n{port}\r\n+OK\r\n", port.len());
    assert!(reply.contains(&format!("\r\ntcp_port:{port}\r\n")) && reply.ends_with(&parameter), "{reply}");
    assert!(server.stop().status.success());
}

#[test]
fn memory_of_unread_replies_returns_to_the_system() {
    let server = serve("kv", &format!("{ANY_PORT} --memory 16m --client-output-limit 512m --max-client-memory 0"));
    let address = server.address();
    let resident = || process_status(server.pid(), "VmRSS:").parse::<u64>().unwrap() << 10;
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(format!("SET k {}\r\n", "v".repeat(3000)).as_bytes()).unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    let before = resident();
    drop(client);
    // The second client uses memory that was returned.
    for _ in 0..2 {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_nonblocking(true).unwrap();
        wait_for("100 MB of replies", || {
            let _ = client.write(&b"GET k\r\n".repeat(1000));
            resident() > before + (100 << 20)
        });
        drop(client);
        wait_for("return of the memory", || resident() < before + (40 << 20));
    }
    assert!(server.stop().status.success());
}
