//! Services and loads with TLS.

use super::certificates::Certificates;
use crate::common::{ANY_PORT, assert_refused, linerate, run, serve, stop};
use linerate_harness::address::unused_address;
use linerate_harness::program::turn;
use linerate_harness::rerun::is_installed;
use std::process::Command;

#[track_caller]
fn output(program: &str, args: &str) -> String {
    let output = Command::new(program).args(args.split_whitespace()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args}: {text} {}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn loads_run_over_tls() {
    let Some(certificates) = Certificates::new() else { return };
    let _turn = turn();
    for (service, serving, loads) in [
        ("echo", "", &["", "--size 20000 --connections 4 --depth 4", "--reconnect --connections 2"][..]),
        ("discard", "", &[""]),
        ("chargen", "", &[""]),
        ("http", "", &["", "--depth 4"]),
        ("kv", "--memory 64m", &["--keys 1000", "--keys 100 --value-size 40k"]),
    ] {
        for threading in ["inline", "split"] {
            let args = format!("{ANY_PORT} --threading {threading} --json {serving} {}", certificates.server());
            let server = serve(service, &args);
            for more in loads {
                let load = format!("{service} load --connect {} --duration 300ms --json", server.address());
                let ended = run(&format!("{load} {more} {}", certificates.load()));
                assert!(ended.status.success(), "{service} {more}: {ended:?}");
                let report = ended.json();
                assert_eq!(report["errors"], 0, "{service} {more}: {report}");
            }
            stop(server);
        }
    }
}

#[test]
fn curl_gets_a_page_and_a_long_file() {
    let Some(certificates) = Certificates::new() else { return };
    if !is_installed("curl", &["--version"], "curl") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let long: String = (0..200_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(directory.path().join("long"), &long).unwrap();
    let args = format!("{ANY_PORT} --dir {} {}", directory.path().display(), certificates.server());
    let server = serve("http", &args);
    for (option, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let curl = format!("-sS {option} --cacert {} -w %{{http_version}}", certificates.file("ca.pem"));
        let url = format!("https://{}", server.address());
        assert!(output("curl", &format!("{curl} {url}/missing")).ends_with(version));
        assert_eq!(output("curl", &format!("{curl} {url}/long")), format!("{long}{version}"));
    }
    server.stop();
}

#[test]
fn redis_cli_and_redis_benchmark_work() {
    let Some(certificates) = Certificates::new() else { return };
    if !is_installed("redis-cli", &["--version"], "redis-tools") {
        return;
    }
    let [tls, plain] = [(); 2].map(|()| unused_address());
    let options = format!("--via kernel --listen {plain} --listen-tls {tls} --memory 64m");
    let server = serve("kv", &format!("{options} {}", certificates.server()));
    assert!(server.ready.contains(&format!(", TLS on port {}", tls.port())), "{}", server.ready);
    let (port, ca) = (tls.port(), certificates.file("ca.pem"));
    let cli = format!("-p {port} --tls --cacert {ca}");
    for (options, is_tls) in [(&cli[..], true), (&format!("-p {}", plain.port()), false)] {
        let ports = output("redis-cli", &format!("{options} config get *port"));
        assert_eq!(ports, format!("port\n{}\ntls-port\n{port}\n", plain.port()), "TLS: {is_tls}");
    }
    assert_eq!(output("redis-cli", &format!("{cli} set key value")), "OK\n");
    assert_eq!(output("redis-cli", &format!("{cli} get key")), "value\n");
    let report = output("redis-benchmark", &format!("{cli} -q -n 2000 -c 10 -P 4 -t set,get"));
    assert!(report.contains("SET") && report.contains("GET"), "{report}");
    server.stop();
}

#[test]
fn wrong_options_are_refused() {
    let Some(certificates) = Certificates::new() else { return };
    let (own, ca) = (certificates.server(), certificates.file("ca.pem"));
    let key = certificates.file("other.key");
    let chain = certificates.file("server.pem");
    let refused = |args: &str, status: i32, parts: &[&str]| assert_refused(linerate(args), status, parts);
    refused(&format!("echo serve {own} --tls-client-auth required"), 2, &["--tls-client-ca"]);
    refused(&format!("echo serve {own} --tls-cert {chain}"), 2, &["2 certificates and 1 keys"]);
    refused(&format!("echo serve --tls-cert {chain} --tls-key {key}"), 1, &["--tls-cert: ", "other.key"]);
    refused(&format!("echo serve --tls-cert /nonexistent --tls-key {key}"), 1, &["--tls-cert: /nonexistent"]);
    refused("kv serve --listen-tls 127.0.0.1", 2, &["--tls-cert"]);
    for (more, parts) in [
        ("--listen-tls 127.0.0.1:0", &["--listen-tls", "the port identifies"][..]),
        (
            "--listen 127.0.0.1:7000 --listen-tls 127.0.0.1:7001 --cluster --workers 2",
            &["--listen-tls", "7001", "--listen:"],
        ),
        ("--memcached 127.0.0.1:7000 --memcached-tls 127.0.0.1:7000", &["--memcached-tls", "--memcached:"]),
    ] {
        refused(&format!("kv serve {own} {more}"), 2, parts);
    }
    refused("echo load --tls", 2, &["--tls-ca", "--tls-insecure"]);
    refused(&format!("echo load --udp --tls --tls-ca {ca}"), 2, &["--tls", "UDP"]);
    if cfg!(feature = "rdma") {
        refused(&format!("echo serve --via rdma:none --listen 10.0.0.1:7 {own}"), 2, &["--via rdma:none", "TLS"]);
        refused(&format!("echo load --via rdma:none --connect 10.0.0.1:7 --tls --tls-ca {ca}"), 2, &["TLS"]);
    }
}
