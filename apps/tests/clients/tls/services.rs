//! Services and loads with TLS.

use super::certificates::Certificates;
use crate::common::{ANY_PORT, assert_refused, linerate, run, serve, stop};
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::program::Program;
use linerate_harness::rerun::is_installed;
use std::net::SocketAddr;
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
    for (service, serving, loads) in [
        ("echo", "", &["", "--size 20000 --connections 4 --depth 4", "--reconnect --connections 2"][..]),
        ("discard", "", &[""]),
        ("chargen", "", &[""]),
        ("http", "", &["", "--depth 4"]),
        ("kv", "--memory 64m", &["--keys 1000", "--keys 100 --value-size 40k"]),
    ] {
        for threading in ["inline", "split"] {
            let log = format!("--tls-keylog {}", certificates.file("keylog"));
            let args = format!("{ANY_PORT} --threading {threading} --json {serving} {log} {}", certificates.server());
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
    let log = std::fs::read_to_string(certificates.file("keylog")).unwrap();
    assert!(log.lines().any(|line| line.starts_with("SERVER_TRAFFIC_SECRET_0 ") && line.split(' ').count() == 3));
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
    if is_installed("h2load", &["--version"], "nghttp2-client") {
        let report = output("h2load", &format!("-n 60 -c 3 -m 4 https://{}/long", server.address()));
        assert!(report.contains("60 succeeded") && report.contains("TLS Protocol: TLSv1.3"), "{report}");
    }
    server.stop();
}

/// Tests the proxy `program` between clients without TLS and a server with it, and the reverse. `config` makes its
/// configuration of the ports without and with TLS of a server, the ports of both services of the proxy, and the files
/// of the authority and of the proxy's certificate.
#[track_caller]
fn proxy_works_at_either_end(program: &str, args: &[&str], config: impl FnOnce([SocketAddr; 4], &str, &str) -> String) {
    let Some(certificates) = Certificates::new() else { return };
    if !is_installed("redis-cli", &["--version"], "redis-tools") {
        return;
    }
    let addresses = [(); 4].map(|()| unused_address());
    let [plain, tls, to_tls, from_tls] = addresses;
    let own = certificates.server();
    let server = serve("kv", &format!("--via kernel --listen {plain} --listen-tls {tls} --memory 64m {own}"));
    let [both, file] = ["both.pem", "proxy.cfg"].map(|name| certificates.file(name));
    let read = |name| std::fs::read_to_string(certificates.file(name)).unwrap();
    std::fs::write(&both, read("server.pem") + &read("server.key")).unwrap();
    std::fs::write(&file, config(addresses, &certificates.file("ca.pem"), &both)).unwrap();
    let mut command = Command::new(program);
    command.args(args).arg(&file);
    let proxy = Program::start(command);
    [to_tls, from_tls].iter().for_each(|address| wait_until_listening(*address, program).unwrap());
    let cli = format!("-h {} -p {}", to_tls.ip(), to_tls.port());
    assert_eq!(output("redis-cli", &format!("{cli} set key value")), "OK\n");
    assert_eq!(output("redis-cli", &format!("{cli} get key")), "value\n");
    let load = format!("kv load --connect {from_tls} --keys 100 --duration 300ms --json");
    let ended = run(&format!("{load} {}", certificates.load()));
    assert!(ended.status.success() && ended.json()["errors"] == 0, "{ended:?}");
    drop(proxy);
    server.stop();
}

#[test]
fn haproxy_works_at_either_end() {
    if !is_installed("haproxy", &["-v"], "haproxy") {
        return;
    }
    proxy_works_at_either_end("haproxy", &["-db", "-f"], |[plain, tls, to_tls, from_tls], ca, both| {
        format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 1m\n timeout server 1m\n\
             listen to-tls\n bind {to_tls}\n server s {tls} ssl verify required verifyhost localhost ca-file {ca}\n\
             listen from-tls\n bind {from_tls} ssl crt {both}\n server s {plain}\n"
        )
    });
}

#[test]
fn stunnel_works_at_either_end() {
    if !is_installed("stunnel4", &["-version"], "stunnel4") {
        return;
    }
    proxy_works_at_either_end("stunnel4", &[], |[plain, tls, to_tls, from_tls], ca, both| {
        format!(
            "foreground = yes\npid =\n\
             [to-tls]\nclient = yes\naccept = {to_tls}\nconnect = {tls}\nverifyChain = yes\nCAfile = {ca}\n\
             checkHost = localhost\n[from-tls]\naccept = {from_tls}\nconnect = {plain}\ncert = {both}\n"
        )
    });
}

#[test]
fn scan_finds_tls_1_3_only() {
    let Some(certificates) = Certificates::new() else { return };
    if !is_installed("sslscan", &["--version"], "sslscan") {
        return;
    }
    let server = serve("http", &format!("{ANY_PORT} {}", certificates.server()));
    let report = output("sslscan", &format!("--no-colour {}", server.address()));
    let states: Vec<_> = ["SSLv2", "SSLv3", "TLSv1.0", "TLSv1.1", "TLSv1.2", "TLSv1.3"]
        .map(|version| report.lines().any(|line| line.starts_with(version) && line.ends_with("enabled")))
        .into();
    assert_eq!(states, [false, false, false, false, false, true], "{report}");
    let accepted = report.lines().filter(|line| line.starts_with("Preferred") || line.starts_with("Accepted"));
    assert_eq!(accepted.filter(|line| line.contains("TLSv1.3")).count(), 3, "{report}");
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
    let cli = format!("-h {} -p {port} --tls --cacert {ca}", tls.ip());
    for (options, is_tls) in [(&cli[..], true), (&format!("-h {} -p {}", plain.ip(), plain.port()), false)] {
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
fn doctor_checks_a_certificate() {
    let Some(certificates) = Certificates::new() else { return };
    let (own, ca) = (certificates.server(), certificates.file("ca.pem"));
    let other = format!("--tls-cert {} --tls-key {}", certificates.file("server.pem"), certificates.file("other.key"));
    certificates.openssl("req -x509 -newkey rsa:4096 -nodes -days 30 -subj /CN=rsa -keyout rsa.key -out rsa.pem");
    let rsa = format!("--tls-cert {} --tls-key {}", certificates.file("rsa.pem"), certificates.file("rsa.key"));
    let signs = ("ok", "a signature takes 0.");
    for (options, expected) in [
        (format!("{own} --tls-ca {ca} --tls-name localhost"), &[("ok", "for 29 days"), signs, ("ok", "localhost")][..]),
        (format!("{own} --tls-ca {ca} --tls-name a.test"), &[("ok", "server.pem"), signs, ("missing", "a.test")]),
        (rsa, &[("ok", "rsa.pem"), ("warn", "ms, for which the connections of a worker wait")]),
        (other, &[("missing", "other.key")]),
        (own.replace("server.pem", "none"), &[("missing", "none: ")]),
    ] {
        let report = run(&format!("doctor --json {options}")).json();
        let checks: Vec<_> = report["checks"].as_array().unwrap().iter().filter(|of| of["subject"] == "tls").collect();
        assert_eq!(checks.len(), expected.len(), "{report}");
        for (check, (state, part)) in checks.iter().zip(expected) {
            assert!(check["state"] == *state && check["found"].as_str().unwrap().contains(part), "{options}: {check}");
        }
    }
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
