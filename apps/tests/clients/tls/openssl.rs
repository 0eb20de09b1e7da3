//! OpenSSL's test client and server at the other end.

use super::certificates::Certificates;
use crate::common::{ANY_PORT, run, serve};
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::metrics::await_metric;
use linerate_harness::program::Program;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Suites of TLS 1.3.
const SUITES: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Client of OpenSSL with an open connection.
struct Client {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Client {
    fn connect(certificates: &Certificates, address: SocketAddr, more: &str) -> Self {
        let args =
            format!("s_client -connect {address} -CAfile {} -verify_return_error {more}", certificates.file("ca.pem"));
        let mut child = Command::new("openssl")
            .args(args.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Client { child, output }
    }

    /// Reads lines until one contains `part`.
    fn wait_for(&mut self, part: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no {part} in {all}");
            if line.contains(part) {
                return line;
            }
            all += &line;
        }
    }

    fn send(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(line.as_bytes()).unwrap();
        input.write_all(b"\n").unwrap();
        input.flush().unwrap();
    }

    /// Ends the input, which makes the client send close_notify, and returns the rest of the output.
    fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap();
        rest
    }
}

/// Runs the client without input, and returns its output and success.
fn client(certificates: &Certificates, address: SocketAddr, more: &str) -> (String, bool) {
    let args =
        format!("s_client -connect {address} -CAfile {} -verify_return_error {more}", certificates.file("ca.pem"));
    let output = Command::new("openssl").args(args.split_whitespace()).stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.success())
}

#[test]
fn client_of_every_suite_gets_an_echo_and_updates_keys() {
    let Some(certificates) = Certificates::new() else { return };
    for threading in ["inline", "split"] {
        let options =
            format!("{ANY_PORT} --threading {threading} --json --metrics 127.0.0.1:0 {}", certificates.server());
        let server = serve("echo", &options);
        assert!(server.ready.contains(", TLS"), "{}", server.ready);
        for suite in SUITES {
            let mut client = Client::connect(&certificates, server.address(), &format!("-ciphersuites {suite}"));
            client.wait_for(suite);
            client.send("hello");
            client.wait_for("hello");
            // Without and with a request for the server's update.
            for command in ["k", "K"] {
                client.send(command);
                // The client ignores what it reads together with a command.
                std::thread::sleep(Duration::from_millis(500));
                client.send("after an update");
                client.wait_for("after an update");
            }
            client.finish();
        }
        if threading == "inline" {
            await_metric(&server.ready, "linerate_tls_handshakes_total", 3);
        }
        let ended = server.stop();
        assert!(ended.status.success(), "{ended:?}");
    }
}

#[test]
fn client_resumes_with_a_ticket() {
    let Some(certificates) = Certificates::new() else { return };
    let server = serve("echo", &format!("{ANY_PORT} {}", certificates.server()));
    let session = certificates.file("session");
    let mut first = Client::connect(&certificates, server.address(), &format!("-sess_out {session}"));
    first.send("first");
    first.wait_for("first");
    first.finish();
    for _ in 0..5 {
        let mut next = Client::connect(&certificates, server.address(), &format!("-sess_in {session}"));
        assert!(next.wait_for(", TLSv1.3, Cipher is").starts_with("Reused"));
        next.send("next");
        next.wait_for("next");
        next.finish();
    }
    server.stop();
}

#[test]
fn older_versions_and_early_data_are_refused() {
    let Some(certificates) = Certificates::new() else { return };
    let server = serve("echo", &format!("{ANY_PORT} {}", certificates.server()));
    let (output, is_success) = client(&certificates, server.address(), "-tls1_2");
    assert!(!is_success && output.contains("alert protocol version"), "{output}");
    let (output, is_success) = client(&certificates, server.address(), "");
    assert!(is_success && output.contains("Max Early Data: 0") || !output.contains("Max Early Data"), "{output}");
    server.stop();
}

#[test]
fn certificate_is_chosen_by_name() {
    let Some(certificates) = Certificates::new() else { return };
    let other = format!("--tls-cert {} --tls-key {}", certificates.file("other.pem"), certificates.file("other.key"));
    let server = serve("echo", &format!("{ANY_PORT} {} {other}", certificates.server()));
    for (name, subject) in [("localhost", "CN = server"), ("other.test", "CN = other"), ("unknown.test", "CN = server")]
    {
        let (output, _) = client(&certificates, server.address(), &format!("-servername {name}"));
        assert!(output.contains(&format!("subject={subject}")), "{name}: {output}");
    }
    server.stop();
}

#[test]
fn certificates_of_clients_are_verified() {
    let Some(certificates) = Certificates::new() else { return };
    let (ca, own) = (certificates.file("ca.pem"), certificates.server());
    let presented = format!("-cert {} -key {}", certificates.file("client.pem"), certificates.file("client.key"));
    for (rule, with, without) in [("optional", true, true), ("required", true, false)] {
        let args = format!("{ANY_PORT} {own} --tls-client-ca {ca} --tls-client-auth {rule} --metrics 127.0.0.1:0");
        let server = serve("echo", &args);
        for (more, expected) in [(&presented[..], with), ("", without)] {
            let mut client = Client::connect(&certificates, server.address(), more);
            client.send("hello");
            if expected {
                client.wait_for("hello");
            }
            let rest = client.finish();
            assert!(expected || !rest.contains("\nhello"), "{rule} {more}: {rest}");
        }
        server.stop();
    }
}

#[test]
fn certificates_are_read_again_on_sighup() {
    let Some(certificates) = Certificates::new() else { return };
    let mut server = serve("echo", &format!("{ANY_PORT} {}", certificates.server()));
    let serial = |server: &Program| {
        let (output, _) = client(&certificates, server.address(), "-servername localhost");
        assert!(output.contains("subject=CN = "), "{output}");
        output.contains("subject=CN = server")
    };
    assert!(serial(&server));
    let mut kept = Client::connect(&certificates, server.address(), "");
    kept.send("before");
    kept.wait_for("before");
    for file in ["pem", "key"] {
        std::fs::copy(certificates.file(&format!("other.{file}")), certificates.file(&format!("server.{file}")))
            .unwrap();
    }
    server.signal(rustix::process::Signal::HUP);
    let begun = Instant::now();
    while serial(&server) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the certificate is not replaced");
    }
    // A broken file changes nothing, and existing connections go on.
    std::fs::write(certificates.file("server.pem"), "broken").unwrap();
    server.signal(rustix::process::Signal::HUP);
    server.wait_for_log("the previous certificates stay in use");
    assert!(!serial(&server));
    kept.send("after");
    kept.wait_for("after");
    kept.finish();
    server.stop();
}

/// Server of OpenSSL on an unused port, which discards its input.
struct OpensslServer(Child, SocketAddr);

impl OpensslServer {
    fn start(certificates: &Certificates, more: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], unused_address().port()));
        let (chain, key) = (certificates.file("server.pem"), certificates.file("server.key"));
        let args = format!("s_server -accept {address} -cert {chain} -key {key} -quiet {more}");
        let mut command = Command::new("openssl");
        // The server ends with its input.
        command.args(args.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = OpensslServer(command.spawn().unwrap(), address);
        wait_until_listening(address, "openssl").unwrap();
        server
    }
}

impl Drop for OpensslServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn load_sends_to_a_server_of_every_suite() {
    let Some(certificates) = Certificates::new() else { return };
    for suite in SUITES {
        let server = OpensslServer::start(&certificates, &format!("-ciphersuites {suite}"));
        let load = format!("discard load --connect {} --connections 1 --duration 200ms --json", server.1);
        let ended = run(&format!("{load} {}", certificates.load()));
        assert!(ended.status.success() && ended.json()["bytes_up"].as_u64() > Some(100_000), "{suite}: {ended:?}");
    }
}

#[test]
fn load_verifies_the_server() {
    let Some(certificates) = Certificates::new() else { return };
    let server = OpensslServer::start(&certificates, "");
    let load = format!("discard load --connect {} --connections 1 --duration 100ms --warm-up 0", server.1);
    let ended = run(&format!("{load} --tls --tls-ca {} --tls-name other.test", certificates.file("ca.pem")));
    assert!(ended.stderr.contains("the TLS handshake failed: check --tls-ca and --tls-name"), "{ended:?}");
    let ended = run(&format!("{load} --tls --tls-insecure --tls-name other.test"));
    assert!(ended.status.success(), "{ended:?}");
}
