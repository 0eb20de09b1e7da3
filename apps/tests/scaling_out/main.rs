//! Several servers behind what others have made to spread requests over them: HAProxy, and a client that spreads keys by itself. What
//! docs/src/scaling-out.md says of them.

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod common;
#[path = "../../../benches/src/unused_address.rs"]
mod unused_address;

use common::{PATIENCE, Program, Server};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use unused_address::unused_address;

/// Debian's, which finds Debian's libraries.
const PYTHON: &str = "/usr/bin/python3";

/// Whether `program` runs with `args`; else says which package has it.
fn is_installed(program: &str, args: &[&str], package: &str) -> bool {
    let found = Command::new(program).args(args).output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: {program} was not found: apt-get install {package}");
    }
    found
}

#[track_caller]
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What a client sends at a time.
const BYTES: usize = 1000;

/// A client that is connected.
struct Client(TcpStream);

impl Client {
    fn connect(to: SocketAddr) -> Client {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(stream)
    }

    /// Sends and has it back.
    #[track_caller]
    fn ask(&mut self) {
        let mut back = [0; BYTES];
        self.0.write_all(&[7; BYTES]).unwrap();
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(back, [7; BYTES]);
    }
}

fn clients(to: SocketAddr) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(to)).collect();
    clients.iter_mut().for_each(Client::ask);
    clients
}

/// Returns true if a socket listens at `address`, according to the kernel's table. A trial connection would count as a client.
fn listens(address: SocketAddr) -> bool {
    let IpAddr::V4(ip) = address.ip() else { panic!("{address}: not IPv4") };
    let listening = format!("{:08X}:{:04X} 00000000:0000 0A ", u32::from_ne_bytes(ip.octets()), address.port());
    std::fs::read_to_string("/proc/self/net/tcp").unwrap().contains(&listening)
}

/// Asks a server to end when its connections have, and waits until it takes in no others.
fn drain(server: &Server, address: SocketAddr) {
    server.program.signal(Signal::TERM);
    wait_until("its end of listening", || !listens(address));
}

/// The payload that a server was sent, by its summary.
#[track_caller]
fn received(output: &Output) -> u64 {
    assert!(output.status.success(), "{output:?}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    summary["rx_bytes"].as_u64().unwrap()
}

#[test]
fn haproxy_spreads_connections_and_one_that_drains_gets_no_more() {
    if !is_installed("haproxy", &["-v"], "haproxy") {
        return;
    }
    let (front, addresses) = (unused_address(), [unused_address(), unused_address()]);
    let serve =
        |address: SocketAddr| Server::start("echo", &format!("--via kernel --listen {address} --json --drain 1m"));
    let [one, two] = addresses.map(serve);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("haproxy.cfg");
    let [first, second] = addresses;
    let text = format!(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 1m\n timeout server 1m\n retries 3\n option redispatch 1\n\
         listen echo\n bind {front}\n balance roundrobin\n default-server check inter 500ms fall 1\n\
         server one {first}\n server two {second}\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut haproxy = Command::new("haproxy");
    haproxy.arg("-db").arg("-f").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let haproxy = Program::of(haproxy.spawn().unwrap());
    wait_until("HAProxy", || listens(front));

    let mut before = clients(front);
    drain(&one, first);
    // Those that there are go on, and those that come go to the other.
    before.iter_mut().for_each(Client::ask);
    let after = clients(front);
    drop((before, after));
    // It ends by itself: no connection is left.
    let at_one = received(&one.program.wait());
    drop(haproxy);
    let at_two = received(&two.stop());
    // Four of the first eight at each, twice; and all of the others at the second.
    assert_eq!((at_one, at_two), (8 * BYTES as u64, 16 * BYTES as u64));
}

#[test]
fn a_client_spreads_keys_and_one_that_drains_has_them_go_to_the_other() {
    if !is_installed(PYTHON, &["-c", "import pymemcache"], "python3-pymemcache") {
        return;
    }
    let addresses = [unused_address(), unused_address()];
    let serve = |address: SocketAddr| {
        Server::start("kv", &format!("--via kernel --memcached {address} --memory 64m --json --drain 1m"))
    };
    let [one, two] = addresses.map(serve);
    let mut client = Command::new(PYTHON);
    client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scaling_out/hash_client.py"));
    client.args(addresses.map(|address| address.to_string()));
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Program::of(client.spawn().unwrap());
    let mut said = String::new();
    // One byte at a time, so that the rest stays for `wait`.
    let stdout = client.child().stdout.as_mut().unwrap();
    BufReader::with_capacity(1, stdout).read_line(&mut said).unwrap();
    if said == "drain it\n" {
        drain(&one, addresses[0]);
        writeln!(client.child().stdin.as_mut().unwrap()).unwrap();
    }
    let output = client.wait();
    assert!(output.status.success() && output.stdout == b"all is well\n", "{said}{output:?}");
    assert!(received(&one.program.wait()) > 0);
    assert!(received(&two.stop()) > 0);
}
