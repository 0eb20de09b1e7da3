//! Interfaces shared with the kernel at the kernel's own addresses (`af_xdp:INTERFACE,share` without `--ip`).

use super::client::{connect, exchange, random};
use super::links::assert_no_errors;
use super::program::linerate;
use super::refusals::assert_refused;
use super::shared::{assert_alive, assert_undisturbed, connect_kernels};
use super::wire::linerate_in;
use linerate_harness::namespace::command_in;
use linerate_harness::program::{Program, ip, run};
use linerate_harness::rerun::{beside_others, in_namespaces};
use linerate_harness::wait_for;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// Kernel's addresses in the namespace, with the port of the servers.
const OWN: [&str; 2] = ["10.9.0.4:7", "[fd09::4]:7"];

fn own() -> [SocketAddr; 2] {
    OWN.map(|address| address.parse().unwrap())
}

fn serve(namespace: &str, service: &str, more: &str) -> Command {
    linerate_in(namespace, &format!("{service} serve --via af_xdp:lr1,share --idle backoff --json {more}"))
}

const LISTEN: &str = "--listen 10.9.0.4:7 --listen [fd09::4]:7";

/// Moves this end of the wire to another Ethernet address, as a host does that takes over the address of another.
fn move_neighbor(namespace: &str, mac: &str) {
    ip(&format!("link set lr0 address {mac}"));
    for own in ["10.9.0.1", "fd09::1"] {
        ip(&format!("-n {namespace} neigh replace {own} lladdr {mac} dev lr1 nud reachable"));
    }
}

/// Serves on the kernel's addresses beside a connection of the kernel to the same address, which outlives each server,
/// whether it is stopped or killed, and the move of its peer.
fn assert_serves_beside_the_kernel(namespace: &str, queues: usize) {
    connect_kernels(namespace, queues);
    let kernel = linerate_in(namespace, "echo serve --via kernel --listen 10.9.0.4:22 --listen [fd09::4]:22 --json");
    let kernel = Program::serve(kernel);
    let mut streams = ["10.9.0.4:22", "[fd09::4]:22"].map(|address| connect(address.parse().unwrap()));
    for (round, is_killed) in [false, true, false].into_iter().enumerate() {
        streams.iter_mut().for_each(assert_alive);
        let server = Program::serve(serve(namespace, "echo", &format!("{LISTEN} --workers {queues}")));
        let top = linerate(&format!("top --pid {} --once --interval 50ms", server.pid()));
        let shown = run(top).stdout;
        assert!(shown.contains("shared interface: passed to the kernel"), "{shown}");
        let mut open = own().map(connect);
        own().into_iter().for_each(|address| exchange(address, &random(1 << 20), 4));
        streams.iter_mut().chain(&mut open).for_each(assert_alive);
        move_neighbor(namespace, &format!("02:00:00:00:00:{round:02x}"));
        own().into_iter().for_each(|address| exchange(address, &random(1 << 16), 2));
        streams.iter_mut().chain(&mut open).for_each(assert_alive);
        if is_killed {
            server.kill();
        } else {
            let summary = server.stop().json();
            assert_eq!(summary["accepted"], 14, "{summary}");
        }
        streams.iter_mut().for_each(assert_alive);
    }
    assert_undisturbed(namespace, streams, kernel);
}

#[test]
fn one_queue_serves_on_the_addresses_of_the_kernel() {
    beside_others(|namespace| assert_serves_beside_the_kernel(namespace, 1));
}

#[test]
fn two_queues_serve_on_the_addresses_of_the_kernel() {
    beside_others(|namespace| assert_serves_beside_the_kernel(namespace, 2));
}

#[test]
fn kv_serves_on_an_address_of_the_kernel() {
    beside_others(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(serve(namespace, "kv", "--listen 0.0.0.0:6379"));
        let mut client = connect("10.9.0.4:6379".parse().unwrap());
        client.write_all(b"SET key value\r\nGET key\r\n").unwrap();
        let mut reply = [0; 16];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n$5\r\nvalue\r\n");
        assert!(server.stop().status.success());
    });
}

#[test]
fn loads_connect_from_the_addresses_of_the_kernel() {
    beside_others(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(linerate("echo serve --via kernel --listen 10.9.0.1:7 --listen [fd09::1]:7"));
        for peer in ["10.9.0.1:7", "[fd09::1]:7"] {
            for udp in ["", "--udp"] {
                let load = "--connections 8 --duration 300ms --idle backoff --json";
                let load = format!("echo load --via af_xdp:lr1,share --connect {peer} {load} {udp}");
                assert_no_errors(&Program::start(linerate_in(namespace, &load)).wait());
            }
        }
        assert!(server.stop().status.success());
    });
}

#[test]
fn port_has_one_server() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let of_kernel = || linerate_in(namespace, "echo serve --via kernel --listen 10.9.0.4:7");
        let first = Program::serve(of_kernel());
        let parts = ["10.9.0.4:7", "TCP", "in use", "ss -lntup"];
        assert_refused(serve(namespace, "echo", LISTEN), 1, &parts);
        first.stop();
        let second = Program::serve(serve(namespace, "echo", LISTEN));
        assert_refused(of_kernel(), 1, &["10.9.0.4:7"]);
        // The kernel's client on the same host does not pass the interface.
        let local = linerate_in(namespace, "echo load --via kernel --connect 10.9.0.4:7 --duration 100ms");
        assert!(!run(local).status.success());
        assert!(second.stop().status.success());
        Program::serve(of_kernel()).stop();
    });
}

#[test]
fn unsuitable_options_of_a_shared_interface_are_refused() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        for option in ["--gateway 10.9.0.1", "--no-dad", "--fragments"] {
            let name = option.split(' ').next().unwrap();
            let parts = [name, "has no effect with --via af_xdp:INTERFACE,share"];
            assert_refused(serve(namespace, "echo", &format!("{LISTEN} {option}")), 2, &parts);
        }
        let elsewhere = serve(namespace, "echo", "--listen 10.9.0.5:7");
        assert_refused(elsewhere, 2, &["10.9.0.5:7", "10.9.0.4"]);
        run(command_in(namespace, "sysctl").args(["-qw", "net.ipv4.ip_local_port_range=1024 65535"]));
        let load = "echo load --via af_xdp:lr1,share --connect 10.9.0.1:7";
        assert_refused(linerate_in(namespace, load), 1, &["--outgoing-ports 61000-65535", "1024-65535", "sysctl"]);
        // A server needs no ports for connections.
        assert!(Program::serve(serve(namespace, "echo", LISTEN)).stop().status.success());
        ip(&format!("-n {namespace} addr flush dev lr1"));
        assert_refused(serve(namespace, "echo", "--listen 0.0.0.0:7"), 1, &["no address to share", "ip addr add"]);
    });
}

#[test]
fn changes_of_addresses_are_followed() {
    beside_others(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(serve(namespace, "echo", "--listen 0.0.0.0:7 --listen [::]:7"));
        let mut lost = connect(OWN[0].parse().unwrap());
        let mut kept = connect(OWN[1].parse().unwrap());
        ip(&format!("-n {namespace} addr add 10.9.0.5/24 dev lr1"));
        let added: SocketAddr = "10.9.0.5:7".parse().unwrap();
        wait_for("the added address", || TcpStream::connect_timeout(&added, Duration::from_millis(500)).is_ok());
        exchange(added, &random(1 << 16), 2);
        [&mut lost, &mut kept].into_iter().for_each(assert_alive);
        ip(&format!("-n {namespace} addr del 10.9.0.4/24 dev lr1"));
        let conns = linerate(&format!("conns --pid {} --local 10.9.0.4 --json", server.pid()));
        wait_for("the end of its connection", || run(&conns).stdout.contains("\"connections\":[]"));
        assert_alive(&mut kept);
        kept.shutdown(Shutdown::Write).unwrap();
        assert_eq!(kept.read(&mut [0]).unwrap(), 0);
        let summary = server.stop().json();
        assert_eq!(summary["broken"], 1, "the connection of the removed address: {summary}");
    });
}
