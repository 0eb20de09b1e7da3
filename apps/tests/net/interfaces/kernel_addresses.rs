//! Interfaces shared with the kernel at the kernel's own addresses (`af_xdp:INTERFACE,share` without `--ip`).

use super::refusals::assert_refused;
use super::shared::{assert_alive, assert_shared, assert_undisturbed, connect_kernels};
use crate::common::client::{connect, exchange, random};
use crate::common::linerate;
use crate::common::wire::linerate_in;
use crate::links::{assert_datagrams, assert_no_errors};
use linerate_harness::namespace::command_in;
use linerate_harness::program::{Program, ip, run};
use linerate_harness::rerun::{in_concurrent_namespaces, in_namespaces};
use linerate_harness::{tests, wait_for};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// Addresses of the kernel in the namespace, with the port of the servers.
const OWN: [&str; 2] = ["10.9.0.4:7", "[fd09::4]:7"];

fn own() -> [SocketAddr; 2] {
    OWN.map(|address| address.parse().unwrap())
}

fn serve(namespace: &str, service: &str, more: &str) -> Command {
    linerate_in(namespace, &format!("{service} serve --via af_xdp:lr1,share --idle wait --json {more}"))
}

const LISTEN: &str = "--listen 10.9.0.4:7 --listen [fd09::4]:7";

/// Moves this end of the wire to another Ethernet address, as in a takeover of its IP addresses by another host.
fn move_neighbor(namespace: &str, mac: &str) {
    ip(&format!("link set lr0 address {mac}"));
    for own in ["10.9.0.1", "fd09::1"] {
        ip(&format!("-n {namespace} neigh replace {own} lladdr {mac} dev lr1 nud reachable"));
    }
}

/// Serves on the kernel's addresses, to which the kernel has connections on another port, and moves the peer to another
/// Ethernet address.
fn serves_with_the_kernel(queues: usize) {
    assert_shared(22, queues, |namespace, round, streams| {
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
        (server, 14)
    });
}

tests! {
    one_queue_serves_on_the_addresses_of_the_kernel => serves_with_the_kernel(1);
    two_queues_serve_on_the_addresses_of_the_kernel => serves_with_the_kernel(2);
}

#[test]
fn kv_serves_on_an_address_of_the_kernel() {
    in_concurrent_namespaces(|namespace| {
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
    in_concurrent_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(linerate("echo serve --via kernel --listen 10.9.0.1:7 --listen [fd09::1]:7"));
        for peer in ["10.9.0.1:7", "[fd09::1]:7"] {
            let load = "--connections 8 --duration 300ms --idle wait --json";
            let load = format!("echo load --via af_xdp:lr1,share --connect {peer} {load}");
            let run = |load: &str| Program::start(linerate_in(namespace, load)).wait();
            assert_no_errors(&run(&load));
            assert_datagrams(&run(&format!("{load} --udp")));
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
        let mut open = own().map(connect);
        assert_refused(of_kernel(), 1, &["10.9.0.4:7"]);
        // The kernel's client on the same host does not pass the interface.
        for address in OWN {
            for service in ["echo", "kv"] {
                let local = format!("{service} load --via kernel --connect {address} --duration 100ms");
                let parts = [address, "refused", "share", "--via kernel --listen"];
                assert_refused(linerate_in(namespace, &local), 1, &parts);
            }
        }
        // One process shares an interface.
        let other_port = serve(namespace, "echo", "--listen 10.9.0.4:8");
        assert_refused(other_port, 1, &["'lr1' is being used by another Linerate process"]);
        open.iter_mut().for_each(assert_alive);
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
        let exclusive = "echo serve --via af_xdp:lr1 --ip 10.9.0.4/24 --listen 10.9.0.4:7";
        let parts = ["--ip 10.9.0.4: the kernel has this address on 'lr1'", "--via af_xdp:lr1,share"];
        assert_refused(linerate_in(namespace, exclusive), 1, &parts);
        for via in ["roce:af_xdp:lr1", "roce:af_xdp:lr1,share"] {
            let roce = format!("echo serve --via {via} --ip 10.9.0.4/24 --listen 10.9.0.4:7");
            let parts = ["--ip 10.9.0.4: the kernel has this address on 'lr1'", "an address of its own"];
            assert_refused(linerate_in(namespace, &roce), 1, &parts);
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

/// Moves a connection of a host that is reached through a router to another router, and the interface to another
/// Ethernet address.
#[test]
fn changes_of_routes_and_of_the_ethernet_address_are_followed() {
    in_concurrent_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(serve(namespace, "echo", LISTEN));
        // This end is a host that two routers reach, the second of which has its own Ethernet address.
        ip("addr add 192.0.2.1/32 dev lr0");
        ip("route replace 10.9.0.0/24 dev lr0 src 192.0.2.1");
        ip("link add lr2 link lr0 address 02:00:00:00:00:03 type macvlan mode bridge");
        ip("link set lr2 up");
        ip(&format!("-n {namespace} neigh add 10.9.0.3 lladdr 02:00:00:00:00:03 dev lr1 nud permanent"));
        let mut open = connect(OWN[0].parse().unwrap());
        assert_eq!(open.local_addr().unwrap().ip().to_string(), "192.0.2.1");
        assert_alive(&mut open);
        ip(&format!("-n {namespace} route change default via 10.9.0.3"));
        let received = || {
            let bytes = std::fs::read_to_string("/sys/class/net/lr2/statistics/rx_bytes").unwrap();
            bytes.trim().parse::<u64>().unwrap()
        };
        wait_for("the second router", || {
            let before = received();
            exchange(own()[0], &random(1 << 18), 1);
            assert_alive(&mut open);
            received() - before > 1 << 18
        });
        let mut neighbor = connect(OWN[1].parse().unwrap());
        ip(&format!("-n {namespace} link set lr1 address 02:00:00:00:00:04"));
        // The kernel has flushed its neighbours on the interface.
        ip(&format!("-n {namespace} neigh replace 10.9.0.3 lladdr 02:00:00:00:00:03 dev lr1 nud permanent"));
        for own in ["10.9.0.4", "fd09::4"] {
            ip(&format!("neigh replace {own} lladdr 02:00:00:00:00:04 dev lr0 nud permanent"));
        }
        [&mut open, &mut neighbor].into_iter().for_each(assert_alive);
        own().into_iter().for_each(|address| exchange(address, &random(1 << 16), 2));
        drop((open, neighbor));
        assert!(server.stop().status.success());
    });
}

#[test]
fn datagrams_are_served_on_the_addresses_of_the_kernel() {
    in_concurrent_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(serve(namespace, "echo", LISTEN));
        for address in OWN {
            let load =
                format!("echo load --udp --via kernel --connect {address} --connections 8 --duration 300ms --json");
            assert_datagrams(&Program::start(linerate(&load)).wait());
        }
        assert!(server.stop().status.success());
    });
}

/// The driver of a veth pair attaches no XDP program if the peer has a large MTU.
#[test]
fn interface_whose_driver_refuses_the_program_is_left_as_found() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        ip("link set lr0 mtu 9000");
        let parts =
            ["'lr1' cannot be shared", "driver refuses", "ethtool -K lr1 lro off", "ip link set dev lr1 mtu 1500"];
        assert_refused(serve(namespace, "echo", LISTEN), 1, &parts);
        let kernel = linerate_in(namespace, "echo serve --via kernel --listen 10.9.0.4:7 --json");
        let kernel = Program::serve(kernel);
        let stream = connect(OWN[0].parse().unwrap());
        assert_undisturbed(namespace, [stream], kernel);
    });
}

#[test]
fn changes_of_addresses_are_followed() {
    in_concurrent_namespaces(|namespace| {
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
