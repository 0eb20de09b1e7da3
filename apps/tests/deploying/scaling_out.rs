//! Several servers with HAProxy, and with a client that distributes keys, as described in docs/src/scaling-out.md.

use crate::common::client::connect;
use crate::common::{serve, summary};
use linerate_harness::address::unused_address;
use linerate_harness::child::ends_with_parent;
use linerate_harness::process::{Ended, Process};
use linerate_harness::program::Program;
use linerate_harness::rerun::is_installed;
use linerate_harness::{TIMEOUT, wait_for};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;

/// Debian's Python, which finds the modules packaged by Debian.
const PYTHON: &str = "/usr/bin/python3";

/// Bytes per request of a client.
const BYTES: usize = 1000;

/// Sends a request and receives its echo.
fn echo(client: &mut TcpStream) {
    let mut back = [0; BYTES];
    client.write_all(&[7; BYTES]).unwrap();
    client.read_exact(&mut back).unwrap();
    assert_eq!(back, [7; BYTES]);
}

fn clients(to: SocketAddr) -> Vec<TcpStream> {
    let mut clients: Vec<TcpStream> = (0..8).map(|_| connect(to)).collect();
    clients.iter_mut().for_each(echo);
    clients
}

/// Returns whether a socket listens at `address`, according to the kernel's table. A test connection would count as a
/// client.
fn listens(address: SocketAddr) -> bool {
    let IpAddr::V4(ip) = address.ip() else { panic!("{address}: not IPv4") };
    let listening = format!("{:08X}:{:04X} 00000000:0000 0A ", u32::from_ne_bytes(ip.octets()), address.port());
    std::fs::read_to_string("/proc/self/net/tcp").unwrap().contains(&listening)
}

/// Starts the drain of a server and waits until it no longer listens.
fn drain(server: &Program, address: SocketAddr) {
    server.signal(Signal::TERM);
    wait_for("the end of listening", || !listens(address));
}

/// Returns the payload bytes received by a server, from its summary.
#[track_caller]
fn received(output: &Ended) -> u64 {
    summary(output)["rx_bytes"].as_u64().unwrap()
}

#[test]
fn haproxy_balances_connections_and_avoids_a_draining_server() {
    if !is_installed("haproxy", &["-v"], "haproxy") {
        return;
    }
    let (front, addresses) = (unused_address(), [unused_address(), unused_address()]);
    let serve = |address: SocketAddr| serve("echo", &format!("--via kernel --listen {address} --json --drain 1m"));
    let [one, two] = addresses.map(serve);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("haproxy.cfg");
    let [first, second] = addresses;
    let text = format!(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 1m\n timeout server 1m\n retries 3\n\
        \x20option redispatch 1\n\
         listen echo\n bind {front}\n balance roundrobin\n default-server check inter 500ms fall 1\n\
         server one {first}\n server two {second}\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut haproxy = Command::new("haproxy");
    haproxy.arg("-db").arg("-f").arg(&file);
    let haproxy = Program::start(haproxy);
    wait_for("HAProxy", || listens(front));

    let mut before = clients(front);
    drain(&one, first);
    // Existing connections continue, and new ones go to the other server.
    before.iter_mut().for_each(echo);
    let after = clients(front);
    drop((before, after));
    // The server ends with its last connection.
    let at_one = received(&one.wait());
    drop(haproxy);
    let at_two = received(&two.stop());
    // Of the first eight clients, four per server sent twice; all later ones use the second server.
    assert_eq!((at_one, at_two), (8 * BYTES as u64, 16 * BYTES as u64));
}

#[test]
fn client_distributes_keys_and_moves_them_from_a_draining_server() {
    if !is_installed(PYTHON, &["-c", "import pymemcache"], "python3-pymemcache") {
        return;
    }
    let addresses = [unused_address(), unused_address()];
    let serve = |address: SocketAddr| {
        serve("kv", &format!("--via kernel --memcached {address} --memory 64m --json --drain 1m"))
    };
    let [one, two] = addresses.map(serve);
    let mut client = Command::new(PYTHON);
    client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploying/hash_client.py"));
    client.args(addresses.map(|address| address.to_string()));
    let mut client = Process::supervised(ends_with_parent(&client), TIMEOUT).unwrap();
    client.wait_for_line("drain it").unwrap();
    drain(&one, addresses[0]);
    assert_eq!(client.query().unwrap(), "all is well");
    client.output(TIMEOUT).unwrap();
    assert!(received(&one.wait()) > 0);
    assert!(received(&two.stop()) > 0);
}
