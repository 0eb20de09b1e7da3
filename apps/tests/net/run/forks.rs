//! Programs that serve in processes which they fork after `listen`.

use super::{CLIENT, SERVER, started};
use crate::common::linerate;
use crate::common::wire::linerate_in;
use crate::interfaces::shared::connect_kernels;
use crate::links::Link;
use linerate_harness::program::{Program, run};
use linerate_harness::rerun::{in_namespaces, is_installed};
use linerate_harness::wait_for;
use rustix::process::Signal;
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// Writes the configuration of an nginx that answers with the process number, and returns its command.
fn nginx(directory: &Path, workers: usize, listen: &str) -> String {
    let at = directory.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String = paths.iter().map(|kind| format!("{kind}_temp_path {at}/{kind};")).collect();
    let config = format!(
        "daemon off; worker_processes {workers}; pid {at}/pid; error_log stderr; events {{}}
         http {{ access_log off; {paths} server {{ listen {listen}; return 200 $pid; }} }}"
    );
    let file = directory.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    format!("nginx -c {}", file.display())
}

/// Requests a page over a new connection. Returns the process that answered.
fn request() -> io::Result<u32> {
    let mut stream = TcpStream::connect("10.9.0.4:8000")?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let process = answer.rsplit("\r\n").next().and_then(|body| body.parse().ok());
    process.ok_or_else(|| io::Error::other(format!("incomplete answer: {answer}")))
}

/// Requests pages until `count` processes other than `old` have answered. Returns them, and the number of failures.
fn processes(count: usize, old: &HashSet<u32>) -> (HashSet<u32>, usize) {
    let (mut seen, mut failures) = (HashSet::new(), 0);
    wait_for("all processes answer", || {
        match request() {
            Ok(process) if !old.contains(&process) => _ = seen.insert(process),
            Ok(_) => {}
            Err(_) => failures += 1,
        }
        seen.len() == count
    });
    (seen, failures)
}

#[test]
fn forked_processes_serve_on_queues_of_their_own() {
    if !is_installed("nginx", &["-v"], "nginx-light") {
        return;
    }
    in_namespaces(|namespace| {
        connect_kernels(namespace, 2);
        let directory = tempfile::tempdir().unwrap();
        let program = nginx(directory.path(), 2, "8000");
        let options = "--via af_xdp:lr1,share --workers 2 --idle wait";
        let server = Program::start(linerate_in(namespace, &format!("run {options} -- {program}")));
        wait_for("the server answers", || request().is_ok());
        let (first, failures) = processes(2, &HashSet::new());
        assert_eq!(failures, 0);
        server.signal(Signal::HUP);
        let (_, failures) = processes(2, &first);
        // A process resets the connection that it has not accepted when it stops.
        assert!(failures <= 2, "{failures} requests failed");
        let ended = server.stop();
        assert!(ended.status.success(), "{ended:?}");
    });
}

#[test]
fn one_process_after_another_serves_a_link() {
    if !is_installed("nginx", &["-v"], "nginx-light") {
        return;
    }
    let link = Link::vhost();
    let program = nginx(link.directory(), 1, &format!("{SERVER}:8000"));
    let server = Program::start(started(&link.serve, SERVER, &program));
    let load = || {
        let to = format!("--connect {SERVER}:8000 --connections 8 --duration 300ms --json");
        let ended = run(linerate(&format!("http load --via {} --ip {CLIENT}/24 --idle wait {to}", link.load)));
        assert!(ended.status.success() && ended.json()["errors"] == 0, "{ended:?}");
    };
    load();
    server.signal(Signal::HUP);
    load();
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
}
