//! Interfaces shared with the kernel (`af_xdp:INTERFACE,share`).

use super::client::{connect, exchange, random};
use super::links::assert_no_errors;
use super::program::linerate;
use super::refusals::assert_refused;
use super::wire::{ADDRESSES, Wire, linerate_in, servers};
use linerate_harness::program::{Program, ip};
use linerate_harness::rerun::{beside_others, in_namespaces};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

/// Connects this namespace with `namespace`, whose kernel has addresses and its default route on the interface.
pub fn connect_kernels(namespace: &str, queues: usize) {
    Wire::AfXdp.connect_queues(namespace, queues);
    for arguments in
        ["addr add 10.9.0.4/24 dev lr1", "addr add fd09::4/64 dev lr1 nodad", "route add default via 10.9.0.1"]
    {
        ip(&format!("-n {namespace} {arguments}"));
    }
}

/// Passes a message through an open connection and back.
pub fn assert_alive(stream: &mut TcpStream) {
    stream.write_all(b"alive").unwrap();
    let mut reply = [0; 5];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"alive");
}

/// Asserts that the interface is left as found, and that the connections of the `kernel`'s server end in order.
pub fn assert_undisturbed(namespace: &str, streams: impl IntoIterator<Item = TcpStream>, kernel: Program) {
    let link = Command::new("ip").args(["-n", namespace, "link", "show", "lr1"]).output().unwrap();
    let link = String::from_utf8_lossy(&link.stdout);
    assert!(!link.contains("xdp") && !link.contains("PROMISC"), "the interface is left as found: {link}");
    for mut stream in streams {
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the server has finished the connection");
    }
    assert_eq!(kernel.stop().json()["broken"], 0);
}

fn serve(namespace: &str, more: &str) -> Command {
    linerate_in(namespace, &format!("echo serve --via af_xdp:lr1,share {ADDRESSES} {more}"))
}

/// Serves beside connections of the kernel, which outlive each server, stopped or killed.
fn assert_shared(namespace: &str, queues: usize) {
    connect_kernels(namespace, queues);
    let kernel = linerate_in(namespace, "echo serve --via kernel --listen 10.9.0.4:7 --listen [fd09::4]:7 --json");
    let kernel = Program::serve(kernel);
    let mut streams = ["10.9.0.4:7", "[fd09::4]:7"].map(|address| connect(address.parse().unwrap()));
    for is_killed in [false, true, false] {
        streams.iter_mut().for_each(assert_alive);
        let server = Program::serve(serve(namespace, &format!("--workers {queues}")));
        for address in servers() {
            exchange(address, &random(1 << 20), 4);
        }
        streams.iter_mut().for_each(assert_alive);
        if is_killed {
            server.kill();
        } else {
            let summary = server.stop().json();
            assert_eq!(summary["accepted"], 8, "{summary}");
        }
        streams.iter_mut().for_each(assert_alive);
    }
    assert_undisturbed(namespace, streams, kernel);
}

#[test]
fn shared_interface_of_one_queue_serves_beside_the_kernel() {
    beside_others(|namespace| assert_shared(namespace, 1));
}

#[test]
fn shared_interface_of_two_queues_serves_beside_the_kernel() {
    beside_others(|namespace| assert_shared(namespace, 2));
}

#[test]
fn load_uses_a_shared_interface() {
    beside_others(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(linerate("echo serve --via kernel --listen 10.9.0.1:7 --listen [fd09::1]:7"));
        for (own, peer) in [("10.9.0.2/24", "10.9.0.1:7"), ("fd09::2/64", "[fd09::1]:7")] {
            let load = "--connections 8 --duration 300ms --idle backoff --json";
            let load = format!("echo load --via af_xdp:lr1,share --ip {own} --connect {peer} {load}");
            assert_no_errors(&Program::start(linerate_in(namespace, &load)).wait());
        }
        assert!(server.stop().status.success());
    });
}

#[test]
fn interface_that_cannot_be_shared_is_refused() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 2);
        assert_refused(serve(namespace, "--workers 1"), 1, &["receives on 2 queues", "--workers 2", "ethtool -L lr1"]);
        let with_mac = serve(namespace, "--workers 2 --mac 02:00:00:00:00:09");
        assert_refused(with_mac, 1, &["keeps its Ethernet address", "leave --mac out"]);
        let of_kernel = "echo serve --via af_xdp:lr1,share --ip 10.9.0.4/24 --listen 10.9.0.4:7 --workers 2";
        assert_refused(
            linerate_in(namespace, of_kernel),
            1,
            &["10.9.0.4 is an address of this host's kernel", "leave --ip out"],
        );
        for option in ["--dhcp", "--slaac", "--vlan 5"] {
            let refused = serve(namespace, option);
            assert_refused(
                refused,
                2,
                &[option.split(' ').next().unwrap(), "has no effect with --via af_xdp:INTERFACE,share"],
            );
        }
        let first = Program::serve(serve(namespace, "--workers 2"));
        assert_refused(serve(namespace, "--workers 2"), 1, &["'lr1' is being used by another Linerate process"]);
        assert!(first.stop().status.success());
    });
}
