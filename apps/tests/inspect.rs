//! `linerate top` and `linerate conns`, at running servers and loads.

#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod common;
#[path = "inspect/screen.rs"]
mod screen;

use common::{PATIENCE, Program, Server, linerate, text};
use rustix::process::Signal;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

/// A place of its own for the sockets of a test's processes.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn command(&self, args: &str) -> Command {
        let mut command = linerate(args);
        command.env("RUNTIME_DIRECTORY", self.0.path());
        command
    }

    /// `linerate SERVICE serve ARGS` over kernel sockets, with its address.
    fn serve(&self, service: &str, args: &str) -> (Server, SocketAddr) {
        let server = Server::of(self.command(&format!("{service} serve --via kernel --listen 127.0.0.1:0 {args}")));
        let (_, rest) = server.ready.split_once(" on ").unwrap();
        let address = rest.split_once(" via ").unwrap().0.parse().unwrap();
        (server, address)
    }

    fn run(&self, args: &str) -> Output {
        Program::of(self.command(args).spawn().unwrap()).wait()
    }

    #[track_caller]
    fn printed(&self, args: &str) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn conns(&self, args: &str) -> Vec<serde_json::Value> {
        let json: serde_json::Value = serde_json::from_str(&self.printed(&format!("conns --json {args}"))).unwrap();
        assert_eq!(json["silent_workers"], serde_json::json!([]), "{json}");
        json["connections"].as_array().unwrap().clone()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path().join("linerate")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Refused with `status`, in one line with `part` in it.
    #[track_caller]
    fn refused(&self, args: &str, status: i32, part: &str) {
        let output = self.run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args}: {said}");
        assert!(said.lines().count() == 1 && said.contains(part), "{args}: {said}");
    }
}

fn pid(server: &mut Server) -> u32 {
    server.program.child().id()
}

/// Waits until `is` says so.
#[track_caller]
fn until(mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "it never is");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_and_its_load_are_seen_from_outside() {
    let place = Place::new();
    let (mut server, address) = place.serve("echo", "--workers 2");
    let load = format!("echo load --via kernel --connect {address} --connections 8 --depth 4 --duration 2m");
    let mut load = Program::of(place.command(&load).spawn().unwrap());
    let (server_pid, load_pid) = (pid(&mut server), load.child().id());
    // They are found, and told apart.
    until(|| place.sockets().len() == 2);
    place.refused("conns", 2, "--pid");
    place.refused("top --once", 2, &format!("{load_pid} (echo load --via kernel"));
    let of = |pid: u32, more: &str| place.conns(&format!("--pid {pid} {more}"));
    until(|| of(server_pid, "").len() == 8 && of(load_pid, "").len() == 8);

    // Each connection has two ends, and both tell of it.
    let (theirs, ours) = (of(server_pid, "--sort remote"), of(load_pid, "--sort local"));
    for (server, load) in theirs.iter().zip(&ours) {
        assert_eq!((&server["local"], &server["remote"]), (&load["remote"], &load["local"]));
        assert_eq!((&server["state"], &load["state"]), (&"established".into(), &"established".into()));
        assert!(server["rtt_us"].as_f64().unwrap() > 0.0 && server["mss_bytes"].as_u64().unwrap() > 500, "{server}");
        assert!(server["congestion_window_bytes"].is_u64() && server["retransmitted_segments"].is_u64(), "{server}");
        assert!(server["copied_bytes"].is_null(), "{server}");
    }
    let count = |more: &str| of(server_pid, more).len();
    assert_eq!((count(&format!("--local {address}")), count(&format!("--remote {address}"))), (8, 0));
    assert_eq!((count("--remote 127.0.0.0/8"), count("--remote ::/0"), count("--local :1")), (8, 0, 0));
    assert_eq!((count("--state close-wait"), count("--state established --state close-wait")), (0, 8));
    assert_eq!(count("--worker 0") + count("--worker 1"), 8);
    place.refused(&format!("conns --pid {server_pid} --worker 2"), 2, "--worker 2");
    place.refused(&format!("conns --pid {server_pid} --state open"), 2, "established");
    place.refused("conns --pid 1", 1, &format!("{server_pid} (echo serve"));
    let listed = place.printed(&format!("conns --pid {server_pid}"));
    assert_eq!(listed.lines().count(), 1 + 2 * 8, "{listed}");
    assert!(listed.lines().nth(2).unwrap().contains("rtt:"), "{listed}");

    // The server's figures are of both workers, and the load counts requests.
    let table = place.printed(&format!("top --once --interval 300ms --pid {server_pid}"));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 5 && lines[0].trim_start().starts_with("wk busy%"), "{table}");
    assert!(lines[3].starts_with("all") && lines[4] == "drops: none", "{table}");
    let words: Vec<&str> = lines[3].split_whitespace().collect();
    assert!(words[2] != "0" && words[2] != "-" && words[7] == "8" && words[12].ends_with('s'), "{table}");
    let table = place.printed(&format!("top --interval 300ms --pid {load_pid}"));
    let words: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(words[6] != "0" && words[6] != "-" && words[7] == "8", "{table}");

    // One is left, and need not be named.
    load.signal(Signal::INT);
    load.wait();
    until(|| place.sockets().len() == 1);
    until(|| place.conns("").is_empty());
    server.stop();
    place.refused("conns", 1, "no process");
}

#[test]
fn a_socket_is_its_users_alone_and_goes_with_its_process() {
    let place = Place::new();
    let (mut server, _) = place.serve("discard", "");
    let socket = place.0.path().join(format!("linerate/{}.sock", pid(&mut server)));
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(socket.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    assert!(place.printed(&format!("conns --socket {}", socket.display())).starts_with("state"));
    server.program.signal(Signal::TERM);
    assert!(server.program.wait().status.success());
    assert!(!socket.exists());

    // One that is killed leaves its behind, and the next removes it.
    let (mut killed, _) = place.serve("discard", "");
    let left = place.0.path().join(format!("linerate/{}.sock", pid(&mut killed)));
    killed.program.signal(Signal::KILL);
    killed.program.wait();
    assert!(left.exists());
    place.refused("top --once", 1, "no process");
    let (next, _) = place.serve("discard", "");
    assert!(!left.exists() && place.sockets().len() == 1);
    next.stop();
}

#[test]
fn a_server_that_is_told_to_or_has_no_place_serves_without_being_looked_into() {
    let place = Place::new();
    let (server, _) = place.serve("echo", "--no-inspect");
    assert!(place.sockets().is_empty());
    server.stop();
    let mut command = linerate("-v echo serve --via kernel --listen 127.0.0.1:0");
    let server = Server::of({
        command.env("RUNTIME_DIRECTORY", "/proc/no/such");
        command
    });
    let output = server.stop();
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.matches("linerate top and conns do not see this process").count() == 1,
        "{said}"
    );
}

#[test]
fn a_server_whose_service_is_on_a_thread_of_its_own_is_seen_too() {
    let place = Place::new();
    let (server, address) = place.serve("kv", "--memory 64m --threading split --metrics 127.0.0.1:0");
    let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    until(|| place.conns("").len() == 3);
    drop(clients);
    until(|| place.conns("").is_empty());
    server.stop();
}

#[test]
fn the_commands_of_a_key_value_server_are_counted() {
    use std::io::{Read, Write};
    let place = Place::new();
    let (server, address) = place.serve("kv", "--memory 64m");
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut top = Program::of(place.command("top --once --interval 300ms").spawn().unwrap());
    // Commands go on while it looks.
    while top.child().try_wait().unwrap().is_none() {
        client.write_all(b"PING\r\n").unwrap();
        client.read_exact(&mut [0; 7]).unwrap();
    }
    let output = top.wait();
    let table = text(&output.stdout);
    let words: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(words[6] != "0" && words[6] != "-", "{table}");
    server.stop();
}
