//! `linerate top` and `linerate conns` with running servers and loads.

use crate::common::{self, ANY_PORT, client, linerate};
use linerate_harness::child::wrapped;
use linerate_harness::metrics::await_metric;
use linerate_harness::program::{Program, run};
use linerate_harness::rerun::is_root;
use linerate_harness::wait_for;
use rustix::process::Signal;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Separate runtime directory for the sockets of a test's processes.
pub struct RuntimeDir(tempfile::TempDir);

impl RuntimeDir {
    pub fn new() -> RuntimeDir {
        RuntimeDir(tempfile::tempdir().unwrap())
    }

    pub fn command(&self, args: &str) -> Command {
        let mut command = linerate(args);
        command.env("RUNTIME_DIRECTORY", self.0.path());
        command
    }

    /// Starts `linerate SERVICE serve ARGS` over kernel sockets and returns it with its address.
    pub fn serve(&self, service: &str, args: &str) -> (Program, SocketAddr) {
        let server = Program::serve(self.command(&format!("{service} serve {ANY_PORT} {args}")));
        let address = server.address();
        (server, address)
    }

    #[track_caller]
    fn output_of(&self, args: &str) -> String {
        let output = run(self.command(args));
        assert!(output.status.success(), "{args}: {output:?}");
        output.stdout
    }

    #[track_caller]
    fn conns(&self, args: &str) -> Vec<serde_json::Value> {
        let json: serde_json::Value = serde_json::from_str(&self.output_of(&format!("conns --json {args}"))).unwrap();
        assert_eq!(json["silent_workers"], serde_json::json!([]), "{json}");
        json["connections"].as_array().unwrap().clone()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path().join("linerate")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[track_caller]
    fn assert_refused(&self, args: &str, status: i32, part: &str) {
        common::assert_refused(self.command(args), status, &[part]);
    }
}

#[test]
fn server_and_load_are_inspected_from_another_process() {
    let dir = RuntimeDir::new();
    let (server, address) = dir.serve("echo", "--workers 2");
    let load = format!("echo load --via kernel --connect {address} --connections 8 --depth 4 --duration 2m");
    let load = Program::start(dir.command(&load));
    let (server_pid, load_pid) = (server.pid(), load.pid());
    // Both processes are found.
    wait_for("the state", || dir.sockets().len() == 2);
    dir.assert_refused("conns", 2, "--pid");
    dir.assert_refused("top --once", 2, &format!("{load_pid} (echo load --via kernel"));
    let conns_of = |pid: u32, more: &str| dir.conns(&format!("--pid {pid} {more}"));
    wait_for("the state", || conns_of(server_pid, "").len() == 8 && conns_of(load_pid, "").len() == 8);

    // Both ends report each connection.
    let (server_conns, load_conns) = (conns_of(server_pid, "--sort remote"), conns_of(load_pid, "--sort local"));
    for (server, load) in server_conns.iter().zip(&load_conns) {
        assert_eq!((&server["local"], &server["remote"]), (&load["remote"], &load["local"]));
        assert_eq!((&server["state"], &load["state"]), (&"established".into(), &"established".into()));
        assert!(server["rtt_us"].as_f64().unwrap() > 0.0 && server["mss_bytes"].as_u64().unwrap() > 500, "{server}");
        assert!(server["congestion_window_bytes"].is_u64() && server["retransmitted_segments"].is_u64(), "{server}");
    }
    let count = |more: &str| conns_of(server_pid, more).len();
    assert_eq!((count(&format!("--local {address}")), count(&format!("--remote {address}"))), (8, 0));
    assert_eq!((count("--remote 127.0.0.0/8"), count("--remote ::/0"), count("--local :1")), (8, 0, 0));
    assert_eq!((count("--state close-wait"), count("--state established --state close-wait")), (0, 8));
    assert_eq!(count("--worker 0") + count("--worker 1"), 8);
    dir.assert_refused(&format!("conns --pid {server_pid} --worker 2"), 2, "--worker 2");
    dir.assert_refused(&format!("conns --pid {server_pid} --state open"), 2, "established");
    dir.assert_refused("conns --pid 1", 1, &format!("{server_pid} (echo serve"));
    let listed = dir.output_of(&format!("conns --pid {server_pid}"));
    assert_eq!(listed.lines().count(), 1 + 2 * 8, "{listed}");
    assert!(listed.lines().nth(2).unwrap().contains("rtt:"), "{listed}");

    // The server reports both workers, and the load counts requests.
    let table = dir.output_of(&format!("top --once --interval 300ms --pid {server_pid}"));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 5 && lines[0].trim_start().starts_with("wk busy%"), "{table}");
    assert!(lines[3].starts_with("all") && lines[4].starts_with("cpu "), "{table}");
    assert!(lines[4].contains("; slept ") && lines[4].ends_with("; drops: none"), "{table}");
    let words: Vec<&str> = lines[3].split_whitespace().collect();
    assert!(words[2] != "0" && words[2] != "-" && words[7] == "8" && words[12].ends_with('s'), "{table}");
    let table = dir.output_of(&format!("top --interval 300ms --pid {load_pid}"));
    let words: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(words[6] != "0" && words[6] != "-" && words[7] == "8", "{table}");

    // A single process needs no --pid.
    load.signal(Signal::INT);
    load.wait();
    wait_for("the state", || dir.sockets().len() == 1);
    wait_for("the state", || dir.conns("").is_empty());
    server.stop();
    dir.assert_refused("conns", 1, "no linerate process");
}

#[test]
fn connections_beyond_the_open_files_are_reset_and_metrics_answer() {
    let dir = RuntimeDir::new();
    for service in ["echo", "http", "kv"] {
        let server = dir.command(&format!("{service} serve {ANY_PORT} --workers 1 --metrics 127.0.0.1:0"));
        let mut server = Program::serve(wrapped("sh", &["-c", "ulimit -n 80 && exec \"$0\" \"$@\""], &server));
        let address = server.address();
        let connect = || TcpStream::connect(address).unwrap();
        let mut clients: Vec<TcpStream> = (0..120).map(|_| connect()).collect();
        // 60 descriptors are for connections and the server's own files.
        await_metric(&server.ready, "linerate_drops_total", 60);
        // A request for metrics can take a free descriptor, so the connections that are reset need not be the last.
        let mut reset = 0;
        clients.iter().for_each(|client| client.set_nonblocking(true).unwrap());
        wait_for("60 resets", || {
            clients.retain_mut(|client| {
                let is_reset = client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
                reset += usize::from(is_reset);
                !is_reset
            });
            reset >= 60
        });
        dir.output_of(&format!("top --once --interval 100ms --pid {}", server.pid()));
        // Descriptors of closed connections serve others.
        drop(clients);
        wait_for("a connection", || {
            let mut client = connect();
            client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").is_ok() && client.read(&mut [0]).is_ok_and(|read| read == 1)
        });
        server.wait_for_log("no file descriptor or memory");
        server.stop();
    }
}

#[test]
fn socket_is_private_and_removed_with_its_process() {
    let dir = RuntimeDir::new();
    let (server, _) = dir.serve("discard", "");
    let socket = dir.0.path().join(format!("linerate/{}.sock", server.pid()));
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(socket.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    assert!(dir.output_of(&format!("conns --socket {}", socket.display())).starts_with("state"));
    server.signal(Signal::TERM);
    assert!(server.wait().status.success());
    assert!(!socket.exists());

    // A killed process leaves its socket, which the next process removes.
    let (killed, _) = dir.serve("discard", "");
    let left = dir.0.path().join(format!("linerate/{}.sock", killed.pid()));
    killed.signal(Signal::KILL);
    killed.wait();
    assert!(left.exists());
    dir.assert_refused("top --once", 1, "no linerate process");
    let (next, _) = dir.serve("discard", "");
    assert!(!left.exists() && dir.sockets().len() == 1);
    next.stop();
}

#[test]
fn reason_is_named_if_a_process_of_root_is_not_found() {
    if !is_root() {
        return;
    }
    // Another user may have no access to the checkout.
    let dir = RuntimeDir::new();
    let program = dir.0.path().join("program");
    fs::copy(env!("CARGO_BIN_EXE_linerate"), &program).unwrap();
    fs::set_permissions(dir.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let server = common::serve("echo", ANY_PORT);
    for args in ["top --once".to_owned(), format!("conns --pid {}", server.pid())] {
        let mut command = Command::new(&program);
        command.args(args.split(' ')).env("XDG_RUNTIME_DIR", dir.0.path());
        let output = command.uid(65_534).gid(65_534).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("; /run/linerate: Permission denied"), "{args}: {stderr}");
    }
    server.stop();
}

#[test]
fn server_works_without_introspection() {
    let dir = RuntimeDir::new();
    let (server, _) = dir.serve("echo", "--no-inspect");
    assert!(dir.sockets().is_empty());
    server.stop();
    let mut command = linerate("-v echo serve --via kernel --listen 127.0.0.1:0");
    command.env("RUNTIME_DIRECTORY", "/proc/no/such");
    let server = Program::serve(command);
    let output = server.stop();
    let stderr = &output.stderr;
    assert!(
        output.status.success() && stderr.matches("linerate top and conns cannot find this process").count() == 1,
        "{stderr}"
    );
}

#[test]
fn split_server_is_inspected() {
    let dir = RuntimeDir::new();
    let (server, address) = dir.serve("kv", "--memory 64m --threading split --metrics 127.0.0.1:0");
    let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    wait_for("the state", || dir.conns("").len() == 3);
    drop(clients);
    wait_for("the state", || dir.conns("").is_empty());
    server.stop();
}

#[test]
fn key_value_commands_are_counted() {
    let dir = RuntimeDir::new();
    let (server, address) = dir.serve("kv", "--memory 64m");
    let mut client = client::connect(address);
    let mut top = Program::start(dir.command("top --once --interval 300ms"));
    // Send commands until top has finished.
    while top.is_running() {
        client.write_all(b"PING\r\n").unwrap();
        client.read_exact(&mut [0; 7]).unwrap();
    }
    let output = top.wait();
    let table = &output.stdout;
    let words: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(words[6] != "0" && words[6] != "-", "{table}");
    server.stop();
}
